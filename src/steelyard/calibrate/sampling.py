"""What class-aware sampling did to the odds, and how to take it off."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from steelyard.calibrate.calibrator import as_vector, given_back, read_logits
from steelyard.labels.targets import ArrayLike
from steelyard.losses.focused import LOG_ZERO, softplus

Step = Callable[..., tuple[Tensor, Tensor]]
MAX_STEPS = 200


def undo_class_aware(log_odds: ArrayLike, counts: ArrayLike) -> Any:
    """Return the log-odds (N, L) of the labels themselves, given those that training under `ClassAware` draws learned.

    An item is drawn in proportion to Σ_j y_j/n_j, which multiplies the odds of c by 1 + (1/n_c)/Σ_{j≠c} η_j/n_j. With
    labels independent given the item, the η of an item solve

        logit η_c = z_c − log(1 + (1/n_c) / Σ_{j≠c} η_j/n_j).

    With S = Σ_j η_j/n_j and m = n_c S, each is the smaller root of η² − (m+1) η + σ(z_c) m = 0, so that one equation in
    S is left, Σ_c η_c(S)/n_c = S. Its left side is concave: Newton's method from above falls to the root, which is
    positive exactly if Σ_c σ(z_c) > 1. That holds for what sampling can teach, since a drawn item has a positive. Where
    it does not hold, η → 0 is the limit: log-odds of −100, a little less for the labels of smaller σ(z_c) n_c.

    Args:
        log_odds: log-odds (N, L) that the link of the loss gives for the sampled training.
        counts: positives n_c of each class (L,), those of the sampler's labels. A class with 0 is never visited; its
            odds are left alone.
    """
    z, dtype, from_numpy = read_logits(log_odds)
    n = check_visits(counts).to(z.device)
    if len(n) != z.shape[1]:
        raise ValueError(f"counts has {len(n)} values, but log_odds has {z.shape[1]} labels: give one a label")
    visited = n > 0
    corrected = _corrected(z, torch.where(visited, n, 1.0), visited)
    return given_back(torch.where(visited, corrected, z).to(dtype), from_numpy)


def check_visits(counts: ArrayLike) -> Tensor:
    """Return class counts as float64 (L,), at least two of them positive."""
    n = as_vector(counts)
    if n.ndim != 1 or not ((n >= 0) & (n < math.inf)).all():
        raise ValueError(f"counts has shape {tuple(n.shape)}: give one finite number, at least 0, for each class")
    if int((n > 0).sum()) < 2:
        raise ValueError("counts has fewer than two positive values: with one class every drawn item has it")
    return n


def _corrected(z: Tensor, n: Tensor, visited: Tensor) -> Tensor:
    p, q = torch.where(visited, torch.sigmoid(z), 0.0), torch.sigmoid(-z)
    floor = math.exp(LOG_ZERO) / n.max()
    s = (p / n).sum(1, keepdim=True).clamp_min(floor)
    s = loop.get()(_step, s, (p, q, n, visited, floor))
    m = n * s
    root = _root(m, q)
    near = torch.log(2 * m) + logsigmoid(-z) - torch.log(root + (1 - m).clamp_min(0))
    log_others = torch.where(m < 1, near, torch.log((m - 1 + root) / 2))  # log(m − η), without cancellation
    return z - softplus(-log_others)


def _step(s: Tensor, p: Tensor, q: Tensor, n: Tensor, visited: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
    """Return S after a step of Newton's method, and of which items it moved."""
    m = n * s
    root = _root(m, q)
    eta = 2 * p * m / (m + 1 + root)
    value = (eta / n).sum(1, keepdim=True) - s
    rise = torch.where(root > 0, eta * (1 - eta) / (m * root), 0.5)  # dη/dm
    slope = torch.where(visited, rise, 0.0).sum(1, keepdim=True) - 1
    step = torch.where(slope < 0, value / slope, s)
    following = torch.maximum(s - step, floor)
    moved = ((following - s).abs() > 1e-13 * s) & (value < 0)
    return torch.where(value < 0, torch.minimum(following, s), s), moved


def _repeated(step: Step, s: Tensor, given: tuple[Tensor, ...]) -> Tensor:
    for _ in range(MAX_STEPS):
        s, moved = step(s, *given)
        if not bool(moved.any()):
            break
    return s


loop: ContextVar[Callable[[Step, Tensor, tuple[Tensor, ...]], Tensor]] = ContextVar("loop", default=_repeated)
"""Repeats a step until nothing moves; export puts a loop of its graph here."""


def _root(m: Tensor, q: Tensor) -> Tensor:
    """Return √((m+1)² − 4 m p) = √((m−1)² + 4 m q)."""
    return ((m - 1).square() + 4 * m * q).sqrt()
