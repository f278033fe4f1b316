"""The frozen table of all labels, and its statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, TypeVar, final

import numpy as np
import torch
from numpy.typing import ArrayLike

from steelyard._arrays import Array, Floats, Index, slices
from steelyard.labels import store
from steelyard.labels.cells import BLOCK, SparseCells, column_type, narrow
from steelyard.labels.groups import head_medium_tail, rarest
from steelyard.labels.ids import Ids
from steelyard.labels.inputs import LEGEND, as_index, as_shape, as_values, bad_values
from steelyard.labels.targets import UNKNOWN

Names: TypeAlias = Sequence[str]
Frozen = TypeVar("Frozen", bound=Array)

_DENSE_LIMIT = 2 * 1024**3


@final
class Labels:
    """All labels of N items: 1 present, 0 absent, between them soft, −1 unknown; frozen, sparse inside.

    Only the cells that differ from one fill value (0 or −1) are kept: ten million items with five known labels each
    take about 290 MB. A label counts as positive where its value is at least .5; an unknown one is never a negative.

    Args:
        values: (N, L), a numpy array or tensor of real numbers.
        names: of the L labels, distinct strings; "0", "1", … where not given.
        ids: of the N items, likewise.

    Examples:
        >>> labels = sy.Labels(np.array([[1, 0, -1], [1, 1, 0], [-1, 0, 0]]), names=["person", "dog", "car"])
        >>> labels
        Labels(3 items × 3 labels, 3 positives, 22.2 % unknown)
        >>> labels.counts, labels.n_known
        (array([2, 1, 0]), array([2, 3, 2]))
        >>> labels.prior  # of person: 2 of 2 known labels, not 2 of 3 items
        array([1.        , 0.33333333, 0.        ])
        >>> labels.take([0, 2]).values
        array([[ 1,  0, -1],
               [-1,  0,  0]], dtype=int8)
    """

    names: tuple[str, ...]
    ids: Ids
    item_groups: Array | None
    """The group of each item, (N,) integers: items of one group stay together in every split; None where each item is
    its own group."""
    _cells: SparseCells

    def __init__(self, values: ArrayLike | torch.Tensor, names: Names | None = None, ids: Names | None = None) -> None:
        dense = as_values(values)
        shape = as_shape(dense.shape)
        texts = _as_texts(shape, names, ids)
        for rows in slices(shape, BLOCK):
            if (bad := bad_values(dense[rows])) is not None:
                i, j = np.argwhere(bad)[0] + (rows.start, 0)
                raise ValueError(f"values[{i}, {j}] is {dense[i, j]}: {LEGEND}")
        self._fill_in(SparseCells.from_dense(dense), *texts)

    @classmethod
    def from_cells(
        cls,
        items: ArrayLike,
        labels: ArrayLike,
        values: ArrayLike,
        shape: tuple[int, int],
        fill: int,
        names: Names | None = None,
        ids: Names | None = None,
    ) -> Labels:
        """Make a table from a list of cells.

        Args:
            items, labels, values: the row, the column and the value of each cell, (n,), in any order. A cell listed
                twice must have the same value each time.
            shape: (N, L).
            fill: the value of cells not listed, 0 absent or −1 unknown.
            names, ids: as for `Labels`.
        """
        if fill not in (0, UNKNOWN):
            raise ValueError(f"fill is {fill}: cells not listed are 0 (absent) or -1 (unknown)")
        shape = as_shape(shape)
        label_names, item_ids = _as_texts(shape, names, ids)
        row, column = as_index(items, shape[0], "items"), as_index(labels, shape[1], "labels")
        data = as_values(values)
        if not (row.shape == column.shape == data.shape and data.ndim == 1):
            shapes = f"{row.shape}, {column.shape}, {data.shape}"
            raise ValueError(f"items, labels, values have shapes {shapes}: give one of each per cell")
        if (bad := bad_values(data)) is not None:
            i = int(np.argmax(bad))
            raise ValueError(f"values[{i}] is {data[i]}: {LEGEND}")
        data = narrow(data)
        key = row * shape[1] + column
        if not (key[1:] > key[:-1]).all():
            order = np.argsort(key, kind="stable")
            key, data = key[order], data[order]
            again = np.flatnonzero(key[1:] == key[:-1]) + 1
            if len(differ := again[data[again] != data[again - 1]]):
                i, j = divmod(int(key[differ[0]]), shape[1])
                who = f"item {item_ids[i]!r}, label {label_names[j]!r}"
                low, high = sorted(data[differ[0] - 1 : differ[0] + 1])
                raise ValueError(f"the cell of {who} is listed twice, as {low} and as {high}: list it once")
            key, data = np.delete(key, again), np.delete(data, again)
            row, column = np.divmod(key, shape[1])
        return cls._of(SparseCells.from_listed(row, column, data, shape, fill), label_names, item_ids)

    @classmethod
    def from_scipy(cls, matrix: Any, fill: int = 0, names: Names | None = None, ids: Names | None = None) -> Labels:
        """Make a table from a sparse scipy matrix (N, L): a cell it does not store is `fill`, a stored 0 is absent.

        Args:
            matrix: (N, L).
            fill: 0 absent or −1 unknown.
            names, ids: as for `Labels`.
        """
        cells = matrix.tocoo()
        return cls.from_cells(cells.row, cells.col, cells.data, cells.shape, fill, names, ids)

    @classmethod
    def _of(cls, cells: SparseCells, names: tuple[str, ...], ids: Ids, groups: Array | None = None) -> Labels:
        self = object.__new__(cls)
        self._fill_in(cells, names, ids, groups)
        return self

    def _fill_in(self, cells: SparseCells, names: tuple[str, ...], ids: Ids, groups: Array | None = None) -> None:
        for array in (cells.matrix.data, cells.matrix.indices, cells.matrix.indptr):
            array.setflags(write=False)
        vars(self).update(_cells=cells, names=names, ids=ids, item_groups=groups)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"Labels is frozen: {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"Labels is frozen: {name} cannot be deleted")

    def __reduce__(self) -> tuple[Callable[..., Labels], tuple[Any, ...]]:
        return Labels._of, (self._cells, self.names, self.ids, self.item_groups)

    def __len__(self) -> int:
        return self.n_items

    def __repr__(self) -> str:
        cells = f"{int(self.counts.sum()):,} positives, {100 * self.unknown_rate:.3g} % unknown"
        return f"Labels({self.n_items:,} items × {self.n_labels:,} labels, {cells})"

    # ---- the cells

    @property
    def n_items(self) -> int:
        """N, the number of items."""
        return int(self._cells.matrix.shape[0])

    @property
    def n_labels(self) -> int:
        """L, the number of labels."""
        return int(self._cells.matrix.shape[1])

    @property
    def fill(self) -> int:
        """The value of the cells that `cells` does not list: 0 absent or −1 unknown."""
        return self._cells.fill

    @property
    def values(self) -> Array:
        """All labels as a new dense array (N, L), int8, or float32 where one is soft; refused over 2 GB."""
        size = self.n_items * self.n_labels * self._cells.matrix.dtype.itemsize
        if size > _DENSE_LIMIT:
            shape = f"{self.n_items:,} items × {self.n_labels:,} labels"
            raise ValueError(f"values of {shape} would take {size / 1e9:.1f} GB: use .rows(index) for a dense batch")
        return self._cells.dense(np.arange(self.n_items))

    def rows(self, index: ArrayLike) -> Array:
        """Return the labels of the items at `index` (k,) as a new dense array (k, L)."""
        return self._cells.dense(as_index(index, self.n_items, "index"))

    def take(self, index: ArrayLike) -> Labels:
        """Return the table of the distinct items at `index`, in that order, with the same names."""
        rows = as_index(index, self.n_items, "index")
        increasing = np.sort(rows)
        if len(twice := increasing[1:][increasing[1:] == increasing[:-1]]):
            raise ValueError(f"index holds {twice[0]} twice: an item is taken once; .rows(index) may repeat")
        groups = None if self.item_groups is None else self.item_groups[rows]
        return Labels._of(self._cells.take(rows), self.names, self.ids.take(rows), groups)

    def arranged(self, names: Names, missing: int) -> Labels:
        """Return the same items with exactly the labels `names`, in that order; one not here is `missing`, 0 or −1."""
        if missing not in (0, UNKNOWN):
            raise ValueError(f"missing is {missing}: a label that is not here is 0 (absent) or -1 (unknown)")
        new_names = tuple(Ids(names, "names"))
        shape = as_shape((self.n_items, len(new_names)))
        position = {name: j for j, name in enumerate(new_names)}
        columns = np.array([position.get(name, -1) for name in self.names])
        return Labels._of(self._cells.arranged(columns, shape[1], missing), new_names, self.ids, self.item_groups)

    def renamed(self, names: Names) -> Labels:
        """Return the same table with its labels called `names`, in their order."""
        return Labels._of(
            self._cells, _as_texts((self.n_items, self.n_labels), names, self.ids)[0], self.ids, self.item_groups
        )

    def grouped(self, groups: ArrayLike | None) -> Labels:
        """Return the same table whose items belong to `groups` (N,), any values; None for no groups."""
        numbers = None
        if groups is not None:
            values = np.asarray(groups)
            if values.shape != (self.n_items,):
                raise ValueError(f"groups has shape {values.shape}: give one group for each of {self.n_items} items")
            numbers = np.unique(values, return_inverse=True)[1]
        return Labels._of(self._cells, self.names, self.ids, numbers)

    def cells(self) -> tuple[Array, Array, Array]:
        """Return items, labels and values of the cells that are not `fill`, by item, as `from_cells` takes them."""
        m = self._cells.matrix
        items = np.repeat(np.arange(self.n_items, dtype=np.int32 if self.n_items < 2**31 else None), np.diff(m.indptr))
        return items, _frozen(m.indices.astype(column_type(self.n_labels))), m.data

    def listed(self, index: ArrayLike) -> tuple[Array, Array, Array]:
        """Return the cells of the items at `index` (k,) that are not `fill`: place in `index`, label and value."""
        positions = as_index(index, self.n_items, "index")
        rows = self._cells.matrix[positions]
        return np.repeat(np.arange(len(positions)), np.diff(rows.indptr)), rows.indices, rows.data

    def positives(self) -> tuple[Array, Array]:
        """Return items and labels of the positive cells, by item, then label."""
        cells = self.present().tocoo()
        return cells.row, cells.col

    def present(self) -> Any:
        """Return a SciPy CSR array (N, L) of 1 at the positive cells."""
        return self._cells.marked(_positive)

    def items_by_label(self) -> tuple[Index, Array]:
        """Return (starts, items): the items that have label c are `items[starts[c] : starts[c + 1]]`, increasing."""
        columns = self.present().tocsc()
        return columns.indptr, columns.indices

    # ---- statistics by label

    @cached_property
    def counts(self) -> Index:
        """n_c, the positives (values ≥ .5) of each label, (L,)."""
        return self._count(_positive)

    @cached_property
    def n_known(self) -> Index:
        """k_c, the known labels of each class, (L,)."""
        if self.fill == UNKNOWN:
            return self._count(lambda data: data != UNKNOWN)
        return _frozen(self.n_items - self._count(lambda data: data == UNKNOWN))

    @cached_property
    def prior(self) -> Floats:
        """π_c = n_c / k_c, positives over known labels, (L,); NaN where nothing is known."""
        return _frozen(_ratio(self.counts, self.n_known))

    @cached_property
    def ratio(self) -> Floats:
        """r_c = n_c / (k_c − n_c), positives over negatives, (L,); inf without negatives, NaN where none is known."""
        return _frozen(_ratio(self.counts, self.n_known - self.counts))

    @property
    def imbalance(self) -> float:
        """ρ, the largest over the smallest count among labels that have a positive; NaN where none has."""
        seen = self.counts[self.counts > 0]
        return float(seen.max() / seen.min()) if len(seen) else float("nan")

    @property
    def unknown_rate(self) -> float:
        """The share of all N·L cells that are unknown; NaN without items."""
        return float(np.mean(self.unknown_rate_by_label))

    @cached_property
    def unknown_rate_by_label(self) -> Floats:
        """The share of items for which each label is unknown, (L,); NaN without items."""
        return _frozen(_ratio(self.n_items - self.n_known, np.full(self.n_labels, self.n_items)))

    def groups(self, head: int = 100, tail: int = 20) -> dict[str, Index]:
        """Return the labels with at least `head` positives, with fewer than `tail` (also with none), and between."""
        return head_medium_tail(self.counts, head, tail)

    def rarest(self, k: int) -> Index:
        """Return the `k` labels with the fewest positives, rarest first, equal counts by position."""
        return rarest(self.counts, k)

    # ---- statistics by pair of labels

    def cooccurrence(self) -> Index:
        """Return n_{i∩j}, the items that have both labels, (L, L); its diagonal is `counts`."""
        self._check_square()
        has = self.present()
        both: Index = (has.T @ has).toarray().astype(np.int64)
        return both

    def conditional(self) -> Floats:
        """Return p(i|j) as [i, j], (L, L): among items with label j for which i is known, the share that has i.

        With nothing unknown this is n_{i∩j} / n_j. NaN where no item with label j has i known.
        """
        both = self.cooccurrence()
        listed = (self._listed().T @ self.present()).toarray()
        return _ratio(both, listed if self.fill == UNKNOWN else self.counts - listed)

    def resampled_prior(self) -> Floats:
        """Return the prior of each label after class-aware sampling, (L,), eq. 1 of the distribution-balanced loss.

            p̂_i = (1/C) Σ_j n_{i∩j} / n_j

        over the C labels j that have a positive (the others are never visited, and get p̂ = 0). Where labels are
        unknown it is positives over known labels among the draws, Σ_j (n_{i∩j}/n_j) / Σ_j (k_{i∩j}/n_j) with k_{i∩j}
        the items with label j for which i is known; NaN where i is known for no item that can be drawn.
        """
        share = np.divide(1, self.counts, out=np.zeros(self.n_labels), where=self.counts > 0)
        has, listed = self.present(), self._listed()
        weight = has @ share
        positive, amount = has.T @ weight, listed.T @ weight
        if self.fill == UNKNOWN:
            return _ratio(positive, amount)
        some_known = listed.T @ (weight > 0) < np.count_nonzero(weight)
        return _ratio(positive, np.where(some_known, np.count_nonzero(self.counts) - amount, 0))

    # ---- files

    def save(self, path: str | Path) -> None:
        """Write the table to `path` as an .npz of plain arrays; the file appears whole or not at all."""
        store.write(Path(path), self._cells, self.names, self.ids)

    @classmethod
    def load(cls, path: str | Path) -> Labels:
        """Read a table that `save` wrote.

        Args:
            path: a file that `save` wrote.
        """
        cells, names, ids = store.read(Path(path))
        return cls._of(cells, tuple(names), ids)

    def _listed(self) -> Any:
        """Return a CSR array of 1 at the known labels where `fill` is −1, at the unknown ones where it is 0."""
        return self._cells.marked(lambda data: (data == UNKNOWN) != (self.fill == UNKNOWN))

    def _count(self, mark: Callable[[Array], Array]) -> Index:
        m = self._cells.matrix
        return _frozen(np.bincount(m.indices[mark(m.data)], minlength=self.n_labels))

    def _check_square(self) -> None:
        if (size := 8 * self.n_labels**2) > _DENSE_LIMIT:
            shape = f"{self.n_labels:,} × {self.n_labels:,} labels"
            raise ValueError(f"a table of {shape} would take {size / 1e9:.1f} GB: choose fewer labels")


def _as_texts(shape: tuple[int, int], names: Names | None, ids: Names | None) -> tuple[tuple[str, ...], Ids]:
    labels = Ids.numbered(shape[1]) if names is None else Ids(names, "names")
    items = Ids.numbered(shape[0]) if ids is None else ids if isinstance(ids, Ids) else Ids(ids)
    for name, given, n in (("names", labels, shape[1]), ("ids", items, shape[0])):
        if len(given) != n:
            raise ValueError(f"{name} has {len(given)} entries, but the table has shape {shape}: give {n}")
    return tuple(labels), items


def _positive(data: Array) -> Array:
    return np.greater_equal(data, 0.5)


def _ratio(above: Array, below: Array) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.true_divide(above, below)


def _frozen(array: Frozen) -> Frozen:
    array.setflags(write=False)
    return array
