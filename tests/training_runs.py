"""Small trainings by every method, for tests that compare one way of running them with another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from steelyard.balance import Deferred, LabelPair, PartialLabelMasking, PseudoLabels, Rebalanced
from steelyard.data.dataset import ArrayDataset
from steelyard.labels import Labels
from steelyard.losses import BCE, SPA, Annotation, DistributionBalanced
from steelyard.losses.unknown import Pseudo
from steelyard.objective import Objective, Role
from steelyard.training.loop import Outcome, train
from steelyard.training.progress import Watch
from steelyard.training.settings import OptimizerSettings, SamplerSettings, ScheduleSettings, TrainSettings

N, L, F = 203, 5, 8
METHODS = ("bce", "plm", "plm negative", "lpr", "annotation", "annotation link", "pseudo", "role", "db", "drw")
PARTIAL = ("plm negative", "annotation", "annotation link", "pseudo", "role")


def data_of(method: str) -> ArrayDataset:
    rng = np.random.default_rng(0)
    values = (rng.random((N, L)) < [0.5, 0.3, 0.2, 0.1, 0.1]).astype(np.int8)
    hidden = rng.random((N, L)) < 0.4
    inputs = (rng.normal(size=(N, F)) + values @ rng.normal(size=(L, F))).astype(np.float32)
    if method in PARTIAL:
        values[hidden] = -1
    return ArrayDataset(inputs, Labels(values))


def objective_of(method: str, labels: Labels, folder: Path) -> Objective:
    values = torch.from_numpy(labels.values)
    counts, known = (values == 1).sum(0), (values >= 0).sum(0)

    def store(feedback: Any = "raw") -> PseudoLabels:
        return PseudoLabels(folder / "pseudo-labels", N, L, feedback)

    if method.startswith("plm"):
        masking = PartialLabelMasking(counts, known, rate=0.5, seed=3)
        return Objective(BCE(), unknown="negative" if "negative" in method else "ignore", masking=masking)
    if method == "lpr":
        return Objective(SPA(), regularizers=[LabelPair()])
    if method.startswith("annotation"):
        rule = Annotation(store("link" if "link" in method else "raw"), q=(0.3, 0.6))
        return Objective(BCE(reduction="item"), rule)
    if method == "pseudo":
        return Objective(BCE(), Pseudo(store()))
    if method == "role":
        return Objective(BCE(), Role(values, 1.2))
    if method == "db":
        return Objective(DistributionBalanced(counts, N))
    if method == "drw":
        return Objective(BCE(), weighting=Deferred(Rebalanced(counts), 2))
    return Objective(BCE())


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(F, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, L))


def run(
    method: str,
    folder: Path,
    model: nn.Module | None = None,
    data: ArrayDataset | None = None,
    watch: Watch | None = None,
    kind: Any = "sgd",
    lr: float = 0.05,
    clip_norm: float = 0.0,
    sampler: SamplerSettings | None = None,
    **train_settings: Any,
) -> tuple[Outcome, Objective]:
    data = data or data_of(method)
    objective = objective_of(method, data.labels, folder)
    given = {"epochs": 3, "batch_size": 32, "seed": 5, "precision": "float32", "keep": "last", **train_settings}
    outcome = train(
        model or network(),
        objective,
        data,
        OptimizerSettings(kind, lr, weight_decay=1e-3, clip_norm=clip_norm),
        ScheduleSettings("cosine", warmup_epochs=1),
        TrainSettings(sampler=sampler or SamplerSettings(), **given),
        folder,
        watch=watch,
    )
    return outcome, objective


def assert_same(a: tuple[Outcome, Objective], b: tuple[Outcome, Objective], rtol: float, atol: float) -> None:
    """Weights, what the objective learned, and the losses of the history."""
    torch.testing.assert_close(a[0].weights, b[0].weights, rtol=rtol, atol=atol)
    first, second = ({k: v.cpu() for k, v in run[1].state_dict().items()} for run in (a, b))
    torch.testing.assert_close(first, second, rtol=rtol, atol=atol)
    losses = [[record["loss"] for record in run[0].history] for run in (a, b)]
    np.testing.assert_allclose(*losses, rtol=rtol, atol=atol)


class Killed(Exception):
    """Stands for a kill: nothing is written on the way out."""


class KillAt(Watch):
    """Kills training after a step."""

    def __init__(self, epoch: int, step: int) -> None:
        self.spot = (epoch, step)

    def step(self, epoch: int, step: int, steps: int) -> None:
        """Raise at the spot."""
        if (epoch, step) == self.spot:
            raise Killed
