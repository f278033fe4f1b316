"""Backbones for what are features already: nothing at all, and one hidden layer."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from steelyard.models.backbone import Backbone


@final
class Features(Backbone):
    """Features as they come: with a linear head, a linear model. n_features: F."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.n_features = n_features

    def forward(self, x: Tensor) -> Tensor:
        """Return `x`."""
        return x


@final
class MLP(Backbone):
    """One hidden layer, ReLU(W x + b), weights drawn as He et al. (2015) do; without BatchNorm, so that items of a
    batch do not mix.

    inputs: F; `width`: hidden units.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.n_features, self.trained = width, False
        self.hidden = nn.Linear(inputs, width)
        nn.init.kaiming_normal_(self.hidden.weight, nonlinearity="relu")
        nn.init.zeros_(self.hidden.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, width)."""
        hidden: Tensor = self.hidden(x).relu()
        return hidden
