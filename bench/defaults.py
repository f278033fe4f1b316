"""`steelyard train` as it comes, beside what a user would otherwise do, on public tables.

    python bench/defaults.py --data DATA [--sets emotions scene] [--settings full pal] [--methods auto lr] [--seeds 3]

DATA holds `mulan/` (emotions, scene, yeast, bibtex as ARFF; enron, corel5k, delicious as npz) and
`features/voc2012-lite0-160.npz`. Every (set, setting, method, seed) is one line of the ledger, docs/defaults/
ledger.jsonl; lines that are there are not measured again. README.md and results.json beside it are made from them.

Settings: all labels; pal, 30 % of the labels known; ppl, 30 % of the positives known; spl, one positive per item known.
Peers know labels as a user would use them: with pal every label is fitted on its known items; with ppl and spl unknown
is absent. Their settings are chosen by 5 folds of the training items. `lr` is logistic regression on standardised
features with C searched, by the solver of this library, which gives scikit-learn's weights (tests/test_race.py) in a
fraction of the time; `lr-sklearn` is scikit-learn's own, one label at a time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import steelyard as sy
from steelyard.data import keep_labels, keep_positives, keep_single_positive
from steelyard.metrics import calibration_error, error_by_chance, mean_average_precision, precision_recall_f1
from steelyard.run.small_models import baseline
from steelyard.training.candidates import macro_log_loss

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
SETS = ("emotions", "scene", "yeast", "enron", "bibtex", "corel5k", "delicious", "voc", "digits")
SETTINGS = ("full", "pal", "ppl", "spl")
PEERS = ("lr", "mlp", "knn", "trees")
_PER_LABEL = ("lr-sklearn", "mlp", "knn", "trees")
_MEASURES = ("map", "log_loss", "f1", "ace", "ace_by_chance", "seconds")
HERE = Path(__file__).resolve().parent.parent / "docs" / "defaults"


def load(name: str, data: Path) -> Arrays:
    """Return training features and labels, test features and labels; labels are 1, 0 or −1 (unknown)."""
    if name == "digits":
        return _digits()
    if name == "voc":
        with np.load(data / "features" / "voc2012-lite0-160.npz") as arrays:
            known = [np.where(arrays[f"Y_{part}"] == 0, -1, arrays[f"Y_{part}"] == 1) for part in ("train", "val")]
            x = [arrays[f"X_{part}"].astype(np.float32) for part in ("train", "val")]
        return x[0], known[0].astype(np.int8), x[1], known[1].astype(np.int8)
    file = data / "mulan" / f"{name}.npz"
    if file.exists():
        with np.load(file) as arrays:
            x, y = ([arrays[f"{kind}_{part}"] for part in ("train", "test")] for kind in "XY")
        return x[0].astype(np.float32), y[0].astype(np.int8), x[1].astype(np.float32), y[1].astype(np.int8)
    parts = [sy.data.arff(data / "mulan" / f"{name}-{part}.arff") for part in ("train", "test")]
    x_y = [array for part in parts for array in (np.asarray(part.inputs, np.float32), part.labels.values)]
    return x_y[0], x_y[1], x_y[2], x_y[3]


def _digits() -> Arrays:
    """Return pairs of scikit-learn's digits laid over one another, the rarer the higher: a long tail of ten labels."""
    from sklearn.datasets import load_digits

    images, digit = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(images))
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    made: list[np.ndarray] = []
    for half, n, rate in zip(halves, (1500, 1500), (50.0, 1.0), strict=True):
        chance = rate ** (-digit[half] / 9)
        pairs = rng.choice(half, (n, 2), p=chance / chance.sum())
        made.append(np.maximum(images[pairs[:, 0]], images[pairs[:, 1]]).astype(np.float32))
        made.append((digit[pairs][:, :, None] == np.arange(10)).any(1).astype(np.int8))
    return made[0], made[1], made[2], made[3]


def masked(y: np.ndarray, setting: str, seed: int) -> np.ndarray:
    """Return the labels that a setting leaves known."""
    labels = sy.Labels(y)
    keep: dict[str, Callable[[], Any]] = {
        "full": lambda: labels,
        "pal": lambda: keep_labels(labels, 0.3, seed),
        "ppl": lambda: keep_positives(labels, 0.3, seed),
        "spl": lambda: keep_single_positive(labels, seed),
    }
    return np.asarray(keep[setting]().values)


