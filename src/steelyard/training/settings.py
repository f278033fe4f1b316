"""What can be set about training: the sections [optimizer], [schedule] and [train] of a configuration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

AUTOMATIC = -1
"""Of a setting for which 0 means something: take what suits the data."""


@dataclass(frozen=True)
class OptimizerSettings:
    """The section [optimizer]: how weights are updated.

    Examples:
        >>> sy.training.OptimizerSettings(kind="sgd", lr=0.1).momentum
        0.9
        >>> sy.training.OptimizerSettings(lr=-1)
        Traceback (most recent call last):
        ValueError: optimizer.lr is -1: it must be at least 0 and finite
    """

    kind: Literal["sgd", "adamw"] = "adamw"
    """The method."""
    lr: float = 1e-3
    """The learning rate after warm-up."""
    weight_decay: float = 0.01
    """The pull of the weights towards 0."""
    decay_all: bool = True
    """Whether biases and the scales of normalisations decay too, as in the papers' recipes."""
    momentum: float = 0.9
    """Of SGD."""
    nesterov: bool = False
    """Of SGD."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Of AdamW."""
    backbone_lr: float = 1.0
    """The backbone's learning rate as a multiple of `lr`."""
    estimates_lr: float = 10.0
    """The learning rate of ROLE's label estimates as a multiple of `lr`; they do not decay."""
    clip_norm: float = 0.0
    """The largest norm of the whole gradient; 0 does not clip."""

    def __post_init__(self) -> None:
        choice("optimizer.kind", self.kind, ("sgd", "adamw"))
        for name in ("lr", "weight_decay", "backbone_lr", "estimates_lr", "clip_norm"):
            least(f"optimizer.{name}", getattr(self, name), 0)
        between("optimizer.momentum", self.momentum, 0, 1)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"optimizer.betas is {list(self.betas)}: both must be at least 0 and below 1")
        if self.nesterov and self.momentum == 0:
            raise ValueError("optimizer.nesterov is true, but optimizer.momentum is 0: give one, or set it to false")


@dataclass(frozen=True)
class ScheduleSettings:
    """The section [schedule]: the learning rate as a function of the epoch, updated at every step.

    Examples:
        >>> sy.training.ScheduleSettings(kind="multistep", milestones=(30, 60)).factor
        0.1
    """

    kind: Literal["constant", "multistep", "cosine"] = "cosine"
    """How the rate falls after warm-up."""
    warmup_epochs: float = AUTOMATIC
    """Epochs over which the rate rises linearly from `warmup_from`; fractions are allowed; -1 is a twentieth of all
    epochs."""
    warmup_from: float = 0.0
    """The share of the rate at which warm-up begins."""
    milestones: tuple[float, ...] = ()
    """Of "multistep": after how many epochs the rate is multiplied by `factor`, each time."""
    factor: float = 0.1
    """Of "multistep"."""
    final: float = 0.0
    """Of "cosine": the share of the rate that is left at the end."""

    def __post_init__(self) -> None:
        choice("schedule.kind", self.kind, ("constant", "multistep", "cosine"))
        if self.warmup_epochs != AUTOMATIC:
            least("schedule.warmup_epochs", self.warmup_epochs, 0)
        for name in ("warmup_from", "factor", "final"):
            between(f"schedule.{name}", getattr(self, name), 0, 1)
        if list(self.milestones) != sorted(self.milestones):
            raise ValueError(f"schedule.milestones is {list(self.milestones)}: give epochs in increasing order")
        if self.kind != "multistep" and self.milestones:
            raise ValueError(f"schedule.milestones is given, but schedule.kind is {self.kind!r}: set it to multistep")


@dataclass(frozen=True)
class SamplerSettings:
    """The section [train.sampler]: which items an epoch visits.

    Examples:
        >>> sy.training.SamplerSettings(kind="undersample", per_class=100).per_class
        100
    """

    kind: Literal["shuffle", "class_aware", "undersample"] = "shuffle"
    """All items in random order, every class equally often, or some of every class."""
    visits: int = 0
    """Of "class_aware": visits of every class per epoch; 0 is a quarter of the largest class, with at most 12 draws per
    item in an epoch."""
    per_class: int = 500
    """Of "undersample": items of every class an epoch."""

    def __post_init__(self) -> None:
        choice("train.sampler.kind", self.kind, ("shuffle", "class_aware", "undersample"))
        least("train.sampler.visits", self.visits, 0)
        least("train.sampler.per_class", self.per_class, 1)


