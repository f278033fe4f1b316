"""Atomic writes: a file is written under a temporary name, flushed to disk, then renamed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a path in a temporary folder beside `path`; when the block is done it is flushed and renamed to `path`.

    Whatever happens in between, `path` holds its old content or the complete new one. The folder also holds files that
    a writer makes beside its own.
    """
    final = Path(path)
    folder = final.with_name(f".{final.name}.{os.getpid()}.partial")
    partial = folder / final.name
    try:
        with naming(final, folder):
            folder.mkdir(exist_ok=True)
            partial.touch()
            mode = partial.stat().st_mode  # a writer that makes its own file may be more secretive than the umask
            yield partial
            partial.chmod(mode)
            put(partial, final)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_atomic(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Write `content` to `path`, completely or not at all."""
    with replacing(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


def read_text(path: str | os.PathLike[str], remedy: str) -> str:
    """Return the text of a UTF-8 file; where it cannot be read, the sentence ends with `remedy`."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): {remedy}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is corrupt, not UTF-8: {remedy}") from None


def check_place(path: str | os.PathLike[str]) -> None:
    """Refuse, before any work, a file that could not be written afterwards."""
    file = Path(path)
    if file.is_dir() or not file.absolute().parent.is_dir():
        what = "is a folder" if file.is_dir() else "cannot be written, its folder does not exist"
        raise ValueError(f"{file} {what}: give a file in a folder that is there")


def put(partial: Path, final: Path) -> None:
    """Flush a file to disk, give it its final name on the same disk, and flush the folder too."""
    _flush(partial)
    partial.replace(final)
    _flush(final.parent)


@contextmanager
def naming(path: Path, folder: Path | None = None) -> Iterator[None]:
    """Name `path` in the OSError of a failed write, since the error of a full disk names no file.

    With `folder`, the temporary one, an error that names a file elsewhere is passed on: something could not be read.
    """
    try:
        yield
    except OSError as error:
        if folder is not None and isinstance(error.filename, str):
            named = Path(error.filename)
            if named != path and folder not in (named, *named.parents):
                raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


def remove_partial(folder: Path) -> None:
    """Remove files that a killed process left half written in `folder`."""
    for left in (*folder.glob(".*.partial"), *folder.glob(".*.partial.wal")):  # the log of a database that is written
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Flush a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
