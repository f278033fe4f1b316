"""Automatic settings of training, decided once the data are open, so that the run folder keeps what they became."""

from __future__ import annotations

from steelyard.config.build import ASSUMING
from steelyard.config.settings import Config
from steelyard.models import input_of
from steelyard.objective.parts import has_link
from steelyard.run.datasets import Datasets
from steelyard.training.budget import Workload, draws_of, settled


def with_budget(config: Config, datasets: Datasets) -> Config:
    """Return the settings with batch size, epochs, warm-up, monitor and patience decided; see `settled`."""
    labels, held = datasets.train.labels, datasets.validation
    work = Workload(
        labels,
        draws_of(config.train.sampler, labels),
        None if held is None else held.labels,
        not config.model.is_frozen and len(labels) > 0 and input_of(datasets.train).kind != "features",
        has_link(config.objective.loss),
        config.objective.unknown.kind in ASSUMING,
    )
    train, schedule = settled(config.train, config.schedule, work)
    chosen = {name: getattr(train, name) for name in ("batch_size", "epochs", "patience", "monitor")}
    return config.with_overrides({"train": chosen, "schedule": {"warmup_epochs": schedule.warmup_epochs}})
