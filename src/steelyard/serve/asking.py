"""From chips, limits and a text to one query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from steelyard.search import Query
from steelyard.search.formula import Join, Term, quoted

MOST_CHIPS = 24
"""Labels that may be wanted or unwanted besides the text."""


class Unclear(ValueError):
    """What was asked for cannot be understood; the message is for who asked."""


class Asked(NamedTuple):
    """A query, and whether its text says no more than chips do."""

    query: Query
    plain: bool


def asked(
    names: Sequence[str], text: str, wanted: Sequence[str], unwanted: Sequence[str], limits: Sequence[str]
) -> Asked | None:
    """Return the query for all of it together, None where nothing is asked for.

    Args:
        names: the labels there are.
        text: of a query, may be empty.
        wanted, unwanted: labels.
        limits: "LABEL:VALUE": a wanted label's probability is at least VALUE, an unwanted one's at most.
    """
    if len(wanted) + len(unwanted) > MOST_CHIPS:
        raise Unclear(f"{len(wanted) + len(unwanted)} labels are given: give at most {MOST_CHIPS}")
    written = Query.parse(text, names) if text.strip() else None
    bounds = dict(map(_limit, limits))
    for label in bounds:
        if label not in wanted and label not in unwanted:
            raise Unclear(f"limit names {label!r}, which is neither wanted nor unwanted: leave it out")
    parts = [f"({written})"] if written else []
    parts += [f"{quoted(x)} >= {bounds[x]!r}" if x in bounds else quoted(x) for x in wanted]
    parts += [f"~{quoted(x)}" + (f" & {quoted(x)} <= {bounds[x]!r}" if x in bounds else "") for x in unwanted]
    if not parts:
        return None
    return Asked(Query.parse(" & ".join(parts), names), written is not None and _is_plain(written))


def _is_plain(query: Query) -> bool:
    formula = query.formula
    parts = formula.parts if isinstance(formula, Join) and formula.all else (formula,)
    return all(isinstance(part, Term) for part in parts) and len({label for label, _ in query.terms}) == len(parts)


def _limit(text: str) -> tuple[str, float]:
    label, _, number = text.rpartition(":")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not (label and 0 <= value <= 1):
        raise Unclear(f"limit is {text!r:.80}: give LABEL:VALUE, such as dog:0.8")
    return label, value
