"""Slopes of a pair loss over a block of labels, in place of its logits (Triton).

Most labels of an item are absent, so a batch lists the cells that are not. `pick` takes the logits of listed cells out
of the block and leaves a mark, `slopes` turns all other logits into slopes of ℓ₋, `put` writes the slopes of listed
cells. A program of `slopes` owns a strip of labels: what goes by label is read once, and the strip's sums are the
gradient of the bias.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from steelyard.kernels.arithmetic import exp, reciprocal
from steelyard.kernels.draws import drawn_at, draws
from steelyard.kernels.terms import terms


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
    """Move the bits of listed cells from `logits` to `picked`; a NaN that no arithmetic makes marks where they were."""
    for first in range(tl.program_id(0) * C, n_listed, tl.num_programs(0) * C):
        at = first + tl.arange(0, C)
        column = tl.load(labels + at, mask=at < n_listed, other=-1) - start
        here = (at < n_listed) & (column >= 0) & (column < width)
        place = logits + tl.load(rows + at, mask=here, other=0).to(tl.int64) * stride + column
        tl.store(picked + at, tl.load(place, mask=here, other=0), mask=here)
        tl.store(place, tl.zeros([C], place.dtype.element_ty) + MARK, mask=here)


@triton.jit
def _rebalanced(share, drawn, alpha, beta, mu):
    """The weight α + σ(β(r − μ)) with r = share / drawn, which is infinite in a row without positives."""
    steep = tl.where(drawn > 0, beta / tl.where(drawn > 0, drawn, 1.0), float("inf"))
    return alpha + reciprocal(1 + exp(beta * mu - steep * share))


@triton.jit(do_not_specialize=["start", "seed_low", "seed_high", "epoch", "item_low", "item_high"])
def slopes(
    logits, bias, by_label, by_item, shifts, inverse, drawn, keep, items, parts, sums,
    n, width, n_labels, stride, rows_each, start, absent, alpha, beta, mu,
    seed_low, seed_high, epoch, item_low, item_high,
    KIND: tl.constexpr, K_POS: tl.constexpr, K_NEG: tl.constexpr, C_POS: tl.constexpr, C_NEG: tl.constexpr,
    B_POS: tl.constexpr, B_NEG: tl.constexpr, G_POS: tl.constexpr, G_NEG: tl.constexpr, DETACH: tl.constexpr,
    H: tl.constexpr, M: tl.constexpr, EDGE: tl.constexpr, EDGE_REST: tl.constexpr, SHIFTS: tl.constexpr,
    BY_LABEL: tl.constexpr, BY_ITEM: tl.constexpr, REBALANCED: tl.constexpr, MASKED: tl.constexpr,
    INDEXED: tl.constexpr, WEIGHED: tl.constexpr, COST: tl.constexpr, WIDE: tl.constexpr, MARK: tl.constexpr,
    STAGES: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Turn logits (n, width), bits of labels from `start` on, into slopes of absent·ℓ₋, each times its weight.

    Without WEIGHED all weights are 1. With COST `parts` takes the cost of each program, `sums` (chunks of rows, width)
    the slopes added by label.
    """
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
    begin = chunk * rows_each
    end = tl.minimum(begin + rows_each, n)
    for row in tl.range(begin, end, R, num_stages=STAGES):
        rows = row + tl.arange(0, R)
        there = rows < end
        inside = there[:, None] & within[None, :]
        at = logits + rows[:, None].to(tl.int64) * stride + columns[None, :]
        bits = tl.load(at, mask=inside, other=MARK)
        counts = bits != MARK
        z = _as_float(bits, WIDE) + offset  # NaN at a mark, whose cost and slope are left out below
        _up, _rise, cost, slope = terms(
            z, False, counts, B_POS, shift_neg, KIND, G_POS, G_NEG, K_POS, K_NEG, C_POS, C_NEG, H, M, EDGE, EDGE_REST,
            DETACH, False, False,
        )  # fmt: skip
        weight = gain
        if BY_ITEM:
            weight = weight * tl.load(by_item + rows, mask=there, other=0.0)[:, None]
        if REBALANCED:
            weight = weight * _rebalanced(share, tl.load(drawn + rows, mask=there, other=0.0)[:, None], alpha, beta, mu)
        if MASKED:
            u = draws(
                rows.to(tl.int64), start + first, items, item_low, item_high, seed_low, seed_high, epoch, n, INDEXED, C
            )
            counts = counts & (u < limit)
        if WEIGHED:
            slope, cost = weight * slope, weight * cost
        slope = tl.where(counts, slope, 0.0)
        slope_sum += slope
        if COST:
            cost_sum += tl.where(counts, cost, 0.0)
        tl.store(at, _as_bits(slope, WIDE), mask=inside)
    tl.store(sums + chunk.to(tl.int64) * width + columns, tl.sum(slope_sum, 0), mask=within)
    if COST:
        tl.store(parts + tl.program_id(0), tl.sum(tl.sum(cost_sum, 1), 0).to(tl.float64))


@triton.jit(do_not_specialize=["n_listed", "start", "seed_low", "seed_high", "epoch", "item_low", "item_high"])
def put(
    logits, picked, rows, labels, values, bias, by_label, by_item, shifts, inverse, drawn, keep, items, parts, sums,
    width, n_labels, stride, n_listed, start, negative, unknown, alpha, beta, mu,
    seed_low, seed_high, epoch, item_low, item_high,
    KIND: tl.constexpr, K_POS: tl.constexpr, K_NEG: tl.constexpr, C_POS: tl.constexpr, C_NEG: tl.constexpr,
    B_POS: tl.constexpr, B_NEG: tl.constexpr, G_POS: tl.constexpr, G_NEG: tl.constexpr, DETACH: tl.constexpr,
    H: tl.constexpr, M: tl.constexpr, EDGE: tl.constexpr, EDGE_REST: tl.constexpr, SHIFTS: tl.constexpr,
    BY_LABEL: tl.constexpr, BY_ITEM: tl.constexpr, REBALANCED: tl.constexpr, MASKED: tl.constexpr,
    INDEXED: tl.constexpr, ASSUMED: tl.constexpr, WIDE: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Write the slopes of listed cells, whose values are 1, 0, soft or −1, unknown: inert, or with ASSUMED a negative.

    `parts` takes the costs, one number per program; slopes are added to `sums`, float64, so that their order does not
    matter.
    """
    total = tl.zeros([C], tl.float32)
    for first in range(tl.program_id(0) * C, n_listed, tl.num_programs(0) * C):
        at = first + tl.arange(0, C)
        label = tl.load(labels + at, mask=at < n_listed, other=-1)
        column = label - start
        here = (at < n_listed) & (column >= 0) & (column < width)
        label = tl.where(here, label, start)
        row = tl.load(rows + at, mask=here, other=0)
        t = tl.load(values + at, mask=here, other=-1.0)
        is_known = t >= 0
        counts = here & (is_known | ASSUMED)
        z = _as_float(tl.load(picked + at, mask=here, other=0), WIDE) + tl.load(bias + label)
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
