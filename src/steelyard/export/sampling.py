"""Class-aware sampling undone inside a network that ONNX can hold: Newton's method as a loop of the graph."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch._higher_order_ops.while_loop import while_loop

from steelyard.export.functions import logsigmoid, sigmoid, softplus
from steelyard.losses.focused import LOG_ZERO

_MAX_STEPS = 200


class UndoClassAware(nn.Module):
    """Log-odds (B, L) as `calibrate.undo_class_aware` gives them, by the same steps.

    counts: positives n_c of each class (L,); one with 0 is left alone.
    """

    n: Tensor
    visited: Tensor
    floor: Tensor

    def __init__(self, counts: Tensor) -> None:
        super().__init__()
        n = counts.double().cpu()
        self.register_buffer("visited", n > 0)
        self.register_buffer("n", torch.where(n > 0, n, 1.0))
        self.register_buffer("floor", math.exp(LOG_ZERO) / n.max())

    def forward(self, z: Tensor) -> Tensor:
        """Return the log-odds of the labels themselves."""
        n, visited, floor = self.n, self.visited, self.floor
        p, q = torch.where(visited, sigmoid(z), 0.0), sigmoid(-z)
        s = torch.maximum((p / n).sum(1, keepdim=True), floor)

        def goes_on(step: Tensor, s: Tensor, moving: Tensor) -> Tensor:
            return (step < _MAX_STEPS) & moving.any()

        def following(step: Tensor, s: Tensor, moving: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            m = n * s
            root = _root(m, q)
            eta = 2 * p * m / (m + 1 + root)
            value = (eta / n).sum(1, keepdim=True) - s
            rise = torch.where(root > 0, eta * (1 - eta) / (m * torch.where(root > 0, root, 1.0)), 0.5)
            slope = torch.where(visited, rise, 0.0).sum(1, keepdim=True) - 1
            falls = slope < 0
            near = torch.maximum(s - torch.where(falls, value / torch.where(falls, slope, 1.0), s), floor)
            moved = ((near - s).abs() > 1e-13 * s) & (value < 0)
            return step + 1, torch.where(value < 0, torch.minimum(near, s), s), moved

        state = (torch.zeros((), dtype=torch.int64), s, s > 0)
        if torch.compiler.is_exporting():
            _, s, _ = while_loop(goes_on, following, state)
        else:
            while bool(goes_on(*state)):
                state = following(*state)
            s = state[1]
        m = n * s
        root = _root(m, q)
        near = torch.log(2 * m) + logsigmoid(-z) - torch.log(root + (1 - m).clamp_min(0.0))
        log_others = torch.where(m < 1, near, torch.log((m - 1 + root) / 2))
        return torch.where(visited, z - softplus(-log_others), z)


def _root(m: Tensor, q: Tensor) -> Tensor:
    """Return √((m+1)² − 4 m p) = √((m−1)² + 4 m q)."""
    return ((m - 1).square() + 4 * m * q).sqrt()
