"""Changes of an index in processes of their own, which are killed in the midst of them.

Run as a program it reads lines of JSON, [function, arguments …], makes a process for each at once, since all is
imported and there are no threads, and answers with its exit code. A line with a number of seconds before it has the
process killed after that time.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.search.index import Index

NAMES = ["dog", "cat", "car"]
TOUCHES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "os.scandir", "os.chmod")


def values(n: int, seed: int) -> Any:
    return np.random.default_rng(seed).random((n, len(NAMES))).astype(np.float32)


def change(folder: Path, what: str) -> None:
    """One of the changes; the index was `begin`'s."""
    if what == "build":
        Index.build(folder, [f"n{i}" for i in range(40)], values(40, 9), NAMES, overwrite=True, notes={"new": True})
        return
    index = Index.open(folder)
    if what == "append":
        index.append([f"m{i}" for i in range(30)], values(30, 5))
    elif what == "replace":
        index.replace([f"b{i}" for i in range(25)] + ["new"], values(26, 6))
    else:
        index.delete([f"c{i}" for i in range(0, 20, 2)] + [f"d{i}" for i in range(5)])


def begin(folder: Path) -> None:
    """An index of several parts, some of it deleted, so that changes also merge and rewrite parts."""
    index = Index.build(folder, [f"a{i}" for i in range(300)], values(300, 0), NAMES, notes={"new": False})
    for seed, letter in enumerate("bcd", 1):
        index.append([f"{letter}{i}" for i in range(28)], values(28, seed), [f"/{letter}/{i}" for i in range(28)])
    index.delete(["a7", "c1"])
    index.close()


def content(folder: Path) -> dict[str, Any]:
    """All that an index holds, read by its own means."""
    with Index.open(folder) as index:
        ids = sorted(hit.id for hit in index.search("dog", k=1000))
        assert len(ids) == index.n_items == len(index)
        rows = index.rows(ids)
        return {"notes": index.notes, "paths": index.paths(ids)} | dict(zip(ids, rows.tolist(), strict=True))


def moments(folder: Path, copies: Path, what: str) -> list[Path]:
    """Make a change; return copies of the folder as a kill at each touch of it would leave it, each state once."""
    states: dict[Any, Path] = {}

    def touched() -> None:
        facts = [(path, path.stat()) for path in sorted(folder.rglob("*"))]
        state = tuple((path, now.st_size, now.st_mtime_ns, now.st_ino) for path, now in facts)
        if folder.exists() and state not in states:
            states[state] = Path(shutil.copytree(folder, copies / f"{what}-{len(states)}"))

    _watches[str(folder)] = touched
    try:
        change(folder, what)
    finally:
        del _watches[str(folder)]
    return list(states.values())


_watches: dict[str, Callable[[], None]] = {}


def _watch(event: str, given: Any) -> None:
    if event in TOUCHES:
        for folder, touched in [*_watches.items()]:
            if str(given[0]).startswith(folder):
                del _watches[folder]  # what it does itself is not watched
                touched()
                _watches[folder] = touched


sys.addaudithook(_watch)


def reads(folder: Path) -> None:
    """Read all that a file from a stranger may hold; an error is one sentence."""
    try:
        with Index.open(folder) as index:
            hits = index.search("dog & ~cat | car > 0.5", k=50)
            index.rows([hit.id for hit in hits])
            index.paths([hit.id for hit in hits[:5]])
            assert "nobody" not in index
    except ValueError as refused:
        error = str(refused)
        if len(error.splitlines()) != 1:
            raise


def append_batches(folder: Path, n_batches: int) -> None:
    """Append 10 items at a time, all of one batch with the same probability."""
    for batch in range(n_batches):
        with Index.open(folder) as index:
            index.append([f"{batch:03d}-{i}" for i in range(10)], np.full((10, len(NAMES)), (batch + 1) / 128))


def serve() -> None:
    """Do what the lines on the standard input say."""
    with contextlib.suppress(ImportError):
        importlib.import_module("pandas")  # which pyarrow else looks for in every process anew
    gc.freeze()  # what all of them share is looked through by none
    for line in sys.stdin:
        seconds, function, folder, *arguments = json.loads(line)
        child = os.fork()
        if not child:
            globals()[function](Path(folder), *arguments)
            os._exit(0)
        if seconds is not None:
            time.sleep(seconds)
            os.kill(child, signal.SIGKILL)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
