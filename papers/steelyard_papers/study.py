"""Rows × seeds on the same data: every run once, whichever table or figure asks for it."""

from __future__ import annotations

import inspect
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from steelyard._files import write_atomic
from steelyard.balance.split import stratified_split
from steelyard.config.recipes import AS_PAPERS
from steelyard.config.settings import Config, load_config
from steelyard.data.subset import Labelled, Subset
from steelyard.models import input_of
from steelyard.run.datasets import Datasets
from steelyard_papers.ledger import claimed, note, noted
from steelyard_papers.reproduction import Job
from steelyard_papers.result import Result, RowResult, RunResult, all_versions
from steelyard_papers.trial import FINISHED, Trial, key_of, read_facts, tested_on, trial

Settings: TypeAlias = dict[str, Any]
"""Settings by section, nested as in a TOML file."""


def merged(*parts: Settings) -> Settings:
    """Return settings laid over each other, section by section; of a key that several have, the last one's value."""
    whole: Settings = {}
    for part in parts:
        for section, content in part.items():
            whole[section] = {**whole.get(section, {}), **content}
    return whole


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Args:
        name: as the paper has it, and `Published.rows`.
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


class Measured(NamedTuple):
    """The measurements of one run."""

    values: dict[str, float | None]
    """By column, in the units of the table."""
    details: Mapping[str, Any] = MappingProxyType({})
    """Plain lists and numbers that figures are drawn from."""
    drawn: Mapping[str, Any] = MappingProxyType({})
    """More of them, of which a figure shows one run of a row: a ledger keeps those of the first seed alone."""


Measure = Callable[[Trial], Measured]
OpenData = Callable[[str, int], Datasets]
"""(`Row.data`, seed) → the items to train, to validate and to test on; its notes say what is not as in the paper."""


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
    goes on from its checkpoint, and what was measured on it is kept beside it as long as the measure stays as it is.
    Several processes with the same `job.out` share the runs among them. What `job.ledger` notes of a run is taken as it
    is, though the run be gone, and what is measured is noted there.

    Args:
        job: what was asked for.
        base: the settings that all rows share, nested as in a TOML file.
        rows: what is compared.
        open_data: gives the data; it is called once for all rows and seeds that share it.
        measure: gives the numbers of a run; a function with a name of its own.
        columns: the numbers that the table shows.
        seeded_data: whether every seed has data of its own.
        follows: whether outputs are kept after every epoch, for `Trial.after_epochs`.
    """
    chosen = chosen_rows(job, rows)
    found: dict[tuple[str, int], RunResult] = {}
    facts: list[dict[str, Any]] = []
    notes: list[str] = []
    on_data: dict[tuple[str, int], list[tuple[Row, int]]] = {}
    for row in chosen:
        for seed in row.seeds(job):
            on_data.setdefault((row.data, seed if seeded_data else 0), []).append((row, seed))
    for waits in (False, True):  # what another process is at comes last
        for (data, of_seed), tasks in on_data.items():
            left = [(row, seed) for row, seed in tasks if (row.name, seed) not in found]
            if not left:
                continue
            datasets = measured_on(job, open_data(data, of_seed))
            notes += [note for note in datasets.notes if note not in notes]
            for row, seed in left:
                config = settings_of(job, base, row, seed, datasets)
                with claimed(job.out / "locks" / key_of(config, datasets), waits) as is_ours:
                    if is_ours:
                        found[row.name, seed], record = _run(job, row, seed, config, datasets, measure, follows)
                        facts.append(record)
    rows_done = tuple(RowResult(row.name, tuple(found[row.name, seed] for seed in row.seeds(job))) for row in chosen)
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


def chosen_rows(job: Job, rows: Sequence[Row]) -> list[Row]:
    """Return the rows that the job wants, by name or by a pattern such as "PLM*"."""
    for pattern in job.rows:
        if not any(fnmatchcase(row.name, pattern) for row in rows):
            raise ValueError(f"there is no row {pattern!r}: choose from {', '.join(repr(row.name) for row in rows)}")
    return [row for row in rows if not job.rows or any(fnmatchcase(row.name, pattern) for pattern in job.rows)]


def joined(*results: Result) -> Result:
    """Return the rows of several studies as one result."""
    return replace(
        results[0].made_of(results),
        columns=tuple(dict.fromkeys(column for result in results for column in result.columns)),
        rows=tuple(row for result in results for row in result.rows),
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
            "python -m steelyard_papers.resnet50_weights, or name a file by --set model.weights=FILE"
        )
    return config.with_overrides({"model": {"weights": str(file)}})


def _smoke(datasets: Datasets) -> dict[str, Any]:
    """One epoch on the CPU, of a tiny network where the inputs are images."""
    small: dict[str, Any] = {"train": {"epochs": 1, "device": "cpu", "workers": 0}}
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
    note = f"measured on {len(held):,} of the training items, held out, and not on the test items"
    train, test = Subset(datasets.train, rest), Subset(known, held)
    return datasets._replace(train=train, test=test, notes=(*datasets.notes, note))


def _run(
    job: Job, row: Row, seed: int, config: Config, datasets: Datasets, measure: Measure, follows: bool
) -> tuple[RunResult, dict[str, Any]]:
    """One run, measured, and the facts about it."""
    key, name = key_of(config, datasets), measure.__name__.strip("_")
    folder, seen = job.out / "runs" / key, tested_on(datasets)
    was_there = (folder / FINISHED).is_file()
    if was_there and read_facts(folder)["facts"].get("test", seen) != seen:
        raise ValueError(f"{folder} was tested on other items: delete it to train it again, or give another --out")
    ledger = None if job.smoke else job.ledger
    known = noted(ledger, key, name) if ledger is not None else None
    if known is not None and known["facts"].get("test", seen) != seen:
        known = None
    if known is not None and not was_there:
        return RunResult(seed, known["values"], known["facts"]["seconds"], known["details"]), known["facts"]
    file = folder / f"measured-{_name_of(measure)}.json"
    record = _kept(file) if was_there else None
    if record is None:
        done = trial(config, datasets, folder, job.console, job.note, follows)
        measured = measure(done)
        details = {**measured.details, **measured.drawn}
        record = json.loads(json.dumps({"values": measured.values, "details": details, "drawn": [*measured.drawn]}))
        write_atomic(file, json.dumps({**record, "crc32": _sum(record)}) + "\n")
        how = "measured" if was_there else f"trained in {done.facts['seconds']:.1f} s"
        job.progress(f"{row.name}, seed {seed}: {how}; {_line(measured.values)}")
    facts = {"note": job.note, **read_facts(folder)["facts"]}
    if ledger is not None and (known is None or known["values"] != record["values"]):
        left = () if seed == job.seeds[0] else record.get("drawn", ())
        details = {what: value for what, value in record["details"].items() if what not in left}
        note(ledger, key, name, {"values": record["values"], "details": details, "facts": facts})
    return RunResult(seed, record["values"], facts["seconds"], record["details"]), facts


def _kept(file: Path) -> dict[str, Any] | None:
    """Return earlier measurements; None without any, or if the file is corrupt: then they are made again."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        return record if record.pop("crc32", None) in (None, _sum(record)) else None  # the first version noted none
    except (OSError, ValueError, AttributeError, TypeError):
        return None


def _sum(record: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())


def _name_of(measure: Measure) -> str:
    """Return the key of a measure: its name, and a checksum of its source file, which may be corrected later."""
    code = Path(inspect.getfile(measure)).read_bytes()
    return f"{measure.__name__.strip('_')}-{zlib.crc32(code):08x}"


def _line(values: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in values.items() if value is not None)
