"""Predictions as CSV, JSON lines or Parquet: the same rows, written a block at a time."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from steelyard.data.files import check_choice, harmless

Format: TypeAlias = Literal["csv", "jsonl", "parquet"]
Form: TypeAlias = Literal["wide", "long"]

ENDINGS: dict[str, Format] = {".csv": "csv", ".jsonl": "jsonl", ".parquet": "parquet", ".pq": "parquet"}

_CELLS = 1 << 20  # of a block: a row group of Parquet


class PredictedRows(NamedTuple):
    """Some predictions."""

    ids: list[str]
    probabilities: NDArray[np.float32]
    """(n, L)."""
    decisions: NDArray[np.bool_]
    """(n, L)."""
    unread: list[str]
    """Ids of items that could not be read."""


def format_of(path: Path, format: str = "") -> Format:
    """Return the requested format, or the one that the ending of a file names."""
    if format:
        check_choice(format, get_args(Format), "format")
        return format  # type: ignore[return-value]
    if path.suffix.lower() not in ENDINGS:
        raise ValueError(f"{path} ends in none of {', '.join(ENDINGS)}: rename it, or give the format")
    return ENDINGS[path.suffix.lower()]


@contextmanager
def open_writer(
    path: Path, format: Format, form: Form, names: Sequence[str], top: int, raw_ids: bool
) -> Iterator[Callable[[PredictedRows], None]]:
    """Give a function that takes rows; they are in the file when the block is left.

    Args:
        path: of the file.
        format, form: of its content, see `predict`.
        names: of the labels, (L,).
        top: how many labels of an item the long form has, 0 for those decided present.
        raw_ids: write texts that a spreadsheet takes for formulas as they are, see `harmless`.
    """
    schema = wide_schema(names) if form == "wide" else LONG
    guarded = format == "csv" and not raw_ids
    labels = list(map(harmless, names)) if guarded else names
    with open_sink(path, format, schema) as put:
        held: list[PredictedRows] = []

        def flush() -> None:
            if held:
                rows = joined(held)
                if guarded:
                    rows = rows._replace(ids=list(map(harmless, rows.ids)))
                if format == "jsonl" and form == "wide":
                    put(_wide_records(rows, names))
                else:
                    put(wide(rows, schema) if form == "wide" else _long(rows, labels, top))
                held.clear()

        def write(rows: PredictedRows) -> None:
            held.append(rows)
            if sum(len(r.ids) + len(r.unread) for r in held) * len(names) >= _CELLS:
                flush()

        yield write
        flush()


@contextmanager
def open_sink(path: Path, format: Format, schema: pa.Schema) -> Iterator[Callable[[Any], None]]:
    """Give a function that appends a record batch, or for JSON lines also a list of records, to the file."""
    if format == "parquet":
        with pa.parquet.ParquetWriter(path, schema) as writer:
            yield writer.write_batch
    elif format == "csv":
        with path.open("w", encoding="utf-8", newline="") as head:
            csv.writer(head, lineterminator="\n").writerow(schema.names)
        options = pa.csv.WriteOptions(include_header=False)
        with path.open("ab") as body, pa.csv.CSVWriter(body, schema, write_options=options) as writer:
            yield writer.write_batch
    else:
        with path.open("w", encoding="utf-8", newline="\n") as file:

            def put(rows: Any) -> None:
                for record in rows if isinstance(rows, list) else _records(rows):
                    file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")

            yield put


LONG = pa.schema([("id", pa.string()), ("label", pa.string()), ("probability", pa.float32()), ("decision", pa.int8())])


def wide_schema(names: Sequence[str]) -> pa.Schema:
    """Return the columns of the wide form: id, probabilities, decisions."""
    probabilities = [(f"probability:{name}", pa.float32()) for name in names]
    return pa.schema([("id", pa.string()), *probabilities, *((f"decision:{name}", pa.int8()) for name in names)])


def joined(parts: list[PredictedRows]) -> PredictedRows:
    """Return rows one after the other; an unread item comes after its batch, with a probability of NaN."""
    ids = [name for part in parts for name in (*part.ids, *part.unread)]
    eta = [np.pad(part.probabilities, ((0, len(part.unread)), (0, 0)), constant_values=np.nan) for part in parts]
    decisions = [np.pad(part.decisions, ((0, len(part.unread)), (0, 0))) for part in parts]
    return PredictedRows(ids, np.concatenate(eta), np.concatenate(decisions), [])


def wide(rows: PredictedRows, schema: pa.Schema) -> pa.RecordBatch:
    """Return joined rows in the wide form, null where an item could not be read."""
    blank = _blank(rows)
    probabilities = [pa.array(column, mask=blank) for column in np.ascontiguousarray(rows.probabilities.T)]
    decisions = [pa.array(column, mask=blank) for column in np.ascontiguousarray(rows.decisions.T).astype(np.int8)]
    return pa.record_batch([pa.array(rows.ids, pa.string()), *probabilities, *decisions], schema=schema)


def _long(rows: PredictedRows, names: Sequence[str], top: int) -> pa.RecordBatch:
    eta, blank = rows.probabilities, _blank(rows)
    item, label = _most_probable(eta, top) if top else np.nonzero(rows.decisions)
    kept = ~blank[item]
    item, label = item[kept], label[kept]
    bare = np.flatnonzero(blank)
    order = np.argsort(np.concatenate([item, bare]), kind="stable")
    absent = np.concatenate([np.zeros(len(item), bool), np.ones(len(bare), bool)])[order]
    item, label = (np.concatenate([a, b])[order] for a, b in ((item, bare), (label, np.zeros_like(bare))))
    ids = pa.array(rows.ids, pa.string()).take(pa.array(item))
    return long_batch(ids, pa.array(names, pa.string()), label, eta[item, label], rows.decisions[item, label], absent)


def long_batch(
    ids: pa.Array,
    names: pa.Array,
    label: NDArray[np.int64],
    eta: NDArray[np.float32],
    decided: NDArray[np.bool_],
    absent: NDArray[np.bool_],
) -> pa.RecordBatch:
    """Return rows (id, label, probability, decision) of cells, (n,) each; null but for the id where `absent`."""
    labels = names.take(pa.array(label, mask=absent))
    numbers = (pa.array(column, mask=absent) for column in (eta, decided.astype(np.int8)))
    return pa.record_batch([ids, labels, *numbers], schema=LONG)


def _blank(rows: PredictedRows) -> NDArray[np.bool_]:
    """Return the rows of items that could not be read."""
    return np.asarray(np.isnan(rows.probabilities).any(1))


def _most_probable(eta: NDArray[np.float32], top: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return items and labels of the `top` most probable labels of each item, best first, ties by position."""
    order = np.argsort(-eta, axis=1, kind="stable")[:, :top]
    return np.repeat(np.arange(len(eta)), order.shape[1]), order.ravel()


def _records(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Return the rows of a batch, probabilities as short as float32 allows."""
    for record in batch.to_pylist():
        p = record["probability"]
        yield {**record, "probability": None if p is None else _short(np.float32(p))}


def _wide_records(rows: PredictedRows, names: Sequence[str]) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = []
    for name, eta, decision in zip(rows.ids, rows.probabilities, rows.decisions, strict=True):
        if np.isnan(eta).any():
            result.append({"id": name, "labels": None, "probabilities": None})
            continue
        labels = [names[c] for c in np.flatnonzero(decision).tolist()]
        result.append({"id": name, "labels": labels, "probabilities": dict(zip(names, map(_short, eta), strict=True))})
    return result


def _short(value: np.float32) -> float:
    """Return the shortest decimal number that is this float32."""
    return float(str(value))
