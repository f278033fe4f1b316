"""Contents of a data set, as `steelyard inspect` shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.config.advice import Advice, Evidence, advise
from steelyard.data.files import listed
from steelyard.data.inspect import Duplicates, Pairs, find_duplicates, find_pairs
from steelyard.data.opening import Opened
from steelyard.labels import UNKNOWN, Labels
from steelyard.metrics.measures import number

COUNTING = (
    "An unknown label is never counted as absent: positives and negatives are known labels (positive: value at least "
    "0.5), rates are shares of known labels, and unknown labels are counted only where it says so."
)
"""The basis of all numbers, named on the page."""

_MANY = 100  # labels, of which an item seldom has exactly one


@dataclass(frozen=True, eq=False)
class Inspection:
    r"""The facts about a data set; unknown labels are in no count whose name does not say so. `inspect` returns one.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("pets.csv").write_text("id,weight,cat,dog\na,1.5,1,0\nb,2.5,,1\n")
        >>> result = sy.run.inspect(sy.data.open_data("pets.csv"))
        >>> result.n_positive, result.n_negative, result.n_unknown
        (2, 1, 1)
    """

    format: str
    """Name of the format, as `open_data` takes it."""
    split: str | None
    """The split that was read; None if the data has no splits."""
    note: str
    """Guesses about the data, and the setting that overrides each."""
    labels: Labels
    """The labels of the items."""
    n_soft: int
    """Known cells with a value between 0 and 1; those of at least .5 are positives."""
    positives_per_item: NDArray[np.int64]
    """[k] is the number of items with k positives, unknown labels not counted."""
    n_without_known: int
    """Items of which no label is known."""
    resampled_prior: NDArray[np.float64]
    """The prior of each label after class-aware sampling."""
    duplicates: Duplicates | None
    """Items that occur more than once; None where items have no input to compare."""
    pairs: Pairs
    """Labels that say the same, and labels that come together."""
    advice: Advice
    """The recommended recipe."""

    @property
    def warnings(self) -> list[str]:
        """Signs that the data was misread, one sentence each."""
        sentence = one_of_many(self.labels)
        return [sentence] if sentence else []

    @property
    def n_positive(self) -> int:
        """Known cells that are present."""
        return int(self.labels.counts.sum())

    @property
    def n_negative(self) -> int:
        """Known cells that are absent."""
        return int(self.labels.n_known.sum()) - self.n_positive

    @property
    def n_unknown(self) -> int:
        """Unknown cells."""
        return self.labels.n_items * self.labels.n_labels - int(self.labels.n_known.sum())

    @property
    def n_without_positive(self) -> int:
        """Items without a known positive; those without a known label are among them."""
        return int(self.positives_per_item[0])

    @property
    def never_known(self) -> NDArray[np.int64]:
        """Labels that are unknown for every item."""
        return np.flatnonzero(self.labels.n_known == 0)

    @property
    def never_positive(self) -> NDArray[np.int64]:
        """Labels that are known for some item, and absent from all of these."""
        return np.flatnonzero((self.labels.n_known > 0) & (self.labels.counts == 0))

    @property
    def always_positive(self) -> NDArray[np.int64]:
        """Labels that are present wherever they are known."""
        return np.flatnonzero((self.labels.n_known > 0) & (self.labels.counts == self.labels.n_known))

    def quantile(self, q: float) -> int:
        """Return the smallest k such that a share of at least `q` of the items has at most k positives."""
        below = np.cumsum(self.positives_per_item)
        return int(np.searchsorted(below, q * below[-1]))

    def as_dict(self) -> dict[str, Any]:
        """Return all facts as plain values, for JSON: what is undefined is None."""
        table, names = self.labels, self.labels.names
        group_of = {int(c): group for group, members in table.groups().items() for c in members}
        numbers = zip(table.counts, table.n_known, table.prior, self.resampled_prior, strict=True)
        return {
            "counting": COUNTING,
            "data": {"format": self.format, "split": self.split, "note": self.note},
            "warnings": self.warnings,
            "n_items": table.n_items,
            "n_labels": table.n_labels,
            "cells": {
                "all_including_unknown": table.n_items * table.n_labels,
                "positive": self.n_positive,
                "negative": self.n_negative,
                "unknown": self.n_unknown,
                "soft_among_known": self.n_soft,
                "unknown_rate": number(table.unknown_rate),
            },
            "imbalance": number(table.imbalance),
            "groups": {group: [names[c] for c in members] for group, members in table.groups().items()},
            "positives_per_item": {
                "mean": number(self.n_positive / max(1, table.n_items)),
                "median": self.quantile(0.5),
                "most": len(self.positives_per_item) - 1,
                "items_by_number_of_positives": self.positives_per_item.tolist(),
            },
            "items_without_positive": self.n_without_positive,
            "items_without_known_label": self.n_without_known,
            "labels_never_known": [names[c] for c in self.never_known],
            "labels_never_positive": [names[c] for c in self.never_positive],
            "labels_always_positive_where_known": [names[c] for c in self.always_positive],
            "duplicates": None if self.duplicates is None else self.duplicates._asdict(),
            "near_identical_labels": [pair._asdict() | {"identical": pair.identical} for pair in self.pairs.twins],
            "co_occurrences": [pair._asdict() for pair in self.pairs.together],
            "n_labels_compared_in_pairs": len(self.pairs.order),
            "labels": [
                {
                    "name": names[c],
                    "group": group_of[c],
                    "positives": int(n),
                    "known": int(k),
                    "unknown": table.n_items - int(k),
                    "prior_among_known": number(prior),
                    "prior_after_class_aware_sampling": number(resampled),
                }
                for c, (n, k, prior, resampled) in enumerate(numbers)
            ],
            "advice": {
                "recipe": self.advice.recipe,
                "why": self.advice.why,
                "otherwise": [{"recipe": recipe, "when": when} for recipe, when in self.advice.otherwise],
            },
        }


def inspect(opened: Opened, deep: bool = False) -> Inspection:
    r"""Return the facts about a data set.

    Args:
        opened: what `open_data` returned.
        deep: whether image files are compared by their content, to find duplicates.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("pets.csv").write_text("id,weight,cat,dog\na,1.5,1,0\nb,2.5,,1\n")
        >>> sy.run.inspect(sy.data.open_data("pets.csv")).advice.recipe
        'wan'
    """
    labels = opened.data.labels
    return Inspection(
        format=opened.format,
        split=opened.split,
        note=opened.note,
        labels=labels,
        n_soft=_count_soft(labels),
        positives_per_item=np.bincount(_per_item(labels.positives()[0], len(labels)), minlength=1),
        n_without_known=_count_without_known(labels),
        resampled_prior=labels.resampled_prior(),
        duplicates=find_duplicates(opened.data, deep),
        pairs=find_pairs(labels),
        advice=advise(Evidence.of(labels)),
    )


def one_of_many(labels: Labels) -> str:
    """Return a sentence where every item has exactly one of hundreds of labels, as if lists were read as names."""
    if labels.n_labels < _MANY or int(labels.counts.sum()) != labels.n_items:
        return ""
    if not (_per_item(labels.positives()[0], labels.n_items) == 1).all():
        return ""
    return (
        f"every item has exactly one of {labels.n_labels:,} labels, such as {listed(labels.names, 2)}: if that is a "
        "list of several labels, say what separates them with --separator"
    )


def _per_item(items: NDArray[Any], n_items: int) -> NDArray[np.int64]:
    """Return how often each item occurs in `items`, which is sorted."""
    return np.diff(np.searchsorted(items, np.arange(n_items + 1, dtype=items.dtype)))


def _count_without_known(labels: Labels) -> int:
    items, _, values = labels.cells()
    if labels.fill == UNKNOWN:
        return int(np.count_nonzero(_per_item(items, len(labels)) == 0))
    return int(np.count_nonzero(_per_item(items[values == UNKNOWN], len(labels)) == labels.n_labels))


def _count_soft(labels: Labels) -> int:
    values = labels.cells()[2]
    return 0 if values.dtype == np.int8 else int(np.count_nonzero((values > 0) & (values < 1)))
