"""What thresholds are for, and the thresholds that follow from held-out items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.calibrate import threshold_report
from steelyard.calibrate.shrinkage import PRIOR_POSITIVES
from steelyard.labels.targets import ArrayLike

Goal: TypeAlias = Literal["half", "f1", "precision", "recall", "cost"]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Aim:
    """The goal of thresholds.

    Args:
        goal: "half", ½ for every label; "f1", the best F1; "precision", the best recall at a precision; "recall", the
            best precision at a recall; "cost", the least expected cost, for which η has Bayes' threshold.
        target: the precision or recall to reach.
        false_positive_cost, false_negative_cost: of "cost".
    """

    goal: Goal = "half"
    target: float = 0.9
    false_positive_cost: float = 1.0
    false_negative_cost: float = 1.0

    def __post_init__(self) -> None:
        if self.goal not in get_args(Goal):
            raise ValueError(f"goal is {self.goal!r}: choose one of {', '.join(get_args(Goal))}")
        if self.goal in ("precision", "recall") and not 0 < self.target <= 1:
            raise ValueError(f"target is {self.target}: give the precision or recall to reach, above 0, at most 1")
        costs = (self.false_positive_cost, self.false_negative_cost)
        if not all(0 <= cost < np.inf for cost in costs) or sum(costs) == 0:
            raise ValueError(f"the costs are {costs[0]} and {costs[1]}: give finite numbers of at least 0, not both 0")

    @property
    def needs_items(self) -> bool:
        """Whether thresholds depend on items: not those of "half" and "cost"."""
        return self.goal in ("f1", "precision", "recall")

    @property
    def fixed(self) -> float:
        """The threshold of "half" and "cost", c_fp/(c_fp + c_fn), infinite where a miss costs nothing; else ½."""
        if self.goal != "cost":
            return 0.5
        if self.false_negative_cost == 0:
            return np.inf
        return self.false_positive_cost / (self.false_positive_cost + self.false_negative_cost)


def choose_thresholds(
    aim: Aim, probabilities: ArrayLike, targets: ArrayLike | None, prior: Floats | None = None
) -> Floats:
    """Return the threshold (L,) of each label, float64, for decisions by these probabilities.

    The sample of a rare label is shrunk toward what its η promise, worth 20 positives, as calibrators are.

    Args:
        aim: what they are for.
        probabilities: η (N, L) of items that the calibrator was not fitted on.
        targets: (N, L), or None to count on η alone.
        prior: the frequency (L,) at which labels are to count, NaN or None for that among these items.
    """
    n_labels = probabilities.shape[1]
    if not aim.needs_items or len(probabilities) == 0:
        return np.full(n_labels, aim.fixed)
    found = threshold_report(
        probabilities,
        targets,
        aim.goal,  # type: ignore[arg-type]
        level=None if aim.goal == "f1" else aim.target,
        prior_positives=PRIOR_POSITIVES,
        prior=prior,
    ).thresholds
    chosen: Floats = torch.as_tensor(found).cpu().double().numpy()
    return chosen
