"""The goal of a run's thresholds, and their choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch

from steelyard._arrays import Floats
from steelyard.balance.checks import check_choice
from steelyard.calibrate.guarantees import Promise, guaranteed_thresholds
from steelyard.calibrate.lines import PRIOR_POSITIVES
from steelyard.calibrate.thresholds import threshold_report
from steelyard.labels.targets import ArrayLike

AimGoal: TypeAlias = Literal["half", "f1", "precision", "recall", "cost"]


@dataclass(frozen=True)
class Aim:
    """The goal of thresholds.

    Args:
        goal: "half", ½ for every label; "f1", the best F1; "precision", the best recall at a precision; "recall", the
            best precision at a recall; "cost", the least expected cost, for which η has Bayes' threshold.
        target: the precision or recall to reach.
        false_positive_cost, false_negative_cost: of "cost".
        guarantee: "" where precision or recall is measured, else the kind of guarantee; see `Promise`.
        confidence, joint: of the guarantee "probability".
    """

    goal: AimGoal = "half"
    target: float = 0.9
    false_positive_cost: float = 1.0
    false_negative_cost: float = 1.0
    guarantee: Literal["", "expected", "probability"] = ""
    confidence: float = 0.9
    joint: bool = False

    def __post_init__(self) -> None:
        check_choice(AimGoal, goal=self.goal)
        if self.goal in ("precision", "recall") and not 0 < self.target <= 1:
            raise ValueError(f"target is {self.target}: give the precision or recall to reach, above 0, at most 1")
        costs = (self.false_positive_cost, self.false_negative_cost)
        if not all(0 <= cost < np.inf for cost in costs) or sum(costs) == 0:
            raise ValueError(f"the costs are {costs[0]} and {costs[1]}: give finite numbers of at least 0, not both 0")
        _ = self.promise  # refuses one that cannot be kept

    @property
    def promise(self) -> Promise | None:
        """The guarantee on decisions, or None."""
        if not self.guarantee:
            return None
        return Promise(self.guarantee, self.goal, self.target, self.confidence, self.joint)  # type: ignore[arg-type]

    @property
    def needs_items(self) -> bool:
        """True if thresholds depend on items; those of "half" and "cost" do not."""
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

    The sample of a rare label is shrunk toward the counts that its η predict, worth 20 positives, as in calibrators.

    Args:
        aim: their goal.
        probabilities: η (N, L) of items that the calibrator was not fitted on.
        targets: (N, L), or None to count on η alone.
        prior: the frequency (L,) at which labels are to count, NaN or None for that among these items.
    """
    n_labels = probabilities.shape[1]
    if not aim.needs_items or len(probabilities) == 0:
        return np.full(n_labels, aim.fixed)
    if aim.promise is not None and targets is not None:
        promised = guaranteed_thresholds(probabilities, targets, aim.promise).thresholds
        return np.asarray(torch.as_tensor(promised).cpu().double().numpy())
    report = threshold_report(
        probabilities,
        targets,
        aim.goal,  # type: ignore[arg-type]
        level=None if aim.goal == "f1" else aim.target,
        prior_positives=PRIOR_POSITIVES,
        prior=prior,
    ).thresholds
    chosen: Floats = torch.as_tensor(report).cpu().double().numpy()
    return chosen
