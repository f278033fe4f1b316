"""Merge people's answers into a table of labels."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from steelyard.data.label_studio import read_annotations
from steelyard.data.review import VALUES, Answer, read_answers, settled
from steelyard.labels import UNKNOWN, Labels

_MOST_NAMED = 20
KINDS = ("present", "absent", "unknown", "confirmed")
"""Effects of an answer on a label: it becomes present, absent or unknown, or stays as it was."""


@dataclass(frozen=True)
class Corrections:
    """Changes that a file of answers made to a table of labels."""

    source: str
    """The file of answers."""
    fingerprint: str
    """The SHA-256 of its content."""
    elsewhere: int
    """Number of answers about items that the table does not have."""
    by_label: Mapping[str, Mapping[str, int]]
    """Number of answers by label and effect, see `KINDS`."""

    @property
    def changed(self) -> int:
        """The number of labels of items that differ from before."""
        return sum(n for counts in self.by_label.values() for kind, n in counts.items() if kind != "confirmed")

    @property
    def sentences(self) -> list[str]:
        """The changes in words: in all, then label by label."""
        confirmed = sum(counts["confirmed"] for counts in self.by_label.values())
        lines = [f"Corrections of {self.source}: {self.changed:,} labels of items changed, {confirmed:,} confirmed."]
        most = sorted(self.by_label.items(), key=lambda pair: (-sum(pair[1].values()), pair[0]))
        for name, counts in most[:_MOST_NAMED]:
            lines.append(f"  {name}: " + ", ".join(f"{counts[kind]:,} {kind}" for kind in KINDS if counts[kind]))
        if len(most) > _MOST_NAMED:
            lines.append(f"  and {len(most) - _MOST_NAMED:,} more labels")
        if self.elsewhere:
            who = "1 answer is about an item" if self.elsewhere == 1 else f"{self.elsewhere:,} answers are about items"
            lines.append(f"  {who} that {'is' if self.elsewhere == 1 else 'are'} not here, and not used.")
        return lines


def read_corrections(path: str | Path) -> dict[tuple[str, str], Answer]:
    """Return the answer that counts for each item and label of a CSV file, or of an export of Label Studio (.json)."""
    answers = read_annotations(path) if Path(path).suffix.lower() == ".json" else read_answers(path)
    if not answers:
        raise ValueError(f"{path} holds no answers: give a file with some, or leave it out")
    return settled(answers)


def corrected(labels: Labels, path: str | Path) -> tuple[Labels, Corrections]:
    """Return a table of labels with the answers of a file merged in: y 1, n 0, ? unknown; and what changed.

    Answers about items that the table does not have are counted and not used; a label that it does not have is
    refused, and so is a file of which no answer is about an item of the table.
    """
    answers = read_corrections(path)
    place = {name: c for c, name in enumerate(labels.names)}
    for _, name in answers:
        if name not in place:
            meant = get_close_matches(name, labels.names, 1)
            hint = f"did you mean {meant[0]!r}?" if meant else "give answers about the labels of the data"
            raise ValueError(f"{path} has an answer about label {name!r:.80}, which the data does not have: {hint}")
    keys = list(answers)
    index = pc.index_in(pa.array([id for id, _ in keys], pa.large_string()), value_set=labels.ids.arrow)
    rows = index.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    if keys and (rows < 0).all():
        lacks = f"no answer about an item of the data, whose first id is {labels.ids[0]!r:.80}"
        raise ValueError(f"{path} has {lacks}: give answers to questions about this data")
    here = rows >= 0
    columns = np.array([place[name] for _, name in keys], np.int64)[here]
    values = np.array([VALUES[answers[key].answer] for key in keys], np.int64)[here]
    before = _values_at(labels, rows[here], columns)
    by_label: dict[str, dict[str, int]] = {}
    for column, old, new in zip(columns.tolist(), before.tolist(), values.tolist(), strict=True):
        counts = by_label.setdefault(labels.names[column], dict.fromkeys(KINDS, 0))
        counts["confirmed" if old == new else {1: "present", 0: "absent", UNKNOWN: "unknown"}[new]] += 1
    with Path(path).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    report = Corrections(str(path), digest, int((~here).sum()), by_label)
    return _merged(labels, rows[here], columns, values), report


def answered(labels: Labels, path: str | Path) -> np.ndarray:
    """Return which labels of the table a file has answers about, bool (N, L); "?" is an answer, too."""
    row, column = ({name: k for k, name in enumerate(names)} for names in (labels.ids, labels.names))
    mask = np.zeros((len(labels), labels.n_labels), bool)
    for id, name in read_corrections(path):
        if id in row and name in column:
            mask[row[id], column[name]] = True
    return mask


def _values_at(labels: Labels, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the values of some cells; few rows are dense at a time."""
    values = [np.zeros(0, np.int8)]
    for part in np.array_split(np.arange(len(rows)), max(1, len(rows) * labels.n_labels >> 22)):
        values.append(labels.rows(rows[part])[np.arange(len(part)), columns[part]])
    return np.concatenate(values)


def _merged(labels: Labels, rows: np.ndarray, columns: np.ndarray, values: np.ndarray) -> Labels:
    """Return the table with other values at some distinct cells."""
    items, places, old = labels.cells()
    width = labels.n_labels
    kept = ~np.isin(items.astype(np.int64) * width + places, rows * width + columns)
    pairs = ((items, rows), (places, columns), (old, values.astype(old.dtype)))
    row, column, value = (np.concatenate([before[kept], new]) for before, new in pairs)
    merged = Labels.from_cells(row, column, value, (labels.n_items, width), labels.fill, labels.names, labels.ids)
    return merged.grouped(labels.item_groups)
