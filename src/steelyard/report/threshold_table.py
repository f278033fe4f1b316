"""Decisions at the thresholds, label by label, for metrics.json and the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text
from torch import Tensor

from steelyard.calibrate.aim import Aim
from steelyard.calibrate.guarantees import GuaranteeReport
from steelyard.calibrate.probability import ProbabilityModel
from steelyard.labels import UNKNOWN
from steelyard.metrics.measures import number
from steelyard.report.headline import decided, never_decided
from steelyard.report.headline import per_cent as percent
from steelyard.report.reliability import wilson
from steelyard.report.scores import right_aligned
from steelyard.report.terminal import plain, say

Decisions: TypeAlias = dict[str, Any]

MOST_ROWS = 20
"""Most labels that are printed."""
_COLUMNS = ("threshold", "precision", "95 % interval", "recall", "decided", "of items", "")


def threshold_rows(
    probability_model: ProbabilityModel, names: Sequence[str], decided: Tensor, targets: Tensor
) -> Decisions:
    """Return the scores of decisions on some items, as plain JSON: the goal, and one entry per label.

    An entry has `threshold`, null where the label is `never` decided present; `precision` of the decided items whose
    label is known, with Wilson's 95 % interval; `recall`; `decided`, the number of decided items, and their `share`;
    `frequency` among known items; `positives` in training; and `reached`, whether the target precision or recall is
    reached, null where there is no target or nothing is known. The list `never` names the labels never decided.

    Args:
        reading: the probability model with the thresholds.
        names: of the labels, (L,).
        decided: labels decided present, bool (N, L); where thresholds were chosen on these items, by thresholds that
            others chose, since the best of many on the items themselves flatters.
        targets: (N, L).
    """
    known, present = targets != UNKNOWN, (targets >= 0.5) & (targets != UNKNOWN)
    hits, judged, positives, n_known, n_decided = (
        x.sum(0).double().numpy() for x in (decided & present, decided & known, present, known, decided)
    )
    precision, recall, frequency = (_over(*pair) for pair in ((hits, judged), (hits, positives), (positives, n_known)))
    low, high = wilson(np.nan_to_num(precision), np.maximum(judged, 1))
    targeted = {"precision": precision, "recall": recall}.get(probability_model.aim.goal)
    limits = probability_model.thresholds
    labels = [
        {
            "label": name,
            "threshold": number(limits[c]),
            "never": bool(np.isposinf(limits[c])),
            "precision": number(precision[c]),
            "precision_interval": [max(float(low[c]), 0.0), min(float(high[c]), 1.0)] if judged[c] else None,
            "recall": number(recall[c]),
            "decided": int(n_decided[c]),
            "share": number(n_decided[c] / len(targets)) if len(targets) else None,
            "frequency": number(frequency[c]),
            "positives": int(probability_model.counts[c]),
            "reached": None
            if targeted is None or np.isnan(targeted[c])
            else bool(targeted[c] >= probability_model.aim.target),
        }
        for c, name in enumerate(names)
    ]
    return {
        "goal": probability_model.aim.goal,
        "target": probability_model.aim.target if probability_model.aim.goal in ("precision", "recall") else None,
        "chosen_on_items": probability_model.chosen_thresholds is not None,
        "items": len(targets),
        "heading": heading(probability_model.aim, probability_model.chosen_thresholds is not None),
        "never": [row["label"] for row in labels if row["never"]],
        "labels": labels,
    }


def heading(aim: Aim, chosen: bool) -> str:
    """Return the goal of thresholds, with the target, in words."""
    if aim.promise is not None and chosen:
        return f"Thresholds that guarantee a {aim.goal} of at least {percent(aim.target)} %"
    if aim.needs_items and not chosen:
        return "Thresholds: ½ for every label, since no items were held out to choose them on"
    if aim.goal == "cost":
        costs = f"a false positive costs {aim.false_positive_cost:g}, a miss {aim.false_negative_cost:g}"
        return f"Thresholds for the least cost, where {costs}"
    return {
        "half": "Thresholds: ½ for every label",
        "f1": "Thresholds for the best F1",
        "precision": f"Thresholds for a precision of at least {percent(aim.target)} %, with the most recall",
        "recall": f"Thresholds for a recall of at least {percent(aim.target)} %, with the most precision",
    }[aim.goal]


def promise_rows(report: GuaranteeReport, names: Sequence[str]) -> dict[str, Any]:
    """Return which labels have a guarantee, as plain JSON: its sentence, and one entry per label."""
    promise = report.promise
    promised, counted = (np.asarray(x) for x in (report.promised, report.counted))
    labels = [
        {"label": name, "promised": bool(promised[c]), "items": int(counted[c]), "why": report.why[c]}
        for c, name in enumerate(names)
    ]
    terms = {name: getattr(promise, name) for name in ("guarantee", "goal", "level", "confidence", "joint")}
    if promise.guarantee == "expected":
        del terms["confidence"], terms["joint"]
    return {**terms, "sentence": promise.sentence, "labels": labels}


def show_promise(rows: Mapping[str, Any], console: Console) -> None:
    """Print the guarantee, the items it rests on, and the labels without one."""
    say(console, f"\n{rows['sentence']}")
    without = [row for row in rows["labels"] if not row["promised"]]
    for row in without[:MOST_ROWS]:
        say(console, f"No guarantee possible for {plain(row['label'])}: {row['why']}.", "yellow")
    if len(without) > MOST_ROWS:
        say(console, f"and for {len(without) - MOST_ROWS:,} more labels, see metrics.json", "yellow")
    if without:
        say(console, f"They are {'always' if rows['goal'] == 'recall' else 'never'} decided.", "yellow")


def show_thresholds(metrics: Mapping[str, Any], console: Console) -> None:
    """Print the table for the items that thresholds were chosen on, else for the first part of `metrics.json`."""
    part = metrics.get("validation") or next(iter(metrics.values()), None)
    if part is not None and part.get("thresholds") is not None:
        show_table(part["thresholds"], console)


def show_table(decisions: Decisions, console: Console) -> None:
    """Print at most 20 labels, rarest in training first, and the labels that are never decided."""
    rows = sorted(decisions["labels"], key=lambda row: row["positives"])
    table = right_aligned("label", *_COLUMNS, widest=40)
    for row in rows[:MOST_ROWS]:
        how_often = (f"{row['decided']:,}", percent(row["share"]))
        table.add_row(Text(plain(row["label"])), *decided(row), *how_often, _remark(row, decisions["goal"]))
    console.print()
    console.print(Text(f"{decisions['heading']} (on {decisions['items']:,} items, rarest labels first)", "bold"))
    console.print(table)
    if len(rows) > MOST_ROWS:
        say(console, f"and {len(rows) - MOST_ROWS:,} more in metrics.json")
    if never := never_decided(decisions):
        say(console, plain(never), "yellow")


def _remark(row: Mapping[str, Any], goal: str) -> str:
    if row["never"]:
        return "unreachable" if goal == "precision" else ""
    return "below target" if row["reached"] is False else ""


def _over(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(a, b, out=np.full_like(a, np.nan), where=b > 0)
