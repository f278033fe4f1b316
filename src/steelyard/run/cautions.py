"""What to beware of in a run that is allowed, in sentences for people."""

from __future__ import annotations

import numpy as np

from steelyard.config.build import ASSUMING, known_labels
from steelyard.config.inspection import one_of_many
from steelyard.config.settings import Config
from steelyard.labels import Labels
from steelyard.labels.matching import some_labels

_PSEUDO = ("pseudo", "annotation", "role", "epr")


def warnings_for(config: Config, labels: Labels) -> list[str]:
    """Return what may surprise in training with these settings on these labels, a sentence each."""
    return [
        *_about_labels(config, labels),
        *_about_unknown(config, labels),
        *_about_balance(config, labels),
        *_about_margins(config),
    ]


def _about_labels(config: Config, labels: Labels) -> list[str]:
    counts, known = labels.counts, known_labels(config.objective, labels)
    found = []
    for which, what in (
        (known == 0, "never known in training, so nothing is learned there"),
        ((known > 0) & (counts == 0), "never present in training, so no item will be said to have it"),
        ((counts > 0) & (counts == known), "never absent in training, so every item will be said to have it"),
    ):
        if which.any():
            found.append(f"{some_labels([labels.names[c] for c in np.flatnonzero(which)])}: {what}")
    if sentence := one_of_many(labels):
        found.append(sentence)
    return found


def _about_unknown(config: Config, labels: Labels) -> list[str]:
    rule, rate = config.objective.unknown.kind, labels.unknown_rate
    positives, known = int(labels.counts.sum()), int(labels.n_known.sum())
    if rule in ASSUMING and rate > 0:
        return [
            f"objective.unknown is {rule!r}: the {rate:.0%} of labels that are unknown count as absent, so "
            "probabilities are those of being annotated as present, which no calibration on such labels corrects"
        ]
    if rule == "ignore" and rate > 0 and positives >= known / 2:
        return [
            f"objective.unknown is 'ignore' and {positives / max(known, 1):.0%} of the known labels are positives: the "
            "model will expect as many everywhere; set objective.unknown to wan"
        ]
    if (
        rule in ("role", "epr")
        and rate > 0
        and positives >= known / 2
        and not config.objective.unknown.arguments["expected_positives"]
    ):
        return [
            "objective.unknown.expected_positives is estimated from known labels, most of which are positives: give "
            "the mean number of positives of an item"
        ]
    if rule in _PSEUDO and rate == 0:
        return [f"objective.unknown is {rule!r}, but no label is unknown: ignore does without it"]
    return []


def _about_margins(config: Config) -> list[str]:
    loss, head = config.objective.loss, config.model.head
    if loss.kind == "ldam" and loss.arguments["softmax"] and head != "cosine":
        return [
            f"objective.loss is ldam with softmax, which multiplies logits by 30, but model.head is {head!r}: with the "
            "cosine head they stay between -1 and 1, as its authors have them; others may learn nothing"
        ]
    return []


def _about_balance(config: Config, labels: Labels) -> list[str]:
    objective, sampler = config.objective, config.train.sampler.kind
    found = []
    reweighs = [f"objective.{slot} {part.kind!r}" for slot, part in objective.parts().items() if _rebalances(part.kind)]
    if len(reweighs) > 1:
        found.append(f"{' and '.join(reweighs)} both weigh labels by r̂, which so enters twice: one of them is enough")
    if reweighs and sampler != "class_aware":
        found.append(
            f"{reweighs[0]} is meant for re-sampled items, but train.sampler is {sampler!r}: class_aware is the paper's"
        )
    start = objective.weighting.arguments.get("start", 1)
    if isinstance(start, int) and start > config.train.epochs > 0:
        found.append(
            f"objective.weighting.start is {start}, but train.epochs is {config.train.epochs}: it never weighs"
        )
    bare = len(labels) - len(np.unique(labels.positives()[0]))
    if sampler != "shuffle" and bare:
        found.append(
            f"train.sampler is {sampler!r}: {bare:,} of {len(labels):,} items have no positive and are never drawn"
        )
    return found


def _rebalances(kind: str) -> bool:
    return kind in ("distribution_balanced", "rebalanced")
