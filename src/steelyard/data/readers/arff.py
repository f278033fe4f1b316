"""Multi-label ARFF files as Mulan and MEKA write them; an XML file or `-C` tells which attributes are labels."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from steelyard.data.dataset import ArrayDataset
from steelyard.data.files import DataError, PathLike, Values, check_distinct, read_bytes
from steelyard.data.readers.arff_text import Attribute, Table, read_arff
from steelyard.labels import UNKNOWN, Labels

_TRUTH = {"0": 0, "1": 1, "false": 0, "true": 1, "no": 0, "yes": 1}


def arff(path: PathLike, xml: PathLike | None = None) -> ArrayDataset:
    """Return the features, float32, and the labels of a dense or sparse ARFF file.

    Labels come in the order of their columns. A number, or a nominal value that is written as one, is itself; a
    nominal attribute of two symbols is 0 for the first and 1 for the second, one of more becomes a column a symbol. A
    missing value (`?`) is NaN among the features and unknown among the labels. A cell that a sparse row leaves out is
    0, or the first category of a nominal attribute.

    Arguments: `path`; `xml`, Mulan's file of label names: when not given, the one of the same stem, or of the stem
    before `-train` or `-test`, is taken; where there is none, MEKA's `-C n` in the @relation says that the first n
    attributes (the last, for a negative n) are the labels.
    """
    relation, attributes, table = read_arff(path)
    file = Path(xml) if xml is not None else _xml_beside(Path(path))
    chosen = _named(file, attributes, path) if file is not None else _counted(relation, attributes, path)
    labels = np.stack([_label(attributes[j], table[:, j], path) for j in chosen], axis=1)
    columns = [_feature(attributes[j], table[:, [j]]) for j in range(len(attributes)) if j not in set(chosen)]
    if not columns:
        raise DataError(f"{path}: every attribute is a label, nothing is left to learn from: correct the XML or -C")
    return ArrayDataset(np.concatenate(columns, axis=1), Labels(labels, [attributes[j].name for j in chosen]))


def _xml_beside(path: Path) -> Path | None:
    stems = [path.stem, re.sub(r"-(train|test)$", "", path.stem)]
    return next((found for stem in stems if (found := path.with_name(f"{stem}.xml")).is_file()), None)


def _named(file: Path, attributes: Sequence[Attribute], path: PathLike) -> list[int]:
    """The columns of the labels that the XML file names, also where it nests them in one another."""
    try:
        root = ElementTree.fromstring(read_bytes(file))
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # LookupError: an encoding of no such name
        raise DataError(f"{file} is no XML ({error!s:.120}): it is cut off or damaged, fetch it again") from None
    names = [element.get("name", "") for element in root.iter() if element.tag.rpartition("}")[2] == "label"]
    if not names:
        raise DataError(f"{file} names no label: it must hold <label name=…> elements")
    check_distinct(names, file, "the label")
    column = {attribute.name: j for j, attribute in enumerate(attributes)}
    for name in names:
        if name not in column:
            raise DataError(f"{file} names the label {name!r:.60}, which {path} has no attribute for: fetch both again")
    return sorted(column[name] for name in names)


def _counted(relation: str, attributes: Sequence[Attribute], path: PathLike) -> list[int]:
    """The columns of the labels that MEKA's `-C n` counts off."""
    match = re.search(r"(?:^|[\s:])-C\s+(-?[0-9]+)", relation)
    if match is None:
        raise DataError(f"{path}: no XML file beside it and no -C in its @relation tell the labels: give xml=")
    n, places = int(match[1][:12]), list(range(len(attributes)))
    if n == 0 or abs(n) > len(places):
        raise DataError(f"{path}: its @relation says -C {n}, but there are {len(places)} attributes: correct it")
    return places[:n] if n > 0 else places[n:]


def _label(attribute: Attribute, column: Table, path: PathLike) -> Values:
    categories = attribute.categories or ("0", "1")
    meaning = {code: _TRUTH.get(value.lower()) for value, code in attribute.codes.items()} or {0.0: 0, 1.0: 1}
    if attribute.symbolic and None in meaning.values():
        raise DataError(f"{path}: the label {attribute.name!r:.60} has categories {categories!r:.60}: it needs 0 and 1")
    values = np.full(len(column), UNKNOWN, np.int8)
    for code, value in meaning.items():
        if value is not None:
            values[column == code] = value
    if (bad := np.flatnonzero((values == UNKNOWN) & ~np.isnan(column))).size:
        shown = f"{column[bad[0]]:g} in row {bad[0] + 1}"
        raise DataError(f"{path}: the label {attribute.name!r:.60} is {shown}: it must be 1 present, 0 absent or ?")
    return values


def _feature(attribute: Attribute, column: Table) -> Table:
    """A column of features as numbers: (N, 1), or (N, n) for a nominal attribute of n > 2 symbols."""
    if not attribute.symbolic or len(attribute.codes) <= 2:
        return column
    places = np.array(list(attribute.codes.values()), np.float32)
    return np.where(np.isnan(column), np.nan, column == places).astype(np.float32)
