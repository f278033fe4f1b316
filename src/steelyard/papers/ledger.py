"""What was measured on runs, a line each, kept where the runs themselves are not: a table is finished from it later."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from steelyard.papers.result import rounded


def noted(path: Path, key: str, measure: str) -> dict[str, Any] | None:
    """Return the values, details and facts of a run by one measure, the latest that were noted; None where none were.

    Args:
        path: the file; it need not be there.
        key: of the run, see `trial.key_of`.
        measure: the name of what was measured.
    """
    found = None
    if path.is_file():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            said = _read(line)
            if said is None:
                raise ValueError(f"{path}, line {number} is no run that was noted: delete the line")
            if (said["key"], said["measure"]) == (key, measure):
                found = said
    return found


def note(path: Path, key: str, measure: str, said: dict[str, Any]) -> None:
    """Add a line: `said` has the values, details and facts of the run, whose details are rounded to six digits.

    Several processes may add to one file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    said = {"key": key, "measure": measure, **said, "details": rounded(said["details"])}
    line = json.dumps(said, ensure_ascii=False) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())  # at once, so that lines of several processes do not mix
        os.fsync(file)
    finally:
        os.close(file)


def _read(line: str) -> dict[str, Any] | None:
    try:
        said = json.loads(line)
        whole = {"key", "measure", "values", "details", "facts"} <= said.keys()
        return dict(said) if whole and {"seconds", "device", "versions", "commit"} <= said["facts"].keys() else None
    except (ValueError, AttributeError, TypeError):
        return None
