"""A result as a page of Markdown: what the paper prints, what came out here, and the difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from steelyard_papers.published import Published
from steelyard_papers.reproduction import Reproduction
from steelyard_papers.result import Result, RowResult

LOWER_IS_BETTER = ("error", "ACE", "MCE", "ECE", "Brier", "log-loss")
"""How columns begin of which less is better."""


class Compared(NamedTuple):
    """A number in print beside ours."""

    row: str
    column: str
    paper: float
    ours: float
    std: float

    @property
    def difference(self) -> float:
        """Ours less the paper's."""
        return self.ours - self.paper


def compare(result: Result, published: Published | None) -> list[Compared]:
    """Return every number in print that there is one of ours for."""
    if published is None:
        return []
    found = []
    for row in result.rows:
        for column in result.columns:
            paper, ours = published.value(row.name, column), row.mean(column)
            if paper is not None and ours is not None:
                found.append(Compared(row.name, column, paper, ours, row.std(column) or 0.0))
    return found


def best_row(result: Result, column: str, named: str = "*") -> RowResult | None:
    """Return the row with the best mean of a column, of those named by a pattern; None where there is no number."""
    rows = [
        (mean, row) for row in result.rows if fnmatchcase(row.name, named) and (mean := row.mean(column)) is not None
    ]
    if not rows:
        return None
    choose = min if column.startswith(LOWER_IS_BETTER) else max
    return choose(rows, key=lambda pair: pair[0])[1]


def page(result: Result, reproduction: Reproduction, others: Mapping[str, Result] | None = None) -> str:
    """Return the page of a result; `others` are the results that lie beside it, by name."""
    parts = [f"# {result.name}: {result.title}", f"{result.paper}. {sentence(reproduction.note)}".strip()]
    if result.changed:
        said = f"Changed here, whatever is said above: {', '.join(f'`{text}`' for text in result.changed)}."
        tuned = reproduction.tuned
        parts.append(f"{said} {tuned.how}" if tuned is not None and {*tuned.sets} <= {*result.changed} else said)
    published = reproduction.published
    if result.columns:
        parts.append(table(result, published))
        if len(result.seeds) > 1:
            said = f"Ours are means over the seeds ± their standard deviation. {sentence(fewer_seeds(result))}"
            parts.append(said.strip())
    if published is not None:
        parts.append(f"The paper's numbers: {published.source}. {sentence(published.note)}".strip())
        if result.changed and (gained := gains(result, published)):
            parts += ["Network and schedule are not the paper's, so gains over the baseline compare better:", gained]
        if rest := only_in_print(result, published):
            parts += ["What the paper prints besides, and nothing here was measured for:", rest]
    if reproduction.draw is not None:
        parts.append(f"![{result.title}]({result.name}.png)")
    parts += [sentence(note) for note in (*result.notes, *reproduction.compared(result, others or {}))]
    parts.append(_origin(result))
    return "\n\n".join(part for part in parts if part) + "\n"


def fewer_seeds(result: Result) -> str:
    """Return which rows and columns have fewer seeds than the result, or nothing."""
    n = len(result.seeds)
    counted = {
        (row.name, column): sum(run.values.get(column) is not None for run in row.runs)
        for row in result.rows
        for column in result.columns
    }
    short = [row for row in result.rows if len(row.runs) < n]
    rows = [row.name for row in short]
    columns = [
        column
        for column in result.columns
        if 0 < max((counted[row.name, column] for row in result.rows), default=0) < n and len(rows) < len(result.rows)
    ]
    if not columns and len(rows) > 1 and all(len(row.runs) == 1 for row in short):
        return f"the {len(rows)} rows without ± are of one seed"
    said = [", ".join(f"{name!r}" for name in names) for names in (rows, columns) if names]
    return f"of fewer seeds, without ± of one: {'; '.join(said)}" if said else ""


