"""An exponential moving average of the weights."""

from __future__ import annotations

import copy

import torch
from torch import nn


class Average:
    """A copy of a model whose parameters follow it: θ̄ ← d θ̄ + (1 − d) θ a step, d = min(decay, (1 + t)/(10 + t)).

    The ramp of d forgets the untrained weights. Floating buffers follow in the same way, others are copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay, self.n_updates = decay, 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Follow `model` after a step."""
        decay = min(self.decay, (1 + self.n_updates) / (10 + self.n_updates))
        self.n_updates += 1
        mine, theirs = self.model.state_dict(), model.state_dict()
        soft = [name for name, value in mine.items() if value.is_floating_point()]
        torch._foreach_lerp_([mine[name] for name in soft], [theirs[name] for name in soft], 1 - decay)
        for name, value in mine.items():
            if not value.is_floating_point():
                value.copy_(theirs[name])
