"""The likeliest labels of every item, exactly, with one block of labels in memory at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from steelyard.losses.loss import NoLink
from steelyard.losses.pair import PairLoss
from steelyard.models.block.head import BlockHead
from steelyard.models.block.parallel import best_of_all
from steelyard.models.block.terms import of_labels
from steelyard.objective import Objective

ScoreFunction = Callable[[Tensor, slice | Tensor], Tensor]
"""From logits (B, n) of some labels, or (n,) of cells with a label each, to the scores by which labels are ranked."""

_BLOCK = 65_536  # labels at a time: scores are float32, and the best are looked for in a copy


class Top(NamedTuple):
    """The k best labels of every item, best first: their numbers, int64 (B, k), and scores (B, k)."""

    labels: Tensor
    scores: Tensor


def top_labels(
    head: BlockHead, features: Tensor, k: int, score: ScoreFunction | None = None, block: int = _BLOCK
) -> Top:
    """Return the k labels of each item with the largest scores; equal ones by label.

    Labels are ranked by `score`, such as `log_odds_of(objective)`, which differs from label to label where the
    objective weighs them; None ranks by logits. Where labels are split over processes, all must give the same items.
    """
    if not 1 <= k <= head.n_labels:
        raise ValueError(f"k is {k}: give 1 to {head.n_labels}, the number of labels")
    best: Top | None = None
    for labels in head.blocks(block):
        z = head.logits(features, labels)
        best = merged(best, z if score is None else score(z, labels), labels.start, k)
    assert best is not None
    if head.share != slice(0, head.n_labels):
        return Top(*best_of_all(*best, k))
    return best


def merged(best: Top | None, scores: Tensor, first: int, k: int) -> Top:
    """Return the best k of those so far and of the scores (B, n) of labels from `first` on, which come after them."""
    values, at = _largest(scores, k)
    labels = at + first
    if best is not None:
        values, labels = torch.cat([best.scores, values], 1), torch.cat([best.labels, labels], 1)
        values, order = torch.sort(values, dim=1, descending=True, stable=True)
        values, labels = values[:, :k], labels.gather(1, order)[:, :k]
    return Top(labels, values)


def _largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of every row and where they are, equal ones by place."""
    n = scores.shape[1]
    if n <= 4 * k:
        values, at = torch.sort(scores, dim=1, descending=True, stable=True)
        return values[:, :k], at[:, :k]
    values, at = torch.topk(scores, k, dim=1)
    last = values[:, -1:]
    short = k - (scores > last).sum(1, keepdim=True)  # how many of those equal to the last belong to the best
    if bool(((scores == last).sum(1, keepdim=True) > short).any()):  # topk may have taken other ones of them
        equal = scores == last
        kept = (scores > last) | (equal & (equal.cumsum(1) <= short))
        at = kept.nonzero()[:, 1].view(len(scores), k)
        values = scores.gather(1, at)
    at, order = torch.sort(at, dim=1)
    values, by = torch.sort(values.gather(1, order), dim=1, descending=True, stable=True)
    return values, at.gather(1, by)


def log_odds_of(objective: Objective) -> ScoreFunction:
    """Return how logits of some labels become log-odds: the loss's link, with masks, weights and the rule undone."""
    loss = objective.loss
    if not isinstance(loss, PairLoss):
        raise NoLink(f"{type(loss).__name__} has no probability per label: rank by logits")
    loss.check_link()
    w_pos, w_neg = objective.class_weights()
    shift = torch.log(torch.as_tensor(w_neg, dtype=torch.float64)) - torch.log(
        torch.as_tensor(w_pos, dtype=torch.float64)
    )

    def score(z: Tensor, labels: slice | Tensor) -> Tensor:
        offset = shift if shift.ndim == 0 else shift[labels]
        return of_labels(loss, labels).link(z) + offset.to(z)

    return score
