"""Targets of a batch as a list of cells; all other cells have one value, absent or unknown."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from steelyard.labels import Labels
from steelyard.labels.targets import UNKNOWN, ArrayLike, as_tensor


class SparseTargets(NamedTuple):
    """Targets (B, L) stored as the cells that differ from `fill`, each listed once.

    Args:
        rows: row of each listed cell, int32.
        labels: label of each listed cell, int32.
        values: its value, float32: 1, 0, soft, or −1 (unknown).
        shape: (B, L).
        fill: value of all other cells: 0 absent, −1 unknown.
        n_unknown: number of listed cells that are unknown.

    Examples:
        >>> targets = sy.models.SparseTargets.from_dense([[0, 1, 0], [0, 0, -1]])
        >>> targets.rows.tolist(), targets.labels.tolist(), targets.values.tolist()
        ([0, 1], [1, 2], [1.0, -1.0])
        >>> targets.n_known
        5
    """

    rows: Tensor
    labels: Tensor
    values: Tensor
    shape: tuple[int, int]
    fill: int = 0
    n_unknown: int = 0

    @classmethod
    def from_labels(cls, labels: Labels, index: ArrayLike | None = None) -> SparseTargets:
        """Return the targets of the items at `index` (B,), which may repeat; None: of all items, in their order."""
        at = np.arange(labels.n_items) if index is None else as_tensor(index).cpu().numpy()
        rows, columns, values = (torch.from_numpy(x) for x in labels.listed(at))
        cells = rows.to(torch.int32), columns.to(torch.int32), values.to(torch.float32)
        return cls(*cells, (len(at), labels.n_labels), labels.fill, int((values == UNKNOWN).sum()))

    @classmethod
    def from_dense(cls, targets: ArrayLike, fill: int = 0) -> SparseTargets:
        """Return dense targets (B, L) as a list of the cells that are not `fill`."""
        dense = as_tensor(targets).to(torch.float32)
        rows, labels = (dense != fill).nonzero(as_tuple=True)
        return cls.from_cells(rows, labels, dense[rows, labels], (dense.shape[0], dense.shape[1]), fill)

    @classmethod
    def from_cells(
        cls, rows: ArrayLike, labels: ArrayLike, values: ArrayLike, shape: tuple[int, int], fill: int = 0
    ) -> SparseTargets:
        """Return checked cells: rows, labels and values (n,), each cell at most once."""
        r, c, v = as_tensor(rows), as_tensor(labels), as_tensor(values).to(torch.float32)
        if not r.shape == c.shape == v.shape or r.ndim != 1:
            raise ValueError(
                f"rows, labels and values have shapes {tuple(r.shape)}, {tuple(c.shape)}, {tuple(v.shape)}: "
                "give one of each per cell"
            )
        if fill not in (0, UNKNOWN):
            raise ValueError(f"fill is {fill}: cells that are not listed are 0 (absent) or -1 (unknown)")
        for name, x, most in (("rows", r, shape[0]), ("labels", c, shape[1])):
            if len(x) and (int(x.min()) < 0 or int(x.max()) >= most):
                raise ValueError(f"{name} holds {int(x.min())} to {int(x.max())}: give numbers from 0 to {most - 1}")
        bad = ~((v == UNKNOWN) | ((v >= 0) & (v <= 1)))
        if bad.any():
            raise ValueError(
                f"values[{int(bad.nonzero()[0])}] is {v[bad][0].item()}: give 1, 0, a number between, or -1"
            )
        key = r.to(torch.int64) * shape[1] + c
        if len(key) != len(key.unique()):
            raise ValueError("a cell is listed twice: list each pair of row and label once")
        return cls(r.to(torch.int32), c.to(torch.int32), v, shape, fill, int((v == UNKNOWN).sum()))

    @property
    def n_known(self) -> int:
        """The number of known labels of the batch."""
        n = len(self.values) - self.n_unknown
        return n if self.fill == UNKNOWN else self.shape[0] * self.shape[1] - self.n_unknown

    def to(self, device: torch.device | str) -> SparseTargets:
        """Return the same targets on a device."""
        rows, labels, values = (x.to(device, non_blocking=True) for x in (self.rows, self.labels, self.values))
        return self._replace(rows=rows, labels=labels, values=values)

    def dense(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Return targets (B, stop − start) of the labels from `start` to `stop`, float32 as the listed ones are."""
        stop = self.shape[1] if stop is None else stop
        out = self.values.new_full((self.shape[0], stop - start), float(self.fill))
        here = (self.labels >= start) & (self.labels < stop)
        out[self.rows[here].long(), self.labels[here].long() - start] = self.values[here]
        return out

    def row_sums(self, by_label: Tensor | None = None) -> Tensor:
        """Return Σ_c t_c w_c of every row (B,) over its positives, float64; `by_label` (L,) are the w_c, None: 1."""
        present = self.values.clamp_min(0).to(torch.float64)
        if by_label is not None:
            present = present * by_label.to(present)[self.labels.long()]
        return present.new_zeros(self.shape[0]).index_add_(0, self.rows.long(), present)
