"""Items that are there twice: identical inputs, and whether their labels agree."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from steelyard.data import ArrayDataset, ImageDataset
from steelyard.data.files import DataError, check_regular
from steelyard.data.layouts import Data
from steelyard.data.readers.regions import RegionDataset
from steelyard.labels import UNKNOWN, Labels

Groups: TypeAlias = list[NDArray[np.int64]]
Array: TypeAlias = NDArray[Any]

_BLOCK = 1 << 23  # bytes of inputs looked at at a time


class Duplicates(NamedTuple):
    """Groups of items whose inputs are identical."""

    looked_at: str
    """What was compared."""
    n_groups: int
    n_items: int
    """Items in these groups, the first of each included."""
    n_conflicting: int
    """Groups in which some label is known present for one item and known absent for another."""
    examples: tuple[tuple[str, ...], ...]
    """The ids of some groups, up to four each."""
    unreadable: tuple[str, ...] = ()
    """Files that could not be read, so that they were not compared."""


def find_duplicates(data: Data, deep: bool = False) -> Duplicates | None:
    """Return the groups of identical items, or None where items have no inputs.

    Feature rows and images in memory are compared byte by byte; image files by their path, or with `deep` by their
    content, which reads every file that is as long as another one; questions by text and image.
    """
    unreadable: tuple[str, ...] = ()
    keys: Sequence[Any]
    if isinstance(data, ArrayDataset):
        if data.inputs[:1].nbytes == 0:
            return None
        what, groups = "the inputs", _equal_rows(data.inputs)
    elif isinstance(data, ImageDataset):
        what, keys = "the paths of the images (not their content)", data.paths
        if deep:
            what, (keys, unreadable) = "the content of the image files", _contents(keys)
        if data.boxes is not None:
            boxes = map(tuple, data.boxes.tolist())
            keys = [None if key is None else (key, box) for key, box in zip(keys, boxes, strict=True)]
        groups = _equal_keys(keys)
    else:
        asked = data.questions if isinstance(data, RegionDataset) else data
        what, keys = "question and image", list(zip(asked.questions, asked.image_ids.tolist(), strict=True))
        groups = _equal_keys(keys)
    examples = tuple(tuple(data.labels.ids[int(i)] for i in group[:4]) for group in groups[:5])
    n_items = sum(map(len, groups))
    return Duplicates(what, len(groups), n_items, _conflicting(data.labels, groups), examples, unreadable)


def _equal_rows(inputs: Array) -> Groups:
    """Groups of equal rows; −0 equals 0. Rows with equal 64-bit sums are compared in full."""
    width = inputs[:1].nbytes
    n_words = -(-width // 8)
    factors = np.random.default_rng(0).integers(0, 2**63, n_words, np.uint64) * np.uint64(2) + np.uint64(1)
    step = max(1, _BLOCK // width)
    sums = np.concatenate(
        [_words(inputs[i : i + step], n_words) @ factors for i in range(0, len(inputs), step)]
        or [np.zeros(0, np.uint64)]
    )
    suspects = _repeated(sums)
    return _grouped((_words(inputs[i : i + 1], n_words).tobytes(), i) for i in suspects)


def _words(rows: Array, n_words: int) -> NDArray[np.uint64]:
    """The bytes of each row as 64-bit words, filled up with zeros."""
    rows = np.ascontiguousarray(rows + np.zeros((), rows.dtype) if rows.dtype.kind == "f" else rows)
    content = rows.reshape(len(rows), -1).view(np.uint8)
    padded = np.zeros((len(rows), 8 * n_words), np.uint8)
    padded[:, : content.shape[1]] = content
    return padded.view(np.uint64)


def _equal_keys(keys: Sequence[Any]) -> Groups:
    """Groups of items with equal keys; None is equal to nothing. Beside the keys it needs one number an item."""
    sums = np.fromiter(map(hash, keys), np.int64, len(keys))
    return _grouped((keys[i], i) for i in _repeated(sums))


def _repeated(sums: Array) -> NDArray[np.int64]:
    """The positions of numbers that are there more than once."""
    order = np.argsort(sums, kind="stable")
    again = sums[order[1:]] == sums[order[:-1]]
    return np.sort(order[np.append(False, again) | np.append(again, False)]) if len(order) else order


def _grouped(keyed: Iterable[tuple[Any, int]]) -> Groups:
    """Groups of two or more items with equal keys, in the order of their first items."""
    found: dict[Any, list[int]] = {}
    for key, item in keyed:
        if key is not None:
            found.setdefault(key, []).append(item)
    return [np.array(group, np.int64) for group in found.values() if len(group) > 1]


def _contents(paths: Sequence[str]) -> tuple[list[Any], tuple[str, ...]]:
    """A digest of every file that is as long as another one; None for the others and for files that cannot be read."""
    sizes: list[int | None] = []
    unreadable = []
    for path in paths:
        try:
            check_regular(path)
            sizes.append(Path(path).stat().st_size)
        except (OSError, DataError):
            sizes.append(None)
            unreadable.append(path)
    first: dict[int | None, str] = {}
    shared = {size for path, size in zip(paths, sizes, strict=True) if first.setdefault(size, path) != path}
    wanted = sorted({path for path, size in zip(paths, sizes, strict=True) if size is not None and size in shared})
    with ThreadPoolExecutor() as pool:
        digests: dict[str, Any] = dict(zip(wanted, pool.map(_digest, wanted), strict=True))
    unreadable += [path for path, digest in digests.items() if digest is None]
    # A path named twice is the same content though no other file is as long.
    return [None if size is None else digests.get(path, path) for path, size in zip(paths, sizes, strict=True)], tuple(
        unreadable
    )


def _digest(path: str) -> bytes | None:
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "blake2b").digest()
    except OSError:
        return None


def _conflicting(labels: Labels, groups: Groups) -> int:
    """Groups in which, for some label, 0 < positives < known."""
    if not groups:
        return 0
    group_of = np.full(len(labels), -1, np.int32)
    for g, group in enumerate(groups):
        group_of[group] = g
    sizes = np.array([len(group) for group in groups])
    items, columns, values = labels.cells()
    kept = group_of[items] >= 0
    key = group_of[items[kept]].astype(np.int64) * labels.n_labels + columns[kept]
    values = values[kept]
    cells, positives = np.unique(key[values >= 0.5], return_counts=True)
    listed, times = np.unique(key[(values == UNKNOWN) != (labels.fill == UNKNOWN)], return_counts=True)
    place = np.minimum(np.searchsorted(listed, cells), max(0, len(listed) - 1))
    found = times[place] * (listed[place] == cells) if len(listed) else np.zeros(len(cells), np.int64)
    known = found if labels.fill == UNKNOWN else sizes[cells // labels.n_labels] - found
    return len(np.unique(cells[positives < known] // labels.n_labels))
