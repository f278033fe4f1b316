"""What networks that are trained by kernels of our own share: normalisations, and work beside the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor


def applied(function: type[torch.autograd.Function], plan: Any, x: Tensor) -> Tensor:
    """Return the maps that `function` makes of images x (B, C, H, W), in the precision of the autocast around it.

    plan: has the network's `weights` and `norms`, whose gradients the function gives, in that order.
    """
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    parameters = [*plan.weights, *(p for norm in plan.norms for p in (norm.weight, norm.bias))]
    with torch.autocast(device, enabled=False):
        maps: Tensor = function.apply(x.to(dtype), plan, *parameters)
    return maps


def maps_like(x: Tensor, *shape: int) -> Tensor:
    """Return room for maps of this shape, of the kind of `x`, channels last."""
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


class Norm(NamedTuple):
    """A batch normalisation: its parameters, running statistics, and counters for the sums of a step."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    n_seen: Tensor
    counters: Tensor
    eps: float
    momentum: float


def norm_of(layer: Any, counters: Tensor) -> Norm:
    """Return what kernels need of a `BatchNorm2d`."""
    return Norm(
        layer.weight,
        layer.bias,
        layer.running_mean,
        layer.running_var,
        layer.num_batches_tracked,
        counters,
        layer.eps,
        layer.momentum,
    )


class Stats(NamedTuple):
    """Of a batch, by channel."""

    mean: Tensor
    inverse: Tensor


class Beside:
    """Work that runs beside what follows, until it is joined. On a CPU it runs in its turn.

    What is made there may be let go at once; what it reads of others must be held until it is joined.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def fork(self) -> Iterator[None]:
        """Begin, when what was asked for so far is done."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Let what follows wait for it."""
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
