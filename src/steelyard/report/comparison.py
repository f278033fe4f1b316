"""Several runs side by side as one HTML page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.report.canvas import MOST_NAMES, short
from steelyard.report.evaluated import Evaluated
from steelyard.report.headline import Metrics, column, compared, get, percent, rare
from steelyard.report.history import drawable, history_curves, series
from steelyard.report.page import Picture, plot, share, write_page
from steelyard.report.plots import label_points
from steelyard.report.reliability import reliability_diagram


@dataclass(frozen=True)
class ComparedRun:
    """A run in a comparison.

    Attributes:
        name: of the run, distinct within a comparison.
        metrics: its scores, as `Evaluator.compute` returns them.
        evaluated: its outputs.
        history: one mapping per epoch, as in `history.jsonl`.
        page: the address of its own page, relative to the comparison; "" for none.

    Examples:
        >>> import numpy as np
        >>> import steelyard as sy
        >>> outputs = sy.report.Evaluated(["cat"], np.array([9]), np.array([[1], [0]]), np.array([[0.8], [0.3]]))
        >>> sy.report.ComparedRun("bce", {"labels": 1}, outputs).name
        'bce'
    """

    name: str
    metrics: Metrics
    evaluated: Evaluated
    history: Sequence[Mapping[str, Any]] = ()
    page: str = ""


def write_comparison_page(path: str | Path, title: str, runs: Sequence[ComparedRun], about: str = "") -> None:
    """Write a page with several runs side by side to `path`, whole or not at all.

    Args:
        path: the HTML file; one that exists is replaced.
        title: plain text.
        runs: measured on the same items and labels, in the order of the table.
        about: plain text below the title.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> import steelyard as sy
        >>> outputs = sy.report.Evaluated(["cat"], np.array([9]), np.array([[1], [0]]), np.array([[0.8], [0.3]]))
        >>> metrics = {"labels": 1, "mAP": {"label": 1.0}}
        >>> runs = [sy.report.ComparedRun(name, metrics, outputs) for name in ("bce", "plm")]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = Path(folder) / "comparison.html"
        ...     sy.report.write_comparison_page(page, "BCE and PLM", runs)
        ...     page.read_text()[:15]
        '<!doctype html>'
    """
    if not runs:
        raise ValueError("runs is empty: give at least one run to compare")
    if twice := [name for name, n in Counter(run.name for run in runs).items() if n > 1]:
        raise ValueError(f"runs has {twice[0]!r} more than once: give every run a name of its own")
    if other := [run.name for run in runs if list(run.evaluated.names) != list(runs[0].evaluated.names)]:
        raise ValueError(f"run {other[0]!r} has other labels than {runs[0].name!r}: compare runs of the same labels")
    header, rows, best = compared([run.metrics for run in runs])
    few = rare(runs[0].metrics)
    curves = drawable({run.name: series(run.history, "validation", "map") for run in runs})
    write_page(
        path,
        "comparison.html",
        title,
        about=about,
        header=header,
        rows=[(run.name, *map(share, row)) for run, row in zip(runs, rows, strict=True)],
        best={(i, j + 1) for i, j in best},
        rarest=few.name if few else "",
        pages=[run for run in runs if run.page],
        trust=list(_trusts(runs)),
        training=[plot(history_curves(curves, "mAP, %", shares=True), "mAP on validation items after each epoch.")]
        if curves
        else [],
        labels=list(_compared_labels(runs)),
    )


def _trusts(runs: Sequence[ComparedRun]) -> Iterator[Picture]:
    eta = {run.name: run.evaluated.calibration() for run in runs}
    raw = {run.name: run.evaluated.raw_calibration() for run in runs}
    shown = [(eta, "η", "The probabilities of the runs. ")]
    if any(raw.values()):
        raw = {name: raw[name] or eta[name] for name in raw}  # σ(z) may be η
        shown = [(raw, "σ(z)", "The sigmoid of the network's output, taken as a probability. "), *shown]
    for errors, title, text in shown:
        readings = [(f"{short(name)}, ACE {percent(float(e.ace))}", e.bins) for name, e in errors.items() if e]
        if readings:
            yield plot(
                reliability_diagram(readings, intervals=False, title=title),
                f"{text}On the dashed line predicted probability and observed frequency are equal. Below: the number "
                "of labels in each bin, on a log scale.",
            )


def _compared_labels(runs: Sequence[ComparedRun]) -> Iterator[Picture]:
    first = runs[0].evaluated
    scores = {run.name: get(run.metrics, "per_label") or [] for run in runs}
    values = {
        name: np.where(column(rows, "positives") > 0, column(rows, "f1"), np.nan)
        for name, rows in scores.items()
        if len(rows) == len(first.names)
    }
    if values and len(first.names) <= MOST_NAMES:
        yield plot(
            label_points(first.names, first.counts, values, "F1, %", first.head, first.tail),
            "F1 of each label, the most frequent at the top; in brackets its positives in training.",
        )
