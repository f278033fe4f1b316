"""The study of `next`: mAP on test items against annotated cells, beside uncertainty and random.

    nice python bench/next.py --data DATA [--sets scene] [--seeds 0 1 2 3 4]     # about 20 minutes

The rules are in docs/annotation/README.md. Results are added to docs/annotation/next.json, one per set, method and
seed; those that are there are not measured again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import steelyard as sy
from annotation_sets import SETS, load
from steelyard._source import commit
from steelyard.annotation import next_to_annotate
from steelyard.labels import UNKNOWN
from steelyard.labels.targets import as_targets
from steelyard.losses import BCE
from steelyard.losses.loss import known_cells
from steelyard.metrics import mean_average_precision
from steelyard.training.race.candidates import FINE, Linear
from steelyard.training.race.linear import LinearFit, fit_linear
from steelyard.training.small_models import standardised_view

OUT = Path(__file__).resolve().parent.parent / "docs" / "annotation" / "next.json"
METHODS = {"next": "gain", "uncertainty": "uncertainty", "random": "random"}
START, BATCH, BATCHES = 0.1, 0.05, 8

Array = np.ndarray[Any, Any]


class Course:
    """One set with the cells that are known at the start, the same for all methods."""

    def __init__(self, name: str, data: Path, seed: int) -> None:
        self.x, self.y, x_test, self.y_test = load(name, data)
        self.seed, self.there = seed, self.y != UNKNOWN
        self.start = (np.random.default_rng(seed).random(self.y.shape) < START) & self.there
        first = sy.data.ArrayDataset(self.x, sy.Labels(self.targets(self.start)))
        view = standardised_view(first, torch.device("cpu"), seed)
        self.c = Linear.of(view, BCE()).path(view.items.screening).strength * view.unit
        rotation = view.rotation
        self.inputs = rotation.x
        self.tests = (view.transform(torch.from_numpy(x_test)) - rotation.centre) @ rotation.axes

    def targets(self, known: Array) -> Array:
        """Return the labels as they are known."""
        return np.where(known, self.y, UNKNOWN).astype(np.int8)

    def fit(self, known: Array, start: LinearFit | None) -> LinearFit:
        """Fit logistic regression to the known cells."""
        targets = torch.from_numpy(self.targets(known))
        cells = known_cells(as_targets(targets, torch.empty(targets.shape)), torch.float32)
        return fit_linear(self.inputs, cells, BCE(), self.c, start, FINE)

    def run(self, method: str, spread: bool) -> list[float]:
        """Return the mAP on the test items at the start and after each batch."""
        known, scores, fit = self.start.copy(), [], None
        batch = int(BATCH * self.there.sum())
        for turn in range(BATCHES + 1):
            fit = self.fit(known, fit)
            scores.append(mean_average_precision(fit.logits(self.tests).numpy(), self.y_test))
            if turn < BATCHES:
                eta = torch.sigmoid(fit.logits(self.inputs)).double().numpy()
                known |= self.chosen(known, eta, batch, METHODS[method], turn, spread)
        return scores

    def chosen(self, known: Array, eta: Array, batch: int, by: Any, turn: int, spread: bool) -> Array:
        """Return the cells of the next batch; those that are known to nobody cannot be asked for."""
        targets = np.where(self.there, self.targets(known), 0)
        near = self.x if spread else None
        cells = next_to_annotate(targets, eta, batch, by=by, embeddings=near, seed=1000 * self.seed + turn)
        out = np.zeros(known.shape, bool)
        out[cells.items, cells.labels] = True
        return out


def summary(entries: dict[str, Any]) -> dict[str, Any]:
    """Return areas by set and method, differences to random with their errors, and what is held to."""
    rows: dict[str, Any] = {}
    for name in SETS:
        by_seed = {m: {k.split()[2]: v for k, v in entries.items() if k.startswith(f"{name} {m} ")} for m in METHODS}
        seeds = sorted(set.intersection(*(set(areas) for areas in by_seed.values())))
        if len(seeds) < 2:
            continue
        areas = {m: np.array([area(curves[s]) for s in seeds]) for m, curves in by_seed.items()}
        row: dict[str, Any] = {"seeds": len(seeds)}
        for m in METHODS:
            gain = areas[m] - areas["random"]
            error = float(gain.std(ddof=1) / len(seeds) ** 0.5)
            curve = np.mean([by_seed[m][s] for s in seeds], axis=0).tolist()
            row[m] = {"area": float(areas[m].mean()), "over_random": float(gain.mean()), "error": error, "curve": curve}
        rows[name] = row
    gains = [(row["next"]["over_random"], row["next"]["error"]) for row in rows.values()]
    bars = {
        "sets_above_random": sum(g >= 2 * e for g, e in gains),
        "sets_below_random": sum(g < -2 * e for g, e in gains),
    }
    return {"rows": rows, "bars": bars}


def area(scores: list[float]) -> float:
    """Return the mean of a curve by the trapezoidal rule, in per cent."""
    return 100 * float(np.trapezoid(scores)) / (len(scores) - 1)


def main() -> None:
    """Measure, and add to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", default=SETS)
    parser.add_argument("--seeds", nargs="*", type=int, default=(0, 1, 2, 3, 4))
    parser.add_argument("--spread", action="store_true", help="spread cells over the features (not in the study)")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    document: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    entries = document.setdefault("entries", {})
    for name in args.sets:
        for seed in args.seeds:
            missing = [m for m in METHODS if f"{name} {m} {seed}" not in entries]
            course = Course(name, args.data, seed) if missing else None
            for method in missing:
                assert course is not None
                entries[f"{name} {method} {seed}"] = course.run(method, args.spread)
                print(name, method, seed, round(area(entries[f"{name} {method} {seed}"]), 2), flush=True)
                document |= summary(entries) | {"commit": commit()}
                args.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
