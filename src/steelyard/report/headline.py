"""The main numbers of an evaluation, each with a sentence that explains it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from steelyard._arrays import Array
from steelyard._console import probability as probability
from steelyard.labels.matching import some_labels

Metrics = Mapping[str, Any]


class Number(NamedTuple):
    """A main number: its name, its text and one sentence that explains it."""

    name: str
    value: str
    meaning: str


def get(tree: Any, *path: str) -> Any:
    """Return the value at `path` in nested dicts, None where it is missing."""
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def fitted_without(how: Metrics, before: str = "") -> str:
    """Return how items were scored that were used for fitting, "" for others; `how`: the part "reading" of metrics."""
    if how.get("by_folds"):
        return f"{before}each training item is scored by models and a calibrator that were not fitted to it"
    return f"{before}each item is scored by a calibrator that was not fitted to it" if how.get("out_of_fold") else ""


def column(rows: Sequence[Metrics], name: str) -> Array:
    """Return one number of each row, NaN where it is missing."""
    return np.array([row.get(name) for row in rows], dtype=np.float64)


def groups_of(metrics: Metrics) -> dict[str, Metrics]:
    """Return the metrics of each group of labels, without empty groups, and of the rarest labels, by name."""
    groups = {name: part for name, part in (get(metrics, "groups") or {}).items() if part.get("labels")}
    return groups | {f"{k} rarest": part for k, part in (get(metrics, "rarest") or {}).items()}


def scores_of(part: Metrics) -> tuple[float | None, ...]:
    """Return mAP, F1, precision, recall, ACE and the ACE of perfect probabilities, of a group of labels."""
    macro = (get(part, "macro", name) for name in ("f1", "precision", "recall"))
    return part.get("mAP"), *macro, part.get("ace"), get(part, "by_chance", "ace")


class Rare(NamedTuple):
    """The rarest labels of a report: their name and their metrics."""

    name: str
    part: Metrics


def rare(metrics: Metrics) -> Rare | None:
    """Return the labels of the smallest tail-K, else the tail group; None where that is no label or all labels."""
    by_k = get(metrics, "rarest") or {}
    if by_k:
        k = min(by_k, key=int)
        rarest = Rare("rarest label" if k == "1" else f"{k} rarest labels", by_k[k])
    else:
        rarest = Rare("tail labels", get(metrics, "groups", "tail") or {})
    return rarest if 0 < rarest.part.get("labels", 0) < get(metrics, "labels") else None


def plural(n: int, noun: str) -> str:
    """Return "1 label", "2 labels"."""
    return f"{n:,} {noun}{'s' * (n != 1)}"


def per_cent(share: float | None) -> str:
    """Return a share in per cent with one decimal, – where it is not defined; only 0 and 1 are 0.0 and 100.0."""
    if share is None or math.isnan(share):
        return "–"
    if 0 < share < 0.0005:
        return "<0.1"
    return ">99.9" if 0.9995 <= share < 1 else f"{100 * share:.1f}"


def percent(share: float | None) -> str:
    """Return a share in per cent with its sign, such as 8.3 %."""
    written = per_cent(share)
    return written if written == "–" else f"{written} %"


def ends(interval: Sequence[float] | None) -> str:
    """Return both ends of an interval of shares in per cent, – where there is none."""
    return "–" if not interval or None in interval else f"{per_cent(interval[0])} to {per_cent(interval[1])}"


def four(value: float | None) -> str:
    """Return a number with four decimals, – for None."""
    return "–" if value is None else f"{value:.4f}"


def decided(row: Metrics) -> tuple[str, str, str, str]:
    """Return threshold, precision, its interval and recall of a row of `threshold_rows`."""
    limit = "never" if row["never"] or row["threshold"] is None else probability(row["threshold"])
    return limit, per_cent(row["precision"]), ends(row["precision_interval"]), per_cent(row["recall"])


def never_decided(decisions: Metrics) -> str:
    """Return a sentence that counts and names the labels that are never decided; "" for none."""
    if not (never := decisions.get("never")):
        return ""
    why = "no threshold reaches the target" if decisions["goal"] == "precision" else "no threshold is worth it"
    return f"Never decided, since {why}: {len(never):,} of {len(decisions['labels']):,} labels ({some_labels(never)})."


def headline(metrics: Metrics, raw_ace: float | None = None) -> Iterator[Number]:
    """Yield the numbers that a report opens with; `raw_ace` is the error if σ(z) were read as a probability."""
    if (value := get(metrics, "mAP", "label")) is not None:
        left = get(metrics, "mAP", "labels_left_out") or 0
        n = metrics["labels"] - left
        over = f"the mean over {plural(n, 'label')}"
        without = f", {left:,} without a positive left out" if left else ""
        text = f"How well each label ranks the items: average precision, {over}{without}."
        yield Number("mAP", percent(value), text + _interval(metrics, "mAP", "label"))
    if (value := get(metrics, "macro", "f1")) is not None:
        micro = get(metrics, "micro", "f1")
        pooled = "" if micro is None else f" ({percent(micro)} with all labels pooled)"
        text = f"How good decisions at the thresholds are, the mean over labels{pooled}."
        yield Number("F1", percent(value), text + _interval(metrics, "macro", "f1"))
    if (few := rare(metrics)) and (value := get(few.part, "macro", "f1")) is not None:
        yield Number(f"F1 of the {few.name}", percent(value), "The same where training had the fewest examples.")
    if (value := get(metrics, "calibration", "pooled", "width", "ace")) is not None:
        raw = "" if raw_ace is None else f" With σ(z) instead it is {percent(raw_ace)}."
        chance = get(metrics, "calibration", "pooled", "width", "by_chance", "ace")
        least = "" if chance is None else f" Perfect probabilities would show {percent(chance)} by chance."
        text = f"Mean distance between predicted probability and observed frequency.{least}{raw}"
        yield Number("Calibration error (ACE)", percent(value), text)
    if (value := get(metrics, "single_label", "accuracy")) is not None:
        yield Number("Accuracy", percent(value), "Items whose most probable label is theirs.")
    if (value := get(metrics, "exact_match")) is not None:
        yield Number("All labels right", percent(value), "Items with every known label decided correctly.")


def _interval(metrics: Metrics, *path: str) -> str:
    interval = get(metrics, "intervals", *path)
    low, high = interval or (None, None)
    share = get(metrics, "intervals", "confidence")
    return f" {100 * share:g} % interval: {per_cent(low)} to {percent(high)}." if None not in (share, low, high) else ""


_COLUMNS = {
    "mAP": ("mAP", "label"),
    "F1": ("macro", "f1"),
    "F1 of the rarest": ("rare", "macro", "f1"),
    "ACE": ("calibration", "pooled", "width", "ace"),
    "F1 pooled": ("micro", "f1"),
    "all labels right": ("exact_match",),
    "accuracy": ("single_label", "accuracy"),
    "Brier": ("brier",),
}
_LOWER_IS_BETTER = ("ACE", "Brier")


def compared(reports: Sequence[Metrics]) -> tuple[list[str], list[list[float | None]], set[tuple[int, int]]]:
    """Return the columns that some report has, one row of scores per report, and the best cells of each column."""
    whole = [{**m, "rare": few.part if (few := rare(m)) else None} for m in reports]
    columns = [name for name, path in _COLUMNS.items() if any(get(m, *path) is not None for m in whole)]
    rows = [[get(m, *_COLUMNS[name]) for name in columns] for m in whole]
    best = set()
    for j, name in enumerate(columns):
        values = [value for row in rows if (value := row[j]) is not None]
        target = min(values) if name in _LOWER_IS_BETTER else max(values)
        best |= {(i, j) for i, row in enumerate(rows) if row[j] == target}
    return columns, rows, best
