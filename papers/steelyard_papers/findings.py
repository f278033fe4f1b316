"""What became of a paper's claim, in words that follow from the numbers of a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import erfc, inf, isfinite, sqrt
from statistics import fmean

from steelyard_papers.markdown import LOWER_IS_BETTER, best_row
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
    said = []
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
        said.append(
            f"by {column}, {name} {fmean(mine.values()):.2f}, {f'better are: {listed}' if listed else 'none is better'}"
        )
    return tuple(said)


_LISTED = 4  # columns that are still said one by one


def over(name: str, result: Result, others: Mapping[str, Result]) -> tuple[str, ...]:
    """Return how a row stands to the best of other tables: a sentence a column, or, of many, how often it is better.

    Columns are the same where their names are, or where the other's adds the data: "ACE" and "ACE on VOC 2012".
    """
    said, better = [], 0
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
        said.append(f"by {column} the best row of {table} is {whose}, {value:.2f}; {name} has {mean:.2f}, {ahead}")
    if len(said) > _LISTED:
        return (f"{name} is better than every row of {', '.join(others)} by {better} of {len(said)} columns",)
    return tuple(said)


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
    n, said = len(chances), []
    if n:
        said = [f"{n - len(outside)} of {n} means are within a standard deviation of those of before"]
        said.append(f"by chance {100 * fmean(chances):.0f} % would not be")
    if outside:
        said.append("outside: " + "; ".join(words for _, words in sorted(outside, key=lambda one: -one[0])))
    if alone:
        said.append(f"of one seed before, and not compared: {alone}")
    return "; ".join(said) or "no row and column is in both results: nothing is compared"


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
