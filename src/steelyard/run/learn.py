"""Train by a race of small models, a linear model fitted to convergence, blocks of labels, or the training loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from rich.console import Console
from torch import nn

from steelyard._console import tell
from steelyard.balance import PickedLabels, PseudoLabels
from steelyard.balance.processes import n_processes
from steelyard.config.build import make_objective
from steelyard.config.sections import ObjectiveSettings
from steelyard.config.settings import Config
from steelyard.folder.run_folder import RunFolder
from steelyard.losses.pair import PairLoss
from steelyard.models import Model, build_model, fine_tunes, frozen_data, input_of, over_features, with_members
from steelyard.objective import Objective
from steelyard.objective.parts import has_link
from steelyard.predict.feature_cache import feature_progress, keeping_of, size_sentence
from steelyard.report.race_table import race_progress, show_race
from steelyard.run.blocks.learn import takes_blocks
from steelyard.run.blocks.training import train_blocks
from steelyard.run.datasets import PARTS, Datasets
from steelyard.run.validation import is_single_label, validator
from steelyard.training import group, small_models
from steelyard.training.batches import n_workers
from steelyard.training.distributed import one_voice, together
from steelyard.training.loop import Outcome, train
from steelyard.training.progress import Logged, Logger, TensorBoard, Watch, watch
from steelyard.training.race.linear import is_convex
from steelyard.training.settings import (
    LOOPS,
    AugmentSettings,
    Learner,
    OptimizerSettings,
    ScheduleSettings,
    TrainSettings,
)
from steelyard.training.start import start_at_prior
from steelyard.training.step import pick_device

Follow = Callable[[nn.Module, torch.device, Datasets], None]
"""Called with the model after an epoch, its device, and the items as the training loop has them."""
_FIXED_RULES = ("ignore", "negative", "weak_negative", "wan", "teacher")
_OF_LOOP = ("epochs", "batch_size", "ema", "monitor", "keep", "patience", "validate_every", "tensorboard", "sampler")


class TrainRequest(NamedTuple):
    """A run to train: settings, recipe and data."""

    config: Config
    recipe: str | None
    why: str
    """Reason why "auto" chose the recipe; "" where it did not."""
    datasets: Datasets
    follow: Follow | None = None
    """Called after every validated epoch of the training loop."""
    logger: Logger | None = None
    """Receives the numbers of every epoch, in addition to history.jsonl."""
    module: nn.Module | None = None
    """Module of the user, where model.backbone is own."""


@dataclass(eq=False)
class TrainingResult:
    """A training job: its inputs and, at the end, its results."""

    config: Config
    folder: RunFolder
    device: torch.device
    model: Model
    """The model that the run keeps."""
    learner: Model
    """The model that is trained: `model`, or its head over frozen features."""
    datasets: Datasets
    """Items as the learner takes them."""
    single_label: bool
    """True if every item has exactly one label."""
    objective: Objective = field(init=False)
    """The objective after training."""
    outcome: Outcome = field(init=False)
    out_of_fold: small_models.OutOfFold | None = None
    """Out-of-fold outputs for the training items, where small models were fitted to all of them."""
    annotated_only: tuple[int, ...] = ()
    """Labels of which only positives are known: where unknown they count as absent."""

    @classmethod
    def begun(
        cls, config: Config, folder: RunFolder, model: Model, datasets: Datasets, console: Console
    ) -> TrainingResult:
        """Return a new training job; with a frozen backbone it trains the head alone, on features computed once."""
        device, single = pick_device(config.train.device), config.train.augment.overlay < 1
        single = single and is_single_label(config.evaluate, datasets.train.labels)
        if not config.model.is_frozen:
            return cls(config, folder, device, model, model, datasets, single)
        features = _features(model, config, datasets, folder, device, console)
        return cls(config, folder, device, model, over_features(model), features, single)

    def make_objective(self) -> Objective:
        """Return the objective of the training labels."""
        config, labels = self.config, self.datasets.train.labels
        store = PickedLabels if config.train.learner == "blocks" else PseudoLabels
        return make_objective(config.objective, labels, self.folder.path, config.train.seed, store)


def _features(
    model: Model, config: Config, datasets: Datasets, folder: RunFolder, device: torch.device, console: Console
) -> Datasets:
    """Return the features of a frozen backbone, computed once."""
    keeping = keeping_of(config.data.cache, folder.path, console)
    assert keeping is not None  # at least in the run folder
    parts: dict[str, Any] = {}
    with feature_progress(console) as shows:
        for name in PARTS:
            if (data := getattr(datasets, name)) is not None:
                workers, shown = n_workers(config.train.workers, data), shows(f"{name} items", len(data))
                parts[name] = frozen_data(model, data, keeping, device, config.evaluate.batch_size, workers, shown)
    tell(console, size_sentence(keeping), "dim")
    return datasets._replace(**parts)


def make_model(
    config: Config, datasets: Datasets, folder: RunFolder, console: Console, logger: Logger | None, module: Any
) -> tuple[Model, Watch]:
    """Return the untrained model, and the progress display: only the first process shows anything.

    `module` is a module of the user, or None.
    """
    pick_device(config.train.device)  # raises for a missing one
    shown = _watch(config, folder, console, logger)
    torch.manual_seed(config.train.seed)
    model = build_model(config.model, input_of(datasets.train), datasets.train.labels, module)
    model.fit_normalisation(datasets.train)
    return model, shown


def _watch(config: Config, folder: RunFolder, console: Console, logger: Logger | None) -> Watch:
    if not group.is_first():
        return Watch()
    board = TensorBoard(folder / "tensorboard") if config.train.tensorboard else None
    shown = watch(console)
    for each in (logger, board):
        shown = shown if each is None else Logged(each, shown)
    return shown


def learn_with(result: TrainingResult, shown: Watch, console: Console, follow: Follow | None = None) -> None:
    """Train by the learner that the settings name; `follow` is called after every validated epoch of the loop."""
    if result.config.train.learner == "race":
        _race(result, console)
    elif result.config.train.learner == "linear":
        _fit_linear(result, console)
    elif result.config.train.learner == "blocks":
        _by_blocks(result, shown, console)
    else:
        _loop(result, shown, console, follow)


def _race(result: TrainingResult, console: Console) -> None:
    """Let small models compete; the winner becomes the head of the kept model."""
    config, begun = result.config, time.monotonic()
    data, only = small_models.assuming_negative(result.datasets.train)
    result.datasets, result.annotated_only = result.datasets._replace(train=data), only
    if only:
        tell(console, f"Beware: {small_models.annotated_sentence(data.labels.names, only)}.", "yellow")
    encoder = result.datasets.encoder
    names = None if encoder is None else encoder.features_of_names(data.labels.names)
    with race_progress(console) as say:
        race, result.out_of_fold = small_models.race(
            data, config.train, result.device, say, only, result.datasets.audit, names
        )
    show_race(race.document(), console)
    result.folder.write_race(race.document())
    result.model = with_members(result.model, race.head)
    result.learner = over_features(result.model) if config.model.is_frozen else result.model
    result.objective = result.make_objective()
    result.outcome = small_models.outcome_of(result.learner, begun, bool(race.facts["converged"]))


def _fit_linear(result: TrainingResult, console: Console) -> None:
    """Fit the linear model of the objective to convergence."""
    config, begun, data = result.config, time.monotonic(), result.datasets.train
    result.objective = result.make_objective()
    loss = result.objective.loss
    fit, result.out_of_fold, converged = small_models.linear(data, result.objective, result.device, config.train.seed)
    result.objective.cpu()
    if not converged:
        tell(console, f"Not converged after {fit.steps} steps: some labels can be separated perfectly.", "yellow")
    if isinstance(loss, PairLoss) and not is_convex(loss):
        tell(console, f"{config.objective.loss.kind} is not convex: this is a local optimum near logistic regression.")
    small_models.fill_linear(result.learner, fit)
    result.outcome = small_models.outcome_of(result.learner, begun, converged)


def _by_blocks(result: TrainingResult, shown: Watch, console: Console) -> None:
    """Train a linear model of many labels one block of labels at a time."""
    result.objective = objective = together(result.make_objective)
    data, folder = result.datasets.train, result.folder.path
    with one_voice():
        result.outcome = train_blocks(result.model, objective, data, result.config, result.device, folder, shown)
    _tell_damaged(result.outcome, console)


def _tell_damaged(outcome: Outcome, console: Console) -> None:
    for sentence in outcome.damaged:
        tell(console, f"Skipped: {sentence}.", "yellow")


def _loop(result: TrainingResult, shown: Watch, console: Console, follow: Follow | None) -> None:
    """Train step by step, and keep the best epoch."""
    config, learner, datasets = result.config, result.learner, result.datasets
    result.objective = objective = together(result.make_objective)
    starts = together(lambda: start_at_prior(learner, objective, datasets.train, config.train))
    if starts and config.train.learner == "loop_from_regression":
        together(lambda: small_models.start_from_regression(learner, datasets.train, result.device, config.train.seed))
    check = None
    if (held := datasets.validation) is not None:
        workers, precision = n_workers(config.train.workers, held), config.train.precision
        follows = None if follow is None else lambda model, device: follow(model, device, datasets)
        check = validator(held, objective, config.evaluate, result.single_label, workers, precision, follows)
    sections = (config.optimizer, config.schedule, config.train)
    with one_voice():
        outcome = train(learner, objective, datasets.train, *sections, result.folder.path, check, shown)
    _tell_damaged(outcome, console)
    if outcome.converged is False:
        tell(console, "Scores were still improving at the last epoch: raise train.epochs.", "yellow")
    learner.load_state_dict(outcome.weights)
    result.outcome = outcome


def learner_of(config: Config, recipe: str | None, train: Any) -> Learner:
    """Return the learner for settings, recipe and training items.

    Features, of a table or a frozen backbone, are learned by a race where the recipe is auto, and else by a linear
    model where the objective is a fixed sum over labels. Everything else takes the training loop, and so does setting
    the optimizer, the schedule, epochs or another network.
    """
    if config.train.learner != "auto":
        return _checked(config, train)
    if takes_blocks(config, train):
        return "blocks"
    if n_processes() > 1 or not _over_features(config, train) or _sets_the_loop(config):
        return "loop"
    if recipe == "auto" and config.objective == ObjectiveSettings():
        return "race"
    return "linear" if recipe != "auto" and is_fixed(config.objective) else "loop_from_regression"


def _checked(config: Config, train: Any) -> Learner:
    """Return the learner that was set; raise where these inputs cannot be learned by it."""
    learner = config.train.learner
    if learner in LOOPS:
        return learner
    if learner == "blocks":
        if takes_blocks(config, train, 1):
            return learner
        raise ValueError(
            "train.learner is blocks, which is for features under a plain linear head, with a loss per label and fixed "
            "rules: set it to auto"
        )
    if not _over_features(config, train) or n_processes() > 1:
        raise ValueError(
            f"train.learner is {learner}, which is for features of at least {small_models.FEWEST_ITEMS} items under a "
            "plain linear head in one process: set it to auto, or model.frozen to true for images"
        )
    if learner == "linear" and not is_fixed(config.objective):
        raise ValueError("train.learner is linear, but the objective changes while training: set it to auto")
    return learner


def is_fixed(objective: ObjectiveSettings) -> bool:
    """Return whether an objective is a sum over labels with coefficients that training does not change."""
    return (
        has_link(objective.loss)
        and objective.unknown.kind in _FIXED_RULES
        and objective.masking.kind == objective.label_pair.kind == "none"
        and objective.weighting.arguments.get("start", 1) == 1
    )


def _over_features(config: Config, train: Any) -> bool:
    model, given = config.model, input_of(train)
    small = small_models.is_small(train, given)
    plain = model.head == "linear" and model.dropout == 0 and model.bias == "prior"
    if given.kind == "features":
        return small and plain and (model.backbone in ("auto", "linear") or model.backbone.startswith("hf:"))
    return small and plain and model.is_frozen


def _sets_the_loop(config: Config) -> bool:
    """Return whether a setting that only the training loop uses differs from its default."""
    plain = TrainSettings()
    return (
        config.optimizer != OptimizerSettings()
        or config.schedule != ScheduleSettings()
        or any(getattr(config.train, name) != getattr(plain, name) for name in _OF_LOOP)
    )


def takes_frozen_features(config: Config, train: Any) -> bool:
    """Return whether a pretrained backbone is left frozen, since there is no GPU to train it on.

    Any setting that only matters for training the backbone means that it is trained.
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
