"""Git commit of this checkout, recorded with every measurement."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parent
"""The folder of the package."""


@cache
def commit() -> str:
    """Return the commit of the source, with "+" if files differ from it.

    Outside a checkout it is the value of the environment variable STEELYARD_COMMIT, or "unknown".
    """
    if given := os.environ.get("STEELYARD_COMMIT"):
        return given
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(SOURCE), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()
