"""The sections [optimizer], [schedule] and [train] of a configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from steelyard._schema import AT_LEAST_0, AT_LEAST_1, SHARE, Bounds, conform

AUTOMATIC = -1
"""Value of a setting that is chosen to suit the data, where 0 has a meaning of its own."""


@dataclass(frozen=True)
class OptimizerSettings:
    """The section [optimizer]: how weights are updated.

    Examples:
        >>> sy.training.OptimizerSettings(kind="sgd", lr=0.1).momentum
        0.9
        >>> sy.training.OptimizerSettings(lr=-1)
        Traceback (most recent call last):
        ValueError: optimizer.lr is -1.0: it must be at least 0 and finite
    """

    kind: Literal["sgd", "adamw"] = "adamw"
    """Optimization method."""
    lr: float = 1e-3
    """Learning rate after warm-up."""
    weight_decay: float = 0.01
    """Weight decay."""
    decay_all: bool = True
    """Let biases and normalisation scales decay too, as in the papers' recipes."""
    momentum: float = 0.9
    """Momentum of SGD."""
    nesterov: bool = False
    """Use Nesterov's momentum in SGD."""
    betas: tuple[float, float] = (0.9, 0.999)
    """β₁ and β₂ of AdamW."""
    backbone_lr: float = 1.0
    """Learning rate of the backbone as a multiple of `lr`."""
    estimates_lr: float = 10.0
    """Learning rate of ROLE's label estimates as a multiple of `lr`; they do not decay."""
    clip_norm: float = 0.0
    """Maximum norm of the gradient; 0 does not clip."""

    def __post_init__(self) -> None:
        rates = ("lr", "weight_decay", "backbone_lr", "estimates_lr", "clip_norm")
        conform("optimizer", self, {AT_LEAST_0: rates, SHARE: ("momentum",)})
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
    """Decay of the learning rate after warm-up."""
    warmup_epochs: float = AUTOMATIC
    """Epochs over which the learning rate rises linearly from `warmup_from`, possibly fractional; -1 is a twentieth
    of all epochs."""
    warmup_from: float = 0.0
    """Share of the learning rate at which warm-up starts."""
    milestones: tuple[float, ...] = ()
    """For "multistep": epochs after which the learning rate is multiplied by `factor`."""
    factor: float = 0.1
    """For "multistep": the factor at each milestone."""
    final: float = 0.0
    """For "cosine": share of the learning rate left at the end."""

    def __post_init__(self) -> None:
        warm_up = () if self.warmup_epochs == AUTOMATIC else ("warmup_epochs",)
        conform("schedule", self, {AT_LEAST_0: warm_up, SHARE: ("warmup_from", "factor", "final")})
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
    """All items in random order, every class equally often, or a fixed number of items per class."""
    visits: int = 0
    """For "class_aware": visits of each class per epoch; 0 is a quarter of the largest class, with at most 12 draws
    per item in an epoch."""
    per_class: int = 500
    """For "undersample": items of each class per epoch."""

    def __post_init__(self) -> None:
        conform("train.sampler", self, {AT_LEAST_0: ("visits",), AT_LEAST_1: ("per_class",)})


@dataclass(frozen=True)
class AugmentSettings:
    """The section [train.augment]: how training images are varied, as a pure function of (seed, epoch, draw).

    Examples:
        >>> sy.training.AugmentSettings(flip=0.5, pad_crop=4).flip
        0.5
    """

    flip: float = 0.0
    """Probability of mirroring an image left to right."""
    pad_crop: int = 0
    """Zero pixels added on every side before a random crop of the original size."""
    resized_crop: float = 0.0
    """Smallest share of an image's area in a random crop that is scaled back to full size; 0 does not crop."""
    rotate: float = 0.0
    """Largest rotation in degrees, in either direction; the corners are filled with zeros."""
    scale: float = 0.0
    """Largest relative change of size s, about the centre: by a factor up to 1 + s, or down to its inverse."""
    shear: float = 0.0
    """Largest shear in either direction: the shift of a row as a share of its distance from the centre."""
    elastic: float = 0.0
    """Largest displacement, in pixels, at each of 4 × 4 control points, interpolated smoothly between them."""
    warp: float = 1.0
    """Probability that an image is rotated, scaled, sheared and deformed at all."""
    overlay: float = 0.0
    """Probability of overlaying another augmented image of the batch: the lighter pixel and the labels of both."""

    def __post_init__(self) -> None:
        shares, sizes = ("flip", "resized_crop", "warp", "overlay"), ("pad_crop", "rotate", "scale", "shear", "elastic")
        conform("train.augment", self, {SHARE: shares, AT_LEAST_0: sizes})


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
    """Number of passes over the items. 0 chooses by the data: 30 for images; up to 100 for features, so that small
    data sets get about 2,000 steps."""
    batch_size: int = 0
    """Items per step, over all processes together; 0 is a twentieth of the items, between 16 and 128."""
    seed: int = 0
    """Random seed."""
    out: str = ""
    """Run folder."""
    learner: Learner = "auto"
    """Training method. race: small models over features compete (what recipe auto does). linear: one linear
    model, fitted to convergence. loop: a network trained step by step. loop_from_regression: the same for a linear
    model that starts at logistic regression. blocks: a linear model of many labels, trained one block of labels at a
    time. auto takes what suits data and recipe."""
    budget: float = 0.0
    """Work that a race may spend, in multiplications of its models; 0 is about two minutes on two cores."""
    single: bool = False
    """End a race with one candidate instead of an average of several."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of the network; auto is bfloat16 on a GPU that supports it, else float32. Losses are always float32."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the network and capture its steps as CUDA graphs; auto does so if the data fit on the GPU."""
    workers: int = -1
    """Processes that decode images, per training process; -1 is the number of cores, at most eight."""
    ema: float = 0.0
    """Decay per step of an exponential moving average of the weights, which is then validated and kept; 0 for none."""
    monitor: Monitor = "auto"
    """Score on validation items by which the best epoch is chosen. auto is the log-loss, or mAP for an objective
    without probabilities. assumed_loss and assumed_map count unknown labels as absent; auto does so if the objective
    does, or if no absent label is known."""
    keep: Literal["best", "last"] = "best"
    """Epoch whose weights are kept; always the last one without validation items."""
    patience: int = AUTOMATIC
    """Epochs without a better `monitor` after which training stops; 0 never stops; -1 is a fifth of all epochs, at
    least 5 and at least two validations."""
    validate_every: int = 1
    """Epochs between validations."""
    checkpoint_seconds: float = 60.0
    """Minimum time between checkpoints; with pseudo-labels there is also one at the end of every epoch."""
    tensorboard: bool = False
    """Also write the history for TensorBoard (needs the package tensorboard)."""
    sampler: SamplerSettings = field(default_factory=SamplerSettings)
    """Selection of the items that an epoch visits."""
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    """Variation of training images."""

    def __post_init__(self) -> None:
        numbers = ("epochs", "batch_size", "checkpoint_seconds", "budget")
        automatic, seeds = ("workers", "patience"), (0, 2**63 - 1)
        bounds: Bounds = {AT_LEAST_1: ("validate_every",), AT_LEAST_0: numbers, (AUTOMATIC, math.inf): automatic}
        conform("train", self, {**bounds, seeds: ("seed",), SHARE: ("ema",)})
