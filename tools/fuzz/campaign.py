"""Many inputs for every parser, in processes of their own: `make fuzz FUZZ=1000000`.

An input must give a value, or raise the one class of error that its parser documents, in one line; another exception,
a warning, a second of computing, memory without bounds or the end of the process is a fault. Inputs are seeds that
were changed, likely inputs that were made, and bytes; one that meets with a new answer, or reaches a new line of code
(from Python 3.12 on), joins the seeds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import torch

from fuzz.mutate import mutated, raw
from fuzz.parsers import BUILD, Target
from steelyard.data.files import DataError
from steelyard.data.tables import manifest
from steelyard.search import QueryError

SECONDS = 1.0
ROOM = 1 << 32  # bytes of address space that a parser may ask for: Arrow reserves a gigabyte at a time
_LONGEST_LINE = 2500
_SHARE = 20_000  # inputs of a process
_DETAIL = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\([^()]*\)|[0-9]+")


_PLACE = re.compile(r"steelyard/(\S+?\.py)\", line [0-9]+")


class Hang(BaseException):
    """A second of computing."""


def attempt(target: Target, content: bytes) -> tuple[str, str | None]:
    """Try an input: the answer, in short, and the fault, None where there is none."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        target.read(content)
        return "a value", None
    except Hang:
        return "hang", f"more than {SECONDS:g} s of computing\n{traceback.format_exc(limit=-6)}"
    except BaseException as error:
        if type(error) is target.error or (target.error is ValueError and type(error) is DataError):
            said = error.what if isinstance(error, QueryError) else str(error)
            if "\n" in said or len(said) > _LONGEST_LINE:
                return "prolix", f"{len(said)} characters, {said.count(chr(10)) + 1} lines: {said[:300]!r}"
            return _DETAIL.sub("", said)[-90:], None
        if isinstance(error, KeyboardInterrupt):
            raise
        return type(error).__name__, traceback.format_exc(limit=-8)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


@contextmanager
def guarded() -> Iterator[None]:
    """Hold this process to the rules: time by a signal, memory by a limit, warnings from our code as errors."""

    def ring(*_: object) -> None:
        raise Hang

    before, limits = signal.signal(signal.SIGPROF, ring), resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, limits[1]))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", module=r"steelyard(\..*)?")
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGPROF, before)


class Lines:
    """Whether code was reached that had not been reached before; costs next to nothing, as every line tells once."""

    def __init__(self) -> None:
        self.new = False
        if sys.version_info >= (3, 12):
            watch = sys.monitoring
            watch.use_tool_id(watch.COVERAGE_ID, "fuzz")
            watch.register_callback(watch.COVERAGE_ID, watch.events.LINE, self._reached)
            watch.set_events(watch.COVERAGE_ID, watch.events.LINE)

    def _reached(self, code: Any, line: int) -> Any:
        if "steelyard" in code.co_filename:
            self.new = True
        return sys.monitoring.DISABLE  # type: ignore[attr-defined,unused-ignore]


def inputs(random: Random, target: Target, seeds: list[bytes]) -> bytes:
    """The next input."""
    kind = random.random()
    if kind < 0.04:
        return raw(random)
    if target.make is not None and kind < 0.45:
        made = target.make(random)
        return made if kind < 0.25 else mutated(random, (made,), target.words)
    return mutated(random, target.seeds if kind < 0.75 else seeds, target.words)


def fuzz(name: str, seed: int, count: int, until: float, folder: Path, results: Path | None = None) -> dict[str, Any]:
    """Try `count` inputs on one parser, or as many as there is time for.

    Where `results` is a folder, the record is kept in it, renewed as it goes, and inputs that show a fault.
    """
    random, seen, found = Random(f"{name} {seed}"), set[str](), dict[str, str]()
    target = BUILD[name](folder)
    seeds, lines, done, values, written = list(target.seeds), Lines() if results else None, 0, 0, time.time()
    stem = name.replace(" ", "_")

    def record() -> dict[str, Any]:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        told = {"name": name, "inputs": done, "values": values, "answers": len(seen), "faults": found, "peak_kib": peak}
        if results is not None:
            (results / f"{stem}-{seed}.json").write_text(json.dumps(told))
        return told

    with guarded():
        for done in range(1, count + 1):
            content = inputs(random, target, seeds)
            answer, fault = attempt(target, content)
            values += answer == "a value"
            if fault is not None:
                kind = " ".join((answer, *_PLACE.findall(fault)[-1:]))
                if kind not in found:
                    found[kind] = fault
                    if results is not None:
                        kept = results / "faults" / f"{stem}-{hashlib.sha1(content).hexdigest()[:10]}"
                        Path(f"{kept}.bin").write_bytes(content)
                        Path(f"{kept}.txt").write_text(fault, encoding="utf-8", errors="backslashreplace")
            elif (
                len(content) < 4096 and (answer not in seen or (lines is not None and lines.new)) and len(seeds) < 3000
            ):
                seeds.append(content)
            if lines is not None:
                lines.new = False
            seen.add(answer)
            if done % 256 == 0:
                now = time.time()
                if now > until:
                    break
                if now > written + 15:
                    record()
                    written = now
    return record()


