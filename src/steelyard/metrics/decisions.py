"""Metrics of decisions: precision, recall, F1, Jaccard, Hamming loss, exact match."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from steelyard.balance.checks import check_choice
from steelyard.labels.targets import ArrayLike
from steelyard.metrics.inputs import Pair, decided, positive

Over = Literal["label", "item", "all"]


@dataclass(frozen=True)
class Averages:
    """Precision, recall, F1 and Jaccard's index as one number each.

    Attributes:
        precision: TP/(TP+FP).
        recall: TP/(TP+FN).
        f1: 2TP/(2TP+FP+FN).
        jaccard: TP/(TP+FP+FN).

    Examples:
        >>> scores = sy.metrics.precision_recall_f1(torch.tensor([[1, 1], [1, 0]]), torch.tensor([[1, 0], [1, 1]]))
        >>> scores.macro  # the mean of label 0, all right, and label 1, all wrong
        Averages(precision=0.5, recall=0.5, f1=0.5, jaccard=0.5)
    """

    precision: float
    recall: float
    f1: float
    jaccard: float = 0.0


@dataclass(frozen=True)
class PrecisionRecallF1:
    """Precision, recall and F1 of each label, and their averages.

    Attributes:
        precision: TP/(TP+FP), (L,).
        recall: TP/(TP+FN), (L,).
        f1: 2TP/(2TP+FP+FN), (L,).
        support: known positives of each label, (L,).
        macro: the means over labels.
        micro: the same ratios of all cells pooled.

    Examples:
        >>> scores = sy.metrics.precision_recall_f1(torch.tensor([[1, 1], [1, 0]]), torch.tensor([[1, 0], [0, -1]]))
        >>> scores.precision, scores.recall, scores.support
        (tensor([0.5000, 0.0000], dtype=torch.float64), tensor([1., 0.], dtype=torch.float64), tensor([1, 0]))
    """

    precision: Any
    recall: Any
    f1: Any
    support: Any
    macro: Averages
    micro: Averages


def precision_recall_f1(decisions: ArrayLike, targets: ArrayLike) -> PrecisionRecallF1:
    """Return precision, recall and F1 of every label, and their averages.

    Formula:
        precision = TP/(TP + FP), recall = TP/(TP + FN), F1 = 2 TP/(2 TP + FP + FN)

    A ratio with nothing beneath is 0, as in scikit-learn with `zero_division=0`: precision where nothing is predicted,
    recall where the label has no known positive, F1 where both. Such labels count in `macro`, the mean over all labels;
    `support == 0` tells which have no positive. NaN only where there is no label at all.

    Args:
        decisions: (N, L), 0 or 1, such as `probabilities >= threshold`.
        targets: (N, L), 1 present, 0 absent, −1 unknown (left out); a soft target is present from .5 on.

    Examples:
        >>> decisions = torch.tensor([[1, 1], [1, 0], [0, 1]])
        >>> targets = torch.tensor([[1, 0], [0, -1], [1, 1]])
        >>> scores = sy.metrics.precision_recall_f1(decisions, targets)
        >>> scores.f1
        tensor([0.5000, 0.6667], dtype=torch.float64)
        >>> round(scores.macro.f1, 3), round(scores.micro.f1, 3)
        (0.583, 0.571)
    """
    pair = decided(decisions, targets)
    true, predicted, support = decision_counts(pair)
    precision, recall, f1 = (pair.give(x) for x in ratios(true, predicted, support))
    return PrecisionRecallF1(precision, recall, f1, pair.give(support), *averages(true, predicted, support))


def averages(true: Tensor, predicted: Tensor, support: Tensor) -> tuple[Averages, Averages]:
    """Return macro and micro averages from the counts of each label, (L,)."""
    macro = (float(x.mean()) for x in (*ratios(true, predicted, support), overlap(true, predicted, support)))
    pooled = true.sum(), predicted.sum(), support.sum()
    micro = (float(x) for x in (*ratios(*pooled), overlap(*pooled)))
    return Averages(*macro), Averages(*micro)


def decision_counts(pair: Pair) -> Tensor:
    """Return true, predicted and actual positives of each label among its known items: (3, L), int64."""
    hit, predicted = positive(pair.targets), pair.values
    if pair.known is not None:
        predicted = predicted & pair.known
    return torch.stack([x.sum(0) for x in (predicted & hit, predicted, hit)])


def ratios(true: Tensor, predicted: Tensor, support: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return precision, recall and F1 from counts of true, predicted and actual positives, as float64, x/0 = 0."""

    def over(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(b > 0, a.double() / b, 0.0)

    return over(true, predicted), over(true, support), over(2 * true, predicted + support)


def overlap(true: Tensor, predicted: Tensor, support: Tensor) -> Tensor:
    """Return Jaccard's index TP/(TP+FP+FN) from the same counts, as float64, 0/0 = 0."""
    either = predicted + support - true
    return torch.where(either > 0, true.double() / either, 0.0)


def hamming_loss(decisions: ArrayLike, targets: ArrayLike, per: Over = "all") -> Any:
    """Return the share of known labels that are decided wrongly: a float, or of each label (L,) or item (N,).

    Formula:
        H = (FP + FN)/(TP + FP + FN + TN)

    NaN where nothing is known. Soft targets: present from .5 on.

    Args:
        decisions: (N, L), 0 or 1, such as `probabilities >= threshold`.
        targets: (N, L), 1 present, 0 absent, −1 unknown (left out); a soft target is present from .5 on.
        per: "label" for (L,), "item" for (N,), "all" for one float.

    Examples:
        >>> decisions = torch.tensor([[1, 1], [1, 0], [0, 1]])
        >>> targets = torch.tensor([[1, 0], [0, -1], [1, 1]])
        >>> round(sy.metrics.hamming_loss(decisions, targets), 3)  # three of five known labels
        0.6
        >>> sy.metrics.hamming_loss(decisions, targets, per="item")
        tensor([0.5000, 1.0000, 0.5000], dtype=torch.float64)
    """
    pair = decided(decisions, targets)
    known = pair.mask
    wrong = (pair.values != positive(pair.targets)) & known
    return _over(wrong, known, per, pair, torch.nan)


def jaccard(decisions: ArrayLike, targets: ArrayLike, per: Over = "label") -> Any:
    """Return Jaccard's index of known labels: of each label (L,), of each item (N,), or of all pooled, a float.

    Formula:
        J = TP/(TP + FP + FN)

    0 where nothing is predicted and nothing is present, as in scikit-learn.

    Args:
        decisions: (N, L), 0 or 1, such as `probabilities >= threshold`.
        targets: (N, L), 1 present, 0 absent, −1 unknown (left out); a soft target is present from .5 on.
        per: "label" for (L,), "item" for (N,), "all" for one float.

    Examples:
        >>> decisions = torch.tensor([[1, 1], [1, 0], [0, 1]])
        >>> targets = torch.tensor([[1, 0], [0, -1], [1, 1]])
        >>> sy.metrics.jaccard(decisions, targets)
        tensor([0.3333, 0.5000], dtype=torch.float64)
    """
    pair = decided(decisions, targets)
    known = pair.mask
    predicted, hit = pair.values & known, positive(pair.targets) & known
    return _over(predicted & hit, predicted | hit, per, pair, 0.0)


def _over(above: Tensor, below: Tensor, per: Over, pair: Pair, otherwise: float) -> Any:
    """Return the quotient of two counts of cells by label, by item or of all, `otherwise` for x/0."""
    check_choice(Over, per=per)
    axis: tuple[int, ...] = {"label": (0,), "item": (1,), "all": (0, 1)}[per]
    a, b = above.sum(axis), below.sum(axis)
    shares = torch.where(b > 0, a.double() / b, otherwise)
    return float(shares) if per == "all" else pair.give(shares)


def exact_match(decisions: ArrayLike, targets: ArrayLike) -> float:
    """Return the fraction of items whose every known label is decided rightly (1 − the 0-1 loss).

    An item with no known label is left out; NaN if that leaves none. Soft targets: present from .5 on.

    Args:
        decisions: (N, L), 0 or 1, such as `probabilities >= threshold`.
        targets: (N, L), 1 present, 0 absent, −1 unknown (left out); a soft target is present from .5 on.

    Examples:
        >>> decisions = torch.tensor([[1, 1], [1, 0], [0, 1]])
        >>> targets = torch.tensor([[1, 1], [1, -1], [1, 1]])  # the unknown label does not count
        >>> round(sy.metrics.exact_match(decisions, targets), 3)
        0.667
    """
    match = exact_matches(decisions, targets)
    return float(match[~match.isnan()].mean())


def exact_matches(decisions: ArrayLike, targets: ArrayLike) -> Tensor:
    """Return 1 for each item decided rightly, 0 for others, NaN for one with no known label: (N,), float64."""
    pair = decided(decisions, targets)
    known = pair.mask
    wrong = (pair.values != positive(pair.targets)) & known
    return (~wrong.any(1)).double().masked_fill(~known.any(1), torch.nan)
