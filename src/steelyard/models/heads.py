"""From features to logits: a linear layer, and the bottleneck of the distribution-balanced loss's recipe."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn


def linear(n_features: int, n_labels: int) -> nn.Linear:
    """Return a linear layer, weights normal with deviation .01, biases 0, as in the released recipes of the papers."""
    layer = nn.Linear(n_features, n_labels)
    nn.init.normal_(layer.weight, std=0.01)
    nn.init.zeros_(layer.bias)
    return layer


@final
class LinearHead(nn.Module):
    """z = W·dropout(f) + b."""

    def __init__(self, n_features: int, n_labels: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.last = linear(n_features, n_labels)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (B, L)."""
        logits: Tensor = self.last(self.dropout(features))
        return logits


@final
class BottleneckHead(nn.Module):
    """z = W·dropout(ReLU(BN(V f + a))) + b with V from F to `width`, 256 in the distribution-balanced loss's recipe.

    V starts as He et al. (2015) draw it.
    """

    def __init__(self, n_features: int, n_labels: int, width: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(n_features, width)
        self.norm = nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(dropout)
        self.last = linear(width, n_labels)
        nn.init.kaiming_normal_(self.first.weight, nonlinearity="relu")
        nn.init.zeros_(self.first.bias)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (B, L)."""
        logits: Tensor = self.last(self.dropout(self.norm(self.first(features)).relu()))
        return logits
