"""How far to believe estimated label frequencies: all labels together say how much frequencies have shifted at all."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

LEVEL = 0.01
"""Below this chance of seeing as much if no frequency had shifted, frequencies have."""


class Shift(NamedTuple):
    """What is made of estimates."""

    prior: Floats
    """The frequency of each label to reckon with, (L,); NaN where nothing can be told."""
    chance: float
    """The chance of estimates as far from what was expected, or farther, if nothing had shifted; NaN without any."""
    spread: float
    """τ, the deviation of the true shifts of the log-odds."""
    kept: Floats
    """The share of each label's shift that is left, (L,); 0 where nothing can be told."""


def believed(prior: Floats, estimate: Floats, error: Floats, n_items: int, n_reference: Floats) -> Shift:
    """Return estimates shrunk toward the frequencies they are compared with, as far as these explain them.

    A label's shift δ = logit q − logit π has two errors: of the estimate, and of π itself, which is known from M items
    as the estimate is from N, s² = (error/(q(1−q)))² (1 + N/M). If Σ δ²/s² is no more than chance (χ² at 1 %), nothing
    is shifted. Otherwise true shifts are taken as normal with deviation τ, Σ δ²/(s² + τ²) = the number of labels, and
    each is shrunk to δ τ²/(s² + τ²): a weak model's wild estimates give way, clear ones stay as they are.

    Args:
        prior: π, (L,), what probabilities are calibrated for.
        estimate, error: q and its standard error, (L,), of `prior_report`; a label without an error is left alone.
        n_items: N.
        n_reference: M, (L,).
    """
    usable = np.isfinite(error) & (error > 0) & (prior > 0) & (prior < 1) & (estimate > 0) & (estimate < 1)
    if not usable.any():
        return Shift(np.full(len(prior), np.nan), np.nan, 0.0, np.zeros(len(prior)))
    pi, q = prior[usable], estimate[usable]
    delta = _logit(q) - _logit(pi)
    variance = (error[usable] / (q * (1 - q))) ** 2 * (1 + n_items / n_reference[usable])
    chance = _chi_square_tail(float((delta**2 / variance).sum()), len(delta))
    spread = _spread(delta**2, variance) if chance < LEVEL else 0.0
    found, kept = np.full(len(prior), np.nan), np.zeros(len(prior))
    kept[usable] = spread / (variance + spread)
    shrunk = _logit(pi) + delta * kept[usable]
    found[usable] = np.where(spread > 0, 1 / (1 + np.exp(-shrunk)), pi)
    return Shift(found, chance, float(np.sqrt(spread)), kept)


def _spread(square: Floats, variance: Floats) -> float:
    """Return τ² with Σ δ²/(s² + τ²) = L, 0 where there is none (Paule and Mandel 1982, about a mean of 0)."""
    low, high = 0.0, float(square.sum())
    if (square / variance).sum() <= len(square):
        return 0.0
    for _ in range(200):
        middle = (low + high) / 2
        if (square / (variance + middle)).sum() > len(square):
            low = middle
        else:
            high = middle
    return high


def _chi_square_tail(value: float, degrees: int) -> float:
    """Return the chance that χ² with so many degrees of freedom exceeds a value."""
    half = torch.tensor([degrees / 2, value / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def _logit(p: Floats) -> Floats:
    return np.asarray(np.log(p) - np.log1p(-p))
