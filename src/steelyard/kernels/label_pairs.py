"""Label-pair regularisation on a GPU: all pairs of an item in one program, value and gradient together (Triton).

A program lists the positives of its row, then meets them, a few at a time, with all labels of the row: time is
O(positives · L) per row, memory O(L). What a positive and a label of the row gain is computed once.
"""

# mypy: ignore-errors

from __future__ import annotations

from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

from steelyard.kernels.arithmetic import log1p

_WIDEST, _AT_ONCE = 2048, 4  # labels and positives that meet


@triton.jit
def _pairs(
    scores, targets, values, slopes, hits, L, s_row, s_col, t_row, t_col, WIDTH: tl.constexpr, SOME: tl.constexpr
):
    """Value and slopes of one row of L labels: SOME of its positives, which `found` has room for, meet WIDTH labels."""
    row = tl.program_id(0).to(tl.int64)
    scores, targets, slopes, hits = scores + row * s_row, targets + row * t_row, slopes + row * L, hits + row * L
    lane = tl.arange(0, WIDTH)
    n = 0
    for first in range(0, L, WIDTH):
        columns = first + lane
        t = tl.load(targets + columns.to(tl.int64) * t_col, mask=columns < L, other=0).to(tl.float32)
        hit = (t > 0).to(tl.int32)
        tl.store(hits + n + tl.cumsum(hit, 0) - 1, columns, mask=t > 0)
        n += tl.sum(hit, 0)
    tl.debug_barrier()
    value = tl.zeros([WIDTH], tl.float32)
    for first in range(0, L, WIDTH):  # a row without positives has no pair
        columns = first + lane
        if n == 0:
            tl.store(slopes + columns, tl.zeros([WIDTH], tl.float32), mask=columns < L)
    some = tl.arange(0, SOME)
    for start in range(0, n, SOME):
        here = start + some < n
        label = tl.load(hits + start + some, mask=here, other=-1)
        column = tl.where(here, label, 0).to(tl.int64)
        top = tl.load(scores + column * s_col).to(tl.float32)[:, None]
        degree = tl.where(here, tl.load(targets + column * t_col).to(tl.float32), 0.0)[:, None]
        pulled = tl.zeros([SOME], tl.float32)
        for first in range(0, L, WIDTH):
            columns = first + lane
            inside = columns < L
            wide = columns.to(tl.int64)
            t = tl.load(targets + wide * t_col, mask=inside, other=0).to(tl.float32)
            is_known = inside & (t != -1)
            s = tl.where(is_known, tl.load(scores + wide * s_col, mask=inside, other=0.0).to(tl.float32), 0.0)
            negative = tl.where(is_known, 1 - tl.maximum(t, 0.0), 0.0)
            pull = tl.where(label[:, None] == columns[None, :], 0.0, degree * negative[None, :])  # no pair with itself
            gap = s[None, :] - top
            small = tl.exp(-tl.abs(gap))
            value += tl.sum(tl.where(pull != 0, pull * (tl.maximum(gap, 0.0) + log1p(small)), 0.0), 0)
            pull = tl.where(pull != 0, pull * tl.where(gap >= 0, 1.0, small) / (1 + small), 0.0)
            pulled += tl.sum(pull, 1)
            before = tl.load(slopes + columns, mask=inside & (start > 0), other=0.0)
            tl.store(slopes + columns, before + tl.sum(pull, 0), mask=inside)
        tl.debug_barrier()
        tl.store(slopes + column, tl.load(slopes + column, mask=here, other=0.0) - pulled, mask=here)
        tl.debug_barrier()
    tl.store(values + row, tl.sum(value, 0))


def pair_sum(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ y_t (1−y_t') softplus(s_t' − s_t) over the pairs of each row of (B, L), and its gradient, float32."""
    n_items, n_labels = scores.shape
    device = scores.device
    values = torch.empty(n_items, dtype=torch.float32, device=device)
    slopes = torch.empty(n_items, n_labels, dtype=torch.float32, device=device)
    positives = torch.empty(n_items, n_labels, dtype=torch.int32, device=device)
    t = targets.view(torch.uint8) if targets.dtype == torch.bool else targets
    width = min(_WIDEST, max(16, triton.next_power_of_2(n_labels)))
    with nullcontext() if device.type == "cpu" else torch.cuda.device(device):
        _pairs[(n_items,)](
            scores, t, values, slopes, positives, n_labels, *scores.stride(), *t.stride(),
            WIDTH=width, SOME=_AT_ONCE, num_warps=1 if width <= 256 else 4 if width <= 1024 else 8,
        )  # fmt: skip
    return values.sum(), slopes
