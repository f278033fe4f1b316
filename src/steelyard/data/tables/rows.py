"""A manifest as a stream of inputs: the images or the feature columns of its rows, whether it has labels or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from steelyard.data.files import DataError, listed
from steelyard.data.located import ImageFolder, folder_near
from steelyard.data.streams import FeatureInputs, Image, ImageInputs, Inputs, Kind, OnBad
from steelyard.data.tables.columns import Columns, is_numeric, looks_like_files
from steelyard.data.tables.guess import Guess, guess
from steelyard.data.tables.manifest import Manifest, encode
from steelyard.data.tables.values import feature_column


def labelled(source: Manifest, said: Guess) -> Guess | None:
    """Return how a manifest is read, None where it has no labels."""
    for argument, names in (("id", [said.id]), ("path_column", [said.path]), ("features", said.features or ())):
        for name in names:
            if name is not None:
                source.check_column(name, argument)
    try:
        return guess(source, said)
    except DataError:
        return None


def manifest_inputs(
    source: Manifest,
    said: Guess,
    found: Guess | None,
    labels: Sequence[str],
    kind: Kind | None,
    size: tuple[int, int] | None,
    on_bad_image: OnBad,
) -> Inputs:
    """Return the inputs of a manifest with a row for each item, read as a stream.

    Arguments: `source`; `said` about its columns; `found`, how it is read if it has labels; `labels`, columns that are
    no features; `kind`, what is wanted; `size`, `on_bad_image`: see `open_inputs`.
    """
    parts = () if found is None else (*found.label_columns, found.value, found.split)
    columns = Columns(source, {*labels, *(name for name in parts if name is not None)})
    path = columns.take(said.path or columns.path_column())
    id = found.id if found is not None else said.id or columns.id_column(path)
    columns.take(id)
    numbers = said.features or tuple(
        name
        for name, column in columns.cells.items()
        if name not in columns.taken
        and (columns.kinds[name] == "vector" or (columns.kinds[name] in ("number", "label") and is_numeric(column)))
    )
    sure = said.images or said.path or (path is not None and looks_like_files(columns.cells[path]))
    if kind == "image" or (kind is None and said.features is None and (sure or not numbers)):
        item = path or id
        if item is None or pa.types.is_nested(columns.cells[item].type):
            raise DataError(f"{source.path}: no column that names image files is found: give it by path_column")
        return _images(source, id or item, item, columns.cells[item], said.images, size, on_bad_image)
    if not numbers:
        raise DataError(f"{source.path}: no column of numbers is found: name those of the features by features")
    return _features(source, id or path, numbers, on_bad_image)


def _images(
    source: Manifest,
    id: str,
    path: str,
    first: Any,
    images: Path | None,
    size: tuple[int, int] | None,
    on_bad_image: OnBad,
) -> Inputs:
    cells = encode(first)[1].to_pylist()[:20]
    home = images or folder_near(source.path, cells)
    if home is None and on_bad_image == "error":
        shown = listed(cells, 3)
        raise DataError(
            f"{source.path}: no image of column {path!r} ({shown}) is found beside it or in a folder there: give images"
        )
    home = home or source.path.parent
    n_items = source.count()
    note = f"{source.path}: the images are the files of column {path!r} in {home}, named by column {id!r}."
    ImageFolder(home, source.path)  # refused now rather than at the first batch

    def rows() -> Iterator[Image]:
        folder, row = ImageFolder(home, source.path), 0
        for block in source.stream(dict.fromkeys((id, path))):
            names, files = (pc.utf8_trim_whitespace(block[column]).to_pylist() for column in (id, path))
            for name, file in zip(names, files, strict=True):
                place = folder.path(file) if file else None
                if place is None:
                    what = f"{file!r:.80} leads out of the image folder {home}" if file else "names no image"
                    yield Image(name or source.row(row), "", reason=f"{source.path}: {source.row(row)} {what}")
                else:
                    yield Image(name or file, place)
                row += 1

    return ImageInputs(rows, n_items, size, on_bad_image, note)


def _features(source: Manifest, id: str | None, names: Sequence[str], on_bad_image: OnBad) -> Inputs:
    shown = listed(names)
    called = "numbered" if id is None else f"named by column {id!r}"
    note = f"{source.path}: the input is {len(names)} columns ({shown}), items are {called}; set by features and id."
    n_items = source.count()

    def blocks() -> Iterator[tuple[NDArray[Any], list[str]]]:
        widths: dict[str, int] = {}
        start = 0
        for block in source.stream([] if id is None else [id], names):
            parts = [feature_column(source, name, block[name], start, widths.get(name)) for name in names]
            widths = {
                name: part.shape[1]
                for name, part in zip(names, parts, strict=True)
                if pa.types.is_nested(block[name].type)
            }
            stop = start + len(parts[0])
            if id is None:
                ids = [str(i) for i in range(start, stop)]
            else:
                named = pc.utf8_trim_whitespace(block[id]).to_pylist()
                ids = [name or source.row(start + i) for i, name in enumerate(named)]
            yield np.concatenate(parts, axis=1), ids
            start = stop

    return FeatureInputs(blocks, n_items, on_bad_image, note=note)
