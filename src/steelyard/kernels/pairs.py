"""A loss made of a pair ℓ₊, ℓ₋ in one pass over logits and targets (Triton): cost, sum and gradient together.

One kernel serves every pair: KIND and a few numbers say which ℓ₊ and ℓ₋. A tile is (R, C): R rows by C labels (BLOCK),
a run of C cells of a contiguous matrix taken as one long row (FLAT), or a run of C cells of one row (ROW). A ROW begins
at its first address that can be read four cells at a time and goes round, so that all but its last tiles are read so,
without a mask; these are half as wide. A program goes through its tiles and keeps one sum a lane; the last program to
come adds the programs' sums in their order, so that the total is the same bits every time. Arithmetic is float32, the
total float64.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from steelyard.kernels.arithmetic import exp, reciprocal
from steelyard.kernels.draws import draws
from steelyard.kernels.programs import is_last, total
from steelyard.kernels.targets import cells_before, known_cells
from steelyard.kernels.terms import SOFTPLUS, terms

BLOCK, FLAT, ROW = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # what a tile is

HOST = tl.constexpr(0)  # the divisor is a number the host knows,
GIVEN = tl.constexpr(1)  # lies in memory,
COUNTED = tl.constexpr(2)  # is the number of known labels, which every program counts by itself,
LATE = tl.constexpr(3)  # or is that number, counted on the way: `divisor` takes its inverse, the gradient is without it

DRAWN = tl.constexpr(1)  # PLM's mask is drawn here,
STORED = tl.constexpr(2)  # or looked up in a table of one row per item

INSIDE = tl.constexpr(1)  # Σ present · inverse of a row, for its re-balanced weights, is taken from its one tile,
SUMMED = tl.constexpr(2)  # or is in `drawn`

ROOM = tl.constexpr(16384)  # that there is for the sums of programs, before their counts


@triton.jit
def _get(address, inside, other, MASKED: tl.constexpr):
    """Return what lies at `address`; with MASKED only where `inside`."""
    if MASKED:
        return tl.load(address, mask=inside, other=other)
    else:
        return tl.load(address)


@triton.jit
def _put(address, x, inside, MASKED: tl.constexpr):
    """Store x at `address`; with MASKED only where `inside`."""
    if MASKED:
        tl.store(address, x, mask=inside)
    else:
        tl.store(address, x)


@triton.jit
def scaled(grad, out, upstream, inverse, n, C: tl.constexpr):
    """A gradient of n cells without its divisor, times the upstream one over the divisor."""
    factor = tl.load(upstream).to(tl.float32) * tl.load(inverse)
    cells = tl.program_id(0).to(tl.int64) * C + tl.arange(0, C)
    tl.store(out + cells, tl.load(grad + cells, mask=cells < n, other=0.0) * factor, mask=cells < n)


@triton.jit
def _steep(drawn, beta):
    """β/drawn, by which β r grows with `inverse`; infinite in a row without positives."""
    return tl.where(drawn > 0, beta / tl.where(drawn > 0, drawn, 1.0), float("inf"))


@triton.jit
def _tile(
    acc, seen, given, numbers, z_at, t_at, w_at, out_at, rows, first, columns, inside, within, item, steep,
    HOW: tl.constexpr, MASKED: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Add the costs of one tile to acc, or with EACH store them, and its gradient; without MASKED all of it is inside.

    With TALLY known labels are added to `seen`. `columns` are the tile's labels, z_at, t_at, w_at and out_at say where
    its cells lie.
    """
    # kept whole: one tile is one pass over values in registers, and every branch is on a constant; cut into functions,
    # each of them would take and return most of these arrays and switches
    logits, targets, b_given, counted, weight, shifts, inverse, keep, items, upstream, grad, out = given
    scale, L, n, b_row, b_col, u_row, u_col, negative, unknown, alpha, beta, mu, draw = numbers
    seed_low, seed_high, epoch, item_low, item_high = draw
    KIND: tl.constexpr = HOW[0]
    K_POS: tl.constexpr = HOW[1]
    K_NEG: tl.constexpr = HOW[2]
    C_POS: tl.constexpr = HOW[3]
    C_NEG: tl.constexpr = HOW[4]
    B_POS: tl.constexpr = HOW[5]
    B_NEG: tl.constexpr = HOW[6]
    G_POS: tl.constexpr = HOW[7]
    G_NEG: tl.constexpr = HOW[8]
    DETACH: tl.constexpr = HOW[9]
    H: tl.constexpr = HOW[10]
    M: tl.constexpr = HOW[11]
    EDGE: tl.constexpr = HOW[12]
    EDGE_REST: tl.constexpr = HOW[13]
    SIDED: tl.constexpr = HOW[14]
    CELLS: tl.constexpr = HOW[15]
    HOLES: tl.constexpr = HOW[16]
    ASSUMED: tl.constexpr = HOW[17]
    SHIFTS: tl.constexpr = HOW[18]
    WEIGHT: tl.constexpr = HOW[19]
    REBALANCED: tl.constexpr = HOW[20]
    MASK: tl.constexpr = HOW[21]
    INDEXED: tl.constexpr = HOW[22]
    EACH: tl.constexpr = HOW[23]
    SLOPE: tl.constexpr = HOW[24]
    UPSTREAM: tl.constexpr = HOW[25]
    TALLY: tl.constexpr = HOW[26]
    COST: tl.constexpr = UPSTREAM == 0
    SOME: tl.constexpr = MASKED or MASK != 0 or (HOLES and not ASSUMED)  # not all cells count
    wide = columns.to(tl.int64)
    t = _get(targets + t_at, inside, 0, MASKED)
    z = _get(logits + z_at, inside, 0.0, MASKED).to(tl.float32)
    present = t > 0
    counts = inside
    if REBALANCED != 0:
        share = _get(inverse + columns, within, 1.0, MASKED)
        if REBALANCED == INSIDE:
            steep = _steep(tl.sum(tl.maximum(t.to(tl.float32), 0.0) * share, 1), beta)[:, None]
    if CELLS:
        a = t.to(tl.float32)
        b = _get(b_given + rows[:, None] * b_row + wide * b_col, inside, 0.0, MASKED).to(tl.float32)
        if HOLES:
            counts = _get(counted + rows[:, None] * L + wide, inside, 0, MASKED) != 0
    else:
        is_known = t != -1
        if HOLES and not ASSUMED:
            counts = inside & is_known if MASKED else is_known
        if TALLY:
            seen += counts.to(tl.int32)
        if not SIDED:
            a = tl.maximum(t.to(tl.float32), 0.0)
            b = 1 - a
            if ASSUMED:
                b = tl.where(is_known, b * negative, unknown)
        elif ASSUMED:
            a, b = 1.0, tl.where(is_known, negative, unknown)
    if MASK == STORED:
        counts = counts & (_get(keep + item + wide, inside, 0, MASKED) != 0)
    elif MASK == DRAWN:
        u = draws(rows, first, items, item_low, item_high, seed_low, seed_high, epoch, n, INDEXED, C)
        keep_pos = _get(keep + columns, within, 0, MASKED)
        keep_neg = _get(keep + L + columns, within, 0, MASKED)
        counts = counts & (u < tl.where(t.to(tl.float32) >= 0.5, keep_pos, keep_neg))
    SUNK: tl.constexpr = MASK == DRAWN and KIND == SOFTPLUS and SIDED and G_POS == G_NEG and H == 0
    if SOME and not SUNK:
        z = tl.where(counts, z, 0.0)
    if SHIFTS != 0:
        shift_pos = _get(shifts + columns, within, 0.0, MASKED)
        shift_neg = shift_pos
        if SHIFTS == 2:
            shift_neg = _get(shifts + L + columns, within, 0.0, MASKED)
    else:
        shift_pos, shift_neg = B_POS, B_NEG
    up, rise, down, fall = terms(
        z, present, counts, shift_pos, shift_neg, KIND, G_POS, G_NEG, K_POS, K_NEG, C_POS, C_NEG, H, M, EDGE,
        EDGE_REST, DETACH, SIDED, SUNK,
    )  # fmt: skip
    if SIDED:
        cost, slope = tl.where(present, up, down), tl.where(present, rise, fall)
        if CELLS or ASSUMED:
            w = tl.where(present, a, b)
            cost, slope = tl.where(w != 0, w * cost, 0.0), w * slope
    else:
        cost = tl.where(a != 0, a * up, 0.0) + tl.where(b != 0, b * down, 0.0)
        slope = a * rise + b * fall
    if WEIGHT or REBALANCED != 0:
        gain = 1.0
        if WEIGHT:
            gain = _get(weight + w_at, inside, 0.0, MASKED).to(tl.float32)
        if REBALANCED != 0:
            gain *= alpha + reciprocal(1 + exp(beta * mu - steep * share))
        if SOME:
            gain = tl.where(counts, gain, 0.0)
        cost, slope = gain * cost, gain * slope
        if WEIGHT:
            cost, slope = tl.where(gain != 0, cost, 0.0), tl.where(gain != 0, slope, 0.0)
    elif SOME and not SUNK:
        cost, slope = tl.where(counts, cost, 0.0), tl.where(counts, slope, 0.0)
    if COST and not EACH:
        acc += cost
    if COST and EACH:
        _put(out + out_at, cost, inside, MASKED)
    if SLOPE:
        slope = slope * scale
        if UPSTREAM == 2:
            slope *= _get(upstream + rows[:, None] * u_row + wide * u_col, inside, 0.0, MASKED).to(tl.float32)
        _put(grad + out_at, slope.to(grad.dtype.element_ty), inside, MASKED)
    return acc, seen


