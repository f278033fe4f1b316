"""After training by blocks: calibration by bands, measures of the likeliest labels, and the files of the run."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import torch

from steelyard.calibrate.probability import ProbabilityModel
from steelyard.config.build import known_labels
from steelyard.folder.run_folder import Trained
from steelyard.metrics.top import TopEvaluator
from steelyard.models import Model
from steelyard.models.block import BlockHead, SparseTargets, top_labels
from steelyard.predict.blocks import by_blocks
from steelyard.run.blocks.probability_model import band_report, calibrated_by_bands, cells_of
from steelyard.run.blocks.training import features_of
from steelyard.run.finish import versions
from steelyard.run.learn import TrainingResult
from steelyard.training import group

_ITEMS = 1024


def finish_blocks(result: TrainingResult) -> Trained:
    """Calibrate on validation items, measure, and write everything to the run folder, `run.json` last."""
    config, folder, model = result.config, result.folder, result.model
    labels, seed, device = result.datasets.train.labels, config.train.seed, result.device
    objective = result.objective.cpu()
    probability_model = ProbabilityModel.of_objective(
        objective, config.objective.loss, labels.counts, known_labels(config.objective, labels)
    )
    held, test = result.datasets.validation, result.datasets.test
    if held is not None:
        probability_model = calibrated_by_bands(model, held, probability_model, seed, device)
    parts = {name: data for name, data in (("validation", held), ("test", test)) if data is not None}
    metrics = {
        name: measured(model, data, probability_model, labels.n_items, seed + 1, device) for name, data in parts.items()
    }
    counts, n_known = labels.counts.astype(np.float64), labels.n_known.astype(np.float64)
    text = (folder / "config.toml").read_text(encoding="utf-8")
    trained = Trained(
        model.cpu(), probability_model, labels.names, counts, n_known, result.single_label, text, folder.path
    )
    if group.is_first():
        _write(result, trained, metrics)
    group.barrier()
    return trained


def _write(result: TrainingResult, trained: Trained, metrics: dict[str, Any]) -> None:
    """Write the files of a run, `run.json` last."""
    folder, outcome = result.folder, result.outcome
    folder.write_trained(trained)
    folder.write_metrics(metrics)
    epochs = len(outcome.history)
    facts = {"versions": versions(result.device), "seconds": round(outcome.seconds, 3), "epochs": epochs}
    folder.finish({**facts, "kept_epoch": epochs, "stopped_early": False, "converged": None, "unreadable": {}})
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)


def measured(
    model: Model, data: Any, probability_model: ProbabilityModel, n_training: int, seed: int, device: torch.device
) -> dict[str, Any]:
    """Return P@k, nDCG@k, recall@k and PSP@k for k = 1, 3 and 5, and calibration by frequency band, of some items."""
    head, labels = model.head, data.labels
    assert isinstance(head, BlockHead)
    evaluator, read = TopEvaluator(probability_model.counts, n_training), by_blocks(probability_model)
    for start in range(0, labels.n_items, _ITEMS):
        index = np.arange(start, min(start + _ITEMS, labels.n_items))
        x = model.features(features_of(data, index).to(device))
        targets = SparseTargets.from_labels(labels, index)
        present = targets.values >= 0.5
        first = top_labels(head, x, 5, read).labels.cpu()
        evaluator.update(first, targets.rows[present], targets.labels[present])
    cells = cells_of(model, data, probability_model, seed, device)
    return {"labels": labels.n_labels, "top": evaluator.compute(), "bands": band_report(cells, probability_model)}
