"""Rules for unknown labels beside each other, where only positives are known, under one linear layer.

    python bench/partial_rules.py --data DATA [--seeds 3] [--out bench/figures/partial_rules.json]

DATA holds `mulan/` as for `bench/defaults.py`, whose settings these are: ppl, 30 % of the positives known; spl, one
positive per item known. Features are standardised; AdamW for 40 epochs of batches of 128, rate .01 falling to 0 by a
cosine, decay .001, for every rule the same and none chosen on anything. Test mAP in per cent, all labels known there,
mean over seeds. Minutes on one core. `bench/rules_on_coco.py` compares them on photographs, each with its settings
chosen.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import steelyard as sy
from defaults import load, masked
from steelyard.config.build import make_objective
from steelyard.config.settings import load_config
from steelyard.objective import prior_logits
from steelyard.training.optimizer import make_optimizer, rate, set_rate
from steelyard.training.settings import OptimizerSettings, ScheduleSettings

SETS = ("emotions", "scene", "yeast")
SETTINGS = ("ppl", "spl")
RULES = ("an", "wan", "epr", "role", "ll-r", "ll-ct", "ll-cp", "splc", "selective", "em", "em-apl", "gr", "hill+an")
NEED_POSITIVES = ("epr", "role")
"""Rules that are given how many labels an item has on average."""


@dataclass(frozen=True)
class Steps:
    """How a layer is trained."""

    epochs: int = 40
    batch: int = 128
    lr: float = 0.01
    decay: float = 0.001


def trained(
    x: Tensor, labels: sy.Labels, recipe: str | None, given: list[str], steps: Steps, seed: int
) -> tuple[nn.Linear, bool]:
    """Return a linear layer trained on the device of `x` by a recipe (None: unknown labels are left out).

    The second value tells whether its outputs are still finite.
    """
    settings = OptimizerSettings(lr=steps.lr, weight_decay=steps.decay, decay_all=False)
    schedule = ScheduleSettings(kind="cosine", warmup_epochs=0)
    generator = torch.Generator().manual_seed(seed)
    with TemporaryDirectory() as folder:
        objective = make_objective(load_config(recipe=recipe, sets=given).objective, labels, Path(folder), seed)
        layer = nn.Linear(x.shape[1], labels.n_labels)
        nn.init.zeros_(layer.weight)
        start = prior_logits(objective, labels, n_epochs=steps.epochs, batch_size=steps.batch)
        layer.bias.data.copy_(start.clamp(-6, 6))
        layer, objective = layer.to(x.device), objective.to(x.device)
        targets = torch.from_numpy(labels.values).to(x.device)
        store = objective.resolver.stored()
        if store is not None:
            store.hold_on(x.device)
        optimizer = make_optimizer(settings, layer, objective)
        for epoch in range(1, steps.epochs + 1):
            objective.start_epoch(epoch, steps.epochs)
            set_rate(optimizer, steps.lr * rate(schedule, epoch - 1, steps.epochs))
            for index in torch.randperm(len(x), generator=generator).to(x.device).split(steps.batch):
                optimizer.zero_grad()
                objective(layer(x[index]), targets[index], index).total.backward()
                optimizer.step()
        if store is not None:
            store.let_go()
    return layer, bool(torch.isfinite(layer.weight).all() and torch.isfinite(layer.bias).all())


def measured(name: str, setting: str, seed: int, data: Path) -> dict[str, float]:
    """Return the test mAP of every rule in one cell."""
    x, y, x_test, y_test = load(name, data)
    positives = float(y.clip(0).sum(1).mean())
    x, y = masked(x, y, setting, seed)
    mean, spread = x.mean(0), x.std(0) + 1e-6
    train, test = (torch.from_numpy(((part - mean) / spread).astype(np.float32)) for part in (x, x_test))
    scores = {}
    for rule in RULES:
        given = [f"objective.unknown.expected_positives={positives}"] if rule in NEED_POSITIVES else []
        layer, _ = trained(train, sy.Labels(y), rule, given, Steps(), seed)
        with torch.no_grad():
            scores[rule] = 100 * sy.metrics.mean_average_precision(layer(test).numpy(), y_test)
    return scores


def main() -> None:
    """Measure, print a table and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    cells: dict[str, Any] = {}
    for name in SETS:
        for setting in SETTINGS:
            runs = [measured(name, setting, seed, asked.data) for seed in range(asked.seeds)]
            cells[f"{name} {setting}"] = {rule: round(float(np.mean([r[rule] for r in runs])), 2) for rule in RULES}
            print(f"{name} {setting}", cells[f"{name} {setting}"], flush=True)
    mean = {rule: round(float(np.mean([cell[rule] for cell in cells.values()])), 2) for rule in RULES}
    print("mean", dict(sorted(mean.items(), key=lambda pair: -pair[1])))
    if asked.out is not None:
        asked.out.write_text(json.dumps({"seeds": asked.seeds, "cells": cells, "mean": mean}, indent=1) + "\n")


if __name__ == "__main__":
    main()
