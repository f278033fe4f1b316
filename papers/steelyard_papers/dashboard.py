"""Pages about all tables and figures, and one chart per paper, from the JSON that `steelyard reproduce` wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard._files import write_atomic
from steelyard.report.canvas import ACCENT, INK, OTHER, by_night, drawing, has_matplotlib, legend, to_svg
from steelyard_papers.catalogue import PAPERS, Paper
from steelyard_papers.findings import ERRORS, Verdict, again, judge_all
from steelyard_papers.markdown import FROZEN, Compared, as_table, compare, fewer_seeds, page, sentence, tabbed, tables
from steelyard_papers.published import PUBLISHED, Published
from steelyard_papers.reproduction import BEYOND, LEFT_OUT, Reproduction
from steelyard_papers.result import Result, RowResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_HEIGHT = 0.27


def chart(paper: Paper, results: Mapping[str, Result]) -> Figure:
    """Draw the rows in print of the paper's main column: values on the left, gains over the baseline on the right.

    Rows of which nothing was run here have the printed value alone; so has the baseline where all do.
    """
    published = PUBLISHED[paper.table]
    printed = {row: value for row in published.rows if (value := published.value(row, paper.column)) is not None}
    found = {row.name: row for row in results[paper.table].rows} if paper.table in results else {}
    names = list(printed)[::-1]
    ours = [name for name in names if _mean(found.get(name), paper.column)[0] is not None]
    with drawing(width=9, height=_HEIGHT * len(names) + 1.3, ncols=2, sharey=True) as (figure, axes):
        for i, name in enumerate(names):
            _point(axes[0], i + 0.14, printed[name], 0.0, OTHER, "s", "in print" if not i else None)
            mean, error = _mean(found.get(name), paper.column)
            if mean is not None:
                _point(axes[0], i - 0.14, mean, error, ACCENT, "o", "here" if name == ours[0] else None)
        _gain_bars(axes[1], names, printed, found, paper)
        axes[0].set_yticks(range(len(names)), names)
        axes[0].set_xlabel(f"{paper.column}, %")
        axes[1].set_xlabel(f"{paper.column} less that of {paper.baseline}")
        axes[1].axvline(0, color=INK, lw=0.6)
        legend(axes[0])
    return figure


def _gain_bars(axes, names, printed, found, paper: Paper) -> None:  # type: ignore[no-untyped-def]
    """Draw bars of the gains, with two standard errors of ours."""
    base, error_of_base = _mean(found.get(paper.baseline), paper.column)
    for i, name in enumerate(names):
        if name == paper.baseline:
            continue
        axes.barh(i + 0.18, printed[name] - printed[paper.baseline], 0.34, color=OTHER)
        mean, error = _mean(found.get(name), paper.column)
        if mean is not None and base is not None:
            both = 2 * sqrt(error**2 + error_of_base**2)
            axes.barh(i - 0.18, mean - base, 0.34, color=ACCENT, xerr=both or None, error_kw={"lw": 0.8, "ecolor": INK})


def _point(axes, y: float, x: float, error: float, colour: str, marker: str, label: str | None) -> None:  # type: ignore[no-untyped-def]
    axes.errorbar(x, y, xerr=2 * error or None, fmt=marker, ms=5, color=colour, lw=1, label=label)


def _mean(row: RowResult | None, column: str) -> tuple[float | None, float]:
    """Return the mean over the seeds and its standard error, 0 of one seed."""
    if row is None or (mean := row.mean(column)) is None:
        return None, 0.0
    return mean, (row.std(column) or 0.0) / sqrt(len(row.values(column)))


NEAR = 1.0
"""Points by which a number may differ from the paper's and count as reproduced; or two standard deviations."""
AGAIN = "again"
"""The folder, beside the results, of those that were run a second time."""
BEYOND_PAGE = "beyond.md"
WIDE = "---\nhide: [navigation, toc]\n---"
"""Leaves the width of the page to its tables."""


def write(folder: Path, catalogue: Mapping[str, Reproduction]) -> None:
    """Write the page and, with matplotlib, the picture of every result in `folder`, and `README.md`."""
    results = read(folder)
    for name, result in results.items():
        if name not in catalogue:
            continue
        reproduction = catalogue[name]
        write_atomic(folder / f"{name}.md", page(result, reproduction, results))
        if reproduction.draw is not None and has_matplotlib():
            try:
                picture = by_night(to_svg(reproduction.draw(result)))
            except (LookupError, TypeError, ValueError, AttributeError, StopIteration) as error:
                words = f"{type(error).__name__}: {error}"
                raise ValueError(
                    f"{folder / name}.json cannot be drawn ({words}): run it again, or remove it"
                ) from None
            write_atomic(folder / f"{name}.svg", picture)
    if has_matplotlib():
        for paper in PAPERS:
            if paper.table in results and paper.table in catalogue:
                write_atomic(folder / f"chart-{paper.key}.svg", by_night(to_svg(chart(paper, results))))
    repeated = read(folder / AGAIN) if (folder / AGAIN).is_dir() else {}
    write_atomic(folder / BEYOND_PAGE, beyond(results, catalogue, repeated))
    write_atomic(folder / "README.md", dashboard(results, catalogue))


