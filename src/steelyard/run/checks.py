"""Checks before training: settings that cannot work are refused, surprising ones are named in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from steelyard.balance.processes import n_processes
from steelyard.config.build import ASSUMING, known_labels, make_objective
from steelyard.config.inspection import one_of_many
from steelyard.config.settings import Config
from steelyard.labels import Labels
from steelyard.labels.matching import some_labels
from steelyard.objective.parts import Part, has_link
from steelyard.run.datasets import Datasets
from steelyard.run.deployment import ESTIMATE, read_prior
from steelyard.run.validation import is_single_label
from steelyard.training.batches import check_share
from steelyard.training.settings import LOOPS, AugmentSettings, OptimizerSettings
from steelyard.training.small_models import annotated_share, assuming_negative

_PSEUDO = ("pseudo", "annotation", "role", "epr", "large_loss", "splc", "selective", "entropy", "entropy_apl", "gr")


def refuse(config: Config, datasets: Datasets) -> None:
    """Raise a ValueError for what cannot work, before anything is written."""
    if config.train.learner in LOOPS:
        check_share(config.train.batch_size, n_processes())
    if config.train.learner in (*LOOPS, "blocks"):
        _check_rate(config.optimizer)
    _check_data(config, datasets)
    _check_settings(config, datasets)
    rule = config.objective.unknown
    without_files = Part("ignore") if rule.kind in ("pseudo", "annotation") else rule
    objective = replace(config.objective, unknown=without_files)
    make_objective(objective, datasets.train.labels, None, config.train.seed)


def _check_rate(optimizer: OptimizerSettings) -> None:
    """Raise for a learning rate whose first step overflows float32, since torch's error would not name the setting."""
    first = 1 / (1 - optimizer.betas[0]) if optimizer.kind == "adamw" else 1.0
    if optimizer.lr * first * max(1.0, optimizer.weight_decay) > float(np.finfo(np.float32).max):
        raise ValueError(f"optimizer.lr is {optimizer.lr:g}, so the first step overflows float32: lower it")


def _check_data(config: Config, datasets: Datasets) -> None:
    labels, audit, races = datasets.train.labels, datasets.audit, config.train.learner == "race"
    if not labels.counts.any():
        raise ValueError("no training label is present anywhere: there is nothing to learn; give other labels")
    for name in ("validation", "test"):
        if (part := getattr(datasets, name)) is not None and len(part) == 0:
            raise ValueError(f"the {name} data holds no items: give some, or leave it out")
    if getattr(datasets.train, "weights", None) is not None and (
        config.train.learner in LOOPS or config.model.is_frozen
    ):
        raise ValueError(
            "sample_weight is given, but the training loop and frozen backbones have none: leave it out, or train on "
            "features with auto or a recipe of fixed weights, such as bce"
        )
    if audit is not None and not races:
        raise ValueError(
            "--audit-sample decides among the candidates of recipe auto on features, but this run has none: leave it "
            "out, or set model.frozen to true for images"
        )
    if audit is not None and audit.labels.unknown_rate:
        unknown = f"{100 * audit.labels.unknown_rate:.3g} % of its labels are unknown"
        raise ValueError(f"--audit-sample: {unknown}: give items of which every label was checked")
    if per_item := config.evaluate.positives_per_item:
        known, only = assuming_negative(datasets.train) if races else (datasets.train, ())
        if not only:
            raise ValueError(
                "--positives-per-item is for recipe auto on features of which only positives are known; here are no "
                "such labels: leave it out"
            )
        annotated_share(known.labels, only, per_item)
    only_positives = labels.unknown_rate > 0 and bool((labels.n_known == labels.counts).all())
    ignores = config.objective.unknown.kind == "ignore" and not races
    if config.model.bias == "prior" and ignores and only_positives:
        raise ValueError(
            "objective.unknown is ignore, but no label has a known negative, so every item would get every label: set "
            "it to wan, or train with --recipe auto"
        )


