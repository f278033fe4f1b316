"""One SQL text for a query, that DuckDB and Spark both understand and answer bit by bit alike.

The relation `items` has the columns `id` and `p0`, `p1`, …, the FLOAT probabilities of the labels in their order: no
name of a label and no text of a query ever stands in SQL. Bounds are parameters. Scores are DOUBLE, factors in the
order of the labels; ties go by id. What several parts of a plan share is a column of an inner SELECT, worked out once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from steelyard.search.formula import All, Bound, Formula, Some, Term
from steelyard.search.plan import Plan, gate, shared, steps
from steelyard.search.query import Query


class Statement(NamedTuple):
    """A SELECT of `id`, `score` and the columns of the query's labels, best first, without a LIMIT."""

    text: str
    parameters: tuple[float, ...]
    """In the order of the question marks."""
    labels: tuple[str, ...]
    """Of the columns after the score, in the order of the labels of the index."""
    places: tuple[int, ...]
    """Of these labels among those of the index."""


def statement(query: Query, names: Sequence[str]) -> Statement:
    """Return the SQL of a query over labels `names`."""
    plan = query.plan(names)
    wanted = set(query.labels)
    at = {name: i for i, name in enumerate(names) if name in wanted}
    places = {name: f"p{i}" for name, i in at.items()}
    parameters: list[float] = []
    condition = _condition(gate(query.formula), places, parameters)
    chosen = ", ".join(places.values())
    text = f"SELECT id, {chosen} FROM items" + (f" WHERE {condition}" if condition else "")
    known: dict[Plan, str] = {}
    for level in _levels(plan):
        own: list[float] = []
        texts = [_score(step, places, own, known) for step in level]
        known |= {step: f"s{len(known) + i}" for i, step in enumerate(level)}
        extra = ", ".join(f"{text} AS {known[step]}" for text, step in zip(texts, level, strict=True))
        text, parameters = f"SELECT *, {extra} FROM ({text}) AS scored", own + parameters
    last: list[float] = []
    score = _score(plan, places, last, known)
    text = f"SELECT id, score, {chosen} FROM (SELECT *, {score} AS score FROM ({text}) AS scored) AS scored"
    return Statement(f"{text} ORDER BY score DESC, id ASC", (*last, *parameters), tuple(at), tuple(at.values()))


def _levels(plan: Plan) -> list[list[Plan]]:
    """The shared steps of a plan: those of a level are made of those of the levels before it alone."""
    several, depth, levels = shared(plan), dict[Plan, int](), list[list[Plan]]()
    for step in steps(plan):
        depth[step] = max((depth[part] for part in step.parts), default=0)
        if step in several:
            levels += [[] for _ in range(depth[step] + 1 - len(levels))]
            levels[depth[step]].append(step)
            depth[step] += 1
    return levels


def _score(plan: Plan, places: Mapping[str, str], parameters: list[float], known: Mapping[Plan, str]) -> str:
    """The arithmetic of a plan; steps that are `known` are columns."""
    if plan in known:
        return known[plan]
    parts = [_score(part, places, parameters, known) for part in plan.parts]
    eta = f"CAST({places[plan.label]} AS DOUBLE)" if plan.kind in ("factor", "split") else ""
    match plan.kind:
        case "constant":
            return "1e0" if plan.value else "0e0"
        case "factor":
            return eta if plan.value else f"(1e0 - {eta})"
        case "holds" if plan.bound is not None:
            return f"(CASE WHEN {_condition(plan.bound, places, parameters)} THEN 1e0 ELSE 0e0 END)"
        case "complement":
            return f"(1e0 - {parts[0]})"
        case "split":
            return f"({eta} * {parts[0]} + (1e0 - {eta}) * {parts[1]})"
        case _:
            return f"({' * '.join(parts)})"


def _condition(formula: Formula, places: Mapping[str, str], parameters: list[float]) -> str:
    match formula:
        case Bound(label, sign, value):
            parameters.append(value)
            return f"{places[label]} {sign} CAST(? AS FLOAT)"
        case All(parts) | Some(parts):
            word = " AND " if isinstance(formula, All) else " OR "
            text = word.join(_condition(part, places, parameters) for part in parts)
            return f"({text})" if len(parts) > 1 else text
        case Term():
            raise ValueError("a term is no bound")
