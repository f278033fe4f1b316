"""The two-way loss in two passes over logits and targets (Triton): log-sum-exps along both axes, then the gradient.

A sum Σ w e^(x/T) is kept as its largest x, `top`, and Σ w e^((x − top)/T), `total`, both float32; an empty one is
(−1e30, 0). Negatives have x = z, positives x = −z. A program goes along R rows, C labels at a time: sums of rows grow
lane by lane and are folded at its end, sums of labels are folded from the R rows of each tile, which a thread has in
its own registers. (That is why no kernel may know that rows begin at aligned addresses: several labels a thread would
spread the rows over warps.) What a program has of a row or a label is a partial sum, kept as (part, 4, rows or labels).
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from steelyard.kernels.arithmetic import exp2, log1p
from steelyard.kernels.programs import is_last, total

LOWEST = tl.constexpr(-1e30)
LOG2_E = tl.constexpr(1.4426950408889634)
ROOM = tl.constexpr(8192)  # that there is for each of the four sums of programs

_UNALIGNED = ("L", "z_row", "t_row", "b_row")


@triton.jit
def _sides(given, rows, columns, inside, z_row, z_col, t_row, t_col, b_row, b_col, CELLS: tl.constexpr):
    """z and coefficients b of a tile's negatives, −z and a of its positives; (−1e30, 0) where a label is on no side."""
    logits, targets, b_given = given
    SOFT: tl.constexpr = targets.dtype.element_ty.is_floating()
    row, column = rows[:, None], columns.to(tl.int64)[None, :]
    z = tl.load(logits + row * z_row + column * z_col, mask=inside, other=0.0).to(tl.float32)
    t = tl.load(targets + row * t_row + column * t_col, mask=inside, other=0)
    if CELLS:
        a = t.to(tl.float32)
        b = tl.load(b_given + row * b_row + column * b_col, mask=inside, other=0.0).to(tl.float32)
    elif SOFT:
        t = t.to(tl.float32)
        a = tl.maximum(t, 0.0)
        b = tl.where(inside & (t != -1), 1 - a, 0.0)
    else:
        a = tl.where(t > 0, 1.0, 0.0)
        b = tl.where(inside & (t == 0), 1.0, 0.0)
    return tl.where(b > 0, z, LOWEST), b, tl.where(a > 0, -z, LOWEST), a


@triton.jit
def _added(top, total_, x, w, per):
    """A sum with w 2^(x · per) added to it, lane by lane, for one exponential."""
    up = x - top
    e = exp2(-tl.abs(up) * per)
    rises = up > 0
    return tl.maximum(top, x), total_ * tl.where(rises, e, 1.0) + w * tl.where(rises, 1.0, e)


@triton.jit
def _folded(x, w, per, AXIS: tl.constexpr):
    """Σ w 2^(x · per) along an axis as (top, total)."""
    top = tl.max(x, AXIS)
    return top, tl.sum(w * exp2((x - tl.expand_dims(top, AXIS)) * per), AXIS)


@triton.jit
def _keep(base, n, lane, inside, a, b, c, d):
    """Store four numbers of each lane of n, one row of n each."""
    tl.store(base + lane, a, mask=inside)
    tl.store(base + n + lane, b, mask=inside)
    tl.store(base + 2 * n + lane, c, mask=inside)
    tl.store(base + 3 * n + lane, d, mask=inside)


@triton.jit
def _kept(base, n, lane, inside):
    """Return what `_keep` stored, an empty sum twice elsewhere; past L1: another program may just have stored it."""
    a = tl.load(base + lane, mask=inside, other=LOWEST, cache_modifier=".cg")
    b = tl.load(base + n + lane, mask=inside, other=0.0, cache_modifier=".cg")
    c = tl.load(base + 2 * n + lane, mask=inside, other=LOWEST, cache_modifier=".cg")
    d = tl.load(base + 3 * n + lane, mask=inside, other=0.0, cache_modifier=".cg")
    return a, b, c, d


