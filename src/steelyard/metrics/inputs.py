"""Checks of the arguments of metrics: two arrays of one shape, as tensors on their own device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from steelyard.labels.targets import UNKNOWN, ArrayLike, as_targets, as_tensor, refuse


@dataclass(frozen=True)
class Pair:
    """Checked values and targets, both (N, L); `known` is None where every label is known."""

    values: Tensor
    targets: Tensor
    known: Tensor | None
    from_numpy: bool

    @property
    def mask(self) -> Tensor:
        """True where a label is known, (N, L)."""
        return torch.ones_like(self.values, dtype=torch.bool) if self.known is None else self.known

    def give(self, result: Tensor) -> Any:
        """Return `result` as the kind of array the caller gave."""
        return result.numpy() if self.from_numpy else result


def shaped(values: ArrayLike, targets: ArrayLike, name: str) -> tuple[Tensor, Tensor]:
    """Check that `values` (called `name` in errors) and `targets` are real (N, L) of one shape on one device."""
    v, t = as_tensor(values, name), as_tensor(targets, "targets")
    if v.ndim != 2:
        raise ValueError(f"{name} has shape {tuple(v.shape)}: give (N, L), one row per item, one column per label")
    if v.dtype.is_complex:
        raise ValueError(f"{name} has dtype {v.dtype}: give real numbers")
    if t.shape != v.shape:
        raise ValueError(f"targets has shape {tuple(t.shape)}, but {name} has {tuple(v.shape)}: they must be equal")
    if t.device != v.device:
        raise ValueError(f"targets is on {t.device}, but {name} is on {v.device}: move one of them")
    return v, t


def paired(values: ArrayLike, targets: ArrayLike, name: str) -> Pair:
    """Check shapes and the values of the targets."""
    v, t = shaped(values, targets, name)
    checked = as_targets(t, v, validate=True)
    return Pair(v, t, None if checked.all_known else t != UNKNOWN, not isinstance(values, Tensor))


def scored(scores: ArrayLike, targets: ArrayLike) -> Pair:
    """Check scores of any real value, infinities included; NaN is allowed only where the label is unknown."""
    pair = paired(scores, targets, "scores")
    v = pair.values
    if not v.dtype.is_floating_point:
        return Pair(v.double(), pair.targets, pair.known, pair.from_numpy)
    if v.numel() and bool(v.amax().isnan()):
        bad = v.isnan() if pair.known is None else v.isnan() & pair.known
        refuse(bad, "scores", v, "a known label needs a score to rank by, so mend the model or mark the label unknown")
    return pair


def probable(probabilities: ArrayLike, targets: ArrayLike, name: str = "probabilities") -> Pair:
    """Check probabilities (called `name` in errors): within [0, 1] wherever the label is known."""
    pair = paired(probabilities, targets, name)
    v = pair.values
    if not v.dtype.is_floating_point:
        v = v.double()
    if v.numel():
        low, high = torch.stack(torch.aminmax(v)).tolist()
        if not (low >= 0 and high <= 1):
            bad = ~((v >= 0) & (v <= 1)) & (True if pair.known is None else pair.known)
            refuse(bad, name, v, "a probability lies in [0, 1], so give logits through their link first")
    return Pair(v, pair.targets, pair.known, pair.from_numpy)


def unlabelled(probabilities: ArrayLike, name: str = "probabilities") -> Pair:
    """Check probabilities of items without labels: within [0, 1]. The targets of the pair mean nothing."""
    p = as_tensor(probabilities, name)
    return probable(probabilities, torch.zeros((), dtype=torch.uint8, device=p.device).expand(p.shape), name)


def decided(decisions: ArrayLike, targets: ArrayLike) -> Pair:
    """Check decisions: 0 or 1 wherever the label is known."""
    pair = paired(decisions, targets, "decisions")
    v = pair.values
    if v.dtype != torch.bool:
        bad = (v != 0) & (v != 1)
        refuse(bad if pair.known is None else bad & pair.known, "decisions", v, "give 0 or 1, say p >= threshold")
    return Pair(v == 1, pair.targets, pair.known, pair.from_numpy)


def positive(targets: Tensor) -> Tensor:
    """Return a boolean mask of the present labels: 1, or soft and at least .5."""
    return targets >= 0.5 if targets.dtype.is_floating_point else targets == 1
