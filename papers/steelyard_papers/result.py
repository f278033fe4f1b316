"""Numbers by row, seed and column with where they come from, and the numbers that papers print."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from steelyard._files import write_atomic

_FORMAT = "steelyard result 1"
LOWER_IS_BETTER = ("error", "ACE", "MCE", "ECE", "Brier", "log-loss")
"""Beginnings of the names of columns in which less is better."""
RANKED = ("mAP", "mAP head", "mAP medium", "mAP tail")
CALIBRATED = ("mAP@y", "mAP@x", "ACE", "MCE")


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
        numbers = (run.values.get(column) for run in self.runs)
        return [value for value in numbers if value is not None and math.isfinite(value)]

    def mean(self, column: str) -> float | None:
        """Return the mean over the seeds, None where there is no number."""
        values = self.values(column)
        return statistics.fmean(values) if values else None

    def std(self, column: str) -> float | None:
        """Return the standard deviation over the seeds (of a sample, n − 1), None of fewer than two."""
        values = self.values(column)
        return statistics.stdev(values) if len(values) > 1 else None

    def error(self, column: str) -> float | None:
        """Return the standard error of the mean, None of fewer than two seeds."""
        std = self.std(column)
        return None if std is None else std / math.sqrt(len(self.values(column)))


@dataclass(frozen=True)
class Result:
    """The result of a table or figure.

    Args:
        columns: what each column measures, as in `Printed.columns` where the paper has the column too.
        rows: the runs.
        data: the data it was measured on, and how it differs from the paper's; parts are joined by "; ".
        figure: plain numbers that a figure is drawn from.
        notes: sentences about what to know.
        name, paper, title: of the table or figure.
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

    @property
    def by_name(self) -> dict[str, RowResult]:
        """The rows by their names."""
        return {row.name: row for row in self.rows}

    def row(self, name: str) -> RowResult:
        """Return a row by its name; without runs where there is none."""
        return self.by_name.get(name, RowResult(name, ()))

    def made_of(self, results: Sequence[Result]) -> Result:
        """Return it with the data, notes, commits, hardware, versions and seconds of all results that it is made of."""
        parts = [part for result in results if result.data for part in result.data.split("; ")]
        return replace(
            self,
            data="; ".join(dict.fromkeys(parts)),
            notes=tuple(dict.fromkeys(note for result in results for note in result.notes)),
            commits=tuple(dict.fromkeys(commit for result in results for commit in result.commits)),
            hardware=tuple(dict.fromkeys(device for result in results for device in result.hardware)),
            versions=all_versions([result.versions for result in results]),
            seconds=sum(result.seconds for result in results),
        )

    def to_json(self) -> str:
        """Return the result as JSON, one line per run; the details of runs are left out."""
        names = ("name", "paper", "title", "command", "commits", "seeds", "hardware", "versions", "changed", "data")
        content = {"format": _FORMAT, **{name: getattr(self, name) for name in (*names, "notes")}}
        content |= {"seconds": round(self.seconds, 1), "columns": self.columns}
        lines = [f"{json.dumps(key)}: {_plain(value)}" for key, value in content.items()]
        rows = []
        for row in self.rows:
            runs = (
                _plain({"seed": run.seed, "values": dict(run.values), "seconds": round(run.seconds, 1)})
                for run in row.runs
            )
            rows.append(
                f' {{"name": {_plain(row.name)}, "runs": [\n' + ",\n".join(f"  {run}" for run in runs) + "\n ]}"
            )
        lines.append('"rows": [\n' + ",\n".join(rows) + "\n]")
        if self.figure is not None:
            parts = (f" {json.dumps(key)}: {_plain(value)}" for key, value in self.figure.items())
            lines.append('"figure": {\n' + ",\n".join(parts) + "\n}")
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str, source: str = "the text") -> Result:
        """Return what `to_json` gave; a file of another kind is a ValueError."""
        try:
            content = json.loads(text)
            if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
                raise ValueError("it has another format")
            rows = tuple(
                RowResult(row["name"], tuple(RunResult(r["seed"], r["values"], r["seconds"]) for r in row["runs"]))
                for row in content.pop("rows")
            )
            kept: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in content.items()}
            result = cls(rows=rows, **kept)
            texts = (*result.columns, *result.notes, *result.commits, *result.hardware, *result.changed)
            values = [value for row in rows for run in row.runs for value in run.values.values()]
            if not all(isinstance(text, str) for text in (*texts, *(row.name for row in rows))):
                raise ValueError("something in it is not a text")
            if not all(isinstance(value, int | float | None) for value in (*values, *result.seeds)):
                raise ValueError("something in it is not a number")
            return result
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{source} is no result of steelyard reproduce: {error}") from None

    def save(self, path: Path) -> None:
        """Write the result as JSON."""
        write_atomic(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> Result:
        """Return the result in a file."""
        return cls.from_json(path.read_text(encoding="utf-8", errors="replace"), str(path))


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
    seen: dict[str, dict[str, None]] = {}
    for versions in each:
        for name, version in versions.items():
            seen.setdefault(name, {}).update(dict.fromkeys(version.split(" and ")))
    return {name: " and ".join(versions) for name, versions in seen.items()}


def on(column: str, name: str) -> str:
    """Return the name of a column that was measured on the data `name`."""
    return f"{column} on {name}"


class Column(NamedTuple):
    """The name of a column, taken apart."""

    name: str
    data: str
    """The data it was measured on, "" where the name does not tell."""
    head: str
    """The rest."""


def split_on(column: str) -> Column:
    """Take the data out of a name: "mAP on VOC 2012, PAL 0.3" is mAP, PAL 0.3 of VOC 2012."""
    measure, _, rest = column.partition(" on ")
    data, _, setting = rest.partition(", ")
    return Column(column, data, f"{measure}, {setting}" if setting else measure)


def short(mean: float | None, std: float | None = None, is_count: bool = False) -> str:
    """Return a number with one decimal; a count without any, and of a ratio three digits."""
    if mean is None:
        return "–"
    if is_count:
        whole = mean >= 1000 or mean == int(mean)
        return f"{mean:,.0f}" if whole else f"{mean:.1f}" if mean >= 10 else f"{mean:.{3 if mean >= 1 else 2}g}"
    return f"{mean:.1f}" + ("" if std is None else f" ± {std:.1f}")


def as_table(lines: Sequence[Sequence[str]], align: str = "") -> str:
    """Return lines of cells, the first of them the head, as a Markdown table.

    align: a letter per column, l or r; by default all but the first are numbers.
    """
    head, *rest = lines
    rule = ["---:" if side == "r" else "---" for side in align or "l" + "r" * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rest))


