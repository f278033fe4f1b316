"""Average precision of rows in six Triton kernels: the counting of `rows.py`, without tables or copies of the scores.

Written for a matrix on a GPU, where launching many small operations costs more than their work. A score becomes an
integer of the same order; the positives of a row are sorted in blocks, and each finds its place by searching in all.
"""

from __future__ import annotations

import numpy as np
import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from steelyard.metrics.rows import LEAST_ROOM, Array

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""The dtypes of scores that a 32-bit integer can stand for."""

MOST_IN_BLOCK = 1024
"""Positives that are sorted together."""

_TILE_ROWS, _TILE_CELLS = 16, 64


def average_precision_rows(scores: Tensor, targets: Tensor) -> Tensor | None:
    """Return the average precision (R,) of each row of `scores` (R, M), float64, NaN without a known positive.

    `targets` (R, M): 1, 0, −1 or soft. None if some value is not allowed, for the caller to find which. Any strides;
    dtypes of `DTYPES`.
    """
    n_rows = len(scores)
    t = targets.view(torch.uint8) if targets.dtype == torch.bool else targets
    if scores.numel() == 0:
        return torch.full((n_rows,), torch.nan, dtype=torch.float64, device=scores.device)
    tally = torch.zeros(n_rows + 1, dtype=torch.int32, device=scores.device)  # bad values, then positives by row
    _count[_grid(scores)](scores, t, tally, *_layout(scores, t))
    counts = tally.cpu().numpy()
    if counts[0]:
        return None
    out = torch.empty(n_rows, dtype=torch.float64, device=scores.device)
    ends = np.cumsum(counts, dtype=np.int64)
    room = max(2 * scores.numel() * scores.itemsize, LEAST_ROOM) // 64  # a positive takes at most about 64 bytes
    first = 0
    while first < n_rows:
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + room, side="right")) - 1)
        rows = slice(first, last)
        _block(scores[rows], t[rows], ends[first : last + 1] - ends[first], out[rows])
        first = last
    return out


def _block(scores: Tensor, targets: Tensor, ends: Array, out: Tensor) -> None:
    """Fill `out` for rows whose positives are to lie at ends[r] to ends[r + 1]."""
    n_rows, device = len(scores), scores.device
    total, longest = int(ends[-1]), int(np.diff(ends).max())
    if total == 0:
        out.fill_(torch.nan)
        return
    grid, layout = _grid(scores), _layout(scores, targets)
    start = torch.from_numpy(ends.astype(np.int32)).to(device)
    work = torch.zeros(n_rows + total + n_rows, dtype=torch.int32, device=device)
    cursor, between = work[:n_rows], work[n_rows:]
    found, ordered, smaller = torch.empty(3, total, dtype=torch.int32, device=device)
    block = min(MOST_IN_BLOCK, max(16, triton.next_power_of_2(longest)))
    blocks, warps = (n_rows, triton.cdiv(longest, block)), max(1, block // 256)
    _gather[grid](scores, targets, start, cursor, found, *layout)
    _sort[blocks](start, found, block, num_warps=warps)
    _merge[blocks](start, found, ordered, smaller, block, num_warps=warps)
    _bucket[grid](scores, targets, start, ordered, between, *layout)
    _finish[(n_rows,)](start, smaller, between, out, 4 * block, num_warps=4 * warps)


def _grid(scores: Tensor) -> tuple[int]:
    return (triton.cdiv(scores.shape[1], _TILE_CELLS) * triton.cdiv(scores.shape[0], _TILE_ROWS),)


def _layout(scores: Tensor, targets: Tensor) -> tuple[int, ...]:
    return (*scores.shape, *scores.stride(), *targets.stride(), _TILE_ROWS, _TILE_CELLS)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _tile(n_rows, width, ROWS: tl.constexpr, CELLS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Row numbers (ROWS,) and (1, ROWS), cell numbers (CELLS, 1), and which of the tile are inside."""
    across = tl.cdiv(width, CELLS)
    r = (tl.program_id(0) // across) * ROWS + tl.arange(0, ROWS)
    cell = (tl.program_id(0) % across) * CELLS + tl.arange(0, CELLS)[:, None]
    row = r[None, :].to(tl.int64)
    return r, row, cell.to(tl.int64), (row < n_rows) & (cell < width)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _ordered(score):  # type: ignore[no-untyped-def]
    """The bits of a float32 as an integer of the same order; −0 is 0."""
    bits = tl.where(score == 0, 0.0, score).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _count(  # type: ignore[no-untyped-def]
    scores, targets, tally, n_rows, width, s_row, s_cell, t_row, t_cell, ROWS: tl.constexpr, CELLS: tl.constexpr
):
    """Count in the first tally the values that are not allowed, in the others the positives of each row."""
    r, row, cell, inside = _tile(n_rows, width, ROWS, CELLS)
    s = tl.load(scores + row * s_row + cell * s_cell, mask=inside, other=0.0).to(tl.float32)
    t = tl.load(targets + row * t_row + cell * t_cell, mask=inside, other=0).to(tl.float64)
    allowed = (t == -1) | ((t >= 0) & (t <= 1) & (s == s))
    n = tl.sum((t >= 0.5).to(tl.int32), axis=0)
    tl.atomic_add(tally + 1 + r, n, mask=n > 0)
    bad = tl.sum(tl.sum(1 - allowed.to(tl.int32), axis=1), axis=0)
    tl.atomic_add(tally, bad, mask=bad > 0)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _gather(  # type: ignore[no-untyped-def]
    scores, targets, start, cursor, found, n_rows, width, s_row, s_cell, t_row, t_cell,
    ROWS: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """Write the positives, row after row, in any order within a row."""
    r, row, cell, inside = _tile(n_rows, width, ROWS, CELLS)
    t = tl.load(targets + row * t_row + cell * t_cell, mask=inside, other=0).to(tl.float64)
    hit = t >= 0.5
    s = tl.load(scores + row * s_row + cell * s_cell, mask=hit, other=0.0).to(tl.float32)
    one = hit.to(tl.int32)
    n = tl.sum(one, axis=0)
    place = tl.load(start + r, mask=r < n_rows, other=0) + tl.atomic_add(cursor + r, n, mask=n > 0)
    tl.store(found + place[None, :] + tl.cumsum(one, axis=0) - 1, _ordered(s), mask=hit)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _sort(start, found, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sort each block of a row's positives."""
    end = tl.load(start + tl.program_id(0) + 1)
    begin = tl.load(start + tl.program_id(0)) + tl.program_id(1) * BLOCK
    if begin < end:
        at = begin + tl.arange(0, BLOCK)
        tl.store(found + at, tl.sort(tl.load(found + at, mask=at < end, other=0x7FFFFFFF)), mask=at < end)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _below(values, bound, low, high, most):  # type: ignore[no-untyped-def]
    """The first place in sorted values[low:high], of at most `most` places, whose value is not below the bound."""
    while most > 0:
        open_ = low < high
        middle = (low + high) >> 1
        up = open_ & (tl.load(values + middle, mask=open_, other=0) < bound)
        low = tl.where(up, middle + 1, low)
        high = tl.where(open_ & ~up, middle, high)
        most = most >> 1
    return low


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _merge(start, found, ordered, smaller, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Put each positive of a row where it belongs among all, and note how many are smaller.

    An equal one comes first if its block does.
    """
    first = tl.load(start + tl.program_id(0))
    end = tl.load(start + tl.program_id(0) + 1)
    mine_from = first + tl.program_id(1) * BLOCK
    if mine_from < end:
        lane = tl.arange(0, BLOCK)
        inside = mine_from + lane < end
        mine = tl.load(found + mine_from + lane, mask=inside, other=0)
        place = first + lane
        less = tl.zeros((BLOCK,), dtype=tl.int32)
        most = tl.minimum(end - first, BLOCK)
        begin = first
        while begin < end:
            low = tl.zeros((BLOCK,), dtype=tl.int32) + begin
            high = tl.where(inside, tl.minimum(begin + BLOCK, end), begin)
            below = _below(found, mine, low, high, most) - begin
            less += below
            if begin < mine_from:
                place += _below(found, mine + 1, low, high, most) - begin
            elif begin > mine_from:
                place += below
            begin += BLOCK
        tl.store(ordered + place, mine, mask=inside)
        tl.store(smaller + place, less, mask=inside)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _bucket(  # type: ignore[no-untyped-def]
    scores, targets, start, ordered, between, n_rows, width, s_row, s_cell, t_row, t_cell,
    ROWS: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """For each known cell count up `between` at the number of the row's positives that are not above it."""
    _, row, cell, inside = _tile(n_rows, width, ROWS, CELLS)
    t = tl.load(targets + row * t_row + cell * t_cell, mask=inside, other=0).to(tl.float64)
    s = _ordered(tl.load(scores + row * s_row + cell * s_cell, mask=inside, other=0.0).to(tl.float32))
    first = tl.load(start + row, mask=row < n_rows, other=0)
    end = tl.load(start + row + 1, mask=row < n_rows, other=0)
    low = tl.broadcast_to(first, (CELLS, ROWS))
    high = tl.broadcast_to(end, (CELLS, ROWS))
    most = tl.max(tl.max(end - first, axis=1), axis=0)
    low = _below(ordered, s + 1, low, high, most)
    tl.atomic_add(between + row + low, 1, mask=inside & (t != -1) & (low > first))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _finish(start, smaller, between, out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Average (positives at or above) / (cells at or above) over the positives of one row."""
    first = tl.load(start + tl.program_id(0))
    end = tl.load(start + tl.program_id(0) + 1)
    between += tl.program_id(0)  # a row has one place more than it has positives
    total = tl.zeros((BLOCK,), dtype=tl.float64)
    above = tl.zeros((), dtype=tl.int32)  # cells at or above every positive looked at so far, from the highest down
    stop = end
    while stop > first:
        at = stop - BLOCK + tl.arange(0, BLOCK)
        inside = at >= first
        n = tl.load(between + at + 1, mask=inside, other=0)
        cells = tl.where(inside, above + tl.cumsum(n, axis=0, reverse=True), 1)
        hits = end - first - tl.load(smaller + at, mask=inside, other=0)
        total += tl.where(inside, hits.to(tl.float64) / cells.to(tl.float64), 0.0)
        above += tl.sum(n, axis=0)
        stop -= BLOCK
    tl.store(out + tl.program_id(0), tl.sum(total, axis=0) / (end - first).to(tl.float64))
