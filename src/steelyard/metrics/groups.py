"""Averages over labels: all that are defined, the K rarest, and head, medium and tail."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from steelyard._arrays import Array
from steelyard.labels.groups import head_medium_tail, rarest
from steelyard.labels.targets import ArrayLike


class Mean(NamedTuple):
    """A mean over the values that are defined.

    Attributes:
        value: the mean; NaN without a defined value.
        n: how many values are defined.
        left_out: how many are not.

    Examples:
        >>> sy.metrics.mean_defined(np.array([0.5, np.nan, 0.75])).value
        0.625
    """

    value: float
    n: int
    left_out: int


def mean_defined(values: ArrayLike) -> Mean:
    """Return the mean of the values that are not NaN, and how many were left out; NaN if none is defined.

    Args:
        values: numbers of any shape, NaN where undefined.

    Examples:
        >>> sy.metrics.mean_defined(np.array([0.5, np.nan, 0.75]))
        Mean(value=0.625, n=2, left_out=1)
    """
    v = _numpy(values).astype(np.float64).ravel()
    defined = v[~np.isnan(v)]
    return Mean(float(defined.mean()) if len(defined) else float("nan"), len(defined), len(v) - len(defined))


def label_groups(counts: ArrayLike, head: int = 100, tail: int = 20) -> dict[str, Array]:
    """Return the labels with at least `head` training positives, with fewer than `tail`, and those between ("medium").

    The defaults are paper 2's, whose published splits count from 100 on, not over 100, as head.

    Args:
        counts: training positives of each label (L,).
        head: the least count of a head label (100).
        tail: tail labels have fewer (20).

    Examples:
        >>> sy.metrics.label_groups(np.array([500, 100, 99, 20, 3]))
        {'head': array([0, 1]), 'medium': array([2, 3]), 'tail': array([4])}
    """
    return head_medium_tail(check_counts(counts), head, tail)


def rarest_labels(counts: ArrayLike, k: int) -> Array:
    """Return the `k` labels with the fewest training positives, rarest first, equal counts by position.

    Args:
        counts: training positives of each label (L,).
        k: how many labels.

    Examples:
        >>> sy.metrics.rarest_labels(np.array([500, 3, 99, 20]), k=2)
        array([1, 3])
    """
    return rarest(check_counts(counts), k)


def mean_by_group(values: ArrayLike, counts: ArrayLike, head: int = 100, tail: int = 20) -> dict[str, Mean]:
    """Return the mean over the defined labels of each group of `label_groups`.

    Args:
        values: one number per label (L,), NaN where undefined, such as average precisions.
        counts: training positives of each label (L,).
        head: the least count of a head label (100).
        tail: tail labels have fewer (20).

    Examples:
        >>> means = sy.metrics.mean_by_group(np.array([0.75, 0.5, np.nan]), counts=np.array([500, 3, 4]))
        >>> means["head"].value, means["tail"]
        (0.75, Mean(value=0.5, n=1, left_out=1))
    """
    v = _check_values(values, counts)
    return {group: mean_defined(v[index]) for group, index in label_groups(counts, head, tail).items()}


def mean_of_rarest(values: ArrayLike, counts: ArrayLike, k: int) -> Mean:
    """Return the mean over the defined labels among the `k` of `rarest_labels`.

    Args:
        values: one number per label (L,), NaN where undefined, such as average precisions.
        counts: training positives of each label (L,).
        k: how many labels.

    Examples:
        >>> sy.metrics.mean_of_rarest(np.array([0.75, 0.5, 0.25]), counts=np.array([500, 3, 4]), k=2)
        Mean(value=0.375, n=2, left_out=0)
    """
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
        raise ValueError(f"values has shape {v.shape}, but counts has {n.shape}: give one number per label")
    return v
