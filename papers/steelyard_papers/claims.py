"""Tables and figures as entries of a list, and the claims that are judged by their numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import erfc, inf, sqrt
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from steelyard_papers.datasets import DataSet, present
from steelyard_papers.result import LOWER_IS_BETTER, Printed, Result, RowResult, short, split_on
from steelyard_papers.study import Job

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BEYOND = "What none of the papers has"
"""The place of a paper's name in what goes beyond them."""


class Difference(NamedTuple):
    """That one row of a table is better than another by a column; less is better of errors."""

    table: str
    row: str
    over: str
    column: str
    margin: float = 0.0
    """Points by which the row may be below the other and still count: 0 where the paper claims that it is better."""
    over_table: str = ""
    """Where the other row is in another table, that,"""
    over_column: str = ""
    """and its column there."""


@dataclass(frozen=True)
class Claim:
    """A claim of a paper.

    Args:
        text: in words, as a sentence without its full stop.
        differences: what it comes down to; those that were not run are left out.
    """

    text: str
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class Entry:
    """A table or figure that can be run.

    Args:
        name: such as "plm-table1".
        paper: in a few words, or `BEYOND`.
        title: what it shows.
        data: data sets of which at least one is needed; none for what is a matter of formulas.
        minutes: for one seed of all rows on one GPU, roughly; 0 where nothing is trained.
        run: does it.
        printed: what the paper prints.
        note: what is chosen here, or differs from the paper.
        differs: how network or data differ from the paper's, so that gains compare and scores do not; "" if alike.
        draw: makes the figure of a result, from `Result.figure` and its rows.
        whole: whether it needs all of its rows, so that none can be chosen.
        claims: the claims that its page judges.
        beside: tables of papers whose best row `auto` is compared with.
        facts: of a result (what, the number in the paper's text, ours).
        smoke: the data set of which a smoke run generates some items; the first of `data` by default.
    """

    name: str
    paper: str
    title: str
    data: tuple[DataSet, ...]
    minutes: float
    run: Callable[[Job], Result]
    printed: Printed | None = None
    note: str = ""
    differs: str = ""
    draw: Callable[[Result], Figure] | None = None
    whole: bool = False
    claims: tuple[Claim, ...] = ()
    beside: tuple[str, ...] = ()
    smoke: DataSet | None = None
    facts: Callable[[Result], list[tuple[str, float, float]]] | None = None

    @property
    def needs(self) -> str:
        """The names of its data sets."""
        return " or ".join(dict.fromkeys(data.name for data in self.data))

    @property
    def where(self) -> str:
        """Where its data sets are put beneath the folder that --data names."""
        places: dict[str, list[str]] = {}
        for data in self.data:
            places.setdefault(data.where, []).append(data.name)
        if len(places) == 1:
            return self.data[0].where
        return "; ".join(f"{', '.join(names)}: {place}" for place, names in places.items())

    def has_data(self, root: Path) -> bool:
        """Return whether one of its data sets is there, or none is needed."""
        return not self.data or bool(present(root, self.data))

    @property
    def command(self) -> str:
        """The command to type."""
        return f"steelyard reproduce {self.name}" + (" --data FOLDER" if self.data else "")


Catalogue: TypeAlias = Mapping[str, Entry]


class Paper(NamedTuple):
    """A paper, as the first page shows it."""

    key: str
    """The beginning of its tables' names."""
    name: str
    """As `Entry.paper` has it."""
    idea: str
    claims: tuple[Claim, ...]
    table: str
    """The table of the chart and of the comparison of set-ups."""
    column: str
    """Of the chart, in print,"""
    column_here: str
    """and here: the same, or on other data."""
    baseline: str
    setup: dict[str, tuple[str, str]]
    """By aspect the paper's set-up, and the one used here where no setting is changed ("" if the result says it)."""


# Claims

Outcome: TypeAlias = Literal["holds", "in part", "not here", "not run", "not run: data"]
ERRORS = 2.0
"""Standard errors by which a difference must be larger than chance."""


