"""The user's own data: a CSV or Parquet manifest, with a folder of images or with features of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from steelyard.data.columns.mixed import FEATURES, MOST_CATEGORIES, Column, MixedDataset, category_column
from steelyard.data.dataset import ArrayDataset, Decoding, ImageDataset
from steelyard.data.files import faults_of, label_order, listed, quoted
from steelyard.data.located import ImageFolder
from steelyard.data.tables.embeddings import embeddings_of
from steelyard.data.tables.guess import ONE_LABEL, Form, Guess, guess
from steelyard.data.tables.manifest import MOST_NAMED, Manifest, encode
from steelyard.data.tables.mistakes import Mistakes, enumerated, filled, refuse
from steelyard.data.tables.splits import choose_items, groups_of
from steelyard.data.tables.values import feature_column, label_values, no_label_values
from steelyard.labels import Labels
from steelyard.labels.ids import Ids
from steelyard.labels.targets import UNKNOWN


def table(
    manifest: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    form: Form | None = None,
    id: str | None = None,
    path: str | None = None,
    labels: str | Sequence[str] | None = None,
    value: str | None = None,
    features: Sequence[str] | None = None,
    separator: str | None = None,
    absent: Literal["negative", "unknown"] | None = None,
    minus_one: Literal["unknown", "negative"] = "unknown",
    names: Sequence[str] | None = None,
    delimiter: str | None = None,
    encoding: str = "utf-8",
    split: str | None = None,
    split_column: str | None = None,
    group: str | None = None,
    text: str | None = None,
    embeddings: str | os.PathLike[str] | None = None,
    categories: Sequence[str] | None = None,
    size: int | tuple[int, int] | None = None,
    on_bad_image: Literal["error", "skip"] = "error",
    cache: str | os.PathLike[str] | None = None,
) -> ArrayDataset | ImageDataset | MixedDataset:
    r"""Read a manifest of your own; whatever is not given is guessed, and `.note` of the result lists the guesses.

    Labels may have three forms. Wide: one column per label, with 1, true or yes for present, 0, false or no for absent,
    blank, NaN or −1 for unknown, and numbers between 0 and 1 for soft labels. List: all labels of an item in one cell,
    `cat;dog`. Long: one row per item and label, with or without a value; a row without a label only names an item.
    White space around cells is ignored. The input is the image of each item, else its feature columns, else nothing:
    features (N, 0).

    A column may assign items to splits (train, val, test). Then one split is read; labels and their names are those of
    all splits together, so that they are the same in each.

    Args:
        manifest: a CSV file with a header (separated by commas, tabs, `;` or `|`) or a Parquet file.
        images: folder of the images; files outside it are never read. File endings may be omitted in the manifest. By
            default the manifest's own folder, if the first image is there.
        form: "wide", "list" or "long".
        id: column that names the items.
        path: column of image files.
        labels: the label columns, or the one column that holds the labels.
        value: column of values in long form.
        features: feature columns, numbers or vectors.
        separator: separator between labels in a cell in list form; "none" if each cell is one label.
        absent: meaning of a label that is not mentioned: "negative" or "unknown". The default depends on the form.
        minus_one: meaning of −1.
        names: the labels and their order; by default every label that occurs, sorted.
        delimiter, encoding: of a CSV file; the delimiter is guessed.
        split: the split to read; by default the training split if there are several; "all" reads every one. Synonyms
            such as val and validation are equal.
        split_column: column that names the split; guessed from its name and cells.
        group: column whose items with equal values stay together in every split, such as a patient.
        text: column of texts to use as input; the result is then a `MixedDataset`, which must be encoded.
        embeddings: `.npy` or `.npz` file whose rows are the input; see `embeddings_of`.
        categories: columns of texts to use as categorical input; the result is then a `MixedDataset`.
        size, on_bad_image, cache: how images are decoded; see `ImageDataset`.
    Examples:
        >>> from pathlib import Path
        >>> _ = Path("pets.csv").write_text("id,weight,cat,dog\na,4.5,1,0\nb,20,,1\n")
        >>> data = sy.data.table("pets.csv")
        >>> data.inputs.tolist(), data.labels.values.tolist()
        ([[4.5], [20.0]], [[1, 0], [-1, 1]])
    """
    given = Guess.of({name: value for name, value in locals().items() if name not in ("manifest", "split")})
    source = Manifest(manifest, delimiter, encoding)
    return read_table(source, given, split, size=size, on_bad_image=on_bad_image, cache=cache).data


class ManifestData(NamedTuple):
    """A manifest that was read, and how."""

    data: ArrayDataset | ImageDataset | MixedDataset
    guessed: Guess
    """The form, and the part of each column."""
    split: str | None
    """The part that was read, "all" for every one; None where there are none."""
    parts: tuple[str, ...]
    """The parts that there are."""


def read_table(
    source: Manifest,
    given: Guess,
    split: str | None = None,
    optional: bool = False,
    near: bool = False,
    **how: Unpack[Decoding],
) -> ManifestData:
    """Read a manifest as `table` does, and tell how it was read.

    Arguments: `source`; `given` about it; `split`, and `optional`, whether all items will do where there is no such
    part; `near`, see `guess`; `size`, `on_bad_image`, `cache`: see `ImageDataset`.
    """
    guessed = guess(source, given, near)
    inputs = guessed.features or ()
    columns = source.read(dict.fromkeys(guessed.used).keys() - set(inputs), inputs)
    items, part, parts, chosen = choose_items(source, guessed, columns, split, optional)
    groups = groups_of(source, guessed, columns)
    files = _image_names(source, guessed, columns)
    read = {"wide": _read_wide, "list": _read_list, "long": _read_long}[guessed.form or "wide"]
    with faults_of(source.path):
        labels = read(source, guessed, columns).grouped(groups)
    note = guessed.describe(source) + chosen
    if (guessed.form == "wide" or guessed.value) and not (labels.n_known - labels.counts).any():
        note += " No cell says that a label is absent: if blank or -1 should, give absent= or minus_one='negative'."
    n = len(labels)
    if guessed.embeddings is not None:
        rows = embeddings_of(guessed.embeddings, labels, items)
        some = labels if items is None else labels.take(items)
        return ManifestData(ArrayDataset(rows, some, note), guessed, part, parts)
    if items is not None:
        labels = labels.take(items)
        files = None if files is None else files.take(pa.array(items))
    if guessed.images is None or guessed.path is None:
        features = _features(source, columns, inputs, n)
        if guessed.text is not None or guessed.categories:
            mixed = _mixed(source, guessed, columns, features, items)
            return ManifestData(MixedDataset(mixed, labels, note), guessed, part, parts)
        return ManifestData(
            ArrayDataset(features if items is None else features[items], labels, note), guessed, part, parts
        )
    cells = labels.ids if files is None else files
    paths, missing = _located(source, guessed, cells, items, guessed.images)
    if missing:
        lacks = f"{len(missing)} of {len(paths)} images are not in {guessed.images} ({listed(missing, 3)})"
        if how.get("on_bad_image", "error") == "error":
            otherwise = "remove their rows, or skip them with --skip-missing (on_bad_image='skip')"
            if len(missing) == len(paths):
                otherwise = "or give the folder that holds them with images="
            raise source.error(f"{lacks}: add them, {otherwise}")
        note += f" {lacks}: they are left out."
    return ManifestData(ImageDataset(paths, labels, **how, note=note), guessed, part, parts)


def _mixed(
    source: Manifest,
    guessed: Guess,
    columns: dict[str, Any],
    features: NDArray[np.float32],
    items: NDArray[np.int64] | None,
) -> dict[str, Column]:
    """Return the text of some items, their categories and their features, as columns."""
    if guessed.form == "long":
        raise source.error("categories are named, but in long form an item has several rows: write one row per item")
    inputs = {}
    if guessed.text is not None:
        inputs[guessed.text] = Column("text", columns[guessed.text].cast(pa.string()).combine_chunks())
    if features.shape[1]:
        inputs[FEATURES] = Column("number", features)
    for name in guessed.categories or ():
        inputs[name] = category_column(columns[name].cast(pa.string()).combine_chunks())
        if (n := len(inputs[name].values.unique())) > MOST_CATEGORIES:
            most = f"too many for categories (at most {MOST_CATEGORIES:,})"
            raise source.error(f"column {name!r} holds {n:,} different texts, {most}: group them, or leave it out")
    return inputs if items is None else {name: column.take(items) for name, column in inputs.items()}


def _image_names(source: Manifest, guessed: Guess, columns: dict[str, Any]) -> Any:
    """Return the cell of the image column of each item; None if that is the item's id."""
    if guessed.path is None or guessed.id is None or guessed.path == guessed.id:
        return None
    codes, texts = filled(source, columns[guessed.path], "image")
    if guessed.form == "long":  # the image of an item is that of its first row
        items = filled(source, columns[guessed.id], "id")[0]
        codes = codes[np.unique(items, return_index=True)[1]]
    return texts.take(pa.array(codes))


