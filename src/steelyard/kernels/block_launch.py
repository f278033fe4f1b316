"""Launches of the kernels in `block`: slopes of a pair loss over one block of labels, in place of its logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from steelyard.kernels.fused import Mask, Pair, Rebalanced, Rule, _Plan, _plan, _run, _word

DTYPES = (torch.float32, torch.bfloat16)
"""The dtypes of logits that the kernels take."""

_MARK = {torch.float32: 0x7FA5A5A5, torch.bfloat16: 0x7FA5}  # NaNs that no arithmetic makes
_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}
_TILE, _WARPS, _STAGES = (4, 512), 8, 1  # rows and labels of a tile
_PROGRAMS = 4224  # wanted at least, where there are rows enough: 32 per multiprocessor of an H200
_LISTED, _LISTED_WARPS, _LISTED_PROGRAMS = 256, 4, 264  # listed cells that a program sees at a time, and programs
_GROUP = 256
_LANES = 2048  # weights of one program


class Listed(NamedTuple):
    """Listed cells of a batch: row, label (int32) and value (float32) of each."""

    rows: Tensor
    labels: Tensor
    values: Tensor


class Terms(NamedTuple):
    """What every cell's slope depends on beside its logit.

    `absent` is the coefficient of cells that are not listed; `by_label` (L,) and `by_item` (B,) are weights, `drawn`
    (B,) is Σ_j present_j inverse_j for re-balanced ones. All tensors are float32, and those by label cover all labels.
    """

    pair: Pair
    rule: Rule
    absent: float
    bias: Tensor
    by_label: Tensor | None = None
    by_item: Tensor | None = None
    rebalanced: Rebalanced | None = None
    drawn: Tensor | None = None
    mask: Mask | None = None


def slopes_(logits: Tensor, start: int, terms: Terms, listed: Listed, cost: bool = True) -> tuple[Tensor, Tensor]:
    """Replace logits (B, width) without bias, of labels from `start` on, by slopes; return cost and slopes by label.

    The cost is float64, (); slopes by label are float32 or float64, (width,).
    """
    (n, width), device, n_listed = logits.shape, logits.device, len(listed.rows)
    bits, wide, mark = logits.view(_BITS[logits.dtype]), logits.dtype == torch.float32, _MARK[logits.dtype]
    groups = _LISTED_PROGRAMS if device.type == "cuda" else 3
    strips = -(-width // _TILE[1])
    tiles = -(-n // _TILE[0])
    rows_each = -(-tiles // max(1, min(tiles, _PROGRAMS // strips))) * _TILE[0]
    chunks = -(-n // rows_each)
    tensors, numbers, pair, how = _arguments(terms)
    shape = (n, width, len(terms.bias), logits.stride(0))
    parts = torch.empty(-(-strips * chunks // 2) * 2, dtype=torch.float64, device=device)
    key = (device.index, *shape, wide, pair, how)
    if n_listed:
        picked = torch.empty(n_listed, dtype=bits.dtype, device=device)
        plan = _plan(
            ("pick", *key[:6]), lambda: _Plan("pick", groups, (width, shape[3]), (mark, _LISTED), _LISTED_WARPS)
        )
        _run(plan, device, (bits, picked, listed.rows, listed.labels), plan.arguments((n_listed, start)))
    by_label = total = None
    if terms.absent != 0:
        weighed = terms.absent != 1 or any(how[1:4])
        sums = torch.empty(chunks, width, dtype=torch.float32, device=device)
        fixed = (*pair, *how, weighed, cost, wide, mark, _STAGES, *_TILE)
        plan = _plan(
            ("slopes", *key, weighed, cost, _TILE, _WARPS, _STAGES, rows_each),
            lambda: _Plan("slopes", strips * chunks, (*shape, rows_each), fixed, _WARPS),
        )
        _run(plan, device, (bits, *tensors, parts, sums), plan.arguments((start, terms.absent, *numbers)))
        by_label = sums[0] if chunks == 1 else sums.sum(0)
        total = parts[: strips * chunks].sum()
    else:
        logits.zero_()
    if n_listed:
        added, costs = torch.zeros(width + groups, dtype=torch.float64, device=device).split((width, groups))
        rule = terms.rule
        plan = _plan(
            ("put", *key, rule.assumed),
            lambda: _Plan(
                "put", groups, (width, shape[2], shape[3]), (*pair, *how, rule.assumed, wide, _LISTED), _LISTED_WARPS
            ),
        )
        given = (bits, picked, *listed, *tensors, costs, added)
        _run(plan, device, given, plan.arguments((n_listed, start, rule.negative, rule.unknown, *numbers)))
        by_label = added if by_label is None else added.add_(by_label)
        total = costs.sum() if total is None else total + costs.sum()
    if by_label is None or total is None:
        return torch.zeros((), dtype=torch.float64, device=device), torch.zeros(width, device=device)
    return total, by_label


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
        ("update", weight.device.index, rows, group, dtypes, kind, small, stochastic),
        lambda: _Plan("update", -(-rows // each), (rows, group), (kind, small, stochastic, each, lanes), 4),
    )
    words = (_word(first * (width // group)), _word(key))
    _run(plan, weight.device, (weight, gradient, *states), plan.arguments((*words, *numbers)))


def group_of(width: int) -> int:
    """Return how many weights of a label share a scale, where states have 8 bits."""
    return _GROUP if width % _GROUP == 0 else width