def _check_settings(config: Config, datasets: Datasets) -> None:
    held, monitor = datasets.validation, config.train.monitor
    loss, rule = config.objective.loss, config.objective.unknown
    if monitor == "error" and not is_single_label(config.evaluate, datasets.train.labels):
        raise ValueError('train.monitor is "error", but items have several labels: choose map, f1, loss or ace')
    if held is None and config.objective.masking.arguments.get("observes") == "validation":
        raise ValueError('objective.masking.observes is "validation", but there are no such items: set data.validation')
    if held is None and config.train.patience > 0:
        patience = config.train.patience
        raise ValueError(f"train.patience is {patience}, but there are no validation items: set data.validation")
    if held is not None and monitor in ("f1", "loss", "ace", "assumed_loss") and not has_link(loss, rule):
        which = f"objective.loss {loss.kind!r}" if not has_link(loss) else f"objective.unknown {rule.kind!r}"
        raise ValueError(f"train.monitor is {monitor!r}, but {which} has no link: choose map")
    if held is not None and monitor.startswith("assumed") and not held.labels.unknown_rate:
        raise ValueError(f"train.monitor is {monitor!r}, but no validation label is unknown: choose loss or map")
    if config.model.is_frozen and config.train.augment != AugmentSettings():
        raise ValueError(
            "train.augment varies images, but with model.frozen their features are computed once: drop one"
        )
    if config.evaluate.deploy_prior == ESTIMATE and datasets.test is None:
        raise ValueError(
            "evaluate.deploy_prior is estimate, but there are no test items to estimate it from: set data.test, or "
            "leave it out and run steelyard calibrate --keep --deploy-prior estimate --data NEW-ITEMS later"
        )
    if config.evaluate.deploy_prior not in ("", ESTIMATE):
        read_prior(config.evaluate.deploy_prior, datasets.train.labels.names)


def warnings_for(config: Config, labels: Labels) -> list[str]:
    """Return what may surprise in training with these settings on these labels, one sentence each."""
    sentences = [*_about_labels(config, labels), *_about_unknown(config, labels), *_about_balance(config, labels)]
    loss, head = config.objective.loss, config.model.head
    if loss.kind == "ldam" and loss.arguments["softmax"] and head != "cosine":
        sentences.append(
            f"objective.loss is ldam with softmax, which multiplies logits by 30, but model.head is {head!r}: with the "
            "cosine head they stay between -1 and 1, as in its paper; with another it may learn nothing"
        )
    return sentences


def _about_labels(config: Config, labels: Labels) -> Iterator[str]:
    counts, known = labels.counts, known_labels(config.objective, labels)
    for affected, consequence in (
        (known == 0, "never known in training, so nothing is learned there"),
        ((known > 0) & (counts == 0), "never present in training, so never predicted as present"),
        ((counts > 0) & (counts == known), "never absent in training, so always predicted as present"),
    ):
        if affected.any():
            yield f"{some_labels([labels.names[c] for c in np.flatnonzero(affected)])}: {consequence}"
    if sentence := one_of_many(labels):
        yield sentence


def _about_unknown(config: Config, labels: Labels) -> Iterator[str]:
    rule, rate = config.objective.unknown.kind, labels.unknown_rate
    positives, known = int(labels.counts.sum()), int(labels.n_known.sum())
    if rate == 0:
        if rule in _PSEUDO:
            yield f"objective.unknown is {rule!r}, but no label is unknown: it has no effect"
    elif rule in ASSUMING:
        yield (
            f"objective.unknown is {rule!r}: the {rate:.0%} of labels that are unknown count as absent, so "
            "probabilities are of being annotated as present, and calibration on such labels cannot correct that"
        )
    elif positives >= known / 2:
        if rule == "ignore":
            yield (
                f"objective.unknown is 'ignore' and {positives / max(known, 1):.0%} of the known labels are positives: "
                "the model will expect that share everywhere; set objective.unknown to wan"
            )
        elif not config.objective.unknown.arguments.get("expected_positives", True):
            yield (
                "objective.unknown.expected_positives is estimated from known labels, most of which are positives: "
                "give the mean number of positives of an item"
            )


def _about_balance(config: Config, labels: Labels) -> Iterator[str]:
    objective, sampler = config.objective, config.train.sampler.kind
    reweighs = [
        f"objective.{slot} {part.kind!r}"
        for slot, part in objective.parts().items()
        if part.kind in ("distribution_balanced", "rebalanced")
    ]
    if len(reweighs) > 1:
        yield f"{' and '.join(reweighs)} both apply the rebalancing weight r̂, so it counts twice: one of them is enough"
    if reweighs and sampler != "class_aware":
        yield f"{reweighs[0]} is meant for class-aware sampling, but train.sampler is {sampler!r}: use class_aware"
    start = objective.weighting.arguments.get("start", 1)
    if isinstance(start, int) and start > config.train.epochs > 0:
        yield f"objective.weighting.start is {start}, but train.epochs is {config.train.epochs}: it never takes effect"
    bare = len(labels) - len(np.unique(labels.positives()[0]))
    if sampler != "shuffle" and bare:
        yield f"train.sampler is {sampler!r}: {bare:,} of {len(labels):,} items have no positive and are never drawn"
