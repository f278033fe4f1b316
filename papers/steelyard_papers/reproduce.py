"""Run a table or figure: its JSON, its page with the numbers in print beside ours, and its picture."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch

from steelyard._files import naming, write_atomic
from steelyard._schema import closest
from steelyard._source import commit
from steelyard.report.canvas import has_matplotlib, to_png
from steelyard.run.finish import versions
from steelyard_papers.catalogue import CATALOGUE
from steelyard_papers.job import Job
from steelyard_papers.markdown import page
from steelyard_papers.reproduction import Reproduction
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
    """Run it and write NAME.json, NAME.md and, where there is a figure, NAME.png to `job.out`."""
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
    picture = to_png(reproduction.draw(result)) if reproduction.draw is not None and has_matplotlib() else None
    result.save(job.out / f"{result.name}.json")
    result = Result.load(job.out / f"{result.name}.json")  # a page says what its JSON holds, whoever makes it
    write_atomic(job.out / f"{result.name}.md", page(result, reproduction, _beside(result, reproduction, job.out)))
    if picture is not None:
        write_atomic(job.out / f"{result.name}.png", picture)
    elif reproduction.draw is not None:
        job.progress(f"No {result.name}.png: it needs matplotlib, pip install 'steelyard[report]'.")
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
