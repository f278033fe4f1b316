"""Label-pair regularisation on a GPU: all pairs of an item in one program, value and gradient together (Triton)."""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

MOST_LABELS = 4096


@triton.jit
def _pairs(scores, targets, values, slopes, L, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * L
    columns = tl.arange(0, WIDTH)
    inside = columns < L
    t = tl.load(targets + row + columns, mask=inside, other=-1).to(tl.float32)
    is_known = t != -1
    s = tl.where(is_known, tl.load(scores + row + columns, mask=inside, other=0.0).to(tl.float32), 0.0)
    positive = tl.where(t < 0, 0.0, t)
    negative = tl.where(is_known, 1 - positive, 0.0)
    value = tl.zeros([WIDTH], tl.float32)
    slope = tl.zeros([WIDTH], tl.float32)
    for label in range(L):
        here = columns == label
        weight = tl.sum(tl.where(here, positive, 0.0), 0)
        if weight > 0:
            gap = s - tl.sum(tl.where(here, s, 0.0), 0)
            pull = tl.where(here, 0.0, negative * weight)  # a soft label is no pair with itself
            small = tl.exp(-tl.abs(gap))
            value += pull * (tl.maximum(gap, 0.0) + libdevice.log1p(small))
            pull = pull * tl.where(gap >= 0, 1.0, small) / (1 + small)
            slope += tl.where(here, -tl.sum(pull, 0), pull)
    tl.store(values + tl.program_id(0), tl.sum(value, 0))
    tl.store(slopes + row + columns, slope, mask=inside)


def pair_sum(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ y_t (1−y_t') softplus(s_t' − s_t) over the pairs of each row of (B, L), and its gradient, float32."""
    n_items, n_labels = scores.shape
    values = torch.empty(n_items, device=scores.device)
    slopes = torch.empty(n_items, n_labels, device=scores.device)
    width = max(16, triton.next_power_of_2(n_labels))
    given = scores.contiguous(), targets.to(torch.int8) if targets.dtype == torch.bool else targets.contiguous()
    _pairs[(n_items,)](*given, values, slopes, n_labels, WIDTH=width, num_warps=1 if width <= 256 else 4)
    return values.sum(), slopes
