"""The small file that lists the data files in use; it is replaced by a rename, so a change is complete or absent."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from steelyard._files import remove_partial, write_atomic
from steelyard._sealed import sealed, unsealed

FILE: Final = "index.json"
LOCK: Final = ".writing"
AGAIN: Final = "make the index again with steelyard predict RUN DATA --index DIR --overwrite"
_OLD: Final = "manifest.json"  # of the first version, whose parts were Parquet and Arrow files
_FORMAT, _VERSION = "steelyard index", 2
_NAME: Final = re.compile(r"[0-9a-f]{32}\.duckdb")
_OURS: Final = re.compile(
    r"[0-9a-f]{32}(\.duckdb|-\d+\.parquet)|\.writing\S*|\..+\.partial(\.wal)?|(index|manifest)\.json"
    r"|(part|dead)-\d{6,}\.(parquet|arrow)"
)


class FileFacts(NamedTuple):
    """One data file of an index."""

    name: str
    bytes: int
    items: int
    dead: int
    """Number of rows of earlier files that it marks as deleted."""


class Pointer(NamedTuple):
    """A generation of an index."""

    uuid: str
    generation: int
    n_labels: int
    n_items: int
    files: tuple[FileFacts, ...]
    notes: dict[str, Any]
    n_numbers: int = 0
    """The length of embeddings; 0 if items have none."""


def exists(folder: Path) -> bool:
    """Return whether there is an index in `folder`, of this version or the first."""
    return (folder / FILE).is_file() or (folder / _OLD).is_file()


def read(folder: Path) -> Pointer:
    """Return the newest generation of the index in `folder`."""
    path = folder / FILE
    try:
        document = unsealed(path.read_bytes(), _FORMAT, _VERSION)
        pointer = Pointer(**document)._replace(files=tuple(FileFacts(*file) for file in document["files"]))
        numbers = [*pointer[1:4], pointer.n_numbers, *(n for file in pointer.files for n in file[1:])]
        if not all(type(n) is int and n >= 0 for n in numbers) or not pointer.n_labels or not pointer.files:
            raise ValueError("it holds something else where a number should be")
        if not all(isinstance(file.name, str) and _NAME.fullmatch(file.name) for file in pointer.files):
            raise ValueError("it names a file that does not belong to an index")
        if not isinstance(pointer.uuid, str) or not isinstance(pointer.notes, dict):
            raise ValueError("its UUID or its notes are of another type")
        return pointer
    except FileNotFoundError:
        if (folder / _OLD).is_file():
            raise ValueError(f"{folder} was written by an earlier version of Steelyard: {AGAIN}") from None
        raise ValueError(f"{folder} holds no index: make one with steelyard train or predict") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): give the folder of an index") from None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} is corrupt ({' '.join(str(error).split()):.120}): {AGAIN}") from None


def write(folder: Path, pointer: Pointer) -> None:
    """Make `pointer` the newest generation: the single step that commits a change."""
    write_atomic(folder / FILE, sealed(pointer._asdict(), _FORMAT, _VERSION))


def clean(folder: Path, pointer: Pointer) -> None:
    """Remove remains of killed writes and files that no longer count; open files stay readable."""
    remove_partial(folder)
    kept = {FILE, *(file.name for file in pointer.files)}
    for path in list(folder.iterdir()):
        if path.name not in kept and not path.name.startswith(LOCK) and _OURS.fullmatch(path.name):
            with suppress(OSError):  # Windows removes no open file: the next writer does
                path.unlink()


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something other than an index, so that no file of the user is ever removed."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: give a folder that is empty or new")
    if folder.is_dir() and not exists(folder):
        strange = sorted(path.name for path in folder.iterdir() if not _OURS.fullmatch(path.name))
        if strange:
            raise ValueError(f"{folder} holds {strange[0]!r} and is no index: give a folder that is empty or new")
