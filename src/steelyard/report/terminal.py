"""Print the facts about a data set in a terminal of 80 columns or more."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from steelyard._console import console_of as console_of
from steelyard._console import plain as plain
from steelyard.config.advice import RECIPES
from steelyard.config.inspection import Inspection
from steelyard.labels import Labels
from steelyard.report.headline import percent, plural

_BAR = 22
_EIGHTHS = " ▏▎▍▌▋▊▉"


def say(console: Console, sentence: str, style: str = "") -> None:
    """Print a line without wrapping or markup, so that its paths and commands can be copied."""
    console.print(sentence, style=style, markup=False, highlight=False, soft_wrap=True)


def show(inspection: Inspection, console: Console) -> None:
    """Print the facts, the labels that stand out, and the advice."""
    print_ = console.print
    print_(Text(plain(inspection.note)), style="dim")
    for sentence in inspection.warnings:
        print_(Text(f"Beware: {plain(sentence)}.", "yellow"))
    print_(_fact_table(inspection))
    print_(Text("\nPositives per item (unknown labels not counted)", "bold"))
    print_(_per_item(inspection))
    print_(Text("\nLabels by frequency", "bold"))
    print_(_frequencies(inspection))
    if inspection.pairs.together:
        print_(Text("\nLabels that come together", "bold"))
        print_(_together(inspection))
    print_()
    _print_advice(inspection, console)


def facts(inspection: Inspection) -> list[tuple[str, str, bool]]:
    """Return the facts as (name, text, whether it is highlighted)."""
    labels = inspection.labels
    soft = f" ({inspection.n_soft:,} of the known are soft)" if inspection.n_soft else ""
    cells = (
        f"{labels.n_items * labels.n_labels:,} = {inspection.n_positive:,} positive + "
        f"{inspection.n_negative:,} negative + {inspection.n_unknown:,} unknown ({percent(labels.unknown_rate)}){soft}"
    )
    rows = [
        ("items", f"{labels.n_items:,}", False),
        ("labels", f"{labels.n_labels:,}", False),
        ("label values", cells, False),
        ("imbalance ρ", _imbalance(labels), False),
        ("groups", _groups(labels), False),
        ("never positive", *_named(labels, inspection.never_positive, "though known")),
        ("never known", *_named(labels, inspection.never_known, "unknown for every item")),
        ("always positive", *_named(labels, inspection.always_positive, "wherever known")),
        ("no positive", *_items(inspection.n_without_positive, labels, "without a known positive")),
        ("no known label", *_items(inspection.n_without_known, labels, "all of whose labels are unknown")),
        ("duplicates", *_duplicates(inspection)),
        ("identical labels", *_twins(inspection)),
    ]
    return [row for row in rows if row[0] != "never known" or row[2]]


def _fact_table(inspection: Inspection) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text, odd in facts(inspection):
        table.add_row(name, Text(text, "yellow" if odd else ""))
    return table


def _imbalance(labels: Labels) -> str:
    seen = np.flatnonzero(labels.counts)
    if not len(seen):
        return "not defined: no label is positive anywhere"
    most, least = seen[np.argmax(labels.counts[seen])], seen[np.argmin(labels.counts[seen])]
    first, last = (f"{plain(labels.names[c])} ({labels.counts[c]:,})" for c in (most, least))
    return f"{labels.imbalance:,.4g}, positives from {first} to {last}"


def _groups(labels: Labels) -> str:
    head, medium, tail = (len(labels.groups()[group]) for group in ("head", "medium", "tail"))
    return f"{head:,} head (≥ 100 positives), {medium:,} medium (20–99), {tail:,} tail (< 20)"


def _named(labels: Labels, which: NDArray[np.int64], remark: str) -> tuple[str, bool]:
    if not len(which):
        return "none", False
    shown = ", ".join(plain(labels.names[c]) for c in which[:5]) + (", …" if len(which) > 5 else "")
    return f"{plural(len(which), 'label')} {remark}: {shown}", True


def _items(n: int, labels: Labels, remark: str) -> tuple[str, bool]:
    if not n:
        return "none", False
    return f"{plural(n, 'item')} ({percent(n / labels.n_items)}) {remark}", True


def _duplicates(inspection: Inspection) -> tuple[str, bool]:
    twice = inspection.duplicates
    if twice is None:
        return "not looked for: items have no inputs", False
    lost = f"; {len(twice.unreadable):,} files cannot be read" if twice.unreadable else ""
    if not twice.n_groups:
        return f"none by {twice.looked_at}{lost}", bool(lost)
    first = " = ".join(plain(name) for name in twice.examples[0])
    return (
        f"{twice.n_items:,} items in {plural(twice.n_groups, 'group')} by {twice.looked_at}, "
        f"{twice.n_conflicting:,} with contradicting labels, such as {first}{lost}"
    ), True


def _twins(inspection: Inspection) -> tuple[str, bool]:
    twins = inspection.pairs.twins
    among = f" among the {len(inspection.pairs.order):,} most frequent" * (
        len(inspection.pairs.order) < inspection.labels.n_labels
    )
    if not twins:
        return f"none, nor nearly{among}", False
    exact = sum(pair.identical for pair in twins)
    shown = "; ".join(
        f"{plain(t.first)} ~ {plain(t.second)} (equal in {percent(t.agreement)} of the {t.known:,} with both known)"
        for t in twins[:2]
    )
    return (
        f"{plural(exact, 'identical pair')}, {len(twins) - exact} nearly{among}: {shown}{'; …' * (len(twins) > 2)}",
        True,
    )


def _per_item(inspection: Inspection) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="cyan", min_width=6)
    table.add_column(justify="right")
    table.add_column()
    counts = inspection.positives_per_item
    edges = _edges(len(counts))
    sums = [int(counts[a:b].sum()) for a, b in pairwise(edges)]
    for (a, b), n in zip(pairwise(edges), sums, strict=True):
        table.add_row(str(a) if b == a + 1 else f"{a}–{b - 1}", f"{n:,}", bar(n / max(1, *sums)))
    mean = inspection.n_positive / max(1, inspection.labels.n_items)
    table.add_row("", "", Text(f"mean {mean:.3g}, median {inspection.quantile(0.5)}, most {len(counts) - 1}", "dim"))
    return table


def _edges(n: int) -> list[int]:
    """Return the edges 0, 1, 2, … for few numbers, else of ranges that double."""
    if n <= 9:
        return list(range(n + 1))
    edges = [0, 1, 2]
    while edges[-1] < n:
        edges.append(2 * edges[-1] - 1 if edges[-1] > 2 else 3)
    return [*edges[:-1], n]


def _frequencies(inspection: Inspection, n_ends: int = 6) -> Table:
    labels = inspection.labels
    order = np.argsort(-labels.counts, kind="stable")
    table = _named_table(24, ["label"], ["positives", "of known", "unknown"])
    table.add_column("")
    ends = [order] if len(order) <= 2 * n_ends + 2 else [order[:n_ends], order[-n_ends:]]
    for part, members in enumerate(ends):
        if part:
            table.add_row(Text(f"… {len(order) - 2 * n_ends:,} more", "dim"))
        for c in members:
            table.add_row(
                Text(plain(labels.names[c])),
                f"{labels.counts[c]:,}",
                percent(labels.prior[c]),
                percent(labels.unknown_rate_by_label[c]),
                bar(labels.counts[c] / max(1, labels.counts.max())),
            )
    return table


def _together(inspection: Inspection, most: int = 6) -> Table:
    table = _named_table(20, ["a", "b"], ["items with both", "p(a|b)", "p(b|a)", "lift"])
    for pair in inspection.pairs.together[:most]:
        given = percent(pair.first_given_second), percent(pair.second_given_first)
        names = Text(plain(pair.first)), Text(plain(pair.second))
        table.add_row(*names, f"{pair.both:,}", *given, f"{pair.lift:.3g}")
    return table


def _named_table(width: int, names: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    for title in names:
        table.add_column(title, max_width=width, no_wrap=True, style="cyan")
    for title in numbers:
        table.add_column(title, justify="right")
    return table


def _print_advice(inspection: Inspection, console: Console) -> None:
    advice = inspection.advice
    if advice.recipe is None:
        console.print(Text(f"No recipe: {advice.why}.", "bold yellow"))
        return
    recipe = RECIPES[advice.recipe]
    console.print(Text.assemble(("Recommended recipe: ", "bold"), (advice.recipe, "bold green"), f", {recipe.what}"))
    console.print(Text(f"because {advice.why}."))
    for name, when in advice.otherwise:
        console.print(Text.assemble((name, "green"), f" {when}."))
    console.print(Text("\nIn Python, with labels = steelyard.data.open_data(…).data.labels:", "dim"))
    console.print(Padding(Text(recipe.code), (0, 0, 0, 2), expand=False))
    console.print(Text(f"Train it: steelyard train --data DATA --recipe {advice.recipe}", "dim"))
    console.print(Text("Or compare several on held-out items: steelyard train --data DATA --recipe auto", "dim"))


def bar(share: float, width: int = _BAR) -> str:
    """Return a bar drawn in eighths of a character; any value above 0 is visible."""
    eighths = max(round(8 * width * share), 1 if share > 0 else 0)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).strip()
