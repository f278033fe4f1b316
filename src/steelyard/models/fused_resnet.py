"""The four stages of ResNet-12 in training, forward and backward by hand: cuDNN's convolutions and our own kernels.

The same function as the plain modules. A stage writes and reads each map as seldom as it can, pooling comes before
rectifying (which is the same and a quarter of the work), weights are rounded to the arithmetic's precision all at once,
and the gradients of weights, for which nobody waits, are computed beside the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from steelyard.kernels import norms as kernels
from steelyard.models.fused import Beside, Norm, Stats, applied, maps_like, norm_of

_LEAST = 8  # channels of the images a convolution is given: tensor cores want no fewer
_PROGRAMS = 264  # of a sum: two for each multiprocessor of a large GPU
_SUM = {"BM": 256, "BC": 32, "num_warps": 4}
_POOLED_SUM = {"BM": 32, "BC": 32, "num_warps": 4}
_MAP = {"BM": 64, "BC": 64, "num_warps": 4}
_POOL = {"BM": 16, "BC": 64, "num_warps": 4}


class _Kept(NamedTuple):
    """What a stage's backward pass reads."""

    x: Tensor
    maps: list[Tensor]
    """Of the four convolutions; the last is the shortcut's."""
    inputs: list[Tensor]
    """Of the second and third convolution."""
    stats: list[Stats]
    code: Tensor
    tops: tuple[Tensor, Tensor]


class Plan:
    """The parameters of the stages, in order, and what the kernels need beside them."""

    def __init__(self, stages: Sequence[nn.Module], device: torch.device) -> None:
        pairs: list[tuple[Any, Any]] = [(m[0], m[1]) for stage in stages for m in _convolutions(stage)]
        self.weights: list[Tensor] = [convolution.weight for convolution, _ in pairs]
        counters = torch.zeros(len(pairs), 64, dtype=torch.int32, device=device)
        self.norms = [norm_of(layer, counters[i]) for i, (_, layer) in enumerate(pairs)]
        self.aside, self.branch = Beside(device), Beside(device)
        self.n_stages = len(stages)


def fused_maps(plan: Plan, x: Tensor) -> Tensor:
    """Return the maps that the stages of `plan` make of images x (B, C, H, W), H and W multiples of 16."""
    return applied(_Stages, plan, x)


class _Stages(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: Plan, *parameters: Tensor) -> Tensor:
        weights = [torch.empty_like(w, dtype=x.dtype, memory_format=torch.channels_last) for w in plan.weights]
        full = [w.detach() for w in plan.weights]
        torch._foreach_copy_(weights[:4], full[:4])
        with plan.aside.fork():
            torch._foreach_copy_(weights[4:], full[4:])
        short = max(_LEAST - x.shape[1], 0)
        if short:
            x = nn.functional.pad(x, (0, 0, 0, 0, 0, short))
            for i in (0, 3):
                weights[i] = nn.functional.pad(weights[i], (0, 0, 0, 0, 0, short))
        x = x.contiguous(memory_format=torch.channels_last)
        kept = []
        for stage in range(plan.n_stages):
            some = slice(4 * stage, 4 * stage + 4)
            x, keep = _forward(x, weights[some], plan.norms[some], plan.branch)
            kept.append(keep)
            if stage == 0:
                plan.aside.join()
        ctx.plan, ctx.kept, ctx.weights = plan, kept, weights
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        plan: Plan = ctx.plan
        of_weights = [torch.empty_like(w) for w in plan.weights]
        slopes: list[list[Tensor]] = []
        grads = [g.contiguous(memory_format=torch.channels_last)]
        held: list[Tensor] = [*of_weights]  # what is read or written beside, until it is joined
        for stage in reversed(range(plan.n_stages)):
            some = slice(4 * stage, 4 * stage + 4)
            out = of_weights[some]
            grads, sums = _backward(grads, ctx.kept[stage], ctx.weights[some], plan.norms[some], plan, out, held, stage)
            slopes = sums + slopes
        plan.aside.join()
        ctx.kept = None
        return None, None, *of_weights, *(s for pair in slopes for s in pair)


