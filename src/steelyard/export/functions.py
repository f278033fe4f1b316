"""Functions that ONNX lacks, made of those it has, to the last digits of float64; and curves through knots."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from steelyard.calibrate.isotonic import Curve
from steelyard.losses.focused import LOG_ZERO


def log1p(x: Tensor) -> Tensor:
    """Return log(1 + x), x > −1, as log(u) · x/(u − 1) with u = 1 + x rounded: what rounding lost comes back."""
    u = 1 + x
    rounded = u == 1
    return torch.where(rounded, x, torch.log(u) * (x / torch.where(rounded, 1.0, u - 1)))


def log1mexp(t: Tensor) -> Tensor:
    """Return log(1 − e^(−t)) for t > 0 and LOG_ZERO at and below 0: e^(−t) − 1 as (u − 1) · t/(−log u), u = e^(−t)."""
    outside = t <= 0
    x = -torch.where(outside, 1.0, t)
    u = torch.exp(x)
    plain = (u == 1) | (x < -1)
    lost = torch.where(u == 1, x, (u - 1) * (x / torch.where(plain, 1.0, torch.log(torch.where(plain, 2.0, u)))))
    return torch.where(outside, LOG_ZERO, torch.log(-torch.where(x < -1, u - 1, lost)))


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + eˣ), accurate in both tails."""
    return x.clamp_min(0.0) + log1p(torch.exp(-x.abs()))


def sigmoid(x: Tensor) -> Tensor:
    """Return σ(x) with all digits of a small one, of which onnxruntime's own gives those above 1e-16."""
    e = torch.exp(-x.abs())
    return torch.where(x >= 0, 1.0, e) / (1 + e)


def logsigmoid(x: Tensor) -> Tensor:
    """Return log σ(x)."""
    return -softplus(-x)


def logit(p: Tensor) -> Tensor:
    """Return log p/(1−p), at −100 and 100 where it lies beyond, as for 0 and 1."""
    return torch.log(p / (1 - p)).clamp(LOG_ZERO, -LOG_ZERO)


class Curves(nn.Module):
    """Piecewise linear curves, one a column, flat beyond their ends: `numpy.interp` by a binary search of gathers.

    curves: C of them; the module takes (B, C).
    """

    x: Tensor
    eta: Tensor
    width: Tensor
    rise: Tensor
    starts: Tensor
    ends: Tensor
    first: Tensor

    def __init__(self, curves: Sequence[Curve]) -> None:
        super().__init__()
        longest = max(len(curve.x) for curve in curves)
        self.steps = [1 << i for i in reversed(range((longest - 1).bit_length()))]
        size = 2 * self.steps[0] if self.steps else 1
        table = np.full((4, len(curves), size), np.inf)
        table[1:] = np.array([0.0, 1.0, 0.0])[:, None, None]
        for row, curve in enumerate(curves):
            n = len(curve.x)
            table[0, row, :n], table[1, row, :n] = curve.x, curve.eta
            table[2, row, : n - 1], table[3, row, : n - 1] = np.diff(curve.x), np.diff(curve.eta)
        for name, values in zip(("x", "eta", "width", "rise"), torch.from_numpy(table), strict=True):
            self.register_buffer(name, values.reshape(-1).clone())
        self.register_buffer("starts", torch.from_numpy(np.array([curve.x[0] for curve in curves])))
        self.register_buffer("ends", torch.from_numpy(np.array([curve.x[-1] for curve in curves])))
        self.register_buffer("first", torch.arange(len(curves)) * size)

    def forward(self, z: Tensor) -> Tensor:
        """Return the curves at z (B, C), float64."""
        inside = torch.minimum(torch.maximum(z, self.starts), self.ends)
        at = torch.zeros_like(inside, dtype=torch.int64) + self.first
        for step in self.steps:
            at = torch.where(_gathered(self.x, at + step) <= inside, at + step, at)
        x, eta, width, rise = (_gathered(table, at) for table in (self.x, self.eta, self.width, self.rise))
        return eta + (inside - x) / width * rise


def _gathered(table: Tensor, at: Tensor) -> Tensor:
    return table.index_select(0, at.reshape(-1)).reshape(at.shape)
