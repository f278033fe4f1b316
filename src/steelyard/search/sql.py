"""One SQL text for a query, that DuckDB and Spark both understand and answer bit by bit alike.

The relation `items` has the columns `id` and `p0`, `p1`, …, the FLOAT probabilities of the labels in their order: no
name of a label and no text of a query ever stands in SQL. Bounds are parameters. Scores are DOUBLE, factors in the
order of the labels; ties go by id. What several parts of a plan share is a column of an inner SELECT, worked out once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from steelyard.search.formula import Bound, Formula, Join
from steelyard.search.plan import Plan, gate, shared, steps
from steelyard.search.query import Query

BEST_FIRST: Final = "ORDER BY score DESC, id ASC"


class Statement(NamedTuple):
    """A SELECT of `id`, `score` and the columns of the query's labels, to which `BEST_FIRST` and a LIMIT are added."""

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
    writer = _Writer({name: f"p{i}" for name, i in at.items()})
    chosen = ", ".join(writer.columns.values())
    condition = writer.condition(gate(query.formula))
    text = f"SELECT id, {chosen} FROM items" + (f" WHERE {condition}" if condition else "")
    parameters = writer.taken()
    for level in _levels(plan):
        texts = [writer.score(step) for step in level]
        writer.known |= {step: f"s{len(writer.known) + i}" for i, step in enumerate(level)}
        extra = ", ".join(f"{text} AS {writer.known[step]}" for text, step in zip(texts, level, strict=True))
        text, parameters = f"SELECT *, {extra} FROM ({text}) AS scored", writer.taken() + parameters
    text = f"SELECT *, {writer.score(plan)} AS score FROM ({text}) AS scored"
    text = f"SELECT id, score, {chosen} FROM ({text}) AS scored"
    return Statement(text, (*writer.taken(), *parameters), tuple(at), tuple(at.values()))


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


class _Writer:
    """Writes steps and conditions as SQL.

    columns: of the labels.
    known: steps that are columns.
    """

    def __init__(self, columns: dict[str, str]) -> None:
        self.columns, self.known, self._parameters = columns, dict[Plan, str](), list[float]()

    def taken(self) -> list[float]:
        """Return the parameters of what was written since this was last asked."""
        taken, self._parameters = self._parameters, []
        return taken

    def score(self, plan: Plan) -> str:
        if plan in self.known:
            return self.known[plan]
        parts = [self.score(part) for part in plan.parts]
        eta = f"CAST({self.columns[plan.label]} AS DOUBLE)" if plan.kind in ("factor", "split") else ""
        match plan.kind:
            case "constant":
                return "1e0" if plan.value else "0e0"
            case "factor":
                return eta if plan.value else f"(1e0 - {eta})"
            case "holds" if plan.bound is not None:
                return f"(CASE WHEN {self.condition(plan.bound)} THEN 1e0 ELSE 0e0 END)"
            case "complement":
                return f"(1e0 - {parts[0]})"
            case "split":
                return f"({eta} * {parts[0]} + (1e0 - {eta}) * {parts[1]})"
            case _:
                return f"({' * '.join(parts)})"

    def condition(self, formula: Formula) -> str:
        """Return a formula of bounds, "" where it is true anyway."""
        if isinstance(formula, Join):
            parts = [self.condition(part) for part in formula.parts]
            text = (" AND " if formula.all else " OR ").join(parts)
            return f"({text})" if len(parts) > 1 else text
        assert isinstance(formula, Bound)
        self._parameters.append(formula.value)
        return f"{self.columns[formula.label]} {formula.sign} CAST(? AS FLOAT)"
