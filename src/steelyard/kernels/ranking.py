"""Average precision of rows in five Triton kernels: the counting of `metrics.ranking`, no tables, no copies of scores.

Written for a matrix on a GPU, where launching many small operations, and waiting for the device between them, costs
more than their work: nothing is read back before the last kernel. A score becomes an integer of the same order; the
positives of a row are sorted in blocks, each finds its place by searching in all blocks at once, and every cell is
dropped between two of them.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""The dtypes of scores that a 32-bit integer can stand for."""

LEAST_ROOM = 1 << 24
"""Bytes of workspace that are always allowed."""

MOST_IN_BLOCK = 1024
"""Positives that are sorted together."""

_TILE_ROWS, _TILE_CELLS = 8, 128
_LANES, _BLOCKS_AT_ONCE = 32, 32
_LOWEST = 64
_PROGRAMS = 8192


def average_precision_rows(scores: Tensor, targets: Tensor, on_cpu: bool = False) -> Tensor | None:
    """Return the average precision (R,) of each row of `scores` (R, M), float64, NaN without a known positive.

    `targets` (R, M): 1, 0, −1 or soft. None if some value is not allowed, for the caller to find which. Any strides;
    dtypes of `DTYPES`. The result is on the device of `scores`, or, for the price of the one copy that the check of
    the values costs anyway, on the CPU. The workspace is twice the scores at most, or `LEAST_ROOM`.
    """
    n_rows, width = scores.shape
    device = scores.device
    if scores.numel() == 0:
        return torch.full((n_rows,), torch.nan, dtype=torch.float64, device="cpu" if on_cpu else device)
    t = targets.view(torch.uint8) if targets.dtype == torch.bool else targets
    tally = torch.zeros(n_rows + 1, dtype=torch.int32, device=device)  # positives by row, then values not allowed
    out = torch.empty(n_rows + 1, dtype=torch.float64, device=device)  # average precisions, then the same
    step = max(1, max(2 * scores.numel() * scores.itemsize, LEAST_ROOM) // (8 * width))
    work = torch.empty(2, min(step, n_rows) * width, dtype=torch.int32, device=device)
    if step >= n_rows:
        _fill(scores, t, tally, work, out)
    else:
        for first in range(0, n_rows, step):
            rows = slice(first, first + step)
            _fill(scores[rows], t[rows], tally[first:], work, out[first:])
    if on_cpu:
        out = out.cpu()
    return None if out[n_rows].item() else out[:n_rows]


def _fill(scores: Tensor, targets: Tensor, tally: Tensor, work: Tensor, out: Tensor) -> None:
    """Fill the beginning of `out` for some rows; at the end of `tally` and `out` values not allowed are counted."""
    n_rows, width = scores.shape
    positives, ordered = work
    bad = len(tally) - 1
    block = min(MOST_IN_BLOCK, max(16, triton.next_power_of_2(width)))
    n_blocks, lanes = triton.cdiv(width, block), min(_LANES, block)
    tiles = (triton.cdiv(width, _TILE_CELLS) * triton.cdiv(n_rows, _TILE_ROWS),)
    layout = (n_rows, width, *scores.stride(), *targets.stride(), _TILE_ROWS, _TILE_CELLS)
    _gather[tiles](scores, targets, tally, positives, bad, *layout)
    across = _across(n_rows, n_blocks)
    _sort[(n_rows * across,)](tally, positives, width, across, block, num_warps=max(1, block // 128))
    across = _across(n_rows, triton.cdiv(width, lanes))
    columns = min(_BLOCKS_AT_ONCE, triton.next_power_of_2(n_blocks))
    _merge[(n_rows * across,)](tally, positives, ordered, width, across, block, lanes, columns)
    between = positives.zero_()
    _bucket[tiles](scores, targets, tally, ordered, between, *layout, _LOWEST)
    _finish[(n_rows,)](tally, ordered, between, out, width, bad, 4 * block, num_warps=max(1, block // 64))


def _across(n_rows: int, pieces: int) -> int:
    """Return the number of programs for each row: one per piece, unless these are very many."""
    return max(1, min(pieces, _PROGRAMS // n_rows))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _tile(n_rows, width, ROWS: tl.constexpr, CELLS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Row numbers (ROWS,) and (ROWS, 1), cell numbers (1, CELLS), and which of the tile are inside."""
    across = tl.cdiv(width, CELLS)
    r = (tl.program_id(0) // across) * ROWS + tl.arange(0, ROWS)
    cell = (tl.program_id(0) % across) * CELLS + tl.arange(0, CELLS)[None, :]
    row = r[:, None].to(tl.int64)
    return r, row, cell.to(tl.int64), (row < n_rows) & (cell < width)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _ordered(score):  # type: ignore[no-untyped-def]
    """The bits of a float32 as an integer of the same order; −0 is 0."""
    bits = tl.where(score == 0, 0.0, score).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _gather(  # type: ignore[no-untyped-def]
    scores, targets, tally, positives, bad, n_rows, width, s_row, s_cell, t_row, t_cell,
    ROWS: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """Write the positives of each row at its beginning, in any order, and count them and the values not allowed."""
    r, row, cell, inside = _tile(n_rows, width, ROWS, CELLS)
    s = tl.load(scores + row * s_row + cell * s_cell, mask=inside, other=0.0).to(tl.float32)
    t = tl.load(targets + row * t_row + cell * t_cell, mask=inside, other=0).to(tl.float64)
    allowed = (t == -1) | ((t >= 0) & (t <= 1) & (s == s))
    wrong = tl.sum(tl.sum(1 - allowed.to(tl.int32), axis=1), axis=0)
    tl.atomic_add(tally + bad, wrong, mask=wrong > 0)
    hit = t >= 0.5
    one = hit.to(tl.int32)
    n = tl.sum(one, axis=1)
    slot = tl.atomic_add(tally + r, n, mask=n > 0)
    tl.store(positives + row * width + slot[:, None] + tl.cumsum(one, axis=1) - 1, _ordered(s), mask=hit)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _sort(tally, positives, width, across, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sort each block of a row's positives."""
    row = tl.program_id(0) // across
    n = tl.load(tally + row)
    positives += row.to(tl.int64) * width
    begin = (tl.program_id(0) % across) * BLOCK
    while begin < n:
        cells = begin + tl.arange(0, BLOCK)
        tl.store(
            positives + cells, tl.sort(tl.load(positives + cells, mask=cells < n, other=0x7FFFFFFF)), mask=cells < n
        )
        begin += across * BLOCK


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
def _merge(  # type: ignore[no-untyped-def]
    tally, positives, ordered, width, across, BLOCK: tl.constexpr, LANES: tl.constexpr, COLUMNS: tl.constexpr
):
    """Put each positive of a row where it belongs among all: behind the smaller ones of every block.

    An equal one comes first if its block does.
    """
    row = tl.program_id(0) // across
    n = tl.load(tally + row)
    positives += row.to(tl.int64) * width
    ordered += row.to(tl.int64) * width
    begin = (tl.program_id(0) % across) * LANES
    while begin < n:
        cells = begin + tl.arange(0, LANES)
        mine = tl.load(positives + cells, mask=cells < n, other=0)
        own = begin // BLOCK
        rank = cells - own * BLOCK
        group = tl.where(n > BLOCK, 0, n)  # a block alone is all there is
        while group < n:
            block = group // BLOCK + tl.arange(0, COLUMNS)[None, :]
            bound = mine[:, None] + tl.where(block < own, 1, 0)
            first = tl.broadcast_to(block * BLOCK, (LANES, COLUMNS))
            end = tl.minimum(first + tl.where(block == own, 0, BLOCK), n)
            rank += tl.sum(_below(positives, bound, first, end, tl.minimum(n, BLOCK)) - first, axis=1)
            group += COLUMNS * BLOCK
        tl.store(ordered + rank, mine, mask=cells < n)
        begin += across * LANES


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _bucket(  # type: ignore[no-untyped-def]
    scores, targets, tally, ordered, between, n_rows, width, s_row, s_cell, t_row, t_cell,
    ROWS: tl.constexpr, CELLS: tl.constexpr, LOWEST: tl.constexpr,
):  # fmt: skip
    """For each known label count up `between` at the last of the row's positives that are not above it.

    Most cells lie among the lowest positives. They are told by one comparison, found in few steps, and counted within
    the tile, since additions to memory are what takes the time.
    """
    r, row, cell, inside = _tile(n_rows, width, ROWS, CELLS)
    t = tl.load(targets + row * t_row + cell * t_cell, mask=inside, other=0)
    s = _ordered(tl.load(scores + row * s_row + cell * s_cell, mask=inside, other=0.0).to(tl.float32))
    n = tl.load(tally + r, mask=r < n_rows, other=0)[:, None]
    values = ordered + row * width
    pivot = tl.load(values + LOWEST, mask=n > LOWEST, other=0x7FFFFFFF)
    among_lowest = s < pivot
    low = tl.where(among_lowest, 0, LOWEST + 1)
    high = tl.where(among_lowest, tl.minimum(n, LOWEST), n)
    low = _below(values, s + 1, low, high, tl.max(tl.max(n, axis=1), axis=0))
    counted = inside & (t != -1) & (low > 0)
    tl.atomic_add(between + row * width + low - 1, 1, mask=counted & (low > LOWEST), sem="relaxed")
    local = tl.arange(0, ROWS)[:, None] * LOWEST + low - 1
    few = tl.ravel(counted & (low <= LOWEST))
    sums = tl.histogram(tl.ravel(local), ROWS * LOWEST, mask=few)
    bin_ = tl.arange(0, ROWS * LOWEST)
    first = (tl.program_id(0) // tl.cdiv(width, CELLS) * ROWS).to(tl.int64)
    begin = (first + bin_ // LOWEST) * width + bin_ % LOWEST
    tl.atomic_add(between + begin, sums, mask=sums > 0, sem="relaxed")


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _run_start(values, position, inside):  # type: ignore[no-untyped-def]
    """The first place of the run of equal values that `at` lies in, among sorted values."""
    mine = tl.load(values + position, mask=inside, other=0)
    step = 1
    back = inside & (position >= step)
    while tl.max((back & (tl.load(values + position - step, mask=back, other=0) == mine)).to(tl.int32), axis=0) > 0:
        step *= 2
        back = inside & (position >= step)
    start = position
    while step > 0:
        back = inside & (start >= step)
        start = tl.where(back & (tl.load(values + start - step, mask=back, other=0) == mine), start - step, start)
        step = step >> 1
    return start


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _finish(tally, ordered, between, out, width, bad, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Average (positives at or above) / (cells at or above) over the positives of one row; pass the bad ones on."""
    row = tl.program_id(0).to(tl.int64)
    if row == 0:
        tl.store(out + bad, tl.load(tally + bad).to(tl.float64))
    n = tl.load(tally + row)
    ordered += row * width
    between += row * width
    total = tl.zeros((BLOCK,), dtype=tl.float64)
    above = tl.zeros((), dtype=tl.int32)  # cells at or above every positive looked at so far, from the highest down
    stop = n
    while stop > 0:
        last = stop - BLOCK + tl.arange(0, BLOCK)
        inside = last >= 0
        cells = tl.load(between + last, mask=inside, other=0)
        at_or_above = tl.where(inside, above + tl.cumsum(cells, axis=0, reverse=True), 1)
        hits = n - _run_start(ordered, last, inside)
        total += tl.where(inside, hits.to(tl.float64) / at_or_above.to(tl.float64), 0.0)
        above += tl.sum(cells, axis=0)
        stop -= BLOCK
    tl.store(out + row, tl.sum(total, axis=0) / n.to(tl.float64))
