"""Finish a run after training: calibrate, choose thresholds, measure, and write the run folder."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from steelyard import __version__
from steelyard.calibrate.probability import ProbabilityModel
from steelyard.config.build import known_labels
from steelyard.config.sections import EvaluateSettings
from steelyard.config.settings import Config
from steelyard.data.subset import Labelled, skipped_at, skipped_sentence
from steelyard.folder.run_folder import Trained
from steelyard.labels import Labels
from steelyard.metrics import measures
from steelyard.models import Model
from steelyard.objective import Objective
from steelyard.predict.embedding import embeddings_of
from steelyard.report.terminal import plain, say
from steelyard.run.calibrate import calibrated
from steelyard.run.datasets import paths_of
from steelyard.run.evaluation import Evaluation, beside_baselines, grouped_folds, judge, report
from steelyard.run.index import index_of
from steelyard.run.learn import TrainingResult, TrainRequest
from steelyard.run.run_report import write_card, write_report
from steelyard.run.search import INDEX
from steelyard.training import group, small_models
from steelyard.training.batches import all_outputs, drawn_odds, is_array, n_workers, ordered
from steelyard.training.step import pick_precision

_RESAMPLES, _RESAMPLED_CELLS = 200, 50_000
"""Resamples for the intervals of the card, and the most labels (items × labels) for which they are computed."""


def finish(result: TrainingResult, request: TrainRequest, console: Console, draws: bool) -> Trained:
    """Calibrate on validation items, measure, write everything to the run folder, `run.json` last.

    Args:
        result: result of training.
        request: the request; its items are as given, while the learner may use features of them.
        console: where messages are printed.
        draws: whether `report.html` and the index are written.
    """
    config, folder, given = result.config, result.folder, request.datasets
    labels: Labels = result.datasets.train.labels
    outputs = {
        name: outputs_of(result.learner, getattr(result.datasets, name), config, result.device)
        for name in ("validation", "test")
    }
    parts = {name: data for name in ("train", *outputs) if (data := getattr(given, name)) is not None}
    folds = result.out_of_fold
    refitted = folds is not None and outputs["validation"] is None
    if folds is not None and refitted:
        outputs["validation"], parts["validation"] = (folds.logits, folds.targets), given.train
    lost = {name: _skipped(data) for name, data in parts.items()}
    held = outputs["validation"]
    grouped = None if held is None else grouped_folds(parts["validation"], held[1])
    if folds is not None and refitted and grouped is not None:
        grouped = folds.folds
    probability_model = probability_model_of(config, result.objective, labels, held, grouped, refitted)
    if (only := result.annotated_only) and probability_model.has_probability:
        share = small_models.annotated_share(labels, only, config.evaluate.positives_per_item)
        probability_model = probability_model.with_annotated(share)
    counts, n_known = labels.counts.astype(np.float64), labels.n_known.astype(np.float64)
    text = (folder / "config.toml").read_text(encoding="utf-8")
    single, encoder = result.single_label, given.encoder
    trained = Trained(
        result.model, probability_model, labels.names, counts, n_known, single, text, folder.path, encoder
    )
    own = {"validation": grouped}
    judged = {
        name: judge(trained, output, config.evaluate, name == "validation", folds=own.get(name)).without(
            parts[name], lost[name]
        )
        for name, output in outputs.items()
        if output is not None
    }
    if refitted:
        judged["validation"] = replace(judged["validation"], by_folds=True)
    if group.is_first():
        _write(result, request, trained, judged, parts, lost, console, draws)
    group.barrier()
    return trained


def _write(
    result: TrainingResult,
    request: TrainRequest,
    trained: Trained,
    judged: dict[str, Evaluation],
    parts: dict[str, Labelled],
    lost: dict[str, NDArray[np.int64]],
    console: Console,
    draws: bool,
) -> None:
    """Write the files of a run, `run.json` last."""
    folder, settings, folds = result.folder, result.config.evaluate, result.out_of_fold
    metrics = _metrics(result, trained, judged)
    folder.write_trained(trained)
    if folds is not None:
        folder.write_folds(
            folds.logits, folds.targets, folds.folds, result.datasets.train.labels.item_groups is not None
        )
    folder.write_metrics(metrics)
    shown = next((name for name in ("test", "validation") if name in judged), None)
    if shown is not None and draws:
        if not write_report(folder, trained, judged[shown], metrics[shown], settings, shown):
            say(console, "No report.html: it needs matplotlib, pip install 'steelyard[report]'.")
        if trained.probability_model.has_probability and find_spec("duckdb") is None:
            say(console, "No index to search: it needs DuckDB, pip install 'steelyard[search]'.")
        elif trained.probability_model.has_probability:
            _index(trained, parts[shown], judged[shown], lost[shown], _embeddings(result, shown))
    own = {name: data for name, data in parts.items() if name == "train" or data is not parts["train"]}
    if first := next((name for name in own if len(lost[name])), None):
        sentence = skipped_sentence(parts[first], lost[first], sum(len(lost[name]) for name in own))
        say(console, f"Beware: {plain(sentence)}.", "yellow")
    outcome, merged = result.outcome, result.datasets.corrections
    facts = {
        "recipe": request.recipe,
        "why": request.why,
        "items": {name: len(data) for name, data in own.items()},
        "labels": _label_facts(result.datasets.train.labels),
        "versions": versions(result.device),
        "seconds": round(outcome.seconds, 3),
        "epochs": len(outcome.history),
        "kept_epoch": outcome.kept_epoch,
        "stopped_early": outcome.stopped_early,
        "converged": outcome.converged,
        "unreadable": {name: len(lost[name]) for name in own},
        **({} if merged is None else {"corrections": dict(merged.by_label)}),
    }
    if draws:
        if shown is not None:
            facts |= _card_intervals(trained, judged[shown], settings, shown)
        write_card(folder, facts)
    folder.finish(facts)
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)  # the run folder has all that is needed from it


def _label_facts(labels: Labels) -> dict[str, Any]:
    """Return the numbers of a run's training labels that its card shows."""
    counts, n_items = labels.counts, max(labels.n_items, 1)
    known = float(labels.n_known.sum()) / (n_items * max(labels.n_labels, 1))
    return {
        "number": labels.n_labels,
        "unknown": round(1 - known, 6),
        "least": int(counts.min(initial=labels.n_items)),
        "most": int(counts.max(initial=0)),
    }


