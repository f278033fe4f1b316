"""Read names of labels that the data gives as ids."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steelyard.data.files import DataError, PathLike, listed, read_json, read_text
from steelyard.labels import Labels

_IDS = ("id", "label_id", "class_id", "category_id", "labelname", "mid", "index")
_NAMES = ("name", "class_name", "label_name", "display_name", "displayname", "class", "label")


def named_labels(labels: Labels, file: PathLike) -> tuple[Labels, str]:
    """Return the labels by the names in `file`, and a note about it; a label it does not have keeps its id.

    file: CSV, one `id,name` per line with or without a header; or JSON: {"1": "cat", …}, a list of names (the ids are
        then 0, 1, …), or a list of objects with "id" and "name", also under "categories" as in COCO's files.
    """
    names = read_class_names(file)
    known = set(names.values())
    strange = [label for label in labels.names if label not in names and label not in known]
    if len(strange) == labels.n_labels:
        sets = f"({listed(labels.names, 4)}) is among its ids ({listed(list(names), 4)})"
        raise DataError(f"{file}: none of the labels of the data {sets}: give the names of these labels")
    given = [names.get(label, label) for label in labels.names]
    called: dict[str, str] = {}
    for label, name in zip(labels.names, given, strict=True):
        if called.setdefault(name, label) != label:
            both = f"{called[name]!r} and {label!r} are both called {name!r}"
            raise DataError(f"{file}: the labels {both}: give each its own name")
    lacks = f" It has no name for {listed(strange)}." if strange else ""
    return labels.renamed(given), f" Labels are named by {file}.{lacks}"


def read_class_names(file: PathLike) -> dict[str, str]:
    """Return the names in a CSV or JSON file by id; see `named_labels`."""
    names = _from_json(file) if Path(file).suffix.lower() == ".json" else _from_csv(file)
    if not names:
        raise DataError(f'{file} names no label: write id,name lines (CSV) or {{"id": "name"}} (JSON)')
    return names


def _from_json(file: PathLike) -> dict[str, str]:
    content = read_json(file)
    if isinstance(content, Mapping) and isinstance(content.get("categories"), list):
        content = content["categories"]
    if isinstance(content, Mapping):
        pairs: list[tuple[Any, Any]] = list(content.items())
    elif isinstance(content, list) and all(isinstance(entry, Mapping) for entry in content):
        pairs = [(entry.get("id"), entry.get("name")) for entry in content]
    elif isinstance(content, list):
        pairs = list(enumerate(content))
    else:
        pairs = [(None, None)]
    for id, name in pairs:
        if not isinstance(id, str | int) or not isinstance(name, str) or not name.strip():
            remedy = 'write {"1": "cat", …}, a list of names, or a list of {"id": 1, "name": "cat"}'
            raise DataError(f"{file}: the entry {id!r:.40}: {name!r:.40} is not an id with its name: {remedy}")
    return _distinct([(str(id).strip(), name.strip()) for id, name in pairs], file)


def _from_csv(file: PathLike) -> dict[str, str]:
    text = read_text(file)
    delimiter = max((",", "\t", ";"), key=text.split("\n", 1)[0].count)
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)]
    rows = [row for row in rows if any(row)]
    header = [cell.lower() for cell in rows[0]] if rows else []
    id_at = next((i for i, cell in enumerate(header) if cell in _IDS), 0)
    name_at = next((i for i, cell in enumerate(header) if cell in _NAMES and i != id_at), 1)
    has_header = bool({*_IDS, *_NAMES} & set(header))
    pairs = []
    for row in rows[has_header:]:
        if len(row) <= max(id_at, name_at) or not row[name_at]:
            raise DataError(f"{file}: {row!r:.80} is not an id with its name: write id,name in every line")
        pairs.append((row[id_at], row[name_at]))
    return _distinct(pairs, file)


def _distinct(pairs: list[tuple[str, str]], file: PathLike) -> dict[str, str]:
    names: dict[str, str] = {}
    for id, name in pairs:
        if names.setdefault(id, name) != name:
            raise DataError(f"{file}: the id {id!r} is named {names[id]!r} and {name!r}: name it once")
    return names
