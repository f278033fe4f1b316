"""The table of losses that the reference shows and the shared tests go through. A new loss adds a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, NamedTuple

from torch import Tensor

from steelyard.losses.asymmetric import Asymmetric
from steelyard.losses.bce import BCE
from steelyard.losses.distribution_balanced import DistributionBalanced, WeightedLoss
from steelyard.losses.focal import Focal
from steelyard.losses.hill import Hill
from steelyard.losses.ldam import LDAM
from steelyard.losses.loss import Loss, Reduction
from steelyard.losses.negative_tolerant import LogitAdjusted, NegativeTolerant
from steelyard.losses.spa import SPA
from steelyard.losses.two_way import TwoWay


class Row(NamedTuple):
    """A loss by its name in the reference, its constructor and the arguments that are not defaults."""

    name: str
    maker: Callable[..., Loss | WeightedLoss]
    arguments: Mapping[str, Any] = {}

    def make(self, counts: Tensor, n_known: int, reduction: Reduction) -> Loss | WeightedLoss:
        """Return the loss; class counts, the number of items and the reduction are passed where it takes them."""
        supplied = dict(counts=counts, n_known=n_known, reduction=reduction)
        parameters = signature(self.maker).parameters
        return self.maker(**{name: value for name, value in supplied.items() if name in parameters}, **self.arguments)


TABLE: tuple[Row, ...] = (
    Row("BCE", BCE),
    Row("BCE, smoothed", BCE, dict(smoothing=0.1)),
    Row("Focal", Focal),
    Row("ASL", Asymmetric),
    Row("ASL, focus not detached", Asymmetric, dict(gamma_pos=1.0, detach_focus=False)),
    Row("NT-BCE", NegativeTolerant),
    Row("NT-Focal", NegativeTolerant, dict(gamma=2.0)),
    Row("R-BCE", DistributionBalanced, dict(lam=1.0, kappa=0.0)),
    Row("DB", DistributionBalanced),
    Row("DB-Focal", DistributionBalanced, dict(gamma=2.0)),
    Row("SPA", SPA),
    Row("LDAM", LDAM),
    Row("Two-way", TwoWay),
)
"""Losses with fused kernels, which `steelyard bench` times."""
EVERY: tuple[Row, ...] = (*TABLE, Row("Logit-adjusted", LogitAdjusted), Row("Hill", Hill))
"""These, the same pair under another name, and one without a kernel."""
