"""How long recipe auto and linear models take, on generated data of stated shapes, on two cores.

    taskset -c 0,1 python bench/race_times.py [--only linear race-300 race-31000] [--out FILE]

`linear`: BCE along all labels to convergence, beside scikit-learn's LogisticRegression, one label at a time, with the
same C, on the same threads; both costs are evaluated in float64, so that a faster but worse fit shows. `race-…`: the
whole of `sy.fit` with its default budget. The result is kept in docs/defaults/times.json, which `make bars` reads.
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

import steelyard as sy
from steelyard._source import commit
from steelyard.labels.targets import as_targets
from steelyard.losses.loss import known_cells
from steelyard.training.race.linear import Rotation, fit_linear

OUT = Path(__file__).resolve().parent.parent / "docs" / "defaults" / "times.json"
SHAPES = {"race-300": (300, 1500, 45, True), "race-31000": (31_000, 120, 101, False)}
LINEAR = {"2,000 × 100 × 20": (2000, 100, 20, False), "5,000 × 500 × 50, binary": (5000, 500, 50, True)}


def generated(n: int, width: int, n_labels: int, binary: bool, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return features and labels of a long tail; binary features are sparse, as words are."""
    rng = np.random.default_rng(seed)
    x = (rng.random((n, width)) < 0.04) if binary else rng.normal(size=(n, width))
    x = x.astype(np.float32)
    centred = (x - x.mean(0)) / np.maximum(x.std(0), 1e-6)
    z = centred @ rng.normal(size=(width, n_labels)) / width**0.5 * 2
    z += np.linspace(-1, -6, n_labels) - z.mean(0)
    return x, (rng.random(z.shape) < 1 / (1 + np.exp(-z))).astype(np.int8)


def cost(x: np.ndarray, y: np.ndarray, weight: np.ndarray, bias: np.ndarray, c: float) -> np.ndarray:
    """Return the cost of each label, float64 (L,)."""
    z = x.astype(np.float64) @ weight + bias
    return np.asarray((np.logaddexp(0, z) - y * z).sum(0) + (weight**2).sum(0) / (2 * c))


def linear(n: int, width: int, n_labels: int, binary: bool, repeats: int = 3) -> dict[str, Any]:
    """Return seconds and costs of both solvers, each the best of a few runs that take turns."""
    from sklearn.linear_model import LogisticRegression

    x, y = generated(n, width, n_labels, binary)
    x = ((x - x.mean(0)) / np.maximum(x.std(0), 1e-6)).astype(np.float32)
    keep = (y.sum(0) > 0) & (y.sum(0) < n)
    y, c = y[:, keep], 1.0 / width
    ours, theirs = [], []
    for _ in range(repeats):
        begun = time.perf_counter()
        target = torch.from_numpy(y)
        cells = known_cells(as_targets(target, torch.empty(y.shape)), torch.float32)
        rotation = Rotation.of(torch.from_numpy(x))
        fit = rotation.unrotated(fit_linear(rotation.x, cells, sy.losses.BCE(), c))
        ours.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        peers = [LogisticRegression(C=c, max_iter=1000).fit(x, y[:, k]) for k in range(y.shape[1])]
        theirs.append(time.perf_counter() - begun)
    here = cost(x, y, fit.weight.double().numpy(), fit.bias.double().numpy(), c)
    there = cost(x, y, np.stack([p.coef_[0] for p in peers], 1), np.array([p.intercept_[0] for p in peers]), c)
    return {
        "seconds": min(ours),
        "sklearn_seconds": min(theirs),
        "ratio": min(ours) / min(theirs),
        "cost_over_sklearn": float((here / there).max()),
        "converged": bool(fit.converged.all()),
    }


def race(n: int, width: int, n_labels: int, binary: bool) -> dict[str, Any]:
    """Return the seconds of `sy.fit` as it comes."""
    x, y = generated(n, width, n_labels, binary)
    begun = time.perf_counter()
    run = sy.fit((x, y), settings={"train": {"device": "cpu"}}, verbose=True)
    seconds = time.perf_counter() - begun
    return {"seconds": seconds, "map": run.metrics["validation"]["mAP"]["label"]}


def main() -> None:
    """Measure, and add to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=("linear", *SHAPES))
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    results: dict[str, Any] = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    for name in asked.only:
        if name == "linear":
            rows = {shape: linear(*size) for shape, size in LINEAR.items()}
            result: dict[str, Any] = {"rows": rows, "worst_ratio": max(row["ratio"] for row in rows.values())}
        else:
            result = race(*SHAPES[name])
        results[name] = result | {
            "threads": torch.get_num_threads(),
            "commit": commit(),
            "day": datetime.now(UTC).date().isoformat(),
        }
        print(name, json.dumps(results[name], indent=1), flush=True)
        asked.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
