"""Two-way multi-label loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from steelyard.balance.checks import check_range
from steelyard.kernels import fused, two_way
from steelyard.kernels.choice import fuses
from steelyard.kernels.fused import IGNORED
from steelyard.losses.focused import softplus
from steelyard.losses.loss import Cells, Loss, LossBatch, NoLink, compute_dtype


class TwoWay(Loss):
    """Two-way loss (Kobayashi 2023): positives must outscore negatives, along labels and along items.

    Formula:
        ℓ = mean_i softplus(T₋ lse₋(z_i/T₋) + T₊ lse₊(−z_i/T₊)) + mean_c softplus(T₋ lse₋(z_c/T₋) + T₊ lse₊(−z_c/T₊))

    lse is the log-sum-exp over the negatives (positives) of an axis, weighted by their coefficients. The loss is its
    mean over items that have a positive (lse along labels) plus its mean over classes that have a positive in the batch
    (lse along items). Unknown labels are left out of both. It compares labels with each other, so it has no
    probability: calibrate with a temperature. Over several processes each compares the labels and items of its own
    batch.

    Args:
        t_pos: T₊, the temperature of positives (4).
        t_neg: T₋, the temperature of negatives (1).
        validate: check target values on CUDA too.

    Examples:
        >>> loss, targets = sy.losses.TwoWay(), torch.tensor([[1, 0, -1]])
        >>> loss(torch.tensor([[9.0, -9.0, 0.0]]), targets) < loss(torch.tensor([[-9.0, 9.0, 0.0]]), targets)
        tensor(True)
    """

    def __init__(self, t_pos: float = 4.0, t_neg: float = 1.0, *, validate: bool = False) -> None:
        super().__init__(None, "mean", validate)
        check_range("positive", t_pos=t_pos, t_neg=t_neg)
        self.t_pos, self.t_neg = float(t_pos), float(t_neg)

    def evaluate_batch(self, logits: Tensor, batch: LossBatch, divisor: Tensor | float | None = None) -> Tensor:
        """Return the loss of `batch`; where it is targets alone, the kernels read those."""
        is_own = type(self).evaluate is not TwoWay.evaluate  # a subclass's: it is given cells
        if is_own or batch.rule != IGNORED or any(part is not None for part in batch[3:]) or not _fuses(logits):
            return super().evaluate_batch(logits, batch, divisor)
        return two_way.value(logits, batch.targets.values, None, self.t_neg, self.t_pos)

    def evaluate(self, logits: Tensor, cells: Cells, divisor: Tensor | float | None = None) -> Tensor:
        """Return the loss of `cells`; its two means have their own divisors."""
        if _fuses(logits):
            return two_way.value(logits, cells.a, cells.b, self.t_neg, self.t_pos)
        z = cells.inert(logits.to(compute_dtype(logits)))
        negative, positive = _opened(z / self.t_neg, cells.b), _opened(z / -self.t_pos, cells.a)
        total = z.sum() * 0
        if z.numel() == 0:
            return total
        for axis in (1, 0):
            margin = self.t_neg * _lse(negative, cells.b, axis) + self.t_pos * _lse(positive, cells.a, axis)
            some = cells.a.amax(dim=axis) > 0
            total = total + torch.where(some, softplus(margin), 0).sum() / some.sum().clamp_min(1)
        return total

    def log_odds(self, z: Tensor, pos_weight: object = None, neg_weight: object = None) -> Tensor:
        """Raise: a loss that compares labels with each other gives none of them a probability.

        Args:
            z, pos_weight, neg_weight: as for other losses; not used.
        """
        raise NoLink("TwoWay has no probability: it ranks labels against each other; fit calibrate.Temperature instead")

    probability = log_odds


def _fuses(logits: Tensor) -> bool:
    """Return whether the fused kernels are used."""
    return fuses(logits.device) and fused.takes(logits)


def _opened(x: Tensor, weight: Tensor) -> Tensor:
    """Return x, and −1e30 where the weight is 0."""
    return x + (weight.sign() - 1).mul_(1e30)


def _lse(x: Tensor, weight: Tensor, axis: int) -> Tensor:
    out: Tensor = _LogSumExp.apply(x, weight, axis)  # type: ignore[no-untyped-call]
    return out


class _LogSumExp(torch.autograd.Function):
    """log Σ w eˣ along an axis. A weight of 0 leaves its cell out; where all are left out, −1e30 with no gradient.

    A term e^−80 below the largest is as good as 0: cutting there spares a CPU the slow arithmetic of denormal numbers.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, axis: int) -> Tensor:
        top = x.amax(axis, keepdim=True)
        share = (x - top).clamp_min_(-80.0).exp_().mul_(weight)
        total = share.sum(axis, keepdim=True)
        total = torch.where(total > 0, total, 1)
        ctx.save_for_backward(share, total)
        ctx.axis = axis
        return (top + torch.log(total)).squeeze(axis)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(two_way.NOT_TWICE)
        share, total = ctx.saved_tensors
        return share * (upstream.unsqueeze(ctx.axis) / total), None, None
