"""Whether rules for unknown labels would help the race of `auto`, whose models are fitted to fixed labels.

    python bench/rules_in_race.py --data DATA [--sets emotions scene yeast]

Only positives are known, as in bench/partial_rules.py; seed 0. The model is the race's linear one over a Laplace
kernel, its penalty chosen by folds. Other losses are fitted to the same cells. One round of correction takes the share
of cells that are unknown and whose out-of-fold output is largest, leaves them out ("reject", as LL-R does) or makes
them positive ("correct", as LL-Ct and SPLC do), and fits again. Prints mAP in per cent out of fold, against
annotations, and on test items, all labels known there. A minute on one core.
"""

from __future__ import annotations

import argparse
from copy import copy
from pathlib import Path

import torch
from torch import Tensor

import steelyard as sy
from defaults import load, masked
from steelyard.calibrate.crossfit import folds_of
from steelyard.losses import BCE, SPA, Asymmetric, Hill
from steelyard.losses.loss import Cells
from steelyard.losses.pair import PairLoss
from steelyard.metrics import mean_average_precision
from steelyard.models.race.members import MemberSpec
from steelyard.training.race.candidates import ROUGH, Items, Linear, View, n_folds_for
from steelyard.training.race.specs import LANDMARKS

LOSSES: dict[str, PairLoss] = {"bce": BCE(), "spa": SPA(), "asl": Asymmetric(), "hill": Hill()}
SHARES = (0.01, 0.03, 0.1)


def corrected(view: View, picked: Tensor, mode: str) -> View:
    """Return the same items, the picked cells (N, L) left out or made positive."""
    cells, again = view.items.cells, copy(view)
    a = torch.where(picked & (mode == "correct"), 1.0, cells.a)
    changed = Cells(a, torch.where(picked, 0.0, cells.b))
    again.items = Items(view.items.x, view.items.targets, view.items.folds, changed)
    return again


def measured(name: str, setting: str, data: Path) -> dict[str, tuple[float, float]]:
    """Return mAP out of fold and on test items of every loss and correction."""
    x, y, test_x, truth = load(name, data)
    x, y = masked(x, y, setting, 0)
    unknown = torch.from_numpy(y == sy.UNKNOWN)
    targets = torch.from_numpy(y).clamp_min(0)
    items = Items(torch.from_numpy(x), targets, folds_of(targets, n_folds_for(len(x)), 0))
    view = View(items, MemberSpec("standardise", "laplace", min(len(x), LANDMARKS), 2.0), 0)
    test = view.transform(torch.from_numpy(test_x))

    def scores(model: Linear, odds: Tensor, strength: float) -> tuple[float, float]:
        on_test = model.read(model.refit(strength).logits(test))
        return mean_average_precision(odds, targets), mean_average_precision(on_test, torch.from_numpy(truth))

    found, trials = {}, {}
    for loss, pair in LOSSES.items():
        model = Linear.of(view, pair)
        trials[loss], _ = model.chosen()
        found[loss] = scores(model, trials[loss].log_odds, trials[loss].strength)
    open_odds = torch.where(unknown, trials["bce"].log_odds, -torch.inf)
    order, strength = open_odds.flatten().sort(descending=True).values, trials["bce"].strength
    for share in SHARES:
        picked = open_odds > order[int(share * len(order))]
        for mode in ("reject", "correct"):
            model = Linear.of(corrected(view, picked, mode), BCE())
            odds = model.trial(strength, list(range(items.n_folds)), {}, ROUGH).log_odds
            found[f"{mode} {share:g}"] = scores(model, odds, strength)
    return found


def main() -> None:
    """Print every cell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=["emotions", "scene", "yeast"])
    asked = parser.parse_args()
    for setting in ("ppl", "spl"):
        for name in asked.sets:
            found = measured(name, setting, asked.data)
            figures = (f"{what} {100 * folds:.1f}/{100 * test:.1f}" for what, (folds, test) in found.items())
            print(f"{name} {setting}: {', '.join(figures)}", flush=True)


if __name__ == "__main__":
    main()
