"""Runs trained with relative paths, used from another folder that has files of the same names, or moved."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from torture.child import typed
from torture.commands import Command, Place, different, left
from torture.tally import Tally

EVALUATE = Command("evaluate", ("evaluate", "run", "--json"), ())
CALIBRATE = Command("calibrate", ("calibrate", "run", "--json"), ("run/calibration.json", "run/metrics.json"))
PREDICT = Command("predict", ("predict", "run", "new.csv", "--out", "found.csv"), ("found.csv",))


def relative_paths(place: Place, times: int, rng: random.Random) -> Tally:
    """Type commands in another folder, and where the run was moved together with its data."""
    tally = Tally("a run trained with relative paths, used from another folder or moved", "the answer is the same")
    commands = (EVALUATE, CALIBRATE, PREDICT)
    for i in range(times):
        command, moves = commands[i % len(commands)], i // len(commands) % 2 == 1
        work = place.anew()
        here = typed(command.args, work)
        wanted = {**left(work, command), "said": here.out}
        work = place.anew()
        home = work.rename(work.with_name("moved")) if moves else work
        other = _with_decoys(home, rng)
        there = typed(
            [str(home / word) if (home / word).exists() else _out(home, word) for word in command.args], other
        )
        answer = {**left(home, command), "said": there.out.replace(str(home), str(work))}
        wrong = here.wrong(0) or there.wrong(0) or different(answer, wanted)
        if moves:
            shutil.rmtree(home)
        tally.add(f"{command.name}{', moved' * moves}: {wrong}" if wrong else "")
    return tally


def _out(home: Path, word: str) -> str:
    return str(home / word) if word.endswith((".csv", ".html")) else word


def _with_decoys(home: Path, rng: random.Random) -> Path:
    """Return another folder, with files of the same names that hold something else."""
    other = home / f"elsewhere-{rng.randrange(1000)}"
    other.mkdir()
    for name in ("items.csv", "holes.csv", "new.csv"):
        (other / name).write_text("id,other\na,1\nb,0\n")
    return other
