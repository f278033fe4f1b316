"""P@k, nDCG@k and PSP@k of each item's first labels, streamed: for more labels than can all be scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.metrics.ordered import propensities


class TopEvaluator:
    """Streams items with their first labels and their positives, and gives P@k, nDCG@k, recall@k and PSP@k.

    P@k is the mean over all items; nDCG and recall leave out those without a positive. nDCG divides by the best that
    the item's number of positives allows; PSP sums 1/p over the positives among the first k and divides by the best
    such sum of all items. A label that is unknown for an item is no hit.

    Args:
        counts: training positives of each label (L,).
        n_items: training items.
        ks: the k's, increasing.

    Examples:
        >>> evaluator = sy.metrics.TopEvaluator(counts=np.array([50, 20, 5]), n_items=100, ks=(1, 2))
        >>> top = np.array([[0, 2], [1, 0]])
        >>> evaluator.update(top, rows=np.array([0, 0, 1]), labels=np.array([0, 2, 0]))  # item 0 has labels 0 and 2
        >>> evaluator.compute()["precision"]
        {1: 0.5, 2: 0.75}
    """

    def __init__(self, counts: ArrayLike, n_items: int, ks: Sequence[int] = (1, 3, 5)) -> None:
        if not ks or min(ks) < 1:
            raise ValueError(f"ks is {list(ks)}: give numbers of at least 1")
        self.ks = tuple(ks)
        self.worth = 1 / propensities(np.asarray(counts), n_items)
        self.n_items, self.n_with_positives = 0, 0
        self.sums = np.zeros((5, len(self.ks)))
        """Sums of precision, nDCG, recall, worth and best possible worth, by k."""

    def update(self, top: ArrayLike, rows: ArrayLike, labels: ArrayLike) -> None:
        """Add items whose first labels are `top` (B, K), best first; their positives are the cells (rows, labels).

        Args:
            top: the first labels of each item, best first, (B, K) with K at least the largest k.
            rows: the item in this batch, 0 … B − 1, of each positive.
            labels: the label of each positive, as long as `rows`.
        """
        first, row, label = (np.asarray(x).astype(np.int64) for x in (top, rows, labels))
        if first.ndim != 2 or first.shape[1] < max(self.ks):
            raise ValueError(f"top has shape {first.shape}: give (B, K) with K at least {max(self.ks)}")
        n_labels = len(self.worth)
        keys = np.sort(row * n_labels + label)
        candidates = np.arange(len(first))[:, None] * n_labels + first
        position = np.minimum(np.searchsorted(keys, candidates), max(len(keys) - 1, 0))
        hits = keys[position] == candidates if len(keys) else np.zeros(first.shape, bool)
        n_positive = np.bincount(row, minlength=len(first))
        some = n_positive > 0
        gain = 1 / np.log2(np.arange(first.shape[1]) + 2)
        ideal = np.concatenate([[0.0], np.cumsum(gain)])
        best = self._best(row, label, len(first))
        worth = hits * self.worth[first]
        for i, k in enumerate(self.ks):
            n_hits = hits[some, :k].sum(1)
            self.sums[0, i] += (n_hits / k).sum()
            self.sums[1, i] += (hits[some, :k] @ gain[:k] / ideal[np.minimum(n_positive[some], k)]).sum()
            self.sums[2, i] += (n_hits / n_positive[some]).sum()
            self.sums[3, i] += worth[some, :k].sum()
            self.sums[4, i] += best[k]
        self.n_items += len(first)
        self.n_with_positives += int(some.sum())

    def _best(self, row: NDArray[np.int64], label: NDArray[np.int64], n: int) -> dict[int, float]:
        """Return the largest sums of worth that k labels of every item could have."""
        order = np.lexsort((-self.worth[label], row))
        rank = np.arange(len(row)) - np.searchsorted(row[order], row[order])
        return {k: float(self.worth[label[order]][rank < k].sum()) for k in self.ks}

    def merge(self, other: TopEvaluator) -> None:
        """Add the items of another evaluator.

        Args:
            other: an evaluator made with the same arguments.
        """
        if other.ks != self.ks or len(other.worth) != len(self.worth):
            raise ValueError("other has other k's or labels: merge what measures the same")
        self.sums += other.sums
        self.n_items += other.n_items
        self.n_with_positives += other.n_with_positives

    def compute(self) -> dict[str, Any]:
        """Return the number of items and `precision`, `ndcg`, `recall` and `psp`, each by k; NaN without items."""
        out: dict[str, Any] = {"items": self.n_items}
        with np.errstate(invalid="ignore", divide="ignore"):
            means = self.sums[:3] / np.array([[self.n_items], [self.n_with_positives], [self.n_with_positives]])
            values = (*means, self.sums[3] / self.sums[4])
        for name, value in zip(("precision", "ndcg", "recall", "psp"), values, strict=True):
            out[name] = {k: float(v) for k, v in zip(self.ks, value, strict=True)}
        return out
