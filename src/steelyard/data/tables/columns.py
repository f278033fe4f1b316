"""Kinds of the columns of a manifest, by their cells and their names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from steelyard.data.files import quoted
from steelyard.data.images import EXTENSIONS
from steelyard.data.parts import WORDS
from steelyard.data.tables.manifest import BLANK, NUMBER, Manifest, encode
from steelyard.data.tables.values import is_list, is_number, is_text, value_of, without_decimals

PATHS = {"path", "file", "filename", "filepath", "image", "img", "imagepath", "imagefile", "imagename", "photo"}
IDS = {"id", "item", "itemid", "imageid", "imgid", "key", "uid", "name", "index", "sample", "sampleid", "unnamed0"}
IDS |= PATHS
LABELS = {"label", "labelname", "class", "classe", "classname", "category", "categorie", "tag", "attribute", "concept"}
LABELS |= {"topic", "genre", "keyword", "annotation", "target"}
LABELS |= {name + "s" for name in LABELS}
VALUES = {"value", "confidence", "present", "presence", "score", "state", "verified", "positive"}
SPLITS = {"split", "subset", "fold", "set", "part", "partition", "phase", "usage", "dataset", "datasplit", "splitset"}
FOLDS = {"fold", "kfold", "cvfold", "split"}


class Columns:
    """The beginning of every column of a manifest, the kinds of their cells, and which of them have a part already.

    source: the manifest; one whose first row is an item already is refused.
    taken: the names of columns that have a part.
    """

    def __init__(self, source: Manifest, taken: Iterable[str]) -> None:
        self.source, self.taken = source, set(taken)
        self.cells = source.sample()
        self.kinds = {name: kind_of(column) for name, column in self.cells.items()}
        for name, column in self.cells.items():
            if name.lower().endswith(EXTENSIONS) and self.kinds[name] == "text" and looks_like_files(column):
                raise source.error(f"the first row holds {name!r}, so it is no header: add one, e.g. image,label")

    def free(self, *kinds: str) -> list[str]:
        """Return the columns of these kinds that have a name and no part yet."""
        others = self.taken | self.source.unnamed
        return [name for name, kind in self.kinds.items() if kind in kinds and name not in others]

    def take(self, name: str | None) -> str | None:
        """Note that a column has a part, and return it."""
        if name is not None:
            self.taken.add(name)
        return name

    def split_column(self) -> str | None:
        """Return the column whose name and cells tell the splits."""
        return next((c for c in self.free("text") if plain(c) in SPLITS and tells_parts(self.cells[c])), None)

    def path_column(self) -> str | None:
        """Return the column whose cells end as image files do, else one whose name says so."""
        texts = self.free("text")
        by_name = (name for name in texts if plain(name) in PATHS)
        return next((name for name in texts if looks_like_files(self.cells[name])), next(by_name, None))

    def id_column(self, path: str | None) -> str | None:
        """Return the column that is named as ids are; failing that, the first one, if it can only be that."""
        first = self.source.columns[0]
        if first not in self.taken and plain(first) in IDS:
            return first
        if named := [name for name in self.free("text", "number") if plain(name) in IDS]:
            return named[0]
        if path is not None or first in self.taken or plain(first) in LABELS:
            return None
        may_be = ("text", "number", "label") if first in self.source.unnamed else ("text",)
        others = any(kind in ("text", "list", "label") for name, kind in self.kinds.items() if name != first)
        return first if others and self.kinds[first] in may_be else None


def kind_of(column: Any) -> str:
    """Return what the cells of a column look like: blank, label, number, text, list, vector, other."""
    column = without_decimals(column)
    kind = column.type
    if is_list(kind):
        return "list" if is_text(kind.value_type) else "vector" if is_number(kind.value_type) else "other"
    if pa.types.is_boolean(kind):
        return "label"
    if is_number(kind):
        times, hard = _tally(column)
        return "blank" if not len(times) else "label" if hard.all() else "number"
    if not is_text(kind):
        return "blank" if pa.types.is_null(kind) else "other"
    words = [word for word in encode(column)[1].to_pylist() if word not in BLANK]
    if not words:
        return "blank"
    if len(words) < 32 and {value_of(word) for word in words} <= {-1.0, 0.0, 1.0}:
        return "label"
    return "number" if is_numeric(pa.array(words)) else "text"


def is_numeric(column: Any) -> bool:
    """Return whether every cell can be a feature."""
    kind = column.type
    if is_text(kind):
        fits = pc.all(_are_numbers(column)).as_py() is not False
    else:
        fits = is_number(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind)
    return bool(fits and column.null_count == 0)


def _are_numbers(column: Any) -> Any:
    """Return whether each text is a number."""
    cells = pc.utf8_trim_whitespace(column.cast(pa.string()))
    return pc.match_substring_regex(cells, f"^(?:{NUMBER})$", ignore_case=True)


def mostly_values(column: Any) -> bool:
    """Return whether at least half of the non-blank cells say 1, 0 or −1, and the others at most three other values."""
    times, hard = _tally(without_decimals(column))
    return bool(2 * times[hard].sum() >= times.sum() and np.count_nonzero(times[~hard]) <= 3)


def _tally(column: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return how often each distinct non-blank cell occurs, and whether its value is 1, 0 or −1."""
    if is_number(column.type):
        numbers = column.drop_null().to_numpy(zero_copy_only=False)
        values, times = np.unique(numbers[~np.isnan(numbers)], return_counts=True)
        return times, np.isin(values, (-1, 0, 1))
    codes, texts = encode(column)
    words = texts.to_pylist()
    filled = np.array([word not in BLANK for word in words], bool)
    hard = np.array([value_of(word) in (-1, 0, 1) for word in words], bool)
    return np.bincount(codes[codes >= 0], minlength=len(words))[filled], hard[filled]


