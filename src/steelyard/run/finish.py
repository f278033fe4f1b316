"""After training: probabilities calibrated, thresholds chosen, metrics measured, and all of it written down."""

from __future__ import annotations

import platform
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from steelyard import __version__
from steelyard.labels import Labels
from steelyard.models import Model
from steelyard.objective import Objective
from steelyard.report.canvas import has_matplotlib
from steelyard.run.config import Config
from steelyard.run.datasets import Datasets
from steelyard.run.evaluation import judge, report
from steelyard.run.folder import RunFolder, Trained
from steelyard.run.indexing import INDEX, index_of
from steelyard.run.objectives import known_labels
from steelyard.run.reading import Reading
from steelyard.run.recalibration import calibrated
from steelyard.run.runpage import evaluated_of, write_run_page
from steelyard.training import group
from steelyard.training.batches import n_workers
from steelyard.training.loop import Outcome
from steelyard.training.outputs import all_outputs
from steelyard.training.step import pick_precision


def finish(
    folder: RunFolder,
    config: Config,
    model: Model,
    learner: Model,
    objective: Objective,
    datasets: Datasets,
    paths: Mapping[str, list[str] | None],
    outcome: Outcome,
    single_label: bool,
    device: torch.device,
    console: Console,
    draws: bool,
) -> Trained:
    """Calibrate on validation items, measure, write everything to the run folder, `run.json` last.

    Args:
        folder: of the run.
        config: its settings.
        model: what is kept; `learner`, what was trained: the same, or its head over features.
        objective: as training left it.
        datasets: what the learner takes.
        paths: the image files of validation and test items, where they have any.
        outcome: of training.
        single_label: whether every item has exactly one label.
        device: where the network runs.
        console: where a word is said.
        draws: whether `report.html` is written.
    """
    labels: Labels = datasets.train.labels
    outputs = {name: outputs_of(learner, getattr(datasets, name), config, device) for name in ("validation", "test")}
    reading = reading_of(config, objective, labels, outputs["validation"])
    counts, n_known = labels.counts.astype(np.float64), labels.n_known.astype(np.float64)
    text = (folder / "config.toml").read_text(encoding="utf-8")
    trained = Trained(model, reading, labels.names, counts, n_known, single_label, text, folder.path)
    judged = {
        name: judge(trained, given, config.evaluate, out_of_fold=name == "validation")
        for name, given in outputs.items()
        if given is not None
    }
    if group.is_first():
        metrics = {name: report(trained, found, config.evaluate) for name, found in judged.items()}
        folder.write_model(model.cpu(), labels.names, counts, n_known, single_label)
        folder.write_reading(reading)
        folder.write_metrics(metrics)
        shown = next((name for name in ("test", "validation") if name in judged), None)
        if shown is not None and draws and has_matplotlib():
            write_run_page(
                folder / "report.html",
                folder.path.name or "run",
                trained.config,
                metrics[shown],
                outcome.history,
                evaluated_of(trained, judged[shown], config.evaluate),
                _again(folder, config),
                shown,
            )
        elif shown is not None and draws:
            console.print("No report.html: it needs matplotlib, pip install 'steelyard[report]'.", markup=False)
        if shown is not None and reading.has_probability:
            shutil.rmtree(folder / INDEX, ignore_errors=True)  # a killed one left it: the parts of a new one count on
            ids = getattr(datasets, shown).labels.ids
            index_of(trained, list(ids), judged[shown].probabilities.numpy(), paths[shown], folder / INDEX).close()
        folder.finish(
            {
                "versions": versions(device),
                "seconds": round(outcome.seconds, 3),
                "epochs": len(outcome.history),
                "kept_epoch": outcome.kept_epoch,
                "stopped_early": outcome.stopped_early,
            }
        )
        shutil.rmtree(folder / "checkpoint", ignore_errors=True)  # all of it that is needed has a file of its own
    group.barrier()
    return trained


def _again(folder: RunFolder, config: Config) -> str:
    """What repeats the run."""
    file = folder / "config.toml"
    if config.data.path:
        return shlex.join(["steelyard", "train", str(file), "--out", f"{folder.path}-again"])
    return f"sy.fit(DATA, None, settings=tomllib.loads(Path({str(file)!r}).read_text()))  # in Python, with its data"


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
    config: Config, objective: Objective, labels: Labels, validation: tuple[Tensor, Tensor] | None
) -> Reading:
    """Return how a trained objective's logits are read, fitted to those of validation items where there are any."""
    known = known_labels(config.objective, labels)
    class_aware = config.train.sampler.kind == "class_aware"
    in_twos = config.train.augment.overlay == 1
    reading = Reading.of_objective(objective, config.objective.loss, labels.counts, known, class_aware and not in_twos)
    nothing = (torch.zeros(0, labels.n_labels), torch.zeros(0, labels.n_labels, dtype=torch.int8))
    reading = calibrated(reading, *(validation or nothing), config.evaluate, labels.names)
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