class Judged(NamedTuple):
    """A difference in print and here, in points, positive where the row is better."""

    difference: Difference
    printed: float | None
    ours: float | None
    error: float | None
    """The standard error of ours; None of one seed."""

    @property
    def holds(self) -> bool:
        """True if our difference is beyond chance."""
        least = -self.difference.margin
        return self.ours is not None and self.error is not None and self.ours - ERRORS * self.error > least


class Verdict(NamedTuple):
    """A claim and what became of it."""

    text: str
    outcome: Outcome
    judged: tuple[Judged, ...]


def judge(claim: Claim, results: Mapping[str, Result], catalogue: Catalogue, at_hand: Collection[str] = ()) -> Verdict:
    """Return what became of a claim.

    It holds where every difference is beyond two standard errors, and holds in part where some are; where the row is
    the better one in all of them, but not beyond chance, too. A difference of one seed each has no error and is never
    beyond chance. Differences whose rows were not run are left out; where none was run, the verdict says whether it is
    for want of data.

    Args:
        claim: of a paper.
        results: by the name of their table.
        catalogue: with the printed numbers of the tables.
        at_hand: tables without a result whose data some other result was measured on.
    """
    every = tuple(_judged(one, results, catalogue) for one in claim.differences)
    judged = tuple(one for one in every if one.ours is not None)
    if not judged:
        has_data = any(
            one.column in results[one.table].columns if one.table in results else one.table in at_hand
            for one in claim.differences
        )
        return Verdict(claim.text, "not run" if has_data else "not run: data", every)
    if all(one.holds for one in judged):
        return Verdict(claim.text, "holds", judged)
    rises = all(one.ours is not None and one.ours > -one.difference.margin for one in judged)
    return Verdict(claim.text, "in part" if rises or any(one.holds for one in judged) else "not here", judged)


def _judged(one: Difference, results: Mapping[str, Result], catalogue: Catalogue) -> Judged:
    places = ((one.table, one.row, one.column), (one.over_table or one.table, one.over, one.over_column or one.column))
    in_print, ours = [], []
    for table, row, column in places:
        printed = catalogue[table].printed if table in catalogue else None
        in_print.append(None if printed is None else printed.value(row, column))
        ours.append(results[table].row(row) if table in results else RowResult(row, ()))
    sign = -1 if one.column.startswith(LOWER_IS_BETTER) else 1
    mine, theirs = in_print
    printed_gain = None if mine is None or theirs is None else sign * (mine - theirs)
    gain, error = gain_of(ours[0], ours[1], one.column, places[1][2])
    return Judged(one, printed_gain, gain, error)


def gain_of(mine: RowResult, theirs: RowResult, column: str, over: str = "") -> tuple[float | None, float | None]:
    """Return by how much a row is better than another by a column, and its standard error, None of one seed."""
    over = over or column
    a, b = mine.mean(column), theirs.mean(over)
    if a is None or b is None:
        return None, None
    errors = mine.error(column), theirs.error(over)
    sign = -1 if column.startswith(LOWER_IS_BETTER) else 1
    return sign * (a - b), None if errors[0] is None or errors[1] is None else sqrt(errors[0] ** 2 + errors[1] ** 2)


def verdicts(claims: Sequence[Claim], results: Mapping[str, Result], catalogue: Catalogue) -> list[list[str]]:
    """Return a line per claim: its text, its gain in print and ours, and what became of it."""
    there = {entry.needs for name, entry in catalogue.items() if name in results}
    at_hand = {name for name, entry in catalogue.items() if entry.needs in there}
    lines = []
    for claim in claims:
        verdict = judge(claim, results, catalogue, at_hand)
        claimed = _judged(claim.differences[0], {}, catalogue).printed
        first, n = verdict.judged[0], len(verdict.judged)
        in_print = first.printed if first.printed is not None else claimed
        ours = gain_text(first.ours, first.error)
        if first.ours is not None:
            data = split_on(first.difference.column).data
            ours += " (one seed)" if first.error is None else ""
            ours += f" on {data}" if first.printed is None and data else ""
            ours += f"; {sum(one.holds for one in verdict.judged)} of {n}" if n > 1 else ""
        small = first.ours is not None and any("backbone" in text for text in results[first.difference.table].changed)
        lines.append([verdict.text, gain_text(in_print), ours, f"**{verdict.outcome}**" + " †" * small])
    return lines


