"""Straight calibration curves shared by labels of like frequency, fitted to some cells: for millions of labels.

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

_STEPS, _HALVINGS = 100, 30


class Cells(NamedTuple):
    """Some cells of held-out items: log-odds, target (0 or 1), label and weight of each, (n,).

    A cell that was drawn with chance p has weight 1/p, so that weighted sums are those of all cells.
    """

    log_odds: Tensor
    targets: Tensor
    labels: Tensor
    weights: Tensor


def bands_of(counts: ArrayLike) -> NDArray[np.int64]:
    """Return the band of each label (L,): 0 without positives, else 1 + ⌊log₂ n_c⌋."""
    n = np.asarray(counts, np.float64)
    return np.where(n > 0, 1 + np.floor(np.log2(np.maximum(n, 1))), 0).astype(np.int64)


def fit_bands(cells: Cells, counts: ArrayLike, prior_positives: float = PRIOR_POSITIVES) -> Platt:
    """Return `Platt` with one line per frequency band, fitted to cells that training has not seen.

    Args:
        cells: of all bands that are to have a line of their own.
        counts: training positives of each label (L,).
        prior_positives: how many positives the line of all labels is worth beside a band's own.
    """
    worth = check_prior_positives(prior_positives)
    band = bands_of(counts)
    z, y, w = (x.double() for x in (cells.log_odds, cells.targets, cells.weights))
    if len(z) == 0 or float(y.sum()) == 0 or not bool(torch.isfinite(z).all()):
        raise ValueError("bands cannot be fitted: give finite log-odds of held-out cells, some of them positive")
    of_cell = torch.from_numpy(band)[cells.labels.cpu()].to(z.device)
    one = torch.zeros_like(of_cell)
    start = torch.tensor([[1.0, 0.0]], dtype=torch.float64, device=z.device)
    identity = torch.eye(2, dtype=torch.float64, device=z.device)[None]
    pooled = _fit(z, y, w, one, start, identity)
    information = _moments(z, w, one, pooled, 1)[1] / (w * y).sum()
    n = int(band.max()) + 1
    lines = _fit(z, y, w, of_cell, pooled.expand(n, 2).clone(), worth * information.expand(n, 2, 2))
    slope, shift = lines.cpu().unbind(1)
    at = torch.from_numpy(band)
    platt = Platt()
    platt.restore({"slope": slope[at].tolist(), "shift": shift[at].tolist()})
    return platt


def _moments(z: Tensor, w: Tensor, band: Tensor, lines: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return η of every cell, and the information Σ w η(1−η) (z, 1)(z, 1)ᵀ of every band, (n, 2, 2)."""
    eta = torch.sigmoid(lines[band, 0] * z + lines[band, 1])
    h = w * eta * (1 - eta)
    sums = [z.new_zeros(n).index_add_(0, band, h * z**power) for power in (2, 1, 0)]
    return eta, torch.stack([sums[0], sums[1], sums[1], sums[2]], 1).view(n, 2, 2)


def _fit(z: Tensor, y: Tensor, w: Tensor, band: Tensor, prior: Tensor, precision: Tensor) -> Tensor:
    """Return lines (n, 2) that minimise the log-loss + ½ (l − prior)ᵀ precision (l − prior), slopes at least 0.

    Newton's steps, each band's halved until its loss falls: the loss is convex.
    """
    n, lines = len(prior), prior.clone()

    def losses(at: Tensor) -> Tensor:
        odds = at[band, 0] * z + at[band, 1]
        cost = z.new_zeros(n).index_add_(0, band, w * (softplus(odds) - y * odds))
        off = at - prior
        return cost + ((precision @ off[..., None])[..., 0] * off).sum(1) / 2

    before = losses(lines)
    for _ in range(_STEPS):
        eta, information = _moments(z, w, band, lines, n)
        pull = w * (eta - y)
        gradient = torch.stack([z.new_zeros(n).index_add_(0, band, pull * x) for x in (z, torch.ones_like(z))], 1)
        gradient = gradient + (precision @ (lines - prior)[..., None])[..., 0]
        step = torch.linalg.solve(information + precision, gradient[..., None])[..., 0]
        share, reached = z.new_ones(n), before
        for _ in range(_HALVINGS):
            moved = lines - share[:, None] * step
            moved[:, 0].clamp_(min=0)
            reached = losses(moved)
            worse = reached > before
            if not bool(worse.any()):
                break
            share = torch.where(worse, share / 2, share)
        better = reached < before
        lines = torch.where(better[:, None], moved, lines)
        gain = (before - reached).clamp_min(0)
        before = torch.where(better, reached, before)
        if float((gain / before.clamp_min(1)).max()) < 1e-13:
            break
    return lines
