"""Opens any data by its path, with the reader that fits it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

from steelyard.data.dataset import ArrayDataset, Decoding, ImageDataset
from steelyard.data.files import DataError, PathLike, check_choice, listed
from steelyard.data.layouts import LAYOUTS, Data, Spot, read_layout, spots
from steelyard.data.located import is_file
from steelyard.data.parts import file_in, format_of, part_named, part_of, siblings
from steelyard.data.readers.arff import arff
from steelyard.data.readers.mlt import MLT, mlt_at, mlt_labels, mlt_root
from steelyard.data.readers.npz import array_names, npz, read_arrays, read_labels
from steelyard.data.readers.svmlight import svmlight
from steelyard.data.tables.class_names import named_labels
from steelyard.data.tables.guess import OF_TABLES, Form, Guess
from steelyard.data.tables.manifest import Manifest
from steelyard.data.tables.read import read_table
from steelyard.labels import Labels

_FILE_FORMATS = ("table", "arff", "npz", "svmlight", "labels")

FORMATS = (*_FILE_FORMATS, *LAYOUTS, *MLT)
"""Values of `format`."""


class Opened(NamedTuple):
    r"""Data that was opened, and how it was read; `open_data` returns one.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("pets.csv").write_text("id,weight,cat,dog\na,1.5,1,0\nb,2.5,0,1\n")
        >>> opened = sy.data.open_data("pets.csv")
        >>> opened.format, opened.data.labels.names
        ('table', ('cat', 'dog'))
    """

    data: Data
    """The data set, with `.labels`."""
    format: str
    """Name of its format, as `open_data` takes it."""
    split: str | None
    """The split that was read; None if the data has no splits."""
    note: str
    """Guesses about the data, and the setting that overrides each."""
    parts: tuple[str, ...] = ()
    """Splits that exist in this file or layout, or in files beside it: the names `open_part` takes."""
    settings: Mapping[str, Any] = MappingProxyType({})
    """Arguments (without `split`) with which `open_data` reads the data the same way again, guesses included."""
    unfound: str = ""
    """Column of a manifest that names image files, if none of them exists and there is no other input."""


def open_data(
    path: PathLike,
    images: PathLike | None = None,
    format: str | None = None,
    split: str | None = None,
    *,
    year: int | None = None,
    form: Form | None = None,
    id: str | None = None,
    path_column: str | None = None,
    labels: str | Sequence[str] | None = None,
    value: str | None = None,
    features: Sequence[str] | None = None,
    separator: str | None = None,
    absent: Literal["negative", "unknown"] | None = None,
    minus_one: Literal["unknown", "negative"] | None = None,
    names: Sequence[str] | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    split_column: str | None = None,
    group: str | None = None,
    text: str | None = None,
    embeddings: PathLike | None = None,
    categories: Sequence[str] | None = None,
    class_names: PathLike | None = None,
    size: int | tuple[int, int] | None = None,
    on_bad_image: Literal["error", "skip"] = "error",
    cache: PathLike | None = None,
) -> Opened:
    r"""Open the data at `path`; whatever is not given is guessed, and `.note` lists the guesses.

    `path` may be a file: a manifest (CSV, TSV or Parquet; see `table`), `.arff`, `.svm`, `.npz` (features and labels,
    labels alone, or a table written by `Labels.save`), or a published long-tailed split (see `voc_mlt`; `images` is
    then the folder that holds its images, looked for around the split by default). It may be a folder: the layout of a
    published data set, any folder inside such a layout, such as `VOCdevkit/VOC2007`, or a folder that holds one of the
    files above, with the images beside it or in a subfolder.

    Args:
        path: the file or folder.
        images: folder of a manifest's images.
        format: one of `FORMATS`.
        split: the split to read; by default the training split of a layout, or of a manifest with a split column ("all"
            reads every split). In a folder of your own it selects the file of that name, `train.csv` or
            `mine-train.arff`. Synonyms such as val, valid and validation are equal.
        year: of VOC and COCO; by default the latest one present.
        form, id, labels, value, features, separator, absent, names: about a manifest; see `table`.
        path_column: column of image files in a manifest, `table`'s `path`.
        minus_one: meaning of −1 in a manifest or an `.npz` file. With "negative" −1 is absent; in an `.npz` file 0 is
            then unknown.
        delimiter, encoding, split_column, group, text, embeddings, categories: about a manifest; see `table`.
        class_names: CSV or JSON file with the names of labels that the data gives as ids.
        size, on_bad_image, cache: how images are decoded; see `ImageDataset`.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("pets.csv").write_text("id,weight,tags\na,1.5,cat;dog\nb,2.5,dog\n")
        >>> opened = sy.data.open_data("pets.csv", features=["weight"])
        >>> opened.data.labels.names, opened.data.labels.counts.tolist()
        (('cat', 'dog'), [1, 2])
    """
    given = {name: value for name, value in locals().items() if value is not None}
    if format is not None:
        check_choice(format, FORMATS, "format")
    location = Path(path)
    if not location.exists():
        raise DataError(f"{path} does not exist: give a file or a folder")
    how: Decoding = {"size": size, "on_bad_image": on_bad_image, "cache": cache}
    options = {name: given[name] for name in OF_TABLES if name in given}
    if mlt := format if format in MLT else None if format else mlt_at(location):
        _check_fits({**options, "split": split, "year": year}, ("images",), path, mlt)
        opened = _open_mlt(location, mlt, images, how)
    elif location.is_dir() and format not in _FILE_FORMATS and (layout := layout_at(location, format)):
        _check_fits(options, ("names",) if LAYOUTS[layout].takes == "answers" else (), path, layout)
        opened = _open_layout(location, layout, split, year, how, names)
        opened = opened._replace(settings={"path": path, "format": format, "year": year, **options, **how})
    else:
        _check_fits({"year": year}, (), path, "one file")
        if format in LAYOUTS:
            raise DataError(f"{path} is a file, but format {format!r} is a folder: give the folder, or another format")
        opened = _open_file(location, format, split, options, how)
    if class_names is None:
        return opened
    data = copy.copy(opened.data)
    data.labels, note = named_labels(data.labels, class_names)
    return opened._replace(data=data, note=opened.note + note, settings={**opened.settings, "class_names": class_names})


def _check_fits(given: Mapping[str, object], fits: Sequence[str], path: PathLike, kind: str) -> None:
    """Refuse settings that this kind of data has no use for."""
    for name, value in given.items():
        if value is not None and name not in fits:
            raise ValueError(f"{name} is {value!r}, but {path} is read as {kind}, which has none: leave it out")


def existing(opened: Opened) -> Opened:
    """Return the data without the items whose image is missing, which `.note` names; where none may be, refuse them.

    Whether items may be left out is what `on_bad_image` of the data says; that all of them are missing is a mistake in
    any case.
    """
    data, where = opened.data, opened.settings.get("path", "the data")
    if opened.unfound:
        remedy = f"give their folder with images=, or read labels alone with id={opened.unfound!r}"
        lacks = f"no image of column {opened.unfound!r} is found beside it or in a folder there"
        raise DataError(f"{where}: {lacks}: {remedy}")
    checked = opened.format == "table" and opened.settings.get("on_bad_image") == "error"  # by the reader, already
    if not isinstance(data, ImageDataset) or not len(data) or checked:
        return opened
    paths = data.paths
    there = {path: is_file(path) for path in set(paths)}
    missing = [path for path in paths if not there[path]]
    if not missing:
        return opened
    lacks = f"{len(missing):,} of {len(paths):,} images are missing ({listed(missing, 3)})"
    if len(missing) == len(paths):
        raise DataError(f"{where}: {lacks}: add them, or give the folder that holds them with images=")
    if data.on_bad_image == "error":
        raise DataError(
            f"{where}: {lacks}: add them, remove their items, or skip them with --skip-missing (on_bad_image='skip')"
        )
    note = opened.note if opened.format == "table" else f"{opened.note} {lacks}: they are left out."
    return opened._replace(data=data.take(np.flatnonzero([there[path] for path in paths])), note=note)


# ---- folders as their owners publish them


def layout_at(location: Path, format: str | None) -> str | None:
    """Return the name of the layout at `location`: the given one, or the only one there."""
    if format is not None:
        return format
    names = [name for name in LAYOUTS if name != "multi_mnist" and next(spots(location, LAYOUTS[name]), None)]
    names = [name for name in names if name != "vqa" or "vqa_regions" not in names]
    if len(names) > 1:
        raise DataError(f"{location} holds several data sets ({', '.join(names)}): choose one with format=")
    return names[0] if names else None


def _open_layout(
    location: Path, format: str, split: str | None, year: int | None, how: Decoding, names: Sequence[str] | None
) -> Opened:
    layout = LAYOUTS[format]
    if layout.years == (0,):
        _check_fits({"year": year}, (), location, format)
    candidates = list(spots(location, layout))
    here = tuple(dict.fromkeys(spot.split for spot in candidates if year in (None, spot.year)))
    split = split if split is None else part_named(split, here) or split
    fit = [spot for spot in candidates if split in (None, spot.split) and year in (None, spot.year)]
    # Without a fit the reader itself says what is missing and where it looked.
    usual = Spot(candidates[0].root if candidates else location, year or layout.years[0], split or layout.splits[0])
    chosen = fit[0] if fit else usual
    data = read_layout(layout, chosen, names, how)
    note = f"{location} is read as {f'{format} {chosen.year}' if chosen.year else format}, split {chosen.split!r}"
    if others := [spot for spot in candidates if spot != chosen]:
        named = [spot.split if spot.year == chosen.year else f"{spot.year} {spot.split}" for spot in others]
        note += f"; also there: {', '.join(named)}"
    if isinstance(data, ArrayDataset | ImageDataset) and data.note:
        note += f"; {data.note}"
    return Opened(data, format, chosen.split, note + ".", here)


def _open_mlt(location: Path, format: str, images: PathLike | None, how: Decoding) -> Opened:
    """Open a published long-tailed split; without its images the labels alone, to look at."""
    root, published = mlt_root(location, format, images), MLT[format]
    note = f"{location} is read as {format}"
    if root is None:
        data: Data = _without_inputs(mlt_labels(location, published.names))
        note += f", labels alone: for the images give the folder that holds {published.images} with images=."
    else:
        data = published.read(location, root, **how)
        note += f", with the images of {root / published.images}."
    # Another part is other data, such as VOC 2007's test images: its format is its own.
    return Opened(data, format, None, note, settings={"path": location, "images": images, **how})


# ---- the user's own files


def _open_file(
    location: Path, format: str | None, split: str | None, options: Mapping[str, Any], how: Decoding
) -> Opened:
    """Open a file, or the one file of a folder; one whose name says that it is the part need not say it itself."""
    file, part = file_in(location, format, split, LAYOUTS) if location.is_dir() else (location, None)
    if location.is_file() and split is not None and (own := part_of(file.stem)):
        part = part_named(split, own[1:])
    split, by_name = part or split, part is not None
    kind = format or format_of(file)
    if kind == "npz" and {"starts", "columns", "fill"} <= array_names(file):
        kind = "labels"
    if kind not in ("table", "npz") and not by_name:
        _check_fits({"split": split}, (), file, kind)
    _check_fits(options, {"table": OF_TABLES, "npz": ("minus_one",)}.get(kind, ()), file, kind)
    if kind == "table":
        opened = _open_table(file, split, by_name, options, how)
    elif kind == "npz":
        opened = _open_npz(file, split, by_name, options.get("minus_one", "unknown"))
    elif kind == "arff":
        opened = Opened(arff(file), kind, split, f"{file} is read as ARFF.")
    elif kind == "svmlight":
        opened = Opened(svmlight(file), kind, split, f"{file} is read as sparse text, svmlight's or XMC's.")
    else:
        data = _without_inputs(Labels.load(file))
        opened = Opened(data, kind, split, f"{file} is read as a table of labels, no inputs.")
    parts = tuple(dict.fromkeys((*opened.parts, *siblings(file))))
    return opened._replace(parts=parts, settings={"path": file, "format": format, **options, **how, **opened.settings})


def _open_table(file: Path, split: str | None, by_name: bool, options: Mapping[str, Any], how: Decoding) -> Opened:
    source = Manifest(file, options.get("delimiter"), options.get("encoding", "utf-8"))
    read = read_table(source, Guess.of(options), split, by_name, near=True, **how)
    part = split if by_name else read.split
    return Opened(
        read.data, "table", part, read.data.note, read.parts, read.guessed.settings, read.guessed.unfound or ""
    )


def _open_npz(file: Path, split: str | None, by_name: bool, minus_one: str) -> Opened:
    arrays = array_names(file)
    splits = sorted((name[2:] for name in arrays if name.startswith("Y_")), key=lambda name: (name != "train", name))
    part = None if split is None else part_named(split, splits)
    if part is None and (split is None or by_name):
        part = None if "Y" in arrays or not splits else splits[0]
    elif part is None:
        part = split  # its reader says what is there
    ending = "" if part is None else f"_{part}"
    absent: Literal[0, -1] = -1 if minus_one == "negative" else 0
    if f"Y{ending}" in arrays and f"X{ending}" not in arrays:
        data = _without_inputs(read_labels(read_arrays(file), ending, absent, file))
        what = f"labels Y{ending}, no inputs"
    else:
        data, what = npz(file, part, absent), f"features X{ending} and labels Y{ending}"
    note = f"{file} is read as {what}"
    if others := [name for name in splits if name != part]:
        note += f"; also there: split {', '.join(others)}"
    positives, known = int(data.labels.counts.sum()), int(data.labels.n_known.sum())
    if absent == 0 and data.labels.unknown_rate > 0 and known - positives < positives:
        note += ". -1 and NaN are unknown, and few cells say absent: if -1 means absent, give minus_one='negative'"
    return Opened(data, "npz", split if by_name else part, note + ".", tuple(splits))


def _without_inputs(labels: Labels) -> ArrayDataset:
    return ArrayDataset(np.zeros((len(labels), 0), np.float32), labels)
