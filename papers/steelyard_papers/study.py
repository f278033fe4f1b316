"""Rows × seeds: every run is trained once, kept by its settings and data, measured, and noted in a ledger."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from rich.console import Console

from steelyard._files import naming
from steelyard._locks import Taken, sole
from steelyard.balance.split import stratified_split
from steelyard.config.layers import planted
from steelyard.config.recipes import AS_PAPERS
from steelyard.config.settings import Config, load_config
from steelyard.data.subset import Labelled, Subset
from steelyard.models import input_of
from steelyard.run.datasets import Datasets
from steelyard_papers.result import Result, RowResult, RunResult, all_versions, rounded
from steelyard_papers.trial import FINISHED, Trial, key_of, read_facts, read_sealed, tested_on, trial, write_sealed

Settings: TypeAlias = dict[str, Any]
"""Settings by section, nested as in a TOML file."""


def merged(*parts: Mapping[str, Any]) -> Settings:
    """Return settings laid over each other, section by section; of a key that several have, the last one's value."""
    whole: Settings = {}
    for part in parts:
        for section, content in part.items():
            whole[section] = {**whole.get(section, {}), **content}
    return whole


# What is asked for

_NOT_TO_SET = {
    ("train", "seed"): "--seeds says how many runs there are, with the seeds 0, 1, …",
    ("data", "cache"): "it lies in --out",
}


@dataclass(frozen=True)
class Job:
    """A request to reproduce a table or figure.

    Args:
        data_root: the folder that holds the data sets in their owners' layouts.
        out: the folder of runs and results; a run in it that is finished is not trained again.
        seeds: of the runs of every row.
        sets: texts "section.key=value" that override a setting of every row, recorded in the result.
        rows: names or patterns of the rows to run; none for all.
        smoke: whether this is a trial on generated data: one epoch of a tiny network.
        validation: the share of the training items to measure on in place of the test items, which stay unseen; 0 for
            none.
        ledger: a file that notes what was measured on runs; what is in it is not trained again. None for none.
        note: what to know about this copy of the data, for the result.
        command: what was typed, for the result.
        progress: called with a sentence at a time.
        console: a terminal on which trainings show how far they are, None for none.
    """

    data_root: Path
    out: Path
    seeds: tuple[int, ...] = (0,)
    sets: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    smoke: bool = False
    validation: float = 0.0
    ledger: Path | None = None
    note: str = ""
    command: str = ""
    progress: Callable[[str], None] = lambda _sentence: None
    console: Console | None = None

    def __post_init__(self) -> None:
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds is {list(self.seeds)}: give at least one, each 0 or more and only once")
        if not 0 <= self.validation < 1:
            raise ValueError(f"validation is {self.validation}: give a share of at least 0 and below 1")
        if self.ledger is not None:
            _check_ledger(self.ledger)
        for text in (self.note, *self.sets, *self.rows):
            if any(0xD800 <= ord(sign) <= 0xDFFF for sign in text):
                raise ValueError(f"{text!r} holds bytes that are not UTF-8: type it again")
        for (section, key), instead in _NOT_TO_SET.items():
            if key in self.overrides.get(section, {}):
                raise ValueError(f"{section}.{key} is not to be set here: {instead}")

    @property
    def overrides(self) -> Mapping[str, Any]:
        """The settings of `sets`, nested as in a TOML file."""
        return planted(self.sets)

    @property
    def once(self) -> Job:
        """The same with the first seed alone: a figure shows one run of a row."""
        return replace(self, seeds=self.seeds[:1])


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Args:
        name: as on the page, and in `Printed.rows`.
        settings: what it changes of the study's settings, nested as in a TOML file.
        data: which data it is trained on, where the rows of a study differ in that.
        most_seeds: how many of the job's seeds it is run with at most; 0 for all.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: str = ""
    most_seeds: int = 0

    def seeds(self, job: Job) -> tuple[int, ...]:
        """Return the seeds it is run with."""
        return job.seeds[: self.most_seeds or None]


def chosen_rows(job: Job, rows: Sequence[Row]) -> list[Row]:
    """Return the rows that the job wants, by name or by a pattern such as "PLM*"."""
    for pattern in job.rows:
        if not any(fnmatchcase(row.name, pattern) for row in rows):
            raise ValueError(f"there is no row {pattern!r}: choose from {', '.join(repr(row.name) for row in rows)}")
    return [row for row in rows if not job.rows or any(fnmatchcase(row.name, pattern) for pattern in job.rows)]


