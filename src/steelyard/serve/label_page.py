"""How one label does: reliability, precision and recall, and the items it is surest about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.labels import UNKNOWN, Labels
from steelyard.metrics import calibration_error
from steelyard.metrics.measures import number
from steelyard.report.precision_recall import steps
from steelyard.report.reliability import wilson
from steelyard.serve.replies import numbers
from steelyard.serve.truth import Judged

BINS = 10
MOST_SHOWN = 12
_MOST_POINTS = 300


def performance(label: int, judged: Judged) -> dict[str, Any]:
    """Return all that is measured of a label on items whose truth is known, see `shapes.LabelPage`."""
    known = judged.targets[:, label] != UNKNOWN
    p = judged.probabilities[known, label].astype(np.float64)
    present = judged.targets[known, label] >= 0.5
    ids = np.array(judged.ids, object)[known]
    curve = _curve(p, present) if present.any() else None
    return {
        "n_items": len(p),
        "n_present": int(present.sum()),
        "average_precision": None if curve is None else curve.pop("area"),
        **_reliability(judged.probabilities[known, label], judged.targets[known, label]),
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
    found = calibration_error(p[:, None], targets[:, None], BINS)
    n, frequency = np.asarray(found.bins.counts), np.asarray(found.bins.frequency)
    with np.errstate(invalid="ignore", divide="ignore"):
        low, high = wilson(frequency, n)
    bins = {
        "edges": numbers(found.bins.edges),
        "counts": [int(x) for x in n],
        "confidence": numbers(found.bins.confidence),
        "frequency": numbers(frequency),
        "low": numbers(low),
        "high": numbers(high),
    }
    return {"calibration_error": number(found.ece), "bins": bins}


def _curve(p: NDArray[np.float64], present: NDArray[np.bool_]) -> dict[str, Any]:
    """Precision and recall at the distinct probabilities, descending: at each, what is at or above it."""
    found = steps(p, present)
    n, half = len(found.said), _MOST_POINTS // 2
    kept: Sequence[int] | NDArray[np.int64] = range(n)
    if n > _MOST_POINTS:  # the first ones matter most: half of the points evenly, half ever denser to the front
        kept = np.unique(np.concatenate([np.linspace(0, n - 1, half), np.geomspace(1, n, half) - 1]).astype(np.int64))
    at = np.asarray(kept)
    return {
        "area": found.area,
        "threshold": [float(x) for x in found.scores[at]],
        "precision": numbers(found.precision[at]),
        "recall": numbers(found.recall[at]),
        "said": [int(x) for x in found.said[at]],
    }


def _shown(
    ids: NDArray[Any], p: NDArray[np.float64], among: NDArray[np.bool_], order: NDArray[np.float64]
) -> list[dict[str, Any]]:
    places = np.flatnonzero(among)
    best = places[np.argsort(order[places], kind="stable")[:MOST_SHOWN]]
    return [{"id": ids[i], "probability": float(p[i])} for i in best.tolist()]