@dataclass(frozen=True)
class AugmentSettings:
    """The section [train.augment]: how training images are varied, as a pure function of (seed, epoch, draw).

    Examples:
        >>> sy.training.AugmentSettings(flip=0.5, pad_crop=4).flip
        0.5
    """

    flip: float = 0.0
    """The chance that an image is mirrored left to right."""
    pad_crop: int = 0
    """Zero pixels added at every side before a crop of the old size is taken at random."""
    resized_crop: float = 0.0
    """The least share of an image's area in a random crop that is scaled back to full size; 0 does not crop."""
    rotate: float = 0.0
    """The largest angle, in degrees, by which an image is turned either way; zeros come in."""
    scale: float = 0.0
    """The largest share s by which an image is made larger or smaller about its middle: by 1 + s, or as much back."""
    shear: float = 0.0
    """The largest slant, either way: how far a row is moved aside, as a share of its distance from the middle."""
    elastic: float = 0.0
    """How many pixels, at most, an image is bent at each of 4 × 4 knots, smoothly between them."""
    warp: float = 1.0
    """The chance that an image is turned, scaled, sheared and bent at all."""
    overlay: float = 0.0
    """The chance that another image of the batch, varied too, is laid over one: the lighter pixel and all labels."""

    def __post_init__(self) -> None:
        for name in ("flip", "resized_crop", "warp", "overlay"):
            between(f"train.augment.{name}", getattr(self, name), 0, 1)
        for name in ("pad_crop", "rotate", "scale", "shear", "elastic"):
            least(f"train.augment.{name}", getattr(self, name), 0)


Learner = Literal["auto", "loop", "loop_from_regression", "linear", "race", "blocks"]
LOOPS = ("loop", "loop_from_regression")
Monitor = Literal["auto", "map", "f1", "loss", "ace", "error", "assumed_map", "assumed_loss"]


@dataclass(frozen=True)
class TrainSettings:
    """The section [train]: how long and in which way a model is trained.

    Examples:
        >>> settings = sy.training.TrainSettings(epochs=3, batch_size=2)
        >>> settings.keep, settings.sampler.kind
        ('best', 'shuffle')
    """

    epochs: int = 0
    """How often all items are visited; 0 is as many as suit the data: 30 of images, and of features more where there
    are few items, up to 100, so that there are some 2,000 steps."""
    batch_size: int = 0
    """Items of a step, over all processes together; 0 is a twentieth of the items, at least 16 and at most 128."""
    seed: int = 0
    """Of everything random."""
    out: str = ""
    """The run folder."""
    learner: Learner = "auto"
    """How it is learned: race (small models over features compete, what recipe auto does), linear (one linear model,
    fitted to convergence), loop (a network trained step by step), or loop_from_regression (the same, a linear model
    that starts at logistic regression), or blocks (a linear model of many labels, step by step, one block of labels at
    a time); auto takes what suits data and recipe."""
    budget: float = 0.0
    """Work units that a race may spend, multiplications of its models; 0 is about two minutes on two cores."""
    single: bool = False
    """Whether a race must end with one candidate, not with a mean of several."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the network's arithmetic; auto is bfloat16 on a GPU that has it, else float32. Losses are float32 always."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether the network is compiled and its steps captured as CUDA graphs; auto does where data fit on the GPU."""
    workers: int = -1
    """Processes that decode images, for each training process; -1 takes the cores there are, eight at most."""
    ema: float = 0.0
    """The decay, a step, of an exponential moving average of the weights, which is then what is validated and kept."""
    monitor: Monitor = "auto"
    """What decides which epoch's weights are kept, on validation items. auto is the log-loss, and mAP for an objective
    without probabilities; assumed_loss and assumed_map take unknown labels as absent, which auto does where the
    objective does so, or no absent label is known."""
    keep: Literal["best", "last"] = "best"
    """Which epoch's weights are kept; without validation items always the last."""
    patience: int = AUTOMATIC
    """Epochs without a better `monitor` after which training stops; 0 never stops; -1 is a fifth of all epochs, at
    least 5 and at least two validations."""
    validate_every: int = 1
    """Epochs from one validation to the next."""
    checkpoint_seconds: float = 60.0
    """The least time between checkpoints; with pseudo-labels there is one at the end of every epoch besides."""
    tensorboard: bool = False
    """Whether history is written for TensorBoard too (needs the package tensorboard)."""
    sampler: SamplerSettings = field(default_factory=SamplerSettings)
    """Which items an epoch visits."""
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    """How training images are varied."""

    def __post_init__(self) -> None:
        least("train.validate_every", self.validate_every, 1)
        for name in ("epochs", "batch_size"):
            least(f"train.{name}", getattr(self, name), 0)
        least("train.workers", self.workers, -1)
        least("train.patience", self.patience, AUTOMATIC)
        least("train.checkpoint_seconds", self.checkpoint_seconds, 0)
        between("train.seed", self.seed, 0, 2**63 - 1)
        between("train.ema", self.ema, 0, 1)
        choice("train.precision", self.precision, ("auto", "float32", "bfloat16", "float16"))
        choice("train.compile", self.compile, ("auto", "on", "off"))
        choice("train.monitor", self.monitor, get_args(Monitor))
        choice("train.keep", self.keep, ("best", "last"))
        choice("train.learner", self.learner, get_args(Learner))
        least("train.budget", self.budget, 0)


def choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}: choose one of {', '.join(choices)}")


def least(name: str, value: float, low: float) -> None:
    """Raise unless `value` is finite and at least `low`."""
    if not low <= value < math.inf:
        raise ValueError(f"{name} is {value}: it must be at least {low} and finite")


def between(name: str, value: float, low: float, high: float) -> None:
    """Raise unless `value` lies between `low` and `high`, both allowed."""
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}: it must lie between {low} and {high}")
