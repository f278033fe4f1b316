"""Launches of the kernels in `block`: slopes of a pair loss over one block of labels, in place of its logits."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steelyard.kernels import fused
from steelyard.kernels.fused import KernelPair, KernelRebalanced, KernelRule, Mask, _Launch, _plan, _run, _word, _words

DTYPES = (torch.float32, torch.bfloat16)
"""The dtypes of logits that the kernels take."""

_MARK = {torch.float32: -0x800000, torch.bfloat16: -0x80}  # the bits of −∞
_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}
_TILE, _WARPS, _STAGES = (4, 512), 4, 3  # rows and labels of a tile
_PROGRAMS = 4224  # at least, where there are rows enough: 32 per multiprocessor of an H200
_MOST_TILES = 64  # of one program: a product of so many numbers up to 2 is finite
_LISTED, _LISTED_WARPS, _LISTED_PROGRAMS = 256, 4, 264  # listed cells that a program sees at a time, and programs
_SETTLED, _SETTLED_WARPS = (8, 128), 4  # chunks of rows and labels that a program adds up at a time
_GROUP = 256
_LANES, _LANE_WARPS, _HINT = 2048, 4, True  # weights and warps of a program; whether gradients are kept in the cache


class Listed(NamedTuple):
    """Listed cells of a batch: row, label (int32) and value (float32) of each."""

    rows: Tensor
    labels: Tensor
    values: Tensor


class Terms(NamedTuple):
    """All that the slope of a cell depends on, except its logit.

    `pair` is None where the kernels do not know the loss, `absent` the coefficient of cells that are not listed.
    `by_label` (L,) and `by_item` (B,) are weights, `by_cell` (n,) those of listed cells, `drawn` (B,) is Σ_j present_j
    inverse_j for re-balanced ones. All tensors are float32, and those by label cover all labels.
    """

    pair: KernelPair | None
    rule: KernelRule
    absent: float
    bias: Tensor
    by_label: Tensor | None = None
    by_item: Tensor | None = None
    by_cell: Tensor | None = None
    rebalanced: KernelRebalanced | None = None
    drawn: Tensor | None = None
    mask: Mask | None = None


class _Launches(NamedTuple):
    """Launches of the kernels over a block of one shape, and the number of chunks that its rows are cut into."""

    pick: _Launch
    slopes: _Launch
    put: _Launch
    chunks: int


@lru_cache(maxsize=256)
def _launches(
    block: tuple[Any, ...], pair: tuple[Any, ...], how: tuple[Any, ...], before: int, sizes: tuple[Any, ...]
) -> _Launches:
    """Return what is launched over a block.

    Args:
        block: its device, which a plan is compiled for, rows, labels, all labels, stride and dtype.
        pair: the constants of the loss.
        how: flags; of the last four, two are for `slopes` alone and two for `put`.
        before: costs of listed cells, before those of the programs of `slopes`.
        sizes: the constants of this module.
    """
    _, n, width, n_labels, stride, dtype = block
    tile, warps, stages, programs = sizes
    *both, weighed, product, by_cell, assumed = how
    wide, strips, tiles = dtype == torch.float32, -(-width // tile[1]), -(-n // tile[0])
    rows_each = min(-(-tiles // max(1, min(tiles, programs // strips))), _MOST_TILES) * tile[0]
    chunks = -(-n // rows_each)
    every = (*(x for part in pair for x in (part if isinstance(part, tuple) else (part,))), *both)
    return _Launches(
        _Launch("pick", before, (width, stride), (_MARK[dtype], _LISTED), _LISTED_WARPS),
        _Launch(
            "slopes", strips * chunks, (n, width, n_labels, stride, rows_each),
            (*every, weighed, product, wide, before, stages, *tile), warps,
        ),
        _Launch("put", before, (width, n_labels, stride), (*every, by_cell, assumed, wide, _LISTED), _LISTED_WARPS),
        chunks,
    )  # fmt: skip


def slopes_(logits: Tensor, start: int, terms: Terms, listed: Listed) -> tuple[Tensor, Tensor]:
    """Replace logits (B, width) without bias, of labels from `start` on, by slopes.

    Returns the slopes summed by label, float64 (chunks, width), still to be added over chunks of rows, and numbers of
    float64 that add up to the cost.
    """
    (n, width), device, n_listed = logits.shape, logits.device, listed.rows.shape[0]
    pair, rule = terms.pair, terms.rule
    assert pair is not None
    bits = logits.view(_BITS[logits.dtype])
    tensors, numbers, how = _arguments(pair, terms)
    weighed = terms.absent != 1 or any(how[1:4])
    # costs of a softplus weighed by label alone add up to a logarithm of products
    product = pair.kind == fused.SOFTPLUS and pair.gamma[1] == 0 and pair.smoothing == 0 and not (how[2] or how[3])
    before = 0 if n_listed == 0 else _LISTED_PROGRAMS if device.type == "cuda" else 3
    made = _launches(
        (device, n, width, terms.bias.shape[0], logits.stride(0), logits.dtype), pair[:9],
        (*how, weighed, product, terms.by_cell is not None, rule.assumed), before, (_TILE, _WARPS, _STAGES, _PROGRAMS),
    )  # fmt: skip
    costs = torch.empty(before + (made.slopes.programs if terms.absent else 0), dtype=torch.float64, device=device)
    if n_listed:
        picked = torch.empty(n_listed, dtype=bits.dtype, device=device)
        _run(made.pick, device, (bits, picked, listed.rows, listed.labels), made.pick.arguments((n_listed, start)))
    if terms.absent:
        sums = torch.empty(made.chunks, width, dtype=torch.float64, device=device)
        _run(made.slopes, device, (bits, *tensors, costs, sums), made.slopes.arguments((start, terms.absent, *numbers)))
    else:
        sums = torch.zeros(1, width, dtype=torch.float64, device=device)
        logits.zero_()
    if n_listed:
        given = (bits, picked, *listed, terms.by_cell, *tensors, costs, sums)
        _run(made.put, device, given, made.put.arguments((n_listed, start, rule.negative, rule.unknown, *numbers)))
    return sums, costs


def _arguments(pair: KernelPair, terms: Terms) -> tuple[tuple[Tensor | None, ...], tuple[float, ...], Any]:
    """Return tensors, numbers and flags, as `slopes` and `put` both take them."""
    mask, rebalanced = terms.mask, terms.rebalanced
    keep, items = (None, None) if mask is None else mask[:2]
    inverse = None if rebalanced is None else rebalanced.inverse
    tensors = (terms.bias, terms.by_label, terms.by_item, pair.shifts, inverse, terms.drawn, keep, items)
    balance = (0.0, 1.0, 0.0) if rebalanced is None else rebalanced[1:]
    how = (
        0 if pair.shifts is None else len(pair.shifts), terms.by_label is not None, terms.by_item is not None,
        rebalanced is not None, mask is not None, items is not None,
    )  # fmt: skip
    return tensors, (*balance, *_words(mask)), how


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
        lambda: _Launch(
            "update", -(-rows // each), (rows, group), (kind, small, stochastic, _HINT, each, lanes), _LANE_WARPS
        ),
    )
    words = (_word(first * (width // group)), _word(key))
    _run(plan, weight.device, (weight, gradient, *states), plan.arguments((*words, *numbers)))


def settle_(
    costs: Tensor, bias: Tensor, sums: Tensor, states: list[Tensor | None], numbers: tuple[float, ...], kind: int
) -> Tensor:
    """Return scale · Σ costs, and move a bias (n,) by scale · sums (parts, n); see the kernel `block_update.settle`."""
    n, device, value = bias.shape[0], bias.device, bias.new_empty(())
    plan = _plan(
        ("settle", device.index, n, kind, _SETTLED),
        lambda: _Launch("settle", -(-n // _SETTLED[1]), (n,), (kind, *_SETTLED), _SETTLED_WARPS),
    )
    _run(plan, device, (sums, costs, value, bias, *states), plan.arguments((sums.shape[0], costs.shape[0], *numbers)))
    return value


def group_of(width: int) -> int:
    """Return how many weights of a label share a scale, where states have 8 bits."""
    return _GROUP if width % _GROUP == 0 else width
