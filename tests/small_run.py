"""A linear model with a reading, as small as a run can be: what the tests of evaluation, prediction and folders use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from steelyard.calibrate.probability import ProbabilityModel
from steelyard.data.dataset import ArrayDataset
from steelyard.folder.run_folder import RunFolder, Trained
from steelyard.labels import Labels
from steelyard.models import Input, ModelSettings, build_model
from steelyard.objective import Objective
from steelyard.objective.parts import Part, completed, make_loss

SLOPES = ((2.0, 0.0, 0.0, 1.0), (0.0, 2.0, 0.0, 1.0), (0.0, 0.0, 2.0, 1.0))
SHIFTS = (0.0, -1.0, -2.0, -3.0)
NAMES = ("cat", "dog", "a, b", "ün\"i'x")


def part(kind: str = "bce", **arguments: Any) -> Part:
    return completed("loss", Part(kind, arguments))


LOSSES = {
    "BCE": part(),
    "BCE, smoothed": part(smoothing=0.1),
    "Focal": part("focal"),
    "ASL": part("asymmetric"),
    "ASL, focus not detached": part("asymmetric", gamma_pos=1.0, detach_focus=False),
    "NT-BCE": part("negative_tolerant"),
    "NT-Focal": part("negative_tolerant", gamma=2.0),
    "R-BCE": part("distribution_balanced", lam=1.0, kappa=0.0),
    "DB": part("distribution_balanced"),
    "DB-Focal": part("distribution_balanced", gamma=2.0),
    "SPA": part("spa"),
    "LDAM": part("ldam"),
    "Two-way": part("two_way"),
}
"""A part for each row of the table of losses, by its name."""


def probability_model_of(loss: Part, counts: Any, n_known: Any, class_aware: bool = False) -> ProbabilityModel:
    objective = Objective(make_loss(loss, counts, n_known))
    return ProbabilityModel.of_objective(objective, loss, counts, n_known, class_aware)


def items(n: int = 200, seed: int = 0, names: tuple[str, ...] = NAMES) -> ArrayDataset:
    """Items with three features whose labels follow a logistic model, a tenth unknown."""
    g = np.random.default_rng(seed)
    x = g.normal(size=(n, 3)).astype(np.float32)
    z = x @ np.array(SLOPES, np.float32) + np.array(SHIFTS)
    y = (g.random(z.shape) < 1 / (1 + np.exp(-z))).astype(np.int8)
    y[g.random(z.shape) < 0.1] = -1
    return ArrayDataset(x, Labels(y[:, : len(names)], names))


def small_run(loss: Part | None = None, single_label: bool = False, seed: int = 0) -> Trained:
    """A model that nobody trained: its weights are near what made the items."""
    data, loss = items(400, seed=7), loss or part()
    labels = data.labels
    torch.manual_seed(seed)
    model = build_model(ModelSettings(backbone="linear"), Input("features", (3,)), labels)
    model.fit_normalisation(data)
    with torch.no_grad():
        for weight in model.head.parameters():
            near = torch.tensor(SLOPES if weight.ndim == 2 else SHIFTS)
            weight.copy_(near.T + 0.3 * torch.randn_like(weight) if weight.ndim == 2 else near)
    probability_model = probability_model_of(loss, labels.counts, labels.n_known)
    counts, known = (x.astype(np.float64) for x in (labels.counts, labels.n_known))
    return Trained(model.eval(), probability_model, NAMES, counts, known, single_label, "[train]\nepochs = 1\n")


def saved_run(folder: Path, trained: Trained) -> RunFolder:
    run = RunFolder(folder)
    run.create(False, trained.config, {"labels": 1})
    run.write_model(trained.model, trained.names, trained.counts, trained.n_known, trained.single_label)
    run.write_probability_model(trained.probability_model)
    run.write_metrics({"validation": {"items": 3}})
    run.finish({"seconds": 1.5})
    return run
