"""Heads: linear, cosine, the bottleneck of the Distribution-Balanced recipe, and one that attends to places."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def linear(n_features: int, n_labels: int) -> nn.Linear:
    """Return a linear layer, weights normal with deviation .01, biases 0, as in the released recipes of the papers."""
    layer = nn.Linear(n_features, n_labels)
    nn.init.normal_(layer.weight, std=0.01)
    nn.init.zeros_(layer.bias)
    return layer


class Head(nn.Module):
    """A head whose last layer is linear."""

    last: nn.Linear

    @torch.no_grad()
    def start_at(self, bias: Tensor) -> None:
        """Start with the logits `bias` (L,) for every item: the last weights become 0.

        Layers below them learn from the second step on: the first one moves these weights. Small random ones would
        shift the mean logit of a label by w·E[f], and its probability with it.
        """
        self.last.weight.zero_()
        self.last.bias.copy_(bias)


@final
class LinearHead(Head):
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
class CosineHead(nn.Module):
    """z_c = cos(dropout(f), w_c) = f·w_c / (‖f‖ ‖w_c‖), from −1 to 1, no bias: what LDAM's softmax scales by 30.

    Cao et al. (2019) draw w uniformly from the unit sphere. Features that are all 0 have the logits 0.
    """

    def __init__(self, n_features: int, n_labels: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.weight = nn.Parameter(F.normalize(torch.randn(n_labels, n_features)))

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (B, L)."""
        with torch.autocast(features.device.type, enabled=False):  # times 30, digits matter
            f = self.dropout(features).to(self.weight.dtype)
            return F.linear(F.normalize(f), F.normalize(self.weight))


@final
class BottleneckHead(Head):
    """z = W·dropout(ReLU(BN(V f + a))) + b with V from F to `width`, 256 in the distribution-balanced loss's recipe.

    V starts as He et al. (2015) draw it. A batch of one item, such as an epoch's last may be, has no deviation: it is
    normalised by the running statistics.
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
        v, norm = self.first(features), self.norm
        if self.training and len(v) == 1:
            v = F.batch_norm(v, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
        else:
            v = norm(v)
        logits: Tensor = self.last(self.dropout(v.relu()))
        return logits


@final
class PlacesHead(Head):
    """z_c = w_c·f̄ + λ Σ_p a_cp w_c·f_p + b_c: a label is looked for all over the maps, and where it seems to be.

    f_p are the features at place p, f̄ their mean, a_c = softmax over p of w_c·f_p, λ = .5. This is the class-specific
    residual attention of Zhu and Wu (2021) with one head of temperature 1. Dropout takes a feature away at all places.
    """

    share = 0.5

    def __init__(self, n_features: int, n_labels: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout2d(dropout)
        self.last = linear(n_features, n_labels)

    def forward(self, maps: Tensor) -> Tensor:
        """Return logits (B, L) of maps (B, F, h, w)."""
        scores = F.conv2d(self.dropout(maps), self.last.weight[:, :, None, None]).flatten(2)
        there = (scores.softmax(2) * scores).sum(2)
        logits: Tensor = scores.mean(2) + self.share * there + self.last.bias
        return logits
