"""Multi-label ARFF files as Mulan and MEKA write them; an XML file or `-C` tells which attributes are labels."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from steelyard.data.dataset import ArrayDataset
from steelyard.data.files import DataError, PathLike, Values, check_distinct, read_bytes, read_text
from steelyard.labels import UNKNOWN, Labels

Table: TypeAlias = NDArray[np.float32]

# quantifiers are possessive, so that a long line without a match is not tried in every way
_NUMBER = r"[+-]?(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?"
_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_IS_NUMBER = re.compile(_NUMBER)
_DATA = re.compile(r"(?im)^[ \t]*@data[ \t]*(?:%.*)?$")
_NAME = re.compile(rf"({_QUOTED}|[^\s'\"{{][^\s{{]*)\s*(.*)")
_VALUE = re.compile(rf"\s*+({_QUOTED}|[^,'\"\s]*+(?:\s++[^,'\"\s]++)*+)\s*+(,|$)")
_PAIR = re.compile(rf"\s*+0*([0-9]{{1,18}})\s++({_QUOTED}|[^,\s'\"]++)\s*+(?:,|$)")
_DENSE_ROW = re.compile(rf"{_NUMBER}(?:[ \t]*+,[ \t]*+{_NUMBER})*+")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_TRUTH = {"0": 0, "1": 1, "false": 0, "true": 1, "no": 0, "yes": 1}


def arff(path: PathLike, xml: PathLike | None = None) -> ArrayDataset:
    r"""Return features (float32) and labels of a dense or sparse ARFF file.

    Labels keep the order of their columns. Numeric values, and nominal values written as numbers, are taken as they
    are; a nominal attribute with two symbols becomes 0 and 1, one with more becomes one column per symbol. A missing
    value (`?`) is NaN in features and unknown in labels. A cell that a sparse row omits is 0, or the first category of
    a nominal attribute.

    Args:
        path: the ARFF file.
        xml: Mulan's file of label names. By default the file of the same stem, or of the stem before `-train` or
            `-test`. If there is none, MEKA's `-C n` in the @relation marks the first n attributes (the last, for
            negative n) as labels.
    Examples:
        >>> from pathlib import Path
        >>> header = "@relation 'pets: -C 2'\n@attribute cat {0,1}\n@attribute dog {0,1}\n@attribute weight numeric\n"
        >>> _ = Path("pets.arff").write_text(header + "@data\n1,0,4.5\n0,1,20\n")
        >>> data = sy.data.arff("pets.arff")
        >>> data.inputs.tolist(), data.labels.names
        ([[4.5], [20.0]], ('cat', 'dog'))
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
    return next((file for stem in stems if (file := path.with_name(f"{stem}.xml")).is_file()), None)


def _named(file: Path, attributes: Sequence[Attribute], path: PathLike) -> list[int]:
    """The columns of the labels that the XML file names, also where it nests them in one another."""
    try:
        root = ElementTree.fromstring(read_bytes(file))
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # LookupError: an encoding of no such name
        raise DataError(f"{file} is not XML ({error!s:.120}): it is truncated or corrupt, download it again") from None
    names = [element.get("name", "") for element in root.iter() if element.tag.rpartition("}")[2] == "label"]
    if not names:
        raise DataError(f"{file} names no label: it must hold <label name=…> elements")
    check_distinct(names, file, "the label")
    column = {attribute.name: j for j, attribute in enumerate(attributes)}
    for name in names:
        if name not in column:
            raise DataError(
                f"{file} names the label {name!r:.60}, which {path} has no attribute for: download both again"
            )
    return sorted(column[name] for name in names)


def _counted(relation: str, attributes: Sequence[Attribute], path: PathLike) -> list[int]:
    """The columns of the labels that MEKA's `-C n` counts off."""
    match = re.search(r"(?:^|[\s:])-C\s+(-?[0-9]+)", relation)
    if match is None:
        raise DataError(f"{path}: no XML file beside it and no -C in its @relation name the labels: give xml=")
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


# ---- the text of the file


