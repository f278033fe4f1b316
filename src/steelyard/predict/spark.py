"""Probabilities and decisions for more items than one machine reads: Parquet in, Parquet out, scored in Spark's tasks.

The files of the run travel to the executors once, as bytes; items and predictions never pass the driver.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from steelyard.data.files import DataError, check_choice
from steelyard.data.located import ImageFolder
from steelyard.data.streams import FeatureInputs, Image, ImageInputs, Inputs, OnBad
from steelyard.folder.run_folder import RunFolder, Trained
from steelyard.predict.files import joined, wide, wide_schema
from steelyard.predict.inputs import side_of
from steelyard.predict.prediction import check_probability, scores
from steelyard.predict.spark_search import pattern_of, reason, spark_errors, spark_session, uri_of

_FILES = ("run.json", "config.toml", "started.json", "model.json", "model.safetensors", "calibration.json")
_SENTENCE = re.compile(r"^(?:steelyard\.[\w.]+|ValueError): (.+)$", re.MULTILINE)
_LOADED: dict[str, Trained] = {}
"""The model loaded last by this executor process, by the name of its broadcast."""


class Written(NamedTuple):
    """Summary of a Spark prediction."""

    path: str
    n_items: int
    """Items, bad ones included."""
    n_bad: int
    """Items that could not be read; their probabilities are null."""


class _Task(NamedTuple):
    """Arguments of a task beside its rows, (id, path) of images or (id, features …)."""

    source: str
    images: str | None
    on_bad: OnBad
    batch_size: int


def predict(
    run: str | os.PathLike[str],
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | None = None,
    id: str = "id",
    path_column: str = "path",
    on_bad_image: OnBad = "error",
    batch_size: int = 256,
    session: Any = None,
) -> Written:
    """Write the predictions of all rows of `data` to the folder `out`, in the columns of `prediction.predict`, wide.

    One row per item: `id`, `probability:LABEL` (float32) and `decision:LABEL` (1 or 0), null where the item could not
    be read. Rows are in no order. `out` is there whole or not at all.

    Args:
        run: the folder of a finished run.
        data: a Parquet file or a folder of them that all machines see, or a URI that Spark reads. For a model of
            features, those of training by their names, or without names all numbers and lists of numbers that are no
            labels, in their order; for a model of images, a column of their paths.
        out: a folder that is not there yet, or a URI.
        images: the folder of the images, out of which no path may lead; without it paths are absolute.
        id: the column that names the items; images may do without and are named by their paths.
        path_column: the column of the paths of images.
        on_bad_image: "error" or "skip", see `open_inputs`.
        batch_size: items that the model takes at a time.
        session: the SparkSession; by default the active one, or a new one.
    """
    check_choice(on_bad_image, ("error", "skip"), "on_bad_image")
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}: give at least 1")
    folder = RunFolder(Path(run))
    trained = folder.load()
    check_probability(trained)
    source, target = os.fspath(data), os.fspath(out)
    _check_places(source, target)
    task = _Task(source, None if images is None else str(Path(images).absolute()), on_bad_image, batch_size)
    spark = (session or spark_session()).newSession()
    if find_spec("pandas") is None:
        raise ValueError("Spark passes rows through pandas, which is not installed: pip install 'steelyard[spark]'")
    spark.conf.set("spark.sql.caseSensitive", "true")  # labels may differ in case only
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(max(1024, batch_size)))
    try:
        rows = spark.read.parquet(pattern_of(source))
        chosen = _columns(rows.schema, trained, source, id, path_column)
        rows = _selected(rows, chosen, n_texts=1 if trained.model.input.kind == "features" else 2)
        return _write(spark, rows, folder, trained.names, task, target)
    except spark_errors() as error:
        lines = _SENTENCE.findall(str(error))
        raise ValueError(lines[-1] if lines else f"Spark cannot predict from {source}: {reason(error)}") from None


def _check_places(source: str, target: str) -> None:
    """Refuse data that do not exist, and a folder that cannot be made; URIs are not checked."""
    if "://" not in source and not Path(source).exists():
        raise ValueError(f"{source} does not exist: give a Parquet file or a folder of them")
    final = Path(target).absolute()
    if "://" not in target and (final.exists() or not final.parent.is_dir()):
        what = "is there already" if final.exists() else "cannot be written, its folder does not exist"
        raise ValueError(f"{target} {what}: give a new folder in one that is there")


def _selected(rows: Any, chosen: Sequence[str], n_texts: int) -> Any:
    """Return the chosen columns of a Spark table, the first `n_texts` as texts."""
    positions = [rows.columns.index(column) for column in chosen]
    rows = rows.toDF(*(f"c{i}" for i in range(len(rows.columns))))  # no name of a column is understood as SQL
    return rows.select(
        *(rows[f"c{i}"].cast("string").alias(f"t{n}") for n, i in enumerate(positions[:n_texts])),
        *(rows[f"c{i}"].alias(f"x{n}") for n, i in enumerate(positions[n_texts:])),
    )


def _write(spark: Any, rows: Any, folder: RunFolder, names: Sequence[str], task: _Task, target: str) -> Written:
    """Let Spark's tasks score `rows` with the run in `folder` and write the predictions."""
    from pyspark.sql.pandas.types import from_arrow_schema

    name = uuid4().hex
    files = spark.sparkContext.broadcast(
        {file: (folder / file).read_bytes() for file in _FILES if (folder / file).exists()}
    )
    columns = wide_schema(names)
    schema = from_arrow_schema(columns)

    def score(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        here = _loaded(name, files.value)
        for some in scores(here, _inputs(here, task, batches), task.batch_size, 0, "cpu"):
            yield wide(joined([some.rows]), columns)

    try:
        with _whole(target) as place:
            rows.mapInArrow(score, schema).write.mode("error").parquet(uri_of(place))
            result = spark.read.schema(schema).parquet(pattern_of(place))
            result = result.toDF(*(f"c{i}" for i in range(len(result.columns))))
            return Written(target, result.count(), result.filter(result["c1"].isNull()).count())
    finally:
        files.destroy()


def _columns(schema: Any, trained: Trained, source: str, id: str, path_column: str) -> list[str]:
    """The columns that are read: the id, then the path of the image or the features."""
    from pyspark.sql.types import ArrayType, BooleanType, NumericType

    if trained.model.input.kind == "pair":
        raise ValueError("the model takes pairs of regions and words, which Spark does not read: predict without it")
    is_image = trained.model.input.kind == "image"
    name = path_column if is_image and id not in schema.names else id
    named = tomllib.loads(trained.config).get("data", {}).get("features") or [
        field.name
        for field in schema.fields
        if field.name not in {id, *trained.names}
        and isinstance(getattr(field.dataType, "elementType", field.dataType), (NumericType, BooleanType))
        and isinstance(field.dataType, (ArrayType, NumericType, BooleanType))
    ]
    columns = [name, *([path_column] if is_image else named)]
    for column in columns:
        if column not in schema.names:
            there = ", ".join(schema.names[:8]) + (", …" if len(schema.names) > 8 else "")
            raise ValueError(f"{source} has no column {column!r}, it has {there}: rename the columns of items")
    if len(columns) < 2:
        raise ValueError(f"{source} has no column of numbers beside {id!r}: give the features of training")
    return columns


@contextmanager
def _whole(out: str) -> Iterator[str]:
    """Give Spark a folder to write that becomes `out` when the block is done; URIs are left to Spark."""
    if "://" in out:
        yield out
        return
    final = Path(out).absolute()
    partial = final.with_name(f".{final.name}.{os.getpid()}.partial")
    try:
        partial.mkdir()
        yield str(partial / "rows")
        (partial / "rows").rename(final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _loaded(name: str, files: Mapping[str, bytes]) -> Trained:
    """Return the run that was broadcast, loaded once per process."""
    if name not in _LOADED:
        torch.set_num_threads(1)  # as many tasks as cores run beside this one
        with tempfile.TemporaryDirectory() as folder:
            for file, content in files.items():
                (Path(folder) / file).write_bytes(content)
            trained = RunFolder(Path(folder)).load()
        _LOADED.clear()
        _LOADED[name] = trained
    return _LOADED[name]


def _inputs(trained: Trained, task: _Task, batches: Iterable[pa.RecordBatch]) -> Inputs:
    if trained.model.input.kind == "features":
        width = int(np.prod(trained.model.input.shape))
        blocks = ((_features(batch, width, task.source), _ids(batch, task.source)) for batch in batches)
        return FeatureInputs(lambda: blocks, None, task.on_bad)
    return ImageInputs(lambda: _images(batches, task), None, side_of(trained.model), task.on_bad)


def _images(batches: Iterable[pa.RecordBatch], task: _Task) -> Iterator[Image]:
    folder = None if task.images is None else ImageFolder(Path(task.images), Path(task.source))
    for batch in batches:
        for name, file in zip(_ids(batch, task.source), batch.column(1).to_pylist(), strict=True):
            if not file:
                yield Image(name, "", reason=f"the item {name!r} names no image")
            elif folder is not None and (place := folder.path(file)) is not None:
                yield Image(name, place)
            elif folder is None and Path(file).is_absolute():
                yield Image(name, file)
            else:
                what = "is no absolute path, give images" if folder is None else f"leads out of {task.images}"
                yield Image(name, "", reason=f"{file!r:.80} {what}")


def _ids(batch: pa.RecordBatch, source: str) -> list[str]:
    ids: list[str | None] = pc.utf8_trim_whitespace(batch.column(0)).to_pylist()
    if not all(ids):
        raise DataError(f"{source} has an item without an id: give every row one")
    return [str(name) for name in ids]


def _features(batch: pa.RecordBatch, width: int, source: str) -> NDArray[np.float64]:
    """Return the numbers (rows, features); missing ones are NaN, and their items bad."""
    is_list = [pa.types.is_list(column.type) for column in batch.columns[1:]]
    parts: list[NDArray[np.float64]] = []
    for column, several in zip(batch.columns[1:], is_list, strict=True):
        if not several:
            parts.append(column.cast(pa.float64()).to_numpy(zero_copy_only=False)[:, None])
            continue
        lengths = pc.unique(pc.list_value_length(column).drop_null()).to_pylist()
        if len(lengths) > 1:
            raise DataError(f"{source} has lists of {lengths[0]} and of {lengths[1]} numbers: give all the same length")
        n = lengths[0] if lengths else (width - is_list.count(False)) // is_list.count(True)
        numbers = np.full((len(column), n), np.nan)
        numbers[column.is_valid().to_numpy(zero_copy_only=False)] = (
            column.flatten().cast(pa.float64()).to_numpy(zero_copy_only=False).reshape(-1, n)
        )
        parts.append(numbers)
    return np.concatenate(parts, axis=1)