@triton.jit
def _settle(partial, stats, n, n_parts, first, t_neg, t_pos, N: tl.constexpr, K: tl.constexpr):
    """Merge the partial sums of N rows or labels, K at a time.

    Store tops and σ(margin)/total of both sides, of which the gradient is made. Return the sum of softplus(margin)
    over those that have a positive, and their number.
    """
    per_neg, per_pos = LOG2_E / t_neg, LOG2_E / t_pos
    lane = first + tl.arange(0, N)
    low_top, high_top = tl.full([K, N], LOWEST, tl.float32), tl.full([K, N], LOWEST, tl.float32)
    low, high = tl.zeros([K, N], tl.float32), tl.zeros([K, N], tl.float32)
    for start in range(0, n_parts, K):
        part = (start + tl.arange(0, K))[:, None]
        inside = (part < n_parts) & (lane < n)[None, :]
        a, b, c, d = _kept(partial + part.to(tl.int64) * 4 * n, n, lane[None, :], inside)
        low_top, low = _added(low_top, low, a, b, per_neg)
        high_top, high = _added(high_top, high, c, d, per_pos)
    low_top, low = _folded(low_top, low, per_neg, 0)
    high_top, high = _folded(high_top, high, per_pos, 0)
    some = high != 0  # NaN too
    low, high = tl.where(low == 0, 1.0, low), tl.where(high == 0, 1.0, high)
    logs = t_neg * tl.log(low.to(tl.float64)) + t_pos * tl.log(high.to(tl.float64))
    margin = low_top.to(tl.float64) + high_top.to(tl.float64) + logs
    e = tl.exp(-tl.abs(margin))
    cost = tl.where(some, tl.maximum(margin, 0.0) + log1p(e), margin * 0)  # NaN stays NaN
    slope = tl.where(some, tl.where(margin >= 0, 1.0, e) / (1 + e), 0.0).to(tl.float32)
    _keep(stats, n, lane, lane < n, low_top, slope / low, high_top, slope / high)
    return tl.sum(cost, 0), tl.sum(some.to(tl.float64), 0)


@triton.jit
def _settle_some(partial, stats, n, L, n_chunks, n_blocks, t_neg, t_pos, begin, step, N: tl.constexpr, K: tl.constexpr):
    """Merge the partial sums of every step-th group of N rows, then of N labels; return costs and numbers of both."""
    cost, n_rows = tl.zeros([], tl.float64), tl.zeros([], tl.float64)
    cost_labels, n_labels = tl.zeros([], tl.float64), tl.zeros([], tl.float64)
    groups = tl.cdiv(n, N)
    for task in range(begin, groups + tl.cdiv(L, N), step):
        of_labels = task >= groups
        more, number = _settle(
            partial + tl.where(of_labels, 4 * tl.cast(n_chunks, tl.int64) * n, 0),
            stats + tl.where(of_labels, 4 * tl.cast(n, tl.int64), 0),
            tl.where(of_labels, L, n), tl.where(of_labels, n_blocks, n_chunks),
            tl.where(of_labels, task - groups, task) * N, t_neg, t_pos, N, K,
        )  # fmt: skip
        cost += tl.where(of_labels, 0.0, more)
        n_rows += tl.where(of_labels, 0.0, number)
        cost_labels += tl.where(of_labels, more, 0.0)
        n_labels += tl.where(of_labels, number, 0.0)
    return cost, n_rows, cost_labels, n_labels


@triton.jit
def _finish(out, shares, cost, n_rows, cost_labels, n_labels):
    """Store the loss, and in `shares` one over the numbers of rows and of labels that have a positive."""
    row, label = 1 / tl.maximum(n_rows, 1.0), 1 / tl.maximum(n_labels, 1.0)
    tl.store(out, (cost * row + cost_labels * label).to(tl.float32))
    tl.store(shares, row.to(tl.float32))
    tl.store(shares + 1, label.to(tl.float32))


