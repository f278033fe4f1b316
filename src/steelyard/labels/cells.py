"""Compressed rows of labels: only the cells that differ from one fill value are kept, in a CSR array of SciPy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from steelyard._arrays import Array, Index, slices
from steelyard.labels.targets import UNKNOWN

BLOCK = 1 << 22
"""Dense cells of a block of rows."""


class SparseCells(NamedTuple):
    """The cells of an (N, L) table that differ from `fill`, 0 or −1: a CSR array that also stores zeros.

    Its data are int8 where every value is 1, 0 or −1, else float32.
    """

    matrix: Any
    fill: int

    @classmethod
    def from_dense(cls, values: Array) -> SparseCells:
        """Compress checked `values` (N, L), with the fill value that leaves fewer cells to keep."""
        parts = [values[rows] for rows in slices(values.shape, BLOCK)]
        surplus = sum(np.count_nonzero(part == UNKNOWN) - np.count_nonzero(part == 0) for part in parts)
        return cls.from_blocks(map(narrow, parts), values.shape, UNKNOWN if surplus > 0 else 0)

    @classmethod
    def from_blocks(cls, blocks: Iterable[Array], shape: tuple[int, ...], fill: int) -> SparseCells:
        """Compress blocks of consecutive rows, `narrow`."""
        lengths: list[Array] = [np.zeros(1, np.int64)]
        columns: list[Array] = [np.zeros(0, np.int32)]
        data: list[Array] = [np.zeros(0, np.int8)]
        for part in blocks:
            kept = part != fill
            lengths.append(np.count_nonzero(kept, axis=1))
            columns.append(np.nonzero(kept)[1].astype(np.int32))
            data.append(as_stored(part[kept]))
        starts = np.cumsum(np.concatenate(lengths))
        return cls(as_csr(np.concatenate(data), np.concatenate(columns), starts, shape), fill)

    @classmethod
    def from_listed(cls, items: Array, columns: Array, data: Array, shape: tuple[int, int], fill: int) -> SparseCells:
        """Compress distinct cells, `narrow`; those equal to `fill` are left out."""
        kept = data != fill
        if not kept.all():
            items, columns, data = items[kept], columns[kept], data[kept]
        kind = np.int32 if max(shape) < 2**31 else np.int64
        return cls(csr_array((as_stored(data), (items.astype(kind), columns.astype(kind))), shape), fill)

    def dense(self, index: Index) -> Array:
        """Return the rows at `index` as a dense array (k, L)."""
        rows = self.matrix[index]
        values = np.full(rows.shape, self.fill, rows.dtype)
        values[np.repeat(np.arange(len(index)), np.diff(rows.indptr)), rows.indices] = rows.data
        return values

    def take(self, index: Index) -> SparseCells:
        """Return the rows at `index`, compressed."""
        rows = self.matrix[index]
        rows.data = as_stored(rows.data)
        return self._replace(matrix=rows)

    def marked(self, mark: Callable[[Array], Array]) -> Any:
        """Return a CSR array of 1 at the kept cells whose value passes `mark`."""
        m = self.matrix
        ones = csr_array((mark(m.data).astype(np.int32), m.indices, m.indptr), m.shape, copy=True)
        ones.eliminate_zeros()
        return ones

    def arranged(self, columns: Index, n_labels: int, missing: int) -> SparseCells:
        """Return L = `n_labels` columns: column c at `places[c]`, dropped where that is −1; all others hold `missing`.

        Where what is missing would have to be kept, the fill value is the one that leaves fewer cells to keep, and no
        more than a block of rows is dense at a time.
        """
        kept, shape = np.flatnonzero(columns >= 0), (self.matrix.shape[0], n_labels)
        cells = self.matrix.tocoo()
        column = columns[cells.col]
        there = column >= 0
        data = cells.data[there]
        if len(kept) == n_labels or missing == self.fill:
            return SparseCells.from_listed(cells.row[there], column[there], data, shape, self.fill)
        n_other = shape[0] * len(kept) - np.count_nonzero(data == missing)
        fill = missing if n_other < len(data) + shape[0] * (n_labels - len(kept)) else self.fill

        def blocks() -> Iterator[Array]:
            for rows in slices(shape, BLOCK):
                block = np.full((rows.stop - rows.start, n_labels), missing, data.dtype)
                block[:, columns[kept]] = self.dense(np.arange(rows.start, rows.stop))[:, kept]
                yield block

        return SparseCells.from_blocks(blocks(), shape, fill)


def as_csr(data: Array, columns: Array, starts: Array, shape: tuple[int, ...]) -> Any:
    """Return a CSR array, with indices of 32 bits where they are enough."""
    kind = np.int32 if max(*shape, len(data)) < 2**31 else np.int64
    return csr_array((data, columns.astype(kind), starts.astype(kind)), shape)


def column_type(n_labels: int) -> np.dtype[Any]:
    """Return the smallest unsigned integer type that holds the number of a label."""
    return np.min_scalar_type(n_labels - 1)


def narrow(values: Array) -> Array:
    """Return checked values as float32 where they are wider; a value that this rounds to 0 or 1 is not soft."""
    return values.astype(np.float32) if values.dtype.kind == "f" and values.dtype.itemsize > 4 else values


def is_soft(values: Array) -> bool:
    """Return whether a value lies strictly between 0 and 1."""
    return values.dtype.kind == "f" and bool(((values > 0) & (values < 1)).any())


def as_stored(data: Array) -> Array:
    """Return checked values as int8, or as float32 where one is soft."""
    return data.astype(np.float32 if is_soft(data) else np.int8, copy=False)
