"""Where an evaluator keeps what it was given: blocks of probabilities and targets that are filled and never moved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

CELLS_IN_BLOCK = 1 << 22


class Store:
    """Items × labels in blocks: scores as `dtype`, targets as int8, or as float32 in blocks that hold a soft one."""

    def __init__(self, n_labels: int, dtype: np.dtype[Any]) -> None:
        self.n_labels = n_labels
        self.dtype = dtype
        self._blocks: list[tuple[Array, Array]] = []
        self._filled: list[int] = []

    def __len__(self) -> int:
        return sum(self._filled)

    @property
    def nbytes(self) -> int:
        """Bytes held, room not yet filled included."""
        return sum(s.nbytes + t.nbytes for s, t in self._blocks)

    def append(self, scores: Array, targets: Array) -> None:
        """Copy rows in, at the end of the last block and in new ones."""
        kind = np.dtype(np.float32 if targets.dtype.kind == "f" and (targets % 1 != 0).any() else np.int8)
        start = 0
        while start < len(scores):
            free = self._free(kind, len(scores) - start)
            block_scores, block_targets = self._blocks[-1]
            filled = self._filled[-1]
            n = min(free, len(scores) - start)
            block_scores[filled : filled + n] = scores[start : start + n]
            block_targets[filled : filled + n] = targets[start : start + n]
            self._filled[-1] += n
            start += n

    def _free(self, kind: np.dtype[Any], wanted: int) -> int:
        """Return the free rows of the last block, after adding one where there are none for this kind of target."""
        if self._blocks and self._blocks[-1][1].dtype == kind:
            free = len(self._blocks[-1][0]) - self._filled[-1]
            if free:
                return free
        # blocks double up to CELLS_IN_BLOCK, so that a small evaluator stays small
        full = max(1, CELLS_IN_BLOCK // self.n_labels)
        rows = min(full, max(wanted, 2 * len(self._blocks[-1][0]) if self._blocks else 64))
        self._blocks.append((np.empty((rows, self.n_labels), self.dtype), np.empty((rows, self.n_labels), kind)))
        self._filled.append(0)
        return rows

    def extend(self, other: Store) -> None:
        """Copy in all rows of another store."""
        for scores, targets in other.blocks():
            self.append(scores, targets)

    def blocks(self) -> Iterator[tuple[Array, Array]]:
        """Yield (scores, targets) of the filled rows, block by block, without copying."""
        for (scores, targets), filled in zip(self._blocks, self._filled, strict=True):
            yield scores[:filled], targets[:filled]

    def columns(self, labels: slice, order: Array) -> tuple[Array, Array]:
        """Return (scores as float32, targets) of some labels for all items, in the given order of items."""
        parts = [(s[:, labels], t[:, labels]) for s, t in self.blocks()]
        if not parts:
            nothing = np.empty((0, self.n_labels))[:, labels]
            return nothing.astype(np.float32), nothing.astype(np.int8)
        scores, targets = (np.concatenate(x)[order] for x in zip(*parts, strict=True))
        return scores.astype(np.float32, copy=False), targets

    def known(self) -> Iterator[Array]:
        """Yield the scores of the known cells, (n,), some rows at a time."""
        step = max(1, (1 << 20) // self.n_labels)
        for scores, targets in self.blocks():
            for start in range(0, len(scores), step):
                rows = slice(start, start + step)
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
            for start in range(0, len(scores), step := max(1, (1 << 18) // self.n_labels)):
                rows = slice(start, start + step)
                s = scores[rows].view(bits).astype(np.uint64)
                t = targets[rows].astype(np.float32).view(np.uint32).byteswap().astype(np.uint64)
                hashes.append(s @ weights[0] + t @ weights[1])
        return np.argsort(np.concatenate(hashes))
