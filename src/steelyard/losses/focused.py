"""The one curve that BCE, focal, NTR, SPA, LDAM and most of ASL are made of: f(x) = σ(x)^γ · softplus(x)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LOG_ZERO = -100.0
"""Replaces −∞ in log-odds: the log-odds of a loss where η = 0."""


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + eˣ), accurate in both tails and without torch's switch to x at 20."""
    return F.logsigmoid(-x).neg_()


def power(base: Tensor, exponent: float) -> Tensor:
    """Return base^exponent for base ≥ 0, by products where the exponent is a small whole number.

    The gradient at base = 0 is 0 for an exponent between 0 and 1, where the true one is infinite: every use here
    multiplies it by something that vanishes faster.
    """
    if exponent == 4.0:  # torch knows the squares and cubes itself
        base, exponent = base * base, 2.0
    if exponent >= 1.0 or exponent == 0.0:
        return base.pow(exponent)
    return torch.where(base > 0, torch.where(base > 0, base, 1.0).pow(exponent), 0.0)


def focused(x: Tensor, gamma: float, detach: bool = False) -> tuple[Tensor, Tensor]:
    """Return f(x) = σ(x)^γ softplus(x) and its slope f'(x) = σ(x)^γ (σ(x) + γ σ(−x) softplus(x)).

    With `detach` the focusing weight σ(x)^γ is a constant to training, and the slope is σ(x)^(γ+1).
    """
    cost, p = softplus(x), torch.sigmoid(x)
    if gamma == 0.0:
        return cost, p
    focus = power(p, gamma)
    if detach:
        return focus.detach() * cost, focus * p
    return focus * cost, torch.sigmoid(-x).mul_(cost).mul_(gamma).add_(p).mul_(focus)


def focused_log_slope(x: Tensor, gamma: float, detach: bool = False) -> Tensor:
    """Return log f'(x) = (γ+1) log σ(x) + log(1 + γ R(x)), R(x) = e^(−x) softplus(x), finite for every finite x.

    R runs from 1 (x → −∞) down to 0; beyond |x| = 80 it equals its limit in float64.
    """
    slope = (gamma + 1.0) * F.logsigmoid(x)
    if gamma == 0.0 or detach:
        return slope
    near = x.clamp(-80.0, 80.0)
    return slope + torch.log1p(gamma * torch.exp(-near) * softplus(near))


def log1mexp(t: Tensor) -> Tensor:
    """Return log(1 − e^(−t)) for t > 0, LOG_ZERO at and below 0, and NaN for NaN."""
    outside = t <= 0
    return torch.where(outside, LOG_ZERO, torch.log(-torch.expm1(-torch.where(outside, 1.0, t))))
