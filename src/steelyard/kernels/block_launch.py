"""Launches of the kernels in `block`: slopes of a pair loss over one block of labels, in place of its logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from steelyard.kernels.fused import Mask, Pair, Rebalanced, Rule, _word

DTYPES = (torch.float32, torch.bfloat16)
"""The dtypes of logits that the kernels take."""

_MARK = {torch.float32: 0x7FA5A5A5, torch.bfloat16: 0x7FA5}  # NaNs that no arithmetic makes
_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}
_TILE = (8, 256)  # rows and labels
_WARPS = 4
_PROGRAMS = 1056  # wanted at least, where there are rows enough: eight per multiprocessor of an H200
_LISTED = 256  # listed cells of one program
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

    The cost is float64, (); slopes by label are float32, (width,).
    """
    (n, width), stride, device = logits.shape, logits.stride(0), logits.device
    bits, mark = logits.view(_BITS[logits.dtype]), _MARK[logits.dtype]
    n_listed = len(listed.rows)
    picked = torch.empty(n_listed, dtype=bits.dtype, device=device)
    kernels = _kernels()
    groups = -(-n_listed // _LISTED)
    if n_listed:
        kernels.pick[(groups,)](
            bits, picked, listed.rows, listed.labels, n_listed, start, width, stride, mark, _LISTED
        )  # fmt: skip
    strips = -(-width // _TILE[1])
    chunks = max(1, min(-(-n // _TILE[0]), _PROGRAMS // strips))
    tiles = -(-n // _TILE[0])
    rows_each = -(-tiles // chunks) * _TILE[0]
    chunks = -(-n // rows_each)
    parts = torch.zeros(strips * chunks + groups, dtype=torch.float64, device=device)
    tensors, numbers, words, pair, how = _arguments(logits, terms)
    by_label: Tensor | None = None
    if terms.absent != 0:
        sums = torch.empty(chunks, width, dtype=torch.float32, device=device)
        kernels.slopes[(strips, chunks)](
            bits, *tensors, parts, sums, n, width, len(terms.bias), start, stride, rows_each, terms.absent, *numbers,
            *words, *pair, *how, cost, logits.dtype == torch.float32, mark, *_TILE, **_options(device, _WARPS),
        )  # fmt: skip
        by_label = sums[0] if chunks == 1 else sums.sum(0)
    else:
        logits.zero_()
    if n_listed:
        added = torch.zeros(width, dtype=torch.float64, device=device)
        kernels.put[(groups,)](
            bits, picked, *listed, *tensors, parts[strips * chunks :], added, n_listed, width, len(terms.bias), start,
            stride, terms.rule.negative, terms.rule.unknown, *numbers, *words, *pair, *how, terms.rule.assumed,
            logits.dtype == torch.float32, _LISTED, **_options(device, 4),
        )  # fmt: skip
        by_label = added.float() if by_label is None else added.add_(by_label).float()
    return parts.sum(), torch.zeros(width, device=device) if by_label is None else by_label


def _arguments(logits: Tensor, terms: Terms) -> tuple[tuple[Tensor, ...], Any, Any, Any, Any]:
    """Return tensors, numbers, words of the mask, constants of the pair and flags, as both kernels take them."""
    pair, mask, rebalanced = terms.pair, terms.mask, terms.rebalanced
    keep, items = (None, None) if mask is None else mask[:2]
    inverse = None if rebalanced is None else rebalanced.inverse
    given = (terms.bias, terms.by_label, terms.by_item, pair.shifts, inverse, terms.drawn, keep, items)
    tensors = tuple(terms.bias if x is None else x for x in given)  # what is not read has to be something
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
    return tensors, balance, words, constants, how


def _kernels() -> Any:
    """Return the module of kernels, which cannot be imported without Triton."""
    from steelyard.kernels import block

    return block


def _options(device: torch.device, warps: int) -> dict[str, int]:
    """Return options of a launch, which the interpreter does not take."""
    return {} if device.type == "cpu" else {"num_warps": warps}


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
    """Move weights (n, D), contiguous, and their states by one step; see the kernel `block_update.update`."""
    from steelyard.kernels import block_update

    n, width = weight.shape
    lanes = 1 << max(width - 1, 1).bit_length()
    rows = max(1, _LANES // lanes)
    given = [weight if state is None else state for state in states]
    block_update.update[(-(-n // rows),)](
        weight, gradient, *given, n, width, first, _word(key), *numbers, kind, states[2] is not None, stochastic, rows,
        lanes, **_options(weight.device, 4),
    )  # fmt: skip
