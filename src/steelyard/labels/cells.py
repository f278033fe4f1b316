"""Compressed rows of labels: only the cells that differ from one fill value are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from steelyard.labels.targets import UNKNOWN

Array: TypeAlias = NDArray[Any]
Index: TypeAlias = NDArray[np.int64]

_BLOCK = 1 << 22  # dense cells of a block of rows
_PAIR = 1000  # multiply-adds of a matrix product that take as long as counting one pair of cells


class Block(NamedTuple):
    """Kept cells of consecutive items: `items` counts from the block's first row, `first`."""

    first: int
    n_items: int
    items: Index
    columns: Array
    data: Array


@final
@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of an (N, L) table that differ from `fill`; those of item i are `starts[i] : starts[i + 1]`.

    Arguments: `shape` (N, L); `fill`, 0 or −1; `starts` (N + 1,); `columns`, increasing within an item; `data`, int8
    where every value is 1, 0 or −1, else float32.
    """

    shape: tuple[int, int]
    fill: int
    starts: Index
    columns: Array
    data: Array

    def __post_init__(self) -> None:
        for array in (self.starts, self.columns, self.data):
            array.setflags(write=False)

    def __reduce__(self) -> tuple[type[Cells], tuple[Any, ...]]:
        return Cells, (self.shape, self.fill, self.starts, self.columns, self.data)

    @classmethod
    def from_dense(cls, values: Array) -> Cells:
        """Compress checked `values` (N, L), with the fill value that leaves fewer cells to keep."""
        shape = (values.shape[0], values.shape[1])
        parts = [values[start:stop] for start, stop in row_blocks(*shape)]
        surplus = sum(np.count_nonzero(part == UNKNOWN) - np.count_nonzero(part == 0) for part in parts)
        kind = np.float32 if any(is_soft(narrow(part)) for part in parts) else np.int8
        return cls._from_blocks(map(narrow, parts), shape, UNKNOWN if surplus > 0 else 0, np.dtype(kind))

    @classmethod
    def _from_blocks(cls, blocks: Iterable[Array], shape: tuple[int, int], fill: int, dtype: np.dtype[Any]) -> Cells:
        """Compress blocks of consecutive rows, `narrow`, to data of `dtype`."""
        lengths: list[Array] = [np.zeros(1, np.int64)]
        columns: list[Array] = [np.zeros(0, column_type(shape[1]))]
        data: list[Array] = [np.zeros(0, dtype)]
        for part in blocks:
            kept = part != fill
            lengths.append(np.count_nonzero(kept, axis=1))
            columns.append(np.nonzero(kept)[1].astype(columns[0].dtype))
            data.append(part[kept].astype(data[0].dtype))
        starts = np.cumsum(np.concatenate(lengths), dtype=np.int64)
        return cls(shape, fill, starts, np.concatenate(columns), np.concatenate(data))

    @classmethod
    def from_sorted(cls, items: Array, columns: Array, data: Array, shape: tuple[int, int], fill: int) -> Cells:
        """Compress distinct cells, `narrow` and sorted by item, then column; those equal to `fill` are left out."""
        kept = data != fill
        if not kept.all():
            items, columns, data = items[kept], columns[kept], data[kept]
        starts = np.zeros(shape[0] + 1, np.int64)
        for start in range(0, len(items), _BLOCK):  # bincount widens what it is given
            part = items[start : start + _BLOCK]
            starts[1 + int(part[0]) : 2 + int(part[-1])] += np.bincount(part - part[0])
        return cls(shape, fill, np.cumsum(starts), columns.astype(column_type(shape[1])), as_stored(data).copy())

    def blocks(self) -> Iterator[Block]:
        """Blocks of rows whose dense form is small."""
        for start, stop in row_blocks(*self.shape):
            begin, end = int(self.starts[start]), int(self.starts[stop])
            items = np.repeat(np.arange(stop - start), np.diff(self.starts[start : stop + 1]))
            yield Block(start, stop - start, items, self.columns[begin:end], self.data[begin:end])

    def items(self) -> Array:
        """The item of each kept cell."""
        kind = np.int32 if self.shape[0] < 2**31 else np.int64
        return np.repeat(np.arange(self.shape[0], dtype=kind), np.diff(self.starts))

    def dense(self, index: Index) -> Array:
        """Return the rows at `index` as a dense array (k, L)."""
        cells, lengths = self._gather(index)
        values = np.full((len(index), self.shape[1]), self.fill, self.data.dtype)
        row = np.repeat(np.arange(len(index)) * self.shape[1], lengths)
        values.ravel()[row + self.columns[cells]] = self.data[cells]
        return values

    def take(self, index: Index) -> Cells:
        """Return the rows at `index`, compressed."""
        cells, lengths = self._gather(index)
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        return Cells((len(index), self.shape[1]), self.fill, starts, self.columns[cells], as_stored(self.data[cells]))

    def arranged(self, places: Index, n_labels: int, missing: int) -> Cells:
        """Return L = `n_labels` columns: column c at `places[c]`, dropped where that is −1; all others hold `missing`.

        Where what is missing would have to be kept, the fill value is the one that leaves fewer cells to keep, and no
        more than a block of rows is dense at a time.
        """
        kept, shape = np.flatnonzero(places >= 0), (self.shape[0], n_labels)
        at = places[self.columns]
        there = at >= 0
        data = self.data[there]
        if len(kept) == n_labels or missing == self.fill:
            key, data = sorted_by_key(self.items()[there].astype(np.int64) * n_labels + at[there], data)
            return Cells.from_sorted(*np.divmod(key, n_labels), data, shape, self.fill)
        n_other = shape[0] * len(kept) - np.count_nonzero(data == missing)
        fill = missing if n_other < len(data) + shape[0] * (n_labels - len(kept)) else self.fill

        def blocks() -> Iterator[Array]:
            for start, stop in row_blocks(*shape):
                block = np.full((stop - start, n_labels), missing, data.dtype)
                block[:, places[kept]] = self.dense(np.arange(start, stop))[:, kept]
                yield block

        return Cells._from_blocks(blocks(), shape, fill, as_stored(data).dtype)

    def _gather(self, index: Index) -> tuple[Index, Index]:
        lengths = self.starts[index + 1] - self.starts[index]
        return spans(self.starts[index], lengths), lengths

    def together(self, left: Callable[[Array], Array], right: Callable[[Array], Array]) -> NDArray[np.int64]:
        """Count, for labels i and j, the items whose kept cell i passes `left` and whose kept cell j passes `right`."""
        n_labels = self.shape[1]
        total = np.zeros((n_labels, n_labels), np.int64)
        for block in self.blocks():
            a, b = left(block.data), right(block.data)
            items_a, items_b = block.items[a], block.items[b]
            columns_a, columns_b = block.columns[a].astype(np.int64), block.columns[b]
            n_b = np.bincount(items_b, minlength=block.n_items)
            partners = n_b[items_a]
            if int(partners.sum()) * _PAIR < block.n_items * n_labels**2:
                pairs = spans((np.cumsum(n_b) - n_b)[items_a], partners)
                np.add.at(total.ravel(), np.repeat(columns_a * n_labels, partners) + columns_b[pairs], 1)
            else:
                dense = np.zeros((2, block.n_items, n_labels), np.float32)
                dense[0, items_a, columns_a] = 1
                dense[1, items_b, columns_b] = 1
                total += (dense[0].T @ dense[1]).astype(np.int64)
        return total


def row_blocks(n_items: int, n_labels: int) -> Iterator[tuple[int, int]]:
    """First and last row (exclusive) of consecutive blocks of at most four million cells."""
    step = max(1, _BLOCK // n_labels)
    for start in range(0, n_items, step):
        yield start, min(start + step, n_items)


def spans(starts: Index, lengths: Index) -> Index:
    """Concatenate the ranges starts[k] … starts[k] + lengths[k] − 1."""
    return np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(int(lengths.sum()))


def column_type(n_labels: int) -> np.dtype[Any]:
    """The smallest unsigned integer that holds the number of a label."""
    return np.min_scalar_type(n_labels - 1)


def sorted_by_key(key: Index, data: Array) -> tuple[Index, Array]:
    """Sort checked values by their key; int8 ones travel in the key's last two bits, far faster than a gather."""
    if is_soft(data):
        order = np.argsort(key, kind="stable")
        return key[order], data[order]
    packed = np.sort(4 * key + (data.astype(np.int8) + 1))
    return packed >> 2, (packed & 3).astype(np.int8) - np.int8(1)


def narrow(values: Array) -> Array:
    """Checked values as float32 where they are wider: what that rounds to 0 or 1 is not soft."""
    return values.astype(np.float32) if values.dtype.kind == "f" and values.dtype.itemsize > 4 else values


def is_soft(values: Array) -> bool:
    """Whether a value lies strictly between 0 and 1."""
    return values.dtype.kind == "f" and bool(((values > 0) & (values < 1)).any())


def as_stored(data: Array) -> Array:
    """Checked values as int8, or as float32 where one is soft."""
    return data.astype(np.float32 if is_soft(data) else np.int8, copy=False)