def beside(parts: Mapping[str, Result]) -> Result:
    """Return one result with the columns of all, each "COLUMN on NAME"; rows and runs are matched by name and seed.

    Args:
        parts: results by the name of their data, with the same seeds; a row that one of them lacks has no number there.
    """
    results = list(parts.values())
    rows: dict[str, dict[int, RunResult]] = {}
    for name, result in parts.items():
        for row in result.rows:
            of_row = rows.setdefault(row.name, {seed: RunResult(seed, {}) for seed in results[0].seeds})
            for run in row.runs:
                values = {on(column, name): value for column, value in run.values.items()}
                so_far = of_row[run.seed]
                details = {**so_far.details, name: run.details}
                of_row[run.seed] = RunResult(
                    run.seed, {**so_far.values, **values}, so_far.seconds + run.seconds, details
                )
    return replace(
        results[-1].made_of(results),
        columns=tuple(on(column, name) for name, result in parts.items() for column in result.columns),
        rows=tuple(RowResult(name, tuple(runs.values())) for name, runs in rows.items()),
    )


def joined(*results: Result) -> Result:
    """Return the rows of several results as one."""
    return replace(
        results[0].made_of(results),
        columns=tuple(dict.fromkeys(column for result in results for column in result.columns)),
        rows=tuple(row for result in results for row in result.rows),
    )


def read_as(result: Result, rows: Sequence[tuple[str, str, Mapping[str, str]]], columns: Sequence[str]) -> Result:
    """Return a table whose rows are readings of runs: several rows may show other numbers of the same run.

    Args:
        result: the runs.
        rows: (name of the new row, name of the row of its runs, by column of the new table the column of the runs).
            A row whose runs are not in `result` is left out.
        columns: of the new table.
    """
    made = [
        RowResult(name, tuple(replace(run, values={c: run.values.get(of[c]) for c in columns}) for run in row.runs))
        for name, source, of in rows
        if (row := result.by_name.get(source)) is not None
    ]
    return replace(result, rows=tuple(made), columns=tuple(columns))


@dataclass(frozen=True)
class Printed:
    """The numbers that a paper prints in one table, in per cent.

    Args:
        source: the paper and its table.
        note: what to know about the table: its set-up, and what in print is wrong or silent.
        columns: what each column measures.
        rows: of each row the printed numbers, one per column, None where the paper prints none.
        baseline: the row over which the paper claims its gains; "" for none.
        is_data: whether the numbers are about the data, and none is a score.
    """

    source: str
    note: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float | None, ...]]
    baseline: str = ""
    is_data: bool = False

    def __post_init__(self) -> None:
        for name, values in self.rows.items():
            if len(values) != len(self.columns):
                raise ValueError(f"row {name!r} has {len(values)} numbers for {len(self.columns)} columns")

    def value(self, row: str, column: str) -> float | None:
        """Return the printed number of a row and a column, None where there is none."""
        if row not in self.rows or column not in self.columns:
            return None
        return self.rows[row][self.columns.index(column)]

    def prints(self, column: str) -> bool:
        """Return whether some row has a printed number in a column."""
        return any(self.value(row, column) is not None for row in self.rows)


def printed_rows(text: str) -> dict[str, tuple[float | None, ...]]:
    """Return the rows of a table that is written as lines "name | number number …", – for none."""
    rows = {}
    for line in text.strip().splitlines():
        name, _, numbers = line.partition("|")
        rows[name.strip()] = tuple(None if word == "–" else float(word) for word in numbers.split())
    return rows
