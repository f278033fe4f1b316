"""Slopes of a pair loss over a block of labels, in place of its logits (Triton).

Most labels of an item are absent, so a batch lists the cells that are not. `pick` takes the logits of listed cells out
of the block and leaves −∞, where the cost and the slope of an absent label are 0, `slopes` turns all other logits into
slopes of ℓ₋, `put` writes the slopes of listed cells. A program of `slopes` owns a strip of labels: what goes by label
is read once, and the strip's sums are the gradient of the bias.

The pass over a block is as fast as memory only with few instructions per cell. So softplus is not evaluated where its
weight is the same down a column: Σ log(1 + e) is log Π (1 + e), and the product less 1 keeps the digits of small e.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from steelyard.kernels.arithmetic import exp2, log, log1p, reciprocal
from steelyard.kernels.draws import drawn_at, draws
from steelyard.kernels.terms import absent as absent_terms
from steelyard.kernels.terms import terms

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _as_float(bits, WIDE: tl.constexpr):
    """The number whose bits these are: float32 with WIDE, else bfloat16."""
    if WIDE:
        return bits.to(tl.float32, bitcast=True)
    else:
        return bits.to(tl.bfloat16, bitcast=True).to(tl.float32)


@triton.jit
def _as_bits(x, WIDE: tl.constexpr):
    """The bits of a float32, or of the bfloat16 nearest to it."""
    if WIDE:
        return x.to(tl.int32, bitcast=True)
    else:
        return x.to(tl.bfloat16).to(tl.int16, bitcast=True)


@triton.jit(do_not_specialize=["n_listed", "start"])
def pick(logits, picked, rows, labels, width, stride, n_listed, start, MARK: tl.constexpr, C: tl.constexpr):
    """Move the bits of listed cells from `logits` to `picked` and leave those of −∞, MARK."""
    for first in range(tl.program_id(0) * C, n_listed, tl.num_programs(0) * C):
        cells = first + tl.arange(0, C)
        column = tl.load(labels + cells, mask=cells < n_listed, other=-1) - start
        here = (cells < n_listed) & (column >= 0) & (column < width)
        address = logits + tl.load(rows + cells, mask=here, other=0).to(tl.int64) * stride + column
        tl.store(picked + cells, tl.load(address, mask=here, other=0), mask=here)
        tl.store(address, tl.zeros([C], address.dtype.element_ty) + MARK, mask=here)


@triton.jit
def _rebalanced(share, drawn, alpha, beta, mu):
    """The weight α + σ(β(r − μ)) with r = share / drawn, which is infinite in a row without positives."""
    steep = tl.where(drawn > 0, LOG2E * beta * reciprocal(tl.where(drawn > 0, drawn, 1.0)), float("inf"))
    return alpha + reciprocal(1 + exp2(LOG2E * beta * mu - steep * share))


@triton.jit
def _log_of_product(less_one):
    """log(1 + x) for x ≥ 0."""
    return tl.where(less_one <= 1, log1p(tl.minimum(less_one, 1.0)), log(1 + less_one))


@triton.jit(do_not_specialize=["start", "seed_low", "seed_high", "epoch", "item_low", "item_high"])
def slopes(
    logits, bias, by_label, by_item, shifts, inverse, drawn, keep, items, parts, sums,
    n, width, n_labels, stride, rows_each, start, absent, alpha, beta, mu,
    seed_low, seed_high, epoch, item_low, item_high,
    KIND: tl.constexpr, K_POS: tl.constexpr, K_NEG: tl.constexpr, C_POS: tl.constexpr, C_NEG: tl.constexpr,
    B_POS: tl.constexpr, B_NEG: tl.constexpr, G_POS: tl.constexpr, G_NEG: tl.constexpr, DETACH: tl.constexpr,
    H: tl.constexpr, M: tl.constexpr, EDGE: tl.constexpr, EDGE_REST: tl.constexpr, SHIFTS: tl.constexpr,
    BY_LABEL: tl.constexpr, BY_ITEM: tl.constexpr, REBALANCED: tl.constexpr, MASKED: tl.constexpr,
    INDEXED: tl.constexpr, WEIGHED: tl.constexpr, PRODUCT: tl.constexpr, WIDE: tl.constexpr,
    BEFORE: tl.constexpr, STAGES: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Turn logits (n, width), bits of labels from `start` on, into slopes of absent·ℓ₋, each times its weight.

    Without WEIGHED all weights are 1. `parts` takes the cost of each program, after BEFORE others; `sums` (chunks of
    rows, width) the slopes added by label. PRODUCT: ℓ₋ is a softplus without focus, and weights go by label alone;
    rows_each / R is at most 96, so that no product overflows.

    Every branch is on a constant: a compiled kernel has none of them.
    """
    # kept whole: a third of it are the arguments of one launch; what is left is one loop whose sums stay in registers
    n_strips = tl.cdiv(width, C)
    chunk = tl.program_id(0) // n_strips
    first = tl.program_id(0) % n_strips * C
    columns = first + tl.arange(0, C)
    within = columns < width
    label = start + columns
    offset = tl.load(bias + label, mask=within, other=0.0)[None, :]
    shift_neg = B_NEG
    if SHIFTS != 0:
        shift_neg = tl.load(shifts + (SHIFTS - 1) * n_labels + label, mask=within, other=0.0)[None, :]
    if PRODUCT:
        offset = (LOG2E * K_NEG) * (offset - shift_neg)
    gain = absent
    if BY_LABEL:
        gain = gain * tl.load(by_label + label, mask=within, other=0.0)[None, :]
    share = 0.0
    if REBALANCED:
        share = tl.load(inverse + label, mask=within, other=1.0)[None, :]
    limit = 0
    if MASKED:
        limit = tl.load(keep + n_labels + label, mask=within, other=0)[None, :]
    cost_sum, slope_sum = tl.zeros([R, C], tl.float32), tl.zeros([R, C], tl.float32)
    product = tl.zeros([R, C], tl.float32)  # less 1
    begin = chunk * rows_each
    end = tl.minimum(begin + rows_each, n)
    for row in tl.range(begin, end, R, num_stages=STAGES):
        rows = row + tl.arange(0, R)
        there = rows < end
        inside = there[:, None] & within[None, :]
        address = logits + rows[:, None].to(tl.int64) * stride + columns[None, :]
        # `other` is 0, since a negative one of 16 bits comes out as a NaN in every second cell
        z = tl.where(inside, _as_float(tl.load(address, mask=inside, other=0), WIDE), float("-inf"))
        if MASKED:
            u = draws(
                rows.to(tl.int64), start + first, items, item_low, item_high, seed_low, seed_high, epoch, n, INDEXED, C
            )
            z = tl.where(u < limit, z, float("-inf"))
        weight = gain
        if BY_ITEM:
            weight = weight * tl.load(by_item + rows, mask=there, other=0.0)[:, None]
        if REBALANCED:
            weight = weight * _rebalanced(share, tl.load(drawn + rows, mask=there, other=0.0)[:, None], alpha, beta, mu)
        if PRODUCT:
            y = (LOG2E * K_NEG) * z + offset
            e = exp2(-tl.abs(y))
            near = reciprocal(1 + e)
            slope = tl.where(y >= 0, near, e * near)
            if C_NEG * K_NEG != 1:
                slope = (C_NEG * K_NEG) * slope
            cost_sum += tl.maximum(y, 0.0)
            product += product * e + e
        else:
            cost, slope = absent_terms(
                z + offset, shift_neg, KIND, G_NEG, K_NEG, C_NEG, H, M, EDGE, EDGE_REST, DETACH, WIDE
            )
            if H != 0:
                counts = z != float("-inf")
                cost, slope = tl.where(counts, cost, 0.0), tl.where(counts, slope, 0.0)
            if WEIGHED:
                cost = weight * cost
            cost_sum += cost
        if WEIGHED:
            slope = weight * slope
        slope_sum += slope
        tl.store(address, _as_bits(slope, WIDE), mask=inside)
    tl.store(sums + chunk.to(tl.int64) * width + columns, tl.sum(slope_sum, 0).to(tl.float64), mask=within)
    if PRODUCT:
        cost_sum = C_NEG * (LN2 * cost_sum + _log_of_product(product))
        if WEIGHED:
            cost_sum = gain * cost_sum
    tl.store(parts + BEFORE + tl.program_id(0), tl.sum(tl.sum(cost_sum, 1), 0).to(tl.float64))


