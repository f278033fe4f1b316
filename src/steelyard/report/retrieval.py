"""The mAP of searching with several runs, by the number of terms in a query: a table and a plot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.text import Text

from steelyard.metrics.measures import number
from steelyard.metrics.retrieval import Progress, RetrievalMap, retrieval_map
from steelyard.report.canvas import PANEL, SIGMOID, drawing, key, look, short
from steelyard.report.evaluated import Evaluated
from steelyard.report.headline import per_cent as percent
from steelyard.report.headline import plural
from steelyard.report.page import plot, share, write_page
from steelyard.report.scores import right_aligned
from steelyard.report.terminal import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class RunRetrieval:
    """Search scores of one run."""

    name: str
    by_eta: RetrievalMap
    """Scores of searching by its η."""
    by_sigmoid: RetrievalMap | None
    """Scores of searching by σ(z); None where that is η, or there are no logits."""


@dataclass(frozen=True, eq=False)
class Study:
    """Search scores of several runs for the same queries over the same items."""

    runs: tuple[RunRetrieval, ...]
    n_items: int
    n_labels: int
    confidence: float

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON."""
        return {
            "items": self.n_items,
            "labels": self.n_labels,
            "confidence": self.confidence,
            "runs": [
                {
                    "name": run.name,
                    **_plain(run.by_eta),
                    "by_sigmoid": None if run.by_sigmoid is None else _plain(run.by_sigmoid),
                }
                for run in self.runs
            ],
        }


def study(
    runs: Mapping[str, Evaluated],
    max_terms: int = 5,
    exact_up_to: int = 500_000,
    samples: int = 20_000,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Progress | None = None,
) -> Study:
    """Return the mAP of searching with each run, by the number of terms in a query.

    Args:
        runs: by their names, with probabilities of the same items; labels are matched by name, and must be the same.
        max_terms, exact_up_to, samples, confidence, seed, progress: as for `metrics.retrieval_map`; with one seed the
            sampled queries of all runs are the same.
    """
    if not runs:
        raise ValueError("there is no run to search with: give at least one")
    first_name, first = next(iter(runs.items()))
    searched = []
    for name, run in runs.items():
        if different := set(run.names) ^ set(first.names):
            raise ValueError(
                f"{name} and {first_name} do not both have the label {min(different)!r}: compare runs that do"
            )
        columns = [list(run.names).index(label) for label in first.names]
        targets = run.targets[:, columns]
        if not np.array_equal(targets, first.targets):
            raise ValueError(
                f"{name} was measured on other items than {first_name} ({len(targets):,} and {len(first.targets):,}): "
                "give items for all of them with --data"
            )
        arguments = (max_terms, exact_up_to, samples, confidence, seed, progress)
        raw = run.sigmoid()
        by_sigmoid = None if raw is None else retrieval_map(raw[:, columns], targets, *arguments)
        searched.append(RunRetrieval(name, retrieval_map(run.scores[:, columns], targets, *arguments), by_sigmoid))
    return Study(tuple(searched), first.n_items, len(first.names), confidence)


def show(study: Study, console: Console) -> None:
    """Print one row per run: mAP over all queries and by their number of terms, in per cent."""
    header, rows = _table(study)
    table = right_aligned(*header)
    for name, *values in rows:
        table.add_row(Text(plain(name)), *map(percent, values))
    console.print(Text(f"Searching {study.n_items:,} items by queries over {study.n_labels:,} labels: mAP, %", "bold"))
    console.print(table)
    console.print(Text(_note(study)))


def write_study(study: Study, path: str | Path, title: str = "Searching by several labels") -> None:
    """Write the table and the plot as one HTML page, whole or not at all."""
    header, rows = _table(study)
    solid = {run.name: _curve(run.by_eta) for run in study.runs}
    dashed = {run.name: _curve(run.by_sigmoid) for run in study.runs if run.by_sigmoid is not None}
    caption = "mAP over queries by their number of terms" + (", dashed by σ(z) instead of η." if dashed else ".")
    caption += f" Below: what each is above {study.runs[0].name}." if len(study.runs) > 1 else ""
    best: set[tuple[int, int]] = set()
    for j in range(1, len(header) if len(rows) > 1 else 1):
        values = [-1.0 if row[j] is None else row[j] for row in rows]
        best |= {(int(np.argmax(values)), j)} if max(values) >= 0 else set()
    write_page(
        path,
        "retrieval.html",
        title,
        header=header,
        rows=[[row[0], *map(share, row[1:])] for row in rows],
        best=best,
        n_items=study.n_items,
        n_labels=study.n_labels,
        note=_note(study),
        plot=plot(retrieval_curves(solid, dashed), caption),
    )


