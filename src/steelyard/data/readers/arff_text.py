"""The text of an ARFF file: attributes with their types, and rows of numbers, dense or sparse."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from steelyard.data.files import DataError, PathLike, read_text

Table: TypeAlias = NDArray[np.float32]

# quantifiers are possessive: a long line that does not match must not be tried in every way
_NUMBER = r"[+-]?(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?"
_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_IS_NUMBER = re.compile(_NUMBER)
_DATA = re.compile(r"(?im)^[ \t]*@data[ \t]*(?:%.*)?$")
_NAME = re.compile(rf"({_QUOTED}|[^\s'\"{{][^\s{{]*)\s*(.*)")
_VALUE = re.compile(rf"\s*+({_QUOTED}|[^,'\"\s]*+(?:\s++[^,'\"\s]++)*+)\s*+(,|$)")
_PAIR = re.compile(rf"\s*+0*([0-9]{{1,18}})\s++({_QUOTED}|[^,\s'\"]++)\s*+(?:,|$)")
_DENSE_ROW = re.compile(rf"{_NUMBER}(?:[ \t]*+,[ \t]*+{_NUMBER})*+")
_CELL = rf"[ \t]*+[0-9]++[ \t]++{_NUMBER}[ \t]*+"
_SPARSE_ROW = re.compile(rf"\{{(?:{_CELL}(?:,{_CELL})*+|[ \t]*+)\}}")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


@final
@dataclass(frozen=True)
class Attribute:
    """A column: its name and, where it is nominal, its categories in the order in which the file declares them."""

    name: str
    categories: tuple[str, ...] | None

    @property
    def symbolic(self) -> bool:
        """Whether some category is not a number."""
        return self.categories is not None and not all(_IS_NUMBER.fullmatch(value) for value in self.categories)

    @property
    def codes(self) -> dict[str, float]:
        """The number that stands for each category: itself, or its place in the declaration where one is symbolic."""
        listed = self.categories or ()
        return {value: float(i if self.symbolic else value) for i, value in enumerate(listed)}


def read_arff(path: PathLike) -> tuple[str, list[Attribute], Table]:
    """Return the name of the relation, the attributes, and the rows (N, A) as numbers, NaN where a value is missing.

    A cell that a sparse row leaves out is 0, or the first category where the attribute is nominal (Weka's rule).
    """
    text = read_text(path)
    if (data := _DATA.search(text)) is None:
        raise DataError(f"{path} has no @data line: it is cut off or no ARFF file, fetch it again")
    header = text[: data.start()]
    relation, attributes = _header(header.split("\n"), path)
    first = header.count("\n") + 2
    numbered = [(i, line.strip()) for i, line in enumerate(text[data.end() + 1 :].split("\n"), first)]
    rows = [(i, line) for i, line in numbered if line and not line.startswith("%")]
    if not rows:
        raise DataError(f"{path} has no rows after line {first - 1}, @data: it is cut off, fetch it again")
    lines, texts = [i for i, _ in rows], [line for _, line in rows]
    if not any(attribute.symbolic for attribute in attributes):
        width = len(attributes) - 1
        if all(_DENSE_ROW.fullmatch(row) and row.count(",") == width for row in texts):
            table = _single(_numbers(texts)).reshape(len(texts), -1)
            return relation, attributes, _checked(table, attributes, lines, path)
        if all(_SPARSE_ROW.fullmatch(row) for row in texts):
            return relation, attributes, _checked(_sparse(texts, attributes, lines, path), attributes, lines, path)
    return relation, attributes, _careful(rows, attributes, path)


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
            _fail(path, i, f"{line.strip()!r:.60} is no @relation, @attribute or @data")
    if not attributes:
        raise DataError(f"{path} declares no @attribute: it is no ARFF file of a data set, fetch it again")
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


def _sparse(rows: Sequence[str], attributes: Sequence[Attribute], lines: Sequence[int], path: PathLike) -> Table:
    n_pairs = np.array([row.count(",") + (row.strip("{} \t") != "") for row in rows])
    pairs = _numbers(row[1:-1] for row in rows).reshape(-1, 2)
    row = np.repeat(np.arange(len(rows)), n_pairs)
    if (bad := np.flatnonzero(pairs[:, 0] >= len(attributes))).size:
        shown = f"{pairs[bad[0], 0]:g} is not below {len(attributes)}, the number of attributes"
        _fail(path, lines[row[bad[0]]], f"the index {shown}")
    column = pairs[:, 0].astype(np.int64)
    key = row * len(attributes) + column
    if len(np.unique(key)) < len(key):
        order = np.argsort(key, kind="stable")
        i = order[1:][key[order[1:]] == key[order[:-1]]].min()
        _fail(path, lines[row[i]], f"the index {column[i]} stands twice")
    table = np.tile(_left_out(attributes), (len(rows), 1))
    table[row, column] = _single(pairs[:, 1])
    return table


def _numbers(texts: Iterable[str]) -> NDArray[np.float64]:
    """The numbers of texts that were found to hold numbers, commas and white space only."""
    joined = " ".join(texts).replace(",", " ").strip()
    return np.fromstring(joined, np.float64, sep=" ") if joined else np.zeros(0)


def _single(numbers: NDArray[np.float64]) -> Table:
    """The numbers in single precision, infinite where they are too large for it."""
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)


def _left_out(attributes: Sequence[Attribute]) -> Table:
    return _single(np.array([next(iter(attribute.codes.values()), 0.0) for attribute in attributes]))


def _checked(table: Table, attributes: Sequence[Attribute], lines: Sequence[int], path: PathLike) -> Table:
    """Refuse a number that single precision cannot hold, or that is none of the categories of its attribute."""
    if len(bad := np.argwhere(np.isinf(table))):
        _fail(path, lines[bad[0][0]], f"{attributes[bad[0][1]].name!r:.60} is too large a number")
    alike: dict[tuple[str, ...], list[int]] = {}
    for j, attribute in enumerate(attributes):
        if attribute.categories is not None and not attribute.symbolic:
            alike.setdefault(attribute.categories, []).append(j)
    for categories, columns in alike.items():
        known = _single(np.array([float(value) for value in categories]))
        bad = np.argwhere(~np.isin(table[:, columns], known) & ~np.isnan(table[:, columns]))
        if len(bad):
            i, j = bad[0][0], columns[bad[0][1]]
            shown = f"{table[i, j]:g}, none of its categories {_listed(categories):.60}"
            _fail(path, lines[i], f"{attributes[j].name!r:.60} is {shown}")
    return table


def _careful(rows: Sequence[tuple[int, str]], attributes: Sequence[Attribute], path: PathLike) -> Table:
    """Read row by row what holds quotes, symbols or missing values, and name the line that is wrong."""
    codes = [attribute.codes if attribute.symbolic else None for attribute in attributes]
    table = np.tile(_left_out(attributes), (len(rows), 1))
    for i, (line, text) in enumerate(rows):
        numbers = table[i].astype(np.float64)
        if text.startswith("{"):
            cells = _split_sparse(text, len(attributes), path, line)
        else:
            values = _split(text)
            if values is None or len(values) != len(attributes):
                found = "badly quoted values" if values is None else f"{len(values)} values"
                _fail(path, line, f"{found} for {len(attributes)} attributes")
            cells = dict(enumerate(values))
        for j, value in cells.items():
            numbers[j] = _cell(value, attributes[j].name, codes[j], path, line)
        table[i] = _single(numbers)
    return _checked(table, attributes, [line for line, _ in rows], path)


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


def _split_sparse(text: str, n_attributes: int, path: PathLike, line: int) -> dict[int, str]:
    cells: dict[int, str] = {}
    if not text.endswith("}"):
        _fail(path, line, "a sparse row begins with { and does not end with }: it is cut off")
    inside, at = text[1:-1].strip(), 0
    while at < len(inside):
        if (match := _PAIR.match(inside, at)) is None:
            _fail(path, line, f"{inside[at:].strip()!r:.40} is no pair of index and value")
        index, at = int(match[1]), match.end()
        if index >= n_attributes or index in cells:
            fault = "stands twice" if index in cells else f"is not below {n_attributes}, the number of attributes"
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
    raise DataError(f"{Path(path)}: line {line}: {fault}: correct that line or fetch the file again")
