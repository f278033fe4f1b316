"""Odds of whole tables: of a softmax, their means, and thresholds that move with them."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard.calibrate import shift_prior
from steelyard.labels import UNKNOWN
from steelyard.losses.focused import LOG_ZERO

Floats: TypeAlias = NDArray[np.float64]


def softmax_log_odds(z: Tensor) -> Tensor:
    """Return z_c − log Σ_{j≠c} e^{z_j}, accurate also for the largest."""
    total = z.logsumexp(1, keepdim=True)
    top, at = z.max(1, keepdim=True)
    rest = z.scatter(1, at, -torch.inf).logsumexp(1, keepdim=True)
    share = z - total
    odds = share - torch.log(-torch.expm1(share.clamp_max(-1e-300)))
    return odds.scatter(1, at, top - rest).clamp(LOG_ZERO, -LOG_ZERO)


def rounded_eta(log_odds: Tensor, dtype: torch.dtype) -> Tensor:
    """Return σ of log-odds in `dtype`, rounded to the largest number below 1 rather than to 1."""
    return torch.sigmoid(log_odds).to(dtype).clamp_max(1 - torch.finfo(dtype).eps / 2)


def mean_eta(log_odds: Tensor, targets: Tensor) -> Floats:
    """Return the mean η of the known cells of each label, of all cells where none is known."""
    known = targets != UNKNOWN
    counted = torch.where(known.any(0), known, True)
    mean: Floats = (torch.where(counted, torch.sigmoid(log_odds), 0.0).sum(0) / counted.sum(0)).numpy()
    return mean


def moved_thresholds(thresholds: Floats, old: Floats, new: Floats) -> Floats:
    """Return thresholds where odds are multiplied by those of `new` over those of `old`; 0 and infinity stay."""
    inside = (thresholds > 0) & (thresholds < 1)
    t = torch.from_numpy(np.where(inside, thresholds, 0.5))
    moved = torch.sigmoid(shift_prior(torch.logit(t)[None], old, new)[0]).numpy()
    return np.where(inside, moved, thresholds)
