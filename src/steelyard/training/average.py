"""An exponential moving average of the weights."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class Average:
    """A copy of a model whose parameters follow it: θ̄ ← d θ̄ + (1 − d) θ a step, d = min(decay, (1 + t)/(10 + t)).

    The ramp of d forgets the untrained weights. Floating buffers follow in the same way, others are copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay, self.n_updates = decay, 0

    def share(self, after: int) -> float:
        """Return 1 − d of the update that follows `after` others."""
        return 1 - min(self.decay, (1 + after) / (10 + after))

    def update(self, model: nn.Module) -> None:
        """Follow `model` after a step."""
        self.follow(model, self.share(self.n_updates))
        self.n_updates += 1

    @torch.no_grad()
    def follow(self, model: nn.Module, share: float | Tensor) -> None:
        """Move the share 1 − d, a number or a scalar on the device, of the way to `model`, without counting it."""
        mine, theirs = self.model.state_dict(), model.state_dict()
        once = {value.data_ptr(): name for name, value in mine.items() if value.is_floating_point()}
        soft = list(once.values())  # weights that two layers share follow once
        here, there = [mine[name] for name in soft], [theirs[name] for name in soft]
        if isinstance(share, Tensor):
            way = torch._foreach_sub(there, here)
            torch._foreach_mul_(way, share)
            torch._foreach_add_(here, way)
        else:
            torch._foreach_lerp_(here, there, share)
        for name, value in mine.items():
            if not value.is_floating_point():
                value.copy_(theirs[name])
