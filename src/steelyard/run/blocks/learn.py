"""Decide whether a run is trained one block of labels at a time, and for how many epochs."""

from __future__ import annotations

from typing import Any

from steelyard.config.settings import Config
from steelyard.labels import Labels
from steelyard.models import input_of
from steelyard.objective.parts import has_link
from steelyard.run.datasets import MANY_LABELS
from steelyard.training.batches import is_array

_RULES = ("ignore", "negative", "weak_negative", "wan", "annotation")
_EPOCHS, _BATCH = 10, 1024


def takes_blocks(config: Config, train: Any, fewest: int = MANY_LABELS) -> bool:
    """Return whether a run has many labels over features, and an objective that sees each label alone."""
    labels: Labels = train.labels
    if labels.n_labels < fewest or input_of(train).kind != "features" or not is_array(train):
        return False
    model, objective, settings = config.model, config.objective, config.train
    masks = objective.masking
    still = masks.kind == "none" or masks.arguments.get("rate") == 0 or masks.arguments.get("observes") == "validation"
    if objective.unknown.kind == "annotation":
        still = masks.kind == objective.weighting.kind == "none" and objective.unknown.arguments["count"] == "known"
    return (
        model.head in ("linear", "blocks")
        and model.backbone in ("auto", "linear")
        and model.dropout == 0
        and has_link(objective.loss)
        and objective.unknown.kind in _RULES
        and objective.label_pair.kind == "none"
        and still
        and settings.sampler.kind == "shuffle"
        and settings.ema == 0
    )


def with_budget(config: Config, n_items: int) -> Config:
    """Return the settings with epochs (10), batch size (1,024) and warm-up (a twentieth of the epochs) decided."""
    epochs, batch = config.train.epochs or _EPOCHS, min(config.train.batch_size or _BATCH, max(n_items, 1))
    warmup = config.schedule.warmup_epochs
    return config.with_overrides(
        {
            "train": {"epochs": epochs, "batch_size": batch},
            "schedule": {"warmup_epochs": epochs / 20 if warmup < 0 else warmup},
        }
    )