def _unique_ids(source: Manifest, guessed: Guess, columns: dict[str, Any]) -> Any:
    """The ids of a form with a row for each item, None where they are numbered."""
    if guessed.id is None:
        return None
    codes, texts = filled(source, columns[guessed.id], "id")
    if len(texts) == len(codes):
        return texts
    first = np.unique(codes, return_index=True)[1]
    again = np.setdiff1d(np.arange(len(codes)), first)
    shown = again[:MOST_NAMED]
    lines = source.places([*first[codes[shown]].tolist(), *shown.tolist()])
    pairs = zip(lines, lines[len(shown) :], shown.tolist(), strict=False)
    parts = [f"{one} and {two} both have the id {quoted(str(texts[int(codes[i])]))}" for one, two, i in pairs]
    remedy = "remove one of them, or give form='long' if a row is a label of an item"
    raise source.error(f"{enumerated(parts, len(again))}: {remedy}")


def _read_wide(source: Manifest, guessed: Guess, columns: dict[str, Any]) -> Labels:
    ids = _unique_ids(source, guessed, columns)
    blank, minus_one = ((0 if meaning == "negative" else UNKNOWN) for meaning in (guessed.absent, guessed.minus_one))
    names = guessed.label_columns
    values = np.empty((len(columns[names[0]]), len(names)), np.int8)
    mistakes = no_label_values(source)
    for j, name in enumerate(names):
        column = label_values(source, name, columns[name], mistakes, blank, minus_one)
        if values.dtype == np.int8 and (column != np.rint(column)).any():
            values = values.astype(np.float32)
        values[:, j] = column
    mistakes.check()
    return Labels(values, names, ids)