def named(rows: Sequence[Row], names: Sequence[str]) -> tuple[Row, ...]:
    """Return the rows of these names."""
    return tuple(row for row in rows if row.name in names)


# The ledger: one line per run and measure, kept without the runs

_BEGINS = b'{"key": '


def _check_ledger(path: Path) -> None:
    """Raise where no ledger can be written, before hours of training, or where something else lies."""
    there = path if path.exists() else next(folder for folder in path.absolute().parents if folder.exists())
    if not os.access(there, os.W_OK) or there.is_dir() == path.exists():
        raise ValueError(f"ledger is {path}, which no file can be written to: name another")
    if path.is_file():
        with path.open("rb") as file:
            if not _BEGINS.startswith(file.read(len(_BEGINS))):
                raise ValueError(f"ledger is {path}, which exists but is not a ledger: pass a ledger or a new path")


def noted(path: Path, key: str, measure: str) -> dict[str, Any] | None:
    """Return the values, details and facts of a run by one measure, the latest that were noted; None where none were.

    A line that is corrupt, such as one that a full disk cut off, is ignored: its run is trained again.

    Args:
        path: the file; it need not be there.
        key: of the run, see `key_of`.
        measure: the name of what was measured.
    """
    if not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")  # not at what else ends lines
    for line in reversed(lines):
        if key in line and (record := _record(line)) and (record["key"], record["measure"]) == (key, measure):
            return record
    return None


def note(path: Path, key: str, measure: str, record: dict[str, Any]) -> None:
    """Add a line: `record` has the values, details and facts of the run, whose details are rounded to four digits.

    Several processes may add to one file.
    """
    record = {"key": key, "measure": measure, **record, "details": rounded(record["details"], 4)}
    line = (json.dumps(record, ensure_ascii=False) + "\n").encode()
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b", buffering=0) as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else b"\n" + line
            if file.write(line) < len(line):  # at once, so that lines of several processes do not mix
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())


def _record(line: str) -> dict[str, Any] | None:
    """The content of a line of the ledger, None of a corrupt one."""
    try:
        record = json.loads(line)
        whole = {"key", "measure", "values", "details", "facts"} <= record.keys()
        return dict(record) if whole and {"seconds", "device", "versions", "commit"} <= record["facts"].keys() else None
    except (ValueError, AttributeError, TypeError):
        return None


