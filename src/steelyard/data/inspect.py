"""Statistics of `steelyard inspect`: duplicate items, and labels that are equal or often come together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from steelyard.data.columns.mixed import MixedDataset
from steelyard.data.dataset import ArrayDataset, ImageDataset
from steelyard.data.files import DataError, check_regular
from steelyard.data.layouts import Data
from steelyard.data.readers.regions import RegionDataset
from steelyard.labels import UNKNOWN, Labels

Groups: TypeAlias = list[NDArray[np.int64]]

MOST_LABELS = 4096
"""Maximum number of labels whose pairs are compared: the most frequent ones."""

NEAR = 0.9
"""Overlap from which two columns count as nearly identical."""

LEAST_TOGETHER = 5
"""Minimum number of items with both labels for a pair that comes together."""

_CANDIDATES = 50


class Duplicates(NamedTuple):
    """Groups of items whose inputs are identical."""

    looked_at: str
    """The items compared."""
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
        if 0 in data.inputs.shape:
            return None
        what, groups = "the inputs", _equal_rows(data.inputs)
    elif isinstance(data, MixedDataset):
        columns = [c.values.tolist() if c.kind == "number" else c.texts() for c in data.columns.values()]
        what, groups = "the inputs", _equal_keys(list(map(str, zip(*columns, strict=True))))
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


def _equal_rows(inputs: Any) -> Groups:
    """Groups of equal rows; −0 equals 0."""
    zero = np.zeros((), inputs.dtype)

    def content(i: int) -> bytes:
        if issparse(inputs):
            row = slice(inputs.indptr[i], inputs.indptr[i + 1])
            return bytes(inputs.indices[row].data) + bytes(inputs.data[row].data)
        return bytes((inputs[i] + zero if inputs.dtype.kind == "f" else inputs[i]).data)

    n = inputs.shape[0]
    return _grouped((content(i), i) for i in _repeated((hash(content(i)) for i in range(n)), n))


def _equal_keys(keys: Sequence[Any]) -> Groups:
    """Groups of items with equal keys; None is equal to nothing."""
    return _grouped((keys[i], i) for i in _repeated(map(hash, keys), len(keys)))


def _repeated(hashes: Iterable[int], n: int) -> NDArray[np.int64]:
    """Return the positions of hashes that occur more than once; only these items are compared."""
    _, which, times = np.unique(np.fromiter(hashes, np.int64, n), return_inverse=True, return_counts=True)
    return np.flatnonzero(times[which] > 1)


def _grouped(keyed: Iterable[tuple[Any, int]]) -> Groups:
    """Groups of two or more items with equal keys, in the order of their first items."""
    groups: dict[Any, list[int]] = {}
    for key, item in keyed:
        if key is not None:
            groups.setdefault(key, []).append(item)
    return [np.array(group, np.int64) for group in groups.values() if len(group) > 1]


def _contents(paths: Sequence[str]) -> tuple[list[Any], tuple[str, ...]]:
    """Return a digest of every file that is as long as another one; None for other files and unreadable ones."""
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
    candidates = sorted({path for path, size in zip(paths, sizes, strict=True) if size is not None and size in shared})
    with ThreadPoolExecutor() as pool:
        digests: dict[str, Any] = dict(zip(candidates, pool.map(_digest, candidates), strict=True))
    unreadable += [path for path, digest in digests.items() if digest is None]
    # A path named twice is the same content though no other file is as long.
    keys = [None if size is None else digests.get(path, path) for path, size in zip(paths, sizes, strict=True)]
    return keys, tuple(unreadable)


def _digest(path: str) -> bytes | None:
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "blake2b").digest()
    except OSError:
        return None


def _conflicting(labels: Labels, groups: Groups) -> int:
    """Groups in which, for some label, 0 < positives < known."""
    parts = (labels.take(group) for group in groups)
    return sum(bool(((part.counts > 0) & (part.counts < part.n_known)).any()) for part in parts)


class Twins(NamedTuple):
    """Two labels whose columns are equal, or nearly."""

    first: str
    second: str
    both: int
    """Items that have both labels."""
    overlap: float
    """Of the items that have one label and for which the other is known, the share that has both."""
    agreement: float
    """Of the items for which both labels are known, the share where they are equal."""
    known: int
    """Items for which both labels are known."""

    @property
    def identical(self) -> bool:
        """True if the columns agree wherever both are known."""
        return self.agreement == 1


class Together(NamedTuple):
    """Two labels that come together more often than by chance."""

    first: str
    second: str
    both: int
    """Items that have both labels."""
    first_given_second: float
    """p(first | second), among items for which first is known."""
    second_given_first: float
    lift: float
    """Ratio of the joint frequency to that of independent labels: the geometric mean of both directions' estimates."""