def _read_list(source: Manifest, guessed: Guess, columns: dict[str, Any]) -> Labels:
    ids = _unique_ids(source, guessed, columns)
    column = columns[guessed.label_columns[0]]
    if pa.types.is_nested(column.type):
        lists = column.combine_chunks()
        marks, texts = encode(pc.list_flatten(lists))
    else:  # each distinct cell is split once
        codes, cells = encode(column)
        if guessed.separator in (None, ONE_LABEL):
            distinct = pa.ListArray.from_arrays(np.arange(len(cells) + 1, dtype=np.int32), cells)
        else:
            distinct = pc.split_pattern(cells, guessed.separator)
        marks, texts = encode(distinct.flatten())
        lists = pa.ListArray.from_arrays(distinct.offsets, marks).take(pa.array(codes, mask=codes < 0))
        marks = pc.list_flatten(lists).to_numpy()
    rows = pc.list_parent_indices(lists).to_numpy()
    return _listed_cells(source, guessed, rows, rows, marks, texts, np.ones(len(rows), np.int8), len(column), ids)


def _read_long(source: Manifest, guessed: Guess, columns: dict[str, Any]) -> Labels:
    items, names = filled(source, columns.pop(guessed.id or ""), "id")  # popped: ten million ids are not held twice
    ids = Ids.distinct(names)
    marks, texts = encode(columns.pop(guessed.label_columns[0]))
    if guessed.value is None:
        values: NDArray[Any] = np.ones(len(items), np.int8)
    else:
        minus_one = 0 if guessed.minus_one == "negative" else UNKNOWN
        mistakes = no_label_values(source)
        values = label_values(source, guessed.value, columns[guessed.value], mistakes, minus_one=minus_one)
        mistakes.check()
        rows = np.flatnonzero((marks < 0) & (values != UNKNOWN))
        refuse(source, rows, " has a value but no label", " have a value but no label", "add the label")
    return _listed_cells(source, guessed, np.arange(len(items)), items, marks, texts, values, len(ids), ids)


