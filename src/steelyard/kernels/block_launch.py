"""Launches of the kernels in `block`: slopes of a pair loss over one block of labels, in place of its logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from steelyard.kernels.fused import (
    SOFTPLUS,
    KernelPair,
    KernelRebalanced,
    KernelRule,
    Mask,
    _LaunchPlan,
    _plan,
    _run,
    _word,
)

DTYPES = (torch.float32, torch.bfloat16)
"""The dtypes of logits that the kernels take."""

_MARK = {torch.float32: -0x800000, torch.bfloat16: -0x80}  # the bits of −∞
_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}
_TILE, _WARPS, _STAGES = (4, 512), 4, 3  # rows and labels of a tile
_PROGRAMS = 4224  # at least, where there are rows enough: 32 per multiprocessor of an H200
_MOST_TILES = 64  # of one program: a product of so many numbers up to 2 is finite
_LISTED, _LISTED_WARPS, _LISTED_PROGRAMS = 256, 4, 264  # listed cells that a program sees at a time, and programs
_GROUP = 256
_LANES, _LANE_WARPS, _HINT = 2048, 4, True  # weights and warps of a program; whether gradients are kept in the cache


class Listed(NamedTuple):
    """Listed cells of a batch: row, label (int32) and value (float32) of each."""

    rows: Tensor
    labels: Tensor
    values: Tensor


class Terms(NamedTuple):
    """All that the slope of a cell depends on, except its logit.

    `absent` is the coefficient of cells that are not listed; `by_label` (L,) and `by_item` (B,) are weights, `by_cell`
    (n,) those of listed cells, `drawn` (B,) is Σ_j present_j inverse_j for re-balanced ones. All tensors are float32,
    and those by label cover all labels.
    """

    pair: KernelPair
    rule: KernelRule
    absent: float
    bias: Tensor
    by_label: Tensor | None = None
    by_item: Tensor | None = None
    by_cell: Tensor | None = None
    rebalanced: KernelRebalanced | None = None
    drawn: Tensor | None = None
    mask: Mask | None = None


def n_costs(n: int, width: int) -> int:
    """Return how many numbers `slopes_` writes the cost of a block in."""
    strips, chunks, _ = _cut(n, width)
    return -(-strips * chunks // 2) * 2 + _LISTED_PROGRAMS


def _cut(n: int, width: int) -> tuple[int, int, int]:
    """Return into how many strips of labels and chunks of rows a block is cut, and the rows of a chunk."""
    strips, tiles = -(-width // _TILE[1]), -(-n // _TILE[0])
    rows_each = min(-(-tiles // max(1, min(tiles, _PROGRAMS // strips))), _MOST_TILES) * _TILE[0]
    return strips, -(-n // rows_each), rows_each


def slopes_(logits: Tensor, start: int, terms: Terms, listed: Listed, costs: Tensor) -> Tensor:
    """Replace logits (B, width) without bias, of labels from `start` on, by slopes; return these summed by label.

    The sums are float64, (chunks, width), still to be added over chunks of rows. `costs`, zeros of float64, `n_costs`
    of them, take numbers that add up to the cost.
    """
    (n, width), device, n_listed = logits.shape, logits.device, len(listed.rows)
    bits, wide, mark = logits.view(_BITS[logits.dtype]), logits.dtype == torch.float32, _MARK[logits.dtype]
    groups = _LISTED_PROGRAMS if device.type == "cuda" else 3
    strips, chunks, rows_each = _cut(n, width)
    tensors, numbers, pair, how = _arguments(terms)
    shape = (n, width, len(terms.bias), logits.stride(0))
    key = (device.index, *shape, wide, pair, how)
    if n_listed:
        picked = torch.empty(n_listed, dtype=bits.dtype, device=device)
        plan = _plan(
            ("pick", *key[:6]), lambda: _LaunchPlan("pick", groups, (width, shape[3]), (mark, _LISTED), _LISTED_WARPS)
        )
        _run(plan, device, (bits, picked, listed.rows, listed.labels), plan.arguments((n_listed, start)))
    if terms.absent != 0:
        weighed = terms.absent != 1 or any(how[1:4])
        product = _is_product(terms)
        sums = torch.empty(chunks, width, dtype=torch.float64, device=device)
        fixed = (*pair, *how, weighed, product, wide, _STAGES, *_TILE)
        plan = _plan(
            ("slopes", *key, weighed, _TILE, _WARPS, _STAGES, rows_each),
            lambda: _LaunchPlan("slopes", strips * chunks, (*shape, rows_each), fixed, _WARPS),
        )
        _run(plan, device, (bits, *tensors, costs, sums), plan.arguments((start, terms.absent, *numbers)))
    else:
        sums = torch.zeros(1, width, dtype=torch.float64, device=device)
        logits.zero_()
    if n_listed:
        rule, by_cell = terms.rule, terms.by_cell is not None
        fixed = (*pair, *how, by_cell, rule.assumed, wide, _LISTED)
        plan = _plan(
            ("put", *key, by_cell, rule.assumed),
            lambda: _LaunchPlan("put", groups, (width, shape[2], shape[3]), fixed, _LISTED_WARPS),
        )
        given = (bits, picked, *listed, terms.by_cell, *tensors, costs[-_LISTED_PROGRAMS:], sums)
        _run(plan, device, given, plan.arguments((n_listed, start, rule.negative, rule.unknown, *numbers)))
    return sums


def _is_product(terms: Terms) -> bool:
    """Return whether costs of absent labels add up to a logarithm of products: a softplus with weights by label."""
    pair = terms.pair
    plain = pair.kind == SOFTPLUS and pair.gamma[1] == 0 and pair.smoothing == 0
    return plain and terms.by_item is None and terms.rebalanced is None


def _arguments(terms: Terms) -> tuple[tuple[Tensor | None, ...], Any, Any, Any]:
    """Return tensors, numbers, constants of the pair and flags, as both kernels take them."""
    pair, mask, rebalanced = terms.pair, terms.mask, terms.rebalanced
    keep, items = (None, None) if mask is None else mask[:2]
    inverse = None if rebalanced is None else rebalanced.inverse
    tensors = (terms.bias, terms.by_label, terms.by_item, pair.shifts, inverse, terms.drawn, keep, items)
    balance = (0.0, 1.0, 0.0) if rebalanced is None else rebalanced[1:]
    words = (0, 0, 0, 0, 0)
    if mask is not None:
        seed, first = mask.seed, mask.first_item
        words = (_word(seed), _word(seed >> 32), _word(mask.epoch), _word(first), _word(first >> 32))
    constants = (
        pair.kind, *pair.slope, *pair.scale, *pair.shift, *pair.gamma, pair.detach, pair.smoothing, pair.margin,
        *pair.edge,
    )  # fmt: skip
    how = (
        0 if pair.shifts is None else len(pair.shifts), terms.by_label is not None, terms.by_item is not None,
        rebalanced is not None, mask is not None, items is not None,
    )  # fmt: skip
    return tensors, (*balance, *words), constants, how


def update_(
    weight: Tensor,
    gradient: Tensor,
    states: list[Tensor | None],
    first: int,
    key: int,
    numbers: tuple[float, ...],
    kind: int,
    stochastic: bool,
) -> None:
    """Move weights (n, D), contiguous, and their states by one step; see the kernel `block_update.update`.

    `first` is the number of the first row. States of 8 bits have one scale per group, (n, D / group).
    """
    n, width = weight.shape
    small = states[2] is not None
    group = width // states[2].shape[1] if states[2] is not None else group_of(width)
    rows = n * (width // group)
    lanes = 1 << max(group - 1, 1).bit_length()
    each = max(1, _LANES // lanes)
    dtypes = tuple(None if x is None else x.dtype for x in (weight, gradient, *states))
    plan = _plan(
        ("update", weight.device.index, rows, group, dtypes, kind, small, stochastic, each, _LANE_WARPS, _HINT),
        lambda: _LaunchPlan(
            "update", -(-rows // each), (rows, group), (kind, small, stochastic, _HINT, each, lanes), _LANE_WARPS
        ),
    )
    words = (_word(first * (width // group)), _word(key))
    _run(plan, weight.device, (weight, gradient, *states), plan.arguments((*words, *numbers)))


def group_of(width: int) -> int:
    """Return how many weights of a label share a scale, where states have 8 bits."""
    return _GROUP if width % _GROUP == 0 else width