def table(result: Result, published: Published | None) -> str:
    """Return the numbers as a Markdown table: paper, ours and difference of every column that is in print."""
    in_print = {
        column
        for column in result.columns
        if published is not None and any(published.value(row, column) is not None for row in published.rows)
    }
    header = ["row"]
    for column in result.columns:
        header += [f"{column}, paper", "ours", "difference"] if column in in_print else [column]
    names = [row.name for row in result.rows]
    only_in_print = [] if published is None or not in_print else [name for name in published.rows if name not in names]
    lines = [header, ["---", *["---:"] * (len(header) - 1)]]
    ours = {row.name: row for row in result.rows}
    for name in (*names, *only_in_print):
        line = [name]
        for column in result.columns:
            mean = ours[name].mean(column) if name in ours else None
            std = ours[name].std(column) if name in ours else None
            paper = None if published is None else published.value(name, column)
            line += _cells(paper, mean, std, column in in_print)
        lines.append(line)
    return _lines(lines)


def gains(result: Result, published: Published) -> str:
    """Return how far each row is above the baseline in print and here, column by column; "" where nothing compares.

    Networks and data differ between a paper and a run here: what a method adds can be compared where scores cannot.
    """
    base = published.baseline
    ours = {row.name: row for row in result.rows}
    columns = [c for c in result.columns if published.value(base, c) is not None and base in ours]
    lines = [["gain over " + base, *(name for c in columns for name in (f"{c}, paper", "ours"))]]
    lines.append(["---", *["---:"] * (2 * len(columns))])
    for name, row in ours.items():
        if name == base:
            continue
        line = [name]
        for column in columns:
            line += [_gain(published.value(name, column), published.value(base, column))]
            line += [_gain(row.mean(column), ours[base].mean(column))]
        if any(cell != "–" for cell in line[1::2]):
            lines.append(line)
    return _lines(lines) if len(lines) > 2 else ""


def only_in_print(result: Result, published: Published) -> str:
    """Return the columns in print that nothing here was measured for, as a table; "" where there are none."""
    columns = [column for column in published.columns if column not in result.columns]
    rows = [row for row in published.rows if any(published.value(row, column) is not None for column in columns)]
    if not rows:
        return ""
    head = [["row", *columns], ["---", *["---:"] * len(columns)]]
    return _lines([*head, *([row, *(number(published.value(row, column)) for column in columns)] for row in rows)])


def _lines(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _gain(value: float | None, base: float | None) -> str:
    return "–" if value is None or base is None else f"{value - base:+.2f}"


def number(mean: float | None, std: float | None = None) -> str:
    """Return a number as tables show it."""
    if mean is None:
        return "–"
    return f"{mean:.2f}" + ("" if std is None else f" ± {std:.2f}")


def _cells(paper: float | None, mean: float | None, std: float | None, in_print: bool) -> Sequence[str]:
    if not in_print:
        return [number(mean, std)]
    difference = "–" if paper is None or mean is None else f"{mean - paper:+.2f}"
    return [number(paper), number(mean, std), difference]


def _origin(result: Result) -> str:
    """Where the numbers come from, as a list."""
    said = {
        "command": f"`{result.command}`" if result.command else "",
        "seeds": ", ".join(map(str, result.seeds)),
        "data": result.data,
        "hardware": ", ".join(result.hardware),
        "training": f"{result.seconds:.0f} s, all runs together" if result.seconds else "",
        "versions": ", ".join(f"{name} {version}" for name, version in result.versions.items()),
        "commit": ", ".join(result.commits) + (" (+: and changes since)" if "+" in "".join(result.commits) else ""),
    }
    return "\n".join(f"- {name}: {text}" for name, text in said.items() if text)


def sentence(text: str) -> str:
    """Return a note as a sentence; a letter of the papers' notation, such as ρ, stays as it is."""
    if not text:
        return ""
    start = text[0].upper() if text[0].isascii() else text[0]
    return f"{start}{text[1:]}{'' if text.endswith('.') else '.'}"
