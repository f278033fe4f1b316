"""Open Images (V4 and later) as its owners publish it: human-verified image-level labels, natively partial."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
from numpy.typing import NDArray

from steelyard.data.dataset import ImageDataset
from steelyard.data.files import DataError, PathLike, check_choice, first_file, read_lines, require
from steelyard.labels import UNKNOWN, Labels
from steelyard.labels.ids import Ids

_VERSIONS = ("", "oidv7-", "oidv6-", "oidv5-")
_COLUMNS = ("ImageID", "LabelName", "Confidence")


def open_images(
    root: PathLike,
    split: str,
    classes: Literal["boxable", "trainable", "all"] = "boxable",
    empty: Literal["keep", "drop"] = "keep",
    *,
    size: int | tuple[int, int] | None = None,
    on_bad_image: Literal["error", "skip"] = "error",
    cache: PathLike | None = None,
) -> ImageDataset:
    """Return Open Images: 1 where a person confirmed the label, 0 where one denied it, everything else unknown.

    Labels carry the owners' display names, with the class code behind a name that several classes share; items are
    the images of the label file in its order, ids their 16 digits. Rows that say the same twice count once; a label
    that one person confirmed and another denied is unknown.

    Arguments: `root`, the folder that holds the CSV files and the images in `{split}/`; `split`, "train",
    "validation" or "test"; `classes`: "boxable" are the 600 of `class-descriptions-boxable.csv`, read from
    `{split}-annotations-human-imagelabels-boxable.csv`, "trainable" those of `classes-trainable.txt` and "all" those of
    `class-descriptions.csv`, both read from `{split}-annotations-human-imagelabels.csv` (any name may begin with
    `oidv5-`, `oidv6-` or `oidv7-`); `empty`, whether images without a known label of these classes are kept or left
    out. `size`, `on_bad_image`, `cache`: see `ImageDataset`.
    """
    check_choice(split, ("train", "validation", "test"), "split")
    check_choice(classes, ("boxable", "trainable", "all"), "classes")
    check_choice(empty, ("keep", "drop"), "empty")
    home = Path(root)
    codes, names = _classes(home, classes)
    kind = "-boxable" if classes == "boxable" else ""
    path = _file(home, f"{split}-annotations-human-imagelabels{kind}.csv")
    ids, items, labels, values = _rows(path, codes, others_allowed=classes == "trainable")
    cells = _agreed(items, labels, values, len(codes))
    if empty == "drop":
        kept = np.unique(cells[0])
        ids = ids.take(pa.array(kept))
        cells = np.searchsorted(kept, cells[0]), *cells[1:]
    table = Labels.from_cells(*cells, (len(ids), len(codes)), UNKNOWN, names, Ids.distinct(ids))
    paths = pc.binary_join_element_wise(str(home / split), pc.binary_join_element_wise(ids, "jpg", "."), "/")
    return ImageDataset(paths, table, size, on_bad_image, cache)


def _file(home: Path, name: str) -> Path:
    return first_file([home / f"{version}{name}" for version in _VERSIONS], name)


def _classes(home: Path, classes: str) -> tuple[list[str], list[str]]:
    """The codes of the classes and names that are distinct."""
    path = _file(home, "class-descriptions-boxable.csv" if classes == "boxable" else "class-descriptions.csv")
    try:
        described = csv.read_csv(
            require(path),
            csv.ReadOptions(column_names=("code", "name")),
            convert_options=csv.ConvertOptions(column_types=dict.fromkeys(("code", "name"), pa.string())),
        )
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: {str(error).splitlines()[0]:.160}: it must hold two columns, code and name") from None
    rows = list(zip(described["code"].to_pylist(), described["name"].to_pylist(), strict=True))
    rows = rows[1:] if rows and rows[0] == ("LabelName", "DisplayName") else rows
    title = dict(rows)
    if not title or len(title) < len(rows):
        code = next((code for code, n in Counter(code for code, _ in rows).items() if n > 1), "no class")
        raise DataError(
            f"{path} lists {code!r} more than once: remove one of them"
            if rows
            else f"{path} lists no class: fetch it again"
        )
    codes = list(title)
    if classes == "trainable":
        listing = _file(home, "classes-trainable.txt")
        codes = list(dict.fromkeys(line for line in read_lines(listing) if line != "LabelName"))
        for i, code in enumerate(codes, 1):
            if code not in title:
                raise DataError(f"{listing}: class {i}, {code!r:.40}, is not described in {path}: fetch both again")
    shared = Counter(title[code] for code in codes)
    return codes, [title[code] if shared[title[code]] == 1 else f"{title[code]} ({code})" for code in codes]


def _rows(
    path: Path, codes: list[str], others_allowed: bool
) -> tuple[Any, NDArray[np.int32], NDArray[np.int32], NDArray[np.int8]]:
    """The distinct images, and the image, class and value of every row that is about one of the classes."""
    table = _read(path)
    ids, items = _dictionary(table["ImageID"])
    fits = pc.match_substring_regex(ids, r"^[0-9A-Za-z_-]+$")
    if not pc.all(fits).as_py():
        i = fits.index(False).as_py()
        line = int(np.argmax(items == i)) + 2
        raise DataError(f"{path}: line {line}: {ids[i].as_py()!r:.60} is no image id: correct it or remove that line")
    listed, label_of_row = _dictionary(table["LabelName"])
    column = np.array(pc.index_in(listed, pa.array(codes)).fill_null(-1).to_numpy(zero_copy_only=False), np.int32)
    labels = column[label_of_row]
    confidence = table["Confidence"].to_numpy()
    if (bad := np.flatnonzero((confidence != 0) & (confidence != 1))).size:
        shown = confidence[bad[0]]
        raise DataError(
            f"{path}: line {bad[0] + 2}: Confidence is {shown:g}: a verified label has 1 or 0; fetch it again"
        )
    foreign = labels < 0
    if foreign.any():
        if not others_allowed:
            i = int(np.argmax(foreign))
            name = listed[int(label_of_row[i])].as_py()
            raise DataError(
                f"{path}: line {i + 2}: {name!r:.40} is not among the {len(codes)} classes: fetch both again"
            )
        items, labels, confidence = items[~foreign], labels[~foreign], confidence[~foreign]
    return ids, items, labels, confidence.astype(np.int8)


def _read(path: Path) -> Any:
    code = pa.dictionary(pa.int32(), pa.string())
    types = dict(zip(_COLUMNS, (code, code, pa.float32()), strict=True))
    convert = csv.ConvertOptions(
        column_types=types, include_columns=_COLUMNS, null_values=[], strings_can_be_null=False
    )
    fault = ""
    for threads in (True, False):  # only a reader without threads can name the line
        try:
            table = csv.read_csv(require(path), csv.ReadOptions(use_threads=threads), convert_options=convert)
        except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
            fault = str(error).splitlines()[0]
            continue
        if table.num_rows == 0:
            raise DataError(f"{path} has a header and no rows: fetch it again")
        return table.unify_dictionaries()
    raise DataError(
        f"{path}: {fault:.160}: it must have the columns ImageID, Source, LabelName, Confidence; fetch it again"
    )


def _dictionary(column: Any) -> tuple[Any, NDArray[np.int32]]:
    """The distinct strings of a column whose chunks share one dictionary, and the number of each row's."""
    return column.chunk(0).dictionary, np.concatenate([chunk.indices.to_numpy() for chunk in column.chunks])


def _agreed(
    items: NDArray[np.int32], labels: NDArray[np.int32], values: NDArray[np.int8], n_labels: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int8]]:
    """The cells by item and label, each once, without those that the rows contradict."""
    key = items.astype(np.int64) * n_labels + labels
    if not (key[1:] > key[:-1]).all():
        order = np.argsort(key, kind="stable")
        key, values = key[order], values[order]
        starts = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
        low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
        key, values = key[starts][low == high], low[low == high]
    item, label = np.divmod(key, n_labels)
    return item, label, values
