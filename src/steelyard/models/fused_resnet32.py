"""ResNet-32 in training, forward and backward by hand: kernels of our own throughout.

The same function as the plain modules. cuDNN's tiles are made for more channels than 16 to 64; here a convolution takes
the sums that the next normalisation needs, and maps have margins of zeros (`kernels.convolutions`), so that it asks
nothing about edges. The gradients of weights, for which nobody waits, are computed beside the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from steelyard.kernels import convolutions as kernels
from steelyard.models.fused import Beside, Norm, Stats, applied, maps_like, norm_of

LEAST = 16
"""Channels of the images that a convolution is given: fewer are filled up with zeros."""
_PROGRAMS = {16: 264, 32: 132, 64: 132}  # that share a sum, at most, by the channels that are read
_PARTS = {16: 66, 32: 33, 64: 15}  # of the gradient of the weights of a layer, by its channels
_MAP = {"BM": 64, "num_warps": 4}
_CONVOLVED = {
    16: {"ROW": False, "BM": 128, "num_warps": 4, "num_stages": 3},
    32: {"ROW": False, "BM": 128, "num_warps": 4, "num_stages": 3},
    64: {"ROW": False, "BM": 64, "num_warps": 4, "num_stages": 3},
}
"""By the channels that are read."""
_WEIGHTS = {
    16: {"ROW": True, "BM": 64, "num_warps": 4, "num_stages": 3},
    32: {"ROW": True, "BM": 128, "num_warps": 4, "num_stages": 3},
    64: {"ROW": False, "BM": 64, "num_warps": 4, "num_stages": 3},
}


class _Block(NamedTuple):
    """What the backward pass reads of a block: what its convolutions read, and what they made."""

    x: Tensor
    first: Tensor
    between: Tensor
    second: Tensor
    stats: tuple[Stats, Stats]
    out: Tensor


class Plan:
    """The parameters of the network, in order, and what the kernels need beside them."""

    def __init__(self, stem: nn.Module, blocks: Sequence[nn.Module], device: torch.device) -> None:
        first: Any = stem
        bodies: list[Any] = [block.body for block in blocks]
        pairs = [first[0], *(part for body in bodies for part in (body[0], body[2]))]
        self.weights: list[Tensor] = [pair[0].weight for pair in pairs]
        self.strides: list[int] = [pair[0].stride[0] for pair in pairs]
        counters = torch.zeros(len(pairs), 1, dtype=torch.int32, device=device)
        self.norms = [norm_of(pair[1], counters[i]) for i, pair in enumerate(pairs)]
        self.aside = Beside(device)


def fused_maps(plan: Plan, x: Tensor) -> Tensor:
    """Return the maps that the network of `plan` makes of images x (B, C, H, W)."""
    return applied(_Network, plan, x)


class _Network(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: Plan, *parameters: Tensor) -> Tensor:
        weights = [torch.empty_like(w, dtype=x.dtype, memory_format=torch.channels_last) for w in plan.weights]
        torch._foreach_copy_(weights, [w.detach() for w in plan.weights])
        short = LEAST - x.shape[1]
        x = nn.functional.pad(x, (0, 1, 0, 1, 0, short)).contiguous(memory_format=torch.channels_last)
        if short:
            weights[0] = nn.functional.pad(weights[0], (0, 0, 0, 0, 0, short))
            weights[0] = weights[0].contiguous(memory_format=torch.channels_last)
        y, stats = _convolve(x, weights[0], 1, plan.norms[0])
        start = (x, y, stats)
        a = _join(y, None, stats, plan.norms[0])
        blocks = []
        for k in range(1, len(weights), 2):
            first, of_first = _convolve(a, weights[k], plan.strides[k], plan.norms[k])
            between = _join(first, None, of_first, plan.norms[k])
            second, of_second = _convolve(between, weights[k + 1], 1, plan.norms[k + 1])
            out = _join(second, a, of_second, plan.norms[k + 1])
            blocks.append(_Block(a, first, between, second, (of_first, of_second), out))
            a = out
        ctx.plan, ctx.weights, ctx.start, ctx.blocks = plan, weights, start, blocks
        return a[:, :, :-1, :-1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        plan: Plan = ctx.plan
        weights: list[Tensor] = ctx.weights
        blocks: list[_Block] = ctx.blocks
        x, y, stats = ctx.start
        of_weights = _WeightGradients(plan, weights)
        slopes: list[Tensor] = [g] * len(weights)  # (2, C): of the bias and of the weight
        last = blocks[-1]
        g = nn.functional.pad(g.to(x.dtype), (0, 1, 0, 1)).contiguous(memory_format=torch.channels_last)
        g, slopes[-1] = _masked(g, last.out, last.second, last.stats[1], plan.norms[-1])
        for k in reversed(range(1, len(weights), 2)):
            block = blocks[k // 2]
            of_second = _normalised_back(g, block.second, block.stats[1], plan.norms[k + 1], slopes[k + 1])
            of_weights.add(k + 1, block.between, of_second)
            here = _Before(block.first, block.between, block.stats[0], plan.norms[k])
            through, slopes[k] = _convolve_back(of_second, weights[k + 1], 1, here)
            of_first = _normalised_back(through, block.first, block.stats[0], plan.norms[k], slopes[k])
            of_weights.add(k, block.x, of_first)
            made, of_made = (y, stats) if k == 1 else (blocks[k // 2 - 1].second, blocks[k // 2 - 1].stats[1])
            here = _Before(made, block.x, of_made, plan.norms[k - 1], g)
            g, slopes[k - 1] = _convolve_back(of_first, weights[k], plan.strides[k], here)
        of_weights.add(0, x, _normalised_back(g, y, stats, plan.norms[0], slopes[0]))
        ctx.blocks = ctx.start = None
        return None, None, *of_weights.done(), *(s for pair in slopes for s in (pair[1], pair[0]))


class _Before(NamedTuple):
    """What stood before a convolution: y was normalised and became a, which was convolved.

    Where `a` went by a shortcut too, `short` is the gradient of the shortcut's far end.
    """

    y: Tensor
    a: Tensor
    stats: Stats
    norm: Norm
    short: Tensor | None = None


class _WeightGradients:
    """The gradients of all weights: those of layers of one shape are parts of one buffer, summed in one launch."""

    def __init__(self, plan: Plan, weights: list[Tensor]) -> None:
        self.plan, self.weights = plan, weights
        shapes = [tuple(w.shape[:2]) for w in weights]
        self.at = [shapes[:k].count(shape) for k, shape in enumerate(shapes)]
        self.parts = {
            (o, i): torch.empty(shapes.count((o, i)), _PARTS[o], o, 9, i, device=weights[0].device)
            for o, i in dict.fromkeys(shapes)
        }
        self.sums = {(o, i): torch.empty(len(p), o, 3, 3, i, device=p.device) for (o, i), p in self.parts.items()}
        self.held: list[Tensor] = []  # what is read beside, until it is joined

    def add(self, k: int, x: Tensor, g: Tensor) -> None:
        """Begin the gradient of weights k, beside what follows: of x, convolved to g's map."""
        outputs, inputs = self.weights[k].shape[:2]
        part = self.parts[outputs, inputs][self.at[k]]
        tile = _WEIGHTS[inputs]
        n = g.numel() // outputs
        each = -(-n // (len(part) * tile["BM"])) * tile["BM"]
        self.held += [x, g]
        with self.plan.aside.fork():
            kernels.weights_back[(len(part), 3 if tile["ROW"] else 9)](
                x, g, part, n, x.numel() // inputs, each, *_sides(x), inputs, outputs, self.plan.strides[k], **tile
            )

    def done(self) -> list[Tensor]:
        """Return the gradients, as the parameters lie."""
        with self.plan.aside.fork():
            for (o, i), part in self.parts.items():
                n, out = o * 9 * i, self.sums[o, i]
                kernels.gathered[(-(-n // 128), len(part))](part, out, part.shape[1], n, BLOCK=128, num_warps=4)
        self.plan.aside.join()
        found = []
        for k, w in enumerate(self.weights):
            of_layer = self.sums[w.shape[0], w.shape[1]][self.at[k]].permute(0, 3, 1, 2)
            n_channels = self.plan.weights[k].shape[1]
            if n_channels < w.shape[1]:
                of_layer = of_layer[:, :n_channels].contiguous(memory_format=torch.channels_last)
            found.append(of_layer)
        self.held.clear()
        return found


def _sides(x: Tensor) -> tuple[int, int]:
    """(height, width) of maps without their margins."""
    return x.shape[2] - 1, x.shape[3] - 1


def _n_real(x: Tensor) -> int:
    """How many places maps have, without their margins."""
    return x.shape[0] * (x.shape[2] - 1) * (x.shape[3] - 1)


def _convolve(x: Tensor, weight: Tensor, stride: int, norm: Norm) -> tuple[Tensor, Stats]:
    """Return x convolved, and the statistics of the result."""
    (height, width), (outputs, inputs) = _sides(x), weight.shape[:2]
    y = maps_like(x, x.shape[0], outputs, -(-height // stride) + 1, -(-width // stride) + 1)
    found = Stats(*torch.empty(2, outputs, device=x.device))
    n, tile = y.numel() // outputs, _CONVOLVED[inputs]
    each, part, grid = _sums(n, outputs, x.device, tile, _PROGRAMS[inputs])
    kernels.convolved[grid](
        x, weight, y, part, norm.counters, *found, norm.running_mean, norm.running_var, norm.n_seen, n,
        x.numel() // inputs, each, _n_real(y), norm.eps, norm.momentum, height, width, inputs, outputs, stride, **tile,
    )  # fmt: skip
    return y, found


def _join(y: Tensor, short: Tensor | None, stats: Stats, norm: Norm) -> Tensor:
    """Return max(0, normalised y + shortcut)."""
    channels, out = y.shape[1], torch.empty_like(y)
    n = y.numel() // channels
    kind = 0 if short is None else 1 if short.shape == y.shape else 2
    far = y if short is None else short
    kernels.joined[(-(-n // _MAP["BM"]),)](
        y, far, out, *stats, norm.weight, norm.bias, n, *_sides(far), channels, channels - far.shape[1], kind, **_MAP
    )
    return out


def _masked(g: Tensor, a: Tensor, y: Tensor, stats: Stats, norm: Norm) -> tuple[Tensor, Tensor]:
    channels, out = y.shape[1], torch.empty_like(y)
    n, sums = y.numel() // channels, torch.empty(2, channels, device=y.device)
    each, part, grid = _sums(n, channels, y.device, _MAP, _PROGRAMS[channels])
    kernels.masked[grid](g, a, y, out, part, norm.counters, sums, *stats, n, each, channels, **_MAP)
    return out, sums


def _normalised_back(g: Tensor, y: Tensor, stats: Stats, norm: Norm, sums: Tensor) -> Tensor:
    channels, out = y.shape[1], torch.empty_like(y)
    n = y.numel() // channels
    kernels.normalised_back[(-(-n // _MAP["BM"]),)](
        g, y, out, *stats, norm.weight, sums, n, _n_real(y), *_sides(y), channels, **_MAP
    )
    return out


def _convolve_back(g: Tensor, weight: Tensor, stride: int, before: _Before) -> tuple[Tensor, Tensor]:
    """Return the gradient of what stood before a convolution, past its rectifier, and its sums."""
    y, a, stats, norm, short = before
    outputs, inputs = weight.shape[:2]
    out, sums = torch.empty_like(y), torch.empty(2, inputs, device=y.device)
    n, tile = y.numel() // inputs, _CONVOLVED[outputs] | ({"ROW": False} if stride > 1 else {})
    each, part, grid = _sums(n, inputs, y.device, tile, _PROGRAMS[outputs])
    kind = 0 if short is None else stride
    kernels.convolved_back[grid](
        g, weight, out, y, a, y if short is None else short, *stats, part, norm.counters, sums, n,
        g.numel() // outputs, each, *_sides(y), inputs, outputs, stride, kind, **tile,
    )  # fmt: skip
    return out, sums


def _sums(
    n: int, channels: int, device: torch.device, tile: dict[str, int], most: int
) -> tuple[int, Tensor, tuple[int]]:
    """(rows a program, room for its parts, grid) of a sum over `n` rows by `most` programs or fewer."""
    height = tile["BM"]
    each = -(-n // (min(-(-n // height), most) * height)) * height
    down = -(-n // each)
    return each, torch.empty(down * 2 * channels, device=device), (down,)
