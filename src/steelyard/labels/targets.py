"""Targets: 1 present, 0 absent, between them soft, −1 unknown."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

UNKNOWN = -1
"""The value of a label that was never annotated."""

ArrayLike: TypeAlias = Tensor | np.ndarray

_WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # torch has few operations for them


def as_tensor(values: ArrayLike | Sequence[float] | float, name: str = "values") -> Tensor:
    """Return `values` (called `name` in errors) as a detached, read-only tensor: it may share their memory."""
    if isinstance(values, Tensor):
        t = values.detach() if values.requires_grad else values
        return t.to(torch.int64) if t.dtype in _WIDE_UNSIGNED else t
    a = np.asarray(values)
    if a.dtype.kind not in "biuf" or a.dtype.itemsize > 8:
        raise ValueError(f"{name} has dtype {a.dtype}: give real numbers of at most 64 bits")
    if a.dtype.kind == "u" and a.dtype.itemsize > 1:
        a = a.astype(np.int64)
    if not a.dtype.isnative or any(s < 0 for s in a.strides):
        a = np.ascontiguousarray(a, dtype=a.dtype.newbyteorder("="))
    if a.flags.writeable:
        return torch.from_numpy(a)
    with warnings.catch_warnings():  # torch warns that writing would be undefined; nothing here writes
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(a)


def labels_of_all_frequencies(targets: Tensor, most: int) -> Tensor | None:
    """Return at most so many labels of targets (N, L), evenly from the rarest to the most frequent; None for all."""
    n_labels = targets.shape[1]
    if n_labels <= most:
        return None
    order = torch.argsort((targets >= 0.5).sum(0), stable=True)
    evenly = torch.linspace(0, n_labels - 1, most, device=order.device).round().long()
    return order[evenly].sort().values


class Targets(NamedTuple):
    """Checked targets, and what is known about their values."""

    values: Tensor
    all_known: bool
    """True if no label is unknown; False also if that was not checked."""
    hard: bool
    """True if every known label is 0 or 1; False also if that was not checked."""


def as_targets(targets: ArrayLike, like: Tensor, validate: bool = False) -> Targets:
    """Return `targets` as a checked tensor of the shape and on the device of `like`.

    Shape, dtype and device are always checked. Values are checked in eager mode on the CPU, elsewhere only with
    `validate=True`, since that waits for the device.
    """
    t = as_tensor(targets, "targets")
    if t.dtype.is_complex:
        raise ValueError(f"targets has dtype {t.dtype}: give real numbers, 1 present, 0 absent, -1 unknown")
    if t.shape != like.shape:
        raise ValueError(f"targets has shape {tuple(t.shape)}, but logits has {tuple(like.shape)}: they must be equal")
    if t.device != like.device:
        raise ValueError(f"targets is on {t.device}, but logits is on {like.device}: move one of them")
    whole = not t.dtype.is_floating_point
    unsigned = t.dtype in (torch.bool, torch.uint8)
    if t.dtype == torch.bool or t.numel() == 0 or torch.compiler.is_compiling():
        return Targets(t, unsigned, whole)
    if not (validate or t.device.type == "cpu"):
        return Targets(t, unsigned, whole)
    low, high = (v.item() for v in torch.aminmax(t))
    inside = low >= UNKNOWN and high <= 1
    hard = inside and (whole or torch.addcmul(t.abs(), t, t, value=-1).max().item() == 0)  # |t| − t² is 0 at −1, 0, 1
    if not (hard or (low >= 0 and high <= 1)):
        _check_values(t)
    return Targets(t, low >= 0, hard)


def _check_values(t: Tensor) -> None:
    """Raise on the first value outside {−1} ∪ [0, 1]."""
    bad = ~((t >= 0) & (t <= 1) | (t == UNKNOWN))
    refuse(bad, "targets", t, "a label is 1 present, 0 absent, between them soft, or -1 unknown")


def refuse(bad: Tensor, name: str, values: Tensor, remedy: str) -> None:
    """Raise if any of `values`, called `name`, is bad; the message gives the first position and the remedy."""
    if bool(bad.any()):
        where = tuple(bad.nonzero()[0].tolist())
        position = f"[{', '.join(map(str, where))}]" if where else ""
        raise ValueError(f"{name}{position} is {values[where].item():g}: {remedy}")


def known(targets: Tensor) -> Tensor:
    """Return a boolean mask of the labels that were annotated."""
    return targets != UNKNOWN


def check_counts(counts: ArrayLike, n_known: int | ArrayLike | None = None, floor: int | None = None) -> Tensor:
    """Return class counts n_c as float64 (L,), checked against the k_c known labels of each class.

    A count of 0 is refused unless `floor` is given, which then is the least count (1 is the usual choice).
    """
    n = check_vector("counts", counts)
    if n_known is not None:
        check_within(n, check_known(n_known, len(n)))
    if floor is not None:
        if not floor > 0:
            raise ValueError(f"floor is {floor}: it stands in for a count of 0 and must be positive")
        return n.clamp_min(floor)
    if (n == 0).any():
        c = int((n == 0).nonzero()[0])
        raise ValueError(f"counts[{c}] is 0: a class without positives has no weight; leave it out or give floor=1")
    return n


def check_within(counts: Tensor, n_known: Tensor) -> None:
    """Raise where a class has more positives than known labels."""
    over = counts > n_known
    if over.any():
        c = int(over.nonzero()[0])
        raise ValueError(
            f"counts[{c}] is {counts[c].item():g}, more than the {n_known[c].item():g} known labels of that class: "
            "count both over the same items"
        )


def check_known(n_known: int | ArrayLike, n_labels: int) -> Tensor:
    """Return the known labels of each class, k_c, as float64 (L,), from one number, or one per class."""
    k = check_vector("n_known", torch.atleast_1d(as_tensor(n_known, "n_known")))
    if len(k) not in (1, n_labels):
        raise ValueError(f"n_known has {len(k)} values: give one number, or one for each of {n_labels} classes")
    return k.expand(n_labels).clone()


def check_vector(name: str, values: ArrayLike) -> Tensor:
    """Return a copy of counts as float64 (L,) on the CPU, refusing what cannot be one."""
    v = as_tensor(values, name).to("cpu", torch.float64, copy=True)
    if v.ndim != 1 or len(v) == 0:
        raise ValueError(f"{name} has shape {tuple(v.shape)}: give one number for each class, (L,)")
    refuse(~torch.isfinite(v) | (v < 0), name, v, "a count is a finite number, at least 0")
    return v
