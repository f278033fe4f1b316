"""Several runs side by side as one HTML page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.report import page
from steelyard.report.canvas import short
from steelyard.report.evaluated import Evaluated
from steelyard.report.headline import Metrics, column, compared, get, percent, rare
from steelyard.report.history import drawable, history_curves, series
from steelyard.report.label_scores import fits, label_points
from steelyard.report.reliability import reliability_diagram


@dataclass(frozen=True)
class ComparedRun:
    """A run in a comparison: its name, its metrics as `Evaluator.compute` gives them, and its outputs.

    `history` as in `history.jsonl`; `page`, the address of its own page relative to the comparison.
    """

    name: str
    metrics: Metrics
    evaluated: Evaluated
    history: Sequence[Mapping[str, Any]] = ()
    page: str = ""


def write_comparison_page(path: str | Path, title: str, runs: Sequence[ComparedRun], about: str = "") -> None:
    """Write a page with several runs side by side to `path`, whole or not at all.

    - `title` and `about`, plain texts; `runs`, judged on the same items and labels, in the order of the table.
    """
    if not runs:
        raise ValueError("runs is empty: give at least one run to compare")
    if twice := [name for name, n in Counter(run.name for run in runs).items() if n > 1]:
        raise ValueError(f"runs has {twice[0]!r} more than once: give every run a name of its own")
    if other := [run.name for run in runs if list(run.evaluated.names) != list(runs[0].evaluated.names)]:
        raise ValueError(f"run {other[0]!r} has other labels than {runs[0].name!r}: compare runs of the same labels")
    header, rows, best = compared([run.metrics for run in runs])
    few = rare(runs[0].metrics)
    parts = [page.paragraph(about)] if about else []
    parts.append(
        page.table(
            ("run", *header),
            ((run.name, *row) for run, row in zip(runs, rows, strict=True)),
            places=2,
            best={(i, j + 1) for i, j in best},
        )
    )
    parts.append(page.paragraph(_reading(header, few.name if few else "")))
    if any(run.page for run in runs):
        parts.append(page.links((run.name, run.page) for run in runs if run.page))
    if drawn := list(_trusts(runs)):
        parts += [page.heading("Can the probabilities be trusted?"), page.panels(drawn)]
    if curves := drawable({run.name: series(run.history, "validation", "map") for run in runs}):
        parts.append(page.heading("How training went"))
        shown = history_curves(curves, "mAP")
        parts.append(page.panels([page.plot(shown, "mAP on validation items after each epoch.")]))
    parts += _compared_labels(runs)
    page.write_page(path, title, parts)


def _reading(header: Sequence[str], rarest: str) -> str:
    text = {
        "mAP": "mAP: average precision, the mean over labels.",
        "F1": "F1: decisions at each label's threshold, the mean over labels.",
        "F1 of the rarest": f"F1 of the rarest: the {rarest}.",
        "ACE": "ACE: how far a probability is from the share that is present, on average over bins; lower is better.",
        "Brier": "Brier: the mean squared error of a probability; lower is better.",
    }
    said = " ".join(meaning for name, meaning in text.items() if name in header)
    return f"All in %; ★ marks the best of each column. {said}"


def _trusts(runs: Sequence[ComparedRun]) -> Iterator[str]:
    read = {run.name: run.evaluated.calibration() for run in runs}
    raw = {run.name: run.evaluated.raw_calibration() or read[run.name] for run in runs}  # σ(z) may be η
    as_sigma = any(raw[name] is not read[name] for name in raw)
    for found, title, text in (
        (raw, "σ(z)", "What the nets give, read as if it were a probability: σ(z). "),
        (read, "η", "The probabilities that the runs report. "),
    ):
        if any(found.values()) and (found is read or as_sigma):
            yield page.plot(
                reliability_diagram(
                    [(f"{short(name)}, ACE {percent(float(e.ace))}", e.bins) for name, e in found.items() if e],
                    intervals=False,
                    title=title,
                ),
                f"{text}On the dashed line a probability says the truth. Below: cells in each bin, on a log scale.",
            )


def _compared_labels(runs: Sequence[ComparedRun]) -> Iterator[str]:
    first = runs[0].evaluated
    if not fits(len(first.names)):
        return
    scores = {run.name: get(run.metrics, "per_label") or [] for run in runs}
    scores = {name: rows for name, rows in scores.items() if len(rows) == len(first.names)}
    if scores:
        values = {
            name: np.where(column(rows, "positives") > 0, column(rows, "f1"), np.nan) for name, rows in scores.items()
        }
        yield page.heading("Which labels do they find?")
        drawn = label_points(first.names, first.counts, values, "F1", first.head, first.tail)
        yield page.panels(
            [
                page.plot(
                    drawn, "F1 of each label, the most frequent at the top; beside its name its training positives."
                )
            ]
        )
