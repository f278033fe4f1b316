"""The whole job: data → model → training → calibration → evaluation → report, kept in one run folder."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from steelyard.balance.processes import n_processes
from steelyard.labels import Labels
from steelyard.models import Input, Model, build_model, frozen_data, input_of
from steelyard.models.tabular import Features
from steelyard.run import cautions
from steelyard.run.advice import resolve_auto
from steelyard.run.config import Config, dump_config, load_config
from steelyard.run.datasets import Datasets, open_datasets, split_off
from steelyard.run.finish import finish
from steelyard.run.folder import RunFolder, Trained
from steelyard.run.objectives import make_objective
from steelyard.run.validation import is_single_label, validator
from steelyard.training import group
from steelyard.training.batches import n_workers
from steelyard.training.loop import train
from steelyard.training.progress import Watch, watch
from steelyard.training.settings import AugmentSettings
from steelyard.training.step import pick_device
from steelyard.training.tensorboard import Board

Configure = Callable[[str | None], Config]
"""From the name of a recipe, None for none, to the settings: "auto" is resolved in between, by the labels."""

FREE = (("train", "out"), ("train", "device"), ("train", "workers"), ("train", "checkpoint_seconds"), ("data", "cache"))
"""Settings that may differ when an unfinished run goes on: they do not change what it computes, or hardly."""


class Asked(NamedTuple):
    """A training that was asked for."""

    config: Config
    recipe: str | None
    why: str
    """Why "auto" chose the recipe; "" where it did not."""
    datasets: Datasets


def ask(configure: Configure, recipe: str | None, datasets: Datasets | None = None) -> Asked:
    """Open the data and settle the recipe: "auto" is resolved by the training labels."""
    config = configure(None if recipe == "auto" else recipe)
    if datasets is None:
        datasets = open_datasets(config.data, config.model, config.train.seed)
    else:
        datasets = split_off(datasets, config.data.validation, config.train.seed)
    name, why = recipe, ""
    if recipe == "auto":
        name, why = resolve_auto(datasets.train.labels)
        config = configure(name)
    if datasets.settings:
        config = config.with_overrides({"data": dict(datasets.settings)})
    return Asked(config, name, why, datasets)


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
    config, datasets = asked.config, asked.datasets
    console = console if console is not None and group.is_first() else Console(quiet=True)
    labels: Labels = datasets.train.labels
    if not labels.counts.any():
        raise ValueError("no training label is present anywhere: there is nothing to learn; give other labels")
    folder = RunFolder(out)
    if group.is_first():
        _begin(folder, config, labels, overwrite)
    group.barrier()
    _announce(asked, console)
    device = pick_device(config.train.device)
    torch.manual_seed(config.train.seed)
    model = build_model(config.model, input_of(datasets.train), labels)
    model.fit_normalisation(datasets.train)
    trained_on, learner = _ready(model, config, datasets, folder, device, console)
    objective = make_objective(config.objective, labels, folder.path, config.train.seed)
    single = is_single_label(config.evaluate, labels)
    if config.train.monitor == "error" and not single:
        raise ValueError('train.monitor is "error", but items have several labels: choose map, f1, loss or ace')
    check = None
    if trained_on.validation is not None:
        workers = n_workers(config.train.workers, trained_on.validation)
        held = trained_on.validation
        check = validator(held, objective, config.evaluate, single, workers, config.train.precision)
    outcome = train(
        learner,
        objective,
        trained_on.train,
        config.optimizer,
        config.schedule,
        config.train,
        folder.path,
        check,
        _watch(config, folder, console),
    )
    for sentence in outcome.damaged:
        console.print(f"Passed over: {sentence}.", style="yellow", markup=False, highlight=False)
    learner.load_state_dict(outcome.weights)
    return finish(folder, config, model, learner, objective, trained_on, outcome, single, device, console, draws)


def _begin(folder: RunFolder, config: Config, labels: Labels, overwrite: bool) -> None:
    """Prepare the folder of a new run, or check that the unfinished one in it is the same."""
    started = {"labels": _fingerprint(labels), "n_items": labels.n_items, "n_labels": labels.n_labels}
    before = None if overwrite else folder.unfinished()
    if before is None:
        folder.create(overwrite, dump_config(config), started)
        return
    remedy = "give the same to go on, --overwrite to start anew, or another --out"
    if changed := _changed(load_config(folder / "config.toml").as_dict(), config):
        raise ValueError(f"{folder.path} holds an unfinished run with another {changed}: {remedy}")
    if before.started != started:
        raise ValueError(f"{folder.path} holds an unfinished run on other training labels: {remedy}")


def _changed(before: dict[str, Any], config: Config) -> str:
    """The first setting that differs from those of the run that is to go on, "" where none does."""
    for section, settings in config.as_dict().items():
        for key, value in settings.items():
            if (section, key) not in FREE and before[section][key] != value:
                return f"{section}.{key}"
    return ""


def _ready(
    model: Model, config: Config, datasets: Datasets, folder: RunFolder, device: torch.device, console: Console
) -> tuple[Datasets, Model]:
    """Return what is trained on what: with a frozen backbone the head alone, on features that are computed once."""
    if not config.model.frozen:
        return datasets, model
    if config.train.augment != AugmentSettings():
        raise ValueError(
            "model.frozen keeps the features of every image once, so train.augment cannot vary them: drop one"
        )
    cache = Path(config.data.cache) if config.data.cache else folder.path / "cache"
    parts: dict[str, Any] = {}
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        for name in ("train", "validation", "test"):
            data = getattr(datasets, name)
            if data is None:
                parts[name] = None
                continue
            bar = bars.add_task(f"features of {len(data):,} {name} items", total=len(data))
            parts[name] = frozen_data(
                model,
                data,
                cache / "features",
                device,
                config.evaluate.batch_size,
                n_workers(config.train.workers, data),
                lambda done, total, bar=bar: bars.update(bar, completed=done, total=total),  # type: ignore[misc]
            )
    return datasets._replace(**parts), over_features(model)


def over_features(model: Model) -> Model:
    """Return the model that takes the features of `model`'s backbone and shares its head."""
    settings = replace(model.settings, backbone="linear", frozen=False, weights="")
    source = Features(model.n_features)
    return Model(settings, Input("features", (model.n_features,)), source, model.head, model.n_labels, None)


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
        console.print(note, style="dim", markup=False, highlight=False)
    if asked.why:
        console.print(f"Recipe {asked.recipe}: {asked.why}.", markup=False, highlight=False)
    parts = [f"{len(asked.datasets.train):,} items to train on"]
    for name, what in (("validation", "to validate on"), ("test", "to test on")):
        data = getattr(asked.datasets, name)
        if data is not None:
            parts.append(f"{len(data):,} {what}")
    console.print(f"{', '.join(parts)}; {labels.n_labels:,} labels.", markup=False, highlight=False)
    if n_processes() > 1:
        console.print(f"{n_processes()} processes share every batch of {config.train.batch_size}.", highlight=False)
    for sentence in cautions.warnings_for(config, labels):
        console.print(f"Beware: {sentence}.", style="yellow", markup=False, highlight=False)


def _fingerprint(labels: Labels) -> int:
    """A checksum of the table of labels: who has which."""
    items, columns, values = labels.cells()
    words = [np.ascontiguousarray(part).view(np.uint8) for part in (items, columns, values)]
    total = zlib.crc32("\n".join(labels.names).encode())
    for part in words:
        total = zlib.crc32(part.data, total)
    return total
