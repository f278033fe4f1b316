"""Results of a reproduction: numbers by row, seed and column, everything needed to get them again, and results on
several data sets side by side.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from steelyard._files import write_atomic

_FORMAT = "steelyard result 1"


@dataclass(frozen=True)
class RunResult:
    """One run of a row.

    Args:
        seed: of the run.
        values: by column, in the units of the table; None where a number is not defined.
        seconds: of training.
        details: what figures are drawn from; not kept in the JSON of a result.
    """

    seed: int
    values: Mapping[str, float | None]
    seconds: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RowResult:
    """All runs of a row."""

    name: str
    runs: tuple[RunResult, ...]

    def values(self, column: str) -> list[float]:
        """Return the numbers of a column that are defined, by seed."""
        found = (run.values.get(column) for run in self.runs)
        return [value for value in found if value is not None and math.isfinite(value)]

    def mean(self, column: str) -> float | None:
        """Return the mean over the seeds, None where there is no number."""
        values = self.values(column)
        return statistics.fmean(values) if values else None

    def std(self, column: str) -> float | None:
        """Return the standard deviation over the seeds (of a sample, n − 1), None of fewer than two."""
        values = self.values(column)
        return statistics.stdev(values) if len(values) > 1 else None


@dataclass(frozen=True)
class Result:
    """The result of a reproduction.

    Args:
        columns: what each column measures, as in `Published.columns` where the paper has the column too.
        rows: the runs.
        data: a sentence about the data it was measured on, and how it differs from the paper's.
        figure: plain numbers that a figure is drawn from.
        notes: sentences about what to know.
        name, paper, title: of the reproduction.
        command: what was typed.
        commits: of the source that each run was made with, all of them.
        seeds: of the runs.
        hardware: where they ran.
        versions: of Python and the libraries.
        changed: the settings that were changed, as "section.key=value".
        seconds: of training, all runs together.
    """

    columns: tuple[str, ...] = ()
    rows: tuple[RowResult, ...] = ()
    data: str = ""
    figure: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    name: str = ""
    paper: str = ""
    title: str = ""
    command: str = ""
    commits: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    hardware: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    seconds: float = 0.0

    def row(self, name: str) -> RowResult:
        """Return a row by its name."""
        for row in self.rows:
            if row.name == name:
                return row
        raise ValueError(f"there is no row {name!r}: choose one of {', '.join(repr(row.name) for row in self.rows)}")

    def made_of(self, results: Sequence[Result]) -> Result:
        """Return it with the data, notes, commits, hardware, versions and seconds of all results that it is made of."""
        return replace(
            self,
            data="; ".join(
                dict.fromkeys(part for result in results if result.data for part in result.data.split("; "))
            ),
            notes=tuple(dict.fromkeys(note for result in results for note in result.notes)),
            commits=tuple(dict.fromkeys(commit for result in results for commit in result.commits)),
            hardware=tuple(dict.fromkeys(device for result in results for device in result.hardware)),
            versions=all_versions([result.versions for result in results]),
            seconds=sum(result.seconds for result in results),
        )

    def to_json(self) -> str:
        """Return the result as JSON, one line per run; the details of runs are left out."""
        content = {
            "format": _FORMAT,
            "name": self.name,
            "paper": self.paper,
            "title": self.title,
            "command": self.command,
            "commits": list(self.commits),
            "seeds": list(self.seeds),
            "hardware": list(self.hardware),
            "versions": dict(self.versions),
            "changed": list(self.changed),
            "data": self.data,
            "notes": list(self.notes),
            "seconds": round(self.seconds, 1),
            "columns": list(self.columns),
        }
        lines = [f"{json.dumps(key)}: {_plain(value)}" for key, value in content.items()]
        rows = (
            f' {{"name": {_plain(row.name)}, "runs": [\n'
            + ",\n".join(
                "  " + _plain({"seed": run.seed, "values": dict(run.values), "seconds": round(run.seconds, 1)})
                for run in row.runs
            )
            + "\n ]}"
            for row in self.rows
        )
        lines.append('"rows": [\n' + ",\n".join(rows) + "\n]")
        if self.figure is not None:
            parts = (f" {json.dumps(key)}: {_plain(value)}" for key, value in self.figure.items())
            lines.append('"figure": {\n' + ",\n".join(parts) + "\n}")
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str, source: str = "the text") -> Result:
        """Return what `to_json` gave."""
        try:
            content = json.loads(text)
            if not isinstance(content, dict):
                raise ValueError("it holds no object")
            if content.pop("format") != _FORMAT:
                raise ValueError("it has another format")
            rows = tuple(
                RowResult(row["name"], tuple(RunResult(r["seed"], r["values"], r["seconds"]) for r in row["runs"]))
                for row in content.pop("rows")
            )
            kept: dict[str, Any] = {
                key: tuple(value) if isinstance(value, list) else value for key, value in content.items()
            }
            result = cls(rows=rows, **kept)
            result._check()
            return result
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{source} is no result of steelyard reproduce: {error}") from None

    def _check(self) -> None:
        """Tell a file of another make by the first of its parts that is not of its kind."""
        for name in ("columns", "notes", "commits", "hardware", "changed", "seeds"):
            kind = int if name == "seeds" else str
            if not all(isinstance(one, kind) for one in getattr(self, name)):
                raise ValueError(f"{name} is not a list of {'whole numbers' if kind is int else 'texts'}")
        for row in self.rows:
            if not isinstance(row.name, str):
                raise ValueError(f"the row {row.name!r} is named by no text")
            for value in (value for run in row.runs for value in run.values.values()):
                if not (value is None or isinstance(value, (int, float))):
                    raise ValueError(f"{value!r} in the row {row.name!r} is no number")

    def save(self, path: Path) -> None:
        """Write the result as JSON."""
        write_atomic(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> Result:
        """Return the result in a file."""
        try:
            return cls.from_json(path.read_text(encoding="utf-8"), str(path))
        except UnicodeDecodeError:
            raise ValueError(f"{path} is no result of steelyard reproduce: it is not text") from None


def _plain(value: Any) -> str:
    return json.dumps(rounded(value), ensure_ascii=False, allow_nan=False)


def rounded(value: Any, digits: int = 6) -> Any:
    """Return plain values with so many significant digits; six are more than a figure shows."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): rounded(entry, digits) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(entry, digits) for entry in value]
    return value