@contextmanager
def claimed(file: Path, waits: bool) -> Iterator[bool]:
    """Give whether this process has the lock `file`; with `waits` it has, once another has released it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(sole(file, waits))
            is_ours = True
        except Taken:
            is_ours = False
        yield is_ours


# Rows × seeds


class Measured(NamedTuple):
    """The measurements of one run."""

    values: dict[str, float | None]
    """By column, in the units of the table."""
    details: Mapping[str, Any] = MappingProxyType({})
    """Plain lists and numbers that figures are drawn from."""
    drawn: Mapping[str, Any] = MappingProxyType({})
    """More of them, of which a figure shows one run of a row: a ledger keeps those of the first seed alone."""


Measure = Callable[[Trial], Measured]
"""A function whose name is that of the measure: one that is corrected gets another name, so that no ledger and no
folder of a run gives the old numbers."""
OpenData = Callable[[str, int], Datasets]
"""(`Row.data`, seed) → the items to train, to validate and to test on; its notes say what is not as in the paper."""


class _Task(NamedTuple):
    """A row and a seed, with the settings, the key and the data of the run."""

    row: Row
    seed: int
    config: Config
    key: str
    datasets: Datasets


def study(
    job: Job,
    base: Mapping[str, Any],
    rows: Sequence[Row],
    open_data: OpenData,
    measure: Measure,
    columns: Sequence[str],
    seeded_data: bool = False,
    follows: bool = False,
) -> Result:
    """Train every row with every seed, or read what was trained before, and return what was measured on the test items.

    A run lies in `job.out`/runs under a hash of its settings and data: several tables share it, one that was killed
    goes on from its checkpoint, and what was measured on it is kept beside it. Several processes with the same
    `job.out` share the runs among them. What `job.ledger` notes of a run is taken, though the run be gone, and what is
    measured is noted there.

    Args:
        job: what was asked for.
        base: the settings that all rows share, nested as in a TOML file.
        rows: what is compared.
        open_data: gives the data; it is called once for all rows and seeds that share it.
        measure: gives the numbers of a run.
        columns: the numbers that the table shows.
        seeded_data: whether every seed has data of its own.
        follows: whether outputs are kept after every epoch, for `Trial.after_epochs`.
    """
    chosen = chosen_rows(job, rows)
    done: dict[tuple[str, int], RunResult] = {}
    facts: list[dict[str, Any]] = []
    notes: list[str] = []
    on_data: dict[tuple[str, int], list[tuple[Row, int]]] = {}
    for row in chosen:
        for seed in row.seeds(job):
            on_data.setdefault((row.data, seed if seeded_data else 0), []).append((row, seed))
    for waits in (False, True):  # what another process is at comes last
        for (data, of_seed), pairs in on_data.items():
            left = [(row, seed) for row, seed in pairs if (row.name, seed) not in done]
            if not left:
                continue
            datasets = measured_on(job, open_data(data, of_seed))
            notes += [text for text in datasets.notes if text not in notes]
            configs = [settings_of(job, base, row, seed, datasets) for row, seed in left]
            tasks = [_Task(*pair, c, key_of(c, datasets), datasets) for pair, c in zip(left, configs, strict=True)]
            if not waits:
                _tell_what_is_left(job, tasks, measure)
            for task in tasks:
                with claimed(job.out / "locks" / task.key, waits) as is_ours:
                    if is_ours:
                        done[task.row.name, task.seed], record = measure_run(job, task, measure, follows)
                        facts.append(record)
    rows_done = tuple(RowResult(row.name, tuple(done[row.name, seed] for seed in row.seeds(job))) for row in chosen)
    return result_of(job, columns, rows_done, notes, facts)


def result_of(
    job: Job,
    columns: Sequence[str],
    rows: tuple[RowResult, ...],
    notes: Sequence[str],
    facts: Sequence[Mapping[str, Any]],
) -> Result:
    """Return rows with where they come from: `notes` are about the data, `facts` those of every run.

    The note on the copy of the data is that of each run, or of the job for runs without one.
    """
    copies = [record.get("note", job.note) for record in facts]
    return Result(
        tuple(columns),
        rows,
        data="; ".join([*notes, *filter(None, dict.fromkeys(copies))]),
        commits=tuple(dict.fromkeys(record["commit"] for record in facts)),
        seeds=job.seeds,
        hardware=tuple(dict.fromkeys(record["device"] for record in facts)),
        versions=all_versions([record["versions"] for record in facts]),
        changed=job.sets,
        seconds=sum(record["seconds"] for record in facts),
    )


def settings_of(job: Job, base: Mapping[str, Any], row: Row, seed: int, datasets: Datasets) -> Config:
    """Return the settings of a run: the study's, the row's, then what the job changes."""
    config = load_config(overrides=AS_PAPERS).with_overrides(base).with_overrides(row.settings)
    if job.smoke:
        config = config.with_overrides(_smoke(datasets))
    config = _with_weights(config.with_overrides(job.overrides), job)
    return config.with_overrides({"train": {"seed": seed}, "data": {"cache": str(job.out / "cache")}})


WEIGHTS = Path("weights/resnet50.safetensors")
"""Path of the ImageNet weights of ResNet-50 below the folder that --data names."""


def _with_weights(config: Config, job: Job) -> Config:
    """Give a ResNet-50 that is to start from ImageNet its weights."""
    model, file = config.model, job.data_root / WEIGHTS
    if job.smoke or model.backbone != "resnet50" or model.weights or not model.pretrained:
        return config
    if not file.is_file():
        raise ValueError(
            f"{file} is not there, the ImageNet weights of ResNet-50: make it by "
            "python -m steelyard_papers.features weights, or name a file by --set model.weights=FILE"
        )
    return config.with_overrides({"model": {"weights": str(file)}})


def _smoke(datasets: Datasets) -> Settings:
    """One epoch on the CPU, of a tiny network where the inputs are images."""
    small: Settings = {"train": {"epochs": 1, "device": "cpu", "workers": 0}}
    if input_of(datasets.train).kind == "image":
        small["model"] = {"backbone": "small", "pretrained": False, "frozen": False, "keep_statistics": False}
        small["data"] = {"size": 32}
    return small


def measured_on(job: Job, datasets: Datasets, known: Labelled | None = None) -> Datasets:
    """Return the data, with a part of the training items in the place of the test items where the job wants that.

    known: the training items with all of their labels, where `datasets` lacks some: they are measured by these.
    """
    if not job.validation:
        return datasets
    known = datasets.train if known is None else known
    rest, held = stratified_split(known.labels, job.validation, 0)
    text = f"measured on {len(held):,} of the training items, held out, and not on the test items"
    train, test = Subset(datasets.train, rest), Subset(known, held)
    return datasets._replace(train=train, test=test, notes=(*datasets.notes, text))


def measure_run(job: Job, task: _Task, measure: Measure, follows: bool) -> tuple[RunResult, dict[str, Any]]:
    """Return one run, measured, and the facts about it."""
    name = measure.__name__.strip("_")
    folder, seen = job.out / "runs" / task.key, tested_on(task.datasets)
    ledger = None if job.smoke else job.ledger
    known = _known(job, task.key, name, seen)
    if known is not None:
        return RunResult(task.seed, known["values"], known["facts"]["seconds"], known["details"]), known["facts"]
    was_there = (folder / FINISHED).is_file()
    if was_there and read_facts(folder)["facts"].get("test", seen) != seen:
        raise ValueError(f"{folder} was tested on other items: delete it to train it again, or give another --out")
    file = folder / f"measured-{name}.json"
    record = _kept(file) if was_there else None
    if record is None:
        run = trial(task.config, task.datasets, folder, job.console, job.note, follows)
        measured = measure(run)
        details = {**measured.details, **measured.drawn}
        text = json.dumps({"values": measured.values, "details": details, "drawn": [*measured.drawn]})
        record = json.loads(text)
        write_sealed(file, {"measured": text})  # as a text, which may hold an infinity
        how = "measured" if was_there else f"trained in {run.facts['seconds']:.1f} s"
        values = (f"{column} {value:.2f}" for column, value in measured.values.items() if value is not None)
        job.progress(f"{task.row.name}, seed {task.seed}: {how}; {', '.join(values)}")
    facts = {"note": job.note, **read_facts(folder)["facts"]}
    if ledger is not None:
        left = () if task.seed == job.seeds[0] else record.get("drawn", ())
        details = {what: value for what, value in record["details"].items() if what not in left}
        note(ledger, task.key, name, {"values": record["values"], "details": details, "facts": facts})
    return RunResult(task.seed, record["values"], facts["seconds"], record["details"]), facts


def _known(job: Job, key: str, measure: str, seen: Sequence[int | None]) -> dict[str, Any] | None:
    """What the ledger notes of a run that was tested on the same items."""
    record = None if job.smoke or job.ledger is None else noted(job.ledger, key, measure)
    return record if record is not None and record["facts"].get("test", seen) == seen else None


def _kept(file: Path) -> dict[str, Any] | None:
    """Earlier measurements; None without any, or if the file is corrupt: then they are made again."""
    try:
        return dict(json.loads(read_sealed(file)["measured"]))
    except (OSError, KeyError, ValueError, AttributeError, TypeError):
        return None


def _tell_what_is_left(job: Job, tasks: Sequence[_Task], measure: Measure) -> None:
    """Say how many runs are to be trained, and how long that takes if they are like those that the ledger notes."""
    if job.smoke or job.ledger is None:
        return
    name, seen = measure.__name__.strip("_"), tested_on(tasks[0].datasets)
    records = [_known(job, task.key, name, seen) for task in tasks]
    seconds: dict[str, list[float]] = {}
    for task, record in zip(tasks, records, strict=True):
        if record is not None:
            seconds.setdefault(task.row.name, []).append(record["facts"]["seconds"])
    left = [task.row.name for task, record in zip(tasks, records, strict=True) if record is None]
    if not left:
        return
    every = [second for of_row in seconds.values() for second in of_row]
    about = sum(float(np.mean(seconds.get(row, every))) for row in left) / 60 if every else 0.0
    words = f", about {about:.1f} minutes by the seconds of those that it notes" if every else ""
    job.progress(f"{len(tasks)} runs, {len(tasks) - len(left)} of them in the ledger; {len(left)} to train{words}")
