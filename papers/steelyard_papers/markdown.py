"""A result as a page of Markdown: what the paper prints, what came out here, and the difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from steelyard_papers.published import Published
from steelyard_papers.reproduction import Reproduction
from steelyard_papers.result import Result, RowResult

FROZEN = "-frozen"
"""The ending of the name of a table that is measured over a frozen backbone too."""
LOWER_IS_BETTER = ("error", "ACE", "MCE", "ECE", "Brier", "log-loss")
"""Beginnings of the names of columns in which less is better."""


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
        words = f"Changed here, whatever the text above states: {', '.join(f'`{text}`' for text in result.changed)}."
        tuned = reproduction.tuned
        parts.append(f"{words} {tuned.how}" if tuned is not None and {*tuned.sets} <= {*result.changed} else words)
    published = reproduction.published
    if result.columns:
        main = tables(result, published)
        twin = (others or {}).get(f"{result.name}{FROZEN}")
        if twin is not None and twin.columns:
            main = _twins(main, twin)
        parts.append(main)
        if published is not None and (left := _not_run(result, published)):
            parts.append(f"Not run here, with – for our number: {', '.join(left)}.")
        if len(result.seeds) > 1:
            words = f"Ours are means over the seeds ± their standard deviation. {sentence(fewer_seeds(result))}"
            parts.append(words.strip())
    if published is not None:
        parts.append(f"The paper's numbers: {published.source}. {sentence(published.note)}".strip())
        if result.changed and (gained := gains(result, published)):
            parts += ["Set-up or data are not the paper's, so gains over the baseline compare better:", gained]
        if rest := only_in_print(result, published):
            parts += ["What the paper prints besides, and nothing here was measured for:", rest]
    if reproduction.draw is not None:
        parts.append(f"![{result.title}]({result.name}.svg)")
    parts += [sentence(note) for note in (*result.notes, *reproduction.compared(result, others or {}))]
    parts.append(_origin(result))
    return "\n\n".join(part for part in parts if part) + "\n"


def _not_run(result: Result, published: Published) -> list[str]:
    """The rows in print of which no number was measured, though columns of theirs were."""
    columns = [column for column in result.columns if column in published.columns]
    ours = {row.name for row in result.rows if any(row.mean(column) is not None for column in columns)}
    printed = (name for name in published.rows if any(published.value(name, c) is not None for c in columns))
    return [name for name in printed if name not in ours]


def _twins(main: str, twin: Result) -> str:
    """Return two tabs: a table, and the same over a frozen backbone; data sets are not tabs of tabs."""
    frozen = "\n\n".join(part for part in (tables(twin, None), f"[More about it]({twin.name}.md)"))
    return tabbed({"trained as a whole": main, "over a frozen backbone": frozen})


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
    words = [", ".join(f"{name!r}" for name in names) for names in (rows, columns) if names]
    return f"of fewer seeds, without ± of one: {'; '.join(words)}" if words else ""


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
    return as_table(lines)


MOST_COLUMNS = 5
"""Beside the name of a row: more do not fit a page."""


class _Column(NamedTuple):
    """A column of a page's tables."""

    name: str
    """In the result."""
    data: str
    """The data it was measured on, "" where the name does not tell."""
    head: str


def _split(column: str) -> _Column:
    """Tell the data from what is measured: "mAP on VOC 2012, PAL 0.3" is mAP, PAL 0.3 of VOC 2012."""
    measure, _, rest = column.partition(" on ")
    data, _, setting = rest.partition(", ")
    return _Column(column, data, f"{measure}, {setting}" if setting else measure)


def tabbed(tabs: Mapping[str, str]) -> str:
    """Return contents as tabs of a page; of one alone, as it is."""
    if len(tabs) == 1:
        return next(iter(tabs.values()))
    parts = []
    for title, content in tabs.items():
        body = "\n".join(f"    {line}" if line else "" for line in content.splitlines())
        parts.append(f'=== "{title}"\n\n{body}')
    return "\n\n".join(parts)


def tables(result: Result, published: Published | None) -> str:
    """Return the numbers as tables of at most six columns, one tab per data set and ρ, "in print → ours" in a cell."""
    columns = [_split(column) for column in result.columns]
    names = [row.name for row in result.rows]
    if published is not None and any(column in published.columns for column in result.columns):
        names += [name for name in published.rows if name not in names]
    rhos = [name.rpartition(", ρ ")[2] for name in names]
    if len(set(rhos)) < len(rhos) and all(", ρ " in name for name in names):
        rows = {f"ρ {rho}": [name for name in names if name.endswith(f", ρ {rho}")] for rho in dict.fromkeys(rhos)}
    else:
        rows = {"": names}
    ours = {row.name: row for row in result.rows}
    tabs = {}
    for group, of_group in rows.items():
        for data in dict.fromkeys(column.data for column in columns):
            mine = [column for column in columns if column.data == data]
            chunks = [mine[i : i + MOST_COLUMNS] for i in range(0, len(mine), MOST_COLUMNS)]
            parts = [_chunk(chunk, of_group, ours, published, f", {group}") for chunk in chunks]
            tabs[", ".join(filter(None, (data, group))) or "all"] = "\n\n".join(parts)
    return tabbed(tabs)


