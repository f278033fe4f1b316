"""How well runs are searched with, by the number of terms of a query: several side by side, a table and a plot."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from steelyard.folder.run_folder import Trained
from steelyard.metrics.measures import number
from steelyard.metrics.retrieval import Progress, RetrievalMap, retrieval_map
from steelyard.report import page
from steelyard.report.retrieval import RetrievalCurve, retrieval_curves
from steelyard.report.scores import percent
from steelyard.report.terminal import plain
from steelyard.run.evaluation import Judged

ABOUT = (
    "A query desires some labels and not others, such as person, dog, not car. Items are ranked by the product of "
    "η of the desired and 1 − η of the undesired labels; right are those with all the desired and none of the "
    "undesired ones. mAP is the mean average precision over all queries that have an answer."
)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A run to be searched with: what it says of items, and what is true of them."""

    name: str
    labels: tuple[str, ...]
    probabilities: Tensor
    """η, (N, L)."""
    targets: Tensor
    """(N, L)."""
    logits: Tensor | None = None
    """z, (N, L), by which σ(z) is searched with for comparison; None leaves that out."""

    @classmethod
    def of(cls, name: str, trained: Trained, judged: Judged) -> Candidate:
        """Return a run whose items were judged by `evaluation.judge`."""
        if not judged.reading.has_probability:
            raise ValueError(
                f"{name} cannot be searched with, it has no probabilities, since {judged.reading.why}: run "
                f"{shlex.join(['steelyard', 'calibrate', str(trained.folder or name)])} first"
            )
        return cls(name, trained.names, judged.probabilities, judged.targets, judged.logits)


@dataclass(frozen=True, eq=False)
class Searched:
    """How well one run is searched with."""

    name: str
    found: RetrievalMap
    """By its η."""
    by_sigmoid: RetrievalMap | None
    """By σ(z); None where that is η, or there are no logits."""


@dataclass(frozen=True, eq=False)
class Study:
    """Several runs searched with the same queries, over the same items."""

    runs: tuple[Searched, ...]
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
                    **_plain(run.found),
                    "by_sigmoid": None if run.by_sigmoid is None else _plain(run.by_sigmoid),
                }
                for run in self.runs
            ],
        }


def study(
    candidates: Sequence[Candidate],
    max_terms: int = 5,
    exact_up_to: int = 500_000,
    samples: int = 20_000,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Progress | None = None,
) -> Study:
    """Return the mAP of searching with each run, by the number of terms, over the same items and queries.

    Args:
        candidates: judged on the same items; labels are matched by name, and must be the same.
        max_terms, exact_up_to, samples, confidence, seed, progress: as for `metrics.retrieval_map`; with one seed the
            sampled queries of all runs are the same.
    """
    _check(candidates)
    first = candidates[0]
    searched = []
    for one in candidates:
        at = torch.tensor([one.labels.index(name) for name in first.labels])
        eta, targets = one.probabilities[:, at], one.targets[:, at]
        if not torch.equal(targets, first.targets.to(targets.dtype)):
            raise ValueError(
                f"{one.name} was judged on other items than {first.name}: give items for all of them with --data"
            )
        how = (max_terms, exact_up_to, samples, confidence, seed, progress)
        plain_eta = None if one.logits is None else torch.sigmoid(one.logits[:, at])
        other = None
        if plain_eta is not None and not torch.allclose(plain_eta, eta, rtol=0, atol=1e-6):
            other = retrieval_map(plain_eta, targets, *how)
        searched.append(Searched(one.name, retrieval_map(eta, targets, *how), other))
    return Study(tuple(searched), len(first.targets), len(first.labels), confidence)


def show(found: Study, console: Console) -> None:
    """Print a row a run: mAP over all queries and by their number of terms, in per cent."""
    header, rows, notes = _table(found)
    table = Table(box=None, pad_edge=False)
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(Text(plain(row[0])), *(percent(value) for value in row[1:]))
    console.print(Text(f"Searching {found.n_items:,} items by queries over {found.n_labels:,} labels: mAP, %", "bold"))
    console.print(table)
    for note in notes:
        console.print(Text(note))