@triton.jit(do_not_specialize=["seed_low", "seed_high", "epoch", "item_low", "item_high"])
def loss(
    logits, targets, b_given, counted, weight, shifts, inverse, drawn, keep, items, upstream, divisor, grad, out,
    parts, counter, n, L, n_tasks, n_chunks, n_tiles,
    z_row, z_col, t_row, t_col, b_row, b_col, w_row, w_col, u_row, u_col,
    negative, unknown, host_divisor, alpha, beta, mu, seed_low, seed_high, epoch, item_low, item_high,
    KIND: tl.constexpr, K_POS: tl.constexpr, K_NEG: tl.constexpr, C_POS: tl.constexpr, C_NEG: tl.constexpr,
    B_POS: tl.constexpr, B_NEG: tl.constexpr, G_POS: tl.constexpr, G_NEG: tl.constexpr, DETACH: tl.constexpr,
    H: tl.constexpr, M: tl.constexpr, EDGE: tl.constexpr, EDGE_REST: tl.constexpr,
    SIDED: tl.constexpr, CELLS: tl.constexpr, HOLES: tl.constexpr, ASSUMED: tl.constexpr, SHIFTS: tl.constexpr,
    WEIGHT: tl.constexpr, REBALANCED: tl.constexpr, MASK: tl.constexpr, INDEXED: tl.constexpr, DIVISOR: tl.constexpr,
    EACH: tl.constexpr, SLOPE: tl.constexpr, UPSTREAM: tl.constexpr, SKIP: tl.constexpr,
    SHAPE: tl.constexpr, GRAIN: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The loss of n rows of L labels (FLAT: of one row of L = all cells).

    The cells are those of `targets`, or with CELLS a is in `targets`, b in `b_given` and what counts in `counted`.
    HOLES: some cells may not count. ASSUMED: unknown labels are negatives of coefficient `unknown`, known negatives
    have `negative`. SIDED: no cell has both coefficients. SHIFTS: so many rows of class-wise b are in `shifts`, b₊
    first. INDEXED: the items' numbers are in `items`. EACH: `out` takes every cost instead of their sum. SLOPE: `grad`
    (contiguous) takes the gradient. UPSTREAM 1: `upstream` is a number, and with SKIP nothing is done where it is 1; 2:
    it is a matrix; 0: it is 1, and the cost is wanted. GRAIN divides L and the strides of rows, or, with ROW, the
    address a row begins at: so many cells are read at once. n_chunks programs share a row, n_tiles tiles each.
    """
    # kept whole: half of it are the arguments of one launch; the three forms of a tile share accumulators and the final
    # sum, and a kernel has no closures to share them by
    COST: tl.constexpr = UPSTREAM == 0
    HOW: tl.constexpr = (
        KIND, K_POS, K_NEG, C_POS, C_NEG, B_POS, B_NEG, G_POS, G_NEG, DETACH, H, M, EDGE, EDGE_REST, SIDED, CELLS,
        HOLES, ASSUMED, SHIFTS, WEIGHT, REBALANCED, MASK, INDEXED, EACH, SLOPE, UPSTREAM, DIVISOR == LATE,
    )  # fmt: skip
    given = logits, targets, b_given, counted, weight, shifts, inverse, keep, items, upstream, grad, out
    if SHAPE != ROW:
        L, z_row, t_row = L // GRAIN * GRAIN, z_row // GRAIN * GRAIN, t_row // GRAIN * GRAIN
        w_row = w_row // GRAIN * GRAIN
    if DIVISOR == GIVEN:
        scale = 1 / tl.load(divisor).to(tl.float32)
    elif DIVISOR == COUNTED:
        seen = tl.zeros([1024], tl.int32)
        for first in range(0, n * L, 1024):
            seen += known_cells(targets, first, n * L, 1024)
        scale = 1 / tl.maximum(tl.sum(seen, 0), 1).to(tl.float32)
    elif DIVISOR == LATE:
        scale = 1.0
    else:
        scale = 1 / host_divisor
    tasks = n_tasks
    if UPSTREAM == 1:
        factor = tl.load(upstream).to(tl.float32)
        if SKIP:
            tasks = tl.where(factor == 1, 0, n_tasks)
        scale = scale * factor
    draw = seed_low, seed_high, epoch, item_low, item_high
    numbers = scale, L, n, b_row, b_col, u_row, u_col, negative, unknown, alpha, beta, mu, draw
    acc, rim = tl.zeros([R, C], tl.float32), tl.zeros([R, C // 2], tl.float32)
    known, known_rim = tl.zeros([R, C], tl.int32), tl.zeros([R, C // 2], tl.int32)
    lane, few = tl.arange(0, C)[None, :], tl.arange(0, C // 2)[None, :]
    for task in range(tl.program_id(0), tasks, tl.num_programs(0)):
        rows, item, steep = tl.zeros([R], tl.int64), 0, 0.0
        if SHAPE == FLAT:
            begin = tl.cast(task, tl.int64) * C
            start, stop = 0, tl.minimum(L - begin, C).to(tl.int32)
        else:
            begin = tl.zeros([], tl.int64)
            rows += tl.cast(task // n_chunks, tl.int64) * R + tl.arange(0, R)
            start = (task % n_chunks) * n_tiles * C
            stop = tl.minimum(start + n_tiles * C, L)
            if MASK == STORED:
                item = tl.load(items + rows, mask=rows < n, other=0).to(tl.int64)[:, None] * L
            if REBALANCED == SUMMED:
                steep = _steep(tl.load(drawn + rows, mask=rows < n, other=0.0), beta)[:, None]
        if SHAPE == ROW:
            begin = tl.cast(task // n_chunks, tl.int64) * L
            head = cells_before(begin, GRAIN)
            origin = tl.multiple_of(begin + head, GRAIN)
            rest = start + tl.maximum((tl.minimum(stop, L - head) - start) // C, 0) * C
            for first in range(start, rest, C):
                columns = first + head + lane
                wide = columns.to(tl.int64)
                cell, w_at = origin + first + lane, rows[:, None] * w_row + wide * w_col
                acc, known = _tile(
                    acc, known, given, numbers, cell, cell, w_at, cell, rows, first, columns, True, True, item, steep,
                    HOW, False, C,
                )  # fmt: skip
            for first in range(rest, stop, C // 2):
                columns = first + head + few
                columns = tl.where(columns < L, columns, columns - L)
                wide = columns.to(tl.int64)
                within = first + few < stop
                cell, w_at = begin + wide, rows[:, None] * w_row + wide * w_col
                rim, known_rim = _tile(
                    rim, known_rim, given, numbers, cell, cell, w_at, cell, rows, first, columns, within, within, item,
                    steep, HOW, True, C // 2,
                )  # fmt: skip
        else:
            there = (rows < n)[:, None]
            for first in range(start, stop, C):
                columns = first + lane
                wide = columns.to(tl.int64)
                within = ((first + tl.arange(0, C)) // GRAIN < stop // GRAIN)[None, :]
                inside = within if SHAPE == FLAT else there & within
                z_at = begin + rows[:, None] * z_row + wide * z_col
                t_at = begin + rows[:, None] * t_row + wide * t_col
                w_at = rows[:, None] * w_row + wide * w_col
                cell = begin + rows[:, None] * L + wide
                acc, known = _tile(
                    acc, known, given, numbers, z_at, t_at, w_at, cell, rows, first, columns, inside, within, item,
                    steep, HOW, True, C,
                )  # fmt: skip
    if COST and not EACH:
        tl.store(parts + tl.program_id(0), (tl.sum(tl.sum(acc, 1), 0) + tl.sum(tl.sum(rim, 1), 0)).to(tl.float64))
        if DIVISOR == LATE:
            n_known = tl.sum(tl.sum(known, 1), 0) + tl.sum(tl.sum(known_rim, 1), 0)
            tl.store(parts + ROOM + tl.program_id(0), n_known.to(tl.float64))
        if is_last(counter):
            if DIVISOR == LATE:
                share = 1 / tl.maximum(total(parts + ROOM), 1.0)
                tl.store(divisor, share.to(tl.float32))
            else:
                share = scale.to(tl.float64)
            tl.store(out, (total(parts) * share).to(tl.float32))
