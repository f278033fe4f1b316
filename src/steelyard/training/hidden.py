"""One hidden layer over features in memory, trained until held-out items say stop."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from steelyard.losses.loss import Cells
from steelyard.losses.pair import PairLoss

RATE = 1e-3
DECAY = 1e-4
WARM_UP = 50
"""Steps over which the learning rate rises from 0."""
PATIENCE = 5
"""Looks at held-out items without a lower loss after which training stops."""


class HiddenFit(NamedTuple):
    """A trained network, the steps it took to its best look, and the loss of that look."""

    network: nn.Sequential
    steps: int
    loss: float


def batch_size(n_items: int) -> int:
    """Return how many items a step takes: a twentieth of them, between 16 and 256."""
    return max(16, min(256, n_items // 20))


def fit_hidden(
    network: nn.Sequential,
    x: Tensor,
    cells: Cells,
    loss: PairLoss,
    look: Callable[[nn.Module], float] | None,
    most_steps: int,
    seed: int,
) -> HiddenFit:
    """Train by AdamW for at most `most_steps`; with `look`, stop when it finds no lower loss and keep the best weights.

    Args:
        network: features → logits; changed in place.
        x: features (N, F).
        cells: coefficients (N, L) of the loss.
        loss: a pair.
        look: network → loss of held-out items, called after every pass over the items, or every 20 steps.
        most_steps: of the optimizer.
        seed: of the order of items and of dropout.
    """
    n, size = len(x), batch_size(len(x))
    generator = torch.Generator(device="cpu").manual_seed(seed)
    torch.manual_seed(seed)
    method = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
    every = max(20, -(-n // size))
    best, best_step, kept, waits = float("inf"), 0, None, 0
    order, at = torch.randperm(n, generator=generator), 0
    network.train()
    for step in range(1, most_steps + 1):
        if at + size > n and at > 0:
            order, at = torch.randperm(n, generator=generator), 0
        rows = order[at : at + size].to(x.device)
        at += size
        for group in method.param_groups:
            group["lr"] = RATE * min(1.0, step / WARM_UP)
        batch = Cells(*(None if part is None else part[rows] for part in cells))  # type: ignore[arg-type]
        value = loss.evaluate(network(x[rows]), batch, float(len(rows)))
        method.zero_grad(set_to_none=True)
        value.backward()
        method.step()
        if look is not None and step % every == 0:
            network.eval()
            with torch.no_grad():
                now = look(network)
            network.train()
            if now < best:
                best, best_step, kept, waits = now, step, deepcopy(network.state_dict()), 0
            else:
                waits += 1
                if waits >= PATIENCE:
                    break
    if kept is not None:
        network.load_state_dict(kept)
    network.eval()
    return HiddenFit(network, best_step or most_steps, best)
