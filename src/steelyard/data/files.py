"""Reading the files of a data set, with errors in one sentence: which file, which line, how to fix it."""

from __future__ import annotations

import csv
import json
import mmap
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

PathLike: TypeAlias = str | Path
Values: TypeAlias = NDArray[np.int8]
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # characters with which a spreadsheet formula begins


class DataError(ValueError):
    """A data file is missing, corrupt or not in the published layout; the message names the file and how to fix it.

    Examples:
        >>> try:
        ...     sy.data.open_data("lost.csv")
        ... except sy.data.DataError as error:
        ...     print(error)
        lost.csv does not exist: give a file or a folder
    """


def damaged(path: PathLike, fault: str) -> DataError:
    """Return the error for a file that differs from what its owners publish."""
    return DataError(f"{path}: {fault}: download it again")


@contextmanager
def faults_of(where: PathLike) -> Iterator[None]:
    """Prefix a `ValueError` about the content of a file with its name."""
    try:
        yield
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None


def folder(root: PathLike, name: str) -> Path:
    """Return the folder `root/name`; raise if it is missing."""
    path = Path(root) / name
    if not path.is_dir():
        raise DataError(f"{path} is not a folder: give the root that holds {name}")
    return path


def first_file(candidates: Iterable[Path], what: str) -> Path:
    """Return the first of `candidates` that is a file, or name them all as places where `what` was looked for."""
    tried = list(candidates)
    for path in tried:
        if path.is_file():
            return path
    rest = [path.name if path.parent == tried[0].parent else str(path) for path in tried[1:]]
    places = " nor ".join([str(tried[0]), *rest])
    raise DataError(f"{what} is missing: there is no {places}; download it from the owners or give another root")


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raise for anything but a file or a folder: opening a pipe would wait for its writer."""
    mode = Path(path).stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DataError(f"{os.fspath(path)} is a pipe, a socket or a device, not a file: give a file, or remove it")


def require(path: PathLike) -> Path:
    """Return `path`, a file that is there, can be opened and is not empty."""
    try:
        check_regular(path)
        with Path(path).open("rb") as file:
            empty = not file.read(1)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): check the path and its permissions") from None
    if empty:
        raise DataError(f"{path} is empty: download it again")
    return Path(path)


def read_bytes(path: PathLike) -> bytes:
    """Return the content of a file that must be there and must not be empty."""
    return require(path).read_bytes()


def decode(content: bytes | mmap.mmap, path: PathLike) -> str:
    """Return UTF-8 `content` as text without a byte-order mark, with lines that end as Unix ends them."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{path} is UTF-16, not UTF-8: save it as UTF-8")
    try:
        text = str(content, "utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        byte = f"byte 0x{content[error.start]:02x}"
        raise DataError(f"{path}: line {line} is not UTF-8 ({byte}): save it as UTF-8") from None
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def read_text(path: PathLike) -> str:
    """Return the text of a UTF-8 file without byte-order mark, with Unix line ends."""
    return decode(read_bytes(path), path)


def read_lines(path: PathLike) -> list[str]:
    """Return the lines of a UTF-8 file without white space around them; blank lines at the end are left out."""
    lines = [line.strip() for line in read_text(path).split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise DataError(f"{path} is blank: download it again")
    return lines


def csv_rows(path: PathLike, expected: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of each row of a CSV file; the error for other files names `expected`."""
    try:
        check_regular(path)
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            for cells in reader:
                yield reader.line_num, cells
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): give {expected}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8: give {expected}") from None
    except csv.Error as error:
        raise DataError(f"{path} is not CSV ({error}): give {expected}") from None


_ESCAPE = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F])|.)")


def read_json(path: PathLike, hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Return the content of a JSON file; `hook` maps every object as soon as it is read, so that parts can be dropped.

    Besides what `hook` keeps, a file of half a gigabyte needs memory for its text only.
    """
    with require(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        text = decode(content, path)
    if re.search(r"\\u[dD]", text) and any(half[1] for half in _ESCAPE.finditer(text)):
        raise DataError(f"{path} holds half a character (\\ud800 to \\udfff): it is corrupt, download it again")
    try:
        return json.loads(text, object_hook=hook)
    except json.JSONDecodeError as error:
        where = f"{path}: line {error.lineno}, column {error.colno}"
        raise DataError(
            f"{where}: not JSON ({error.msg}): the file is truncated or corrupt, download it again"
        ) from None
    except (RecursionError, ValueError):  # a number of thousands of digits
        raise DataError(f"{path} holds JSON nested too deeply or too long a number: download it again") from None


def field(record: Any, key: str, kind: type, path: PathLike, where: str) -> Any:
    """Return `record[key]`, an instance of `kind`; `where` says which record of which file it is."""
    value = record.get(key) if isinstance(record, dict) else None
    strange = isinstance(value, int) and (isinstance(value, bool) or abs(value) >> 63)
    if isinstance(value, kind) and not (kind is int and strange):
        return value
    problem = f"is {value!r:.60}" if isinstance(record, dict) and key in record else "is missing"
    raise DataError(
        f"{path}: {where}: {key!r} {problem}: the owners' file has {kind.__name__} there, download it again"
    )


_UNSAFE = re.compile(r"[\x00-\x1f\\:\ud800-\udfff]")
_LONGEST = 1000  # characters


def relative(name: str, path: PathLike, where: str) -> str:
    """Return `name`, a path that stays inside its folder; anything else, such as `../x`, is refused."""
    pure = PurePosixPath(name)
    if not name or pure.is_absolute() or ".." in pure.parts or _UNSAFE.search(name) or len(name) > _LONGEST:
        raise DataError(
            f"{path}: {where}: {name!r:.80} is not a path inside the data folder: correct or remove that line"
        )
    return name


def check_paths(names: Sequence[str], path: PathLike, what: str, where: str = "line") -> list[str]:
    """Return distinct names listed in `path`, each of them a path that stays inside its folder."""
    checked = [relative(name, path, f"{where} {i}") for i, name in enumerate(names, 1)]
    check_distinct(checked, path, what)
    return checked


def check_distinct(names: Sequence[Any], path: PathLike, what: str) -> None:
    """Refuse a name that occurs twice in a list read from the lines of `path`."""
    if len(set(names)) == len(names):
        return
    seen: dict[Any, int] = {}
    for line, name in enumerate(names, 1):
        if name in seen:
            raise DataError(f"{path}: {what} {name!r:.80} is at {seen[name]} and again at {line}: remove one of them")
        seen[name] = line


def listed(names: Sequence[Any], most: int = 6) -> str:
    """Return the first of `names` in quotes, with … where there are more, for messages and notes."""
    return ", ".join(map(quoted, names[:most])) + (", …" if len(names) > most else "")


def quoted(name: object) -> str:
    """Return a name in quotes for messages, cut if it is long."""
    text = repr(name)
    return text if len(text) <= 200 else f"{text[:199]}…"


def label_order(name: str) -> tuple[bool, int, str]:
    """Sort labels that are numbers by their value, before names."""
    return (not name.isdecimal(), len(name) * name.isdecimal(), name)


def check_choice(value: Any, choices: Sequence[Any], name: str) -> None:
    """Refuse a `value` of the argument `name` that is not among `choices`."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}: choose one of {', '.join(map(str, choices))}")


def harmless(text: str) -> str:
    """Return a text with a quotation mark before it where a spreadsheet would take it for a formula and run it."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def unguarded(text: str) -> str:
    """Return a text without the quotation mark that `harmless` put before it."""
    return text[1:] if text[:1] == "'" and text[1:].startswith(_FORMULA) else text
