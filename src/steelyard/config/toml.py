"""TOML: reading files with errors that name the position, and writing values."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def read(path: str | Path) -> dict[str, Any]:
    """Return the content of a TOML file; a mistake in it is a `ValueError` that names file and line."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start} is not UTF-8: save the file as UTF-8") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder: give a TOML file") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).removesuffix(")").rpartition(" (at ")
        what = what if len(what) <= 200 else f"{what[:199]}…"  # it may quote a whole line
        raise ValueError(f"{path}: {where}: {what}, which is not TOML") from None
    except ValueError as error:  # a number of thousands of digits
        raise ValueError(f"{path}: {error}") from None
    except RecursionError:
        raise ValueError(f"{path}: lists or tables are nested too deeply") from None


def write_value(value: bool | int | float | str | Sequence[Any]) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{"".join(map(_character, value))}"'
    if isinstance(value, int | float):
        return repr(value)
    return f"[{', '.join(map(write_value, value))}]"


def _character(c: str) -> str:
    if re.match("[\ud800-\udfff]", c):
        raise ValueError(f"the text has the half character {c!r}, which TOML cannot hold: rename the file")
    return _SHORT.get(c) or (f"\\u{ord(c):04x}" if c < " " or c == "\x7f" else c)
