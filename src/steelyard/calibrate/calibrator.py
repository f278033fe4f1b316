"""The base of calibrators: a monotone map from logits to probabilities η, fitted on held-out labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from steelyard.labels.targets import ArrayLike, as_tensor, refuse
from steelyard.losses.focused import LOG_ZERO
from steelyard.losses.loss import compute_dtype
from steelyard.metrics.inputs import paired

Per: TypeAlias = Literal["label", "pooled"]
State: TypeAlias = dict[str, Any]

_CELLS_AT_ONCE = 1 << 18


class NotFitted(ValueError):
    """Raised when a calibrator is used before it is fitted.

    Examples:
        >>> sy.calibrate.Platt()(torch.zeros(1, 2))
        Traceback (most recent call last):
            ...
        steelyard.calibrate.calibrator.NotFitted: Platt is not fitted: call fit(logits, targets) on ...
    """


class Calibrator(ABC):
    """A monotone map (N, L) → (N, L) from logits, or log-odds, to probabilities η.

    Arrays and tensors are accepted and give their like: float64 for float64, float32 for all others. The arithmetic is
    float64. `fit` leaves unknown targets out and takes soft ones at their value; it returns the calibrator.

    Examples:
        >>> z = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0]).repeat(200)[:, None]
        >>> y = torch.arange(1000)[:, None] // 5 < 200 * torch.sigmoid(2 * z)  # z is half of what it should be
        >>> for kind in (sy.calibrate.Temperature, sy.calibrate.Platt, sy.calibrate.Isotonic):
        ...     print(kind.__name__, kind().fit(z, y)(torch.tensor([[1.0]])))
        Temperature tensor([[0.8824]])
        Platt tensor([[0.8845]])
        Isotonic tensor([[0.8850]])
    """

    @abstractmethod
    def fit(self, logits: ArrayLike, targets: ArrayLike, level: ArrayLike | None = None) -> Self:
        """Fit to logits (N, L) and targets (N, L) that training has not seen, and return self.

        Args:
            logits, targets: (N, L); unknown targets are left out.
            level: how frequent each label is where the items come from, (L,) inside (0, 1), such as (n + ½)/(k + 1) of
                n positives among k known labels of training: what a label with few positives is brought to. NaN, or
                None for all labels, takes the frequency among these items, smoothed (`lines.smoothed_level`).
        """

    @abstractmethod
    def state(self) -> State:
        """Return what was fitted, as plain JSON; raise NotFitted before `fit`."""

    @abstractmethod
    def _eta(self, z: Tensor) -> Tensor:
        """Return η, float64, of logits z (N, L), float64."""

    @abstractmethod
    def _log_odds(self, z: Tensor) -> Tensor:
        """Return log η/(1−η), float64, of logits z (N, L), float64."""

    @final
    def __call__(self, logits: ArrayLike) -> Any:
        """Return η of logits (N, L)."""
        z, dtype, from_numpy = read_logits(logits)
        return given_back(self._eta(z).to(dtype), from_numpy)

    @final
    def log_odds(self, logits: ArrayLike) -> Any:
        """Return log η/(1−η) of logits (N, L), at ±100 where η is 1 or 0 or lies beyond: what `shift_prior` takes.

        Args:
            logits: (N, L).
        """
        z, dtype, from_numpy = read_logits(logits)
        return given_back(self._log_odds(z).clamp(LOG_ZERO, -LOG_ZERO).to(dtype), from_numpy)


class Chunk(NamedTuple):
    """Some rows as float64: logits and targets, both 0 where unknown, and 1 where known."""

    z: Tensor
    t: Tensor
    known: Tensor


@dataclass(frozen=True)
class FitData:
    """Checked logits and targets of a fit, and which targets are known, all (N, L)."""

    logits: Tensor
    targets: Tensor
    known: Tensor

    def chunks(self) -> Iterator[Chunk]:
        """Yield some rows at a time, so that float64 copies stay small."""
        step = max(1, _CELLS_AT_ONCE // max(1, self.logits.shape[1]))
        for z, t, known in zip(*(x.split(step) for x in (self.logits, self.targets, self.known)), strict=True):
            z, t = (torch.where(known, x.to(torch.float64), 0.0) for x in (z, t))
            yield Chunk(z, t, known.to(torch.float64))

    def sums(self, parts: Callable[[Chunk], Sequence[Tensor]]) -> Tensor:
        """Return the sums over all rows of what `parts` makes of some of them, one row per part, float64 (k, L)."""
        return torch.stack([torch.stack([part.sum(0) for part in parts(c)]) for c in self.chunks()]).sum(0)

    @cached_property
    def present(self) -> Tensor:
        """Known positives of each label, Σ y, float64 (L,)."""
        return self.sums(lambda c: (c.t,))[0]

    @cached_property
    def absent(self) -> Tensor:
        """Known negatives of each label, Σ (1 − y), float64 (L,)."""
        return self.known.sum(0, dtype=torch.float64) - self.present


def finite_where_known(logits: ArrayLike, targets: ArrayLike) -> FitData:
    """Check logits (N, L) and targets (N, L): a known label needs a finite logit."""
    pair = paired(logits, targets, "logits")
    known = pair.mask
    remedy = "a known label needs a finite logit to be calibrated by, so mend the model or mark the label unknown"
    refuse(~torch.isfinite(pair.values) & known, "logits", pair.values, remedy)
    return FitData(pair.values, pair.targets, known)


def held_out(logits: ArrayLike, targets: ArrayLike) -> FitData:
    """Check what a calibrator is fitted on: finite logits wherever a label is known, and labels of both kinds."""
    held = finite_where_known(logits, targets)
    n_present, n_known = float(held.present.sum()), int(held.known.sum())
    if not 0 < n_present < n_known:
        missing = "known label" if n_known == 0 else "positive" if n_present == 0 else "negative"
        raise ValueError(
            f"targets holds no {missing}: a calibrator is fitted on labels of both kinds, so give more items"
        )
    return held


def read_logits(logits: ArrayLike) -> tuple[Tensor, torch.dtype, bool]:
    """Return logits (N, L) as float64, the dtype to answer in, and whether they were an array."""
    z = logits if isinstance(logits, Tensor) else as_tensor(logits, "logits")
    if z.ndim != 2 or z.dtype.is_complex:
        raise ValueError(f"logits is {z.dtype} of shape {tuple(z.shape)}: give real numbers (N, L), one row per item")
    dtype = compute_dtype(z) if z.dtype.is_floating_point else torch.float64
    return z.to(torch.float64), dtype, not isinstance(logits, Tensor)


def as_vector(values: ArrayLike | float) -> Tensor:
    """Return numbers as a float64 tensor, exact to the last digit (torch would round plain numbers to float32)."""
    if isinstance(values, Tensor):
        return values.detach().to(torch.float64)
    return torch.from_numpy(np.array(values, dtype=np.float64))


def given_back(result: Tensor, to_numpy: bool) -> Any:
    """Return `result` as the kind of array the caller gave."""
    return result.detach().numpy() if to_numpy else result


def check_labels(z: Tensor, n_labels: int) -> None:
    """Raise unless z has the labels that a calibrator was fitted on."""
    if z.shape[1] != n_labels:
        raise ValueError(
            f"logits has {z.shape[1]} labels, but the calibrator was fitted on {n_labels}: make them equal"
        )


def one_per_label(values: ArrayLike | float, n_labels: int, name: str) -> Tensor:
    """Return a number, or one for each label, as float64 (L,)."""
    v = as_vector(values)
    if v.ndim > 1 or (v.ndim == 1 and len(v) != n_labels):
        raise ValueError(f"{name} has shape {tuple(v.shape)}: give a number or one for each of {n_labels} labels")
    return v.expand(n_labels)
