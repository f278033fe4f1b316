"""Open Images (V4 and later) as its owners publish it: human-verified image-level labels, natively partial."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from steelyard.data.dataset import Decoding, ImageDataset
from steelyard.data.files import DataError, PathLike, check_choice, first_file, read_lines
from steelyard.data.tables.class_names import read_class_names
from steelyard.data.tables.manifest import Manifest, encode
from steelyard.labels import UNKNOWN, Labels
from steelyard.labels.ids import Ids

_VERSIONS = ("", "oidv7-", "oidv6-", "oidv5-")
_COLUMNS = ("ImageID", "LabelName", "Confidence")


def open_images(
    root: PathLike,
    split: str,
    classes: Literal["boxable", "trainable", "all"] = "boxable",
    empty: Literal["keep", "drop"] = "keep",
    **how: Unpack[Decoding],
) -> ImageDataset:
    r"""Return Open Images: 1 where a person confirmed the label, 0 where one rejected it, unknown otherwise.

    Labels have the owners' display names, followed by the class code if several classes share a name. Items are the
    images of the label file in its order, with their 16-digit ids. Repeated rows count once; a label that one person
    confirmed and another rejected is unknown.

    Args:
        root: folder that holds the CSV files and the images in `{split}/`; names of CSV files may begin with `oidv5-`,
            `oidv6-` or `oidv7-`.
        split: "train", "validation" or "test".
        classes: "boxable" for the 600 of `class-descriptions-boxable.csv`, read from
            `{split}-annotations-human-imagelabels-boxable.csv`; "trainable" for those of `classes-trainable.txt` or
            "all" for those of `class-descriptions.csv`, both read from `{split}-annotations-human-imagelabels.csv`.
        empty: "keep" or "drop" images without a known label of these classes.
        **how: how images are decoded: `size`, `on_bad_image` and `cache` of `ImageDataset`.
    Examples:
        >>> from pathlib import Path
        >>> _ = Path("class-descriptions-boxable.csv").write_text("/m/01,Cat\n/m/02,Dog\n")
        >>> rows = "ImageID,LabelName,Confidence\n0000000000000001,/m/01,1\n0000000000000002,/m/02,0\n"
        >>> _ = Path("validation-annotations-human-imagelabels-boxable.csv").write_text(rows)
        >>> data = sy.data.open_images(".", "validation")
        >>> data.labels.names, data.labels.values.tolist()
        (('Cat', 'Dog'), [[1, -1], [-1, 0]])
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
    before, after, nothing = (pa.scalar(text, pa.large_string()) for text in (f"{home / split}/", ".jpg", ""))
    paths = pc.binary_join_element_wise(before, ids, after, nothing)
    return ImageDataset(paths, table, **how)


def _file(home: Path, name: str) -> Path:
    return first_file([home / f"{version}{name}" for version in _VERSIONS], name)


def _classes(home: Path, classes: str) -> tuple[list[str], list[str]]:
    """The codes of the classes and names that are distinct."""
    path = _file(home, "class-descriptions-boxable.csv" if classes == "boxable" else "class-descriptions.csv")
    title = read_class_names(path)
    codes = list(title)
    if classes == "trainable":
        listing = _file(home, "classes-trainable.txt")
        codes = list(dict.fromkeys(line for line in read_lines(listing) if line != "LabelName"))
        for i, code in enumerate(codes, 1):
            if code not in title:
                raise DataError(f"{listing}: class {i}, {code!r:.40}, is not described in {path}: download both again")
    shared = Counter(title[code] for code in codes)
    return codes, [title[code] if shared[title[code]] == 1 else f"{title[code]} ({code})" for code in codes]


def _rows(
    path: Path, codes: list[str], others_allowed: bool
) -> tuple[Any, NDArray[np.int64], NDArray[np.int64], NDArray[np.int8]]:
    """The distinct images, and the image, class and value of every row that is about one of the classes."""
    source = Manifest(path, ",")
    for name in _COLUMNS:
        source.check_column(name, "a column of Open Images")
    columns = source.read(_COLUMNS[:2], _COLUMNS[2:])
    items, ids = encode(columns["ImageID"])
    classes, listed = encode(columns["LabelName"])
    confidence = columns["Confidence"].to_numpy()
    if not len(items):
        raise DataError(f"{path} has a header and no rows: download it again")
    column = pc.index_in(listed, pa.array(codes, pa.large_string())).fill_null(-1).to_numpy(zero_copy_only=False)
    labels = np.append(column, -1)[classes]
    fits = np.append(pc.match_substring_regex(ids, r"^[0-9A-Za-z_-]+$").to_numpy(zero_copy_only=False), False)
    foreign = labels < 0

    def refuse(bad: NDArray[np.bool_], name: str, what: str) -> None:
        if bad.any():
            i = int(np.argmax(bad))
            raise DataError(f"{path}: {source.place(i)}: {name} is {columns[name][i].as_py()!r:.60}: {what}")

    refuse(~fits[items], "ImageID", "not an image id: correct it or remove that line")
    refuse((confidence != 0) & (confidence != 1), "Confidence", "a verified label has 1 or 0; download it again")
    if not others_allowed:
        refuse(foreign, "LabelName", f"not among the {len(codes)} classes: download both files again")
    known = ~foreign
    return ids, items[known], labels[known], confidence[known].astype(np.int8)


def _agreed(
    items: NDArray[np.int64], labels: NDArray[np.int64], values: NDArray[np.int8], n_labels: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int8]]:
    """The cells by item and label, each once, without those that the rows contradict."""
    key = items * n_labels + labels
    if not (key[1:] > key[:-1]).all():
        order = np.argsort(key, kind="stable")
        key, values = key[order], values[order]
        starts = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
        low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
        key, values = key[starts][low == high], low[low == high]
    item, label = np.divmod(key, n_labels)
    return item, label, values
