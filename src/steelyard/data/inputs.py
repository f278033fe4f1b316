"""Opens the items to predict, with labels or without, as a stream of inputs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.sparse import issparse

from steelyard.data.columns.encoder import Encoder
from steelyard.data.columns.mixed import FEATURES, Column, category_column
from steelyard.data.dataset import ArrayDataset, ImageDataset, as_inputs
from steelyard.data.files import DataError, PathLike, check_choice, listed
from steelyard.data.images import EXTENSIONS, Size, as_size
from steelyard.data.located import ImageFolder, check_name, folder_near, image_files
from steelyard.data.opening import layout_at, open_data
from steelyard.data.parts import ALL, ENDINGS, file_in, part_named
from steelyard.data.readers.npz import names_and_ids, read_array, read_arrays
from steelyard.data.streams import FeatureInputs, Image, ImageInputs, InputBatch, Inputs, Kind, OnBad
from steelyard.data.subset import Labelled, origin
from steelyard.data.tables.columns import Columns, is_numeric, looks_like_files
from steelyard.data.tables.guess import Guess, guess
from steelyard.data.tables.manifest import Manifest, encode
from steelyard.data.tables.values import feature_column
from steelyard.labels.ids import Ids

__all__ = ["InputBatch", "Inputs", "inputs_of", "open_inputs"]

_BLOCK = 4096  # rows of an array that are taken at a time
_SPARSE_BLOCK = 256  # of a sparse one, which is written out: a row may have twenty thousand features


def open_inputs(
    path: PathLike,
    images: PathLike | None = None,
    size: Size = None,
    on_bad_image: OnBad = "error",
    kind: Kind | None = None,
    *,
    split: str | None = None,
    id: str | None = None,
    path_column: str | None = None,
    features: Sequence[str] | None = None,
    labels: Sequence[str] = (),
    text: str | None = None,
    categories: Sequence[str] = (),
    encoder: Encoder | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
) -> Inputs:
    """Open the inputs at `path` to predict from; labels may be present and are not used.

    `path` may be: a folder of images, subfolders included (items are named by their relative paths and sorted); one
    image file; "-" (image paths on standard input, one per line); a manifest (CSV, TSV or Parquet) with one row per
    item, that names image files or has feature columns; `.npy`, or the array `X`, `X_test`, … of an `.npz` file,
    holding rows of features or uint8 images; or anything else that `open_data` opens. Manifests, folders, `.npy` files
    and standard input are streamed: memory use does not grow with the number of items.

    Args:
        path: the file or folder, or "-".
        images: folder of the images that a manifest or standard input names; paths that lead out of it are refused.
        size: side of a square, or (height, width), to which images are resized.
        on_bad_image: "error" or "skip"; applies to images that cannot be decoded and to rows with non-finite numbers.
            See `InputBatch.bad`.
        kind: the required kind, "image" or "features"; None accepts either.
        split: the split to read. By default all rows of a manifest, `X` of an `.npz` file or else its test or
            validation split, and the training split of a published data set.
        id, path_column: columns of a manifest that name the items and their image files.
        features: feature columns of a manifest, in the order used in training.
        labels: columns of a manifest that are not features.
        text, categories: column of texts and columns of categories of a manifest.
        encoder: encoder that turns text and categories into features, as the run trained it.
        delimiter, encoding: of a CSV file.
    Examples:
        >>> np.savez("rows.npz", X=np.arange(6.0).reshape(3, 2))
        >>> inputs = sy.data.open_inputs("rows.npz")
        >>> inputs.note
        'rows.npz is read as the array X.'
        >>> next(inputs.batches()).inputs.tolist()
        [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    """
    check_choice(on_bad_image, ("error", "skip"), "on_bad_image")
    check_choice(kind, ("image", "features", None), "kind")
    side, location = as_size(size), Path(path)
    columns = {"id": id, "path_column": path_column, "features": features, "delimiter": delimiter, "encoding": encoding}
    if str(path) == "-":
        inputs: Inputs = _standard_input(images, side, on_bad_image)
    elif not location.exists():
        raise DataError(f"{path} does not exist: give a file or a folder")
    elif location.is_dir() and layout_at(location, None):
        inputs = _labelled(location, side, on_bad_image, split=split)
    elif location.is_dir() and kind != "features" and next(image_files(location), None) is not None:
        inputs = _folder(location, side, on_bad_image)
    else:
        file = file_in(location, None, split)[0] if location.is_dir() else location
        ending = file.suffix.lower()
        if ending in EXTENSIONS:
            inputs = ImageInputs(lambda: [Image(file.name, str(file))], 1, side, on_bad_image, f"{path} is one image.")
        elif ending in (".npy", ".npz"):
            inputs = _array_file(file, split, side, on_bad_image)
        elif ENDINGS.get(ending) == "table" and encoder is not None:
            source, text = Manifest(file, delimiter, encoding or "utf-8"), text or encoder.text
            if text is None and not categories:
                trained = "the run was trained on columns of a table in memory"
                raise DataError(f"{file} is a file, but {trained}: give run.probability such a table")
            _check_columns(source, text=[text], features=features or (), categories=categories, id=[id])
            taken = [name for name in (text, *(features or ()), *categories) if name is not None]
            id = id or Columns(source, taken).id_column(None)
            inputs = _feature_rows(source, id, list(features or ()), on_bad_image, text, categories, encoder)
        elif ENDINGS.get(ending) == "table":
            inputs = _table(file, images, split, columns, labels, kind, side, on_bad_image)
        elif ending in ENDINGS:
            inputs = _labelled(file, side, on_bad_image, split=split)
        else:
            known = ", ".join((*EXTENSIONS, ".npy", *ENDINGS))
            raise DataError(f"{path} ends neither as images do nor as data files do ({known}): rename it")
    if kind not in (None, inputs.kind):
        have, want = (("images", "features")[one != "image"] for one in (inputs.kind, kind))
        raise DataError(f"{path} holds {have}, but {want} are required: give another path")
    return inputs


def inputs_of(data: Labelled, size: Size = None, on_bad_image: OnBad = "error", note: str = "") -> Inputs:
    """Return the inputs of an `ArrayDataset`, an `ImageDataset` or a `Subset` of one, named by the ids of its labels.

    Arguments: `data`; `size`, by default that of the data; `on_bad_image`, `note`: see `open_inputs`.
    """
    whole, index = origin(data)
    ids = data.labels.ids
    if isinstance(whole, ImageDataset):
        paths, boxes = whole.paths, whole.boxes

        def images() -> Iterator[Image]:
            for name, i in zip(ids, index.tolist(), strict=True):
                yield Image(name, paths[i], None if boxes is None else tuple(boxes[i].tolist()))

        return ImageInputs(images, len(index), as_size(size) or whole.size, on_bad_image, note)
    if not isinstance(whole, ArrayDataset):
        raise DataError(f"the items of {type(whole).__name__} are neither images nor features: give other data")
    return _array(whole.inputs, index, ids, as_size(size), on_bad_image, note)


def _labelled(location: Path, size: tuple[int, int] | None, on_bad_image: OnBad, **how: Any) -> Inputs:
    opened = open_data(location, size=size, on_bad_image="skip", **how)
    return inputs_of(opened.data, size, on_bad_image, opened.note)


def _table(
    file: Path,
    images: PathLike | None,
    split: str | None,
    named: dict[str, Any],
    labels: Sequence[str],
    kind: Kind | None,
    size: tuple[int, int] | None,
    on_bad_image: OnBad,
) -> Inputs:
    """Return the inputs of a manifest, as a stream if it has one row per item and every row is needed."""
    given = Guess.of({**named, "images": images})
    source = Manifest(file, named["delimiter"], named["encoding"] or "utf-8")
    _check_columns(source, id=[given.id], path_column=[given.path], features=given.features or ())
    try:
        guessed = guess(source, given)
    except DataError:
        guessed = Guess()  # it has no labels
    if split is not None or guessed.form == "long":
        return _labelled(file, size, on_bad_image, images=images, split=split or ALL, **named)
    parts = (*labels, *guessed.label_columns, guessed.value, guessed.split)
    columns = Columns(source, [name for name in parts if name is not None])
    path = columns.take(given.path or columns.path_column())
    id = columns.take(guessed.id if guessed.form else given.id or columns.id_column(path))
    free = [name for name in columns.kinds if name not in columns.taken]
    kinds = ("number", "label")
    flat = {name for name in free if columns.kinds[name] in kinds and is_numeric(columns.cells[name])}
    numbers = given.features or tuple(name for name in free if name in flat or columns.kinds[name] == "vector")
    sure = given.images or given.path or (path is not None and looks_like_files(columns.cells[path]))
    if kind == "image" or (kind is None and given.features is None and (sure or not numbers)):
        item = path or id
        if item is None or pa.types.is_nested(columns.cells[item].type):
            raise source.error("no column that names image files is found: name it with path_column=")
        return _image_rows(source, id or item, item, given.images, size, on_bad_image)
    if not numbers:
        raise source.error("no column of numbers is found: name the feature columns with features=")
    return _feature_rows(source, id or path, numbers, on_bad_image)


def _image_rows(
    source: Manifest, id: str, path: str, images: Path | None, size: tuple[int, int] | None, on_bad_image: OnBad
) -> Inputs:
    cells = encode(source.sample()[path])[1].to_pylist()[:20]
    home = images or folder_near(source.path, cells)
    if home is None and on_bad_image == "error":
        shown = f"no image of column {path!r} ({listed(cells, 3)})"
        raise source.error(f"{shown} is found beside it or in a folder there: give its folder with images=")
    home = home or source.path.parent
    n_items = source.count()
    note = f"{source.path}: the images are the files of column {path!r} in {home}, named by column {id!r}."
    ImageFolder(home, source.path)  # refused now rather than at the first batch

    def rows() -> Iterator[Image]:
        folder, row = ImageFolder(home, source.path), 0
        for block in source.stream(dict.fromkeys((id, path))):
            names, files = (pc.utf8_trim_whitespace(block[column]).to_pylist() for column in (id, path))
            for name, file in zip(names, files, strict=True):
                location = folder.path(file) if file else None
                if location is None:
                    problem = f"{file!r:.80} leads out of the image folder {home}" if file else "names no image"
                    yield Image(name or source.row(row), "", reason=f"{source.path}: {source.row(row)} {problem}")
                else:
                    yield Image(name or file, location)
                row += 1

    return ImageInputs(rows, n_items, size, on_bad_image, note)


def _feature_rows(
    source: Manifest,
    id: str | None,
    names: Sequence[str],
    on_bad_image: OnBad,
    text: str | None = None,
    categories: Sequence[str] = (),
    encoder: Encoder | None = None,
) -> Inputs:
    """The rows of a manifest as features: columns of numbers, and what `encoder` makes of texts and categories."""
    called = "numbered" if id is None else f"named by column {id!r}"
    inputs = (*names, *categories)
    shown, by = (
        (f"the text of column {text!r}", "text") if text else (f"{len(inputs)} columns ({listed(inputs)})", "features")
    )
    note = f"{source.path}: the input is {shown}, items are {called}; set by {by} and id."
    n_items = source.count()

    def blocks() -> Iterator[tuple[NDArray[Any], list[str]]]:
        widths: dict[str, int] = {}
        start = 0
        for block in source.stream(dict.fromkeys(name for name in (text, id, *categories) if name), names):
            parts = [feature_column(source, name, block[name], start, widths.get(name)) for name in names]
            vectors = [name for name in names if pa.types.is_nested(block[name].type)]
            widths = {name: parts[names.index(name)].shape[1] for name in vectors}
            rows: Any = np.concatenate(parts, axis=1) if parts else None
            if encoder is not None:
                columns = {name: category_column(block[name]) for name in categories}
                columns |= {text: Column("text", pa.array(block[text]))} if text else {}
                rows = encoder.features(columns if rows is None else {**columns, FEATURES: Column("number", rows)})
            n = rows.shape[0]
            cells = [None] * n if id is None else pc.utf8_trim_whitespace(block[id]).to_pylist()
            ids = [cell or (str(i) if id is None else source.row(i)) for i, cell in enumerate(cells, start)]
            step = _SPARSE_BLOCK if issparse(rows) else max(n, 1)
            for first in range(0, n, step):
                yield as_inputs(rows[first : first + step]), ids[first : first + step]
            start += n

    return FeatureInputs(blocks, n_items, on_bad_image, note=note)


def _check_columns(source: Manifest, **named: Sequence[str | None]) -> None:
    """Refuse columns that the manifest does not have, by the arguments that name them."""
    for argument, names in named.items():
        for name in names:
            if name is not None:
                source.check_column(name, argument)


def _folder(folder: Path, size: tuple[int, int] | None, on_bad_image: OnBad) -> Inputs:
    n = sum(1 for _ in image_files(folder))
    note = f"{folder} is read as a folder of images."

    def images() -> Iterator[Image]:
        return (Image(name, str(folder / name)) for name in image_files(folder))

    return ImageInputs(images, n, size, on_bad_image, note)


def _standard_input(images: PathLike | None, size: tuple[int, int] | None, on_bad_image: OnBad) -> Inputs:
    location = None if images is None else ImageFolder(Path(images), Path("-"))

    def named() -> Iterator[Image]:
        for line in sys.stdin.buffer:
            if name := check_name(os.fsdecode(line).strip("\r\n"), "the standard input"):
                file = name if location is None else location.path(name)
                if file is None:
                    yield Image(name, "", reason=f"{name!r:.80} leads out of the image folder {images}")
                else:
                    yield Image(name, file)

    return ImageInputs(named, None, size, on_bad_image, "Paths of images are read from the standard input.")


def _array_file(file: Path, split: str | None, size: tuple[int, int] | None, on_bad_image: OnBad) -> Inputs:
    """The rows of an `.npy` file, or of the array `X` of the part that is asked for of an `.npz` file."""
    if file.suffix.lower() == ".npy":
        if split is not None:
            raise ValueError(f"split is {split!r}, but {file} is one array, which has none: leave it out")
        return _array(read_array(file), None, None, size, on_bad_image, f"{file} is read as one array.", file)
    arrays = read_arrays(file)
    parts = sorted(name[2:] for name in arrays if name.startswith("X_"))
    ending = ""
    if split is not None or "X" not in arrays:
        part = part_named(split, parts) if split else part_named("test", parts) or part_named("val", parts)
        if part is None and (split is not None or len(parts) != 1):
            missing, there = "X" if split is None else f"X_{split}", ", ".join(arrays) or "no arrays"
            remedy = "save features as X, or choose a split with split="
            raise DataError(f"{file} has no array {missing}: it has {there}; {remedy}")
        ending = f"_{part or parts[0]}"
    note = f"{file} is read as the array X{ending}"
    if others := [name for name in parts if name != ending[1:]]:
        note += f"; also there: split {', '.join(others)}"
    ids = names_and_ids(arrays, ending, file)[1]
    return _array(arrays[f"X{ending}"], None, ids, size, on_bad_image, note + ".", f"{file}: X{ending}")


def _array(
    array: NDArray[Any],
    index: NDArray[np.int64] | None,
    ids: Sequence[str] | None,
    size: tuple[int, int] | None,
    on_bad_image: OnBad,
    note: str,
    file: Path | str = "the array",
) -> Inputs:
    """The rows of an array, or those at `index`: uint8 of more than two dimensions are images, the rest features."""
    if array.ndim < 2 or array.dtype.kind not in "biuf":
        raise DataError(f"{file} has shape {array.shape} of {array.dtype}: give numbers, one row per item, (N, …)")
    names = Ids.numbered(array.shape[0]) if ids is None else ids
    if index is None and len(names) != array.shape[0]:
        raise DataError(f"{file} has {array.shape[0]} rows, but {len(names)} ids: save one id per row")
    kind: Kind = "image" if array.dtype == np.uint8 and array.ndim > 2 else "features"
    if kind == "image" and size not in (None, array.shape[-2:]):
        raise DataError(f"{file} holds images of {array.shape[-2:]} pixels, but size is {size}: resize them")

    def blocks() -> Iterator[tuple[NDArray[Any], list[str]]]:
        block = _SPARSE_BLOCK if issparse(array) else _BLOCK
        for start in range(0, len(names), block):
            part = slice(start, start + block)
            rows = array[part if index is None else index[part]]
            yield as_inputs(rows) if issparse(rows) else rows, list(names[part])

    return FeatureInputs(blocks, len(names), on_bad_image, kind, note)
