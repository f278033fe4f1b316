"""How good decisions are: precision, recall, F1 and exact match."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from steelyard.labels.targets import ArrayLike
from steelyard.metrics.inputs import Pair, decided, positive


@dataclass(frozen=True)
class Averages:
    """Precision, recall and F1 as one number each."""

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class PrecisionRecallF1:
    """Precision, recall, F1 and known positives of each label, (L,); `macro` averages labels, `micro` pools cells."""

    precision: Any
    recall: Any
    f1: Any
    support: Any
    macro: Averages
    micro: Averages


def precision_recall_f1(decisions: ArrayLike, targets: ArrayLike) -> PrecisionRecallF1:
    """Return precision TP/(TP+FP), recall TP/(TP+FN) and F1 = 2TP/(2TP+FP+FN) of every label, and their averages.

    A ratio with nothing beneath is 0, as in scikit-learn with `zero_division=0`: precision where nothing is predicted,
    recall where the label has no known positive, F1 where both. Such labels count in `macro`, the mean over all labels;
    `support == 0` tells which have no positive. NaN only where there is no label at all.

    - `decisions` (N, L): 0 or 1, e.g. `probabilities >= threshold`.
    - `targets` (N, L): 1 present, 0 absent, −1 unknown (not counted), soft: present from .5 on.
    """
    pair = decided(decisions, targets)
    true, predicted, support = decision_counts(pair)
    precision, recall, f1 = (pair.give(x) for x in ratios(true, predicted, support))
    return PrecisionRecallF1(precision, recall, f1, pair.give(support), *averages(true, predicted, support))


def averages(true: Tensor, predicted: Tensor, support: Tensor) -> tuple[Averages, Averages]:
    """Return macro and micro averages from the counts of each label, (L,)."""
    macro = (float(x.mean()) for x in ratios(true, predicted, support))
    micro = (float(x) for x in ratios(true.sum(), predicted.sum(), support.sum()))
    return Averages(*macro), Averages(*micro)


def decision_counts(pair: Pair) -> Tensor:
    """Return true, predicted and actual positives of each label among the known cells: (3, L), int64."""
    hit, said = positive(pair.targets), pair.values
    if pair.known is not None:
        said = said & pair.known
    return torch.stack([x.sum(0) for x in (said & hit, said, hit)])


def ratios(true: Tensor, predicted: Tensor, support: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return precision, recall and F1 from counts of true, predicted and actual positives, as float64, x/0 = 0."""

    def over(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(b > 0, a.double() / b, 0.0)

    return over(true, predicted), over(true, support), over(2 * true, predicted + support)


def exact_match(decisions: ArrayLike, targets: ArrayLike) -> float:
    """Return the fraction of items whose every known label is decided rightly (1 − the 0-1 loss).

    An item with no known label is left out; NaN if that leaves none. Soft targets: present from .5 on.
    """
    match = exact_matches(decisions, targets)
    return float(match[~match.isnan()].mean())


def exact_matches(decisions: ArrayLike, targets: ArrayLike) -> Tensor:
    """Return 1 for each item decided rightly, 0 for others, NaN for one with no known label: (N,), float64."""
    pair = decided(decisions, targets)
    known = torch.ones_like(pair.values) if pair.known is None else pair.known
    wrong = (pair.values != positive(pair.targets)) & known
    return (~wrong.any(1)).double().masked_fill(~known.any(1), torch.nan)
