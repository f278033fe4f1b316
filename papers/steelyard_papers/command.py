"""Run `steelyard reproduce`: read the command line, run the job, write the JSON, the page and the picture."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Sequence
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
from steelyard.report.canvas import by_night, has_matplotlib, to_svg
from steelyard.run.finish import versions
from steelyard_papers import dashboard as pages
from steelyard_papers.catalogue import CATALOGUE
from steelyard_papers.findings import again
from steelyard_papers.markdown import number, page, table
from steelyard_papers.published import Published
from steelyard_papers.reproduction import Job, Reproduction
from steelyard_papers.result import Result

ALL = "all"


def named(name: str) -> list[Reproduction]:
    """Return the reproduction of that name, or all of them for "all"."""
    if name == ALL:
        return list(CATALOGUE.values())
    if name not in CATALOGUE:
        meant = closest(name, CATALOGUE)
        hint = f"did you mean {meant}?" if meant else "see steelyard reproduce --list"
        raise ValueError(f"there is no table or figure {name!r}: {hint}")
    return [CATALOGUE[name]]


@contextmanager
def prepared(reproduction: Reproduction, job: Job) -> Iterator[Job]:
    """Give the job with its data: what the person has, or is told to get, or a few generated items for a smoke run.

    Rows that were chosen may be of the data that is there: where some is, those who open the rest say what is missing.
    """
    if not reproduction.minutes and (job.rows or job.sets or job.validation):
        raise ValueError(f"{reproduction.name} trains nothing: leave --rows, --set and --validation out")
    if job.rows and reproduction.whole:
        raise ValueError(f"{reproduction.name} needs all of its rows: leave --rows out")
    if not job.smoke:
        missing = reproduction.missing(job.data_root)
        if len(missing) == len(reproduction.needs) > 0 or (missing and not job.rows):
            needs = "; ".join(f"{need.what} ({need.where})" for need in missing)
            raise ValueError(f"{reproduction.name} needs {needs}, which is not in {job.data_root}: see --data")
        yield job
        return
    with tempfile.TemporaryDirectory() as place:
        for need in reproduction.needs:
            with naming(Path(place)):
                need.fixture(Path(place))
        yield replace(job, data_root=Path(place), seeds=job.seeds[:1])


def reproduce_one(reproduction: Reproduction, job: Job) -> Result:
    """Run it and write NAME.json, NAME.md and, where there is a figure, NAME.svg to `job.out`."""
    job.out.mkdir(parents=True, exist_ok=True)
    came = reproduction.run(job)
    result = replace(
        came,
        data=f"generated, and of no meaning; {came.data}" if job.smoke else came.data,
        name=reproduction.name,
        paper=reproduction.paper,
        title=reproduction.title,
        command=job.command,
        commits=came.commits or (commit(),),
        versions=came.versions or versions(torch.device("cpu")),
    )
    drawn = reproduction.draw(result) if reproduction.draw is not None and has_matplotlib() else None
    result.save(job.out / f"{result.name}.json")
    result = Result.load(job.out / f"{result.name}.json")  # a page says what its JSON holds, whoever makes it
    write_atomic(job.out / f"{result.name}.md", page(result, reproduction, _beside(result, reproduction, job.out)))
    if drawn is not None:
        write_atomic(job.out / f"{result.name}.svg", by_night(to_svg(drawn)))
    elif reproduction.draw is not None:
        job.progress(f"No {result.name}.svg: it needs matplotlib, pip install 'steelyard[report]'.")
    return result


def _beside(result: Result, reproduction: Reproduction, folder: Path) -> dict[str, Result]:
    """The results in a folder that one is compared with: those that can be read and were measured on the same items."""
    found = {}
    for name in reproduction.against:
        with suppress(OSError, ValueError):
            other = Result.load(folder / f"{name}.json")
            if all((option in other.command) == (option in result.command) for option in (" --smoke", " --validation")):
                found[name] = other
    return found


def show(name: str | None, root: Path, as_json: bool) -> None:
    """List one reproduction, or all of them."""
    chosen = named(name or ALL)
    if as_json:
        print(dumps([entry(reproduction, root) for reproduction in chosen], ensure_ascii=False))
    else:
        show_list(chosen, root, Console())


def write_pages(folder: Path) -> None:
    """Write the pages of what was run."""
    pages.write(folder, CATALOGUE)
    print(f"Written: {folder / 'README.md'}")


def run(name: str, seeds: int, out: str | None, against: str | None, as_json: bool, **asked: Any) -> None:
    """Run one, or one after the other; of several, those whose data is not there are passed over.

    Args:
        name: of a reproduction, or "all".
        seeds: how many runs of every row.
        out: the folder of runs and results.
        against: the file of an earlier result.
        as_json: whether results are printed as JSON.
        asked: the other arguments of a `Job`.
    """
    chosen = named(name)
    if seeds < 1:
        raise ValueError(f"--seeds is {seeds}: give how many runs of every row, at least 1")
    if against is not None and len(chosen) > 1:
        raise ValueError(f"--against {against} is the result of one table: name that table in place of {ALL}")
    before = None if against is None else Result.load(Path(against))
    if before is not None and before.name != chosen[0].name:
        raise ValueError(f"--against {against} is a result of {before.name}, not of {chosen[0].name}: name that")
    console = Console(stderr=as_json)

    def say(sentence: str) -> None:
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    with tempfile.TemporaryDirectory() as place:
        is_kept = out is not None or not asked["smoke"]
        folder = Path(out or "runs/papers") if is_kept else Path(place)
        shown = console if console.is_terminal else None
        job = Job(out=folder, seeds=tuple(range(seeds)), progress=say, console=shown, **asked)
        for reproduction in chosen:
            if len(chosen) > 1 and not job.smoke and (missing := reproduction.missing(job.data_root)):
                say(f"{reproduction.name}: passed over, {', '.join(need.what for need in missing)} is not there")
                continue
            with prepared(reproduction, replace(job, command=_command(reproduction, job))) as ready:
                result = reproduce_one(reproduction, ready)
            if as_json:
                print(result.to_json(), end="")
            else:
                say(f"{result.name}: {result.title}" + (", on generated data" if job.smoke else ""))
                if result.columns and not job.smoke:
                    say(table(result, reproduction.published))
                if is_kept:
                    drawn = ", .svg" if (folder / f"{result.name}.svg").is_file() else ""
                    say(f"Written: {folder / result.name}.json, .md{drawn}")
            if before is not None:
                say(f"Against {against}, made by {before.command}: {again(result, before)}.")


def _command(reproduction: Reproduction, job: Job) -> str:
    """Return the command that gives the same numbers, without its folders."""
    words = ["steelyard", "reproduce", reproduction.name]
    if job.smoke:
        words.append("--smoke")
    elif reproduction.needs:
        words += ["--data", "DATA"]
    if len(job.seeds) > 1:
        words += ["--seeds", str(len(job.seeds))]
    for option, texts in (("--rows", job.rows), ("--set", job.sets)):
        words += [word for text in texts for word in (option, text)]
    if job.validation:
        words += ["--validation", f"{job.validation:g}"]
    return shlex.join(words)


def entry(reproduction: Reproduction, root: Path) -> dict[str, Any]:
    """Return what is to be known about a reproduction, fit for JSON."""
    return {
        "name": reproduction.name,
        "paper": reproduction.paper,
        "title": reproduction.title,
        "needs": [{"what": need.what, "where": need.where, "there": need.check(root)} for need in reproduction.needs],
        "expected": _expected(reproduction.published),
        "minutes": reproduction.minutes,
        "command": reproduction.command,
        "note": reproduction.note,
    }


def show_list(reproductions: Sequence[Reproduction], root: Path, console: Console) -> None:
    """Print the list."""
    paper, width = "", max(len(reproduction.name) for reproduction in reproductions)
    for reproduction in reproductions:
        listed = entry(reproduction, root)
        if reproduction.paper != paper:
            paper = reproduction.paper
            _say(console, f"\n{paper}", "bold")
        _say(console, f"  {listed['name']:<{width}} {listed['title']}")
        data = ", ".join(f"{need['what']}{'' if need['there'] else ' (not there)'}" for need in listed["needs"])
        time = f"{listed['minutes']:g} min a seed on a GPU" if listed["minutes"] else "seconds"
        _say(console, f"  {'':<{width}} {data or 'no data'}; {time}; {listed['command']}", "dim")
        if listed["expected"]:
            _say(console, f"  {'':<{width}} expected: {'; '.join(listed['expected'])}", "dim")
    absent = {need.what: need.where for r in reproductions for need in r.needs if not need.check(root)}
    if absent:
        _say(console, f"\nNot in {root} (--data names another folder):", "bold")
        for what, where in absent.items():
            _say(console, f"  {what}: {where}")


def _expected(published: Published | None) -> list[str]:
    """The numbers of the first row in print."""
    if published is None:
        return []
    return [
        f"{name} {column} {number(value)}"
        for name, values in list(published.rows.items())[:1]
        for column, value in zip(published.columns, values, strict=True)
        if value is not None
    ]


def _say(console: Console, line: str, style: str = "") -> None:
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)
