"""Known labels of items in the index: those of the run's own data, matched by id."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from steelyard.data.part import aligned
from steelyard.labels import Labels
from steelyard.run.datasets import open_datasets
from steelyard.run.locate import run_config
from steelyard.search import Index

MOST_JUDGED = 20_000
"""Maximum number of items that a label is measured on; of more, an even sample is taken."""
PARTS = ("test", "validation", "training")


@final
@dataclass(frozen=True)
class Truth:
    """Labels by the part of the data they belong to, all with the labels of the index in their order.

    parts: "test", "validation" and "training", as far as they exist.
    why: a sentence on why there are none.
    """

    parts: Mapping[str, Labels]
    why: str = ""

    def of(self, id: str) -> tuple[str, NDArray[Any]] | None:
        """Return the part that an item belongs to, and its labels (L,)."""
        for part, labels in self.parts.items():
            row = pc.index(labels.ids.arrow, id).as_py()
            if row >= 0:
                return part, labels.rows(np.array([row]))[0]
        return None


class IndexTruth(NamedTuple):
    """Items of the index whose labels are known."""

    part: str
    ids: list[str]
    probabilities: NDArray[np.float32]
    """(N, L)."""
    targets: NDArray[Any]
    """(N, L)."""
    note: str


def own_truth(folder: Path, names: tuple[str, ...]) -> Truth:
    """Return the labels of the data that a run was trained, validated and tested on."""
    try:
        config = run_config(folder)
        if not config.data.path:
            return Truth({}, "This run was trained on arrays, not on files, so the labels of its items are not shown.")
        datasets = open_datasets(config.data, config.model, config.train.seed)
        by_part = {"test": datasets.test, "validation": datasets.validation, "training": datasets.train}
        parts = {k: aligned(data.labels, names, unseen="drop") for k, data in by_part.items() if data is not None}
    except (ValueError, OSError) as error:
        logging.getLogger("steelyard.serve").error("the data of the run cannot be opened: %s", error)
        return Truth({}, "The data of the run cannot be opened: the server's log says why.")
    return Truth(parts)


def index_truth(truth: Truth, index: Index) -> IndexTruth | None:
    """Return the indexed items of test, else of validation, else of training data."""
    for part in PARTS:
        labels = truth.parts.get(part)
        if labels is None or not len(labels):
            continue
        taken = np.unique(np.linspace(0, len(labels) - 1, min(len(labels), MOST_JUDGED)).astype(np.int64))
        ids = [labels.ids[int(i)] for i in taken]
        there = index.holding(ids)
        here = np.array([id in there for id in ids])
        if not here.any():
            continue
        kept = [name for name, held in zip(ids, here, strict=True) if held]
        notes = []
        if part == "training":
            notes.append("These items were trained on: on new ones the model does worse.")
        if len(labels) > MOST_JUDGED:
            notes.append(f"Judged on {len(kept):,} of {len(labels):,} items.")
        return IndexTruth(part, kept, index.rows(kept), labels.rows(taken[here]), " ".join(notes))
    return None
