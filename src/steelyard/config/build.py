"""From settings and training labels to the objective."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.balance import (
    Deferred,
    LabelPair,
    PartialLabelMasking,
    PickedLabels,
    PseudoLabels,
    TeacherScores,
    Weighting,
)
from steelyard.calibrate.teacher import teacher_probabilities
from steelyard.config.sections import ObjectiveSettings
from steelyard.labels import UNKNOWN, Labels
from steelyard.losses import Reduction, Resolver
from steelyard.objective import Objective
from steelyard.objective.parts import KINDS, Part, call, make, make_loss

ASSUMING = ("negative", "weak_negative", "wan", "large_loss", "splc", "selective")
"""The rules to which an unknown label is a negative."""


def make_objective(
    settings: ObjectiveSettings,
    labels: Labels,
    folder: Path | None,
    seed: int,
    store: type[PseudoLabels | PickedLabels] = PseudoLabels,
) -> Objective:
    """Return the objective that `settings` describe, made for the training labels.

    Where unknown labels are assumed negative they are counted so, too: k_c is then N for every class.

    Args:
        settings: the section [objective].
        labels: of the training items, in the order of their numbers.
        folder: the run folder; pseudo-labels are kept in its folder "pseudo-labels".
        seed: of masks, picked labels and first estimates.
        store: how pseudo-labels are kept; a BlockHead needs PickedLabels.
    """
    rule = _make_rule(settings.unknown, labels, folder, seed, store)
    known = known_labels(settings, labels)
    reduction: Reduction = "item" if rule.reduction == "item" else settings.reduction
    if rule.reduction not in (None, reduction):
        raise ValueError(
            f"objective.reduction is {reduction!r}, but objective.unknown {settings.unknown.kind!r} needs "
            f"{rule.reduction!r}: change one of them"
        )
    _check_one_positive(settings, labels)
    masking: PartialLabelMasking | None = make(
        "masking", settings.masking, counts=labels.counts, n_known=known, seed=seed
    )
    pairs: LabelPair | None = make("label_pair", settings.label_pair)
    return Objective(
        make_loss(settings.loss, labels.counts, known, reduction),
        rule,
        masking,
        _make_weighting(settings.weighting, labels),
        () if pairs is None else (pairs,),
    )


def known_labels(settings: ObjectiveSettings, labels: Labels) -> NDArray[np.int64]:
    """Return k_c (L,), the labels of each class that training takes as known: all of them where unknown is negative."""
    if settings.unknown.kind in ASSUMING:
        return np.full(labels.n_labels, labels.n_items)
    return labels.n_known


def _make_weighting(part: Part, labels: Labels) -> Weighting | None:
    weighting: Weighting | None = make("weighting", part, counts=labels.counts, floor=1)
    return weighting if weighting is None or part.arguments["start"] == 1 else call(Deferred, part, weighting=weighting)


def _make_rule(
    part: Part, labels: Labels, folder: Path | None, seed: int, store: type[PseudoLabels | PickedLabels]
) -> Resolver:
    sizes = dict(n_items=labels.n_items, n_labels=labels.n_labels)
    supplied: dict[str, Any] = {"seed": seed, "counts": labels.counts, "n_known": labels.n_known, **sizes}
    beside = KINDS["unknown"][part.kind].beside
    if beside is TeacherScores:
        scores = call(TeacherScores, part).read(labels.ids, labels.names)
        supplied["probabilities"] = teacher_probabilities(scores, labels.values)
    if beside is PseudoLabels:
        if folder is None:
            raise ValueError(
                f"objective.unknown is {part.kind!r}, which keeps pseudo-labels on disk: give a run folder"
            )
        supplied["store"] = call(store, part, path=folder / "pseudo-labels", **sizes)
    if "expected_positives" in part.arguments:
        supplied["targets"] = labels.values
        if part.arguments["expected_positives"] == 0:
            supplied["expected_positives"] = expected_positives(labels)
    rule: Resolver = make("unknown", part, **supplied)
    return rule


def expected_positives(labels: Labels) -> float:
    """Return k = Σ_c n_c/k_c over the labels of which something is known, the mean positives of an item."""
    if not labels.counts.sum() < labels.n_known.sum():
        raise ValueError(
            "objective.unknown.expected_positives is 0 and no negative is known to estimate it from: give the mean "
            "number of positives of an item"
        )
    if not labels.counts.any():
        raise ValueError("no label is present anywhere: there is nothing to learn; give other labels")
    return float(labels.prior[labels.n_known > 0].sum())


def _check_one_positive(settings: ObjectiveSettings, labels: Labels) -> None:
    """Raise unless every item that takes part has exactly one positive, where the loss needs that."""
    if not settings.loss.arguments.get("softmax", False):
        return
    items, _, values = labels.cells()
    if ((values > 0) & (values < 1)).any():
        raise ValueError("objective.loss.softmax is true, but some labels are soft: give labels of 0 and 1")
    positives = np.bincount(items[values == 1], minlength=len(labels))
    listed = np.bincount(items[(values == UNKNOWN) != (labels.fill == UNKNOWN)], minlength=len(labels))
    blank = listed == (0 if labels.fill == UNKNOWN else labels.n_labels)
    bad = np.flatnonzero((positives != 1) & ~(blank & (settings.unknown.kind not in ASSUMING)))
    if len(bad):
        others = f" (and {len(bad) - 1:,} others not one)" if len(bad) > 1 else ""
        raise ValueError(
            f"objective.loss.softmax is true, but item {labels.ids[int(bad[0])]!r} has {positives[bad[0]]} positives"
            f"{others}: set it to false"
        )
