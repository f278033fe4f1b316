"""Features of many columns that are mostly 0, kept sparse where a linear model is fitted to them."""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse, vstack
from torch import Tensor


@final
class SparseRows:
    """Features (N, F) by the cells that are not 0; has the few operations of a tensor that linear models need.

    Args:
        cells: scipy's CSR, float32.
        device: where products are computed.
    """

    def __init__(self, cells: Any, device: torch.device | str = "cpu") -> None:
        self.cells = csr_array(cells)
        self.device = torch.device(device)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, F)."""
        return int(self.cells.shape[0]), int(self.cells.shape[1])

    @property
    def dtype(self) -> torch.dtype:
        """That of the values."""
        return torch.from_numpy(self.cells.data[:0]).dtype

    @property
    def per_item(self) -> float:
        """Cells of an item that are not 0, on average."""
        return float(self.cells.nnz / max(len(self), 1))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> SparseRows:
        """Return some items."""
        index = rows.cpu().numpy() if isinstance(rows, Tensor) else rows
        return SparseRows(self.cells[index], self.device)

    def below(self, x: SparseRows) -> SparseRows:
        """Return the items of `x`, then these."""
        return SparseRows(vstack([x.cells, self.cells], format="csr"), self.device)

    def to(self, device: torch.device) -> SparseRows:
        """Return the same on a device."""
        return SparseRows(self.cells, device)

    def dense(self) -> Tensor:
        """Return all cells as a dense tensor (N, F), float32."""
        return torch.from_numpy(self.cells.toarray().astype(np.float32, copy=False)).to(self.device)

    @cached_property
    def _tensor(self) -> Tensor:
        return _as_tensor(self.cells, self.device)

    @cached_property
    def _transposed(self) -> Tensor:
        return _as_tensor(csr_array(self.cells.T), self.device)

    def affine(self, weight: Tensor, bias: Tensor) -> Tensor:
        """Return x · weight + bias, (N, L)."""
        product: Tensor = self._tensor @ weight
        return product.add_(bias)

    def transposed_product(self, slope: Tensor) -> Tensor:
        """Return xᵀ · slope, (F, L)."""
        product: Tensor = self._transposed @ slope
        return product

    def mean(self) -> Tensor:
        """Return the mean of every feature, (F,)."""
        return self._of_columns(self.cells.mean(0))

    def mean_square(self) -> Tensor:
        """Return the mean square of every feature, (F,)."""
        return self._of_columns(self.cells.multiply(self.cells).mean(0))

    def occurrences(self) -> Tensor:
        """Return in how many items each feature is above 0, (F,)."""
        return self._of_columns((self.cells > 0).sum(0))

    def _of_columns(self, values: Any) -> Tensor:
        return torch.from_numpy(np.asarray(values, np.float64).ravel()).to(self.device)

    # Transforms of features that are at least 0.

    def clamp_min(self, least: float) -> SparseRows:
        """Return values of at least 0; no other bound keeps cells at 0."""
        assert least == 0
        return self._with(np.maximum(self.cells.data, 0))

    def sqrt(self) -> SparseRows:
        """Return square roots."""
        return self._with(np.sqrt(self.cells.data))

    def __mul__(self, factors: Tensor) -> SparseRows:
        """Return features times one factor each, (F,)."""
        return self._with(self.cells.data * factors.cpu().numpy()[self.cells.indices])

    def unit(self) -> SparseRows:
        """Return items of norm 1; an empty one stays empty."""
        norms = np.sqrt(np.asarray(self.cells.multiply(self.cells).sum(1)).ravel()).clip(1e-12)
        return self._with(self.cells.data / np.repeat(norms, np.diff(self.cells.indptr)))

    def _with(self, values: NDArray[Any]) -> SparseRows:
        data = values.astype(np.float32, copy=False)
        return SparseRows(csr_array((data, self.cells.indices, self.cells.indptr), self.shape), self.device)


FeatureMatrix = Tensor | SparseRows
WIDE = 2000
"""Columns above which sparse features are not made dense; with fewer, transforms that make them dense help."""


def is_wide(inputs: Any) -> bool:
    """Return whether features are sparse and too many to be written out."""
    return bool(issparse(inputs)) and inputs.shape[1] > WIDE


def _as_tensor(cells: Any, device: torch.device) -> Tensor:
    starts, columns = (torch.from_numpy(np.asarray(part, np.int64)) for part in (cells.indptr, cells.indices))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls CSR beta; only products are used
        values = torch.from_numpy(cells.data)
        return torch.sparse_csr_tensor(starts, columns, values, cells.shape, check_invariants=False).to(device)
