"""Measures of an order: AUROC, ranking loss, coverage, and the top k of each item, exactly, ties as their mean.

Unknown labels are as if they were not there. All are sums over sorted rows, from counts at each cell's run of ties.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from steelyard._arrays import slices
from steelyard.balance.checks import check_choice
from steelyard.labels.inputs import as_whole
from steelyard.labels.targets import ArrayLike, as_tensor
from steelyard.metrics.groups import check_counts, mean_defined
from steelyard.metrics.inputs import positive, scored
from steelyard.metrics.ranking import CELLS_AT_ONCE, Per


class SortedRows(NamedTuple):
    """Some rows in descending order of their scores; counts are float64."""

    hit: Tensor
    """Known positives, (R, M)."""
    known: Tensor
    """Known cells, (R, M)."""
    order: Tensor
    """The column of each cell before sorting."""
    start: Tensor
    """The place before the run of tied scores that a cell belongs to, from −1."""
    end: Tensor
    """The last place of that run."""

    @classmethod
    def of(cls, scores: Tensor, hit: Tensor, known: Tensor) -> SortedRows:
        """Sort each row; unknown labels go to its end."""
        s, order = torch.where(known, scores.double(), -torch.inf).sort(1, descending=True)
        rank = torch.arange(s.shape[1], device=s.device).expand(s.shape)
        new = torch.ones_like(s, dtype=torch.bool)
        new[:, 1:] = s[:, 1:] != s[:, :-1]
        start = torch.where(new, rank - 1, -1).cummax(1).values
        last = torch.cat([new[:, 1:], new[:, :1]], 1)
        end = torch.where(last, rank, s.shape[1] - 1).flip(1).cummin(1).values.flip(1)
        return cls(hit.gather(1, order).double(), known.gather(1, order).double(), order, start, end)

    def above(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over the cells strictly above each cell."""
        sums = values.cumsum(1)
        return torch.where(self.start >= 0, sums.gather(1, self.start.clamp_min(0)), 0.0)

    def tied(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over the cells tied with each cell, itself included."""
        return values.cumsum(1).gather(1, self.end) - self.above(values)

    def wrong_pairs(self, share_of_ties: float) -> Tensor:
        """Return the share (R,) of pairs of a positive and a negative that are in the wrong order."""
        n, absent = self.hit.sum(1), self.known - self.hit
        below = n[:, None] - self.above(self.hit) - (1 - share_of_ties) * self.tied(self.hit)
        return (absent * below).sum(1) / (n * absent.sum(1))  # NaN without a pair

    def coverage(self) -> Tensor:
        """Return the number (R,) of known labels that one has to look at to see all positives."""
        reached = self.known.cumsum(1).gather(1, self.end)
        depth = torch.where(self.hit > 0, reached, 0.0).amax(1) if self.hit.shape[1] else self.hit.sum(1)
        return torch.where(self.hit.sum(1) > 0, depth, torch.nan)

    def gained(self, gains: Tensor, k: int, discounted: bool) -> Tensor:
        """Return the sum (R,) of `gains` (in the rows' first order) at the first k known labels, the mean over ties."""
        values = gains.gather(1, self.order) * self.hit
        mean = self.tied(values) / self.tied(self.known).clamp_min(1)
        rank = self.known.cumsum(1)
        weight = self.known * (rank <= k)
        return (mean * (weight / torch.log2(rank + 1).clamp_min(1) if discounted else weight)).sum(1)

    def precision(self, k: int) -> Tensor:
        """Return P@k, (R,); NaN without a known label."""
        return self.gained(torch.ones_like(self.hit), k, False) / self.known.sum(1).clamp_max(k)

    def ndcg(self, k: int) -> Tensor:
        """Return nDCG@k, (R,); NaN without a positive."""
        n = self.hit.sum(1).clamp_max(k).long()
        best = (1 / torch.arange(2, k + 2, device=n.device).double().log2()).cumsum(0)[(n - 1).clamp_min(0)]
        return torch.where(n > 0, self.gained(torch.ones_like(self.hit), k, True) / best, torch.nan)

    def scored_precision(self, propensity: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return Σ y/p of the first k known labels, and the largest it could be, (R,) each."""
        gains = (1 / propensity.to(self.hit.device)).expand(self.hit.shape)
        best = (gains.gather(1, self.order) * self.hit).sort(1, descending=True).values[:, :k].sum(1)
        return self.gained(gains, k, False), best


Measure = Callable[[SortedRows], Tensor]


def auroc(scores: ArrayLike, targets: ArrayLike, per: Per = "label") -> Any:
    """Return the area under the ROC curve of every label (L,), or of every item (N,), as float64.

    It is the chance that the score s₊ of a positive is above that of a negative. NaN without a known positive and a
    known negative.

    Formula:
        AUROC = P(s₊ > s₋) + P(s₊ = s₋)/2

    Args:
        scores: (N, L), any real numbers; higher ranks first.
        targets: (N, L), 1 present, 0 absent, −1 unknown (left out); a soft target is present from .5 on.
        per: "label" for (L,), "item" for (N,).

    Examples:
        >>> scores = torch.tensor([[0.9, 0.8], [0.7, 0.2], [0.4, 0.6]])
        >>> targets = torch.tensor([[1, 0], [0, -1], [1, 1]])
        >>> sy.metrics.auroc(scores, targets)  # the second label has one pair, in the wrong order
        tensor([0.5000, 0.0000], dtype=torch.float64)
    """
    return _each(scores, targets, per, lambda rows: 1 - rows.wrong_pairs(0.5))


def ranking_loss(scores: ArrayLike, targets: ArrayLike) -> float:
    """Return the share of an item's pairs (present, absent) that are not in order, the mean over items.

    Ties count as wrong, as in scikit-learn. Items without a known positive or without a known negative are left out,
    where scikit-learn counts them as 0.

    Formula:
        share = P(s₊ ≤ s₋)

    Args:
        scores: (N, L), any real numbers; higher ranks first.
        targets: (N, L), 1 present, 0 absent, −1 unknown (left out); a soft target is present from .5 on.

    Examples:
        >>> scores = torch.tensor([[0.9, 0.8], [0.7, 0.2], [0.4, 0.6]])
        >>> targets = torch.tensor([[1, 0], [0, -1], [1, 1]])
        >>> sy.metrics.ranking_loss(scores, targets)  # only the first item has a pair, in the right order
        0.0
        >>> sy.metrics.ranking_loss(-scores, targets)
        1.0
    """
    return _mean(scores, targets, lambda rows: rows.wrong_pairs(1.0))


def coverage_error(scores: ArrayLike, targets: ArrayLike) -> float:
    """Return how many of an item's labels one has to take, best first, to have all present ones; the mean over items.

    Items without a known positive are left out, where scikit-learn counts them as 0.

    Args:
        scores: (N, L), any real numbers; higher ranks first.
        targets: (N, L), 1 present, 0 absent, −1 unknown (left out); a soft target is present from .5 on.

    Examples:
        >>> scores, targets = torch.tensor([[0.9, 0.5, 0.3]]), torch.tensor([[1, -1, 1]])
        >>> sy.metrics.coverage_error(scores, targets)  # two labels have to be taken; the unknown one does not count
        2.0
    """
    return _mean(scores, targets, lambda rows: rows.coverage())


def precision_at_k(scores: ArrayLike, targets: ArrayLike, k: int) -> float:
    """Return the share of present labels among the k highest known ones of an item (P@k), the mean over items.

    An item with fewer than k known labels has all of them taken; one without any is left out.

    Formula:
        P@k = 1/k Σ_{r ≤ k} y_r

    Args:
        scores: (N, L), any real numbers; higher ranks first.
        targets: (N, L), 1 present, 0 absent, −1 unknown (left out); a soft target is present from .5 on.
        k: labels taken of each item.

    Examples:
        >>> scores, targets = torch.tensor([[0.9, 0.5, 0.3]]), torch.tensor([[1, -1, 0]])
        >>> sy.metrics.precision_at_k(scores, targets, k=1)
        1.0
        >>> sy.metrics.precision_at_k(scores, targets, k=2)  # the two highest known labels: the first and the third
        0.5
    """
    k = _whole(k)
    return _mean(scores, targets, lambda rows: rows.precision(k))


def ndcg_at_k(scores: ArrayLike, targets: ArrayLike, k: int) -> float:
    """Return the normalised discounted gain of an item's k highest known labels (nDCG@k), the mean over items.

    Formula:
        nDCG@k = DCG/(max DCG), DCG = Σ_{r ≤ k} y_r/log₂(r + 1)

    y_r is the label of rank r. Items without a known positive are left out,
    where scikit-learn counts them as 0.

    Args:
        scores: (N, L), any real numbers; higher ranks first.
        targets: (N, L), 1 present, 0 absent, −1 unknown (left out); a soft target is present from .5 on.
        k: labels taken of each item.

    Examples:
        >>> scores, targets = torch.tensor([[0.9, 0.5, 0.3]]), torch.tensor([[0, 1, -1]])
        >>> round(sy.metrics.ndcg_at_k(scores, targets, k=3), 3)  # the positive comes second: 1/log₂ 3
        0.631
    """
    k = _whole(k)
    return _mean(scores, targets, lambda rows: rows.ndcg(k))


def propensities(counts: ArrayLike, n_items: int, a: float = 0.55, b: float = 1.5) -> Any:
    """Return the chance that a present label was annotated, of each label (L,).

    Formula:
        p_c = 1/(1 + C (n_c + b)^(−a)), C = (log N − 1) (b + 1)^a

    The model of Jain et al. 2016 for extreme classification, with its usual constants; for Amazon data they are .6 and
    2.6.

    Args:
        counts: positives n_c of each label in training (L,).
        n_items: N, items in training.
        a, b: constants of the model.

    Examples:
        >>> sy.metrics.propensities(np.array([1, 100, 10_000]), n_items=20_000).round(2)  # rare labels are missed
        array([0.1 , 0.46, 0.91])
    """
    n = check_counts(counts).astype(np.float64)
    if n_items < 3:
        raise ValueError(f"n_items is {n_items}: the model of propensities needs at least 3 training items")
    return 1 / (1 + (np.log(n_items) - 1) * (b + 1) ** a * (n + b) ** -a)


def psp_at_k(scores: ArrayLike, targets: ArrayLike, propensity: ArrayLike, k: int) -> float:
    """Return the propensity-scored precision at k (PSP@k): the k highest labels beside the best possible.

    Formula:
        PSP@k = S/(max S), S = Σ_{r ≤ k} y_r/p_r

    Both sums are over all items, as in the extreme classification repository; rare labels count for more.

    Args:
        scores, targets: as for `average_precision`.
        propensity: p_c of each label (L,), in (0, 1]: see `propensities`.
        k: labels taken of each item.

    Examples:
        >>> scores, targets = torch.tensor([[0.9, 0.5], [0.6, 0.4]]), torch.tensor([[1, 0], [0, 1]])
        >>> propensity = torch.tensor([0.9, 0.1])  # the second label is rare: missing it counts nine times as much
        >>> round(sy.metrics.psp_at_k(scores, targets, propensity, k=1), 3)
        0.1
    """
    k, p = _whole(k), as_tensor(propensity).double()
    if p.shape != np.shape(scores)[1:] or not bool(((p > 0) & (p <= 1)).all()):
        raise ValueError(f"propensity has shape {tuple(p.shape)}: give one number in (0, 1] for each label")

    def measure(rows: SortedRows) -> Tensor:
        return torch.stack(rows.scored_precision(p, k), 1)

    gained, best = torch.as_tensor(_each(scores, targets, "item", measure)).sum(0).tolist()
    return gained / best if best else float("nan")


TOP = (1, 3, 5)
"""The k of top-k measures that an `Evaluator` reports."""


def item_names(propensity: Any | None) -> list[str]:
    """Return the names of the columns of `item_measures`."""
    tops = ("p", "ndcg") if propensity is None else ("p", "ndcg", "psp", "best")
    return ["ranking_loss", "coverage_error", *(f"{name}@{k}" for k in TOP for name in tops)]


def item_measures(scores: ArrayLike, targets: ArrayLike, propensity: Any | None) -> Any:
    """Return all measures of each item's order, (N, len(item_names)), by one sort; NaN where one is undefined."""

    def measure(rows: SortedRows) -> Tensor:
        columns = [rows.wrong_pairs(1.0), rows.coverage()]
        for k in TOP:
            columns += [rows.precision(k), rows.ndcg(k)]
            if propensity is not None:
                columns += rows.scored_precision(torch.as_tensor(propensity), k)
        return torch.stack(columns, 1)

    return _each(scores, targets, "item", measure)


def _each(scores: ArrayLike, targets: ArrayLike, per: Per, measure: Measure) -> Any:
    """Return a measure of every label or item, some rows at a time."""
    check_choice(Per, per=per)
    pair = scored(scores, targets)
    known = pair.mask
    parts = [part.T if per == "label" else part for part in (pair.values, positive(pair.targets) & known, known)]
    blocks = slices((max(1, len(parts[0])), parts[0].shape[1]), CELLS_AT_ONCE)
    return pair.give(torch.cat([measure(SortedRows.of(*(part[rows] for part in parts))) for rows in blocks]))


def _mean(scores: ArrayLike, targets: ArrayLike, measure: Measure) -> float:
    return mean_defined(_each(scores, targets, "item", measure)).value


def _whole(k: int) -> int:
    k = as_whole(k, "k")
    if k < 1:
        raise ValueError(f"k is {k}: give at least 1")
    return k
