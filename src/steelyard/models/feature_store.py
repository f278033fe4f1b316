"""A folder of feature files that many runs share: rows are lent to other lists of items, and its size is bounded."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from steelyard._files import replacing
from steelyard._locks import lock
from steelyard.models.feature_file import FeatureFile, Matrix

Keys: TypeAlias = NDArray[np.bytes_]
"""One fingerprint per item, (N,), of 32 characters each."""

MOST_BYTES = 10 * 10**9
"""Of all feature files; the ones not used for the longest time are removed beyond it."""
_RECENT = 3600.0  # seconds after its last use in which a file is not removed
_PIECE = 4096  # rows that are copied at a time


class Loan(NamedTuple):
    """Rows of another file that some items of a list have."""

    items: NDArray[np.int64]
    """Positions in the list, ascending."""
    rows: NDArray[np.int64]
    """Their positions in the file."""
    matrix: Matrix


class Loans:
    """All rows that other files lend to a list of `n_items` items."""

    def __init__(self, n_items: int, loans: list[Loan] | None = None) -> None:
        self._loans = loans or []
        self.lent = np.zeros(n_items, bool)
        for loan in self._loans:
            self.lent[loan.items] = True

    def pieces(self, start: int, stop: int) -> Iterator[Matrix]:
        """Yield the rows of the items from `start` to `stop`, all of which are lent, some at a time."""
        for first in range(start, stop, _PIECE):
            last = min(first + _PIECE, stop)
            rows: Matrix | None = None
            for loan in self._loans:
                low, high = np.searchsorted(loan.items, (first, last))
                if rows is None:
                    rows = np.empty((last - first, loan.matrix.shape[1]), np.float32)
                rows[loan.items[low:high] - first] = loan.matrix[loan.rows[low:high]]
            assert rows is not None
            yield rows


def write_keys(file: FeatureFile, keys: Keys) -> None:
    """Keep the fingerprints of a file's items beside it, so that it can lend rows."""
    with replacing(_keys_of(file.path)) as partial, partial.open("wb") as stream:
        np.save(stream, keys)


def loans_for(path: Path, group: str, keys: Keys, n_columns: int) -> Loans:
    """Return the rows of other files of the group, beside `path`, that items with these keys have."""
    loans: list[Loan] = []
    wanted = np.arange(len(keys))
    for other in sorted(path.parent.glob(f"features-{group}-*.npy")):
        if other == path or len(wanted) == 0:
            continue
        try:
            theirs = np.load(_keys_of(other), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            continue
        if theirs.dtype != keys.dtype or theirs.ndim != 1 or not np.isin(keys[wanted], theirs).any():
            continue
        kept = FeatureFile(other, (len(theirs), n_columns)).read()
        if kept is None:
            continue
        theirs[kept.skipped] = b""  # an image that could not be read is tried again
        order = np.argsort(theirs, kind="stable")
        place = np.searchsorted(theirs, keys[wanted], sorter=order).clip(max=len(theirs) - 1)
        has = theirs[order[place]] == keys[wanted]
        loans.append(Loan(wanted[has], order[place[has]], kept.rows))
        wanted = wanted[~has]
    return Loans(len(keys), loans)


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
