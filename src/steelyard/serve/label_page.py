"""Contents of the label pages: measures of a label, frequencies of all, and which occur together."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.data.part import aligned
from steelyard.labels import UNKNOWN, Labels
from steelyard.metrics import calibration_error, label_groups
from steelyard.metrics.measures import number
from steelyard.report.precision_recall import steps
from steelyard.report.reliability import wilson
from steelyard.serve.truth import IndexTruth

BINS = 10
MOST_SHOWN = 12
MOST_TOGETHER = 30
"""Labels of the table of pairs: more are not told apart."""
_MOST_POINTS = 300
NOT_MEASURED: dict[str, Any] = {
    **dict.fromkeys(("average_precision", "calibration_error", "bins", "curve")),
    "n_items": 0,
    "n_present": 0,
    "right": [],
    "wrong": [],
    "missed": [],
}
"""The result of `performance` where no labels are known."""


def performance(label: int, truth: IndexTruth) -> dict[str, Any]:
    """Return all measures of a label on items whose labels are known, see `api_types.LabelPage`."""
    known = truth.targets[:, label] != UNKNOWN
    p = truth.probabilities[known, label].astype(np.float64)
    present = truth.targets[known, label] >= 0.5
    ids = np.array(truth.ids, object)[known]
    curve = _curve(p, present) if present.any() else None
    return {
        "n_items": len(p),
        "n_present": int(present.sum()),
        "average_precision": None if curve is None else curve.pop("area"),
        **_reliability(truth.probabilities[known, label], truth.targets[known, label]),
        "curve": curve,
        "right": _shown(ids, p, present, -p),
        "wrong": _shown(ids, p, ~present, -p),
        "missed": _shown(ids, p, present, p),
    }


def neighbours(label: int, labels: Labels) -> list[dict[str, Any]]:
    """Return the labels that most often come with a label."""
    starts, items = labels.items_by_label()
    own = items[starts[label] : starts[label + 1]]
    if not len(own):
        return []
    rows = labels.rows(own)
    known = (rows != UNKNOWN).sum(0)
    share = np.divide((rows >= 0.5).sum(0), known, out=np.zeros(labels.n_labels), where=known > 0)
    share[label] = 0
    best = np.argsort(-share, kind="stable")[:8]
    return [{"label": labels.names[i], "share": float(share[i])} for i in best.tolist() if share[i] > 0]


def _reliability(p: NDArray[Any], targets: NDArray[Any]) -> dict[str, Any]:
    if not len(p):
        return {"calibration_error": None, "bins": None}
    calibration = calibration_error(p[:, None], targets[:, None], BINS)
    n, frequency = np.asarray(calibration.bins.counts), np.asarray(calibration.bins.frequency)
    with np.errstate(invalid="ignore", divide="ignore"):
        low, high = wilson(frequency, n)
    bins = {
        "edges": numbers(calibration.bins.edges),
        "counts": [int(x) for x in n],
        "confidence": numbers(calibration.bins.confidence),
        "frequency": numbers(frequency),
        "low": numbers(low),
        "high": numbers(high),
    }
    return {"calibration_error": number(calibration.ece), "bins": bins}


def _curve(p: NDArray[np.float64], present: NDArray[np.bool_]) -> dict[str, Any]:
    """Return precision and recall of the items at or above each distinct probability, descending."""
    curve = steps(p, present)
    n, half = len(curve.n_decided), _MOST_POINTS // 2
    kept = np.arange(n)
    if n > _MOST_POINTS:  # the first ones matter most: half of the points evenly, half ever denser to the front
        kept = np.unique(np.concatenate([np.linspace(0, n - 1, half), np.geomspace(1, n, half) - 1]).astype(np.int64))
    return {
        "area": curve.area,
        "threshold": [float(x) for x in curve.scores[kept]],
        "precision": numbers(curve.precision[kept]),
        "recall": numbers(curve.recall[kept]),
        "decided": [int(x) for x in curve.n_decided[kept]],
    }


def _shown(
    ids: NDArray[Any], p: NDArray[np.float64], among: NDArray[np.bool_], order: NDArray[np.float64]
) -> list[dict[str, Any]]:
    rows = np.flatnonzero(among)
    best = rows[np.argsort(order[rows], kind="stable")[:MOST_SHOWN]]
    return [{"id": ids[i], "probability": float(p[i])} for i in best.tolist()]


def co_occurrence(labels: Labels | None) -> dict[str, Any]:
    """Return p(i|j) and counts of pairs among the most frequent labels, see `api_types.DataPage`."""
    nothing: dict[str, Any] = {"together": [], "conditional": [], "both": []}
    if labels is None or not labels.counts.any():
        return nothing
    frequent = np.argsort(-labels.counts, kind="stable")[:MOST_TOGETHER].tolist()
    names = [labels.names[c] for c in frequent if labels.counts[c]]
    few = aligned(labels, names, unseen="drop")
    return {
        "together": names,
        "conditional": [numbers(row, 4) for row in few.conditional()],
        "both": [[int(n) for n in row] for row in few.cooccurrence()],
    }


def frequencies(facts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the labels by frequency, and how uneven they are."""
    seen = [fact["positives"] for fact in facts if fact["positives"]]
    groups = label_groups(np.array([fact["positives"] or 0 for fact in facts], float), 100, 20)
    return {
        "labels": sorted(facts, key=lambda fact: (-(fact["positives"] or 0), fact["name"])),
        "imbalance": number(max(seen) / min(seen)) if seen else None,
        "groups": {name: len(members) for name, members in groups.items()},
    }


def numbers(values: Any, digits: int = 6) -> list[float | None]:
    """Return plain numbers for JSON, rounded."""
    return [None if not math.isfinite(v) else round(v, digits) for v in map(float, values)]