@triton.jit(do_not_specialize_on_alignment=_UNALIGNED)
def partials(
    logits, targets, b_given, partial, stats, out, counter, n, L, n_chunks, n_tiles, z_row, z_col, t_row, t_col, b_row,
    b_col, t_neg, t_pos, CELLS: tl.constexpr, SETTLE: tl.constexpr, R: tl.constexpr, C: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr,
):  # fmt: skip
    """Partial sums of R rows and at most n_tiles · C labels; with SETTLE the last program does what `settled` does."""
    per_neg, per_pos = LOG2_E / t_neg, LOG2_E / t_pos
    block, chunk = tl.program_id(0) // n_chunks, tl.program_id(0) % n_chunks
    rows = block.to(tl.int64) * R + tl.arange(0, R)
    start = chunk * n_tiles * C
    low_top, high_top = tl.full([R, C], LOWEST, tl.float32), tl.full([R, C], LOWEST, tl.float32)
    low, high = tl.zeros([R, C], tl.float32), tl.zeros([R, C], tl.float32)
    of_labels = partial + 4 * tl.cast(n_chunks, tl.int64) * n + block.to(tl.int64) * 4 * L
    for first in range(start, tl.minimum(start + n_tiles * C, L), C):
        columns = first + tl.arange(0, C)
        inside = (rows < n)[:, None] & (columns < L)[None, :]
        x, b, y, a = _sides(
            (logits, targets, b_given), rows, columns, inside, z_row, z_col, t_row, t_col, b_row, b_col, CELLS
        )
        low_top, low = _added(low_top, low, x, b, per_neg)
        high_top, high = _added(high_top, high, y, a, per_pos)
        x_top, x_total = _folded(x, b, per_neg, 0)
        y_top, y_total = _folded(y, a, per_pos, 0)
        _keep(of_labels, L, columns, columns < L, x_top, x_total, y_top, y_total)
    low_top, low = _folded(low_top, low, per_neg, 1)
    high_top, high = _folded(high_top, high, per_pos, 1)
    _keep(partial + chunk.to(tl.int64) * 4 * n, n, rows, rows < n, low_top, low, high_top, high)
    if SETTLE:  # noqa: SIM102 (a constant of the compiler, and a value of the device)
        if is_last(counter):
            n_blocks = tl.num_programs(0) // n_chunks
            a, b, c, d = _settle_some(partial, stats, n, L, n_chunks, n_blocks, t_neg, t_pos, 0, 1, N, K)
            _finish(out, stats + 4 * (tl.cast(n, tl.int64) + L), a, b, c, d)


@triton.jit
def settled(
    partial, stats, out, parts, counter, n, L, n_chunks, n_blocks, t_neg, t_pos, N: tl.constexpr, K: tl.constexpr
):
    """Store what `_settle` keeps of every row and label, and the loss."""
    a, b, c, d = _settle_some(
        partial, stats, n, L, n_chunks, n_blocks, t_neg, t_pos, tl.program_id(0), tl.num_programs(0), N, K
    )
    address = parts + tl.program_id(0)
    tl.store(address, a)
    tl.store(address + ROOM, b)
    tl.store(address + 2 * ROOM, c)
    tl.store(address + 3 * ROOM, d)
    if is_last(counter):
        a, b, c, d = total(parts), total(parts + ROOM), total(parts + 2 * ROOM), total(parts + 3 * ROOM)
        _finish(out, stats + 4 * (tl.cast(n, tl.int64) + L), a, b, c, d)


@triton.jit(do_not_specialize_on_alignment=_UNALIGNED)
def gradient(
    logits, targets, b_given, stats, upstream, grad, n, L, n_chunks, n_tiles, z_row, z_col, t_row, t_col, b_row, b_col,
    t_neg, t_pos, CELLS: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The gradient of R rows and at most n_tiles · C labels in `grad`, which is contiguous."""
    per_neg, per_pos = LOG2_E / t_neg, LOG2_E / t_pos
    block, chunk = tl.program_id(0) // n_chunks, tl.program_id(0) % n_chunks
    rows = block.to(tl.int64) * R + tl.arange(0, R)
    factor, shares = tl.load(upstream).to(tl.float32), stats + 4 * (tl.cast(n, tl.int64) + L)
    row_share, label_share = factor * tl.load(shares), factor * tl.load(shares + 1)
    x_top, x_slope, y_top, y_slope = _kept(stats, n, rows, rows < n)
    x_slope, y_slope = (x_slope * row_share)[:, None], (y_slope * row_share)[:, None]
    x_top, y_top = x_top[:, None], y_top[:, None]
    of_labels = stats + 4 * tl.cast(n, tl.int64)
    start = chunk * n_tiles * C
    for first in range(start, tl.minimum(start + n_tiles * C, L), C):
        columns = first + tl.arange(0, C)
        inside = (rows < n)[:, None] & (columns < L)[None, :]
        x, b, y, a = _sides(
            (logits, targets, b_given), rows, columns, inside, z_row, z_col, t_row, t_col, b_row, b_col, CELLS
        )
        u_top, u_slope, v_top, v_slope = _kept(of_labels, L, columns, columns < L)
        u_slope, v_slope = (u_slope * label_share)[None, :], (v_slope * label_share)[None, :]
        fall = x_slope * exp2((x - x_top) * per_neg) + u_slope * exp2((x - u_top[None, :]) * per_neg)
        rise = y_slope * exp2((y - y_top) * per_pos) + v_slope * exp2((y - v_top[None, :]) * per_pos)
        slope = tl.where(b > 0, b * fall, 0.0) - tl.where(a > 0, a * rise, 0.0)
        address = grad + rows[:, None] * L + columns[None, :]
        tl.store(address, slope.to(grad.dtype.element_ty), mask=inside)
