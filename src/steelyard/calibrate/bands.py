"""Calibration lines shared by labels of similar frequency, fitted to some cells: for millions of labels.

A label of five positives has no calibration curve of its own, and a million labels have no table of logits. Labels
whose training counts have the same leading power of two share a line log η/(1−η) = a z + b. Lines of bands are shrunk
toward the line of all labels, which counts as `prior_positives` positives.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn.functional import softplus

from steelyard.calibrate.lines import PRIOR_POSITIVES, check_prior_positives
from steelyard.calibrate.scaling import Platt


class HeldOutCells(NamedTuple):
    """Some cells of held-out items: log-odds, target (0 or 1), label and weight of each, (n,).

    A cell that was drawn with chance p has weight 1/p, so that weighted sums are those of all cells.

    Args:
        log_odds: of each cell, before calibration, (n,).
        targets: 0 or 1, (n,).
        labels: the label of each cell, 0 … L − 1, (n,).
        weights: of each cell, (n,); 1/p where it was drawn with chance p.

    Examples:
        >>> cells = sy.calibrate.HeldOutCells(
        ...     log_odds=torch.tensor([2.0, -1.0]),
        ...     targets=torch.tensor([1.0, 0.0]),
        ...     labels=torch.tensor([0, 7]),
        ...     weights=torch.tensor([1.0, 10.0]),  # of the negatives one in ten was drawn
        ... )
    """

    log_odds: Tensor
    targets: Tensor
    labels: Tensor
    weights: Tensor


def bands_of(counts: ArrayLike) -> NDArray[np.int64]:
    """Return the band of each label (L,): 0 without positives, else by powers of two of its positives.

    Formula:
        band_c = 1 + ⌊log₂ n_c⌋

    Args:
        counts: training positives of each label (L,).

    Examples:
        >>> sy.calibrate.bands_of(np.array([0, 1, 3, 4, 1000]))
        array([ 0,  1,  2,  3, 10])
    """
    n = np.asarray(counts, np.float64)
    return np.where(n > 0, 1 + np.floor(np.log2(np.maximum(n, 1))), 0).astype(np.int64)


def fit_bands(cells: HeldOutCells, counts: ArrayLike, prior_positives: float = PRIOR_POSITIVES) -> Platt:
    """Return `Platt` with one line per frequency band, fitted to cells that training has not seen.

    Args:
        cells: of all bands that are to have a line of their own.
        counts: training positives of each label (L,).
        prior_positives: how many positives the line of all labels is worth beside a band's own.

    Examples:
        >>> z = torch.tensor([-1.0, 1.0]).repeat(1000)
        >>> label = torch.arange(2000) // 500
        >>> eta = torch.sigmoid(z - 2.0 * (label >= 2))  # labels 2 and 3 come less often than their logits say
        >>> y = (torch.arange(2000) % 500 // 2 < 250 * eta).float()
        >>> cells = sy.calibrate.HeldOutCells(z, y, label, torch.ones(2000))
        >>> platt = sy.calibrate.fit_bands(cells, counts=np.array([300, 280, 4, 5]))  # two bands
        >>> platt.shift.round().int()
        tensor([ 0,  0, -2, -2], dtype=torch.int32)
    """
    worth = check_prior_positives(prior_positives)
    band = bands_of(counts)
    z, y, w = (x.double() for x in (cells.log_odds, cells.targets, cells.weights))
    if len(z) == 0 or float(y.sum()) == 0 or not bool(torch.isfinite(z).all()):
        raise ValueError("bands cannot be fitted: give finite log-odds of held-out cells, some of them positive")
    of_cell = torch.from_numpy(band)[cells.labels.cpu()].to(z.device)
    pooled = _fitted(z, y, w, np.array([1.0, 0.0]), np.eye(2))
    eta = torch.sigmoid(pooled[0] * z + pooled[1])
    sums = [float((w * eta * (1 - eta) * z**power).sum()) for power in (2, 1, 1, 0)]
    precision = worth * np.array(sums).reshape(2, 2) / float((w * y).sum())
    masks = (of_cell == b for b in range(int(band.max()) + 1))
    lines = [_fitted(z[mask], y[mask], w[mask], pooled, precision) for mask in masks]
    slope, shift = torch.from_numpy(np.array(lines)).unbind(1)
    band_of_label = torch.from_numpy(band)
    platt = Platt()
    platt.restore({"slope": slope[band_of_label].tolist(), "shift": shift[band_of_label].tolist()})
    return platt


def _fitted(
    z: Tensor, y: Tensor, w: Tensor, prior: NDArray[np.float64], precision: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the line (a ≥ 0, b) that minimises the log-loss + ½ (l − prior)ᵀ precision (l − prior), a convex cost."""
    from scipy.optimize import minimize

    scale = 1 / (float(w.sum()) + np.trace(precision))

    def cost(line: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        odds, off = line[0] * z + line[1], line - prior
        pull = w * (torch.sigmoid(odds) - y)
        value = float((w * (softplus(odds) - y * odds)).sum()) + off @ precision @ off / 2
        gradient = np.array([float((pull * z).sum()), float(pull.sum())]) + precision @ off
        return scale * value, scale * gradient

    options = {"ftol": 1e-15, "gtol": 1e-11}
    minimum = minimize(cost, prior, jac=True, method="L-BFGS-B", bounds=[(0, None), (None, None)], options=options).x
    return np.asarray(minimum)
