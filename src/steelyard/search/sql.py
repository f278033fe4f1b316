"""One SQL text for a query, that DuckDB and Spark both understand and answer bit by bit alike.

The relation `items` has the columns `id` and `p0`, `p1`, …, the FLOAT probabilities of the labels in their order: no
name of a label and no text of a query ever stands in SQL. Bounds are parameters. Scores are DOUBLE, factors in the
order of the labels; ties go by id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from steelyard.search.formula import All, Bound, Formula, Some, Term
from steelyard.search.plan import Complement, Constant, Factor, Holds, Plan, Product, Split, gate
from steelyard.search.query import Query


class Statement(NamedTuple):
    """A SELECT of `id`, `score` and the columns of the query's labels, best first, without a LIMIT."""

    text: str
    parameters: tuple[float, ...]
    """In the order of the question marks."""
    labels: tuple[str, ...]
    """Of the columns after the score, in the order of the labels of the index."""


def column(position: int) -> str:
    """Return the name of the column of a label."""
    return f"p{position}"


def statement(query: Query, names: Sequence[str]) -> Statement:
    """Return the SQL of a query over labels `names`."""
    arithmetic = query.plan(names)
    wanted = set(query.labels)
    places = {name: column(i) for i, name in enumerate(names) if name in wanted}
    parameters: list[float] = []
    score = _score(arithmetic, places, parameters)
    condition = _condition(gate(query.formula), places, parameters)
    chosen = ", ".join(places.values())
    where = f" WHERE {condition}" if condition else ""
    text = (
        f"SELECT id, score, {chosen} FROM (SELECT id, {chosen}, {score} AS score FROM items{where}) AS scored "
        "ORDER BY score DESC, id ASC"
    )
    return Statement(text, tuple(parameters), tuple(places))


def _score(plan: Plan, places: Mapping[str, str], parameters: list[float]) -> str:
    match plan:
        case Constant(value):
            return "1e0" if value else "0e0"
        case Factor(label, wanted):
            eta = f"CAST({places[label]} AS DOUBLE)"
            return eta if wanted else f"(1e0 - {eta})"
        case Holds(bound):
            return f"(CASE WHEN {_condition(bound, places, parameters)} THEN 1e0 ELSE 0e0 END)"
        case Product(parts):
            return "(" + " * ".join(_score(part, places, parameters) for part in parts) + ")"
        case Complement(part):
            return f"(1e0 - {_score(part, places, parameters)})"
        case Split(label, yes, no):
            eta = f"CAST({places[label]} AS DOUBLE)"
            first, second = _score(yes, places, parameters), _score(no, places, parameters)
            return f"({eta} * {first} + (1e0 - {eta}) * {second})"


def _condition(formula: Formula, places: Mapping[str, str], parameters: list[float]) -> str:
    match formula:
        case Bound(label, sign, value):
            parameters.append(value)
            return f"{places[label]} {sign} CAST(? AS FLOAT)"
        case All(parts) | Some(parts):
            word = " AND " if isinstance(formula, All) else " OR "
            inner = word.join(_condition(part, places, parameters) for part in parts)
            return f"({inner})" if len(parts) > 1 else inner
        case Term():
            raise ValueError("a term is no bound")
