"""Binary cross-entropy with label smoothing."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from steelyard.balance.checks import check_range
from steelyard.kernels.fused import KernelPair
from steelyard.losses.focused import LOG_ZERO, focused, log1mexp
from steelyard.losses.loss import Reduction
from steelyard.losses.pair import AnalyticLoss


class BCE(AnalyticLoss):
    """Binary cross-entropy, whose link is σ.

    Formula:
        ℓ₊(z) = softplus(−z)
        ℓ₋(z) = softplus(z)
        η = σ(z)

    Args:
        smoothing: s ∈ [0, 1); a label y is trained as y(1−s) + s/2. Then σ(z) tends to η(1−s) + s/2, and the link is
            η = (σ(z) − s/2)/(1−s), at log-odds ±100 where that leaves (0, 1).
        reduction: "mean", "item", "sum" or "none".
        validate: check target values on CUDA too.

    Examples:
        >>> logits, targets = torch.tensor([[2.0, 99.0, -1.0]]), torch.tensor([[1, -1, 0]])
        >>> loss = sy.losses.BCE()
        >>> loss(logits, targets)  # the mean over two labels: the one that is −1 is unknown
        tensor(0.2201)
        >>> torch.equal(loss.probability(logits), torch.sigmoid(logits))
        True
        >>> smooth = sy.losses.BCE(smoothing=0.1)
        >>> smooth.probability(torch.tensor([2.0]))  # above σ(2) = .88, which smoothing has lowered
        tensor([0.9231])
    """

    def __init__(self, smoothing: float = 0.0, *, reduction: Reduction = "mean", validate: bool = False) -> None:
        super().__init__(reduction=reduction, validate=validate)
        check_range("in [0, 1)", smoothing=smoothing)
        self.smoothing = float(smoothing)

    def sided(self, z: Tensor, side: Tensor | float) -> tuple[Tensor, Tensor]:
        """Return softplus(x) − (s/2) x and its derivative, x = −z where side is 1 and z where it is 0."""
        sign = 1 - 2 * side if isinstance(side, float) else torch.mul(side, -2).add_(1)
        x = z * sign
        cost, slope = focused(x, 0.0)
        if self.smoothing:
            cost, slope = cost - self.smoothing / 2 * x, slope - self.smoothing / 2
        return cost, slope.mul_(sign)

    def kernel(self) -> KernelPair:
        """Return this pair as the fused kernels know it."""
        return _pair(self.smoothing / 2)

    def link(self, z: Tensor) -> Tensor:
        """Return log (σ(z) − s/2) − log (1 − s/2 − σ(z)) in the form that does not cancel."""
        if self.smoothing == 0.0:
            return z
        h = self.smoothing / 2
        edge = math.log(1 / h - 1)
        return (z + log1mexp(edge + z) - log1mexp(edge - z)).clamp(LOG_ZERO, -LOG_ZERO)


@cache
def _pair(smoothing: float) -> KernelPair:
    return KernelPair(smoothing=smoothing)
