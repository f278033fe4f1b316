"""Train a run: data → model → training → calibration → evaluation → report, in one run folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from steelyard._console import tell
from steelyard.balance.processes import n_processes
from steelyard.config.advice import resolve_auto
from steelyard.config.build import ASSUMING
from steelyard.config.settings import Config
from steelyard.folder.run_folder import RunFolder, Trained
from steelyard.models import fine_tunes, input_of
from steelyard.objective.parts import has_link
from steelyard.report.headline import plural
from steelyard.run.blocks.finish import finish_blocks
from steelyard.run.blocks.learn import takes_blocks, with_budget
from steelyard.run.checks import refuse, warnings_for
from steelyard.run.datasets import MANY_LABELS, SHARE, Datasets, given_datasets, open_datasets, split_off
from steelyard.run.finish import finish
from steelyard.run.learn import TrainingResult, TrainRequest, learn_with, learner_of, make_model, takes_frozen_features
from steelyard.run.resume import begin_run, sole_writer
from steelyard.training import group
from steelyard.training.budget import Workload, draws_of, settled
from steelyard.training.distributed import missing_others, together
from steelyard.training.settings import LOOPS, Learner
from steelyard.training.small_models import assuming_negative

Configure = Callable[[str | None], Config]
"""Function from the name of a recipe, or None, to the settings."""


_FINETUNE = "the backbone is pretrained, so it learns at a tenth of the head's rate, and from crops of the images"

_NO_GPU = (
    "Without a GPU the backbone is not trained: models are fitted to its frozen features. To train it too, add "
    "--set model.frozen=false."
)


def prepare(configure: Configure, recipe: str | None, datasets: Datasets | None = None) -> TrainRequest:
    """Open the data and choose recipe and learner, since "auto" depends on inputs and training labels."""
    given = configure(None if recipe == "auto" else recipe)
    config = given
    if given.data.validation == "auto":  # depends on the learner, which is not known yet
        config = given.with_overrides({"data": {"validation": 0.0}})
    if datasets is None:
        datasets = open_datasets(config.data, config.model, config.train.seed)
    else:
        datasets = given_datasets(datasets, config.data, config.model, config.train.seed)
    frozen = config.model.is_frozen or takes_frozen_features(config, datasets.train)
    if frozen and not config.model.is_frozen:
        datasets = datasets._replace(notes=(*datasets.notes, _NO_GPU))
    config = config.with_overrides({"model": {"frozen": frozen}})
    learner: Learner = "loop" if len(datasets.train) == 0 else learner_of(config, recipe, datasets.train)
    if recipe not in (None, "auto"):
        _check_no_race(config, recipe, learner)
    name, why = recipe, ""
    if recipe == "auto" and learner == "race":
        why = "small models compete on the features, and items that they were not fitted to decide"
    elif recipe == "auto":
        name, why = resolve_auto(datasets.train.labels, bool(config.evaluate.deploy_prior))
        if len(datasets.train) and fine_tunes(config.model, input_of(datasets.train)):
            name, why = f"{name}+finetune", f"{why}; {_FINETUNE}"
        if learner == "blocks" and not takes_blocks(configure(name), datasets.train, 1):
            name, why = "bce", "each label is learned alone, since there are many"
        given = configure(name)
    share: float | str = given.data.validation
    if share == "auto":
        share = SHARE if learner in (*LOOPS, "blocks") and datasets.validation is None else 0.0
        datasets = split_off(datasets, share, given.train.seed)
    config = given.with_overrides(
        {
            "data": {**datasets.settings, "validation": share},
            "model": {"frozen": frozen} | ({"head": "blocks"} if learner == "blocks" else {}),
            "train": {"learner": learner},
        }
    )
    if learner in LOOPS:
        config = _with_budget(config, datasets)
    elif learner == "blocks":
        config = with_budget(config, len(datasets.train))
    return TrainRequest(config, name, why, datasets)


def _check_no_race(config: Config, recipe: str | None, learner: Learner) -> None:
    """Refuse what only recipe auto has, where another recipe is to be trained."""
    train = config.train
    of_race = {"train.learner race": learner == "race", "train.budget": train.budget, "train.single": train.single}
    if given := [name for name, is_set in of_race.items() if is_set]:
        names = " and ".join(given)
        raise ValueError(f"{names}: only recipe auto has a race, but the recipe is {recipe}: leave one out")


def _with_budget(config: Config, datasets: Datasets) -> Config:
    """Return the settings with batch size, epochs, warm-up, monitor and patience filled in; see `settled`."""
    labels, held = datasets.train.labels, datasets.validation
    work = Workload(
        labels,
        draws_of(config.train.sampler, labels),
        None if held is None else held.labels,
        not config.model.is_frozen and len(labels) > 0 and input_of(datasets.train).kind != "features",
        has_link(config.objective.loss, config.objective.unknown),
        config.objective.unknown.kind in ASSUMING,
    )
    train, schedule = settled(config.train, config.schedule, work)
    chosen = {name: getattr(train, name) for name in ("batch_size", "epochs", "patience", "monitor")}
    return config.with_overrides({"train": chosen, "schedule": {"warmup_epochs": schedule.warmup_epochs}})


@missing_others()
def run(
    request: TrainRequest, out: Path, overwrite: bool = False, console: Console | None = None, draws: bool = True
) -> Trained:
    """Train a run and return it; an unfinished run in `out` resumes.

    Args:
        request: settings, recipe and data.
        out: the run folder.
        overwrite: whether a run in it is replaced.
        console: shows progress; None shows nothing.
        draws: whether `report.html` and the index are written.
    """
    console = console if console is not None and group.is_first() else Console(quiet=True)
    folder = RunFolder(out)
    with sole_writer(folder):
        result = learn(request, folder, overwrite, console)
        if request.config.train.learner == "blocks":
            return finish_blocks(result)
        return finish(result, request, console, draws)


def learn(request: TrainRequest, folder: RunFolder, overwrite: bool, console: Console) -> TrainingResult:
    """Train only: nothing is calibrated, measured or kept but checkpoints; `run` does the rest."""
    config, datasets = request.config, request.datasets

    def begin() -> None:
        begin_run(folder, config, datasets, overwrite)

    together(lambda: refuse(config, datasets))
    if not overwrite:
        together(begin)
    _announce(request, console)
    model, shown = together(lambda: make_model(config, datasets, folder, console, request.logger, request.module))
    if overwrite:  # only now: a refused setting must not delete the old run
        together(begin)
    begun = time.monotonic()
    result = together(lambda: TrainingResult.begun(config, folder, model, datasets, console))
    of_features = time.monotonic() - begun if config.model.is_frozen else 0.0
    learn_with(result, shown, console, request.follow)
    result.outcome = result.outcome._replace(seconds=result.outcome.seconds + of_features)
    return result


def _announce(request: TrainRequest, console: Console) -> None:
    """Print the recipe, the number of items and labels, and warnings."""
    config, datasets = request.config, request.datasets
    labels = datasets.train.labels
    for note in datasets.notes:
        tell(console, note, "dim")
    if request.why:
        tell(console, f"Recipe {request.recipe}: {request.why}.")
    parts = [f"{plural(len(datasets.train), 'item')} to train on"]
    for data, purpose in ((datasets.validation, "to validate on"), (datasets.test, "to test on")):
        if data is not None:
            parts.append(f"{len(data):,} {purpose}")
    tell(console, f"{', '.join(parts)}; {plural(labels.n_labels, 'label')}.")
    if config.train.learner == "blocks":
        many = f"{MANY_LABELS:,} labels or more: " if labels.n_labels >= MANY_LABELS else ""
        tell(console, f"{many}a linear model is trained one block of labels at a time (train.learner is blocks).")
    if n_processes() > 1:
        tell(console, f"{n_processes()} processes share every batch of {config.train.batch_size}.")
    if (
        config.train.learner == "race"
    ):  # which assumes unknown labels absent where only positives are known, and says so
        labels = assuming_negative(datasets.train)[0].labels
    for sentence in warnings_for(config, labels):
        tell(console, f"Beware: {sentence}.", "yellow")