def plain(name: str) -> str:
    """Return the name of a column in lower case without marks and spaces, as in the sets of names above."""
    return re.sub(r"[\W_]", "", name).lower()


def family(name: str) -> str:
    """Return the name of a column without the number at its end; "" if it has none."""
    match = re.fullmatch(r"(.*?)\d+", name, re.S)
    return match[1] + "#" if match else ""


def looks_like_files(column: Any) -> bool:
    """Return whether most of the first cells end like names of image files."""
    cells = [text.lower() for text in encode(column)[1][:20].to_pylist()]
    return 2 * sum(1 for cell in cells if cell.endswith(EXTENSIONS)) > len(cells)


def tells_parts(column: Any) -> bool:
    """Return whether most of the distinct texts in a column are names of splits, such as train and val."""
    words = [text.lower() for text in encode(column)[1].to_pylist()]
    return 2 * sum(word in WORDS for word in words) > len(words)


def repeats(column: Any) -> bool:
    """Return whether a text occurs twice."""
    codes, texts = encode(column)
    return bool(len(texts) < len(codes))


def about_types(source: Manifest, unused: Iterable[str]) -> str:
    """Name the unused columns of a Parquet file whose type can hold neither labels nor features here."""
    types = source.types()
    strange = [name for name in unused if name in types and _is_strange(types[name])]
    if not strange:
        return ""
    shown = ", ".join(f"{quoted(name)} ({types[name]})" for name in strange[:6]) + (", …" if len(strange) > 6 else "")
    remedy = "write 0 and 1 for labels, numbers for features, texts for names"
    return f" Beware: {shown} can be neither label nor feature by type: {remedy}."


def _is_strange(kind: Any) -> bool:
    if is_list(kind):
        return _is_strange(kind.value_type)
    plain_types = is_number(kind) or is_text(kind) or pa.types.is_decimal(kind)
    return not (plain_types or pa.types.is_boolean(kind) or pa.types.is_null(kind))


def is_category(column: Any) -> bool:
    """Return whether the cells are texts, none of them a number: as an input, such a column holds categories."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not is_text(kind):
        return False
    filled = pc.not_equal(pc.utf8_trim_whitespace(column.cast(pa.string())), "")
    return bool(pc.any(filled).as_py()) and not pc.any(_are_numbers(column)).as_py()
