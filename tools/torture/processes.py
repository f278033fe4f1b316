"""Processes beside the one that trains, killed: those that read items, and one of two that train together."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from torture.child import MOST_SECONDS, Running
from torture.commands import MLP, QUICK, Command, Place, different, left
from torture.tally import Tally

SMALL = ("--set", "model.backbone=small", "--set", "data.size=12", "--set", "model.pretrained=false")
SLOWLY = (*SMALL, *QUICK, "--set", "train.workers=2")
IMAGES = Command("train on images", ("train", "--data", "photos", *SLOWLY, "--out", "new"), ("new",))
TWO = Command("training by two processes", ("train", "--data", "items.csv", *MLP, *QUICK, "--out", "new"), ("new",))


def readers(place: Place, times: int, rng: random.Random) -> Tally:
    """Kill a process that reads items for a training, at a random moment."""
    tally = Tally("kill −9 of a DataLoader worker", "one line names the setting; typed again, the result is equal")
    seconds = place.undisturbed(IMAGES)[1].seconds
    while tally.injected < times:
        running = Running(IMAGES.args, place.anew())
        time.sleep(rng.uniform(0, 0.8) * seconds)
        killed = 0
        while not killed and not running.ended():
            for child in _children(running.pid)[:1]:
                killed += _kill(child)
        ended = running.wait()
        if not killed:
            continue
        wrong = ended.wrong(0, 2)
        if not wrong and ended.code == 2 and "train.workers" not in ended.err:
            wrong = f"says {ended.err!r}"
        if not wrong and ended.code == 0:  # it was no longer needed
            wrong = different(left(place.work, IMAGES), place.undisturbed(IMAGES)[0])
        elif not wrong:
            wrong = place.finished(IMAGES)
        tally.add(wrong)
    return tally


def one_of_two(place: Place, times: int, rng: random.Random) -> Tally:
    """Kill one of the two processes that torchrun started, at a random moment."""
    tally = Tally("kill −9 of one of two torchrun processes", "no process is left; typed again, the result is equal")
    work = place.anew()
    started = time.monotonic()
    if code := _torchrun(work).wait(MOST_SECONDS):
        raise RuntimeError(f"torchrun ended with {code}")
    seconds, wanted = time.monotonic() - started, left(work, TWO)
    while tally.injected < times:
        agent = _torchrun(place.anew())
        began = time.monotonic()
        while len(children := _children(agent.pid)) < 2 and agent.poll() is None:
            time.sleep(0.01)
        time.sleep(max(0.0, rng.uniform(0.2, 0.9) * seconds - (time.monotonic() - began)))
        killed = _kill(rng.choice(children)) if agent.poll() is None else False
        try:
            code = agent.wait(MOST_SECONDS)
        except subprocess.TimeoutExpired:
            agent.kill()
            tally.add("it hangs")
            continue
        if not killed:
            continue
        left_over = [child for child in children if Path(f"/proc/{child}").exists()]
        wrong = "" if code else "torchrun does not tell"
        if left_over:
            wrong = f"{len(left_over)} processes are left"
        if not wrong and not (work / "new" / "run.json").is_file() and (code := _torchrun(work).wait(MOST_SECONDS)):
            wrong = f"typed again: exit code {code}"
        tally.add(wrong or different(left(work, TWO), wanted))
    return tally


def _torchrun(folder: Path) -> subprocess.Popen[bytes]:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "steelyard"]
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([*start, *TWO.args], cwd=folder, env=env, **quiet)  # type: ignore[call-overload,no-any-return]


def _children(pid: int) -> list[int]:
    """Processes that a process has started."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _kill(pid: int) -> bool:
    """Kill a process; return whether there was one that had not ended yet."""
    try:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return False
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, FileNotFoundError):
        return False
    return True