def _forward(x: Tensor, weights: list[Tensor], norms: list[Norm], branch: Beside) -> tuple[Tensor, _Kept]:
    """One stage: three convolutions, the shortcut's beside them, and pooling."""
    with branch.fork():
        shortcut = _convolve(x, weights[3])
        of_shortcut = _statistics(shortcut, norms[3])
    first = _convolve(x, weights[0])
    stats = [_statistics(first, norms[0])]
    a = _rectified(first, stats[0], norms[0])
    second = _convolve(a, weights[1])
    stats.append(_statistics(second, norms[1]))
    b = _rectified(second, stats[1], norms[1])
    third = _convolve(b, weights[2])
    stats += [_statistics(third, norms[2]), of_shortcut]
    branch.join()
    batch, channels, height, width = third.shape
    y, x_top, z_top = (maps_like(third, batch, channels, height // 2, width // 2) for _ in range(3))
    code = torch.empty_like(y, dtype=torch.uint8)
    n, grid = _over(y)
    kernels.pooled[grid](
        third, shortcut, y, code, x_top, z_top,
        *stats[2], norms[2].weight, norms[2].bias, *stats[3], norms[3].weight, norms[3].bias, n, width, channels,
        **_POOL,
    )  # fmt: skip
    return y, _Kept(x, [first, second, third, shortcut], [a, b], stats, code, (x_top, z_top))


def _backward(
    grads: list[Tensor],
    kept: _Kept,
    weights: list[Tensor],
    norms: list[Norm],
    plan: Plan,
    of_weights: list[Tensor],
    held: list[Tensor],
    stage: int,
) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Return the gradients whose sum is that of the stage's input, and those of its normalisations' parameters.

    The gradients of its weights are written to `of_weights` beside it; what they read goes into `held`.
    """
    rough: list[Tensor] = []

    def aside(i: int, g: Tensor, x: Tensor) -> None:
        held.append(g)
        with plan.aside.fork():
            slope = _convolve_back(g, x, weights[i], (False, True, False))[1]
            rough.append(slope[:, : of_weights[i].shape[1]].contiguous(memory_format=torch.channels_last))
            if i == 0:  # the last of them
                torch._foreach_copy_([of_weights[k] for k in (3, 2, 1, 0)], rough)

    first, second, third, shortcut = kept.maps
    _, channels, _, width = third.shape
    g, h = grads[0], grads[-1]
    n, grid = _over(g)
    sums = torch.empty(3, channels, device=g.device)
    each, parts, summing = _sums(n, channels, 3, g.device, _POOLED_SUM)
    kernels.pooled_sums[summing](
        g, h, kept.code, *kept.tops, parts, norms[2].counters, *kept.stats[2], *kept.stats[3], sums, n, each,
        channels, len(grads) > 1, **_POOLED_SUM,
    )  # fmt: skip
    g3, gs = torch.empty_like(third), torch.empty_like(shortcut)
    kernels.pooled_back[grid](
        g, h, kept.code, third, shortcut, g3, gs,
        *kept.stats[2], norms[2].weight, *kept.stats[3], norms[3].weight, sums, n, width, channels,
        len(grads) > 1, **_POOL,
    )  # fmt: skip
    if stage > 0:
        with plan.branch.fork():
            by_shortcut = _convolve_back(gs, kept.x, weights[3])[0]
    aside(3, gs, kept.x)
    aside(2, g3, kept.inputs[1])
    g2, sums2 = _rectified_back(_convolve_back(g3, kept.inputs[1], weights[2])[0], second, kept.stats[1], norms[1])
    aside(1, g2, kept.inputs[0])
    g1, sums1 = _rectified_back(_convolve_back(g2, kept.inputs[0], weights[1])[0], first, kept.stats[0], norms[0])
    aside(0, g1, kept.x)
    slopes = [[sums1[1], sums1[0]], [sums2[1], sums2[0]], [sums[1], sums[0]], [sums[2], sums[0]]]
    if stage == 0:
        return [], slopes
    by_body = _convolve_back(g1, kept.x, weights[0])[0]
    plan.branch.join()
    return [by_body, by_shortcut.contiguous(memory_format=torch.channels_last)], slopes


def _statistics(x: Tensor, norm: Norm) -> Stats:
    channels = x.shape[1]
    mean, inverse = torch.empty(2, channels, device=x.device)
    n = x.numel() // channels
    each, parts, grid = _sums(n, channels, 2, x.device, _SUM)
    kernels.statistics[grid](
        x, parts, norm.counters, mean, inverse, norm.running_mean, norm.running_var, norm.n_seen, n, each, channels,
        norm.eps, norm.momentum, **_SUM,
    )  # fmt: skip
    return Stats(mean, inverse)


def _rectified(x: Tensor, stats: Stats, norm: Norm) -> Tensor:
    y = torch.empty_like(x)
    n, grid = _over(x)
    kernels.rectified[grid](x, y, *stats, norm.weight, norm.bias, n, x.shape[1], **_MAP)
    return y


def _rectified_back(g: Tensor, x: Tensor, stats: Stats, norm: Norm) -> tuple[Tensor, Tensor]:
    channels = x.shape[1]
    g = g.contiguous(memory_format=torch.channels_last)
    n, grid = _over(x)
    sums, out = torch.empty(2, channels, device=x.device), torch.empty_like(x)
    each, parts, summing = _sums(n, channels, 2, x.device, _SUM)
    constants = (*stats, norm.weight, norm.bias)
    kernels.rectified_sums[summing](g, x, parts, norm.counters, *constants, sums, n, each, channels, **_SUM)
    kernels.rectified_back[grid](g, x, out, *constants, sums, n, channels, **_MAP)
    return out, sums


def _convolve(x: Tensor, weight: Tensor) -> Tensor:
    side = weight.shape[2] // 2
    out: Tensor = torch.ops.aten.convolution(x, weight, None, [1, 1], [side, side], [1, 1], False, [0, 0], 1)
    return out.contiguous(memory_format=torch.channels_last)


def _convolve_back(
    g: Tensor, x: Tensor, weight: Tensor, mask: tuple[bool, bool, bool] = (True, False, False)
) -> tuple[Tensor, Tensor, Tensor]:
    side = weight.shape[2] // 2
    out: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        g, x, weight, None, [1, 1], [side, side], [1, 1], False, [0, 0], 1, mask
    )
    return out


def _over(x: Tensor) -> tuple[int, Any]:
    """The rows of a map, and a grid that covers them once."""
    n = x.numel() // x.shape[1]
    return n, lambda meta: (-(-n // meta["BM"]), x.shape[1] // meta["BC"])


def _sums(
    n: int, channels: int, n_sums: int, device: torch.device, tile: dict[str, int]
) -> tuple[int, Tensor, tuple[int, int]]:
    """(rows a program, room for its parts, grid) of a sum over `n` rows."""
    height, across = tile["BM"], channels // tile["BC"]
    down = max(1, min(-(-n // height), _PROGRAMS // across, kernels.PARTS.value))
    each = -(-n // (down * height)) * height
    down = -(-n // each)
    return each, torch.empty(down * n_sums * channels, device=device), (down, across)


def _convolutions(stage: nn.Module) -> list[nn.Sequential]:
    """The stage's convolutions with their normalisations: the body's three, then the shortcut's."""
    body: Any = stage.body
    shortcut: Any = stage.shortcut
    return [body[0], body[2], body[4], shortcut]
