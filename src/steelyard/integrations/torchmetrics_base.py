"""Base classes of the torchmetrics classes, and checks of their arguments."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor
from torchmetrics import Metric

from steelyard.calibrate.calibrator import as_vector
from steelyard.labels.targets import ArrayLike
from steelyard.metrics.inputs import Pair, probable

Threshold: TypeAlias = float | ArrayLike
T = TypeVar("T")


class Summed(Metric):
    """A metric of sums over batches; its state does not grow."""

    is_differentiable = False
    full_state_update = False

    def __init__(self, state: str, shape: tuple[int, ...], options: dict[str, Any]) -> None:
        super().__init__(**options)
        self._state = state
        self.add_state(state, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch: probabilities (N, L) in [0, 1] and targets (N, L)."""
        setattr(self, self._state, self._sums + self._batch(probable(preds, target)))

    @property
    def _sums(self) -> Tensor:
        sums: Tensor = getattr(self, self._state)
        return sums

    @abstractmethod
    def _batch(self, pair: Pair) -> Tensor:
        """Return the sums of one batch."""


class Kept(Metric):
    """A metric that keeps every item: values (n, L) and targets (n, L), one tensor of each per batch."""

    is_differentiable = False
    full_state_update = False

    def __init__(self, n_labels: int, states: dict[str, torch.dtype], options: dict[str, Any]) -> None:
        super().__init__(**options)
        self.n_labels = at_least_one("n_labels", n_labels)
        self._states = states
        for name in states:
            self.add_state(name, [], dist_reduce_fx="cat")

    def _keep(self, pair: Pair, target: Tensor) -> None:
        values = labelled(pair, self.n_labels).values
        if pair.known is not None:
            values = torch.where(pair.known, values, 0.0)
        for (name, dtype), batch in zip(self._states.items(), (values, target), strict=True):
            getattr(self, name).append(batch.to(dtype, copy=True))

    def _all(self) -> list[Tensor]:
        """Return what this process kept, or, once synchronised, what all did."""
        self._seed()
        kept = (getattr(self, name) for name in self._states)
        return [torch.cat(x) if isinstance(x, list) else x for x in kept]

    def _seed(self) -> None:
        """Give a process without items an empty batch: gathered tensors need the same dtype and rank everywhere."""
        for name, dtype in self._states.items():
            if isinstance(kept := getattr(self, name), list) and not kept:
                kept.append(torch.empty(0, self.n_labels, dtype=dtype, device=self.device))

    def _sync_dist(self, dist_sync_fn: Callable[..., Any], process_group: Any | None = None) -> None:  # type: ignore[override]
        self._seed()
        super()._sync_dist(dist_sync_fn, process_group)


def limit_of(threshold: Threshold, n_labels: int) -> Tensor:
    """Return thresholds as float64, () or (L,)."""
    limit = as_vector(threshold).cpu().clone()
    if limit.shape not in ((), (n_labels,)) or bool(limit.isnan().any()):
        raise ValueError(
            f"threshold has shape {tuple(limit.shape)}: give one number, or one for each of {n_labels} labels, not NaN"
        )
    return limit


def digest_of(limit: Tensor) -> str:
    """Return a hash of thresholds, to tell their states apart by name."""
    return hashlib.sha256(repr(limit.tolist()).encode()).hexdigest()[:16]


def labelled(pair: Pair, n_labels: int) -> Pair:
    """Return the batch, which must have the labels of the metric."""
    if pair.values.shape[1] != n_labels:
        raise ValueError(f"preds has {pair.values.shape[1]} labels, but n_labels is {n_labels}: they must be equal")
    return pair


def number(value: float, like: Tensor) -> Tensor:
    """Return a float64 scalar on the device of `like`."""
    return torch.tensor(value, dtype=torch.float64, device=like.device)


def choose(name: str, value: T, choices: tuple[T, ...]) -> T:
    """Return `value` if it is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}: choose one of {', '.join(map(str, choices))}")
    return value


def at_least_one(name: str, value: int) -> int:
    """Return `value` if it is at least 1."""
    if value < 1:
        raise ValueError(f"{name} is {value}: give at least 1")
    return value
