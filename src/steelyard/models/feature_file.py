"""A matrix on disk that is written batch by batch, and appears only when it is complete."""

from __future__ import annotations

import io
import json
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from steelyard._arrays import slices
from steelyard._files import put, replacing, write_atomic
from steelyard._locks import lock
from steelyard.data.files import DataError

Matrix: TypeAlias = NDArray[np.float32]

_BLOCK = 1 << 24  # bytes tested at a time


class StoredFeatures(NamedTuple):
    """A whole matrix."""

    rows: Matrix
    """Float32, mapped from the file."""
    skipped: list[int]
    """The rows that stand for items which could not be read."""


class FeatureFile:
    """Rows of float32 in `path`, a .npy file that appears when all of them are there.

    Meanwhile they lie in a file `.part`; a second one, `.log`, gets a line after every batch: how many rows there are
    now, a checksum of all of them, and which were skipped. After kill −9 or a power cut, writing resumes after the last
    line that the rows agree with, if batches are as large as before, so that the result is bitwise equal. Beside the
    whole matrix, `.json` holds its checksum and the rows that were skipped.

    path: ends in .npy. shape: (rows, columns).
    """

    def __init__(self, path: Path, shape: tuple[int, int]) -> None:
        self.path, self.shape = path, shape
        self._part, self._log, self._notes = (path.with_suffix(end) for end in (".part", ".log", ".json"))

    def read(self) -> StoredFeatures | None:
        """Return the matrix, or None where there is none, or one that is corrupt."""
        try:
            notes = json.loads(self._notes.read_text())
            rows = np.load(self.path, mmap_mode="c", allow_pickle=False)
            sound = rows.shape == self.shape and rows.dtype == np.float32 and _checksum(rows) == notes["crc"]
            return StoredFeatures(rows, notes["skipped"]) if sound else None
        except (OSError, ValueError, EOFError, KeyError, TypeError):
            return None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the file against other processes, waiting if they came first; without file locks, do not wait."""
        with _at(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.with_suffix(".lock").open("w")
        with file:
            with _at(self.path):
                lock(file.fileno())  # released by the system however the process ends
            yield

    @contextmanager
    def writing(self, batch_size: int) -> Iterator[Writer]:
        """Give a writer that continues after the existing rows; after the block the matrix is complete."""
        with _at(self.path):
            part, log = self._part.open("a+b"), self._log.open("a+b")
        with part, log:
            writer = Writer(self.path, part, log, self.shape, batch_size)
            yield writer
            if writer.done != self.shape[0]:
                raise DataError(
                    f"{self.path} got {writer.done} rows, not {self.shape[0]}: the data changed meanwhile, begin again"
                )
        with _at(self.path):
            write_atomic(self._notes, json.dumps({"crc": writer.crc, "skipped": writer.skipped}))
            put(self._part, self.path)  # from here on the matrix exists
            self._log.unlink()


class Writer:
    """The end of a matrix that is being written: `done` rows with the checksum `crc`, some of them `skipped`."""

    def __init__(self, path: Path, part: BinaryIO, log: BinaryIO, shape: tuple[int, int], batch_size: int) -> None:
        self.done, self.crc = 0, 0
        self.skipped: list[int] = []
        self._path, self._part, self._log = path, part, log
        start = _header(shape)
        with _at(path):
            good = self._agreed(shape, batch_size, start)
            part.truncate(len(start) + 4 * self.done * shape[1] if good else 0)
            log.truncate(good)
        if not good:
            self._write(part, start)
            self._note({"batch_size": batch_size})

    def _agreed(self, shape: tuple[int, int], batch_size: int, start: bytes) -> int:
        """Return the length of the log up to which the rows agree with it; writing continues there."""
        self._log.seek(0)
        self._part.seek(0)
        good = 0
        for line in self._log.readlines():
            try:
                record = json.loads(line) if line.endswith(b"\n") else {}
            except ValueError:
                record = {}
            if good == 0:
                if record != {"batch_size": batch_size} or self._part.read(len(start)) != start:
                    return 0
            elif isinstance(record, dict) and record.keys() == {"rows", "crc", "skipped"}:
                rows = self._part.read(4 * (record["rows"] - self.done) * shape[1])
                if zlib.crc32(rows, self.crc) != record["crc"]:
                    break
                self.done, self.crc = record["rows"], record["crc"]
                self.skipped += record["skipped"]
            else:
                break
            good += len(line)
        return good

    def append(self, rows: Matrix, skipped: list[int]) -> None:
        """Write a batch; `skipped` are its rows without an item, numbered from the first row of the matrix."""
        content = np.ascontiguousarray(rows, "<f4").tobytes()
        self._write(self._part, content)
        self.done, self.crc = self.done + len(rows), zlib.crc32(content, self.crc)
        self.skipped += skipped
        self._note({"rows": self.done, "crc": self.crc, "skipped": skipped})

    def _note(self, record: dict[str, Any]) -> None:
        self._write(self._log, json.dumps(record).encode() + b"\n")

    def _write(self, file: BinaryIO, content: bytes) -> None:
        with _at(self._path):
            file.write(content)
            file.flush()


@contextmanager
def _at(path: Path) -> Iterator[None]:
    """Turn an error of the disk into one sentence."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"features cannot be kept in {path.parent} ({error.strerror or error}): give a folder that can be written "
            "to, on a disk with room"
        ) from error