def _card_intervals(trained: Trained, judged: Evaluation, settings: EvaluateSettings, part: str) -> dict[str, Any]:
    """Return 95 % intervals of the main scores for the card; none where resampling that many cells takes long."""
    if settings.bootstrap or not 0 < judged.targets.numel() <= _RESAMPLED_CELLS:
        return {}
    intervals = report(trained, judged, replace(settings, bootstrap=_RESAMPLES)).get("intervals") or {}
    kept = {name: intervals[name] for name in ("mAP", "macro", "exact_match", "rarest") if name in intervals}
    if judged.probability_model.has_probability:
        kept["log_loss_per_label"] = measures.log_loss_interval(judged.probabilities, judged.targets, _RESAMPLES)
    return {"card_part": part, "intervals": kept}


def _metrics(result: TrainingResult, trained: Trained, judged: dict[str, Evaluation]) -> dict[str, dict[str, Any]]:
    """Return the metrics of each part, beside those of baselines on the same items."""
    settings, labels = result.config.evaluate, result.datasets.train.labels
    metrics = {name: report(trained, evaluation, settings) for name, evaluation in judged.items()}
    regression = _regression(result)
    for name, content in metrics.items():
        content["baselines"] = beside_baselines(judged[name], labels, None if regression is None else regression(name))
    return metrics


def _regression(result: TrainingResult) -> Callable[[str], Tensor] | None:
    """Return a function from items to log-odds of logistic regression, None where the inputs are not features."""
    train, given = result.datasets.train, result.learner.input
    if given.kind != "features" or not is_array(train) or not small_models.is_small(train, given):
        return None
    known = small_models.assuming_negative(train)[0]
    fitted = small_models.baseline(known, result.device, result.config.train.seed)

    def log_odds(name: str) -> Tensor:
        items = getattr(result.datasets, name)
        return fitted.out_of_fold if items is None else fitted.model.logits(small_models.features_of(items))

    return log_odds


def _skipped(data: Labelled) -> NDArray[np.int64]:
    """Return the positions of images that any process skipped; every process must call it."""
    return np.unique(torch.cat(group.gathered(torch.from_numpy(skipped_at(data)))).numpy())


def _embeddings(result: TrainingResult, name: str) -> NDArray[np.float32] | None:
    """Return embeddings for searching by likeness, where the learner takes features; None for other inputs."""
    data = getattr(result.datasets, name)
    data = result.datasets.train if data is None else data  # scored out of fold
    if result.learner.input.kind != "features" or not len(data):
        return None
    learner = result.learner.cpu().eval()
    return np.concatenate([embeddings_of(learner, batch.inputs) for batch in ordered(data, 4096, 0)])


def _index(
    trained: Trained,
    data: Labelled,
    judged: Evaluation,
    lost: NDArray[np.int64],
    embeddings: NDArray[np.float32] | None,
) -> None:
    """Write the search index of the items, without images that could not be read."""
    assert trained.folder is not None
    kept = np.setdiff1d(np.arange(len(data)), lost)
    paths = paths_of(data)
    files = None if paths is None else [paths[i] for i in kept.tolist()]
    ids = list(data.labels.ids.take(kept))
    numbers = None if embeddings is None else embeddings[kept]
    index_of(trained, ids, judged.probabilities.numpy()[kept], files, trained.folder / INDEX, numbers).close()


def versions(device: torch.device) -> dict[str, str]:
    """Return the versions and the device that a run was trained with."""
    return {
        "steelyard": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
    }


def probability_model_of(
    config: Config,
    objective: Objective,
    labels: Labels,
    validation: tuple[Tensor, Tensor] | None,
    folds: NDArray[np.int64] | None = None,
    refitted: bool = False,
) -> ProbabilityModel:
    """Return the probability model of a trained objective, calibrated on validation items where there are any."""
    known = known_labels(config.objective, labels)
    class_aware = config.train.sampler.kind == "class_aware"
    in_twos = config.train.augment.overlay == 1
    probability_model = ProbabilityModel.of_objective(
        objective,
        config.objective.loss,
        labels.counts,
        known,
        class_aware and not in_twos,
        drawn_odds(config.train.sampler, labels, config.train.seed),
    )
    nothing = (torch.zeros(0, labels.n_labels), torch.zeros(0, labels.n_labels, dtype=torch.int8))
    probability_model = calibrated(
        probability_model, *(validation or nothing), config.evaluate, labels.names, folds, refitted
    )
    if not in_twos or probability_model.fitted_prior is not None:
        return probability_model
    drawn = labels.resampled_prior() if class_aware else labels.prior
    return replace(
        probability_model, fitted_prior=1 - (1 - drawn) ** 2
    )  # training items are two images laid over each other


def outputs_of(learner: Model, data: Any, config: Config, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Return the logits and targets of items, None for no items; every process must call it."""
    if data is None:
        return None
    workers, dtype = n_workers(config.train.workers, data), pick_precision(config.train.precision, device)
    return all_outputs(learner.to(device), data, config.evaluate.batch_size, device, workers, dtype)
