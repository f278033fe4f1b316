"""A head made of several small models over the same features, whose log-odds are averaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from steelyard.losses import BCE, SPA, Asymmetric
from steelyard.losses.pair import PairLoss
from steelyard.models.race.forest import Forest
from steelyard.models.race.transforms import make_transform

LOSSES: dict[str, type[PairLoss]] = {"bce": BCE, "spa": SPA, "asl": Asymmetric}
"""Losses a member may be trained with; the link is part of the member."""


class MemberSpec(NamedTuple):
    """Settings of a member, enough to rebuild it around its tensors."""

    transform: str
    """See `steelyard.models.race.transforms`."""
    kernel: str = ""
    """"gauss" or "laplace" for Nyström's features of a kernel; "" for none."""
    landmarks: int = 0
    """Of the kernel."""
    scale: float = 1.0
    """Of the kernel's width."""
    width: int = 0
    """Hidden units; 0 for a linear model."""
    dropout: float = 0.0
    """Of the hidden units, in training."""
    loss: str = "bce"
    """One of `LOSSES`."""
    trees: int = 0
    """Of a forest; 0 for a linear model or a hidden layer."""
    leaf: int = 1
    """Items per leaf of a forest, at least."""
    share: float = 0.0
    """Of the features that a split of a forest considers; 0 for the square root of their number."""
    nodes: int = 0
    """Of the forest as it was grown."""
    depth: int = 0
    """Splits from a root of the forest to a leaf, at most."""
    named: bool = False
    """True if the names of labels, read as texts, were further items in training."""

    @property
    def name(self) -> str:
        """A short name for tables."""
        transform = f"{self.transform}, {self.kernel} kernel × {self.scale:g}" if self.kernel else self.transform
        if self.trees:
            return f"{transform}, {self.trees} trees, leaves of {self.leaf}"
        kind = "linear" if self.width == 0 else f"hidden {self.width}"
        return f"{transform}, {kind}, {self.loss}" + (", names" if self.named else "")

    @property
    def is_linear(self) -> bool:
        """True if it has neither a hidden layer nor trees."""
        return self.width == 0 and self.trees == 0

    @property
    def kind(self) -> str:
        """The kind of model: "trees", "hidden", "kernel" or "linear"."""
        if self.trees or self.width:
            return "trees" if self.trees else "hidden"
        return "kernel" if self.kernel else "linear"


class Member(nn.Module):
    """Log-odds (B, L) of features (B, F): transform → network → the link of its loss."""

    def __init__(self, spec: MemberSpec, n_features: int, n_labels: int) -> None:
        super().__init__()
        self.spec = spec
        self.transform = make_transform(spec.transform, n_features, *spec[1:4])
        width = self.transform.n_outputs
        self.network = _network(spec, width, n_labels)
        self.loss = LOSSES[spec.loss]()

    def forward(self, features: Tensor) -> Tensor:
        """Return log-odds (B, L), computed in the dtype of the weights: export checks a float64 copy."""
        state = chain(self.network.parameters(), self.network.buffers())
        dtype = next(x.dtype for x in state if x.is_floating_point())
        return self.loss.link(self.network(self.transform(features.to(dtype))))


def _network(spec: MemberSpec, width: int, n_labels: int) -> nn.Sequential:
    if spec.trees:
        return nn.Sequential(Forest(spec.trees, spec.nodes, spec.depth, n_labels))
    if spec.is_linear:
        return nn.Sequential(nn.Linear(width, n_labels))
    return nn.Sequential(
        nn.Dropout(spec.dropout / 2),
        nn.Linear(width, spec.width),
        nn.ReLU(),
        nn.Dropout(spec.dropout),
        nn.Linear(spec.width, n_labels),
    )


class Members(nn.Module):
    """Σ_k w_k · log-odds of member k, the weights adding up to 1."""

    weights: Tensor

    def __init__(self, specs: Sequence[MemberSpec], n_features: int, n_labels: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(Member(spec, n_features, n_labels) for spec in specs)
        self.register_buffer("weights", torch.full((len(specs),), 1 / len(specs)))

    def forward(self, features: Tensor) -> Tensor:
        """Return log-odds (B, L)."""
        total: Tensor = self.weights[0] * self.members[0](features)
        for weight, member in zip(self.weights[1:], list(self.members)[1:], strict=True):
            total = total + weight * member(features)
        return total

    def describe(self) -> list[dict[str, Any]]:
        """Return the specs of the members as plain JSON."""
        return [member.spec._asdict() for member in self.members]  # type: ignore[union-attr,operator]

    @classmethod
    def of_description(cls, content: Sequence[Mapping[str, Any]], n_features: int, n_labels: int) -> Members:
        """Return members, not filled, from what `describe` gave."""
        return cls([MemberSpec(**entry) for entry in content], n_features, n_labels)