def _header(shape: tuple[int, int]) -> bytes:
    """Return the first bytes of a .npy file of this shape."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def _checksum(rows: Matrix) -> int:
    crc = 0
    for some in slices(rows.shape, _BLOCK // 4):
        crc = zlib.crc32(np.ascontiguousarray(rows[some]).tobytes(), crc)
    return crc


Keys: TypeAlias = NDArray[np.bytes_]
"""One fingerprint per item, (N,), of 32 characters each."""

MOST_BYTES = 10 * 10**9
"""Of all feature files; the ones not used for the longest time are removed beyond it."""
_RECENT = 3600.0  # seconds after its last use in which a file is not removed
_PIECE = 4096  # rows that are copied at a time


class Loans:
    """Rows of other files that `n_items` items can reuse: for each item the file, −1 for none, and the row."""

    def __init__(self, n_items: int) -> None:
        self.matrices: list[Matrix] = []
        self.file, self.row = np.full(n_items, -1), np.zeros(n_items, np.int64)

    def pieces(self, start: int, stop: int) -> Iterator[Matrix]:
        """Yield the rows of the items from `start` to `stop`, all of which are lent, some at a time."""
        for first in range(start, stop, _PIECE):
            some = slice(first, min(first + _PIECE, stop))
            rows: Matrix = np.empty((some.stop - first, self.matrices[0].shape[1]), np.float32)
            for number, matrix in enumerate(self.matrices):
                here = self.file[some] == number
                rows[here] = matrix[self.row[some][here]]
            yield rows


def write_keys(file: FeatureFile, keys: Keys) -> None:
    """Keep the fingerprints of a file's items beside it, so that it can lend rows."""
    with replacing(_keys_of(file.path)) as partial, partial.open("wb") as stream:
        np.save(stream, keys)


def loans_for(path: Path, group: str, keys: Keys, n_columns: int) -> Loans:
    """Return the rows that other files of the group, beside `path`, hold for items with these keys."""
    loans = Loans(len(keys))
    for other in sorted(path.parent.glob(f"features-{group}-*.npy")):
        missing = np.flatnonzero(loans.file < 0)
        if other == path or len(missing) == 0:
            continue
        try:
            theirs = np.load(_keys_of(other), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            continue
        if theirs.dtype != keys.dtype or theirs.ndim != 1 or not np.isin(keys[missing], theirs).any():
            continue
        kept = FeatureFile(other, (len(theirs), n_columns)).read()
        if kept is None:
            continue
        theirs[kept.skipped] = b""  # an image that could not be read is tried again
        order = np.argsort(theirs, kind="stable")
        place = np.searchsorted(theirs, keys[missing], sorter=order).clip(max=len(theirs) - 1)
        has = theirs[order[place]] == keys[missing]
        loans.file[missing[has]], loans.row[missing[has]] = len(loans.matrices), order[place[has]]
        loans.matrices.append(kept.rows)
    return loans


def note_use(file: FeatureFile) -> None:
    """Note that a file is used now; one that cannot be written to is left as it is."""
    with suppress(OSError):
        os.utime(file.path)


def bytes_kept(folder: Path) -> int:
    """Return the bytes of all feature files in a folder."""
    return sum(size for _, size, _ in _sets(folder))


def prune(folder: Path, most: int = MOST_BYTES) -> int:
    """Remove the files not used for the longest time until at most `most` bytes are left; return how many bytes went.

    Those in use within the last hour, or written by another process right now, stay.
    """
    sets = sorted(_sets(folder))
    total, removed = sum(size for _, size, _ in sets), 0
    for used, size, files in sets:
        if total - removed <= most or time.time() - used < _RECENT:
            break
        if _is_being_written(files[0]):
            continue
        for file in files:
            with suppress(OSError):  # Windows keeps a file that is mapped
                file.unlink()
        removed += size
    return removed


def _sets(folder: Path) -> Iterator[tuple[float, int, list[Path]]]:
    """Yield (last use, bytes, files) of each matrix in a folder, whole or not; lock files stay for good."""
    by_name: dict[str, list[Path]] = {}
    for file in folder.glob("features-*"):
        if file.suffix in (".json", ".npy", ".part", ".log", ".keys"):
            by_name.setdefault(file.stem, []).append(file)
    for files in by_name.values():
        with suppress(OSError):
            stats = [file.stat() for file in files]
            yield max(one.st_mtime for one in stats), sum(one.st_size for one in stats), sorted(files)


def _is_being_written(file: Path) -> bool:
    try:
        with file.with_suffix(".lock").open("w") as stream:
            return not lock(stream.fileno(), waits=False)
    except OSError:
        return True


def _keys_of(path: Path) -> Path:
    return path.with_suffix(".keys")
