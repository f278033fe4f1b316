"""The study of `audit`: planted errors found again, beside cleanlab, and VOC 2007's real ones; and its speed.

    nice python bench/audit.py --data DATA --voc2007 FEATURES.npz [--sets scene] [--seeds 0 1 2]     # about 20 minutes
    taskset -c 0,1 python bench/audit.py --speed

The rules are in docs/annotation/README.md. Results are added to docs/annotation/audit.json, one entry per set, kind,
share of unknown cells and seed; those that are there are not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import steelyard as sy
from annotation_sets import KINDS, SETS, load, planted, some_unknown, voc2007
from steelyard._source import commit
from steelyard.annotation import audit_labels
from steelyard.annotation.audit import Interval
from steelyard.calibrate.crossfit import cross_fitted, folds_of
from steelyard.labels import UNKNOWN
from steelyard.metrics import average_precision
from steelyard.training.small_models import baseline

OUT = Path(__file__).resolve().parent.parent / "docs" / "annotation" / "audit.json"
UNKNOWN_SHARES = (0.0, 0.7)
SCORES = (
    *(("self_confidence", False), ("self_confidence", True), ("normalized_margin", False)),
    *(("normalized_margin", True), ("confidence_weighted_entropy", False)),
)

Array = np.ndarray[Any, Any]


def out_of_fold(x: Array, given: Array, seed: int) -> Array:
    """Return the calibrated probabilities (N, L) of logistic regression, each item's by models that did not see it."""
    odds = baseline(sy.data.ArrayDataset(x, sy.Labels(given)), torch.device("cpu"), seed).out_of_fold.double()
    targets = torch.from_numpy(given)
    return torch.sigmoid(cross_fitted("platt", odds, targets, folds_of(targets, seed=seed))).numpy()


def by_cleanlab(p: Array, given: Array) -> dict[str, Array]:
    """Return cleanlab's scores of each cell, the higher the likelier wrong, by name of the score."""
    from cleanlab.rank import get_label_quality_scores

    by_score = {}
    for method, adjusted in SCORES:
        scores = np.zeros(given.shape)
        for c in range(given.shape[1]):
            rows = np.flatnonzero(given[:, c] != UNKNOWN)
            label = given[rows, c].astype(np.int64)
            if len(np.unique(label)) == 2:
                both = np.stack([1 - p[rows, c], p[rows, c]], axis=1)
                quality = get_label_quality_scores(label, both, method=method, adjust_pred_probs=adjusted)
                scores[rows, c] = 1 - quality
        by_score[method + (", adjusted" if adjusted else "")] = scores
    return by_score


def list_precision(score: Array, wrong: Array, judged: Array) -> float:
    """Return the average precision of the wrong cells in one list."""
    ranked, target = np.nan_to_num(score[judged]), wrong[judged].astype(np.int8)
    return float(average_precision(ranked[:, None], target[:, None])[0])


def measured(x: Array, true: Array, given: Array, seed: int) -> dict[str, Any]:
    """Return the average precision of audit and of cleanlab's scores."""
    p = out_of_fold(x, given, seed)
    judged = (given != UNKNOWN) & (true != UNKNOWN)
    wrong = judged & (given != true)
    begun = time.perf_counter()
    result = audit_labels(given, p, resamples=2, seed=seed)  # of intervals, which are not judged here
    seconds = time.perf_counter() - begun
    return {
        "planted": int(wrong.sum()),
        "cells": int(judged.sum()),
        "audit": list_precision(result.wrong_probability(), wrong, judged),
        "cleanlab": {name: list_precision(score, wrong, judged) for name, score in by_cleanlab(p, given).items()},
        "estimated": sum(r.wrong_positives.estimate + r.wrong_negatives.estimate for r in result.labels),
        "missing": side(
            wrong & (given == 0), (given != UNKNOWN) & (true == 1), p, [r.wrong_negatives for r in result.labels]
        ),
        "added": side(
            wrong & (given == 1), (given != UNKNOWN) & (true == 0), p, [r.wrong_positives for r in result.labels]
        ),
        "seconds": seconds,
    }


def side(wrong: Array, possible: Array, p: Array, estimates: list[Interval]) -> dict[str, float]:
    """Return planted and estimated errors of one kind, and the mean probability there and wherever they could be.

    The second mean weights each label by its errors: the two are equal where errors do not depend on the item.
    """
    by_label = np.where(possible, p, 0).sum(0) / np.maximum(possible.sum(0), 1)
    return {
        "planted": int(wrong.sum()),
        "estimated": float(np.nansum([interval.estimate for interval in estimates])),
        "probability": float(p[wrong].mean()),
        "probability_of_all": float(np.average(by_label, weights=wrong.sum(0))),
    }