def _work(name: str, seed: int, count: int, until: float, results: Path) -> None:
    torch.set_num_threads(1)
    pa.set_cpu_count(1)  # inputs are small: handing them from thread to thread, and large blocks, take most of the time
    pa.set_io_thread_count(1)
    manifest._BLOCK = manifest._SMALL_BLOCK = 1 << 14
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        fuzz(name, seed, count, until, Path(folder), results)


def _memory() -> str | None:
    """A file system in memory, where there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def campaign(names: list[str], count: int, jobs: int, minutes: float, results: Path, first: int) -> None:
    """Share the work among processes; one that dies is a fault."""
    (results / "faults").mkdir(parents=True, exist_ok=True)
    until = time.time() + 60 * minutes
    share = max(1, count // _SHARE, min(jobs, count // 2000))  # many small ones: all parsers get on alike
    waiting = [(name, first + i, count // share + (i < count % share)) for i in range(share) for name in names]
    running: dict[Any, tuple[str, int, int]] = {}
    context = multiprocessing.get_context("fork")
    while running or (waiting and time.time() < until):
        while waiting and len(running) < jobs and time.time() < until:
            task = waiting.pop(0)
            process = context.Process(target=_work, args=(*task, until, results))
            process.start()
            running[process] = task
        time.sleep(0.05)
        for process in [process for process in running if not process.is_alive()]:
            name, seed, _ = running.pop(process)
            if process.exitcode:
                text = f"the process of {name!r}, seed {seed}, ended with {process.exitcode}"
                (results / "faults" / f"{name.replace(' ', '_')}-died-{seed}.txt").write_text(text)
                print(text, file=sys.stderr)


def total(results: Path) -> dict[str, dict[str, Any]]:
    """The records of all processes, by target."""
    out: dict[str, dict[str, Any]] = {}
    for file in sorted(results.glob("*.json")):
        record = json.loads(file.read_text())
        row = out.setdefault(record["name"], {"inputs": 0, "values": 0, "faults": [], "peak_kib": 0})
        row["inputs"] += record["inputs"]
        row["values"] += record["values"]
        row["faults"] = sorted({*row["faults"], *record["faults"]})
        row["peak_kib"] = max(row["peak_kib"], record["peak_kib"])
    return {name: out[name] for name in BUILD if name in out}


def main() -> None:
    """Fuzz every parser, or those named, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="inputs for each parser")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--minutes", type=float, default=60.0, help="the most that it may take")
    parser.add_argument("--only", nargs="*", default=list(BUILD), choices=list(BUILD), metavar="NAME")
    parser.add_argument("--first", type=int, default=0, help="the first seed: another number, other inputs")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="records, and inputs that showed a fault")
    told = parser.parse_args()
    shutil.rmtree(told.out, ignore_errors=True)
    began = time.time()
    campaign(told.only, told.count, told.jobs, told.minutes, told.out, told.first)
    rows = total(told.out)
    for name, row in rows.items():
        shown = f"{row['inputs']:10,} inputs  {row['values']:9,} values  {row['peak_kib'] >> 10} MiB"
        print(f"{name:26} {shown}  {len(row['faults'])} faults")
    died = sorted((told.out / "faults").glob("*-died-*.txt"))
    n = sum(row["inputs"] for row in rows.values())
    print(f"{n:,} inputs in {time.time() - began:.0f} s; inputs that show a fault are in {told.out}/faults")
    sys.exit(1 if died or any(row["faults"] for row in rows.values()) else 0)


if __name__ == "__main__":
    main()
