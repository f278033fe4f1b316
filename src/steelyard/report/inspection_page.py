"""Write the facts about a data set as one HTML page with plots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from steelyard._files import check_place
from steelyard.config.advice import RECIPES
from steelyard.config.inspection import COUNTING, Inspection
from steelyard.report import plots
from steelyard.report.canvas import MOST_NAMES, check_matplotlib
from steelyard.report.headline import percent
from steelyard.report.page import Cell, Picture, Share, plot, share, write_page
from steelyard.report.terminal import facts


def check(path: str | Path) -> None:
    """Raise, before any work, for a page that could not be written afterwards."""
    check_matplotlib()
    check_place(path)


def write(inspection: Inspection, path: str | Path, title: str) -> None:
    """Write the page to `path`, whole or not at all."""
    labels, pairs, advice = inspection.labels, inspection.pairs, inspection.advice
    names, counts = labels.names, labels.counts
    write_page(
        path,
        "inspect.html",
        title,
        note=inspection.note,
        warnings=inspection.warnings,
        facts=facts(inspection),
        counting=COUNTING,
        advice=advice,
        recipe=RECIPES[advice.recipe] if advice.recipe else None,
        frequencies=plot(
            plots.frequency_curve(names, counts),
            "Known positives of each label, most frequent first, on a log scale. Head: at least 100, tail: fewer than "
            "20.",
        ),
        together=list(_together(inspection)),
        pairs=[
            (p.first, p.second, p.both, share(p.first_given_second), share(p.second_given_first), p.lift)
            for p in pairs.together
        ],
        twins=[(t.first, t.second, t.both, share(t.overlap), percent(t.agreement), t.known) for t in pairs.twins],
        resampling=inspection.n_positive
        and plot(
            plots.resampling(names, counts, labels.prior, inspection.resampled_prior),
            "The share of items that have each label, among those for which it is known: as it is, and when every "
            "label is visited equally often (equation 1 of the distribution-balanced loss). Labels without a positive "
            "are not drawn.",
        ),
        unknown=inspection.n_unknown
        and plot(
            plots.unknown_rates(names, counts, labels.unknown_rate_by_label),
            "The share of items for which each label is unknown, most frequent label first.",
        ),
        rows=_every_label(inspection),
    )


def _together(inspection: Inspection) -> Iterator[Picture]:
    order, conditional = inspection.pairs.order, inspection.pairs.conditional
    names = [inspection.labels.names[c] for c in order]
    yield plot(
        plots.heat_map(names[:MOST_NAMES], conditional[:MOST_NAMES, :MOST_NAMES]),
        "p(row | column): among items that have the column's label and for which the row's is known, the share that "
        f"has it; the {min(MOST_NAMES, len(order))} most frequent labels. Grey: not defined.",
    )
    if len(order) > MOST_NAMES:
        extent = "all" if len(order) == inspection.labels.n_labels else "the"
        yield plot(
            plots.heat_map(names, conditional), f"The same for {extent} {len(order):,} labels, most frequent first."
        )


def _every_label(inspection: Inspection) -> list[tuple[Cell, ...]]:
    labels = inspection.labels
    group_of = {int(c): group for group, members in labels.groups().items() for c in members}
    return [
        (
            labels.names[c],
            group_of[c],
            int(labels.counts[c]),
            int(labels.n_known[c]),
            labels.n_items - int(labels.n_known[c]),
            Share(labels.prior[c]),
            Share(inspection.resampled_prior[c]),
        )
        for c in np.argsort(-labels.counts, kind="stable").tolist()
    ]