def gain_text(value: float | None, error: float | None = None) -> str:
    """Return a gain with its sign and one decimal."""
    if value is None:
        return "–"
    return f"{round(value, 1) + 0.0:+.1f}" + ("" if error is None else f" ± {error:.1f}")


def best_row(result: Result, column: str) -> RowResult | None:
    """Return the row with the best mean of a column; None where there is no number."""
    rows = [(mean, row) for row in result.rows if (mean := row.mean(column)) is not None]
    choose = min if column.startswith(LOWER_IS_BETTER) else max
    return choose(rows, key=lambda pair: pair[0])[1] if rows else None


def beside_best(result: Result, results: Mapping[str, Result], tables: Sequence[str]) -> list[list[str]]:
    """Return a line per column on how `auto` stands to the best row of the papers' tables, by standard errors.

    A column is the same where its name is, or where the table's adds the data: "ACE" and "ACE on VOC 2012".
    """
    lines = []
    for column in result.columns:
        rows = [
            (row, theirs)
            for table in tables
            if table in results
            for row in results[table].rows
            for theirs in sorted({key for run in row.runs for key in run.values})
            if (theirs == column or theirs.startswith(f"{column} on ")) and row.mean(theirs) is not None
        ]
        mine = result.row("auto")
        if not rows or mine.mean(column) is None:
            continue
        lower = column.startswith(LOWER_IS_BETTER)
        best, theirs = (min if lower else max)(rows, key=lambda pair: pair[0].mean(pair[1]) or 0.0)
        gain, error = gain_of(mine, best, column, theirs)
        words = "one seed" if error is None else "as good"
        if gain is not None and error is not None and abs(gain) > ERRORS * error:
            words = "better" if gain > 0 else "not as good"
        numbers = (short(row.mean(c), row.std(c)) for row, c in ((mine, column), (best, theirs)))
        lines.append([column, *numbers, best.name, gain_text(gain, error), f"**{words}**"])
    return lines


def again(result: Result, before: Result) -> str:
    """Return how many means are within a standard deviation of those of a result of before, and which are not.

    Of means of n and m seeds that differ by chance alone, erfc(1/√(2/n + 2/m)) are not.
    """
    outside, chances, alone = [], [], 0
    for row in result.rows:
        was = before.row(row.name)
        for column in result.columns:
            mean, centre, spread = row.mean(column), was.mean(column), was.std(column)
            if mean is None or centre is None:
                continue
            if spread is None:
                alone += 1
                continue
            chances.append(erfc(1 / sqrt(2 / len(row.values(column)) + 2 / len(was.values(column)))))
            if abs(mean - centre) > spread + 1e-5 * abs(centre):  # a file has six digits
                far = abs(mean - centre) / spread if spread else inf
                outside.append((far, f"{row.name}, {column} {mean:.2f} against {centre:.2f} ± {spread:.2f}"))
    n, texts = len(chances), []
    if n:
        texts = [f"{n - len(outside)} of {n} means are within a standard deviation of those of before"]
        texts.append(f"by chance {100 * fmean(chances):.0f} % would not be")
    if outside:
        texts.append("outside: " + "; ".join(words for _, words in sorted(outside, key=lambda one: -one[0])))
    if alone:
        texts.append(f"of one seed before, and not compared: {alone}")
    return "; ".join(texts) or "no row and column is in both results: nothing is compared"