@final
@dataclass(frozen=True)
class Attribute:
    """A column: its name and, where it is nominal, its categories in the order in which the file declares them."""

    name: str
    categories: tuple[str, ...] | None

    @property
    def symbolic(self) -> bool:
        """True if some category is not a number."""
        return self.categories is not None and not all(_IS_NUMBER.fullmatch(value) for value in self.categories)

    @property
    def codes(self) -> dict[str, float]:
        """Number of each category: its own value, or its position in the declaration if any category is symbolic."""
        listed = self.categories or ()
        return {value: float(i if self.symbolic else value) for i, value in enumerate(listed)}


def read_arff(path: PathLike) -> tuple[str, list[Attribute], Table]:
    """Return the name of the relation, the attributes, and the rows (N, A) as numbers, NaN where a value is missing.

    A cell that a sparse row leaves out is 0, or the first category where the attribute is nominal (Weka's rule).
    """
    text = read_text(path)
    if (data := _DATA.search(text)) is None:
        raise DataError(f"{path} has no @data line: it is truncated or not ARFF, download it again")
    header = text[: data.start()]
    relation, attributes = _header(header.split("\n"), path)
    first = header.count("\n") + 2
    numbered = [(i, line.strip()) for i, line in enumerate(text[data.end() + 1 :].split("\n"), first)]
    rows = [(i, line) for i, line in numbered if line and not line.startswith("%")]
    if not rows:
        raise DataError(f"{path} has no rows after line {first - 1}, @data: it is truncated, download it again")
    return relation, attributes, _table(rows, attributes, path)


def _header(lines: list[str], path: PathLike) -> tuple[str, list[Attribute]]:
    relation, attributes = "", []
    seen: dict[str, int] = {}
    for i, line in enumerate(lines, 1):
        keyword, rest = [*line.split(None, 1), "", ""][:2]
        if not keyword or keyword.startswith("%"):
            continue
        if keyword.lower() == "@relation":
            relation = _unquoted(rest.strip())
        elif keyword.lower() == "@attribute":
            attribute = _attribute(rest.strip(), path, i)
            if attribute.name in seen:
                _fail(path, i, f"the attribute {attribute.name!r:.60} was declared at line {seen[attribute.name]}")
            seen[attribute.name] = i
            attributes.append(attribute)
        else:
            _fail(path, i, f"{line.strip()!r:.60} is not @relation, @attribute or @data")
    if not attributes:
        raise DataError(f"{path} declares no @attribute: it is not an ARFF data set, download it again")
    return relation, attributes


def _attribute(text: str, path: PathLike, line: int) -> Attribute:
    match = _NAME.fullmatch(text)
    if match is None:
        _fail(path, line, f"an attribute needs a name and a type, not {text!r:.60}")
    name, kind = _unquoted(match[1]), match[2].strip()
    if kind.lower() in ("numeric", "real", "integer"):
        return Attribute(name, None)
    if not (kind.startswith("{") and kind.endswith("}")):
        _fail(path, line, f"the attribute {name!r:.60} has type {kind!r:.40}: turn it into numbers or remove it")
    listed = _split(kind[1:-1])
    values = tuple(_unquoted(value) for value in listed or ())
    if listed is None or not all(listed) or len(set(values)) < len(values):
        _fail(path, line, f"the attribute {name!r:.60} has an empty, repeated or badly quoted category")
    return Attribute(name, values)


def _table(rows: Sequence[tuple[int, str]], attributes: Sequence[Attribute], path: PathLike) -> Table:
    """The rows as numbers; a row of nothing but numbers is parsed at once, the others cell by cell."""
    codes = [attribute.codes if attribute.symbolic else None for attribute in attributes]
    plain = not any(codes)
    left_out = np.array([next(iter(attribute.codes.values()), 0.0) for attribute in attributes])
    table = np.empty((len(rows), len(attributes)), np.float32)
    for i, (line, text) in enumerate(rows):
        if plain and text.count(",") == len(attributes) - 1 and _DENSE_ROW.fullmatch(text):
            numbers = np.fromstring(text, np.float64, sep=",")
        else:
            numbers = left_out.copy()
            for j, value in _cells(text, len(attributes), path, line):
                numbers[j] = _cell(value, attributes[j].name, codes[j], path, line)
        with np.errstate(over="ignore"):  # a number too large for single precision is infinite, and refused below
            table[i] = numbers
    _check_numbers(table, attributes, [line for line, _ in rows], path)
    return table