def read(folder: Path) -> dict[str, Result]:
    """Return the results in a folder, by name."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: give the one that holds the JSON of steelyard reproduce")
    found = {}
    for file in sorted(folder.glob("*.json")):
        result = Result.load(file)
        if result.name != file.stem:
            raise ValueError(f"{file} holds the result {result.name!r}: name it {result.name}.json")
        for option, items in (("--smoke", "generated data"), ("--validation", "held-out training items")):
            if f" {option}" in result.command:
                raise ValueError(f"{file} was measured on {items}: run it without {option}, or remove it")
        found[result.name] = result
    return found


def dashboard(results: Mapping[str, Result], catalogue: Mapping[str, Reproduction]) -> str:
    """Return the first page: what became of each paper's claims, then a chart, the set-up and all tables of each."""
    names = dict.fromkeys(entry.paper for entry in catalogue.values() if entry.paper != BEYOND)
    known = {paper.name: paper for paper in PAPERS if paper.name in names}
    parts = [
        WIDE,
        "# The papers, in print and here",
        "Of every main claim of four papers: its gain in print in points, ours ± its standard error, and a computed "
        f"verdict. *Holds*: every difference is beyond {ERRORS:g} standard errors; *in part*: some are, or all point "
        "the right way; *not here*: neither; *not run*: not yet, though its data is at hand; “2 of 3” counts the "
        "differences beyond chance, where there are several. "
        f"† over another network than the paper's, or a copy of small images. [Beyond the papers]({BEYOND_PAGE}); "
        "[notation](../notation.md); [errata of the papers](../errata.md).",
    ]
    there = {need.what for name in results if name in catalogue for need in catalogue[name].needs}
    if known:
        at_hand = {key for key, entry in catalogue.items() if {need.what for need in entry.needs} <= there}
        parts.append(as_table(_claims(list(known.values()), results, at_hand)))
    for name in names:
        parts.append(f"## {name}")
        paper = known.get(name)
        if paper is not None:
            parts.append(paper.idea)
        if paper is not None and paper.table in results:
            parts.append(f"![{paper.column}: in print and here](chart-{paper.key}.svg)")
            parts.append(as_table(_setup(paper, results[paper.table])))
        parts.append(_entries({key: entry for key, entry in catalogue.items() if entry.paper == name}, results, there))
    parts.append(
        "Everything here is generated by `steelyard reproduce --dashboard docs/results` from the JSON files beside it. "
        "To add a table: `steelyard reproduce NAME --data DATA --seeds 3`; with `--ledger docs/results/ledger.jsonl` "
        "runs that are noted there are not trained again."
    )
    return "\n\n".join(parts) + "\n"


def _claims(papers: Sequence[Paper], results: Mapping[str, Result], at_hand: set[str]) -> list[list[str]]:
    """One line per claim, those of one paper together."""
    other = {name for name, result in results.items() if any("backbone" in text for text in result.changed)}
    lines = [["", "claim", "in print", "here", "verdict"], ["---", "---", "---:", "---:", "---"]]
    for paper in papers:
        claimed = [one.judged[0].printed for one in judge_all(paper.claims, {})]  # of the first difference
        for i, verdict in enumerate(judge_all(paper.claims, results, at_hand)):
            name = f"**{paper.key.upper()}**" if not i else ""
            mark = " †" if verdict.judged[0].ours is not None and verdict.judged[0].difference.table in other else ""
            lines.append([name, verdict.text, *_gains(verdict, claimed[i]), f"**{verdict.outcome}**{mark}"])
    return lines


def _gains(verdict: Verdict, in_print: float | None) -> tuple[str, str]:
    """The gain in print and ours of the first difference, and of how many that ours is beyond chance.

    in_print: the gain that the paper claims, on data that was not run here.
    """
    first = next((one for one in verdict.judged if one.ours is not None), verdict.judged[0])
    gain = first.printed if first.printed is not None else in_print
    printed = "–" if gain is None else f"{gain:+.1f}"
    if first.ours is None:
        return printed, "–"
    ours = f"{first.ours:+.1f}" + (" (one seed)" if first.error is None else f" ± {first.error:.1f}")
    column = first.difference.column
    if first.printed is None and " on " in column:
        ours += f" on {column.partition(' on ')[2].partition(',')[0]}"
    n = len(verdict.judged)
    return printed, ours if n == 1 else f"{ours}; {sum(one.holds for one in verdict.judged)} of {n}"


