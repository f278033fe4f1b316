"""Judge a paper's claims by the numbers measured here: differences are compared with their spread over seeds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import erfc, inf, isfinite, sqrt
from statistics import fmean, variance
from typing import Literal, NamedTuple, TypeAlias

from steelyard_papers.markdown import LOWER_IS_BETTER, best_row
from steelyard_papers.published import PUBLISHED
from steelyard_papers.result import Result, RowResult


def first(result: Result, name: str, column: str) -> tuple[str, ...]:
    """Return a sentence on the claim that a row is the best by a column; nothing where there is none to compare."""
    means = {row.name: mean for row in result.rows if (mean := row.mean(column)) is not None}
    best = best_row(result, column)
    if name not in means or len(means) < 2 or best is None:
        return ()
    sign = -1 if column.startswith(LOWER_IS_BETTER) else 1
    better = sum(sign * mean > sign * means[name] for mean in means.values())
    claim = f"the paper has {name} first by {column}"
    if not better:
        return (f"{claim}, and so it is here",)
    others = f"{better} of {len(means) - 1} rows are better, {best.name} the best"
    return (f"{claim}; not so here: {others}, {means[best.name]:.2f} against {means[name]:.2f}",)


def firsts(result: Result, name: str, columns: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence on the columns by which a row is the best; nothing where there is none to compare."""
    asked = [column for column in columns if first(result, name, column)]
    if not asked:
        return ()
    won = [column for column in asked if (best := best_row(result, column)) is not None and best.name == name]
    return (f"the row {name}, the paper's own method, is the best by {len(won)} of {len(asked)} columns",)


