"""How large a calibration error is by chance alone: what probabilities that are right would show on as many items."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from steelyard.metrics.calibration import Bins


class ByChance(NamedTuple):
    """The average and the expected calibration error that are there by chance."""

    ace: Any
    ece: Any


def error_by_chance(bins: Bins) -> ByChance:
    """Return the ACE and ECE to be expected, with these bins, of probabilities that are right.

    Of n_b labels that are each present with probability p_b the share that is present differs from p_b, on average by
    E|K/n − p| = 2 (1 − p) m C(n, m) pᵐ (1 − p)ⁿ⁻ᵐ / n with K ~ Binomial(n, p) and m = ⌊np⌋ + 1. ACE by chance is its
    mean over the bins that are not empty, ECE Σ n_b (·) / Σ n_b: a model whose errors are about as large cannot be told
    from one that is right.

    - `bins`: of `calibration_error`, pooled, which gives floats, or by label, which gives (L,), a tensor or an array as
      they are; NaN without a known label.

    Labels count as independent, and as hard: soft ones vary less. So do those of a wide bin whose probabilities differ.
    """
    n, p = (torch.as_tensor(x).double().cpu() for x in (bins.counts, bins.confidence))
    filled = n > 0
    gap = torch.where(filled, _mean_deviation(n, p), 0.0)
    ace, ece = gap.sum(-1) / filled.sum(-1), (n * gap).sum(-1) / n.sum(-1)
    if n.ndim == 1:
        return ByChance(float(ace), float(ece))
    return ByChance(ace, ece) if isinstance(bins.counts, Tensor) else ByChance(ace.numpy(), ece.numpy())


def _mean_deviation(n: Tensor, p: Tensor) -> Tensor:
    """E|K/n − p| of K ~ Binomial(n, p), by de Moivre's sum."""
    m = torch.floor(n * p) + 1
    choose = torch.lgamma(n + 1) - torch.lgamma(m + 1) - torch.lgamma(n - m + 1)  # m = n + 1 where p is 1: C is 0
    mass = choose + torch.xlogy(m, p) + torch.xlogy(n - m + 1, 1 - p)
    return torch.where(m > n, 0.0, 2 * m * mass.exp() / n)
