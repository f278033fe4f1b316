"""Label-pair regularisation (LPR)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steelyard.balance.checks import check_range
from steelyard.kernels.choice import fuses
from steelyard.labels.targets import ArrayLike, as_targets

_DENSE = 1024  # labels up to which a device goes through all pairs instead of waiting for where the positives are


class LabelPair(nn.Module):
    """Every positive label of an item should be likelier than every negative one.

    Formula:
        ℓ = w mean_i 2/(L (L − 1)) Σ_{t positive, u negative} softplus(logit η_u − logit η_t)

    w is `weight`. A soft pair counts y_t (1−y_u); unknown labels form no pair. Needs O(B·L) memory, no L×L matrix: it
    walks the positives. An `Objective` feeds it the log-odds of its loss's link.

    Args:
        weight: λ, silent in the paper (1; tune on validation).
        link: False to be fed the logits z instead, as Table 4's focal and ASY rows seem to be.

    Examples:
        >>> penalty, targets = sy.balance.LabelPair(), torch.tensor([[1, 0, -1]])
        >>> penalty(torch.tensor([[3.0, -3.0, 9.0]]), targets)  # in the right order; the unknown label does not count
        tensor(0.0008)
        >>> penalty(torch.tensor([[-3.0, 3.0, 9.0]]), targets)
        tensor(2.0008)
        >>> objective = sy.Objective(sy.losses.SPA(), regularizers=[penalty])
        >>> sorted(objective(torch.zeros(1, 3), targets).parts)
        ['label_pair', 'loss']
    """

    def __init__(self, weight: float = 1.0, link: bool = True) -> None:
        super().__init__()
        check_range("at least 0", weight=weight)
        self.weight, self.link = float(weight), bool(link)

    def forward(self, log_odds: Tensor, targets: ArrayLike) -> Tensor:
        """Return the penalty of a batch, a scalar, given log-odds (B, L) and targets (B, L).

        Args:
            log_odds: of η, or logits with `link=False`, (B, L).
            targets: (B, L); unknown labels form no pair.
        """
        if not isinstance(log_odds, Tensor) or not log_odds.is_floating_point() or log_odds.ndim != 2:
            tensor = isinstance(log_odds, Tensor)
            kind = f"{log_odds.dtype} of shape {tuple(log_odds.shape)}" if tensor else type(log_odds).__name__
            raise ValueError(f"log_odds is {kind}: give a floating-point tensor (B, L)")
        t = as_targets(targets, log_odds).values
        n_items, n_labels = log_odds.shape
        if n_labels < 2 or n_items == 0:
            return (log_odds.to(_wide(log_odds)) * 0).nan_to_num().sum()
        scale = self.weight * 2 / (n_labels * (n_labels - 1)) / n_items
        out: Tensor = _PairSum.apply(log_odds, t)  # type: ignore[no-untyped-call]
        return out * scale


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class _PairSum(torch.autograd.Function):
    """Σ y_t (1−y_t') softplus(s_t' − s_t) over the pairs of each row, its gradient computed on the way."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, targets: Tensor) -> Tensor:
        dtype = _wide(scores)
        ctx.dtype = scores.dtype
        kernel = _kernel(scores)
        if kernel is not None:
            total, grad = kernel(scores, targets)
            ctx.save_for_backward(grad)
            return total
        is_known = targets != -1
        s = torch.where(is_known, scores.to(dtype), 0)
        positive = targets.to(dtype).clamp_min(0)
        negative = is_known.to(dtype) - positive
        n_labels = s.shape[1]
        if s.device.type != "cpu" and n_labels <= _DENSE:
            total, grad = _all_pairs(s, positive, negative)
            ctx.save_for_backward(grad)
            return total
        rows, columns = (positive > 0).nonzero(as_tuple=True)
        grad, total = torch.zeros_like(s), s.new_zeros(())
        step = max(1, (1 << 18) // n_labels)  # positives at a time, so that a block stays small
        for start in range(0, len(rows), step):
            r, c = rows[start : start + step], columns[start : start + step]
            gap = s[r] - s[r, c].unsqueeze(1)
            pull = negative[r] * positive[r, c].unsqueeze(1)
            pull[torch.arange(len(r), device=r.device), c] = 0  # a soft label is no pair with itself
            total = total - (pull * F.logsigmoid(-gap)).sum()
            if ctx.needs_input_grad[0]:
                pull = pull * torch.sigmoid(gap)
                grad.index_add_(0, r, pull)
                grad.index_put_((r, c), -pull.sum(dim=1), accumulate=True)
        ctx.save_for_backward(grad)
        return total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError("LabelPair has no second derivatives: call backward without create_graph")
        (grad,) = ctx.saved_tensors
        return (grad * upstream).to(ctx.dtype), None


def _kernel(scores: Tensor) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    """Return the fused kernel, or None where it does not take such scores or Triton is missing."""
    if scores.dtype == torch.float64 or not fuses(scores.device):
        return None
    from steelyard.kernels import label_pairs

    return label_pairs.pair_sum


def _all_pairs(s: Tensor, positive: Tensor, negative: Tensor, cells: int = 1 << 24) -> tuple[Tensor, Tensor]:
    """Return the sum and its gradient over all pairs, positive or not: a device never waits for a value."""
    n_items, n_labels = s.shape
    grad, total = torch.zeros_like(s), s.new_zeros(())
    step = max(1, cells // (n_items * n_labels))  # labels at a time
    label = torch.arange(n_labels, device=s.device)
    for start in range(0, n_labels, step):
        some = slice(start, start + step)
        gap = s.unsqueeze(1) - s[:, some].unsqueeze(2)
        pull = negative.unsqueeze(1) * positive[:, some].unsqueeze(2)
        pull = torch.where(label[some, None] == label, 0, pull)  # a soft label is no pair with itself
        total = total - (pull * F.logsigmoid(-gap)).sum()
        pull = pull * torch.sigmoid(gap)
        grad += pull.sum(dim=1)
        grad[:, some] -= pull.sum(dim=2)
    return total, grad
