"""Folders that may not be written to: one line that names the place, and nothing changed."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from torture.child import typed
from torture.commands import ALL, Place
from torture.tally import Tally

NOBODY = 65534


def read_only(place: Place, ways: int, rng: random.Random) -> Tally:
    """Take the right to write from every folder, and from those alone that a command writes to."""
    tally = Tally("a read-only folder, for every command", "one line names the place, nothing changes; then it works")
    for command in ALL:
        for folders in rng.sample([[""], [*command.leaves]], ways):
            work = place.anew()
            shut = [work / name for name in folders]
            shut = [folder if folder.is_dir() else folder.parent for folder in shut]
            before = _content(work)
            for folder in shut:
                _forbid(folder)
            ended = typed(command.args, work, _be_nobody)
            wrong = ended.wrong(2)
            if not wrong and "ermission denied" not in ended.err:
                wrong = f"says {ended.err.strip()!r}"
            if not wrong and _content(work) != before:
                wrong = "something changed"
            _allow(work)
            wrong = wrong or place.finished(command)
            tally.add(f"{command.name}: {wrong}" if wrong else "")
    return tally


def _be_nobody() -> None:
    """Give up the rights of root, for whom no folder is read-only."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def _forbid(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)


def _allow(folder: Path) -> None:
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _content(folder: Path) -> dict[str, Any]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