def _check_numbers(table: Table, attributes: Sequence[Attribute], lines: Sequence[int], path: PathLike) -> None:
    """Refuse a number that single precision cannot hold, or that is none of the categories of its attribute."""
    if len(bad := np.argwhere(np.isinf(table))):
        _fail(path, lines[bad[0][0]], f"{attributes[bad[0][1]].name!r:.60} is too large a number")
    alike: dict[tuple[str, ...], list[int]] = {}
    for j, attribute in enumerate(attributes):
        if attribute.categories is not None and not attribute.symbolic:
            alike.setdefault(attribute.categories, []).append(j)
    for categories, columns in alike.items():
        with np.errstate(over="ignore"):
            known = np.array(categories, np.float64).astype(np.float32)
        bad = np.argwhere(~np.isin(table[:, columns], known) & ~np.isnan(table[:, columns]))
        if len(bad):
            i, j = bad[0][0], columns[bad[0][1]]
            shown = f"{table[i, j]:g}, none of its categories {_listed(categories):.60}"
            _fail(path, lines[i], f"{attributes[j].name!r:.60} is {shown}")


def _cell(value: str, name: str, codes: dict[str, float] | None, path: PathLike, line: int) -> float:
    if value == "?":
        return np.nan
    plain = _unquoted(value)
    if codes is None:
        if not _IS_NUMBER.fullmatch(plain):
            _fail(path, line, f"{name!r:.60} is {plain!r:.40}, not a number (a missing value is written ?)")
        return float(plain)
    if plain not in codes:
        _fail(path, line, f"{name!r:.60} is {plain!r:.40}, none of its categories {_listed(codes):.60}")
    return codes[plain]


def _cells(text: str, n_attributes: int, path: PathLike, line: int) -> Iterable[tuple[int, str]]:
    """The column and the text of each cell of a row."""
    if text.startswith("{"):
        return _sparse_cells(text, n_attributes, path, line).items()
    values = _split(text)
    if values is None or len(values) != n_attributes:
        actual = "badly quoted values" if values is None else f"{len(values)} values"
        _fail(path, line, f"{actual} for {n_attributes} attributes")
    return enumerate(values)


def _sparse_cells(text: str, n_attributes: int, path: PathLike, line: int) -> dict[int, str]:
    cells: dict[int, str] = {}
    if not text.endswith("}"):
        _fail(path, line, "a sparse row begins with { and does not end with }: it is truncated")
    inside, at = text[1:-1].strip(), 0
    while at < len(inside):
        if (match := _PAIR.match(inside, at)) is None:
            _fail(path, line, f"{inside[at:].strip()!r:.40} is not an index and a value")
        index, at = int(match[1]), match.end()
        if index >= n_attributes or index in cells:
            fault = "occurs twice" if index in cells else f"is not below {n_attributes}, the number of attributes"
            _fail(path, line, f"the index {index} {fault}")
        cells[index] = match[2]
    return cells


def _split(text: str) -> list[str] | None:
    """The values between commas, still quoted; None where the quotes do not fit."""
    if "'" not in text and '"' not in text:
        return [value.strip() for value in text.split(",")]
    values, at = [], 0
    while (match := _VALUE.match(text, at)) is not None:
        values.append(match[1])
        if not match[2]:
            return values
        at = match.end()
    return None


def _unquoted(token: str) -> str:
    if len(token) < 2 or token[0] not in "'\"" or token[-1] != token[0]:
        return token
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), token[1:-1])


def _listed(categories: Iterable[str]) -> str:
    return " ".join(", ".join(categories).split())


def _fail(path: PathLike, line: int, fault: str) -> NoReturn:
    raise DataError(f"{Path(path)}: line {line}: {fault}: correct that line or download the file again")
