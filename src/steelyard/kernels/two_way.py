"""The two-way loss on a GPU: what the kernels of `margins` are launched with, and their place in differentiation.

The forward pass reads logits and targets once and keeps four numbers of each row and each label; the backward pass
reads them again and writes the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from steelyard.kernels import fused

NOT_TWICE = "TwoWay has no second derivatives: call backward without create_graph"

# rows and labels of a tile, warps of a program, programs for each multiprocessor:
_TILE, _WARPS, _PROGRAMS = (16, 128), 4, 16
_REGISTERS = 168  # of a thread: three programs are then on a multiprocessor at once, where there would be two
_GRADIENT_TILE, _GRADIENT_WARPS, _GRADIENT_PROGRAMS = (8, 128), 4, 32
_GROUP, _GROUP_PROGRAMS = (16, 128), 16  # rows or labels whose partial sums are merged together, and how many of them
_LAST_GROUP, _LAST_GROUPS = (128, 16), 16  # the same in the last program of the first pass, which takes so many at most
_MOST_PROGRAMS = 8192  # as many as `margins.ROOM`


def value(logits: Tensor, targets: Tensor, b: Tensor | None, t_neg: float, t_pos: float) -> Tensor:
    """Return the two-way loss, float32.

    Args:
        logits: (B, L), any strides, not empty, a dtype of `fused.DTYPES`.
        targets: (B, L) of any dtype (1, 0, soft, −1 unknown), or with `b` the coefficients of positives.
        b: (B, L), the coefficients of negatives.
        t_neg: the temperature of negatives.
        t_pos: the temperature of positives.
    """
    if targets.dtype == torch.bool:
        targets = targets.view(torch.uint8)
    return _apply(logits, targets, b, (t_neg, t_pos))


class _FusedTwoWay(torch.autograd.Function):
    """The kernels as a function of logits."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, b: Tensor | None, temperatures: tuple[float, float]
    ) -> Tensor:
        n, n_labels = logits.shape
        device = logits.device
        plan = _planned("partials", logits, targets, b)
        n_chunks, n_blocks = plan.whole[2], plan.programs // plan.whole[2]
        out = torch.empty((), dtype=torch.float32, device=device)
        stats = torch.empty(4 * (n + n_labels) + 2, dtype=torch.float32, device=device)
        partial = torch.empty(4 * (n_chunks * n + n_blocks * n_labels), dtype=torch.float32, device=device)
        parts, counter = fused._workspace(device)
        tensors = (logits, targets, b, partial, stats, out, counter)
        fused._run(plan, device, tensors, plan.arguments(temperatures))
        if not _settles(plan):
            whole = (n, n_labels, n_chunks, n_blocks)
            last = fused._plan(("settled", device.index, *whole), lambda: _merging(device, whole))
            fused._run(last, device, (partial, stats, out, parts, counter), last.arguments(temperatures))
        ctx.save_for_backward(logits, targets, b, stats)
        ctx.temperatures = temperatures
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(NOT_TWICE)
        logits, targets, b, stats = ctx.saved_tensors
        grad = torch.empty_like(logits, memory_format=torch.contiguous_format)
        plan = _planned("gradient", logits, targets, b)
        tensors = (logits, targets, b, stats, upstream, grad)
        fused._run(plan, logits.device, tensors, plan.arguments(ctx.temperatures))
        return grad, None, None, None


_apply: Callable[[Tensor, Tensor, Tensor | None, tuple[float, float]], Tensor] = super(
    torch.autograd.Function, _FusedTwoWay
).apply
"""`_FusedTwoWay.apply` without its look at functorch's transforms, under which nothing is fused."""


def _planned(kernel: str, logits: Tensor, targets: Tensor, b: Tensor | None) -> fused._Launch:
    """Return how the matrix is cut into tiles by the first pass ("partials") or the second ("gradient")."""
    key = (
        kernel, logits.device.index, logits.shape, logits.dtype, logits.stride(), targets.dtype, targets.stride(),
        None if b is None else (b.dtype, b.stride()),
    )  # fmt: skip

    def make() -> fused._Launch:
        is_first = kernel == "partials"
        (rows, columns), warps, programs = (
            (_TILE, _WARPS, _PROGRAMS) if is_first else (_GRADIENT_TILE, _GRADIENT_WARPS, _GRADIENT_PROGRAMS)
        )
        n, n_labels = logits.shape
        blocks, across = -(-n // rows), -(-n_labels // columns)
        tiles = -(-across // max(1, min(across, fused._room(logits.device, programs) // blocks)))
        chunks = -(-across // tiles)
        strides = (*logits.stride(), *targets.stride(), *((0, 0) if b is None else b.stride()))
        whole = (n, n_labels, chunks, tiles, *strides)
        if not is_first:
            return fused._Launch(kernel, blocks * chunks, whole, (b is not None, rows, columns), warps)
        width, depth = _LAST_GROUP
        groups = -(-n // width) * -(-chunks // depth) + -(-n_labels // width) * -(-blocks // depth)
        settles = groups <= _LAST_GROUPS
        fixed = (b is not None, settles, rows, columns, width, depth)
        return fused._Launch(kernel, blocks * chunks, whole, fixed, warps, None if settles else _REGISTERS)

    return fused._plan(key, make)


def _settles(plan: fused._Launch) -> bool:
    """Return whether the first pass merges its partial sums too."""
    return bool(plan.fixed[1])


def _merging(device: torch.device, whole: tuple[int, ...]) -> fused._Launch:
    """Return how many programs merge the partial sums of so many rows and labels."""
    groups = sum(-(-n // _GROUP[0]) for n in whole[:2])
    programs = min(_MOST_PROGRAMS, fused._n_programs(groups, device, _GROUP_PROGRAMS))
    return fused._Launch("settled", programs, whole, _GROUP, 4)
