"""`steelyard train` as it comes, beside what a user would otherwise do, on public tables.

    python bench/defaults.py --data DATA [--sets emotions scene] [--settings full pal] [--methods auto lr] [--jobs 16]

DATA holds `mulan/` (emotions, scene, yeast, bibtex as ARFF; enron, corel5k, delicious as npz),
`features/voc2012-lite0-160.npz` and, for `--sets` of `FRESH`, tables by which no rule was chosen, `fresh/`: their
owners' ARFF and XML files; of one file two thirds are trained on. Every (set, setting, method, seed) is one line of the
ledger, docs/defaults/ledger.jsonl; lines that are there are not measured again. README.md, gains.svg and results.json
beside it are made from them.

Settings: all labels; pal, 30 % of the labels known; ppl, 30 % of the positives known; spl, one positive per item known;
tail, a long tail cut out of the training items (`pareto_long_tail`). Peers know labels as a user would use them: with
pal every label is fitted on its known items; with ppl and spl unknown is absent. Their settings are chosen by folds of
the training items: 5, or one split of more than 2,500 items. `lr` is logistic regression on standardised features with
C searched, by the solver of this library, which gives scikit-learn's weights (tests/test_race.py) in a fraction of the
time; `lr-sklearn` is scikit-learn's own, one label at a time. Any recipe may be a method.

Lines of `auto` and of the peers keep the mAP of 200 resamples of the test items, the same for all methods of a set,
from which paired intervals are made.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed

import steelyard as sy
from steelyard.data import keep_labels, keep_positives, keep_single_positive, pareto_long_tail
from steelyard.metrics import calibration_error, error_by_chance, mean_average_precision, precision_recall_f1
from steelyard.training.race.candidates import macro_log_loss
from steelyard.training.small_models import baseline

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
SETS = ("emotions", "scene", "yeast", "enron", "bibtex", "corel5k", "delicious", "voc", "digits")
FRESH = ("medical", "birds", "cal500", "genbase", "foodtruck", "plant", "human", "rcv1", "arts", "health", "business")
FRESH += ("tmc2007",)
SETTINGS = ("full", "pal", "ppl", "spl", "tail")
PEERS = ("lr", "mlp", "knn", "trees")
RECIPES = ("bce", "bce-ls", "focal", "asl", "spa", "spa-lpr", "two-way", "ldam", "plm", "rw", "cb", "r-bce", "db")
RECIPES += ("resample", "an", "wan", "role", "epr", "pal")
RESAMPLES = 200
_TREES, _TREES_AT_ONCE = 200, 4
_COMPARED = ("auto", "lr-sklearn", *PEERS)
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
    if name in FRESH:
        return _fresh(data / "fresh", name)
    file = data / "mulan" / f"{name}.npz"
    if file.exists():
        with np.load(file) as arrays:
            x, y = ([arrays[f"{kind}_{part}"] for part in ("train", "test")] for kind in "XY")
        return x[0].astype(np.float32), y[0].astype(np.int8), x[1].astype(np.float32), y[1].astype(np.int8)
    return _split_arff(data / "mulan", name)


def _split_arff(folder: Path, name: str) -> Arrays:
    parts = [sy.data.arff(folder / f"{name}-{part}.arff") for part in ("train", "test")]
    x_y = [array for part in parts for array in (np.asarray(part.inputs, np.float32), part.labels.values)]
    return x_y[0], x_y[1], x_y[2], x_y[3]


def _fresh(folder: Path, name: str) -> Arrays:
    whole = folder / f"{name}.arff"
    if not whole.exists():
        return _split_arff(folder, name)
    read = sy.data.arff(whole)
    x, y = np.asarray(read.inputs, np.float32), read.labels.values
    order = np.random.default_rng(0).permutation(len(x))
    train, test = np.split(order, [2 * len(x) // 3])
    return x[train], y[train], x[test], y[test]


def _digits() -> Arrays:
    """Return pairs of scikit-learn's digits laid over one another, the higher the rarer: a long tail of ten labels.

    Test pairs are drawn as the training pairs are, from other images of equally many of each digit, so that
    probabilities can be judged too.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, digit = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    halves = train_test_split(np.arange(len(images)), test_size=0.5, stratify=digit, random_state=0)
    made: list[np.ndarray] = []
    for half in halves:
        chance = 50.0 ** (-digit[half] / 9)
        pairs = rng.choice(half, (1500, 2), p=chance / chance.sum())
        made.append(np.maximum(images[pairs[:, 0]], images[pairs[:, 1]]).astype(np.float32))
        made.append((digit[pairs][:, :, None] == np.arange(10)).any(1).astype(np.int8))
    return made[0], made[1], made[2], made[3]