def all_versions(each: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the versions that runs had, several of one package as "1 and 2"."""
    found: dict[str, dict[str, None]] = {}
    for versions in each:
        for name, version in versions.items():
            found.setdefault(name, {}).update(dict.fromkeys(version.split(" and ")))
    return {name: " and ".join(versions) for name, versions in found.items()}


def on(column: str, name: str) -> str:
    """Return the name of a column that was measured on the data `name`."""
    return f"{column} on {name}"


def beside(parts: Mapping[str, Result]) -> Result:
    """Return one result with the columns of all, each "COLUMN on NAME"; rows and runs are matched by name and seed.

    Args:
        parts: results by the name of their data, with the same seeds; a row that one of them lacks has no number there.
    """
    results = list(parts.values())
    names = list(dict.fromkeys(row.name for result in results for row in result.rows))
    return replace(
        results[-1].made_of(results),
        columns=tuple(on(column, name) for name, result in parts.items() for column in result.columns),
        rows=tuple(RowResult(name, tuple(_run(parts, name, seed) for seed in results[0].seeds)) for name in names),
    )


def _run(parts: Mapping[str, Result], row: str, seed: int) -> RunResult:
    """The runs of a row with one seed on all data, as one."""
    runs = {
        name: run
        for name, result in parts.items()
        for found in result.rows
        if found.name == row
        for run in found.runs
        if run.seed == seed
    }
    values = {on(column, name): value for name, run in runs.items() for column, value in run.values.items()}
    details = {name: run.details for name, run in runs.items()}
    return RunResult(seed, values, sum(run.seconds for run in runs.values()), details)


def read_as(result: Result, rows: Sequence[tuple[str, str, Mapping[str, str]]], columns: Sequence[str]) -> Result:
    """Return a table whose rows are readings of runs: several rows may show other numbers of the same run.

    Args:
        result: the runs.
        rows: (name of the new row, name of the row of its runs, by column of the new table the column of the runs).
            A row whose runs are not in `result` is left out.
        columns: of the new table.
    """
    there = {row.name: row for row in result.rows}
    made = [
        RowResult(
            name,
            tuple(replace(run, values={c: run.values.get(taken[c]) for c in columns}) for run in there[source].runs),
        )
        for name, source, taken in rows
        if source in there
    ]
    return replace(result, rows=tuple(made), columns=tuple(columns))