def above(result: Result, name: str, columns: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence a column on the rows that are better than a row, over the seeds that both have."""
    texts = []
    for column in columns:
        found = {row.name: by_seed for row in result.rows if (by_seed := _by_seed(row, column))}
        mine = found.pop(name, {})
        if not mine or not found:
            continue
        sign = -1 if column.startswith(LOWER_IS_BETTER) else 1
        better = []
        for other, its in found.items():
            seeds = mine.keys() & its.keys()
            if not seeds:
                continue
            a, b = (fmean(of_row[seed] for seed in seeds) for of_row in (mine, its))
            if sign * b > sign * a:
                against = "" if len(seeds) == len(mine) else f" (of its seeds {name} has {a:.2f})"
                better.append((sign * b, f"{other} {b:.2f}{against}"))
        listed = ", ".join(words for _, words in sorted(better, reverse=True))
        texts.append(
            f"by {column}, {name} {fmean(mine.values()):.2f}, {f'better are: {listed}' if listed else 'none is better'}"
        )
    return tuple(texts)


_LISTED = 4  # columns that are still said one by one


def over(name: str, result: Result, others: Mapping[str, Result]) -> tuple[str, ...]:
    """Return how a row stands to the best of other tables: a sentence a column, or, of many, how often it is better.

    Columns are the same where their names are, or where the other's adds the data: "ACE" and "ACE on VOC 2012".
    """
    texts, better = [], 0
    mine = next((row for row in result.rows if row.name == name), RowResult(name, ()))
    for column in result.columns:
        mean = mine.mean(column)
        best = [
            (value, row.name, table)
            for table, other in others.items()
            for theirs in other.columns
            if theirs == column or theirs.startswith(f"{column} on ")
            for row in other.rows
            if (value := row.mean(theirs)) is not None
        ]
        if mean is None or not best:
            continue
        lower = column.startswith(LOWER_IS_BETTER)
        value, whose, table = (min if lower else max)(best)
        better += mean < value if lower else mean > value
        ahead = f"{mean / value:.2f} times as much" if lower and value > 0 else f"{mean - value:+.2f}"
        texts.append(f"by {column} the best row of {table} is {whose}, {value:.2f}; {name} has {mean:.2f}, {ahead}")
    if len(texts) > _LISTED:
        return (f"{name} is better than every row of {', '.join(others)} by {better} of {len(texts)} columns",)
    return tuple(texts)


def _by_seed(row: RowResult, column: str) -> dict[int, float]:
    found = ((run.seed, run.values.get(column)) for run in row.runs)
    return {seed: value for seed, value in found if value is not None and isfinite(value)}


def gain(result: Result, name: str, over: str, column: str, claim: str) -> tuple[str, ...]:
    """Return a sentence with the difference of two rows by a column, behind the words of the claim."""
    means = {row.name: row.mean(column) for row in result.rows}
    mine, its = means.get(name), means.get(over)
    if mine is None or its is None:
        return ()
    return (f"{claim}; here {name} less {over} is {mine - its:+.2f}",)


def again(result: Result, before: Result) -> str:
    """Return how many means are within a standard deviation of those of a result of before, and which are not.

    Of means of n and m seeds that differ by chance alone, erfc(1/√(2/n + 2/m)) are not.
    """
    rows = {row.name: row for row in before.rows}
    outside, chances, alone = [], [], 0
    for row in result.rows:
        for column in result.columns:
            was = rows.get(row.name, RowResult(row.name, ()))
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


def alike(result: Result, name: str, other: str, within: float = 0.05) -> tuple[str, ...]:
    """Return a sentence where the numbers of two rows, run by run, are `within` so little of each other."""
    rows = {row.name: row for row in result.rows}
    if name not in rows or other not in rows:
        return ()
    both = [(mine.values, its.values) for mine, its in zip(rows[name].runs, rows[other].runs, strict=False)]
    pairs = [(a, its.get(key)) for mine, its in both for key, a in mine.items()]
    apart = [abs(a - b) for a, b in pairs if a is not None and b is not None]
    if not apart or max(apart) > within:
        return ()
    return (f"no run of {name} is more than {max(apart):.2g} from {other}: what is left out there hardly acts",)


Outcome: TypeAlias = Literal["holds", "in part", "not here", "not run", "not run: data"]
FEATURES = "-features"
"""Ending of the names of tables that are run over features; their printed numbers are those of the name before it."""
ERRORS = 2.0
"""Standard errors by which a difference must be larger than chance."""


class Difference(NamedTuple):
    """That one row of a table is better than another by a column; less is better of errors."""

    table: str
    row: str
    over: str
    column: str
    margin: float = 0.0
    """Points by which the row may be below the other and still count: 0 where the paper claims that it is better."""


@dataclass(frozen=True)
class Claim:
    """A claim of a paper.

    Args:
        text: in words, as a sentence without its full stop.
        differences: what it comes down to; those of data that is not there are left out.
    """

    text: str
    differences: tuple[Difference, ...]


class JudgedDifference(NamedTuple):
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
    judged: tuple[JudgedDifference, ...]

    @property
    def printed(self) -> str:
        """The gains in print, in the order of the differences."""
        return ", ".join(_gain(one.printed) for one in self.judged)

    @property
    def ours(self) -> str:
        """The gains here with their standard errors."""
        return ", ".join(_gain(one.ours, one.error) for one in self.judged)


def judge(claim: Claim, results: Mapping[str, Result], at_hand: Collection[str] = ()) -> Verdict:
    """Return what became of a claim.

    It holds where every difference is beyond two standard errors, and holds in part where some are; where the row is
    the better one in all of them, but not beyond chance, too. A difference of one seed each has no error and is never
    beyond chance. Differences whose rows were not run are left out; where none was run, the verdict says whether it is
    for want of data.

    Args:
        claim: of a paper.
        results: by the name of their table.
        at_hand: tables without a result whose data some other result was measured on.
    """
    judged = tuple(one for difference in claim.differences if (one := _judged(difference, results)).ours is not None)
    if not judged:
        has_data = any(
            one.column in results[one.table].columns if one.table in results else one.table in at_hand
            for one in claim.differences
        )
        missed = tuple(_judged(one, results) for one in claim.differences)
        return Verdict(claim.text, "not run" if has_data else "not run: data", missed)
    if all(one.holds for one in judged):
        return Verdict(claim.text, "holds", judged)
    rises = all(one.ours is not None and one.ours > -one.difference.margin for one in judged)
    outcome: Outcome = "in part" if rises or any(one.holds for one in judged) else "not here"
    return Verdict(claim.text, outcome, judged)


def judge_all(claims: Sequence[Claim], results: Mapping[str, Result], at_hand: Collection[str] = ()) -> list[Verdict]:
    """Return what became of several claims."""
    return [judge(claim, results, at_hand) for claim in claims]


def sentences(claims: Sequence[Claim], result: Result, others: Mapping[str, Result]) -> tuple[str, ...]:
    """Return a sentence on each claim of which something was run, by a result and those that lie beside it."""
    found = judge_all(claims, {**others, result.name: result})
    return tuple(
        f"{one.text}: {one.outcome}; in print {one.printed}, here {one.ours}"
        for one in found
        if not one.outcome.startswith("not run")
    )


def beside_best(
    name: str, columns: Sequence[str], result: Result, others: Mapping[str, Result], tables: Sequence[str]
) -> tuple[str, ...]:
    """Return a sentence a column on how a row stands to the best row of the papers' tables, by standard errors.

    Args:
        name: of the row.
        columns: by which it is compared; a column of a table may add its data, "ACE on VOC 2012" to "ACE".
        result: which has the row.
        others: results by name.
        tables: those of them whose rows it is compared with.
    """
    texts = []
    for column in columns:
        mine = next((_values(row, column) for row in result.rows if row.name == name), [])
        rows = [
            (fmean(values), row.name, values)
            for table in tables
            if table in others
            for row in others[table].rows
            for theirs in {key for run in row.runs for key in run.values}
            if (theirs == column or theirs.startswith(f"{column} on ")) and (values := _values(row, theirs))
        ]
        if not mine or not rows:
            continue
        lower = column.startswith(LOWER_IS_BETTER)
        _, whose, values = (min if lower else max)(rows)
        ahead, error = _gain_of(mine, values, lower)
        if error is None or abs(ahead) <= ERRORS * error:
            verdict = "as good as the best row within two standard errors" if error else "of one seed: not judged"
        else:
            verdict = "better than every row of the paper" if ahead > 0 else "not as good as the best row"
        texts.append(f"by {column}, {name} is {verdict}; gain over {whose}: {_gain(ahead, error)}")
    return tuple(texts)


def _gain_of(mine: Sequence[float], theirs: Sequence[float], lower: bool) -> tuple[float, float | None]:
    """By how much the first mean is better, and its standard error; None where one of them is of one seed."""
    gain = (fmean(mine) - fmean(theirs)) * (-1 if lower else 1)
    if min(len(mine), len(theirs)) < 2:
        return gain, None
    return gain, sqrt(variance(mine) / len(mine) + variance(theirs) / len(theirs))


def _judged(difference: Difference, results: Mapping[str, Result]) -> JudgedDifference:
    table, row, over, column, _ = difference
    lower = column.startswith(LOWER_IS_BETTER)
    published = PUBLISHED.get(table.removesuffix(FEATURES))
    in_print = [None if published is None else published.value(name, column) for name in (row, over)]
    printed = None if in_print[0] is None or in_print[1] is None else (in_print[0] - in_print[1]) * (-1 if lower else 1)
    rows = {found.name: found for found in results[table].rows} if table in results else {}
    mine, theirs = (_values(rows.get(name), column) for name in (row, over))
    if not mine or not theirs:
        return JudgedDifference(difference, printed, None, None)
    return JudgedDifference(difference, printed, *_gain_of(mine, theirs, lower))


def _values(row: RowResult | None, column: str) -> list[float]:
    return [] if row is None else [value for value in row.values(column) if isfinite(value)]


def _gain(value: float | None, error: float | None = None) -> str:
    if value is None:
        return "–"
    return f"{round(value, 1) + 0.0:+.1f}" + ("" if error is None else f" ± {error:.1f}")
