"""How a run learns: by a race of small models, as one linear model fitted to convergence, or by the training loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from steelyard.balance.processes import n_processes
from steelyard.config.sections import ObjectiveSettings
from steelyard.config.settings import Config
from steelyard.models import fine_tunes, input_of
from steelyard.objective.parts import has_link
from steelyard.training.settings import (
    LOOPS,
    AugmentSettings,
    Learner,
    OptimizerSettings,
    ScheduleSettings,
    TrainSettings,
)
from steelyard.training.small_models import FEWEST_ITEMS, is_small
from steelyard.training.step import pick_device

_FIXED_RULES = ("ignore", "negative", "weak_negative", "wan")
_OF_THE_LOOP = (
    "epochs",
    "batch_size",
    "ema",
    "monitor",
    "keep",
    "patience",
    "validate_every",
    "tensorboard",
    "sampler",
)


def learner_of(config: Config, recipe: str | None, train: Any) -> Learner:
    """Return the learner that settings, recipe and training items ask for.

    Features, of a table or of a frozen backbone, are learned by a race where the recipe is auto, and else by a linear
    model where the objective is a fixed sum over cells. Whoever sets the optimizer, the schedule, epochs or another
    network asks for the training loop, which all other inputs and objectives have too.
    """
    if config.train.learner != "auto":
        return _checked(config, train)
    if n_processes() > 1 or not _over_features(config, train) or _sets_the_loop(config):
        return "loop"
    if recipe == "auto" and config.objective == ObjectiveSettings():
        return "race"
    return "linear" if recipe != "auto" and is_fixed(config.objective) else "loop_from_regression"


def _checked(config: Config, train: Any) -> Learner:
    """Return the learner that was set, or refuse one that these inputs do not have."""
    learner = config.train.learner
    if learner in LOOPS:
        return learner
    if not _over_features(config, train) or n_processes() > 1:
        raise ValueError(
            f"train.learner is {learner}, which is for features of at least {FEWEST_ITEMS} items under a plain linear "
            "head in one process: set it to auto, or model.frozen to true for images"
        )
    if learner == "linear" and not is_fixed(config.objective):
        raise ValueError("train.learner is linear, but the objective changes while training: set it to auto")
    return learner


def is_fixed(objective: ObjectiveSettings) -> bool:
    """Return whether an objective is a sum over cells whose coefficients do not change while training."""
    return (
        has_link(objective.loss)
        and objective.unknown.kind in _FIXED_RULES
        and objective.masking.kind == objective.label_pair.kind == "none"
        and objective.weighting.arguments.get("start", 1) == 1
    )


def _over_features(config: Config, train: Any) -> bool:
    model, given = config.model, input_of(train)
    small = is_small(train, given)
    plain = model.head == "linear" and model.dropout == 0 and model.bias == "prior"
    if given.kind == "features":
        return small and plain and model.backbone in ("auto", "linear")
    return small and plain and model.is_frozen


def _sets_the_loop(config: Config) -> bool:
    """Whether a setting that only the training loop has differs from its default."""
    plain = TrainSettings()
    return (
        config.optimizer != OptimizerSettings()
        or config.schedule != ScheduleSettings()
        or any(getattr(config.train, name) != getattr(plain, name) for name in _OF_THE_LOOP)
    )


def takes_frozen_features(config: Config, train: Any) -> bool:
    """Return whether a backbone that could be trained further is better left frozen: there is no GPU to train it on.

    Whoever sets anything that only training the backbone has asks for that.
    """
    model = config.model
    return (
        model.frozen == "auto"
        and len(train) > 0
        and fine_tunes(model, input_of(train))
        and pick_device(config.train.device).type == "cpu"
        and config.train.learner not in LOOPS
        and not (_sets_the_loop(config) or model.mirror or model.keep_statistics or model.head == "places")
        and config.train.augment == AugmentSettings()
    )


def nothing_held_out(config: Config) -> Config:
    """Return the settings with no item held out, where that is left to the learner, which is not known yet."""
    return replace(config, data=replace(config.data, validation=0.0)) if config.data.validation == "auto" else config