def _setup(paper: Paper, result: Result) -> list[list[str]]:
    """Return a table of the paper's set-up beside the one used here."""
    hours = f"{result.seconds / 60:.0f} minutes on {', '.join(result.hardware)}" if result.seconds else ""
    of_network = [text for text in result.changed if text.startswith(("model.", "data."))]
    here = {
        "data": result.data.split("; ")[0],
        "network": _but(paper.here["network"], of_network),
        "schedule": _but(paper.here["schedule"], [text for text in result.changed if text not in of_network]),
        "runs": f"{len(result.seeds)} per row" + (f", {hours}" if hours else ""),
    }
    lines = [[f"{paper.table}", "paper", "here"], ["---", "---", "---"]]
    return [*lines, *([aspect, words, here.get(aspect, "")] for aspect, words in paper.setup.items())]


def _but(usual: str, changed: Sequence[str]) -> str:
    """Return the usual set-up, and the settings that were changed."""
    return usual + (f"; changed: {', '.join(f'`{text}`' for text in changed)}" if changed else "")


def _entries(entries: Mapping[str, Reproduction], results: Mapping[str, Result], there: set[str]) -> str:
    """All tables and figures of a paper, as tabs; a twin over a frozen backbone is a tab of its page."""
    tabs = {}
    for title, is_figure in (("Tables", False), ("Figures", True)):
        chosen = [
            entry for name, entry in entries.items() if ("-fig" in name) == is_figure and not name.endswith(FROZEN)
        ]
        if chosen:
            lines = [["", "what", "state"], ["---", "---", "---"]]
            tabs[title] = as_table([*lines, *(_line(entry, results.get(entry.name), there) for entry in chosen)])
    return tabbed(tabs)


def _line(entry: Reproduction, result: Result | None, there: set[str]) -> list[str]:
    """Return the row of one table or figure; `there` is the data that some result here has used."""
    title = entry.title.replace("|", "\\|")
    if result is None:
        lacking = [need.what for need in entry.needs if need.what not in there]
        return [entry.name, title, f"not run: {', '.join(lacking)}" if lacking else "not run"]
    return [f"[{entry.name}]({entry.name}.md)", title, status(result, entry.published)]


def beyond(
    results: Mapping[str, Result], catalogue: Mapping[str, Reproduction], repeated: Mapping[str, Result] | None = None
) -> str:
    """Return the page of what no paper has, and of what came of running some of it again."""
    parts = ["# Beyond the papers", "On the papers' data, what none of them has. [Back to their claims](README.md)."]
    for name, result in results.items():
        if name in catalogue and catalogue[name].paper != BEYOND:
            continue
        if name in catalogue and catalogue[name].draw is not None and not result.columns:
            parts += [f"## [{result.title}]({name}.md)", f"![{result.title}]({name}.svg)"]
            continue
        words = [fewer_seeds(result), *result.notes]
        words += catalogue[name].compared(result, results) if name in catalogue else ()
        title = f"[{result.title}]({name}.md)" if name in catalogue else result.title
        parts += [f"## {title}", tables(result, None), " ".join(map(sentence, filter(None, words)))]
    lines = [
        f"- {name}, `{result.command}`: {again(result, results[name])}."
        for name, result in (repeated or {}).items()
        if name in results
    ]
    if lines:
        parts += ["## Run again", f"A second run of each, in `{AGAIN}/`, against the numbers here:", "\n".join(lines)]
    return "\n\n".join(part for part in parts if part) + "\n"


def status(result: Result, published: Published | None) -> str:
    """Return what a result says about the paper's."""
    if not result.columns:
        return "drawn"
    compared = compare(result, published)
    if compared:
        words = _judged(compared)
        if published is not None and published.only_data:
            words = f"the data: {words}; the paper prints no scores by class"
    elif published is None:
        words = "run; not compared with print"
    else:
        words = "run on other data than the paper's; its numbers are on the page"
    if " --rows " in result.command:
        words += "; some rows"
    missing = [note.removesuffix(LEFT_OUT) for note in result.notes if note.endswith(LEFT_OUT)]
    if missing:
        words += f"; without {', '.join(missing)}"
    return f"{words}; set-up and data are not the paper's, its page says how" if result.changed else words


def _judged(compared: list[Compared]) -> str:
    if all(abs(pair.difference) <= max(NEAR, 2 * pair.std) for pair in compared):
        return "reproduced"
    apart = [
        (one, other)
        for one, other in combinations(compared, 2)
        if one.column == other.column and abs(one.paper - other.paper) > NEAR
    ]
    kept = sum((one.paper - other.paper) * (one.ours - other.ours) > 0 for one, other in apart)
    worst = max(compared, key=lambda pair: abs(pair.difference))
    far = f"{worst.column} of {worst.row} by {worst.difference:+.1f}"
    if apart and kept == len(apart):
        return f"ordering holds; differs most: {far}"
    return (
        f"{kept} of {len(apart)} pairs of rows in the printed order; differs most: {far}"
        if apart
        else f"differs: {far}"
    )
