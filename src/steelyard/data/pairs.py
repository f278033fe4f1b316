"""Pairs of labels: columns that say the same, and labels that come together."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from steelyard.data.aligned import aligned
from steelyard.labels import UNKNOWN, Labels

Array: TypeAlias = NDArray[Any]

MOST_LABELS = 4096
"""Pairs are looked at among at most so many labels, the most frequent ones."""

NEAR = 0.9
"""From this overlap on, two columns are near-identical."""

LEAST_TOGETHER = 5
"""Labels come together when at least so many items have both."""

_CANDIDATES = 50


class Twins(NamedTuple):
    """Two labels whose columns say the same, or nearly."""

    first: str
    second: str
    both: int
    """Items that have both labels."""
    overlap: float
    """Of the items that have one label and for which the other is known, the share that has both."""
    agreement: float
    """Of the items for which both labels are known, the share where they are equal."""
    known: int
    """Items for which both labels are known."""

    @property
    def identical(self) -> bool:
        """Whether the columns agree wherever both are known."""
        return self.agreement == 1


class Together(NamedTuple):
    """Two labels that come together more often than chance would have it."""

    first: str
    second: str
    both: int
    """Items that have both labels."""
    first_given_second: float
    """p(first | second), among items for which first is known."""
    second_given_first: float
    lift: float
    """How many times more often than if they were independent; the geometric mean of both directions' estimates."""


class Pairs(NamedTuple):
    """What was found among pairs of labels."""

    twins: tuple[Twins, ...]
    """Most items first; at most 50."""
    together: tuple[Together, ...]
    """By items × log lift, strongest first."""
    order: NDArray[np.int64]
    """The labels that were looked at, most frequent first."""
    conditional: NDArray[np.float64]
    """p(i|j) as [i, j], in that order."""


def find_pairs(labels: Labels, n_together: int = 10) -> Pairs:
    """Return near-identical columns and the labels that come together most.

    The overlap of labels i and j is n₁₁ / (n₁₁ + n₁₀ + n₀₁) over items for which both are known. n₁₁ + n₁₀ + n₀₁ is
    n₁₁/p(i|j) + n₁₁/p(j|i) − n₁₁, so that only co-occurrences are counted, never N × L cells.
    Columns that agree may do so by chance: they are left out unless n₁₁ log₂ lift exceeds log₂ of the number of pairs,
    and where no item is known to lack both.
    """
    order = np.argsort(-labels.counts, kind="stable")[:MOST_LABELS].astype(np.int64)
    chosen = [labels.names[c] for c in order]
    part = labels if len(order) == labels.n_labels else aligned(labels, chosen, unseen="drop")
    rank = order if part is labels else np.arange(len(order))
    both, conditional = part.cooccurrence(), part.conditional()
    i, j = np.nonzero(np.triu(both, 1))
    n, given_j, given_i = both[i, j], conditional[i, j], conditional[j, i]
    either = np.rint(n / given_j).astype(np.int64) + np.rint(n / given_i).astype(np.int64) - n
    overlap = n / either
    lift = np.sqrt(given_j / part.prior[i] * given_i / part.prior[j])
    strength = n * np.log2(lift)
    by_chance = np.log2(max(1, part.n_labels * (part.n_labels - 1) // 2))
    near = np.flatnonzero((overlap >= NEAR) & (strength.round(9) > by_chance.round(9)))
    near = near[np.lexsort((-overlap[near], -n[near]))][:_CANDIDATES]
    known = _known_together(part, np.stack([i[near], j[near]], axis=1))
    twins = []
    for k, at in zip(known.tolist(), near.tolist(), strict=True):
        if k > either[at]:
            names = part.names[i[at]], part.names[j[at]]
            equal = k - int(either[at] - n[at])
            twins.append(Twins(*names, int(n[at]), float(overlap[at]), equal / k, k))
    strength[(n < LEAST_TOGETHER) | (lift <= 1)] = 0
    strongest = np.argsort(-strength, kind="stable")[:n_together]
    return Pairs(
        tuple(twins),
        tuple(
            Together(
                part.names[i[at]],
                part.names[j[at]],
                int(n[at]),
                float(given_j[at]),
                float(given_i[at]),
                float(lift[at]),
            )
            for at in strongest
            if strength[at] > 0
        ),
        order,
        conditional[np.ix_(rank, rank)],
    )


def _known_together(labels: Labels, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """The items for which both labels of a pair are known, of each of `pairs` (n, 2)."""
    items, columns, values = labels.cells()
    wanted = np.zeros(labels.n_labels, bool)
    wanted[pairs] = True
    kept = wanted[columns] & ((values == UNKNOWN) != (labels.fill == UNKNOWN))
    items, columns = items[kept], columns[kept]
    listed = {c: items[columns == c] for c in np.unique(pairs).tolist()}
    shared = [len(np.intersect1d(listed[a], listed[b], assume_unique=True)) for a, b in pairs.tolist()]
    if labels.fill == UNKNOWN:
        return np.array(shared, np.int64)
    unknown = [len(listed[a]) + len(listed[b]) - both for (a, b), both in zip(pairs.tolist(), shared, strict=True)]
    return len(labels) - np.array(unknown, np.int64)
