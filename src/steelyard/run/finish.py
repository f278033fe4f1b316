"""After training: probabilities calibrated, thresholds chosen, metrics measured, and all of it written down."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from steelyard import __version__
from steelyard.calibrate.probability import Reading
from steelyard.config.build import known_labels
from steelyard.config.settings import Config
from steelyard.data.skipped import skipped_at, skipped_sentence
from steelyard.data.subset import Labelled
from steelyard.folder.run_folder import RunFolder, Trained
from steelyard.labels import Labels
from steelyard.models import Model
from steelyard.objective import Objective
from steelyard.report.terminal import plain, say
from steelyard.run.baselines import beside_baselines
from steelyard.run.datasets import Datasets, paths_of
from steelyard.run.evaluation import Judged, judge, report
from steelyard.run.finding import INDEX
from steelyard.run.indexing import index_of
from steelyard.run.recalibration import calibrated
from steelyard.run.run_report import write_report
from steelyard.training import group
from steelyard.training.batches import all_outputs, is_array, n_workers
from steelyard.training.loop import Outcome
from steelyard.training.small_models import (
    OutOfFold,
    annotated_sentence,
    annotated_share,
    assuming_negative,
    baseline,
    features_of,
    is_small,
    scaled_sentence,
)
from steelyard.training.step import pick_precision


class Learned(NamedTuple):
    """A training that came to its end."""

    model: Model
    """What is kept."""
    learner: Model
    """What was trained, with the kept weights: `model`, or its head over features."""
    objective: Objective
    """As training left it."""
    datasets: Datasets
    """What the learner takes."""
    outcome: Outcome
    single_label: bool
    """Whether every item has exactly one label."""
    device: torch.device
    out_of_fold: OutOfFold | None = None
    """What folds of the training items say of them, where small models were fitted to all."""
    annotated_only: tuple[int, ...] = ()
    """Labels of which only positives are known: their unknown cells were taken as absent."""


def finish(
    learned: Learned,
    given: Datasets,
    folder: RunFolder,
    config: Config,
    console: Console,
    draws: bool,
) -> Trained:
    """Calibrate on validation items, measure, write everything to the run folder, `run.json` last.

    Args:
        learned: what training gave.
        given: the items as they were given, of which the learner may take features.
        folder: of the run.
        config: its settings.
        console: where a word is said.
        draws: whether `report.html` is written.
    """
    outcome, device = learned.outcome, learned.device
    labels: Labels = learned.datasets.train.labels
    outputs = {
        name: outputs_of(learned.learner, getattr(learned.datasets, name), config, device)
        for name in ("validation", "test")
    }
    parts = {name: data for name in ("train", *outputs) if (data := getattr(given, name)) is not None}
    folds = learned.out_of_fold
    if folds is not None and outputs["validation"] is None:
        outputs["validation"], parts["validation"] = (folds.logits, folds.targets), given.train
    lost = {name: _skipped(data) for name, data in parts.items()}
    grouped = folds.folds if folds is not None and labels.item_groups is not None else None
    reading = reading_of(config, learned.objective, labels, outputs["validation"], grouped)
    only, per_item = learned.annotated_only, config.evaluate.positives_per_item
    if only and per_item and reading.has_probability:
        reading = reading.with_annotated(annotated_share(labels, only, per_item))
    counts, n_known = labels.counts.astype(np.float64), labels.n_known.astype(np.float64)
    text = (folder / "config.toml").read_text(encoding="utf-8")
    single = learned.single_label
    trained = Trained(learned.model, reading, labels.names, counts, n_known, single, text, folder.path)
    judged = {
        name: judge(trained, said, config.evaluate, out_of_fold=name == "validation").without(parts[name], lost[name])
        for name, said in outputs.items()
        if said is not None
    }
    if group.is_first():
        metrics = {name: report(trained, found, config.evaluate) for name, found in judged.items()}
        regression = _regression(learned, config)
        for name, content in metrics.items():
            others = None if regression is None else regression(name)
            content["baselines"] = _beside(judged[name], labels, others)
            if only:
                content["notes"].append(
                    scaled_sentence(only, per_item) if per_item else annotated_sentence(labels.names, only)
                )
        folder.write_model(learned.model.cpu(), labels.names, counts, n_known, single)
        folder.write_reading(reading)
        if folds is not None:
            folder.write_folds(folds.logits.numpy(), folds.targets.numpy(), folds.folds)
        folder.write_metrics(metrics)
        shown = next((name for name in ("test", "validation") if name in judged), None)
        if shown is not None and draws:
            settings, found = config.evaluate, judged[shown]
            if not write_report(folder, trained, found, metrics[shown], settings, shown):
                say(console, "No report.html: it needs matplotlib, pip install 'steelyard[report]'.")
        if shown is not None and reading.has_probability and find_spec("duckdb") is None:
            say(console, "No index to search: it needs DuckDB, pip install 'steelyard[search]'.")
        elif shown is not None and reading.has_probability:
            _index(trained, parts[shown], judged[shown], lost[shown], folder / INDEX)
        if told := _told(parts, lost):
            say(console, f"Beware: {plain(told)}.", "yellow")
        folder.finish(
            {
                "versions": versions(device),
                "seconds": round(outcome.seconds, 3),
                "epochs": len(outcome.history),
                "kept_epoch": outcome.kept_epoch,
                "stopped_early": outcome.stopped_early,
                "converged": outcome.converged,
                "unreadable": {name: len(at) for name, at in lost.items()},
            }
        )
        shutil.rmtree(folder / "checkpoint", ignore_errors=True)  # all of it that is needed has a file of its own
    group.barrier()
    return trained


def _regression(learned: Learned, config: Config) -> Callable[[str], Tensor] | None:
    """Return what gives the log-odds of logistic regression on some items; None where the inputs are not features."""
    train = learned.datasets.train
    given = learned.learner.input
    if given.kind != "features" or not is_array(train) or not is_small(train, given):
        return None
    fitted = baseline(assuming_negative(train)[0], learned.device, config.train.seed)

    def log_odds(name: str) -> Tensor:
        items = getattr(learned.datasets, name)
        return fitted.out_of_fold if items is None else fitted.model.logits(features_of(items))

    return log_odds


def _beside(judged: Judged, labels: Labels, regression: Tensor | None) -> dict[str, Any] | None:
    """Return the run's scores beside those of baselines; None where it has no probabilities."""
    if not judged.reading.has_probability:
        return None
    return beside_baselines(torch.logit(judged.probabilities.double()), judged.targets, labels, regression)


