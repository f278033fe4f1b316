"""The tables of a run, the same for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from steelyard_bench.record import Record
from steelyard_bench.row import Row, Way

_TITLES = {
    "losses": "Losses, {size} labels, forward and backward",
    "pairs": "Label-pair regularisation, forward and backward",
    "metrics": "Metrics",
    "training": "Training",
}
_BESIDE: tuple[Way, ...] = ("plain", "int8", "compiled", "unknown", "soft")
"""The ways that have columns of their own beside the one as it is called."""
_WITH_MEMORY = ("plain", "int8", "compiled")


class Table(NamedTuple):
    """Cells of text under a title."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def text(self) -> str:
        """Return it for a terminal."""
        lines = [self.columns, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        out = [self.title]
        for line in lines:
            left = f"  {line[0]:<{widths[0]}}"
            cells = "".join(
                f"  {cell:>{w}}" if _is_number(c) else f"  {cell:<{w}}"
                for cell, w, c in zip(line[1:], widths[1:], self.columns[1:], strict=True)
            )
            out.append((left + cells).rstrip())
        return "\n".join(out)

    def markdown(self) -> str:
        """Return it for a page."""
        marks = ["---" if i == 0 or not _is_number(c) else "---:" for i, c in enumerate(self.columns)]
        lines = [self.columns, tuple(marks), *self.rows]
        return f"### {self.title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables(record: Record, part: str | None = None) -> list[Table]:
    """Return the tables of a run, or of one part of it: one for each size of losses, one for every other part."""
    made = []
    for name in _TITLES if part is None else [part]:
        rows = [row for row in record.rows if row.part == name]
        if name == "losses":
            made += [_losses(record, size, rows) for size in dict.fromkeys(row.size for row in rows)]
        elif name == "pairs" and rows:
            made.append(_pairs(record, rows))
        elif rows:
            made.append(_others(name, rows))
    return made


def floor(record: Record, row: Row) -> float:
    """Return the seconds in which the bytes that a row must move are copied."""
    return (row.least_bytes or 0) / record.bandwidth


def _losses(record: Record, size: str, rows: Sequence[Row]) -> Table:
    """A line for each loss; each way that was measured at this size in columns of its own."""
    found = {(row.name, row.way): row for row in rows if row.size == size}
    seen = {way for _, way in found}
    shown = [way for way in _BESIDE if way in seen]
    columns = ["", *_times(record), "× floor", "× BCE", "MB"]
    for way in shown:
        columns += [f"{way} µs", *([f"{way} MB"] if way in _WITH_MEMORY else [])]
    lines = []
    for name in dict.fromkeys(name for name, _ in found):
        main = found.get((name, "steelyard")) or found[name, "peer"]
        line = [name, *_seconds(record, main), _over_floor(record, main), _ratio(main.over_peer), _megabytes(main)]
        for way in shown:
            other = found.get((name, way))
            line += ["" if other is None else _micro(other.seconds)]
            line += ["" if other is None else _megabytes(other)] if way in _WITH_MEMORY else []
        lines.append(tuple(line))
    least = next(iter(found.values()))
    title = f"{_TITLES['losses'].format(size=size)}; the floor is {_micro(floor(record, least))} µs"
    return Table(title, tuple(columns), lines)


def _pairs(record: Record, rows: Sequence[Row]) -> Table:
    columns = ("", "size", "way", *_times(record), "× floor", "× printed", "MB")
    names = {"steelyard": "as called", "plain": "plain", "peer": "all pairs"}
    lines = [
        (
            *(row.name, row.size, names[row.way], *_seconds(record, row)),
            *(_over_floor(record, row), _ratio(row.over_peer), _megabytes(row)),
        )
        for row in rows
    ]
    return Table(_TITLES["pairs"], columns, lines)


def _others(part: str, rows: Sequence[Row]) -> Table:
    compares = any(row.over_peer is not None for row in rows)
    columns = ("", "size", "ms" if part == "metrics" else "s", *(["× torchmetrics", "MB"] if compares else []), "note")
    scale = 1e3 if part == "metrics" else 1.0
    lines = []
    for row in rows:
        beside = (_ratio(row.over_peer), _megabytes(row)) if compares else ()
        lines.append((row.name, row.size, _digits(scale * row.seconds), *beside, row.note))
    return Table(_TITLES[part], columns, lines)


def _times(record: Record) -> tuple[str, ...]:
    return ("µs", "device µs") if record.is_gpu else ("µs",)


def _seconds(record: Record, row: Row) -> tuple[str, ...]:
    called = _micro(row.seconds)
    return (called, "" if row.device_seconds is None else _micro(row.device_seconds)) if record.is_gpu else (called,)


def _over_floor(record: Record, row: Row) -> str:
    return _ratio(None if row.device_seconds is None else row.device_seconds / floor(record, row))


def _micro(seconds: float) -> str:
    return _digits(1e6 * seconds)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _megabytes(row: Row) -> str:
    return "" if row.memory is None else _digits(row.memory / 1e6)


def _digits(value: float) -> str:
    """Return a number with about three digits."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _is_number(column: str) -> bool:
    return column not in ("", "size", "way", "note")
