"""Results on several data sets put side by side in one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from steelyard_papers.result import Result, RowResult, RunResult


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
