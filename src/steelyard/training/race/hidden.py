"""Hidden layers over features in memory, trained step by step."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from steelyard.losses.loss import Cells
from steelyard.losses.pair import PairLoss
from steelyard.training.race.linear import picked

RATE = 1e-3
DECAY = 1e-4
_ADAMW: dict[str, Any] = {  # the class would import torch's compiler, seconds of a first fit
    "fused": True,
    "weight_decay": DECAY,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "amsgrad": False,
    "maximize": False,
}
WARM_UP = 50
"""Steps over which the learning rate rises from 0."""
PATIENCE = 5
"""Evaluations of held-out items without a lower loss after which training stops."""


def batch_size(n_items: int) -> int:
    """Return how many items a step takes: a twentieth of them, between 16 and 256."""
    return max(16, min(256, n_items // 20))


def most_steps(n_items: int) -> int:
    """Return the steps that a hidden layer may take: 30 passes over the items, between 1,000 and 5,000 steps."""
    return max(1000, min(5000, int(30 * n_items / batch_size(n_items))))


def fit_hidden(
    network: nn.Sequential,
    x: Tensor,
    cells: Cells,
    loss: PairLoss,
    look: Callable[[nn.Module], float] | None,
    most_steps: int,
    seed: int,
) -> int:
    """Train by AdamW for at most `most_steps`; with `look`, stop when it finds no lower loss and keep the best weights.

    Args:
        network: features → logits; changed in place.
        x: features (N, F).
        cells: coefficients (N, L) of the loss.
        loss: a pair.
        look: network → loss of held-out items, called after every pass over the items, or every 20 steps.
        most_steps: of the optimizer.
        seed: of the order of items and of dropout.

    Returns the steps to the best look, without looks all of them.
    """
    n, size = len(x), batch_size(len(x))
    generator = torch.Generator(device="cpu").manual_seed(seed)
    torch.manual_seed(seed)
    parameters: list[Tensor] = list(network.parameters())
    means, squares = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    counts = [torch.zeros((), device=x.device) for _ in parameters]
    every = max(20, -(-n // size))
    best, best_step, kept, waits = float("inf"), 0, None, 0
    order, at = torch.randperm(n, generator=generator), 0
    network.train()
    for step in range(1, most_steps + 1):
        if at + size > n and at > 0:
            order, at = torch.randperm(n, generator=generator), 0
        rows = order[at : at + size].to(x.device)
        at += size
        value = loss.evaluate(network(x[rows]), picked(cells, rows), float(len(rows)))
        gradients = list(torch.autograd.grad(value, parameters))
        lr = RATE * min(1.0, step / WARM_UP)
        with torch.no_grad():
            adamw(parameters, gradients, means, squares, [], counts, lr=lr, **_ADAMW)
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
    return best_step or most_steps
