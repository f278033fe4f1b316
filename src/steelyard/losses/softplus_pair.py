"""The family of pairs made of two shifted, scaled and focused softplus curves."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from steelyard.balance.checks import check_range
from steelyard.kernels.fused import KernelPair
from steelyard.losses.focused import focused, focused_log_slope
from steelyard.losses.loss import Reduction
from steelyard.losses.pair import AnalyticLoss


class SoftplusPair(AnalyticLoss):
    """A pair of softplus curves, each with its scale, slope and shift, and focused.

    Formula:
        ℓ₊(z) = c₊ f(−k₊(z − b₊)), f(x) = σ(x)^γ softplus(x)
        ℓ₋(z) = c₋ f(k₋(z − b₋))
        log η/(1 − η) = log c₋ k₋ f′(k₋(z − b₋)) − log c₊ k₊ f′(−k₊(z − b₊))

    The link is closed and stable.
    Focal, NTR, SPA and LDAM are members: each supplies its constants. Shifts may be class-wise (L,).

    Args:
        slope: (k₊, k₋), both positive.
        shift: (b₊, b₋), numbers or (L,).
        scale: (c₊, c₋), both positive.
        gamma: γ of the focal factor, 0 for none.
        reduction: "mean", "item", "sum" or "none".
        validate: check target values on CUDA too.

    Examples:
        >>> loss = sy.losses.SoftplusPair(slope=(1.0, 3.0), shift=(0.0, 1.0), scale=(1.0, 0.2))
        >>> z = torch.tensor([-1.0, 0.0, 1.0])
        >>> torch.equal(loss.probability(z), sy.losses.SPA().probability(z))  # these are the constants of SPA
        True
    """

    shift_positive: Tensor
    shift_negative: Tensor

    def __init__(
        self,
        *,
        slope: tuple[float, float] = (1.0, 1.0),
        shift: tuple[Tensor | float, Tensor | float] = (0.0, 0.0),
        scale: tuple[float, float] = (1.0, 1.0),
        gamma: float = 0.0,
        reduction: Reduction = "mean",
        validate: bool = False,
    ) -> None:
        b_pos = torch.as_tensor(shift[0], dtype=torch.float64)
        b_neg = b_pos if shift[1] is shift[0] else torch.as_tensor(shift[1], dtype=torch.float64)
        n_labels = next((len(b) for b in (b_pos, b_neg) if b.ndim), None)
        super().__init__(n_labels, reduction=reduction, validate=validate)
        for name, value in (("slope", slope), ("scale", scale)):
            if not all(0 < v < math.inf for v in value):
                raise ValueError(f"{name} is {value}: both must be positive and finite")
        check_range("at least 0", gamma=gamma)
        self.k_pos, self.k_neg = map(float, slope)
        self.c_pos, self.c_neg = map(float, scale)
        self.gamma = float(gamma)
        self._shifted = bool(b_pos.any() or b_neg.any())
        self.register_buffer("shift_positive", b_pos, persistent=False)
        self.register_buffer("shift_negative", b_neg, persistent=False)
        self._link_checked = gamma == 0  # both log-slopes are monotone then
        self._pair: tuple[tuple[int, ...], KernelPair] = ((), KernelPair())

    def sided(self, z: Tensor, side: Tensor | float) -> tuple[Tensor, Tensor]:
        """Return c f(x) and c k f'(x) at x = k(z − b), with the constants of each cell's side (k is −k₊ or k₋)."""
        k = _pick(side, -self.k_pos, self.k_neg)
        c = _pick(side, self.c_pos, self.c_neg)
        shifted = z - self._shift(side, z.dtype) if self._shifted else z
        value, slope = focused(shifted * k, self.gamma)
        slope.mul_(k)
        return (value, slope) if isinstance(c, float) and c == 1.0 else (value * c, slope.mul_(c))

    def kernel(self) -> KernelPair:
        """Return this pair as the fused kernels know it; its shifts are copied once, to where the buffers are."""
        b_pos, b_neg = self._buffers["shift_positive"], self._buffers["shift_negative"]
        assert b_pos is not None
        assert b_neg is not None
        key = (b_pos.data_ptr(), b_pos._version, b_neg.data_ptr(), b_neg._version)
        if self._pair[0] != key:
            pair = KernelPair(
                slope=(self.k_pos, self.k_neg), scale=(self.c_pos, self.c_neg), gamma=(self.gamma, self.gamma)
            )
            if self._shifted:
                both = (b_pos,) if b_pos is b_neg and b_pos.ndim else torch.broadcast_tensors(b_pos, b_neg)
                wise = torch.stack(both).to(torch.float32)
                if wise.ndim == 2:
                    pair = pair._replace(shifts=wise.contiguous())
                else:
                    pair = pair._replace(shift=(b_pos.item(), b_neg.item()))
            self._pair = (key, pair)
        return self._pair[1]

    def link(self, z: Tensor) -> Tensor:
        """Return log ℓ₋'(z) − log(−ℓ₊'(z))."""
        u = (z - self.shift_positive.to(z.dtype)) * self.k_pos
        v = (z - self.shift_negative.to(z.dtype)) * self.k_neg
        constant = math.log(self.c_neg * self.k_neg) - math.log(self.c_pos * self.k_pos)
        return focused_log_slope(v, self.gamma) - focused_log_slope(-u, self.gamma) + constant

    def _shift(self, side: Tensor | float, dtype: torch.dtype) -> Tensor:
        b_pos, b_neg = self.shift_positive, self.shift_negative
        if isinstance(side, float):
            return (b_pos if side else b_neg).to(dtype)
        return b_neg.to(dtype) if b_pos is b_neg else torch.addcmul(b_neg.to(dtype), side, (b_pos - b_neg).to(dtype))


def _pick(side: Tensor | float, positive: float, negative: float) -> Tensor | float:
    """Return `positive` where side is 1 and `negative` where it is 0."""
    if positive == negative:
        return positive
    if isinstance(side, float):
        return positive if side else negative
    return torch.mul(side, positive - negative).add_(negative)
