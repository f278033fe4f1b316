"""The search form: turn labels, limits and text into one query, and complete typed letters to labels."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import final

from steelyard.search import Query
from steelyard.search.formula import Join, LabelTerm, quoted
from steelyard.serve.guards import Refusal

MOST_CHIPS = 24
"""Labels that may be present or absent besides the text."""


def query_of(
    names: Sequence[str], text: str, present: Sequence[str], absent: Sequence[str], limits: Sequence[str]
) -> tuple[Query, bool] | None:
    """Return the query for the whole form, and whether chips alone could express it; None if the form is empty.

    Args:
        names: the labels there are.
        text: of a query, may be empty.
        present, absent: labels.
        limits: "LABEL:VALUE": a present label's probability is at least VALUE, an absent one's at most.
    """
    if len(present) + len(absent) > MOST_CHIPS:
        raise Refusal(f"{len(present) + len(absent)} labels are given: give at most {MOST_CHIPS}")
    written = Query.parse(text, names) if text.strip() else None
    bounds = dict(map(_limit, limits))
    for label in bounds:
        if label not in present and label not in absent:
            raise Refusal(f"limit names {label!r}, which is neither present nor absent: leave it out")
    parts = [f"({written})"] if written else []
    parts += [f"{quoted(x)} >= {bounds[x]!r}" if x in bounds else quoted(x) for x in present]
    parts += [f"~{quoted(x)}" + (f" & {quoted(x)} <= {bounds[x]!r}" if x in bounds else "") for x in absent]
    if not parts:
        return None
    return Query.parse(" & ".join(parts), names), written is not None and _is_plain(written)


def _is_plain(query: Query) -> bool:
    formula = query.formula
    parts = formula.parts if isinstance(formula, Join) and formula.all else (formula,)
    return all(isinstance(part, LabelTerm) for part in parts) and len({label for label, _ in query.terms}) == len(parts)


def _limit(text: str) -> tuple[str, float]:
    label, _, number = text.rpartition(":")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not (label and 0 <= value <= 1):
        raise Refusal(f"limit is {text!r:.80}: give LABEL:VALUE, such as dog:0.8")
    return label, value


@final
class Completion:
    """Completes typed letters to names of labels.

    names: of the labels.
    counts: of each, by which those that fit equally well are ordered, the largest first.
    """

    def __init__(self, names: Sequence[str], counts: Sequence[float]) -> None:
        self._folded = [(name.casefold(), name, -count) for name, count in zip(names, counts, strict=True)]

    def __call__(self, typed: str, k: int) -> list[str]:
        """Return at most `k` names: equal ones, then by prefix, prefix of a word, and substring; else similar ones."""
        text = typed.strip().casefold()
        ranked = sorted((_rank(text, folded), count, name) for folded, name, count in self._folded)
        matches = [name for rank, _, name in ranked if rank < 4][:k]
        if matches or len(text) < 3:
            return matches
        near = get_close_matches(text, [folded for folded, _, _ in self._folded], n=k, cutoff=0.6)
        return [name for match in dict.fromkeys(near) for folded, name, _ in self._folded if folded == match][:k]


def _rank(text: str, name: str) -> int:
    if name == text:
        return 0
    if name.startswith(text):
        return 1
    if any(word.startswith(text) for word in name.replace("-", " ").replace("_", " ").split()):
        return 2
    return 3 if text in name else 4
