"""The user's cache folder: results that take long to compute and may be deleted at any time."""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "STEELYARD_CACHE"
"""The environment variable that names another folder, or is "off"."""
OFF = "off"


def user_cache() -> Path | None:
    """Return the folder in which results are kept for all runs of this user, None where that is switched off."""
    if given := os.environ.get(VARIABLE):
        return None if given == OFF else Path(given).expanduser().absolute()
    try:
        return _of_platform() / "steelyard"
    except RuntimeError:  # this user has no home
        return None


def _of_platform() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    given = Path(os.environ.get("XDG_CACHE_HOME") or "")
    return given if given.is_absolute() else Path.home() / ".cache"  # relative ones are to be ignored