def masked(x: np.ndarray, y: np.ndarray, setting: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the training items and labels that a setting leaves."""
    labels = sy.Labels(y)
    if setting == "tail":
        kept = pareto_long_tail(labels, int(labels.counts.max()), seed=seed)
        return x[kept], y[kept]
    keep: dict[str, Callable[[], Any]] = {
        "full": lambda: labels,
        "pal": lambda: keep_labels(labels, 0.3, seed),
        "ppl": lambda: keep_positives(labels, 0.3, seed),
        "spl": lambda: keep_single_positive(labels, seed),
    }
    return x, np.asarray(keep[setting]().values)


def by_steelyard(recipe: str) -> Callable[[np.ndarray, np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]]:
    """Return what fits a recipe and gives probabilities and decisions of test items."""

    def fitted(x: np.ndarray, y: np.ndarray, test: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        run = sy.fit((x, y), recipe, verbose=False, settings={"train": {"seed": seed}})
        if not run.trained.probability_model.has_probability:
            z = run.logits(test)
            return 1 / (1 + np.exp(-z)), z > 0
        eta = run.probability(test)
        return eta, run.trained.probability_model.decisions(eta)

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
        known = known.astype(np.int64)  # scikit-learn's MLP of more than 127 labels learns other columns from int8
        a, b = x, test
        if name == "lr-sklearn":
            scale = x.mean(0), np.where(x.std(0) > 1e-6, x.std(0), 1)
            a, b = ((part - scale[0]) / scale[1] for part in (x, test))
        if name in ("knn", "trees", "mlp") and (known >= 0).all():
            eta = _at_once(name, a, known, b, seed)
        else:
            known_rows = [known[:, c] >= 0 for c in range(y.shape[1])]
            each = (delayed(_one_label)(name, a[at], known[at, c], b, seed) for c, at in enumerate(known_rows))
            eta = np.stack(Parallel()(each), 1)  # one process unless the caller allows joblib more
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
    from sklearn.model_selection import GridSearchCV, ShuffleSplit
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import StandardScaler

    def score(model: Any, x: np.ndarray, y: np.ndarray) -> float:
        return mean_average_precision(_columns(model, x), y.reshape(len(x), -1))

    folds: Any = 5 if len(x) <= 2500 else ShuffleSplit(1, test_size=0.2, random_state=0)
    scaling = {"scale": [StandardScaler(), "passthrough"]}  # rare words, standardised, are worse than as they are
    if name == "mlp":
        model = Pipeline([("scale", "passthrough"), ("model", MLPClassifier((256,), random_state=seed))])
        grid = {**scaling, "model__alpha": [1e-4, 1e-1], "model__max_iter": [20, 100]}
    elif name == "knn":
        model = Pipeline([("scale", "passthrough"), ("model", KNeighborsClassifier(weights="distance"))])
        grid = {**scaling, "model__n_neighbors": [k for k in (5, 10, 20, 40) if k < 0.8 * len(x)]}
    if name in ("mlp", "knn"):
        search = GridSearchCV(model, grid, scoring=score, cv=folds)
        return _columns(search.fit(x, y).best_estimator_, test)
    parts = Parallel()(delayed(_forest)(x, y, test, 1000 * seed + part) for part in range(_TREES // _TREES_AT_ONCE))
    return np.asarray(np.mean(parts, 0))


def _forest(x: np.ndarray, y: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    """Fit a part of the trees: 200 trees of 983 labels at once would take 60 GB."""
    from sklearn.ensemble import ExtraTreesClassifier

    return _columns(ExtraTreesClassifier(_TREES_AT_ONCE, random_state=seed).fit(x, y), test)


def _columns(model: Any, x: np.ndarray) -> np.ndarray:
    """Return the probability of 1, (N, L), of a classifier of one or several labels."""
    from sklearn.pipeline import Pipeline

    eta = model.predict_proba(x)
    last = model[-1] if isinstance(model, Pipeline) else model
    if isinstance(eta, list):
        return np.stack([_of_one(p, c) for p, c in zip(eta, model.classes_, strict=True)], 1)
    if hasattr(last, "out_activation_") and last.n_outputs_ == eta.shape[1]:
        return np.asarray(eta)  # an MLP of several labels
    return _of_one(eta, model.classes_)[:, None]


def _of_one(p: np.ndarray, classes: np.ndarray) -> np.ndarray:
    return p[:, list(classes).index(1)] if 1 in classes else np.zeros(len(p))


def resampled_map(scores: np.ndarray, truth: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Return the mAP in per cent of resamples of the items, (R,): the same resamples for every method of a set.

    With groups (N,), 0 … G−1, whole groups are drawn: items of one group are alike.
    """
    n = len(truth) if groups is None else int(groups.max()) + 1
    weights = np.random.default_rng(1).multinomial(n, np.full(n, 1 / n), RESAMPLES).astype(np.float64)
    weights = weights if groups is None else weights[:, groups]
    total, counted = np.zeros(RESAMPLES), np.zeros(RESAMPLES)
    for c in range(truth.shape[1]):
        known = np.flatnonzero(truth[:, c] >= 0)
        order = known[np.argsort(-scores[known, c], kind="stable")]
        w = weights[:, order]
        hits = w * truth[order, c]
        precision = np.cumsum(hits, 1) / np.maximum(np.cumsum(w, 1), 1e-12)
        positives = hits.sum(1)
        there = positives > 0
        total[there] += (hits * precision).sum(1)[there] / positives[there]
        counted += there
    return np.asarray(100 * total / np.maximum(counted, 1))


CHOICE = "log-loss over mAP, folds at one level"
"""How `auto` and `lr` choose among their candidates, kept with every line; others are of the rules before."""


def measured(name: str, setting: str, method: str, seed: int, data: Path) -> dict[str, Any]:
    """Fit one method on one set and return one line of the ledger."""
    x, y, test_x, test_y = load(name, data)
    x, known = masked(x, y, setting, seed)
    fit = by_regression if method == "lr" else by_peer(method) if method in _PER_LABEL else by_steelyard(method)
    begun = time.perf_counter()
    with warnings.catch_warnings():  # a peer whose iterations are one of its settings need not converge
        warnings.simplefilter("ignore")
        eta, decisions = fit(x, known, test_x, seed)
    seconds = time.perf_counter() - begun
    p, t = torch.from_numpy(np.asarray(eta, np.float64)).clamp(1e-6, 1 - 1e-6), torch.from_numpy(test_y)
    error = calibration_error(p, t)
    line: dict[str, Any] = {
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
        "device": "cuda" if torch.cuda.is_available() and fit not in (by_regression,) else "cpu",
    }
    if method in _COMPARED:
        line["resampled"] = resampled_map(p.numpy(), test_y).round(2).tolist()
    return line | ({"choice": CHOICE} if method in ("auto", "lr") else {})


class Ledger:
    """All lines, by set, setting, method and seed."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self.lines = {(line["set"], line["setting"], line["method"], line["seed"]): line for line in lines}

    def seeds(self, name: str, setting: str, method: str) -> dict[int, dict[str, Any]]:
        """Return the lines of a cell by seed; what has nothing random in it counts for every seed."""
        lines = {key[3]: line for key, line in self.lines.items() if key[:3] == (name, setting, method)}
        if setting == "full" and method in ("lr", "knn") and 0 in lines:
            return dict.fromkeys(range(10), lines[0])
        return lines

    def pairs(self, name: str, setting: str, ours: str, theirs: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return the lines of two methods on the same items and labels."""
        here, there = self.seeds(name, setting, ours), self.seeds(name, setting, theirs)
        return [(here[seed], there[seed]) for seed in sorted(here.keys() & there.keys())]

    def mean(self, name: str, setting: str, method: str, what: str) -> float | None:
        """Return the mean over seeds."""
        lines = self.seeds(name, setting, method).values()
        return float(np.mean([line[what] for line in lines])) if lines else None


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over seeds by cell, and what `make bars` reads."""
    ledger = Ledger(lines)
    cells = {}
    for name, setting, method, _ in sorted(ledger.lines):
        seeds = {key[3] for key in ledger.lines if key[:3] == (name, setting, method)}
        means = {what: ledger.mean(name, setting, method, what) for what in _MEASURES}
        cells[f"{name} {setting} {method}"] = means | {"seeds": len(seeds)}
    bars, fresh = (
        {setting: bar for setting in SETTINGS if (bar := _bars(ledger, setting, sets))} for sets in (SETS, FRESH)
    )
    below = [f"{name} {setting}" for setting, bar in bars.items() for name in bar.get("below", ())]
    auto = [line for line in lines if line["method"] == "auto"]
    present = sum(line.get("choice") == CHOICE for line in auto)
    return {
        "bars": bars,
        "fresh": fresh,
        "cells_below_two_errors": len(below),
        "below": below,
        "runs_of_auto": len(auto),
        "runs_of_the_present_choice": present,
        "cells": cells,
    }


def _bars(ledger: Ledger, setting: str, sets: Sequence[str]) -> dict[str, Any]:
    """Return how auto compares with logistic regression, with the best peer and with the best recipe."""
    gains, errors, ratios, spread, best, ace, regrets = {}, {}, {}, {}, {}, {}, {}
    for name in sets:
        if pairs := ledger.pairs(name, setting, "auto", "lr"):
            gains[name] = np.mean([ours["map"] - theirs["map"] for ours, theirs in pairs])
            ratios[name] = np.mean([ours["log_loss"] / theirs["log_loss"] for ours, theirs in pairs])
            spread[name] = np.mean([np.subtract(ours["resampled"], theirs["resampled"]) for ours, theirs in pairs], 0)
            errors[name] = np.std(spread[name])
            if pairs[0][0]["test_items"] >= 1000:
                ace[name] = [
                    np.mean([line["ace"] - line["ace_by_chance"] for line in side]) for side in zip(*pairs, strict=True)
                ]
        auto = ledger.mean(name, setting, "auto", "map")
        peers = [ledger.mean(name, setting, peer, "map") for peer in PEERS]
        if auto is not None and None not in peers:
            best[name] = auto - max(peer for peer in peers if peer is not None)
        recipes = [ledger.mean(name, setting, recipe, "map") for recipe in RECIPES]
        if auto is not None and (there := [value for value in recipes if value is not None]):
            regrets[name] = max(there) - auto
    if not gains:
        return {}
    return {
        "sets": len(gains),
        "gain_over_lr": _mean(gains),
        "lower_bound": float(np.quantile(np.mean(list(spread.values()), 0), 0.025)),
        "worst_gain_over_lr": float(min(gains.values())),
        "below": [name for name in gains if gains[name] < -2 * errors[name]],
        "gains": {name: [float(gains[name]), float(errors[name])] for name in gains},
        "log_loss_ratio": _mean(ratios),
        "worst_log_loss_ratio": float(max(ratios.values())),
        "gain_over_best_peer": _mean(best),
        "sets_with_all_peers": len(best),
        "ace_above_chance": _mean({name: ours for name, (ours, _) in ace.items()}),
        "worst_ace_over_lr": max((float(ours - theirs) for ours, theirs in ace.values()), default=None),
        "regret": _mean(regrets),
        "worst_regret": max((float(value) for value in regrets.values()), default=None),
    }


def _mean(values: dict[str, Any]) -> float | None:
    return float(np.mean(list(values.values()))) if values else None


def page(content: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield from ("# `auto` beside what a user would otherwise do", "")
    yield from ("![Gain of auto over logistic regression](gains.svg)", "")
    yield "Test mAP in per cent, mean over seeds; made by `make bench-defaults`, see `bench/defaults.py` for the rules."
    if (old := content["runs_of_auto"] - content["runs_of_the_present_choice"]) > 0:
        yield (
            f"Of {content['runs_of_auto']} runs of auto {old} are of the race as it was before: without forests, and "
            "with folds at levels of their own."
        )
    cells = content["cells"]
    yield from _tables(content["bars"], cells, SETS, "##")
    if content["fresh"]:
        yield from ("", "## Tables by which no rule was chosen", "")
        yield (
            "No rule of the race was chosen by these sets. One fault was found on them, on cal500: out-of-fold scores "
            "of folds at different levels. It was mended before the figures of this section were measured."
        )
        yield from _tables(content["fresh"], cells, FRESH, "###")
    yield from ("", "## What was measured", "", *_measured_cells(cells))


def _tables(bars: dict[str, Any], cells: dict[str, Any], sets: Sequence[str], level: str) -> Iterator[str]:
    """Yield a table of each setting, and what it says in words."""
    for setting in SETTINGS:
        rows = [name for name in sets if f"{name} {setting} auto" in cells]
        if not rows:
            continue
        methods = [m for m in ("auto", *PEERS) if any(f"{name} {setting} {m}" in cells for name in rows)]
        recipes = [r for r in RECIPES if any(f"{name} {setting} {r}" in cells for name in rows)]
        yield from ("", f"{level} {_TITLES[setting]}", "")
        yield f"| set | {' | '.join(methods)} |{' best recipe |' if recipes else ''}"
        yield "|---" * (len(methods) + 1 + bool(recipes)) + "|"
        for name in rows:
            row = [cells.get(f"{name} {setting} {method}") for method in methods]
            line = f"| {name} | {' | '.join('–' if cell is None else format(cell['map'], '.1f') for cell in row)} |"
            yield line + (f" {_best_recipe(cells, name, setting, recipes)} |" if recipes else "")
        yield from _sentences(bars.get(setting), cells, rows, setting)


def _measured_cells(cells: dict[str, Any]) -> Iterator[str]:
    """Yield how much of the grid was measured, with how many seeds, and what is missing."""
    refused = len([r for r in RECIPES if _refuses("spl", r)])
    yield (
        f"Where only positives are known, {refused} of the {len(RECIPES)} recipes leave unknown labels out and see "
        "no negative: they refuse such data and have no cell there."
    )
    for title, methods in (("`auto`", ("auto",)), ("peers", PEERS), ("recipes", RECIPES)):
        grid = [c for c in itertools.product(SETS, SETTINGS, methods) if not _refuses(*c[1:])]
        seeds = {cell: cells[" ".join(cell)]["seeds"] for cell in grid if " ".join(cell) in cells}
        whole = sum(seeds[cell] >= 3 or not _counts(*cell[1:], 1) for cell in seeds)
        lacking = collections.Counter(cell[0] for cell in grid if cell not in seeds)
        missing = f"; missing: {', '.join(f'{name} {n}' for name, n in lacking.items())}" if lacking else ""
        yield f"- {title}: {len(seeds)} of {len(grid)} cells, {whole} with three seeds{missing}."


def _best_recipe(cells: dict[str, Any], name: str, setting: str, recipes: list[str]) -> str:
    values = {r: cell["map"] for r in recipes if (cell := cells.get(f"{name} {setting} {r}")) is not None}
    if not values:
        return "–"
    best = max(values, key=lambda r: values[r])
    return f"{values[best]:.1f} ({best})"


def _sentences(bar: dict[str, Any] | None, cells: dict[str, Any], rows: list[str], setting: str) -> Iterator[str]:
    """Yield what the table says, in words."""
    if not bar:
        return
    yield ""
    yield (
        f"`auto` beats logistic regression by {bar['gain_over_lr']:.1f} mAP on average of {bar['sets']} sets (lower "
        f"95 % bound over test items {bar['lower_bound']:.1f}), at worst by {bar['worst_gain_over_lr']:+.1f}; its "
        f"log-loss is {bar['log_loss_ratio']:.2f} of logistic regression's, at worst {bar['worst_log_loss_ratio']:.2f}."
    )
    if bar["gain_over_best_peer"] is not None:
        yield (
            f"Against the best of the four peers of each set it is {bar['gain_over_best_peer']:+.1f} on average of "
            f"{bar['sets_with_all_peers']} sets."
        )
    for name in rows:
        for peer in PEERS:
            ours, theirs = (cells.get(f"{name} {setting} {m}") for m in ("auto", peer))
            if ours and theirs and theirs["map"] > ours["map"] + 2:
                yield f"On {name}, {peer} wins by {theirs['map'] - ours['map']:.1f}."
    if bar["regret"] is not None:
        yield (
            f"The best of {len(RECIPES)} recipes, chosen on the test items themselves, is {bar['regret']:+.1f} away on "
            f"average, at most {bar['worst_regret']:+.1f}."
        )


def draw(content: dict[str, Any], file: Path) -> None:
    """Draw the gain over logistic regression of every cell, with intervals of two standard errors."""
    from steelyard.report.canvas import ACCENT, FRAME, drawing, save_figure

    shown = [setting for setting in SETTINGS if content["bars"].get(setting)]
    order = list(reversed(SETS))
    with drawing(2.4 * len(shown) + 1, 3.6, ncols=len(shown), sharey=True, sharex=True, squeeze=False) as (
        figure,
        axes,
    ):
        for ax, setting in zip(axes[0], shown, strict=True):
            bar = content["bars"][setting]
            names = [name for name in order if name in bar["gains"]]
            values, errors = np.array([bar["gains"][name] for name in names]).T
            places = [order.index(name) for name in names]
            ax.errorbar(values, places, xerr=2 * errors, fmt="o", ms=5, color=ACCENT, capsize=3)
            ax.axvline(0, color=FRAME, linewidth=1)
            ax.axvline(bar["gain_over_lr"], color=ACCENT, linestyle=":", linewidth=1.5)
            ax.set_yticks(range(len(order)), order)
            ax.set_title(_TITLES[setting].replace(", ", ",\n"), fontsize=9)
            ax.grid(axis="x")
        figure.supxlabel("mAP of auto above logistic regression (± 2 standard errors; dotted: mean)", fontsize=9)
    save_figure(figure, file)


_TITLES = {
    "full": "All labels known",
    "pal": "30 % of the labels known",
    "ppl": "30 % of the positives known, nothing else",
    "spl": "One positive per item known, nothing else",
    "tail": "A long tail, all labels known",
}


def _counts(setting: str, method: str, seed: int) -> bool:
    """Say whether a seed changes a cell: with all labels, logistic regression and kNN have nothing random in them."""
    return seed == 0 or setting != "full" or method not in ("lr", "knn")


def _refuses(setting: str, method: str) -> bool:
    """Say whether a recipe refuses a setting: where only positives are known, one that ignores unknown labels does."""
    return setting in ("ppl", "spl") and method in RECIPES and method not in ("an", "wan", "pal")


def _one_thread() -> None:
    torch.set_num_threads(1)


def _measured(cell: tuple[str, str, str, int], data: Path) -> dict[str, Any]:
    return measured(*cell, data)


def main() -> None:
    """Measure what the ledger lacks, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--sets", nargs="*", default=SETS)
    parser.add_argument("--settings", nargs="*", default=SETTINGS)
    parser.add_argument("--methods", nargs="*", default=("auto", *PEERS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ledger", type=Path, default=HERE / "ledger.jsonl")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with one thread")
    parser.add_argument("--only-page", action="store_true")
    asked = parser.parse_args()
    lines = [json.loads(line) for line in asked.ledger.read_text().splitlines()] if asked.ledger.exists() else []
    there = {(line["set"], line["setting"], line["method"], line["seed"]) for line in lines}
    cells = itertools.product(range(asked.seeds), asked.sets, asked.settings, asked.methods)
    missing = [(name, setting, method, seed) for seed, name, setting, method in cells if _counts(setting, method, seed)]
    missing = [] if asked.only_page else [cell for cell in missing if cell not in there and not _refuses(*cell[1:3])]
    if missing:
        with get_context("spawn").Pool(asked.jobs, _one_thread) as pool:
            for line in pool.imap_unordered(partial(_measured, data=asked.data), missing):
                print(json.dumps({key: value for key, value in line.items() if key != "resampled"}), flush=True)
                lines.append(line)
                with asked.ledger.open("a") as file:
                    file.write(json.dumps(line) + "\n")
    if asked.ledger.parent == HERE:
        content = summary(lines)
        (HERE / "results.json").write_text(json.dumps(content, indent=1) + "\n")
        (HERE / "README.md").write_text("\n".join(page(content)) + "\n")
        draw(content, HERE / "gains.svg")


if __name__ == "__main__":
    main()