def _skipped(data: Labelled) -> NDArray[np.int64]:
    """Return the positions of the images that any process skipped; every process must call it."""
    return np.unique(torch.cat(group.gathered(torch.from_numpy(skipped_at(data)))).numpy())


def _told(parts: Mapping[str, Labelled], lost: Mapping[str, NDArray[np.int64]]) -> str:
    """Return a sentence about all images that were skipped, "" where none was."""
    first = next((name for name, at in lost.items() if len(at)), "")
    return skipped_sentence(parts[first], lost[first], sum(map(len, lost.values()))) if first else ""


def _index(trained: Trained, data: Labelled, judged: Judged, lost: NDArray[np.int64], folder: Path) -> None:
    """Keep the items for search, but for images that could not be read."""
    kept = np.setdiff1d(np.arange(len(data)), lost)
    paths = paths_of(data)
    index_of(
        trained,
        list(data.labels.ids.take(kept)),
        judged.probabilities.numpy()[kept],
        None if paths is None else [paths[i] for i in kept.tolist()],
        folder,
    ).close()


def versions(device: torch.device) -> dict[str, str]:
    """Return what a run was made with."""
    return {
        "steelyard": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
    }


def reading_of(
    config: Config,
    objective: Objective,
    labels: Labels,
    validation: tuple[Tensor, Tensor] | None,
    folds: NDArray[np.int64] | None = None,
) -> Reading:
    """Return how a trained objective's logits are read, fitted to those of validation items where there are any."""
    known = known_labels(config.objective, labels)
    class_aware = config.train.sampler.kind == "class_aware"
    in_twos = config.train.augment.overlay == 1
    reading = Reading.of_objective(objective, config.objective.loss, labels.counts, known, class_aware and not in_twos)
    nothing = (torch.zeros(0, labels.n_labels), torch.zeros(0, labels.n_labels, dtype=torch.int8))
    reading = calibrated(reading, *(validation or nothing), config.evaluate, labels.names, folds)
    if not in_twos or reading.fitted_prior is not None:
        return reading
    drawn = labels.resampled_prior() if class_aware else labels.prior
    return replace(reading, fitted_prior=1 - (1 - drawn) ** 2)  # what is trained on are items laid over each other


def outputs_of(learner: Model, data: Any, config: Config, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Return the logits and targets of some items, None where there are none; every process must call it."""
    if data is None:
        return None
    workers, dtype = n_workers(config.train.workers, data), pick_precision(config.train.precision, device)
    return all_outputs(learner.to(device), data, config.evaluate.batch_size, device, workers, dtype)
