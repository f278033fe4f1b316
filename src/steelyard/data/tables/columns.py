"""What the columns of a manifest look like: the kind of their cells, and what their names say."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from steelyard.data.images import EXTENSIONS
from steelyard.data.parts import WORDS
from steelyard.data.tables.manifest import BLANK, encode
from steelyard.data.tables.words import value_of, without_decimals

PATHS = {"path", "file", "filename", "filepath", "image", "img", "imagepath", "imagefile", "imagename", "photo"}
IDS = {
    "id",
    "item",
    "itemid",
    "imageid",
    "imgid",
    "key",
    "uid",
    "name",
    "index",
    "sample",
    "sampleid",
    "unnamed0",
} | PATHS
LABELS = {"label", "labelname", "class", "classe", "classname", "category", "categorie", "tag", "attribute", "concept"}
LABELS |= {"topic", "genre", "keyword", "annotation", "target"}
LABELS |= {name + "s" for name in LABELS}
VALUES = {"value", "confidence", "present", "presence", "score", "state", "verified", "positive"}
SPLITS = {"split", "subset", "fold", "set", "part", "partition", "phase", "usage", "dataset", "datasplit", "splitset"}
FOLDS = {"fold", "kfold", "cvfold", "split"}


def kind_of(column: Any) -> str:
    """Say what the cells of a column look like: blank, label, number, text, list, vector, other."""
    column = without_decimals(column)
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = kind.value_type
        if pa.types.is_string(inner) or pa.types.is_large_string(inner):
            return "list"
        return "vector" if pa.types.is_integer(inner) or pa.types.is_floating(inner) else "other"
    if pa.types.is_boolean(kind):
        return "label"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        values = np.unique(column.drop_null().to_numpy(zero_copy_only=False))
        values = values[~np.isnan(values)]
        return "blank" if not len(values) else "label" if np.isin(values, (-1, 0, 1)).all() else "number"
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind)):
        return "blank" if pa.types.is_null(kind) else "other"
    words = encode(column)[1].to_pylist()
    words = [word for word in words if word not in BLANK]
    if not words:
        return "blank"
    if len(words) < 32 and {value_of(word) for word in words} <= {-1.0, 0.0, 1.0}:
        return "label"
    return "number" if is_numeric(pa.array(words)) else "text"


def is_numeric(column: Any) -> bool:
    """Can every cell be a feature?"""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = pc.utf8_trim_whitespace(column)
    try:
        column.cast(pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return bool(column.null_count == 0)


def mostly_values(column: Any) -> bool:
    """Do at least half of the cells that are not blank say 1, 0 or −1, the others at most three other things?"""
    column = without_decimals(column)
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        numbers = column.drop_null().to_numpy(zero_copy_only=False)
        said, times = np.unique(numbers[~np.isnan(numbers)], return_counts=True)
        hard = np.isin(said, (-1, 0, 1))
    else:
        codes, texts = encode(column)
        words = texts.to_pylist()
        times = np.bincount(codes[codes >= 0], minlength=len(words)) * np.array([word not in BLANK for word in words])
        hard = np.array([value_of(word) in (-1, 0, 1) for word in words])
    return bool(2 * times[hard].sum() >= times.sum() and np.count_nonzero(times[~hard]) <= 3)


def plain(name: str) -> str:
    """The name of a column in lower case without marks and spaces, as in the sets of names above."""
    return re.sub(r"[\W_]", "", name).lower()


def family(name: str) -> str:
    """The name of a column without the number at its end; nothing if it has none."""
    found = re.fullmatch(r"(.*?)\d+", name, re.S)
    return found[1] + "#" if found else ""


def looks_like_files(column: Any) -> bool:
    """Do most of the first cells end as the names of image files do?"""
    cells = [text.lower() for text in encode(column)[1][:20].to_pylist()]
    return 2 * sum(1 for cell in cells if cell.endswith(EXTENSIONS)) > len(cells)


def tells_parts(column: Any) -> bool:
    """Are most of the different texts in a column names of parts, such as train and val?"""
    words = [text.lower() for text in encode(column)[1].to_pylist()]
    return 2 * sum(word in WORDS for word in words) > len(words)


def repeats(column: Any) -> bool:
    """Does a text occur twice?"""
    codes, texts = encode(column)
    return bool(len(texts) < len(codes))
