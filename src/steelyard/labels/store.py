"""A table of labels as a file: an .npz of plain arrays, no pickle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from steelyard._arrays import Array
from steelyard._files import replacing
from steelyard.labels.cells import SparseCells, as_csr, column_type, is_soft
from steelyard.labels.ids import Ids
from steelyard.labels.inputs import LEGEND, bad_values
from steelyard.labels.targets import UNKNOWN

_FORMAT = 1


def write(path: Path, cells: SparseCells, names: Sequence[str], ids: Ids) -> None:
    """Write a table to `path`, whole or not at all."""
    arrays: dict[str, Array] = {
        "format": np.array(_FORMAT),
        "shape": np.array(cells.matrix.shape, np.int64),
        "fill": np.array(cells.fill, np.int64),
        "starts": cells.matrix.indptr.astype(np.int64),
        "columns": cells.matrix.indices.astype(column_type(cells.matrix.shape[1])),
        "data": cells.matrix.data,
        **_pack("names", Ids(names, "names")),
        **_pack("ids", ids),
    }
    with replacing(path) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def read(path: Path) -> tuple[SparseCells, Ids, Ids]:
    """Read what `write` wrote, and check all of it."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        if arrays["format"] != _FORMAT:
            raise ValueError(f"its format is {arrays['format']}, this version reads {_FORMAT}")
        shape = (int(arrays["shape"][0]), int(arrays["shape"][1]))
        cells = _checked(shape, int(arrays["fill"]), arrays["starts"], arrays["columns"], arrays["data"])
        return cells, _unpack("names", arrays, shape[1]), _unpack("ids", arrays, shape[0])
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile and numpy meet damaged files with nearly every kind of exception
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is not a whole table written by Labels.save: {reason:.200}") from error


def _pack(name: str, texts: Ids) -> dict[str, Array]:
    if isinstance(texts.numbers, range):
        return {f"{name}.range": np.array(len(texts))}
    if texts.numbers is not None:
        return {f"{name}.numbers": texts.numbers}
    _, offsets, characters = texts.arrow.buffers()
    ends = np.frombuffer(offsets, np.int64)[texts.arrow.offset :][: len(texts) + 1]
    return {f"{name}.ends": ends - ends[0], f"{name}.utf8": np.frombuffer(characters, np.uint8)[ends[0] : ends[-1]]}


def _unpack(name: str, arrays: dict[str, Array], n: int) -> Ids:
    if f"{name}.numbers" in arrays:
        numbers = arrays[f"{name}.numbers"]
        ordered = np.sort(numbers)
        if numbers.shape != (n,) or numbers.dtype != np.int64 or (ordered[1:] == ordered[:-1]).any():
            raise ValueError(f"its {name} are not {n} distinct numbers")
        return Ids.numbered(numbers)
    if f"{name}.range" in arrays:
        return Ids.numbered(n)
    ends, characters = arrays[f"{name}.ends"], arrays[f"{name}.utf8"]
    if ends.shape != (n + 1,) or characters.ndim != 1 or ends.dtype != np.int64 or characters.dtype != np.uint8:
        raise ValueError(f"its {name} are not {n} texts")
    texts: Any = pa.LargeStringArray.from_buffers(n, pa.py_buffer(ends), pa.py_buffer(characters))
    texts.validate(full=True)
    return Ids(texts, name)


def _checked(shape: tuple[int, int], fill: int, starts: Array, columns: Array, data: Array) -> SparseCells:
    if min(shape[0], shape[1] - 1) < 0 or fill not in (0, UNKNOWN):
        raise ValueError(f"its shape is {shape} and its fill value {fill}")
    if starts.dtype != np.int64 or columns.dtype != column_type(shape[1]) or data.dtype not in (np.int8, np.float32):
        raise ValueError(f"its arrays have dtypes {starts.dtype}, {columns.dtype}, {data.dtype}")
    if not columns.shape == data.shape == (starts[-1],):
        raise ValueError(f"its arrays have shapes {starts.shape}, {columns.shape}, {data.shape}")
    matrix = as_csr(data, columns, starts, shape)
    matrix.check_format(full_check=True)
    if not matrix.has_canonical_format:
        raise ValueError("a cell is listed twice in it")
    if bad_values(data) is not None or (data == fill).any() or (data.dtype == np.float32) != is_soft(data):
        raise ValueError(f"it holds a value that does not belong: {LEGEND}")
    return SparseCells(matrix, fill)
