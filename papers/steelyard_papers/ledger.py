"""Keep the measurements of runs, one line per run, without the runs: a table can be finished from it later."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from steelyard._files import naming
from steelyard._locks import Taken, sole
from steelyard_papers.result import rounded

_BEGINS = b'{"key": '


def is_something_else(path: Path) -> bool:
    """Return whether a file is there that is no ledger, to which nothing must be added: it does not begin as one."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        begins = file.read(len(_BEGINS))
    return not _BEGINS.startswith(begins)


def noted(path: Path, key: str, measure: str) -> dict[str, Any] | None:
    """Return the values, details and facts of a run by one measure, the latest that were noted; None where none were.

    A line that is corrupt, such as one that a full disk cut off, is passed over: its run is trained again.

    Args:
        path: the file; it need not be there.
        key: of the run, see `trial.key_of`.
        measure: the name of what was measured.
    """
    if not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")  # not at what else ends lines
    found = [record for line in lines if key in line and (record := _read(line)) is not None]
    return next((record for record in reversed(found) if (record["key"], record["measure"]) == (key, measure)), None)


def note(path: Path, key: str, measure: str, record: dict[str, Any]) -> None:
    """Add a line: `record` has the values, details and facts of the run, whose details are rounded to four digits.

    Several processes may add to one file.
    """
    record = {"key": key, "measure": measure, **record, "details": rounded(record["details"], 4)}
    line = (json.dumps(record, ensure_ascii=False) + "\n").encode()
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b", buffering=0) as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else b"\n" + line
            if file.write(line) < len(line):  # at once, so that lines of several processes do not mix
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())


def _read(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
        whole = {"key", "measure", "values", "details", "facts"} <= record.keys()
        return dict(record) if whole and {"seconds", "device", "versions", "commit"} <= record["facts"].keys() else None
    except (ValueError, AttributeError, TypeError):
        return None


@contextmanager
def claimed(file: Path, waits: bool) -> Iterator[bool]:
    """Give whether what `file` stands for is this process's now; with `waits` it is, once another has let go of it.

    The claim is a lock on the file, which the system lets go of however the process ends.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(sole(file, waits))
            is_ours = True
        except Taken:
            is_ours = False
        yield is_ours