def real(data: Path, features: Path) -> dict[str, Any]:
    """Return what is found of VOC 2007's missing persons."""
    x, true, given, names = voc2007(data, features)
    p = out_of_fold(x, given, 0)
    judged = true != UNKNOWN
    wrong = judged & (given != true)
    audit = audit_labels(sy.Labels(given, names), p)
    person = next(row for row in audit.labels if row.name == "person")
    scores = {"audit": np.nan_to_num(audit.wrong_probability()), **by_cleanlab(p, given)}
    result: dict[str, Any] = {
        "missing": int(wrong.sum()),
        "estimated_missing_persons": person.wrong_negatives._asdict(),
    }
    result["missing_share_by_probability"] = by_probability(p[:, names.index("person")], wrong, true, names)
    result["estimated_missing_of_others"] = sum(r.wrong_negatives.estimate for r in audit.labels if r is not person)
    for name, score in scores.items():
        order = np.argsort(-np.where(judged, score, -1.0), axis=None, kind="stable")[: int(wrong.sum())]
        result[name] = {
            "average_precision": list_precision(score, wrong, judged),
            "found_among_the_first_322": int(wrong.ravel()[order].sum()),
        }
    best = max((name for name in scores if name != "audit"), key=lambda name: result[name]["average_precision"])
    result["cleanlab_best"] = best
    for name, key in (("audit", "found_by_rank"), (best, "found_by_rank_cleanlab")):
        order = np.argsort(-np.where(judged, scores[name], -1.0), axis=None, kind="stable")
        result[key] = np.cumsum(wrong.ravel()[order])[np.arange(49, 2000, 50)].tolist()
    return result


def by_probability(
    p: Array, wrong: Array, true: Array, names: tuple[str, ...], bands: int = 10
) -> list[dict[str, float]]:
    """Return how many of the true persons are missing, in bands of items by the probability of a person."""
    column, rows = names.index("person"), []
    for band in np.array_split(np.argsort(p, kind="stable"), bands):
        present = band[true[band, column] == 1]
        share = float(wrong[present, column].mean()) if len(present) else float("nan")
        rows.append({"probability": float(p[band].mean()), "persons": len(present), "missing": share})
    return rows


def speed(n: int = 1_000_000, n_labels: int = 80) -> dict[str, Any]:
    """Return the seconds and the memory that ranking and estimates of a large table take."""
    rng = np.random.default_rng(0)
    level = np.linspace(-1, -5, n_labels, dtype=np.float32)
    z = rng.standard_normal(size=(n, n_labels), dtype=np.float32)
    z = 2 * z + level
    p = 1 / (1 + np.exp(-z))
    given = (rng.random((n, n_labels), dtype=np.float32) < 0.01 + 0.94 * p).astype(np.int8)
    labels = sy.Labels(given)
    del z, given
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun, worked = time.perf_counter(), time.process_time()
    result = audit_labels(labels, p)
    seconds, worked = time.perf_counter() - begun, time.process_time() - worked
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    shape = f"{n:,} × {n_labels}"
    times = {"seconds": seconds, "processor_seconds": worked, "load": os.getloadavg()[0]}
    return {
        "shape": shape,
        **times,
        "megabytes_beyond_making_the_table": (peak - before) / 1024,
        "listed": result.wrong.n,
    }


def summary(entries: dict[str, Any]) -> dict[str, Any]:
    """Return means over seeds, cleanlab's best score of each setting, and what is held to."""
    rows: dict[str, Any] = {}
    for share in UNKNOWN_SHARES:
        for name in SETS:
            for kind in KINDS:
                some = [e for key, e in entries.items() if key.rsplit(" ", 1)[0] == f"{name} {kind} {share:g}"]
                if some:
                    means = {k: float(np.mean([e["cleanlab"][k] for e in some])) for k in some[0]["cleanlab"]}
                    best = max(means, key=lambda k: means[k])
                    ours = [e["audit"] for e in some]
                    rows[f"{name} {kind} {share:g}"] = {
                        "audit": float(np.mean(ours)),
                        "cleanlab": means[best],
                        "by": best,
                        "self_confidence": means["self_confidence"],
                        "lowest_gain": min(e["audit"] - e["cleanlab"][best] for e in some),
                        "seeds": len(some),
                        "planted": float(np.mean([e["planted"] for e in some])),
                        **{side: means_of([e[side] for e in some]) for side in ("missing", "added")},
                        "estimated": float(np.mean([e["estimated"] for e in some])),
                    }
    above = {
        s: sum(r["audit"] > r["cleanlab"] for k, r in rows.items() if k.endswith(f" {s:g}")) for s in UNKNOWN_SHARES
    }
    bars = {"settings_above_cleanlab": above[0.0], "settings_above_cleanlab_unknown": above[0.7]}
    return {"rows": rows, "bars": bars}


def means_of(rows: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each value over some rows."""
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def main() -> None:
    """Measure, and add to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--voc2007", type=Path, help="features of VOC 2007, see bench/annotation_sets.py")
    parser.add_argument("--sets", nargs="*", default=SETS)
    parser.add_argument("--seeds", nargs="*", type=int, default=(0, 1, 2))
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    document: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}

    def keep(**parts: Any) -> None:
        document.update(parts, commit=commit())
        document.update(summary(document.get("entries", {})))
        args.out.write_text(json.dumps(document, indent=1) + "\n")

    if args.speed:
        keep(speed=speed())
        print(document["speed"])
    entries = document.get("entries", {})
    for name in args.sets if args.data else ():
        x, y, _, _ = load(name, args.data)
        for seed in args.seeds:
            for share in UNKNOWN_SHARES:
                for kind in KINDS:
                    key = f"{name} {kind} {share:g} {seed}"
                    if key not in entries:
                        given = some_unknown(planted(x, y, kind, seed), share, seed)
                        entries[key] = measured(x, y, given, seed)
                        print(key, {k: v for k, v in entries[key].items() if k != "cleanlab"}, flush=True)
                        keep(entries=entries)
    if args.data and args.voc2007:
        keep(voc2007=real(args.data, args.voc2007))
        print(document["voc2007"])


if __name__ == "__main__":
    main()
