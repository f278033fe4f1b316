"""The facts about a data set as one HTML page with plots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from steelyard._files import check_place
from steelyard.config.advice import RECIPES
from steelyard.config.inspection import COUNTING, Inspection
from steelyard.report import page, plots
from steelyard.report.terminal import facts, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_NAMED = 40


def check(path: str | Path) -> None:
    """Refuse, before the work, a page that could not be written after it."""
    plots.check_matplotlib()
    check_place(path)


def write(found: Inspection, path: str | Path, title: str) -> None:
    """Write the page to `path`, whole or not at all."""
    page.write_page(path, title, list(_parts(found)))


def _parts(found: Inspection) -> Iterator[str]:
    labels = found.labels
    names, counts = labels.names, labels.counts
    yield page.paragraph(found.note)
    for sentence in found.warnings:
        yield page.paragraph(f"Beware: {sentence}.")
    yield page.facts((name, text) for name, text, _ in facts(found))
    yield page.paragraph(COUNTING)
    yield from _advice(found)
    yield page.heading("How frequent each label is")
    yield _figure(
        plots.frequency_curve(names, counts),
        "Known positives of each label, most frequent first, on a log scale. Head: at least 100, tail: fewer than 20.",
    )
    yield page.heading("Which labels come together")
    order = found.pairs.order
    yield _figure(
        plots.heat_map([names[c] for c in order[:_MOST_NAMED]], found.pairs.conditional[:_MOST_NAMED, :_MOST_NAMED]),
        "p(row | column): among items that have the column's label and for which the row's is known, the share that "
        f"has it; the {min(_MOST_NAMED, len(order))} most frequent labels. Grey: not defined.",
    )
    if len(order) > _MOST_NAMED:
        yield _figure(
            plots.heat_map([names[c] for c in order], found.pairs.conditional),
            f"The same for {'all' if len(order) == len(names) else 'the'} {len(order):,} labels, most frequent first.",
        )
    yield page.table(
        ("a", "b", "items with both", "p(a|b)", "p(b|a)", "lift"),
        ((p.first, p.second, p.both, p.first_given_second, p.second_given_first, p.lift) for p in found.pairs.together),
    )
    if found.pairs.twins:
        yield page.heading("Labels that say the same, or nearly")
        yield page.table(
            ("a", "b", "items with both", "overlap", "agreement where both are known", "items where both are known"),
            ((t.first, t.second, t.both, t.overlap, percent(t.agreement), t.known) for t in found.pairs.twins),
        )
    yield page.heading("What class-aware sampling would do")
    if found.n_positive:
        yield _figure(
            plots.resampling(names, counts, labels.prior, found.resampled_prior),
            "The share of items that have each label, among those for which it is known: as it is, and when every "
            "label is visited equally often (equation 1 of the distribution-balanced loss). Labels without a positive "
            "are not drawn.",
        )
    yield page.heading("What is unknown")
    if found.n_unknown:
        yield _figure(
            plots.unknown_rates(names, counts, labels.unknown_rate_by_label),
            "The share of items for which each label is unknown, most frequent label first.",
        )
    else:
        yield page.paragraph("Nothing: every label is known for every item.")
    yield page.heading("Every label")
    yield _every_label(found)


def _advice(found: Inspection) -> Iterator[str]:
    advice = found.advice
    yield page.heading("Recommended recipe")
    if advice.recipe is None:
        yield page.paragraph(f"None: {advice.why}.")
        return
    recipe = RECIPES[advice.recipe]
    yield page.paragraph(f"{advice.recipe}, {recipe.what}: {advice.why}.")
    yield page.code(recipe.code)
    for name, when in advice.otherwise:
        yield page.paragraph(f"{name} {when}.")


def _every_label(found: Inspection) -> str:
    labels = found.labels
    order = np.argsort(-labels.counts, kind="stable")
    group_of = {int(c): group for group, members in labels.groups().items() for c in members}
    return page.table(
        ("label", "group", "positives", "known", "unknown", "positives / known", "after class-aware sampling"),
        (
            (
                labels.names[c],
                group_of[int(c)],
                int(labels.counts[c]),
                int(labels.n_known[c]),
                labels.n_items - int(labels.n_known[c]),
                float(labels.prior[c]),
                float(found.resampled_prior[c]),
            )
            for c in order
        ),
        fold=f"{labels.n_labels:,} labels, most frequent first",
    )


def _figure(figure: Figure, caption: str) -> str:
    return page.figure(plots.to_svg(figure), caption)
