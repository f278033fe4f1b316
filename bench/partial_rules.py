"""Rules for unknown labels beside each other, where only positives are known, under one linear layer.

    python bench/partial_rules.py --data DATA [--seeds 3] [--out bench/figures/partial_rules.json]

DATA holds `mulan/` as for `bench/defaults.py`, whose settings these are: ppl, 30 % of the positives known; spl, one
positive per item known. Features are standardised; AdamW for 40 epochs of batches of 128, rate .01 falling to 0 by a
cosine, decay .001, for every rule the same and none chosen on anything. Test mAP in per cent, all labels known there,
mean over seeds. Minutes on one core.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import steelyard as sy
from defaults import load, masked
from steelyard.config.build import make_objective
from steelyard.config.settings import load_config
from steelyard.objective import prior_logits

SETS = ("emotions", "scene", "yeast")
SETTINGS = ("ppl", "spl")
RULES = ("an", "wan", "epr", "role", "ll-r", "ll-ct", "ll-cp", "splc", "selective", "em", "em-apl", "gr", "hill+an")
EPOCHS, BATCH, RATE, DECAY = 40, 128, 0.01, 0.001


def trained(x: torch.Tensor, labels: sy.Labels, recipe: str, positives: float, seed: int) -> nn.Linear:
    """Return a linear layer trained by a recipe; `positives` of an item on average are known to rules that ask."""
    given = [f"objective.unknown.expected_positives={positives}"] if recipe in ("epr", "role") else []
    objective = make_objective(load_config(recipe=recipe, sets=given).objective, labels, None, seed)
    generator = torch.Generator().manual_seed(seed)
    layer, targets = nn.Linear(x.shape[1], labels.n_labels), torch.from_numpy(labels.values)
    nn.init.zeros_(layer.weight)
    layer.bias.data.copy_(prior_logits(objective, labels, n_epochs=EPOCHS, batch_size=BATCH).clamp(-6, 6))
    parameters = [*layer.parameters(), *objective.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for epoch in range(1, EPOCHS + 1):
        objective.start_epoch(epoch, EPOCHS)
        for index in torch.randperm(len(x), generator=generator).split(BATCH):
            optimizer.zero_grad()
            objective(layer(x[index]), targets[index], index).total.backward()
            optimizer.step()
        schedule.step()
    return layer


def measured(name: str, setting: str, seed: int, data: Path) -> dict[str, float]:
    """Return the test mAP of every rule in one cell."""
    x, y, x_test, y_test = load(name, data)
    positives = float(y.clip(0).sum(1).mean())
    x, y = masked(x, y, setting, seed)
    mean, spread = x.mean(0), x.std(0) + 1e-6
    train, test = (torch.from_numpy(((part - mean) / spread).astype(np.float32)) for part in (x, x_test))
    found = {}
    for rule in RULES:
        layer = trained(train, sy.Labels(y), rule, positives, seed)
        with torch.no_grad():
            found[rule] = 100 * sy.metrics.mean_average_precision(layer(test).numpy(), y_test)
    return found


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
