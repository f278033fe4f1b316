"""How many positives should the pooled fit be worth? Chosen on training items alone, by log-loss.

    python examples/choose_prior_positives.py FEATURES.npz     # X_train, Y_train with 1 present, 0 unknown, -1 absent

Over five seeds the training items are split three ways: three fifths train a linear head (BCE), a fifth fits the
calibrator, a fifth judges it. No other item is read. VOC 2012's frozen features serve (1280-d, 5,717 × 20).
"""

from __future__ import annotations

import sys

import numpy as np
import torch

from steelyard.calibrate import Isotonic, Platt, Temperature
from steelyard.data import stratified_split
from steelyard.labels import Labels
from steelyard.losses import BCE
from steelyard.metrics import log_loss

TRIED = (1.0, 5.0, 10.0, 20.0, 50.0, 100.0, 150.0, 250.0, 500.0)


def head(x: torch.Tensor, y: torch.Tensor) -> torch.nn.Module:
    model = torch.nn.Linear(x.shape[1], y.shape[1])
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=60, line_search_fn="strong_wolfe")

    def value() -> torch.Tensor:
        optimizer.zero_grad()
        total = BCE()(model(x), y) + 1e-4 * model.weight.square().sum()
        total.backward()
        return total

    optimizer.step(value)
    return model


def main() -> None:
    with np.load(sys.argv[1]) as file:
        x, raw = file["X_train"].astype(np.float32), file["Y_train"]
    y = np.where(raw == 1, 1, np.where(raw == 0, -1, 0))
    x = (x - x.mean(0)) / x.std(0)
    print(f"{'log-loss at m =':>16s}" + "".join(f"{m:9.0f}" for m in TRIED))
    found: dict[str, list[list[float]]] = {}
    for seed in range(5):
        rest, judge = stratified_split(Labels(y), 0.2, seed=seed)
        fit, held = (rest[part] for part in stratified_split(Labels(y[rest]), 0.25, seed=seed))
        model = head(torch.from_numpy(x[fit]), torch.from_numpy(y[fit]))
        with torch.no_grad():
            logits = {name: model(torch.from_numpy(x[part])).double() for name, part in (("h", held), ("j", judge))}
        for kind in (Temperature, Platt, Isotonic):
            scores = [log_loss(kind(prior_positives=m).fit(logits["h"], y[held])(logits["j"]), y[judge]) for m in TRIED]
            found.setdefault(kind.__name__, []).append(scores)
    for name, scores in found.items():
        print(f"{name:>16s}" + "".join(f"{mean:9.5f}" for mean in np.mean(scores, axis=0)))


if __name__ == "__main__":
    main()
