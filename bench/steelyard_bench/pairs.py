"""Label-pair regularisation at the size of its paper's data, and at growing numbers of labels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from steelyard.balance import LabelPair
from steelyard_bench.losses import LABEL_BYTES, plainly
from steelyard_bench.row import Row, Way, row
from steelyard_bench.timing import Candidate, Clock, both_ways

SIZES = ((1024, 600), (64, 10_000), (64, 100_000), (64, 1_000_000))
"""The first with some 2.4 positives a row, the others with 3."""

_PRINTED = 4e8  # cells of a matrix of pairs that still fit on a GPU many times


def as_printed(log_odds: Tensor, targets: Tensor) -> Tensor:
    """Return the penalty over all pairs of labels, as the paper prints it: a (B, L, L) tensor after the other."""
    n, labels = log_odds.shape
    pairs = targets[:, :, None] * (1 - targets)[:, None, :]
    gap = log_odds[:, None, :] - log_odds[:, :, None]
    return (pairs * F.softplus(gap)).sum() * 2 / (labels * (labels - 1)) / n


def pair_rows(sizes: Sequence[tuple[int, int]], clock: Clock) -> list[Row]:
    """Return the rows of sizes (B, L); the paper's form where it fits on a GPU."""
    return [found for size in sizes for found in _at(size, clock)]


def _at(size: tuple[int, int], clock: Clock) -> list[Row]:
    n, labels = size
    g = torch.Generator(clock.device).manual_seed(0)
    z = torch.randn(n, labels, device=clock.device, generator=g).requires_grad_()
    if size == SIZES[0]:
        t = (torch.rand(n, labels, device=clock.device, generator=g) < 2.4 / labels).to(torch.int8)
    else:
        t = torch.zeros(n, labels, dtype=torch.int8, device=clock.device)
        t.scatter_(1, torch.randint(0, labels, (n, 3), device=clock.device, generator=g), 1)
    ours = [both_ways(LabelPair(), z, t)]
    found: dict[Way, Candidate] = {"steelyard": Candidate(ours)}
    if clock.is_gpu:
        found["plain"] = Candidate(ours, plainly)
        if n * labels * labels <= _PRINTED:
            found["peer"] = Candidate([both_ways(as_printed, z, t.float())])
    times = clock.times({str(way): candidate for way, candidate in found.items()})
    names: dict[Way, str] = {"peer": "LPR as printed: all pairs"}
    shown = f"{n:,} × {labels:,}"
    return [
        row("pairs", shown, names.get(way, "LPR"), way, times[way], times.get("peer"), LABEL_BYTES * n * labels)
        for way in found
    ]