def write_page(found: Study, path: str | Path, title: str = "Searching by several labels") -> None:
    """Write the table and the plot as one HTML page, whole or not at all."""
    header, rows, notes = _table(found)
    solid = {run.name: _curve(run.found) for run in found.runs}
    dashed = {run.name: _curve(run.by_sigmoid) for run in found.runs if run.by_sigmoid is not None}
    caption = "mAP over queries by their number of terms" + (", dashed by σ(z) instead of η." if dashed else ".")
    caption += f" Below: what each is above {found.runs[0].name}." if len(found.runs) > 1 else ""
    in_percent = [(row[0], *(None if v is None else 100 * v for v in row[1:])) for row in rows]
    best = {
        (max((i for i, row in enumerate(in_percent) if row[j] is not None), key=lambda i: in_percent[i][j]), j)
        for j in range(1, len(header))
        if len(rows) > 1 and any(row[j] is not None for row in in_percent)
    }
    parts = [
        page.paragraph(ABOUT),
        page.table(header, in_percent, places=2, best=best),
        page.paragraph(" ".join((f"All in %, on {found.n_items:,} items with {found.n_labels:,} labels.", *notes))),
        page.panels([page.plot(retrieval_curves(solid, dashed), caption)]),
    ]
    page.write_page(path, title, parts)


def _check(candidates: Sequence[Candidate]) -> None:
    if not candidates:
        raise ValueError("there is no run to search with: give at least one")
    if twice := [name for name, n in Counter(one.name for one in candidates).items() if n > 1]:
        raise ValueError(f"{twice[0]} is given more than once: give every run once")
    first = candidates[0]
    for one in candidates:
        if set(one.labels) != set(first.labels):
            other = sorted(set(one.labels) ^ set(first.labels))[0]
            raise ValueError(f"{one.name} and {first.name} do not both have the label {other!r}: compare runs that do")
        if one.targets.shape != first.targets.shape:
            raise ValueError(
                f"{one.name} was judged on {len(one.targets):,} items, {first.name} on {len(first.targets):,}: give "
                "items for all of them with --data"
            )


def _table(found: Study) -> tuple[list[str], list[tuple[Any, ...]], list[str]]:
    """Return the header, a row a run and a row for its σ(z), and what is to be said of the numbers."""
    terms = list(found.runs[0].found.by_terms)
    header = ["run", "all queries", *(f"{k} term{'s' * (k > 1)}" for k in terms)]
    rows: list[tuple[Any, ...]] = []
    for run in found.runs:
        for name, result in ((run.name, run.found), (f"{run.name}, by σ(z)", run.by_sigmoid)):
            if result is not None:
                rows.append((name, number(result.overall), *(number(result.by_terms[k]) for k in terms)))
    first = found.runs[0].found
    if first.exact:
        return header, rows, [f"All {first.n_queries:,} queries that have an answer were scored."]
    half = max((high - low) / 2 for run in found.runs for low, high in run.found.interval_by_terms.values())
    return (
        header,
        rows,
        [
            f"{first.n_scored:,} of about {first.n_queries:,} queries were scored: the means are off by less than "
            f"{100 * half:.2f} points at a confidence of {100 * found.confidence:g} %."
        ],
    )


def _plain(found: RetrievalMap) -> dict[str, Any]:
    """Return a result as plain JSON."""
    return {
        "mAP": number(found.overall),
        "interval": [number(end) for end in found.interval],
        "by_terms": {
            str(k): {
                "mAP": number(value),
                "interval": [number(end) for end in found.interval_by_terms[k]],
                "queries": found.n_queries_by_terms[k],
            }
            for k, value in found.by_terms.items()
        },
        "queries": found.n_queries,
        "scored": found.n_scored,
        "exact": found.exact,
    }


def _curve(found: RetrievalMap) -> RetrievalCurve:
    return RetrievalCurve(found.by_terms, found.interval_by_terms)
