"""Averages over labels: all that are defined, the K rarest, and head, medium and tail."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from torch import Tensor

from steelyard.labels.groups import head_medium_tail, rarest
from steelyard.labels.targets import ArrayLike

Array: TypeAlias = np.ndarray[Any, Any]


class Mean(NamedTuple):
    """A mean over the values that are defined, their number, and the number left out because they are not."""

    value: float
    n: int
    left_out: int


def mean_defined(values: ArrayLike) -> Mean:
    """Return the mean of the values that are not NaN, and how many were left out; NaN if none is defined."""
    v = _numpy(values).astype(np.float64).ravel()
    defined = v[~np.isnan(v)]
    return Mean(float(defined.mean()) if len(defined) else float("nan"), len(defined), len(v) - len(defined))


def label_groups(counts: ArrayLike, head: int = 100, tail: int = 20) -> dict[str, Array]:
    """Return the labels with at least `head` training positives, with fewer than `tail`, and those between ("medium").

    The defaults are paper 2's, whose published splits count from 100 on, not over 100, as head.
    """
    return head_medium_tail(check_counts(counts), head, tail)


def rarest_labels(counts: ArrayLike, k: int) -> Array:
    """Return the `k` labels with the fewest training positives, rarest first, equal counts by position."""
    return rarest(check_counts(counts), k)


def mean_by_group(values: ArrayLike, counts: ArrayLike, head: int = 100, tail: int = 20) -> dict[str, Mean]:
    """Return the mean over the defined labels of each group of `label_groups`.

    - `values` (L,): one number a label, NaN where undefined, e.g. from `average_precision`.
    - `counts` (L,): the positives of each label in training.
    """
    v = _check_values(values, counts)
    return {group: mean_defined(v[index]) for group, index in label_groups(counts, head, tail).items()}


def mean_of_rarest(values: ArrayLike, counts: ArrayLike, k: int) -> Mean:
    """Return the mean over the defined labels among the `k` of `rarest_labels`."""
    return mean_defined(_check_values(values, counts)[rarest_labels(counts, k)])


def _numpy(values: ArrayLike) -> Array:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def check_counts(counts: ArrayLike) -> Array:
    """Return the positives of each label as a checked array (L,)."""
    n = _numpy(counts)
    if n.ndim != 1 or n.dtype.kind not in "iuf":
        raise ValueError(f"counts has shape {n.shape} and dtype {n.dtype}: give the positives of each label as (L,)")
    bad = ~(np.isfinite(n) & (n >= 0))
    if bad.any():
        c = int(np.flatnonzero(bad)[0])
        raise ValueError(f"counts[{c}] is {n[c]}: a count is a finite number, at least 0")
    return n


def _check_values(values: ArrayLike, counts: ArrayLike) -> Array:
    v, n = _numpy(values), check_counts(counts)
    if v.shape != n.shape:
        raise ValueError(f"values has shape {v.shape}, but counts has {n.shape}: give one number a label")
    return v