def _chunk(
    columns: Sequence[_Column],
    names: Sequence[str],
    ours: Mapping[str, RowResult],
    published: Published | None,
    cut: str,
) -> str:
    """One table; rows without a number are left out, and `cut` off the names of rows."""
    lines = []
    for name in names:
        cells = []
        for column in columns:
            paper = None if published is None else published.value(name, column.name)
            mean = ours[name].mean(column.name) if name in ours else None
            std = ours[name].std(column.name) if name in ours else None
            cells.append(arrow(paper, short_number(mean, std)))
        if any(cell != "–" for cell in cells):
            lines.append([name.removesuffix(cut), *cells])
    return as_table([["", *(column.head for column in columns)], ["---", *["---:"] * len(columns)], *lines])


def arrow(paper: float | None, ours: str) -> str:
    """Return a number in print and ours; ours alone where none is in print."""
    return ours if paper is None else f"{paper:.1f} → {ours}"


def short_number(mean: float | None, std: float | None = None) -> str:
    """Return a number with one decimal, as pages show it."""
    return "–" if mean is None else f"{mean:.1f}" + ("" if std is None else f" ± {std:.1f}")


def gains(result: Result, published: Published) -> str:
    """Return how far each row is above the baseline in print and here, column by column; "" where nothing compares.

    Networks and data differ between a paper and a run here: what a method adds can be compared where scores cannot.
    """
    base = published.baseline
    ours = {row.name: row for row in result.rows}
    columns = [c for c in result.columns if published.value(base, c) is not None and base in ours]
    tabs = {}
    for data in dict.fromkeys(_split(column).data for column in columns):
        mine = [column for column in columns if _split(column).data == data][:MOST_COLUMNS]
        lines = [[f"gain over {base}", *(_split(column).head for column in mine)], ["---", *["---:"] * len(mine)]]
        for name, row in ours.items():
            cells = [
                _both(published.value(name, c), published.value(base, c), row.mean(c), ours[base].mean(c)) for c in mine
            ]
            if name != base and any(not cell.startswith("–") for cell in cells):
                lines.append([name, *cells])
        if len(lines) > 2:
            tabs[data or "all"] = as_table(lines)
    return tabbed(tabs) if tabs else ""


def _both(paper: float | None, paper_base: float | None, ours: float | None, base: float | None) -> str:
    return f"{_gain(paper, paper_base)} → {_gain(ours, base)}"


def only_in_print(result: Result, published: Published) -> str:
    """Return the columns in print that nothing here was measured for, as a table; "" where there are none."""
    columns = [column for column in published.columns if column not in result.columns]
    rows = [row for row in published.rows if any(published.value(row, column) is not None for column in columns)]
    if not rows:
        return ""
    tabs, sets = {}, dict.fromkeys(_split(column).data for column in columns)
    for data in sets:
        mine = [_split(column) for column in columns if _split(column).data == data]
        parts = []
        for i in range(0, len(mine), MOST_COLUMNS):
            some = mine[i : i + MOST_COLUMNS]
            first = f"in print, {data}" if data and len(sets) == 1 else "in print"  # of several, each is a tab
            head = [[first, *(column.head for column in some)], ["---", *["---:"] * len(some)]]
            lines = [[row, *(short_number(published.value(row, column.name)) for column in some)] for row in rows]
            parts.append(as_table([*head, *(line for line in lines if any(cell != "–" for cell in line[1:]))]))
        tabs[data or "all"] = "\n\n".join(parts)
    return tabbed(tabs)


def as_table(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells as a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _gain(value: float | None, base: float | None) -> str:
    return "–" if value is None or base is None else f"{value - base:+.1f}"


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
    """Return the origin of the numbers, as a list."""
    words = {
        "command": f"`{result.command}`" if result.command else "",
        "seeds": ", ".join(map(str, result.seeds)),
        "data": result.data,
        "hardware": ", ".join(result.hardware),
        "training": f"{result.seconds:.0f} s, all runs together" if result.seconds else "",
        "versions": ", ".join(f"{name} {version}" for name, version in result.versions.items()),
        "commit": ", ".join(result.commits) + (" (+: and changes since)" if "+" in "".join(result.commits) else ""),
    }
    return "\n".join(f"- {name}: {text}" for name, text in words.items() if text)


def sentence(text: str) -> str:
    """Return a note as a sentence; a letter of the papers' notation, such as ρ, stays as it is."""
    if not text:
        return ""
    start = text[0].upper() if text[0].isascii() else text[0]
    return f"{start}{text[1:]}{'' if text.endswith('.') else '.'}"
