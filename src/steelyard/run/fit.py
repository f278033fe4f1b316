"""The whole job: data → model → training → calibration → evaluation → report, kept in one run folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from steelyard.balance.processes import n_processes
from steelyard.config.advice import resolve_auto
from steelyard.config.build import make_objective
from steelyard.config.settings import Config
from steelyard.folder.run_folder import RunFolder, Trained
from steelyard.labels import Labels
from steelyard.losses.pair import PairLoss
from steelyard.models import Model, build_model, fine_tunes, frozen_data, input_of, over_features, with_members
from steelyard.objective.parts import Part, has_link
from steelyard.predict.feature_cache import feature_progress, keeping_of, size_sentence
from steelyard.report.headline import plural
from steelyard.report.race_table import race_progress, show_race
from steelyard.run import cautions
from steelyard.run.automatic import with_budget
from steelyard.run.beginning import begin_run, sole_writer
from steelyard.run.datasets import SHARE, Datasets, given_datasets, open_datasets, split_off
from steelyard.run.deployment import ESTIMATE, read_prior
from steelyard.run.finish import Learned, finish
from steelyard.run.learner import learner_of, nothing_held_out, takes_frozen_features
from steelyard.run.validation import is_single_label, validator
from steelyard.training import group
from steelyard.training.batches import check_share, n_workers
from steelyard.training.distributed import missing_others, one_voice, together
from steelyard.training.linear import is_convex
from steelyard.training.loop import train
from steelyard.training.progress import Board, Watch, watch
from steelyard.training.settings import LOOPS, AugmentSettings, Learner
from steelyard.training.small_models import (
    annotated_sentence,
    annotated_share,
    assuming_negative,
    fill_linear,
    linear,
    outcome_of,
    race,
    start_from_regression,
)
from steelyard.training.start import start_at_prior
from steelyard.training.step import pick_device

Configure = Callable[[str | None], Config]
"""From the name of a recipe, None for none, to the settings: "auto" is resolved in between, by the labels."""


_FINETUNE = "the backbone is pretrained, so it learns at a tenth of the head's rate, and from crops of the images"

_NO_GPU = (
    "Without a GPU the backbone is not trained: models are fitted to its frozen features. To train it too, add "
    "--set model.frozen=false."
)


class Asked(NamedTuple):
    """A training that was asked for."""

    config: Config
    recipe: str | None
    why: str
    """Why "auto" chose the recipe; "" where it did not."""
    datasets: Datasets


def ask(configure: Configure, recipe: str | None, datasets: Datasets | None = None) -> Asked:
    """Open the data and settle recipe and learner: what "auto" stands for depends on inputs and training labels."""
    given = configure(None if recipe == "auto" else recipe)
    config = nothing_held_out(given)
    if datasets is None:
        datasets = open_datasets(config.data, config.model, config.train.seed)
    else:
        datasets = given_datasets(datasets, config.data, config.model, config.train.seed)
    frozen = config.model.is_frozen or takes_frozen_features(config, datasets.train)
    if frozen and not config.model.is_frozen:
        datasets = datasets._replace(notes=(*datasets.notes, _NO_GPU))
    config = config.with_overrides({"model": {"frozen": frozen}})
    learner: Learner = "loop" if len(datasets.train) == 0 else learner_of(config, recipe, datasets.train)
    name, why = recipe, ""
    if recipe == "auto" and learner == "race":
        why = "small models compete on the features, and items that they were not fitted to decide"
    elif recipe == "auto":
        name, why = resolve_auto(datasets.train.labels, bool(config.evaluate.deploy_prior))
        if len(datasets.train) and fine_tunes(config.model, input_of(datasets.train)):
            name, why = f"{name}+finetune", f"{why}; {_FINETUNE}"
        given = configure(name)
    share: float | str = given.data.validation
    if share == "auto":
        share = SHARE if learner in LOOPS and datasets.validation is None else 0.0
        datasets = split_off(datasets, share, given.train.seed)
    settled = {
        "data": {**datasets.settings, "validation": share},
        "model": {"frozen": frozen},
        "train": {"learner": learner},
    }
    config = given.with_overrides(settled)
    if learner in LOOPS:
        config = with_budget(config, datasets)
    return Asked(config, name, why, datasets)


@missing_others()
def run(
    asked: Asked, out: Path, overwrite: bool = False, console: Console | None = None, draws: bool = True
) -> Trained:
    """Do the job and return what was trained; an unfinished run in `out` goes on where it was.

    Args:
        asked: what to train on what.
        out: the run folder.
        overwrite: whether a run in it is replaced.
        console: where progress is shown, None for nowhere.
        draws: whether `report.html` is written.
    """
    console = console if console is not None and group.is_first() else Console(quiet=True)
    folder = RunFolder(out)
    with sole_writer(folder):
        learned = learn(asked, folder, overwrite, console)
        return finish(learned, asked.datasets, folder, asked.config, console, draws)


def learn(asked: Asked, folder: RunFolder, overwrite: bool, console: Console) -> Learned:
    """Train, and leave it at that: nothing is calibrated, measured or kept but checkpoints; for the rest see `run`."""
    config, datasets = asked.config, asked.datasets
    begin = partial(begin_run, folder, config, datasets, overwrite)
    together(lambda: _check(config, datasets))
    if not overwrite:
        together(begin)
    _announce(asked, console)
    device, model, shown = together(lambda: _made(config, datasets, folder, console))
    if overwrite:  # what is there goes only now that the rest was not refused
        together(begin)
    begun = time.monotonic()
    trained_on, learner = together(lambda: _ready(model, config, datasets, folder, device, console))
    of_features = time.monotonic() - begun if config.model.is_frozen else 0.0
    ready = _Ready(config, folder, device, model, learner, trained_on)
    if config.train.learner == "race":
        learned = _learn_by_race(ready, console)
    elif config.train.learner == "linear":
        learned = _learn_linear(ready, console)
    else:
        learned = _learn_by_loop(ready, shown, console)
    outcome = learned.outcome
    return learned._replace(outcome=outcome._replace(seconds=outcome.seconds + of_features))


class _Ready(NamedTuple):
    """All that learning needs."""

    config: Config
    folder: RunFolder
    device: torch.device
    model: Model
    """What is kept."""
    learner: Model
    """What is trained: `model`, or its head over features."""
    datasets: Datasets
    """What the learner takes."""

    @property
    def single_label(self) -> bool:
        """Whether every item has exactly one label."""
        overlay, labels = self.config.train.augment.overlay, self.datasets.train.labels
        return overlay < 1 and is_single_label(self.config.evaluate, labels)


def _learn_by_race(ready: _Ready, console: Console) -> Learned:
    """Let small models compete; the model that is kept has the winner as its head."""
    config, begun = ready.config, time.monotonic()
    data, only = assuming_negative(ready.datasets.train)
    datasets = ready.datasets._replace(train=data)
    if only:
        _say(console, f"Beware: {annotated_sentence(data.labels.names, only)}.", "yellow")
    with race_progress(console) as say:
        result, out_of_fold = race(data, config.train, ready.device, say, only, datasets.audit)
    show_race(result.document(), console)
    ready.folder.write_race(result.document())
    model = with_members(ready.model, result.head)
    learner = over_features(model) if config.model.is_frozen else model
    objective = make_objective(config.objective, data.labels, ready.folder.path, config.train.seed)
    outcome = outcome_of(learner, begun, bool(result.facts["converged"]))
    return Learned(model, learner, objective, datasets, outcome, ready.single_label, ready.device, out_of_fold, only)


def _learn_linear(ready: _Ready, console: Console) -> Learned:
    """Fit the linear model of the objective to convergence."""
    config, begun, data = ready.config, time.monotonic(), ready.datasets.train
    objective = make_objective(config.objective, data.labels, ready.folder.path, config.train.seed)
    fit, out_of_fold, converged = linear(data, objective, ready.device, config.train.seed)
    objective.cpu()
    if not converged:
        _say(console, f"Not converged after {fit.steps} steps: some labels can be told apart without limit.", "yellow")
    if isinstance(objective.loss, PairLoss) and not is_convex(objective.loss):
        _say(console, f"A local optimum, begun at logistic regression: {config.objective.loss.kind} is not convex.")
    fill_linear(ready.learner, fit)
    outcome = outcome_of(ready.learner, begun, converged)
    single = ready.single_label
    return Learned(ready.model, ready.learner, objective, ready.datasets, outcome, single, ready.device, out_of_fold)


def _learn_by_loop(ready: _Ready, shown: Watch, console: Console) -> Learned:
    """Train step by step, and keep the best epoch."""
    config, folder, learner, datasets = ready.config, ready.folder, ready.learner, ready.datasets
    labels: Labels = datasets.train.labels
    objective = together(lambda: make_objective(config.objective, labels, folder.path, config.train.seed))
    starts = together(lambda: start_at_prior(learner, objective, datasets.train, config.train))
    if starts and config.train.learner == "loop_from_regression":
        together(lambda: start_from_regression(learner, datasets.train, ready.device, config.train.seed))
    check = None
    if (held := datasets.validation) is not None:
        workers = n_workers(config.train.workers, held)
        check = validator(held, objective, config.evaluate, ready.single_label, workers, config.train.precision)
    with one_voice():
        outcome = train(
            learner,
            objective,
            datasets.train,
            config.optimizer,
            config.schedule,
            config.train,
            folder.path,
            check,
            shown,
        )
    for sentence in outcome.damaged:
        _say(console, f"Passed over: {sentence}.", "yellow")
    if outcome.converged is False:
        _say(console, "Still improving when the budget ended: raise train.epochs.", "yellow")
    learner.load_state_dict(outcome.weights)
    return Learned(ready.model, learner, objective, datasets, outcome, ready.single_label, ready.device)


def _check(config: Config, datasets: Datasets) -> None:
    """Refuse what cannot work, before anything is written."""
    labels: Labels = datasets.train.labels
    if config.train.learner in LOOPS:
        check_share(config.train.batch_size, n_processes())
    if not labels.counts.any():
        raise ValueError("no training label is present anywhere: there is nothing to learn; give other labels")
    for name in ("validation", "test"):
        if (part := getattr(datasets, name)) is not None and len(part) == 0:
            raise ValueError(f"the {name} data holds no items: give some, or leave it out")
    _check_audit(config, datasets.audit)
    if per_item := config.evaluate.positives_per_item:
        _check_per_item(config, datasets.train, per_item)
    monitor, loss = config.train.monitor, config.objective.loss
    if monitor == "error" and not is_single_label(config.evaluate, labels):
        raise ValueError('train.monitor is "error", but items have several labels: choose map, f1, loss or ace')
    if datasets.validation is None and config.objective.masking.arguments.get("observes") == "validation":
        raise ValueError('objective.masking.observes is "validation", but there are no such items: set data.validation')
    ignores = config.objective.unknown.kind == "ignore" and config.train.learner != "race"
    if config.model.bias == "prior" and ignores and _only_positives(labels):
        raise ValueError(
            "objective.unknown is ignore, but no label has a known negative, so every item would get every label: set "
            "it to wan, or train with --recipe auto"
        )
    if datasets.validation is None and config.train.patience > 0:
        raise ValueError(
            f"train.patience is {config.train.patience}, but there are no validation items to be patient with: set "
            "data.validation"
        )
    if datasets.validation is not None and monitor in ("f1", "loss", "ace", "assumed_loss") and not has_link(loss):
        raise ValueError(
            f"train.monitor is {monitor!r}, but objective.loss {loss.kind!r} gives no probabilities before they are "
            "calibrated: choose map"
        )
    if (held := datasets.validation) is not None and monitor.startswith("assumed") and not held.labels.unknown_rate:
        raise ValueError(f"train.monitor is {monitor!r}, but no validation label is unknown: choose loss or map")
    if config.model.is_frozen and config.train.augment != AugmentSettings():
        raise ValueError(
            "model.frozen keeps the features of every image once, so train.augment cannot vary them: drop one"
        )
    if config.evaluate.deploy_prior == ESTIMATE and datasets.test is None:
        raise ValueError(
            "evaluate.deploy_prior is estimate, but there are no test items to estimate it from: set data.test, or "
            "leave it out and run steelyard calibrate --keep --deploy-prior estimate --data NEW-ITEMS later"
        )
    if config.evaluate.deploy_prior not in ("", ESTIMATE):
        read_prior(config.evaluate.deploy_prior, labels.names)
    rule = config.objective.unknown
    without_files = Part("ignore") if rule.kind in ("pseudo", "annotation") else rule
    make_objective(replace(config.objective, unknown=without_files), labels, None, config.train.seed)


def _check_audit(config: Config, audit: Any) -> None:
    if audit is None:
        return
    if config.train.learner != "race":
        raise ValueError(
            "--audit-sample decides among the candidates of recipe auto on features, but this run has none: leave it "
            "out, or set model.frozen to true for images"
        )
    if audit.labels.unknown_rate:
        raise ValueError(
            f"--audit-sample: {100 * audit.labels.unknown_rate:.3g} % of its labels are unknown: give items of which "
            "every label was checked"
        )


def _check_per_item(config: Config, train: Any, per_item: float) -> None:
    known, only = assuming_negative(train) if config.train.learner == "race" else (train, ())
    if not only:
        raise ValueError(
            "--positives-per-item is for recipe auto on features of which only positives are known; here are no "
            "such labels: leave it out"
        )
    annotated_share(known.labels, only, per_item)


def _only_positives(labels: Labels) -> bool:
    return labels.unknown_rate > 0 and bool((labels.n_known == labels.counts).all())


def _made(config: Config, datasets: Datasets, folder: RunFolder, console: Console) -> tuple[torch.device, Model, Watch]:
    """Return where is trained, what, and how that is shown."""
    device = pick_device(config.train.device)
    shown = _watch(config, folder, console)
    torch.manual_seed(config.train.seed)
    model = build_model(config.model, input_of(datasets.train), datasets.train.labels)
    model.fit_normalisation(datasets.train)
    return device, model, shown


def _ready(
    model: Model, config: Config, datasets: Datasets, folder: RunFolder, device: torch.device, console: Console
) -> tuple[Datasets, Model]:
    """Return what is trained on what: with a frozen backbone the head alone, on features that are computed once."""
    if not config.model.is_frozen:
        return datasets, model
    keeping = keeping_of(config.data.cache, folder.path, console)
    assert keeping is not None  # at least in the run folder
    parts: dict[str, Any] = {}
    with feature_progress(console) as shows:
        for name in ("train", "validation", "test", "audit"):
            data = getattr(datasets, name)
            if data is None:
                parts[name] = None
                continue
            parts[name] = frozen_data(
                model,
                data,
                keeping,
                device,
                config.evaluate.batch_size,
                n_workers(config.train.workers, data),
                shows(f"{name} items", len(data)),
            )
    _say(console, size_sentence(keeping), "dim")
    return datasets._replace(**parts), over_features(model)


def _watch(config: Config, folder: RunFolder, console: Console) -> Watch:
    """Return how training is shown; only the first process shows anything."""
    if not group.is_first():
        return Watch()
    shown = watch(console)
    return Board(folder / "tensorboard", shown) if config.train.tensorboard else shown


def _announce(asked: Asked, console: Console) -> None:
    """Say what is trained on what, and what to beware of."""
    config, labels = asked.config, asked.datasets.train.labels
    for note in asked.datasets.notes:
        _say(console, note, "dim")
    if asked.why:
        _say(console, f"Recipe {asked.recipe}: {asked.why}.")
    parts = [f"{plural(len(asked.datasets.train), 'item')} to train on"]
    for name, what in (("validation", "to validate on"), ("test", "to test on")):
        data = getattr(asked.datasets, name)
        if data is not None:
            parts.append(f"{len(data):,} {what}")
    _say(console, f"{', '.join(parts)}; {plural(labels.n_labels, 'label')}.")
    if n_processes() > 1:
        _say(console, f"{n_processes()} processes share every batch of {config.train.batch_size}.")
    for sentence in cautions.warnings_for(config, labels):
        _say(console, f"Beware: {sentence}.", "yellow")


def _say(console: Console, sentence: str, style: str = "") -> None:
    """Print a sentence; where no one looks, in one line, for programs to find."""
    console.print(sentence, style=style, markup=False, highlight=False, soft_wrap=not console.is_terminal)
