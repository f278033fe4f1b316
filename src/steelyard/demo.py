"""The main job on data that comes with scikit-learn: digits superimposed in pairs, long-tailed, labels missing."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

from steelyard.balance import LabelPair, PartialLabelMasking, PseudoLabels
from steelyard.data.builders import exponential_counts, keep_labels
from steelyard.labels import Labels
from steelyard.losses import BCE, SPA, Annotation, DistributionBalanced
from steelyard.metrics import calibration_error, mean_average_precision, precision_recall_f1
from steelyard.objective import Objective

CANVAS, EPOCHS, BATCH = 12, 16, 128


class Pairs(NamedTuple):
    """Images (N, 1, CANVAS, CANVAS) of two superimposed digits each, and which digits they show."""

    images: Tensor
    labels: Labels


class Score(NamedTuple):
    """A row of the demo's table, in per cent."""

    name: str
    map: float
    tail_map: float
    f1: float
    ace_by_sigmoid: float
    ace: float
    seconds: float


def digit_pairs(n: int, train: bool, rho: float = 20.0, seed: int = 0) -> Pairs:
    """Return `n` superimposed pairs of scikit-learn's digits, digit d drawn ρ^(−d/9) times as often as digit 0."""
    rng = np.random.default_rng([seed, train])
    digits = load_digits()
    side = np.random.default_rng(seed).random(len(digits.target)) < 0.6  # which digits are for training
    images, classes = digits.images[side == train] / 16.0, digits.target[side == train]
    wanted = exponential_counts(1000, 10, rho)[classes] / np.bincount(classes)[classes]
    drawn = rng.choice(len(classes), size=(2, n), p=wanted / wanted.sum())
    canvas = np.zeros((n, CANVAS, CANVAS), np.float32)
    for half in drawn:
        shift = rng.integers(0, CANVAS - 8 + 1, size=(n, 2))
        for i, (item, (top, left)) in enumerate(zip(half, shift, strict=True)):
            spot = canvas[i, top : top + 8, left : left + 8]
            np.maximum(spot, images[item], out=spot)
    values = np.zeros((n, 10), np.int8)
    for half in drawn:
        values[np.arange(n), classes[half]] = 1
    return Pairs(torch.from_numpy(canvas).unsqueeze(1), Labels(values, names=[str(d) for d in range(10)]))


def objectives(labels: Labels, folder: str) -> dict[str, Objective]:
    """Return the objectives that the demo compares, for training labels with holes."""
    n, k = labels.counts, labels.n_known
    store = PseudoLabels(folder, labels.n_items, labels.n_labels, feedback="link")
    return {
        "BCE, holes = absent": Objective(BCE(), unknown="negative"),
        "BCE": Objective(BCE()),
        "PLM": Objective(BCE(), masking=PartialLabelMasking(n, k)),
        "DB-Focal": Objective(DistributionBalanced(n, k, mu=0.3, lam=5.0, gamma=2.0)),
        "SPA + LPR": Objective(SPA(), regularizers=[LabelPair(0.1)]),
        "Partial labels": Objective(BCE(reduction="item"), unknown=Annotation(store)),
    }


def train(objective: Objective, images: Tensor, targets: Tensor, seed: int = 0) -> nn.Module:
    """Return a small network trained on `images` (N, 1, CANVAS, CANVAS) and `targets` (N, L)."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * (CANVAS // 2) ** 2, 128),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(128, targets.shape[1]),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    steps = EPOCHS * -(-len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    objective.train()
    for epoch in range(1, EPOCHS + 1):
        objective.start_epoch(epoch, EPOCHS)
        for index in torch.randperm(len(images)).split(BATCH):
            value = objective(model(images[index]), targets[index], index)
            optimizer.zero_grad()
            value.total.backward()
            optimizer.step()
            schedule.step()
    objective.eval()
    return model.eval()


def score(name: str, objective: Objective, model: nn.Module, test: Pairs, rarest: list[int], seconds: float) -> Score:
    """Return how the model does on complete labels, read by the objective's link and, for comparison, by σ."""
    targets = torch.from_numpy(test.labels.values)
    with torch.no_grad():
        logits = model(test.images)
        eta, naive = objective.probability(logits), torch.sigmoid(logits)
    return Score(
        name,
        100 * mean_average_precision(eta, targets),
        100 * mean_average_precision(eta[:, rarest], targets[:, rarest]),
        100 * precision_recall_f1(eta >= 0.5, targets).macro.f1,
        100 * float(calibration_error(naive, targets).ace),
        100 * float(calibration_error(eta, targets).ace),
        seconds,
    )


def run(report: Callable[[Score], None], n_train: int = 8000, n_test: int = 8000, seed: int = 0) -> list[Score]:
    """Train every objective of the demo and report each as it is done."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the network is so small that more would only wait for each other
    try:
        return _run(report, n_train, n_test, seed)
    finally:
        torch.set_num_threads(threads)


def show(seed: int, as_json: bool) -> None:
    """Run the demo and print what came out, as a table or as JSON."""
    console = Console(stderr=as_json)
    console.print(
        "Pairs of handwritten digits; digit 0 is twenty times as frequent as digit 9,\n"
        "and 40 % of the training labels are removed. Six objectives train the same\n"
        "small network, and are tested on complete labels.\n"
    )
    scores = run(lambda s: console.print(f"  {s.name}: mAP {s.map:.1f} in {s.seconds:.0f} s"), seed=seed)
    if as_json:
        print(json.dumps([score._asdict() for score in scores]))
        return
    table = Table()
    table.add_column("objective")
    for title in ("mAP", "rarest 3", "F1", "ACE by σ", "by link"):
        table.add_column(title, justify="right")
    columns = list(zip(*(score[1:6] for score in scores), strict=True))
    best = [max(c) for c in columns[:3]] + [min(c) for c in columns[3:]]
    for score in scores:
        cells = [f"{v:.1f}{'*' if v == b else ' '}" for v, b in zip(score[1:6], best, strict=True)]
        table.add_row(score.name, *cells)
    console.print(table)
    console.print(
        "Per cent, * the best. mAP: ranking, over all labels and over the 3 rarest; F1 at\n"
        "probability 1/2; ACE: how far probabilities are off, lower is better.\n\n"
        "σ(z) is a probability for plain BCE only. Every objective knows its own link and\n"
        "undoes what it did to balance the labels: objective.probability(logits).\n"
        "Next: the first example of README.md, on your own tensors."
    )


def _run(report: Callable[[Score], None], n_train: int, n_test: int, seed: int) -> list[Score]:
    test = digit_pairs(n_test, train=False, seed=seed)
    complete = digit_pairs(n_train, train=True, seed=seed)
    labels = keep_labels(complete.labels, 0.6, seed=seed)
    targets = torch.from_numpy(labels.values)
    rarest = [int(c) for c in labels.rarest(3)]
    scores = []
    with tempfile.TemporaryDirectory() as folder:
        for name, objective in objectives(labels, folder).items():
            start = time.perf_counter()
            model = train(objective, complete.images, targets, seed)
            scores.append(score(name, objective, model, test, rarest, time.perf_counter() - start))
            report(scores[-1])
    return scores