def _table(study: Study) -> tuple[list[str], list[list[Any]]]:
    """Return the header, and for each run a row for η and a row for σ(z)."""
    terms = list(study.runs[0].by_eta.by_terms)
    rows = [
        [name, number(result.overall), *(number(result.by_terms[k]) for k in terms)]
        for run in study.runs
        for name, result in ((run.name, run.by_eta), (f"{run.name}, by σ(z)", run.by_sigmoid))
        if result is not None
    ]
    return ["run", "all queries", *(plural(k, "term") for k in terms)], rows


def _note(study: Study) -> str:
    """Return a sentence about the number of queries and the precision of the means."""
    first = study.runs[0].by_eta
    if first.exact:
        return f"All {first.n_queries:,} queries that have an answer were scored."
    half = max((high - low) / 2 for run in study.runs for low, high in run.by_eta.interval_by_terms.values())
    return (
        f"{first.n_scored:,} of about {first.n_queries:,} queries were scored: the means are off by less than "
        f"{100 * half:.2f} points at a confidence of {100 * study.confidence:g} %."
    )


def _plain(result: RetrievalMap) -> dict[str, Any]:
    """Return a result as plain JSON."""
    return {
        "mAP": number(result.overall),
        "interval": [number(end) for end in result.interval],
        "by_terms": {
            str(k): {
                "mAP": number(value),
                "interval": [number(end) for end in result.interval_by_terms[k]],
                "queries": result.n_queries_by_terms[k],
            }
            for k, value in result.by_terms.items()
        },
        "queries": result.n_queries,
        "scored": result.n_scored,
        "exact": result.exact,
    }


def _curve(result: RetrievalMap) -> RetrievalCurve:
    return RetrievalCurve(result.by_terms, result.interval_by_terms)


class RetrievalCurve(NamedTuple):
    """The mAP of one run by the number of terms in a query, with intervals where queries were sampled."""

    by_terms: Mapping[int, float]
    intervals: Mapping[int, tuple[float, float]]


def retrieval_curves(
    curves: Mapping[str, RetrievalCurve], dashed: Mapping[str, RetrievalCurve] | None = None
) -> Figure:
    """Draw mAP in per cent against the number of terms in a query, one line per run, with intervals where sampled.

    With several runs, a second panel shows the difference from the first, since lines may hide each other.

    - `curves`: by the name of the run, in the order to draw.
    - `dashed`: by σ(z) instead of η, drawn dashed: in the colours of several runs, of one in that of σ(z).
    """
    several, place = len(curves) > 1, {name: i for i, name in enumerate(curves)}
    drawn = [(short(name), curve, "-", place[name]) for name, curve in curves.items()]
    for name, curve in (dashed or {}).items():
        # matplotlib leaves a label that begins with _ out of the legend
        drawn.append(("_" if several else f"{short(name)}, by σ(z)", curve, "--", place[name] if several else SIGMOID))
    grid = {"nrows": 2, "sharex": True, "gridspec_kw": {"height_ratios": (3, 2)}} if several else {}
    with drawing(PANEL, 5.4 if several else 3.6, squeeze=False, **grid) as (figure, panels):
        axes = panels[0, 0]
        for label, curve, line, i in drawn:
            style = {**look(i), "ms": 4.5, "lw": 1.5, "ls": line, "clip_on": False}
            terms = [k for k, value in curve.by_terms.items() if np.isfinite(value)]
            values = 100 * np.array([curve.by_terms[k] for k in terms])
            axes.plot(terms, values, label=label, **style)
            ends = 100 * np.array([curve.intervals[k] for k in terms]).reshape(-1, 2)
            if np.ptp(ends, axis=1).any():
                axes.fill_between(terms, ends[:, 0], ends[:, 1], color=style["color"], alpha=0.2, lw=0)
            if several:
                first = 100 * np.array([drawn[0][1].by_terms.get(k, np.nan) for k in terms])
                panels[1, 0].plot(terms, values - first, **style)
        axes.set_ylabel("mAP over queries, %")
        axes.set_ylim(bottom=0)
        if several:
            panels[1, 0].set_ylabel(f"above {short(drawn[0][0], 14)}, points")
        for panel in panels[:, 0]:
            panel.grid(True)
        panels[-1, 0].set_xticks(sorted({k for curve in curves.values() for k in curve.by_terms}))
        panels[-1, 0].set_xlabel("terms in a query")
        key(figure, axes, columns=2)
    return figure
