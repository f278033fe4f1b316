"""PLM's histogram of training outputs on a GPU: one pass over logits and targets, by atomic additions (Triton)."""

# mypy: ignore-errors

from __future__ import annotations

from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS, _COLUMNS = 16, 128  # of a tile
_PROGRAMS = 1024


@triton.jit
def _outputs(
    logits, targets, counts, n, L, each, z_row, z_col, t_row, t_col, BINS: tl.constexpr, R: tl.constexpr,
    C: tl.constexpr,
):  # fmt: skip
    """Add to `counts` (2, BINS, L). The bin of sure negatives, where most labels are, is kept in registers."""
    columns = tl.program_id(0) * C + tl.arange(0, C)
    inside = columns < L
    wide = columns.to(tl.int64)
    sure = tl.zeros([R, C], tl.int32)
    start = tl.program_id(1) * each
    for first in range(start, tl.minimum(start + each, n), R):
        rows = (first + tl.arange(0, R)).to(tl.int64)
        there = (rows < n)[:, None] & inside[None, :]
        t = tl.load(targets + rows[:, None] * t_row + (wide * t_col)[None, :], mask=there, other=0).to(tl.float32)
        z = tl.load(logits + rows[:, None] * z_row + (wide * z_col)[None, :], mask=there, other=0.0).to(tl.float32)
        e = tl.exp(-tl.abs(z))
        p = tl.where(z >= 0, 1.0, e) / (1 + e)
        spot = tl.minimum((p.to(tl.float64) * BINS).to(tl.int32), BINS - 1) + tl.where(t >= 0.5, 0, BINS)
        is_known = there & (t != -1)
        sure += (is_known & (spot == BINS)).to(tl.int32)
        address = counts + spot * L + columns[None, :]
        tl.atomic_add(address, tl.full([R, C], 1, tl.int32), mask=is_known & (spot != BINS), sem="relaxed")
    of_sure = tl.sum(sure, 0)
    tl.atomic_add(counts + BINS * L + columns, of_sure, mask=inside & (of_sure > 0), sem="relaxed")


def add_outputs(histogram: Tensor, logits: Tensor, targets: Tensor) -> None:
    """Count σ(z) of every known label in `histogram` (2, L, bins), int64: positives (y ≥ ½) first, then negatives."""
    n_rows, n_labels = logits.shape
    if not n_rows:
        return
    t = targets.view(torch.uint8) if targets.dtype == torch.bool else targets
    bins, width = histogram.shape[2], min(_COLUMNS, max(16, triton.next_power_of_2(n_labels)))
    height, blocks = _ROWS * _COLUMNS // width, triton.cdiv(n_labels, width)
    chunks = min(triton.cdiv(n_rows, height), max(1, _PROGRAMS // blocks))
    each = triton.cdiv(triton.cdiv(n_rows, chunks), height) * height
    counts = torch.zeros(2, bins, n_labels, dtype=torch.int32, device=logits.device)
    with nullcontext() if logits.device.type == "cpu" else torch.cuda.device(logits.device):
        _outputs[(blocks, triton.cdiv(n_rows, each))](
            logits, t, counts, n_rows, n_labels, each, *logits.stride(), *t.stride(),
            BINS=bins, R=height, C=width, num_warps=8,
        )  # fmt: skip
    histogram += counts.transpose(1, 2)
