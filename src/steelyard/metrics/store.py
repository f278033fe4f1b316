"""The store of an evaluator's probabilities and targets, and order statistics of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np

from steelyard._arrays import Array, slices

CELLS_IN_BLOCK = 1 << 22


class Store:
    """Items × labels in blocks: scores as `dtype`, targets as int8, or as float32 in blocks that hold a soft one."""

    def __init__(self, n_labels: int, dtype: np.dtype[Any]) -> None:
        self.n_labels = n_labels
        self.dtype = dtype
        self._blocks: list[tuple[Array, Array]] = []
        self._recent: list[tuple[Array, Array]] = []
        self._n_recent = 0

    def __len__(self) -> int:
        return sum(len(scores) for scores, _ in (*self._blocks, *self._recent))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(s.nbytes + t.nbytes for s, t in (*self._blocks, *self._recent))

    def append(self, scores: Array, targets: Array) -> None:
        """Copy rows in; many small batches are put together to one block."""
        is_soft = targets.dtype.kind == "f" and bool((targets % 1 != 0).any())
        self._recent.append((scores.astype(self.dtype), targets.astype(np.float32 if is_soft else np.int8)))
        self._n_recent += len(scores)
        if self._n_recent * self.n_labels >= CELLS_IN_BLOCK:
            self._put_together()

    def _put_together(self) -> None:
        if self._recent:
            scores, targets = (np.concatenate(x) for x in zip(*self._recent, strict=True))
            self._blocks.append((scores, targets))
            self._recent, self._n_recent = [], 0

    def extend(self, other: Store) -> None:
        """Copy in all rows of another store."""
        for scores, targets in other.blocks():
            self.append(scores, targets)

    def blocks(self) -> Iterator[tuple[Array, Array]]:
        """Yield (scores, targets), block by block, without copying."""
        self._put_together()
        yield from self._blocks

    def columns(self, labels: slice = slice(None)) -> tuple[Array, Array]:
        """Return (scores, targets) of some labels for all items."""
        nothing = np.empty((0, self.n_labels))
        blocks = [(nothing.astype(self.dtype), nothing.astype(np.int8)), *self.blocks()]
        scores, targets = (np.concatenate([part[:, labels] for part in parts]) for parts in zip(*blocks, strict=True))
        return scores, targets

    def known(self) -> Iterator[Array]:
        """Yield the scores of the known labels, (n,), some rows at a time."""
        for scores, targets in self.blocks():
            for rows in slices(scores.shape, 1 << 20):
                yield scores[rows][targets[rows] != -1]

    def canonical_order(self) -> Array:
        """Return an order of the items that depends on what they hold, not on how they arrived.

        Items are ordered by a 64-bit hash of their row: equal rows are interchangeable, and different ones seldom share
        a hash (with probability 2⁻⁽⁶³⁻ᵏ⁾ a pair where their bits differ by multiples of 2ᵏ, so those of targets, whose
        numbers end in zeros, are taken last byte first). Sums and resamples taken in this order are the same however
        batches were split and evaluators merged.
        """
        generator = np.random.default_rng(20021)
        weights = generator.integers(0, 1 << 63, size=(2, self.n_labels), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        bits = {2: np.uint16, 4: np.uint32}[self.dtype.itemsize]
        hashes = [np.empty(0, np.uint64)]
        for scores, targets in self.blocks():
            for rows in slices(scores.shape, 1 << 18):
                s = scores[rows].view(bits).astype(np.uint64)
                t = targets[rows].astype(np.float32).view(np.uint32).byteswap().astype(np.uint64)
                hashes.append(s @ weights[0] + t @ weights[1])
        return np.argsort(np.concatenate(hashes))


Chunks: TypeAlias = Callable[[], Iterable[Array]]

_CODES = 1 << 16
_CELLS_AT_ONCE = 1 << 18


def mass_edges(bins: int, chunks: Chunks) -> Array:
    """Return the order statistics ⌊kn/bins⌋, k = 1 … bins − 1, of all n probabilities: (bins − 1,), float64.

    `chunks()` yields them, 1-d float16 or float32 arrays of one dtype, the same at every call; none at all gives NaN. A
    probability's bits, read as an integer, are in the order of its value: their upper 16 are counted in one pass, and
    for float32 the lower 16 in a second one, where the upper are those of an order statistic.
    """
    upper, kind = np.zeros(_CODES, np.int64), np.dtype(np.float16)
    for codes in _codes(chunks):
        kind = codes.dtype
        upper += np.bincount(codes if kind == np.uint16 else codes >> 16, minlength=_CODES)
    n = int(upper.sum())
    if n == 0:
        return np.full(bins - 1, np.nan)
    rank = np.arange(1, bins) * n // bins
    ends = upper.cumsum()
    high = np.searchsorted(ends, rank, side="right")
    if kind == np.uint16:
        return high.astype(np.uint16).view(np.float16).astype(np.float64)
    codes_of_ranks, slot = np.unique(high, return_inverse=True)
    slots = np.full(_CODES, -1, np.int64)
    slots[codes_of_ranks] = np.arange(len(codes_of_ranks))
    lower = np.zeros(len(codes_of_ranks) * _CODES, np.int64)
    for codes in _codes(chunks):
        slot_of_cell = slots[codes >> 16]
        mine = slot_of_cell >= 0
        lower += np.bincount(slot_of_cell[mine] * _CODES + (codes[mine] & (_CODES - 1)), minlength=len(lower))
    within = rank - (ends - upper)[high]
    ends = lower.reshape(-1, _CODES).cumsum(1)
    low = [np.searchsorted(ends[s], r, side="right") for s, r in zip(slot, within, strict=True)]
    return (high << 16 | np.array(low, np.int64)).astype(np.uint32).view(np.float32).astype(np.float64)


def _codes(chunks: Chunks) -> Iterable[Array]:
    """Yield the bits of some cells at a time, without the sign that −0 has."""
    for chunk in chunks():
        sign = np.uint16(0x8000) if chunk.itemsize == 2 else np.uint32(0x80000000)
        bits = chunk.view(sign.dtype)
        for start in range(0, len(bits), _CELLS_AT_ONCE):
            yield bits[start : start + _CELLS_AT_ONCE] & ~sign