@triton.jit(do_not_specialize=["n_listed", "start", "seed_low", "seed_high", "epoch", "item_low", "item_high"])
def put(
    logits, picked, rows, labels, values, by_cell, bias, by_label, by_item, shifts, inverse, drawn, keep, items, parts,
    sums, width, n_labels, stride, n_listed, start, negative, unknown, alpha, beta, mu,
    seed_low, seed_high, epoch, item_low, item_high,
    KIND: tl.constexpr, K_POS: tl.constexpr, K_NEG: tl.constexpr, C_POS: tl.constexpr, C_NEG: tl.constexpr,
    B_POS: tl.constexpr, B_NEG: tl.constexpr, G_POS: tl.constexpr, G_NEG: tl.constexpr, DETACH: tl.constexpr,
    H: tl.constexpr, M: tl.constexpr, EDGE: tl.constexpr, EDGE_REST: tl.constexpr, SHIFTS: tl.constexpr,
    BY_LABEL: tl.constexpr, BY_ITEM: tl.constexpr, REBALANCED: tl.constexpr, MASKED: tl.constexpr,
    INDEXED: tl.constexpr, BY_CELL: tl.constexpr, ASSUMED: tl.constexpr, WIDE: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Write the slopes of listed cells, whose values are 1, 0, soft or −1, unknown: inert, or with ASSUMED a negative.

    `parts` takes the costs, one number per program; slopes are added to the first row of `sums`, float64, so that their
    order does not matter. Every branch is on a constant.
    """
    total = tl.zeros([C], tl.float32)
    for first in range(tl.program_id(0) * C, n_listed, tl.num_programs(0) * C):
        cells = first + tl.arange(0, C)
        label = tl.load(labels + cells, mask=cells < n_listed, other=-1)
        column = label - start
        here = (cells < n_listed) & (column >= 0) & (column < width)
        label = tl.where(here, label, start)
        row = tl.load(rows + cells, mask=here, other=0)
        t = tl.load(values + cells, mask=here, other=-1.0)
        is_known = t >= 0
        counts = here & (is_known | ASSUMED)
        z = _as_float(tl.load(picked + cells, mask=here, other=0), WIDE) + tl.load(bias + label)
        z = tl.where(counts, z, 0.0)
        shift_pos, shift_neg = B_POS, B_NEG
        if SHIFTS != 0:
            shift_pos = tl.load(shifts + label)
            shift_neg = tl.load(shifts + (SHIFTS - 1) * n_labels + label)
        up, rise, down, fall = terms(
            z, True, counts, shift_pos, shift_neg, KIND, G_POS, G_NEG, K_POS, K_NEG, C_POS, C_NEG, H, M, EDGE,
            EDGE_REST, DETACH, False, False,
        )  # fmt: skip
        a = tl.maximum(t, 0.0)
        b = tl.where(is_known, (1 - a) * negative, unknown)
        weight = tl.where(counts, 1.0, 0.0)
        if BY_LABEL:
            weight = weight * tl.load(by_label + label)
        if BY_ITEM:
            weight = weight * tl.load(by_item + row)
        if BY_CELL:
            weight = weight * tl.load(by_cell + cells, mask=here, other=0.0)
        if REBALANCED:
            weight = weight * _rebalanced(tl.load(inverse + label), tl.load(drawn + row), alpha, beta, mu)
        if MASKED:
            u = drawn_at(row, label, items, item_low, item_high, seed_low, seed_high, epoch, INDEXED)
            counts = counts & (u < tl.load(keep + tl.where(t >= 0.5, 0, n_labels) + label))
        cost = tl.where(a != 0, a * up, 0.0) + tl.where(b != 0, b * down, 0.0)
        slope = tl.where(counts, weight * (a * rise + b * fall), 0.0)
        tl.store(logits + row.to(tl.int64) * stride + column, _as_bits(slope, WIDE), mask=here)
        tl.atomic_add(sums + column, slope.to(tl.float64), mask=here)
        total += tl.where(counts, weight * cost, 0.0)
    tl.store(parts + tl.program_id(0), tl.sum(total, 0).to(tl.float64))
