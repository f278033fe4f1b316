"""The labels of the training data: how frequent each is, and which come together."""

from __future__ import annotations

from typing import Any

import numpy as np

from steelyard.data.part import aligned
from steelyard.labels import Labels
from steelyard.metrics import label_groups
from steelyard.metrics.measures import number
from steelyard.serve.replies import numbers

MOST_TOGETHER = 30
"""Labels of the table of pairs: more are not told apart."""


def co_occurrence(labels: Labels) -> dict[str, Any]:
    """Return p(i|j) and counts of pairs among the most frequent labels, see `shapes.DataPage`."""
    best = np.argsort(-labels.counts, kind="stable")[:MOST_TOGETHER]
    best = best[labels.counts[best] > 0]
    names = [labels.names[i] for i in best.tolist()]
    if not names:
        return {"together": [], "conditional": [], "both": []}
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