class Pairs(NamedTuple):
    """Noteworthy pairs of labels."""

    twins: tuple[Twins, ...]
    """Most items first; at most 50."""
    together: tuple[Together, ...]
    """By items × log lift, strongest first."""
    order: NDArray[np.int64]
    """The labels that were looked at, most frequent first."""
    conditional: NDArray[np.float64]
    """p(i|j) as [i, j], in that order."""


def find_pairs(labels: Labels, n_together: int = 10) -> Pairs:
    """Return near-identical columns and the labels that come together most.

    The overlap of labels i and j is n₁₁ / (n₁₁ + n₁₀ + n₀₁) over items for which both are known. n₁₁ + n₁₀ + n₀₁ is
    n₁₁/p(i|j) + n₁₁/p(j|i) − n₁₁, so that only co-occurrences are counted, never N × L cells.
    Columns that agree may do so by chance: they are left out unless n₁₁ log₂ lift exceeds log₂ of the number of pairs,
    and where no item is known to lack both.
    """
    order = np.argsort(-labels.counts, kind="stable")[:MOST_LABELS].astype(np.int64)
    chosen = [labels.names[c] for c in order]
    part = labels if len(order) == labels.n_labels else labels.arranged(chosen, UNKNOWN)
    rank = order if part is labels else np.arange(len(order))
    both, conditional = part.cooccurrence(), part.conditional()
    i, j = np.nonzero(np.triu(both, 1))
    n, given_j, given_i = both[i, j], conditional[i, j], conditional[j, i]
    either = np.rint(n / given_j).astype(np.int64) + np.rint(n / given_i).astype(np.int64) - n
    overlap = n / either
    lift = np.sqrt(given_j / part.prior[i] * given_i / part.prior[j])
    strength = n * np.log2(lift)
    by_chance = np.log2(max(1, part.n_labels * (part.n_labels - 1) // 2))
    near = np.flatnonzero((overlap >= NEAR) & (strength.round(9) > by_chance.round(9)))
    near = near[np.lexsort((-overlap[near], -n[near]))][:_CANDIDATES]
    known = _known_together(part, np.stack([i[near], j[near]], axis=1))
    twins = []
    for k, at in zip(known.tolist(), near.tolist(), strict=True):
        if k > either[at]:
            names = part.names[i[at]], part.names[j[at]]
            equal = k - int(either[at] - n[at])
            twins.append(Twins(*names, int(n[at]), float(overlap[at]), equal / k, k))
    strength[(n < LEAST_TOGETHER) | (lift <= 1)] = 0
    strongest = [at for at in np.argsort(-strength, kind="stable")[:n_together] if strength[at] > 0]
    together = tuple(
        Together(part.names[i[at]], part.names[j[at]], int(n[at]), *(float(x[at]) for x in (given_j, given_i, lift)))
        for at in strongest
    )
    return Pairs(tuple(twins), together, order, conditional[np.ix_(rank, rank)])


def _known_together(labels: Labels, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of items for which both labels are known, for each of `pairs` (n, 2)."""
    items, columns, values = labels.cells()
    is_paired = np.zeros(labels.n_labels, bool)
    is_paired[pairs] = True
    kept = is_paired[columns] & ((values == UNKNOWN) != (labels.fill == UNKNOWN))
    items, columns = items[kept], columns[kept]
    listed = {c: items[columns == c] for c in np.unique(pairs).tolist()}
    shared = [len(np.intersect1d(listed[a], listed[b], assume_unique=True)) for a, b in pairs.tolist()]
    if labels.fill == UNKNOWN:
        return np.array(shared, np.int64)
    unknown = [len(listed[a]) + len(listed[b]) - both for (a, b), both in zip(pairs.tolist(), shared, strict=True)]
    return len(labels) - np.array(unknown, np.int64)