def _listed_cells(
    source: Manifest,
    guessed: Guess,
    rows: NDArray[np.int64],
    items: NDArray[np.int64],
    marks: NDArray[np.int64],
    texts: Any,
    values: NDArray[Any],
    n: int,
    ids: Any,
) -> Labels:
    """Labels from one (item, label, value) each, where label `marks` is one of `texts`, or none where it is −1."""
    words = texts.to_pylist()
    names = guessed.names or tuple(sorted(words, key=label_order))
    if not names:
        raise source.error(f"column {guessed.labels!r} holds no label: name another with labels=, or give form=")
    column_of = {name: j for j, name in enumerate(names)}
    order = np.array([column_of.get(word, -1) for word in words] + [0])
    strange = np.flatnonzero(order[marks] < 0)
    among = f"not among the {len(names)} of names"
    mistakes = Mistakes(source, f", which is {among}", f", which are {among}", "add it there, or correct the row")
    mistakes.add(rows[strange], lambda k: f" has the label {words[marks[strange[k]]]!r}")
    mistakes.check()
    fill = 0 if guessed.absent == "negative" else UNKNOWN
    if not (kept := marks >= 0).all():
        items, marks, values = items[kept], marks[kept], values[kept]
    return Labels.from_cells(items, order[marks], values, (n, len(names)), fill, names, ids)


def _features(source: Manifest, columns: dict[str, Any], names: Sequence[str], n: int) -> NDArray[np.float32]:
    """The feature columns side by side; a column may hold vectors."""
    parts = [np.zeros((n, 0), np.float32)]
    remedy = "fill it in, remove the row, or name the feature columns with features="
    mistakes = Mistakes(source, " holds no finite number", " hold no finite number", remedy)
    for name in names:
        part = feature_column(source, name, columns[name])
        mistakes.add(np.flatnonzero(~np.isfinite(part).all(axis=1)), f", column {name!r}")
        parts.append(part)
    mistakes.check()
    return np.concatenate(parts, axis=1)


def _located(
    source: Manifest, guessed: Guess, cells: Any, index: NDArray[np.int64] | None, images: Path
) -> tuple[list[str], list[str]]:
    """The image file of each cell, none of them outside `images`, and the cells for which there is no file."""
    folder = ImageFolder(images, source.path)
    paths, missing, outside = [], [], []
    for i, cell in enumerate(cells):
        file = folder.find(str(cell))
        if file is None:
            outside.append(i)
            continue
        if not file[1]:
            missing.append(str(cell))
        paths.append(file[0])
    if outside:
        shown = [f"{str(cells[i])!r:.80}" for i in outside[:MOST_NAMED]]
        if guessed.form != "long":  # in which an item is not a row
            at = source.places([i if index is None else int(index[i]) for i in outside[:MOST_NAMED]])
            shown = [f"{line}: {cell}" for line, cell in zip(at, shown, strict=True)]
        out = f"lead{'s' * (len(outside) == 1)} out of the image folder {images}"
        remedy = "fix it, or give images=, a folder that holds all of them"
        raise source.error(f"{enumerated(shown, len(outside))} {out}: {remedy}")
    return paths, missing
