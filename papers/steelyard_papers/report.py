"""Results as pages, and the page about all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

from steelyard._files import write_atomic
from steelyard.report.canvas import by_night, has_matplotlib, to_svg
from steelyard_papers.claims import (
    BEYOND,
    ERRORS,
    Catalogue,
    Entry,
    Paper,
    again,
    beside_best,
    gain_of,
    gain_text,
    verdicts,
)
from steelyard_papers.datasets import LEFT_OUT
from steelyard_papers.figures import chart
from steelyard_papers.result import LOWER_IS_BETTER, Column, Printed, Result, as_table, short, split_on

# The page of one result

VARIANTS = {"-frozen": "over a frozen backbone", "-features": "over features of a frozen ResNet-50"}
"""Endings of the names of tables that are run in another way too; their numbers are tabs of the table's page."""
MOST_COLUMNS = 5
"""Beside the name of a row: more do not fit a page."""


def page(result: Result, entry: Entry, results: Mapping[str, Result], catalogue: Catalogue) -> str:
    """Return the page of a result; `results` are those that lie beside it, by name."""
    parts = [f"# {result.name}: {result.title}", f"{result.paper}. {sentence(entry.note)}".strip()]
    if result.changed:
        words = ", ".join(f"`{text}`" for text in result.changed)
        parts.append(f"Changed here, whatever the text above states: {words}.")
    everything = {**results, result.name: result}
    parts += _judged(result, entry, everything, catalogue, "## ")
    if entry.facts is not None and result.figure is not None:
        facts = [[what, short(paper, None, True), short(ours, None, True)] for what, paper, ours in entry.facts(result)]
        parts += ["## In the text of the paper", as_table([["", "in print", "here"], *facts])]
    if result.columns:
        parts += _numbers(result, entry, results)
    if entry.draw is not None:
        parts.append(f"![{result.title}]({result.name}.svg)")
    absent = [text.removesuffix(LEFT_OUT) for text in result.notes if text.endswith(LEFT_OUT)]
    parts += [sentence(text) for text in result.notes if not text.endswith(LEFT_OUT)]
    if absent:
        parts.append(f"Left out, since the data is not there: {', '.join(absent)}.")
    parts += ["## Where it comes from", _origin(result)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _judged(
    result: Result, entry: Entry, results: Mapping[str, Result], catalogue: Catalogue, heading: str
) -> list[str]:
    """The sections with what became of claims, and with `auto` beside the best row of the papers' tables."""
    parts = []
    if run := [line for line in verdicts(entry.claims, results, catalogue) if "not run" not in line[-1]]:
        parts += [f"{heading}Claims", as_table([["claim", "in print", "here", "verdict"], *run], "lrrl")]
    if lines := beside_best(result, results, entry.beside):
        head = ["", "auto", "best row", "which", "gain of auto", "verdict"]
        parts += [f"{heading}Beside {', '.join(entry.beside)}", as_table([head, *lines], "lrrlrl")]
    return parts


def _numbers(result: Result, entry: Entry, results: Mapping[str, Result]) -> list[str]:
    """The sections with the numbers: gains before scores where these do not compare with the paper's."""
    printed, scores = entry.printed, {"": tables(result, entry.printed)}
    for ending, words in VARIANTS.items():
        twin = results.get(f"{result.name}{ending}")
        if twin is not None and twin.columns:
            scores[words] = f"{tables(twin, None)}\n\n[More about it]({twin.name}.md)"
    if len(scores) > 1:
        scores = {words or "trained as a whole": text for words, text in scores.items()}
    sections = [["## Numbers" if printed is None or printed.is_data else "## In print → here", tabbed(scores)]]
    if len(result.seeds) > 1:
        words = "Ours are means over the seeds ± their standard deviation."
        sections[0].append(f"{words} {sentence(fewer_seeds(result))}".strip())
    if printed is not None:
        sections[0].append(f"The paper's numbers: {printed.source}. {sentence(printed.note)}".strip())
        differs = entry.differs or ("this copy of the data is not the owners'" if "re-encoded" in result.data else "")
        differs = differs or ("settings are changed" if result.changed else "")
        if printed.baseline and (compared := gains(result, printed)):
            why = f"{sentence(differs)} So gains compare, and scores do not." if differs else ""
            sections.insert(0 if differs else 1, [f"## Gains over {printed.baseline}, in print → here", why, compared])
        if rest := only_in_print(result, printed):
            sections.append(["## In print alone", rest])
    return [part for section in sections for part in section]


def fewer_seeds(result: Result) -> str:
    """Return which rows and columns have fewer seeds than the result, or nothing."""
    n = len(result.seeds)
    counted = {(row.name, c): len(row.values(c)) for row in result.rows for c in result.columns}
    short_rows = [row for row in result.rows if len(row.runs) < n]
    rows = [row.name for row in short_rows]
    most = {c: max((counted[row.name, c] for row in result.rows), default=0) for c in result.columns}
    columns = [c for c in result.columns if 0 < most[c] < n and len(rows) < len(result.rows)]
    if not columns and len(rows) > 1 and all(len(row.runs) == 1 for row in short_rows):
        return f"the {len(rows)} rows without ± are of one seed"
    words = [", ".join(f"{name!r}" for name in names) for names in (rows, columns) if names]
    return f"of fewer seeds, without ± of one: {'; '.join(words)}" if words else ""


def _by_data(columns: Sequence[str]) -> dict[str, list[list[Column]]]:
    """Columns by their data, in pieces that fit a page."""
    split = [split_on(column) for column in columns]
    found = {}
    for data in dict.fromkeys(column.data for column in split):
        mine = [column for column in split if column.data == data]
        found[data] = [mine[i : i + MOST_COLUMNS] for i in range(0, len(mine), MOST_COLUMNS)]
    return found


def tabbed(tabs: Mapping[str, str]) -> str:
    """Return contents as tabs of a page; of one alone, as it is."""
    if len(tabs) == 1:
        return next(iter(tabs.values()))
    parts = []
    for title, content in tabs.items():
        body = "\n".join(f"    {line}" if line else "" for line in content.splitlines())
        parts.append(f'=== "{title}"\n\n{body}')
    return "\n\n".join(parts)


def tables(result: Result, printed: Printed | None) -> str:
    """Return the numbers as tables of at most six columns, one tab per data set and ρ, "in print → ours" in a cell."""
    names = [row.name for row in result.rows]
    if printed is not None and any(printed.prints(column) for column in result.columns):
        names += [name for name in printed.rows if name not in names]

    def cell(name: str, column: str) -> str:
        row = result.row(name)
        paper = None if printed is None else printed.value(name, column)
        is_count = printed is not None and printed.is_data and printed.prints(column)
        ours = short(row.mean(column), None if is_count else row.std(column), is_count)
        return ours if paper is None else f"{short(paper, None, is_count)} → {ours}"

    return _grid(names, result.columns, cell)


def gains(result: Result, printed: Printed) -> str:
    """Return how far each row is above the baseline, in print and here; "" where nothing compares.

    Networks and data differ between a paper and a run here: what a method adds can be compared where scores cannot.
    """
    columns = [c for c in result.columns if split_on(c).head in {split_on(p).head for p in printed.columns}]
    names = [*dict.fromkeys((*printed.rows, *result.by_name))]

    def cell(name: str, column: str) -> str:
        over = printed.baseline + name[len(name.partition(", ρ ")[0]) :]
        if name == over:
            return "–"
        mine, theirs = printed.value(name, column), printed.value(over, column)
        sign = -1 if column.startswith(LOWER_IS_BETTER) else 1
        in_print = None if mine is None or theirs is None else sign * (mine - theirs)
        ours = gain_text(*gain_of(result.row(name), result.row(over), column))
        return "–" if ours == "–" else f"{gain_text(in_print)} → {ours}" if printed.prints(column) else ours

    return _grid(names, columns, cell)


def only_in_print(result: Result, printed: Printed) -> str:
    """Return the columns in print that nothing here was measured for, as tables; "" where there are none."""
    columns = [column for column in printed.columns if column not in result.columns]
    return _grid(
        list(printed.rows), columns, lambda row, column: short(printed.value(row, column), None, printed.is_data)
    )


def _grid(names: Sequence[str], columns: Sequence[str], cell: Callable[[str, str], str]) -> str:
    """Tables of cells, a tab per data set and ρ; rows without a number are left out, and ρ off their names."""
    rhos = [name.rpartition(", ρ ")[2] for name in names]
    groups = {"": list(names)}
    if len(set(rhos)) < len(rhos) and all(", ρ " in name for name in names):
        groups = {f"ρ {rho}": [name for name in names if name.endswith(f", ρ {rho}")] for rho in dict.fromkeys(rhos)}
    tabs: dict[str, list[list[list[str]]]] = {}
    for group, of_group in groups.items():
        for data, pieces in _by_data(columns).items():
            for piece in pieces:
                lines = [[name.removesuffix(f", {group}"), *(cell(name, c.name) for c in piece)] for name in of_group]
                lines = [line for line in lines if any(text != "–" for text in line[1:])]
                if lines:
                    tab = ", ".join(filter(None, (data, group))) or ""
                    tabs.setdefault(tab, []).append([["", *(column.head for column in piece)], *lines])
    if len(tabs) == 1:
        ((tab, tables_of),) = tabs.items()
        for table in tables_of:
            table[0][0] = tab  # what a tab would say
    return tabbed({tab: "\n\n".join(map(as_table, tables_of)) for tab, tables_of in tabs.items()}) if tabs else ""


def _origin(result: Result) -> str:
    """The origin of the numbers, as a list."""
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


# All pages

NEAR = 1.0
"""Points by which a number may differ from the paper's and count as reproduced; or two standard deviations."""
AGAIN = "again"
"""The folder, beside the results, of those that were run a second time."""
BEYOND_PAGE = "beyond.md"


def write(folder: Path, papers: Sequence[Paper], catalogue: Catalogue) -> None:
    """Write the page and, with matplotlib, the picture of every result in `folder`, and `README.md`."""
    results = load(folder)
    for name, result in results.items():
        if name in catalogue:
            write_atomic(folder / f"{name}.md", page(result, catalogue[name], results, catalogue))
            draw(result, catalogue[name], folder)
    if has_matplotlib():
        for paper in papers:
            printed = catalogue[paper.table].printed if paper.table in catalogue else None
            if paper.table in results and printed is not None:
                figure = chart(paper, results[paper.table], printed)
                write_atomic(folder / f"chart-{paper.key}.svg", by_night(to_svg(figure)))
    repeated = load(folder / AGAIN) if (folder / AGAIN).is_dir() else {}
    write_atomic(folder / BEYOND_PAGE, beyond(results, catalogue, repeated))
    write_atomic(folder / "README.md", dashboard(results, papers, catalogue))


def draw(result: Result, entry: Entry, folder: Path) -> bool:
    """Write the picture of a result, if it has one and there is matplotlib; return whether one was written."""
    if entry.draw is None or not has_matplotlib():
        return False
    try:
        picture = by_night(to_svg(entry.draw(result)))
    except (LookupError, TypeError, ValueError, AttributeError, StopIteration) as error:
        words = f"{type(error).__name__}: {error}"
        raise ValueError(f"{folder / result.name}.json cannot be drawn ({words}): run it again, or remove it") from None
    write_atomic(folder / f"{result.name}.svg", picture)
    return True


def load(folder: Path) -> dict[str, Result]:
    """Return the results in a folder, by name."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: give the one that holds the JSON of steelyard reproduce")
    results = {}
    for file in sorted(folder.glob("*.json")):
        result = Result.load(file)
        if result.name != file.stem:
            raise ValueError(f"{file} holds the result {result.name!r}: name it {result.name}.json")
        for option, items in (("--smoke", "generated data"), ("--validation", "held-out training items")):
            if f" {option}" in result.command:
                raise ValueError(f"{file} was measured on {items}: run it without {option}, or remove it")
        results[result.name] = result
    return results


def dashboard(results: Mapping[str, Result], papers: Sequence[Paper], catalogue: Catalogue) -> str:
    """Return the first page: what became of each paper's claims, then a chart, the set-up and all tables of each."""
    parts = [
        "---\nhide: [navigation, toc]\n---",
        "# The papers, in print and here",
        "The gain that each paper claims, in points; ours ± its standard error; and a computed verdict. *Holds*: "
        f"beyond {ERRORS:g} standard errors. *In part*: some are (“2 of 3”), or all point the right way. *Not run: "
        f"data*: it is not available. † over a smaller network than the paper's. [Beyond the papers]({BEYOND_PAGE}) · "
        "[errata](../errata.md) · [notation](../notation.md)",
    ]
    lines = [["", "claim", "in print", "here", "verdict"]]
    for paper in papers:
        of_paper = verdicts(paper.claims, results, catalogue)
        names = [f"**{paper.key.upper()}**", *[""] * len(of_paper)]
        lines += [[name, *line] for name, line in zip(names, of_paper, strict=False)]
    parts.append(f'<div class="claims" markdown>\n\n{as_table(lines, "llrrl")}\n\n</div>')
    for paper in papers:
        parts += [f"## {paper.name}", paper.idea]
        if paper.table in results:
            parts.append(f"![{paper.column}: in print and here](chart-{paper.key}.svg)")
            parts.append(as_table(_setup(paper, results[paper.table]), "lll"))
        parts.append(_entries(paper, results, catalogue))
    parts.append(
        "Everything here is generated by `steelyard reproduce --dashboard docs/results` from results of [these "
        "commands](../how-to/papers.md)."
    )
    return "\n\n".join(parts) + "\n"


def _setup(paper: Paper, result: Result) -> list[list[str]]:
    """A table of the paper's set-up beside the one used here."""
    hours = f"{result.seconds / 60:.0f} minutes on {', '.join(result.hardware)}" if result.seconds else ""
    of_network = [text for text in result.changed if text.startswith(("model.", "data."))]
    others = [text for text in result.changed if text not in of_network]
    measured = {"data": result.data.split("; ")[0], "runs": f"{len(result.seeds)} per row, {hours}".rstrip(", ")}
    lines = [[f"set-up of {paper.table}", "paper", "here"]]
    for aspect, (theirs, ours) in paper.setup.items():
        changed = {"network": of_network, "schedule": others}.get(aspect)
        words = f"; changed: {', '.join(f'`{text}`' for text in changed)}" if changed else ""
        lines.append([aspect, theirs, (ours or measured.get(aspect, "")) + words])
    return lines


def _entries(paper: Paper, results: Mapping[str, Result], catalogue: Catalogue) -> str:
    """All tables and figures of a paper, as tabs; what is run in another way too is a tab of its page."""
    there = {entry.needs for name, entry in catalogue.items() if name in results}
    tabs = {}
    for title, is_figure in (("Tables", False), ("Figures", True)):
        lines = [["", "what", "run here", "as in print"]]
        for name, entry in catalogue.items():
            if entry.paper == paper.name and ("-fig" in name) == is_figure and not name.endswith((*VARIANTS,)):
                what = entry.title.replace("|", "\\|")
                if name in results:
                    lines.append([f"[{name}]({name}.md)", what, *status(results[name], entry)])
                else:
                    lines.append([name, what, "not run" if entry.needs in there or not entry.data else "no data", ""])
        if len(lines) > 1:
            tabs[title] = as_table(lines, "llll")
    return tabbed(tabs)


def status(result: Result, entry: Entry) -> tuple[str, str]:
    """Return how much of a table was run, and how it compares with print."""
    printed = entry.printed
    if not result.columns:
        return "drawn", ""
    n = len(result.seeds)
    seeds = f", {n} seed{'s' * (n != 1)}" if entry.minutes else ""
    run = {row.name for row in result.rows if row.runs}
    rows = printed.rows if printed is not None and run & printed.rows.keys() else {}
    have = f"{len(run & rows.keys())} of {len(rows)} rows" if rows else f"{len(run)} rows"
    pairs = [
        (row.name, column, paper, ours, row.std(column) or 0.0)
        for row in result.rows
        for column in result.columns
        if printed is not None
        and (paper := printed.value(row.name, column)) is not None
        and (ours := row.mean(column)) is not None
    ]
    return have + seeds, _compared(pairs, printed is not None and printed.is_data) if pairs else ""


def _compared(pairs: Sequence[tuple[str, str, float, float, float]], is_data: bool) -> str:
    """In words how numbers compare, each with its row, its column, the one in print, ours and its deviation."""
    if is_data:
        far = max(abs(ours - paper) / paper for _, _, paper, ours, _ in pairs)
        return "the same data" if far < 0.005 else f"counts up to {100 * far:.0f} % apart"
    if all(abs(ours - paper) <= max(NEAR, 2 * std) for _, _, paper, ours, std in pairs):
        return "reproduced"
    apart = [
        (one[2] - other[2], one[3] - other[3])
        for one, other in combinations(pairs, 2)
        if one[1] == other[1] and abs(one[2] - other[2]) > NEAR
    ]
    kept = sum(in_print * ours > 0 for in_print, ours in apart)
    return f"order of {kept} of {len(apart)} pairs" if apart else ""


def beyond(results: Mapping[str, Result], catalogue: Catalogue, repeated: Mapping[str, Result]) -> str:
    """Return the page of what no paper has, and of what came of running some of it again."""
    parts = ["# Beyond the papers", "On the papers' data, what none of them has. [Back to their claims](README.md)."]
    for name, result in results.items():
        if name not in catalogue or catalogue[name].paper != BEYOND:
            continue
        entry = catalogue[name]
        parts.append(f"## [{result.title}]({name}.md)")
        if entry.draw is not None and not result.columns:
            parts.append(f"![{result.title}]({name}.svg)")
            continue
        parts += _judged(result, entry, results, catalogue, "### ")
        parts.append(tables(result, None))
    lines_again = [
        f"- {name}, `{result.command}`: {again(result, results[name])}."
        for name, result in repeated.items()
        if name in results
    ]
    if lines_again:
        parts += [
            "## Run again",
            f"A second run of each, in `{AGAIN}/`, against the numbers here:",
            "\n".join(lines_again),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"
