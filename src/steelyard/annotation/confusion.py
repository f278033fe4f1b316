"""Find labels that are given in place of others."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from steelyard.data.inspect import MOST_LABELS
from steelyard.labels import Labels

LEAST_WRONG = 0.05
"""Labels whose probability of being wrong is lower count as right."""
LEAST_ITEMS = 1.0
"""Minimum expected number of items beyond chance for a pair to be listed."""
_LISTED = 50


class Confused(NamedTuple):
    """A label that is given where another is missing."""

    given: str
    """Given present, and probably wrong."""
    missing: str
    """Given absent, and probably present, in the same items."""
    items: float
    """Expected number of such items: the sum of the products of both probabilities."""
    by_chance: float
    """Expected number if the two errors were independent."""


class Confusion:
    """Counts how often one label is wrongly present where another is wrongly absent, block by block."""

    def __init__(self, labels: Labels) -> None:
        self.names, self.n = labels.names, 0
        size = labels.n_labels if labels.n_labels <= MOST_LABELS else 0
        self.both = np.zeros((size, size))
        self.totals = np.zeros((2, labels.n_labels))

    def add(self, wrong: NDArray[Any], given: NDArray[Any]) -> None:
        """Add a block of items: the probability that each label is wrong, and the given labels."""
        if not len(self.both):
            return
        with np.errstate(invalid="ignore"):
            suspect = wrong >= LEAST_WRONG
        added, missing = (np.where(suspect & side, wrong, 0.0) for side in (given >= 0.5, given < 0.5))
        self.both += (scipy.sparse.csr_array(added).T @ scipy.sparse.csr_array(missing)).toarray()
        self.totals += np.stack([added.sum(0), missing.sum(0)])
        self.n += len(wrong)

    def pairs(self) -> tuple[Confused, ...]:
        """Return the pairs that are expected in at least one item more than by chance, the clearest first."""
        chance = np.outer(*self.totals) / max(self.n, 1) if len(self.both) else self.both
        excess = self.both - chance
        given, missing = np.nonzero(excess >= LEAST_ITEMS)
        order = np.argsort(-excess[given, missing], kind="stable")[:_LISTED]
        return tuple(
            Confused(self.names[i], self.names[j], float(self.both[i, j]), float(chance[i, j]))
            for i, j in zip(given[order].tolist(), missing[order].tolist(), strict=True)
        )