def by_steelyard(recipe: str) -> Callable[[np.ndarray, np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]]:
    """Return what fits a recipe and gives probabilities and decisions of test items."""

    def fitted(x: np.ndarray, y: np.ndarray, test: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        run = sy.fit((x, y), recipe, verbose=False, settings={"train": {"seed": seed, "device": "cpu"}})
        eta = run.probability(test, device="cpu")
        return eta, run.trained.reading.decisions(eta)

    return fitted


def by_regression(x: np.ndarray, y: np.ndarray, test: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Fit logistic regression with its penalty searched."""
    known = np.where((y == 0).sum(0) < 10, np.maximum(y, 0), y)
    fit = baseline(sy.data.ArrayDataset(x, sy.Labels(known)), torch.device("cpu"), seed).model
    eta = torch.sigmoid(fit.logits(torch.from_numpy(test))).numpy()
    return eta, eta >= 0.5


def by_peer(name: str) -> Callable[[np.ndarray, np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]]:
    """Return what fits one scikit-learn model per label, its settings chosen by 5 folds."""

    def fitted(x: np.ndarray, y: np.ndarray, test: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        known = y if (y == 0).sum(0).min() >= 10 else np.maximum(y, 0)
        eta = np.zeros((len(test), y.shape[1]))
        scale = x.mean(0), np.where(x.std(0) > 1e-6, x.std(0), 1)
        a, b = ((part - scale[0]) / scale[1] for part in (x, test))
        if name in ("knn", "trees", "mlp") and (known >= 0).all():
            eta = _at_once(name, a, known, b, seed)
        else:
            for c in range(y.shape[1]):
                rows = known[:, c] >= 0
                eta[:, c] = _one_label(name, a[rows], known[rows, c], b, seed)
        return eta, eta >= 0.5

    return fitted


def _one_label(name: str, x: np.ndarray, y: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    if y.min() == y.max():
        return np.full(len(test), (y.sum() + 0.5) / (len(y) + 1))
    if name != "lr-sklearn":
        return np.asarray(_at_once(name, x, y[:, None], test, seed)[:, 0])
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV

    folds = int(min(5, y.sum(), len(y) - y.sum()))
    if folds < 2:
        return np.asarray(LogisticRegression(C=0.01, max_iter=2000).fit(x, y).predict_proba(test)[:, 1])
    grid = np.logspace(-4, 1, 6)
    model = LogisticRegressionCV(Cs=grid, cv=folds, scoring="neg_log_loss", max_iter=2000, use_legacy_attributes=False)
    return np.asarray(model.fit(x, y).predict_proba(test)[:, 1])


def _at_once(name: str, x: np.ndarray, y: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.model_selection import GridSearchCV
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.neural_network import MLPClassifier

    if name == "mlp":
        model = MLPClassifier((256,), early_stopping=len(x) >= 50, max_iter=200, random_state=seed).fit(x, y)
        return np.asarray(model.predict_proba(test)).reshape(len(test), -1)[:, -y.shape[1] :]
    if name == "knn":
        grid = {"n_neighbors": [k for k in (5, 10, 20, 40) if k < 0.8 * len(x)]}

        def score(model: Any, x: np.ndarray, y: np.ndarray) -> float:
            return mean_average_precision(_columns(model, x), y.reshape(len(x), -1))

        search = GridSearchCV(KNeighborsClassifier(weights="distance"), grid, scoring=score, cv=5)
        return _columns(search.fit(x, y).best_estimator_, test)
    return _columns(ExtraTreesClassifier(200, random_state=seed).fit(x, y), test)


def _columns(model: Any, x: np.ndarray) -> np.ndarray:
    """Return the probability of 1, (N, L), of a classifier of several labels."""
    eta = model.predict_proba(x)
    parts, classes = (eta, model.classes_) if isinstance(eta, list) else ([eta], [model.classes_])
    return np.stack([_of_one(p, c) for p, c in zip(parts, classes, strict=True)], 1)


def _of_one(p: np.ndarray, classes: np.ndarray) -> np.ndarray:
    return p[:, list(classes).index(1)] if 1 in classes else np.zeros(len(p))


def measured(name: str, setting: str, method: str, seed: int, data: Path) -> dict[str, Any]:
    """Fit one method on one set and return one line of the ledger."""
    x, y, test_x, test_y = load(name, data)
    known = masked(y, setting, seed)
    fit = by_regression if method == "lr" else by_peer(method) if method in _PER_LABEL else by_steelyard(method)
    begun = time.perf_counter()
    eta, decisions = fit(x, known, test_x, seed)
    seconds = time.perf_counter() - begun
    p, t = torch.from_numpy(np.asarray(eta, np.float64)).clamp(1e-6, 1 - 1e-6), torch.from_numpy(test_y)
    error = calibration_error(p, t)
    return {
        "set": name,
        "setting": setting,
        "method": method,
        "seed": seed,
        "map": 100 * mean_average_precision(p, t),
        "log_loss": macro_log_loss(torch.logit(p), t),
        "f1": 100 * float(precision_recall_f1(torch.from_numpy(np.asarray(decisions)), t).macro.f1),
        "ace": 100 * float(error.ace),
        "ace_by_chance": 100 * float(error_by_chance(error.bins).ace),
        "seconds": seconds,
        "test_items": len(test_y),
    }


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over seeds by cell, and what `make bars` reads: gains of auto over logistic regression."""
    cells: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        cells[line["set"], line["setting"], line["method"]].append(line)
    means = {
        key: {name: float(np.mean([line[name] for line in group])) for name in _MEASURES} | {"seeds": len(group)}
        for key, group in cells.items()
    }
    bars = {setting: _bars(cells, setting) for setting in SETTINGS if any(key[1] == setting for key in cells)}
    return {"bars": bars, "cells": {" ".join(key): value for key, value in sorted(means.items())}}


def _bars(cells: dict[tuple[str, str, str], list[dict[str, Any]]], setting: str) -> dict[str, Any]:
    """Return how auto compares with logistic regression and with the best peer, pair by pair of the same mask."""

    def of(name: str, method: str) -> dict[int, dict[str, Any]]:
        by_seed = {line["seed"]: line for line in cells.get((name, setting, method), ())}
        if setting == "full" and method == "lr" and 0 in by_seed:  # nothing random in it
            return dict.fromkeys(range(10), by_seed[0])
        return by_seed

    gains, ratios, best = {}, {}, {}
    for name in SETS:
        auto, peers = of(name, "auto"), {peer: of(name, peer) for peer in PEERS}
        if seeds := auto.keys() & peers["lr"].keys():
            gains[name] = np.mean([auto[s]["map"] - peers["lr"][s]["map"] for s in seeds])
            ratios[name] = np.mean([auto[s]["log_loss"] / peers["lr"][s]["log_loss"] for s in seeds])
        there = [peer for peer in peers.values() if 0 in peer]
        if 0 in auto and len(there) == len(PEERS):
            best[name] = auto[0]["map"] - max(peer[0]["map"] for peer in there)
    if not gains:
        return {}
    return {
        "sets": len(gains),
        "gain_over_lr": float(np.mean(list(gains.values()))),
        "worst_gain_over_lr": float(min(gains.values())),
        "log_loss_ratio": float(np.mean(list(ratios.values()))),
        "worst_log_loss_ratio": float(max(ratios.values())),
        "gain_over_best_peer": float(np.mean(list(best.values()))) if best else None,
    }


def page(content: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield from ("# `auto` beside what a user would otherwise do", "")
    yield "Test mAP in per cent, mean over seeds; made by `make bench-defaults`, see `bench/defaults.py` for the rules."
    cells = content["cells"]
    for setting in SETTINGS:
        rows = [name for name in SETS if f"{name} {setting} auto" in cells]
        if not rows:
            continue
        methods = [m for m in ("auto", *PEERS) if any(f"{name} {setting} {m}" in cells for name in rows)]
        methods += sorted({key.split()[2] for key in cells if key.split()[1] == setting} - {"auto", *PEERS})
        yield from (
            "",
            f"## {_TITLES[setting]}",
            "",
            f"| set | {' | '.join(methods)} |",
            "|---" * (len(methods) + 1) + "|",
        )
        for name in rows:
            row = [cells.get(f"{name} {setting} {method}") for method in methods]
            yield f"| {name} | {' | '.join('–' if cell is None else format(cell['map'], '.1f') for cell in row)} |"
        bar = content["bars"].get(setting)
        if bar:
            yield ""
            yield (
                f"Over logistic regression: {bar['gain_over_lr']:+.1f} mAP on average of {bar['sets']} sets, at worst "
                f"{bar['worst_gain_over_lr']:+.1f}; log-loss × {bar['log_loss_ratio']:.2f}, at worst × "
                f"{bar['worst_log_loss_ratio']:.2f}."
            )


_TITLES = {
    "full": "All labels known",
    "pal": "30 % of the labels known",
    "ppl": "30 % of the positives known, nothing else",
    "spl": "One positive per item known, nothing else",
}


def main() -> None:
    """Measure what the ledger lacks, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--sets", nargs="*", default=SETS)
    parser.add_argument("--settings", nargs="*", default=SETTINGS)
    parser.add_argument("--methods", nargs="*", default=("auto", *PEERS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ledger", type=Path, default=HERE / "ledger.jsonl")
    parser.add_argument("--only-page", action="store_true")
    asked = parser.parse_args()
    lines = [json.loads(line) for line in asked.ledger.read_text().splitlines()] if asked.ledger.exists() else []
    there = {(line["set"], line["setting"], line["method"], line["seed"]) for line in lines}
    for seed in () if asked.only_page else range(asked.seeds):
        for name in asked.sets:
            for setting in asked.settings:
                for method in asked.methods:
                    if (name, setting, method, seed) in there or (setting == "full" and method == "lr" and seed > 0):
                        continue
                    line = measured(name, setting, method, seed, asked.data)
                    print(json.dumps(line), flush=True)
                    lines.append(line)
                    with asked.ledger.open("a") as file:
                        file.write(json.dumps(line) + "\n")
    if asked.ledger.parent == HERE:
        content = summary(lines)
        (HERE / "results.json").write_text(json.dumps(content, indent=1) + "\n")
        (HERE / "README.md").write_text("\n".join(page(content)) + "\n")


if __name__ == "__main__":
    main()
