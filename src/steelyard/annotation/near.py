"""Find near-duplicates by embedding whose labels contradict each other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from steelyard._arrays import Array, Index
from steelyard.labels import UNKNOWN, Labels

NEAR = 0.1
"""Near-duplicates are at most this far apart, as a share of the typical distance of two items."""
MOST_COMPARED = 20_000
"""Maximum number of items for which all pairs are compared; beyond it, only neighbours in random projections."""
PROJECTIONS = 16
NEIGHBOURS = 8
"""Number of next items along a projection that each item is compared with."""
LISTED = 1000
_ROWS = 1024


class Contradiction(NamedTuple):
    """Two near-duplicates, one with a label and one without it."""

    first: int
    second: int
    """Rows of the table; the label is given present for one and absent for the other."""
    label: int
    distance: float
    """Distance as a share of the typical one; 0 for equal embeddings."""


def contradictions(labels: Labels, embeddings: Array, seed: int = 0) -> tuple[Contradiction, ...]:
    """Return near-duplicates with contradicting labels, the nearest first; 1,000 at most.

    Args:
        labels: table of N items.
        embeddings: array (N, D).
        seed: seed of the random projections.
    """
    x = standardised(embeddings, len(labels))
    pairs: list[Contradiction] = []
    for first, second, distance in zip(*near_pairs(x, seed), strict=True):
        a, b = labels.rows(np.array([first, second]))
        known = (a != UNKNOWN) & (b != UNKNOWN)
        for c in np.flatnonzero(known & ((a >= 0.5) != (b >= 0.5))).tolist():
            pairs.append(Contradiction(int(first), int(second), c, float(distance)))
        if len(pairs) >= LISTED:
            break
    return tuple(pairs[:LISTED])


def standardised(embeddings: Array, n_items: int) -> Array:
    """Return embeddings (N, D), float32, each column with mean 0 and deviation 1, so that none outweighs the others."""
    x = np.asarray(embeddings, np.float32)
    if x.ndim != 2 or len(x) != n_items:
        raise ValueError(f"embeddings has shape {x.shape}: give one row for each of {n_items} items")
    if not np.isfinite(x).all():
        raise ValueError("embeddings holds NaN or infinite numbers: leave such items out")
    deviation = x.std(0)
    return np.asarray((x - x.mean(0)) / np.where(deviation > 1e-6 * np.abs(x).max(0, initial=0), deviation, np.inf))


def near_pairs(x: Array, seed: int = 0) -> tuple[Index, Index, Array]:
    """Return pairs i < j of near-duplicates and their distances, relative to that of two items at random."""
    centred = x - x.mean(0)
    typical = float(np.sqrt(2 * np.square(centred).sum(1).mean()))
    if len(x) < 2 or typical == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    radius = NEAR * typical
    first, second = _all_near(centred, radius) if len(x) <= MOST_COMPARED else _side_by_side(centred, radius, seed)
    distance = np.sqrt(np.square(centred[first] - centred[second]).sum(1)) / typical
    kept = np.flatnonzero(distance <= NEAR)
    order = kept[np.lexsort((second[kept], first[kept], distance[kept]))]
    return first[order], second[order], distance[order]


def _all_near(x: Array, radius: float) -> tuple[Index, Index]:
    """Return the pairs i < j within a radius by matrix products, with some slack for rounding."""
    square = np.square(x).sum(1)
    slack = 1e-5 * float(square.max())
    pairs = []
    for start in range(0, len(x), _ROWS):
        some = x[start : start + _ROWS]
        squared = square[start : start + _ROWS, None] + square[None, start:] - 2 * some @ x[start:].T
        i, j = np.nonzero(squared <= radius**2 + slack)
        pairs.append(np.stack([i, j])[:, i < j] + start)
    first, second = np.concatenate(pairs, axis=1)
    return first, second


def _side_by_side(x: Array, radius: float, seed: int) -> tuple[Index, Index]:
    """Return the pairs i < j that lie within a few places of each other along one of some random directions.

    Their distance is first estimated from the projections: its square is χ² with as many degrees of freedom as there
    are directions, and twice the radius loses next to none.
    """
    directions = np.random.default_rng(seed).normal(size=(x.shape[1], PROJECTIONS)).astype(np.float32)
    along = x @ directions
    keys = [np.zeros(0, np.int64)]
    for column in range(PROJECTIONS):
        order = np.argsort(along[:, column], kind="stable")
        ordered = along[order]
        for k in range(1, NEIGHBOURS + 1):
            squared = np.square(ordered[k:] - ordered[:-k]).mean(1)
            near = np.flatnonzero(squared <= (2 * radius) ** 2)
            i, j = np.sort(np.stack([order[near], order[near + k]]), axis=0)
            keys.append(i * len(x) + j)
    return np.divmod(np.unique(np.concatenate(keys)), len(x))
