"""Asymmetric loss (ASL)."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from steelyard.balance.checks import check_range
from steelyard.kernels.fused import SHIFTED, SOFTPLUS, KernelPair
from steelyard.losses.focused import LOG_ZERO, focused, focused_log_slope, log1mexp, power
from steelyard.losses.loss import Reduction
from steelyard.losses.pair import AnalyticLoss

SAFE_MARGIN = 0.05
"""From this margin on, p > m and 1 − s ≥ m keep their digits in float32 when computed from 1 − p and from s."""

_FAR = 1e30
"""Stands for an infinite logit, at which log σ(−z) less itself would be NaN."""


class Asymmetric(AnalyticLoss):
    """Asymmetric loss, ASL (Ben-Baruch et al. 2021): easy negatives count less, and cost nothing below a margin.

    Formula:
        ℓ₊(z) = −(1 − p)^γ₊ log p, p = σ(z)
        ℓ₋(z) = −s^γ₋ log(1 − s), s = (p − m)₊
        η/(1 − η) = (s^γ₋ p)/((1 − s) (1 − p)^γ₊)

    The link above is that of detached focusing weights, as the authors train. Where training differentiates them, it is
    the φ of the calibration paper's eq. 14-15. The one that matches `detach_focus` is used. Below the margin (p ≤ m) ℓ₋
    is flat: η = 0, stated as log-odds −100. With m > 0 and γ₊ = 0 the link has a ceiling below 1 (.942 for the
    defaults, .964 with gradients through the focus), with m > 0 and γ₋ = 0 a step above 0; `eta_range` holds both ends.

    Args:
        gamma_pos: γ₊ (0 in the authors' training script, 1 in their class).
        gamma_neg: γ₋ (4).
        margin: m ∈ [0, 1), the probability shift of negatives (.05).
        detach_focus: treat the focusing weights as constants in the gradient.
        reduction: "mean", "item", "sum" or "none".
        validate: check target values on CUDA too.

    Examples:
        >>> z = torch.tensor([-4.0, -1.0, 0.0, 2.0])
        >>> torch.sigmoid(z)
        tensor([0.0180, 0.2689, 0.5000, 0.8808])
        >>> loss = sy.losses.Asymmetric()
        >>> loss.probability(z)  # what the same logits mean after training with this loss
        tensor([0.0000, 0.0008, 0.0359, 0.7126])
        >>> [round(end, 3) for end in loss.eta_range]  # no logit stands for a probability above .942
        [0.0, 0.942]
    """

    def __init__(
        self,
        gamma_pos: float = 0.0,
        gamma_neg: float = 4.0,
        margin: float = 0.05,
        detach_focus: bool = True,
        *,
        reduction: Reduction = "mean",
        validate: bool = False,
    ) -> None:
        super().__init__(reduction=reduction, validate=validate)
        check_range("at least 0", gamma_pos=gamma_pos, gamma_neg=gamma_neg)
        check_range("in [0, 1)", margin=margin)
        self.gamma_pos, self.gamma_neg = float(gamma_pos), float(gamma_neg)
        self.margin, self.detach_focus = float(margin), bool(detach_focus)
        self.z_margin = math.log(margin / (1 - margin)) if margin > 0 else -math.inf
        self.eta_range = self._range()

    def sided(self, z: Tensor, side: Tensor | float) -> tuple[Tensor, Tensor]:
        """Return ℓ₊, ℓ₊' where side is 1 and ℓ₋, ℓ₋' where it is 0."""
        if isinstance(side, float):
            return self._present(z) if side else self._absent(z)
        if self.margin >= SAFE_MARGIN and self.gamma_neg >= 1:
            return self._each_its_own(z, side)
        (up, rise), (down, fall) = self._present(z), self._absent(z)
        return torch.addcmul(side * up, 1 - side, down), torch.addcmul(side * rise, 1 - side, fall)

    def kernel(self) -> KernelPair:
        """Return this pair as the fused kernels know it."""
        return _pair((self.gamma_pos, self.gamma_neg), self.detach_focus, self.margin, self.z_margin)

    def link(self, z: Tensor) -> Tensor:
        """Return log ℓ₋'(z) − log(−ℓ₊'(z)), at least −100 where there is a margin."""
        z = z.clamp_max(_FAR)
        down = focused_log_slope(-z, self.gamma_pos, self.detach_focus)
        if self.margin == 0:
            return focused_log_slope(z, self.gamma_neg, self.detach_focus) - down
        below = self._above_margin(z) == 0  # not where z is NaN, which stays NaN
        log_p, log_q = F.logsigmoid(z), F.logsigmoid(-z)
        log_s = math.log1p(-self.margin) + log_p + log1mexp(self._above_margin(z))
        s = torch.where(below, 0.5, torch.exp(log_s))
        cost = self._cost(s, torch.exp(log_q))
        up = log_p + self.gamma_neg * log_s + cost
        if not self.detach_focus:
            up = up + torch.log1p(self.gamma_neg * (1 - s) * cost / s)
        # subtracted from each other first: both are large, and cancel exactly where γ₊ = 0
        return torch.where(below, LOG_ZERO, (up + (log_q - down)).clamp_min(LOG_ZERO))

    def _present(self, z: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = focused(-z, self.gamma_pos, self.detach_focus)
        return value, -slope

    def _absent(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return ℓ₋ and ℓ₋'; s = p − m = (1−m) p (1 − e^(z_m − z)) is the form that does not cancel."""
        if self.margin == 0:
            return focused(z, self.gamma_neg, self.detach_focus)
        p, q, gamma = torch.sigmoid(z), torch.sigmoid(-z), self.gamma_neg
        s = (self.margin - 1) * p * torch.expm1(-self._above_margin(z))
        cost = self._cost(s, q)
        rest = q + self.margin  # 1 − s where s > 0, with the digits that s near 1 has lost
        ds = p * q  # ds/dz beyond the margin; below it s = 0, and so is every power of it
        if gamma == 0:
            return cost, torch.where(s > 0, ds / rest, 0)
        focus = power(s, gamma)
        if self.detach_focus:
            return focus.detach() * cost, focus * ds / rest
        return focus * cost, ds * (focus / rest + gamma * power(s, gamma - 1) * cost)

    def _each_its_own(self, z: Tensor, side: Tensor) -> tuple[Tensor, Tensor]:
        """Return what `_present` and `_absent` give, each cell evaluated once: one logarithm serves both sides.

        It uses −log p = −log1p(−min(p, 1−p)) + (−z)₊, whose parts are not differentiable at 0; its value is.
        """
        q, other, gamma = torch.sigmoid(-z), 1 - side, self.gamma_neg
        p = 1 - q  # its digits are lost only where p is small, below the margin, where no term needs them
        s = self._above_margin(z).neg_().expm1_().mul_(p).mul_(self.margin - 1)
        cost = torch.minimum(p, q).mul_(side).addcmul_(other, s).neg_().log1p_().neg_()
        cost.addcmul_(side, z.clamp_max(0), value=-1)
        near = power(s, gamma - 1)
        far = near * s
        slope = (1 - s).reciprocal_().mul_(far)
        if not self.detach_focus:
            slope.addcmul_(near, cost, value=gamma)
        slope.mul_(p).mul_(other).sub_(side).mul_(q)
        focus = far.mul_(other).add_(side)
        if self.gamma_pos > 0:
            gain = power(q, self.gamma_pos).mul(side).add_(other)
            if not self.detach_focus:
                slope.addcmul_(p.mul_(side), cost, value=-self.gamma_pos)
            focus.mul_(gain)
            slope.mul_(gain)
        return cost.mul_(focus), slope

    def _above_margin(self, z: Tensor) -> Tensor:
        """Return (z − z_m)₊; z_m is taken off in two parts, the first exact in float32, so that no digit is lost."""
        first = float(np.float32(self.z_margin))
        return (z - first).sub_(self.z_margin - first).clamp_min(0)

    def _cost(self, s: Tensor, q: Tensor) -> Tensor:
        """Return −log(1−s); where a small margin lets s come close to 1, from 1−s = q + m."""
        cost = -torch.log1p(-s)
        return cost if self.margin >= SAFE_MARGIN else torch.where(s < 0.5, cost, -torch.log(q + self.margin))

    def _range(self) -> tuple[float, float]:
        """Return the limits of η just above the margin and as z → ∞."""
        z = torch.tensor([self.z_margin + 1e-9, 500.0], dtype=torch.float64)
        low, high = torch.sigmoid(self.link(z)).tolist()
        return (low if self.gamma_neg == 0 else 0.0, 1.0 if self.gamma_pos > 0 else high)


@cache
def _pair(gamma: tuple[float, float], detach: bool, margin: float, z_margin: float) -> KernelPair:
    if margin == 0:
        return KernelPair(SOFTPLUS, gamma=gamma, detach=detach)
    first = float(np.float32(z_margin))
    return KernelPair(SHIFTED, gamma=gamma, detach=detach, margin=margin, edge=(first, z_margin - first))
