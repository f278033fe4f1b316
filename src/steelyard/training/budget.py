"""Automatic settings of training, decided from the data."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from steelyard.balance.processes import n_processes
from steelyard.labels import Labels
from steelyard.training.settings import AUTOMATIC, Monitor, SamplerSettings, ScheduleSettings, TrainSettings

STEPS = 2000
"""Minimum number of steps for a network on features, within `EPOCHS[1]` epochs."""
EPOCHS = (30, 100)
"""Minimum and maximum number of epochs; images, whose steps are expensive, always get the minimum."""
BATCHES = (16, 128)
"""The smallest and the largest batch."""
PER_EPOCH = 20
"""Steps per epoch that the batch size should allow."""
WARM_UP = 0.05
"""The share of all epochs over which the rate rises."""
PATIENCE = (5, 0.2)
"""Epochs without a better monitor before training stops: a number, or this share of all epochs if that is more."""


class Workload(NamedTuple):
    """The facts that automatic settings depend on."""

    labels: Labels
    """Of the training items."""
    draws: int
    """Items that an epoch visits, as the sampler has it."""
    validation: Labels | None
    """Of the validation items, None where there are none."""
    is_costly: bool
    """Steps are expensive: the network takes images, or regions and words."""
    has_link: bool
    """The objective has probabilities."""
    assumes_negative: bool
    """The objective counts unknown labels as absent."""


def settled(train: TrainSettings, schedule: ScheduleSettings, work: Workload) -> tuple[TrainSettings, ScheduleSettings]:
    """Return the settings with every automatic one decided; settings that are given stay, so twice is as once.

    - batch_size: items / 20, between 16 and 128, a power of two, or a multiple of the processes where that is no such.
    - epochs: 30; on features as many as make 2,000 steps, at most 100.
    - warmup_epochs: a twentieth of the epochs.
    - monitor: see `monitored`.
    - patience: a fifth of the epochs, at least 5 and two validations; 0 without validation items.
    """
    batch = train.batch_size or batch_for(len(work.labels))
    epochs = train.epochs or epochs_for(-(-work.draws // batch), work.is_costly)
    patience, least = train.patience, max(PATIENCE[0], 2 * train.validate_every)
    if patience == AUTOMATIC:
        patience = 0 if work.validation is None else max(least, round(PATIENCE[1] * epochs))
    monitor = monitored(work) if train.monitor == "auto" else train.monitor
    warm_up = WARM_UP * epochs if schedule.warmup_epochs == AUTOMATIC else schedule.warmup_epochs
    return (
        replace(train, batch_size=batch, epochs=epochs, patience=patience, monitor=monitor),
        replace(schedule, warmup_epochs=warm_up),
    )


def batch_for(n_items: int) -> int:
    """Return the automatic batch size."""
    size = BATCHES[0]
    while 2 * size <= min(n_items / PER_EPOCH, BATCHES[1]):
        size *= 2
    processes = n_processes()
    return -(-size // processes) * processes


def epochs_for(steps: int, is_costly: bool) -> int:
    """Return the automatic number of epochs of `steps` steps each."""
    fewest, most = EPOCHS
    return fewest if is_costly else min(max(-(-STEPS // max(steps, 1)), fewest), most)


def monitored(work: Workload) -> Monitor:
    """Return the automatic monitor: the log-loss of known validation labels, or mAP without a link.

    Where unknown labels are absent to the objective they are so here: known ones alone would reward a model that
    expects more than it was taught. Where no absent label is known either measure of known labels is best at 1 for
    everything: then known positives are ranked among all other items.
    """
    held = work.validation
    has_unknown = held is not None and held.unknown_rate > 0
    if has_unknown and work.assumes_negative:
        return "assumed_loss" if work.has_link else "assumed_map"
    if has_unknown and held is not None and not (held.n_known > held.counts).any():
        return "assumed_map"
    return "loss" if work.has_link else "map"


def draws_of(settings: SamplerSettings, labels: Labels) -> int:
    """Return how many items an epoch visits; of undersampling, at most."""
    visited = int((labels.counts > 0).sum())
    if settings.kind == "class_aware":
        return visited * (settings.visits or -(-int(labels.counts.max(initial=0)) // 4))
    return min(len(labels), settings.per_class * visited) if settings.kind == "undersample" else len(labels)
