"""Build long tails and missing labels from a complete data set, by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from steelyard._arrays import Array, Index, slices
from steelyard.balance import draws
from steelyard.balance.split import rows_of_positives
from steelyard.labels import UNKNOWN, Labels
from steelyard.labels.inputs import as_whole

_CHUNK = 1 << 20  # random numbers made at a time


def exponential_counts(n_max: int, n_classes: int, rho: float) -> Index:
    """Return the class counts of an exponential long tail, n_i = ⌊n_max ρ^(−i/(C−1))⌋ for i = 0 … C−1.

    The floor is taken of the exact number, before rounding.

    Args:
        n_max: number of items of the first class.
        n_classes: C.
        rho: ρ ≥ 1, the first count divided by the last.

    Examples:
        >>> sy.data.exponential_counts(100, 5, rho=100).tolist()
        [100, 31, 10, 3, 1]
    """
    n_max, n_classes = as_whole(n_max, "n_max"), as_whole(n_classes, "n_classes")
    if n_classes < 1 or not 1 <= rho <= n_max:
        raise ValueError(
            f"n_max is {n_max}, n_classes {n_classes} and rho {rho}: give at least one class, and 1 <= rho <= n_max "
            "so that every class has an item"
        )
    exact, last = Fraction(rho.item() if isinstance(rho, np.generic) else rho), max(1, n_classes - 1)
    counts = []
    for i in range(n_classes):
        n = int(n_max * rho ** (-i / last)) + 1
        while n**last * exact.numerator**i > n_max**last * exact.denominator**i:
            n -= 1
        counts.append(n)
    return np.array(counts, np.int64)


def exponential_long_tail(classes: ArrayLike, n_max: int, rho: float, seed: int = 0) -> Index:
    """Return increasing indices of a long-tailed subset of a single-label set: class i keeps n_i of
    `exponential_counts`.

    Args:
        classes: class of each item, (N,), 0 … C−1.
        n_max, rho: as in `exponential_counts`.
        seed: determines which items are kept.

    Examples:
        >>> classes = np.repeat([0, 1, 2], 10)
        >>> kept = sy.data.exponential_long_tail(classes, n_max=9, rho=9)
        >>> np.bincount(classes[kept]).tolist()
        [9, 3, 1]
    """
    which = np.asarray(classes)
    if which.ndim != 1 or which.dtype.kind not in "iu" or len(which) == 0 or which.min() < 0:
        raise ValueError(f"classes has dtype {which.dtype} and shape {which.shape}: give each item's class, 0 to C-1")
    draws.check_seed(seed)
    counts, order = np.bincount(which), np.argsort(which, kind="stable")
    first = np.cumsum(counts) - counts
    chosen = []
    for c, target in enumerate(exponential_counts(n_max, len(counts), rho)):
        if target > counts[c]:
            raise ValueError(f"class {c} has {counts[c]} items, but the long tail needs {target}: lower n_max")
        chosen.append(
            order[first[c] + draws.distinct(draws.key(seed, "exponential long tail", c), int(target), int(counts[c]))]
        )
    return np.sort(np.concatenate(chosen))


def pareto_counts(n_max: int, n_classes: int, alpha: float = 6.0) -> Index:
    """Return the target counts of `pareto_long_tail`, from head to tail.

    The density of a Pareto distribution falls as x^−(α+1) from x = 1. It is cut where the distribution function
    1 − x^−α reaches .99, sampled at C evenly spaced x, scaled to n_max, rounded, and raised to at least 1.

    Args:
        n_max: count of the head label.
        n_classes: C.
        alpha: α.

    Examples:
        >>> sy.data.pareto_counts(800, 5).tolist()
        [800, 136, 33, 10, 4]
    """
    n_max, n_classes = as_whole(n_max, "n_max"), as_whole(n_classes, "n_classes")
    if n_max < 1 or n_classes < 1 or not alpha > 0:
        raise ValueError(f"n_max is {n_max}, n_classes {n_classes} and alpha {alpha}: all three must be positive")
    x = np.linspace(1.0, 0.01 ** (-1 / alpha), n_classes)
    return np.maximum(1, np.rint(n_max * x ** -(alpha + 1))).astype(np.int64)


def pareto_long_tail(
    labels: Labels, n_max: int, alpha: float = 6.0, seed: int = 0, after_label: Callable[[Index], None] | None = None
) -> Index:
    """Return increasing indices of a long-tailed subset of a multi-label set, built as VOC-MLT was.

    Labels are ranked by `labels.resampled_prior()`. From head to tail, items with the label are added or removed at
    random until it reaches its count in `pareto_counts`; adding items for later labels shifts the counts of earlier
    ones a little. Every label with a positive keeps at least one.

    Args:
        labels: the `Labels` of all items.
        n_max: positives of the head label (800 for VOC, 1200 for COCO).
        alpha: α of the Pareto distribution.
        seed: determines which items are kept.
        after_label: called after each label with the current positives of all labels.

    Examples:
        >>> values = (np.arange(60)[:, None] % [2, 3, 5] == 0).astype(np.int8)
        >>> labels = sy.Labels(values, ["even", "threes", "fives"])
        >>> kept = sy.data.pareto_long_tail(labels, n_max=20)
        >>> labels.take(kept).counts.tolist()
        [10, 1, 1]
    """
    draws.check_seed(seed)
    prior = labels.resampled_prior()
    ranked = [int(c) for c in np.argsort(-np.nan_to_num(prior), kind="stable") if labels.counts[c]]
    starts, members = labels.items_by_label()
    row_starts, columns = rows_of_positives(labels)
    inside = np.zeros(len(labels), bool)
    have = np.zeros(labels.n_labels, np.int64)
    least = np.zeros(labels.n_labels, np.int64)
    for c, target in zip(ranked, pareto_counts(n_max, len(ranked), alpha).tolist(), strict=True):
        own = members[starts[c] : starts[c + 1]]
        step = 1 if target > have[c] else -1
        own = own[inside[own] == (step < 0)]
        tried = min(target - int(have[c]), len(own)) if step > 0 else len(own)
        for item in own[draws.distinct(draws.key(seed, "pareto long tail", c), tried, len(own))].tolist():
            if have[c] == target:
                break
            has = columns[row_starts[item] : row_starts[item + 1]]
            if step > 0 or (have[has] > least[has]).all():
                inside[item] = step > 0
                have[has] += step
        least[c] = 1
        if after_label is not None:
            after_label(have.copy())
    return np.flatnonzero(inside)


def keep_labels(labels: Labels, fraction: float, seed: int = 0) -> Labels:
    """Keep each known label with probability `fraction`; the others become unknown (PAL: an item may lose all
    positives).

    The draw depends on (seed, item, label) only, not on how the table is stored.

    Args:
        labels: the complete `Labels`.
        fraction: share of labels to keep, above 0 and at most 1.
        seed: determines which labels are kept.

    Examples:
        >>> labels = sy.Labels(np.eye(4, dtype=np.int8))
        >>> sy.data.keep_labels(labels, 0.5).values.tolist()
        [[-1, 0, 0, -1], [0, 1, 0, 0], [-1, 0, -1, -1], [0, -1, 0, 1]]
    """
    stream = _check_draw(fraction, seed, "keep labels")
    if labels.fill == UNKNOWN:
        items, columns, values = labels.cells()
        return _known_only(labels, *_thinned(labels, stream, fraction, items, columns, values))
    size, n_known, n_positive = len(labels) * labels.n_labels, labels.n_known.sum(), labels.counts.sum()
    fill = UNKNOWN if fraction * n_known < size - fraction * (n_known - n_positive) else 0
    parts = list(_thinned_rows(labels, stream, fraction, fill))
    items, columns, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Labels.from_cells(items, columns, values, (len(labels), labels.n_labels), fill, labels.names, labels.ids)


def keep_positives(labels: Labels, fraction: float, seed: int = 0) -> Labels:
    """Keep each positive label with probability `fraction`; all other labels become unknown (PPL: no negatives).

    Args:
        labels: the complete `Labels`.
        fraction: share of positives to keep, above 0 and at most 1.
        seed: determines which positives are kept.

    Examples:
        >>> labels = sy.Labels(np.eye(4, dtype=np.int8))
        >>> sy.data.keep_positives(labels, 0.5).values.tolist()
        [[1, -1, -1, -1], [-1, -1, -1, -1], [-1, -1, 1, -1], [-1, -1, -1, 1]]
    """
    stream = _check_draw(fraction, seed, "keep positives")
    items, columns, values = _positive_cells(labels)
    return _known_only(labels, *_thinned(labels, stream, fraction, items, columns, values))


def keep_single_positive(labels: Labels, seed: int = 0) -> Labels:
    """Keep one positive label of each item, drawn uniformly; all other labels become unknown (SPL).

    All labels of an item without positives become unknown.

    Args:
        labels: the complete `Labels`.
        seed: determines which positive is kept.

    Examples:
        >>> labels = sy.Labels([[1, 1, 0], [0, 1, 1], [0, 0, 0]])
        >>> sy.data.keep_single_positive(labels).values.tolist()
        [[-1, 1, -1], [-1, -1, 1], [-1, -1, -1]]
    """
    stream = _check_draw(1.0, seed, "keep single positive")
    items, columns, values = _positive_cells(labels)
    owners, first, n = np.unique(items, return_index=True, return_counts=True)
    one = first + draws.below(stream, owners, n)
    return _known_only(labels, items[one], columns[one], values[one])


def _check_draw(fraction: float, seed: int, purpose: str) -> int:
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction is {fraction}: give the share of labels to keep, above 0 and at most 1")
    return draws.key(draws.check_seed(seed), purpose)


def _known_only(labels: Labels, items: Array, columns: Array, values: Array) -> Labels:
    """The table in which only these cells are known."""
    shape = (len(labels), labels.n_labels)
    return Labels.from_cells(items, columns, values, shape, UNKNOWN, labels.names, labels.ids)


def _positive_cells(labels: Labels) -> tuple[Array, Array, Array]:
    items, columns, values = labels.cells()
    positive = values >= 0.5
    return items[positive], columns[positive], values[positive]


def _thinned(
    labels: Labels, stream: int, fraction: float, items: Array, columns: Array, values: Array
) -> tuple[Array, Array, Array]:
    """Keep each cell with probability `fraction`."""
    kept = np.zeros(len(items), bool)
    for start in range(0, len(items), _CHUNK):
        part = slice(start, start + _CHUNK)
        kept[part] = draws.uniform(stream, items[part].astype(np.int64) * labels.n_labels + columns[part]) < fraction
    return items[kept], columns[kept], values[kept]


def _thinned_rows(labels: Labels, stream: int, fraction: float, fill: int) -> Iterator[tuple[Array, Array, Array]]:
    """Keep each known label with probability `fraction`, and list, block by block, the cells that are not `fill`."""
    for rows in slices((len(labels), labels.n_labels), _CHUNK) if len(labels) else [slice(0, 0)]:
        start, stop = rows.start, rows.stop
        values = labels.rows(np.arange(start, stop))
        cells = np.arange(start * labels.n_labels, stop * labels.n_labels).reshape(values.shape)
        values[draws.uniform(stream, cells) >= fraction] = UNKNOWN
        items, columns = np.nonzero(values != fill)
        yield items + start, columns, values[items, columns]
