"""Run `steelyard reproduce`: the list of all tables and figures, and what is done with those that are asked for."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from steelyard._files import naming, write_atomic
from steelyard._schema import closest
from steelyard._source import commit
from steelyard.run.finish import versions
from steelyard_papers import beyond, db, pal, plm, report, spa
from steelyard_papers.claims import Entry
from steelyard_papers.result import Result
from steelyard_papers.study import Job

ALL = "all"
PAPERS = (plm.ABOUT, db.ABOUT, pal.ABOUT, spa.ABOUT)


def _with_claims(entry: Entry) -> Entry:
    """A table with the claims of its paper that are about it."""
    claims = [one for paper in PAPERS for one in paper.claims if any(d.table == entry.name for d in one.differences)]
    return replace(entry, claims=(*claims, *entry.claims))


CATALOGUE: dict[str, Entry] = {
    entry.name: _with_claims(entry) for part in (plm, db, pal, spa, beyond) for entry in part.ENTRIES
}
"""In the order of the papers, and of their tables and figures; last what goes beyond them."""


def entries_of(name: str) -> list[Entry]:
    """Return the table or figure of that name, or all of them for "all"."""
    if name == ALL:
        return list(CATALOGUE.values())
    if name not in CATALOGUE:
        meant = closest(name, CATALOGUE)
        hint = f"did you mean {meant}?" if meant else "see steelyard reproduce --list"
        raise ValueError(f"there is no table or figure {name!r}: {hint}")
    return [CATALOGUE[name]]


@contextmanager
def prepared(entry: Entry, job: Job) -> Iterator[Job]:
    """Give the job with its data: what the person has, or a few generated items for a smoke run."""
    if not entry.minutes and (job.rows or job.sets or job.validation):
        raise ValueError(f"{entry.name} trains nothing: leave --rows, --set and --validation out")
    if job.rows and entry.whole:
        raise ValueError(f"{entry.name} needs all of its rows: leave --rows out")
    if not job.smoke:
        if not entry.has_data(job.data_root):
            words = f"{entry.needs} ({entry.where})"
            raise ValueError(f"{entry.name} needs {words}, which is not in {job.data_root}: see --data")
        yield job
        return
    with tempfile.TemporaryDirectory() as place:
        if entry.data:
            with naming(Path(place)):
                (entry.smoke or entry.data[0]).generate(Path(place))
        yield replace(job, data_root=Path(place), seeds=job.seeds[:1])


def reproduce(entry: Entry, job: Job) -> Result:
    """Run it and write NAME.json, NAME.md and, where there is a figure, NAME.svg to `job.out`."""
    job.out.mkdir(parents=True, exist_ok=True)
    made = entry.run(job)
    result = replace(
        made,
        data=f"generated, and of no meaning; {made.data}" if job.smoke else made.data,
        name=entry.name,
        paper=entry.paper,
        title=entry.title,
        command=job.command,
        commits=made.commits or (commit(),),
        versions=made.versions or versions(torch.device("cpu")),
    )
    drawn = report.draw(result, entry, job.out)  # with the details of its runs, which the JSON leaves out
    result.save(job.out / f"{result.name}.json")
    result = Result.load(job.out / f"{result.name}.json")  # a page says what its JSON holds, whoever makes it
    beside = {} if job.smoke or job.validation else _beside(entry, job.out)
    write_atomic(job.out / f"{result.name}.md", report.page(result, entry, beside, CATALOGUE))
    if not drawn and entry.draw is not None:
        job.progress(f"No {result.name}.svg: it needs matplotlib, pip install 'steelyard[report]'.")
    return result


def _beside(entry: Entry, folder: Path) -> dict[str, Result]:
    """The results in a folder that a page compares with, measured on test items; those that cannot be read are not."""
    names = {one for claim in entry.claims for d in claim.differences for one in (d.table, d.over_table)}
    results = {}
    for name in (*names, *entry.beside, *(f"{entry.name}{ending}" for ending in report.VARIANTS)):
        with suppress(OSError, ValueError):
            other = Result.load(folder / f"{name}.json")
            if not any(option in other.command for option in (" --smoke", " --validation")):
                results[name] = other
    return results


def run(name: str, seeds: int, out: str | None, as_json: bool, **asked: Any) -> None:
    """Run one, or one after the other; of several, those whose data is not there are passed over.

    Args:
        name: of a table or figure, or "all".
        seeds: how many runs of every row.
        out: the folder of runs and results.
        as_json: whether results are printed as JSON.
        asked: the other arguments of a `Job`.
    """
    chosen = entries_of(name)
    if seeds < 1:
        raise ValueError(f"--seeds is {seeds}: give how many runs of every row, at least 1")
    console = Console(stderr=as_json)

    def say(sentence: str) -> None:
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    with tempfile.TemporaryDirectory() as place:
        is_kept = out is not None or not asked["smoke"]
        folder = Path(out or "runs/papers") if is_kept else Path(place)
        shown = console if console.is_terminal else None
        job = Job(out=folder, seeds=tuple(range(seeds)), progress=say, console=shown, **asked)
        for entry in chosen:
            if len(chosen) > 1 and not job.smoke and not entry.has_data(job.data_root):
                say(f"{entry.name}: passed over, {entry.needs} is not there")
                continue
            with prepared(entry, replace(job, command=_command(entry, job))) as ready:
                result = reproduce(entry, ready)
            if as_json:
                print(result.to_json(), end="")
            else:
                say(f"{result.name}: {result.title}" + (", on generated data" if job.smoke else ""))
                if result.columns and not job.smoke:
                    say(report.tables(result, entry.printed))
                if is_kept:
                    drawn = ", .svg" if (folder / f"{result.name}.svg").is_file() else ""
                    say(f"Written: {folder / result.name}.json, .md{drawn}")


def _command(entry: Entry, job: Job) -> str:
    """The command that gives the same numbers, without its folders."""
    words = ["steelyard", "reproduce", entry.name]
    words += ["--smoke"] if job.smoke else ["--data", "DATA"] if entry.data else []
    if len(job.seeds) > 1:
        words += ["--seeds", str(len(job.seeds))]
    for option, texts in (("--rows", job.rows), ("--set", job.sets)):
        words += [word for text in texts for word in (option, text)]
    if job.validation:
        words += ["--validation", f"{job.validation:g}"]
    return shlex.join(words)


def write_pages(folder: Path) -> None:
    """Write the pages of what was run."""
    report.write(folder, PAPERS, CATALOGUE)
    print(f"Written: {folder / 'README.md'}")


def show(name: str | None, root: Path, as_json: bool) -> None:
    """List one table or figure, or all of them."""
    chosen = entries_of(name or ALL)
    if as_json:
        print(dumps([about(entry, root) for entry in chosen], ensure_ascii=False))
        return
    console, paper, width = Console(), "", max(len(entry.name) for entry in chosen)

    def say(line: str, style: str = "") -> None:
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    for entry in chosen:
        listed = about(entry, root)
        if entry.paper != paper:
            paper = entry.paper
            say(f"\n{paper}", "bold")
        say(f"  {entry.name:<{width}} {entry.title}")
        data = ", ".join(f"{need['what']}{'' if need['there'] else ' (not there)'}" for need in listed["needs"])
        time = f"{entry.minutes:g} min a seed" if entry.minutes else "seconds"
        say(f"  {'':<{width}} {data or 'no data'}; {time}; {entry.command}", "dim")
        if listed["expected"]:
            say(f"  {'':<{width}} expected: {'; '.join(listed['expected'])}", "dim")
    absent = {entry.needs: entry.where for entry in chosen if not entry.has_data(root)}
    if absent:
        say(f"\nNot in {root} (--data names another folder):", "bold")
        for what, where in absent.items():
            say(f"  {what}: {where}")


def about(entry: Entry, root: Path) -> dict[str, Any]:
    """Return what is to be known about a table or figure, fit for JSON."""
    expected = []
    if entry.printed is not None:  # the first row in print
        name, values = next(iter(entry.printed.rows.items()))
        pairs = zip(entry.printed.columns, values, strict=True)
        expected = [f"{name} {column} {value:g}" for column, value in pairs if value is not None]
    need = {"what": entry.needs, "where": entry.where, "there": entry.has_data(root)} if entry.data else None
    return {
        "name": entry.name,
        "paper": entry.paper,
        "title": entry.title,
        "needs": [need] if need else [],
        "expected": expected,
        "minutes": entry.minutes,
        "command": entry.command,
        "note": entry.note,
    }
