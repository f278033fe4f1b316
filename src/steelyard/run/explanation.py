"""Explain the score of a search hit: every step of its arithmetic with its value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from steelyard.search import Index, Query
from steelyard.search.formula import leaves, quoted
from steelyard.search.plan import evaluate, gate, holds


class ScoreStep(NamedTuple):
    """A value and its description; the values it is computed from follow, one level deeper."""

    depth: int
    text: str
    value: float

    def __str__(self) -> str:
        return f"{self.value:<12.6g}{'  ' * self.depth}{self.text}"


class Explanation(NamedTuple):
    """The score of an item, step by step."""

    score: float
    """0 where a bound of the query excludes the item."""
    admitted: bool
    """True if the bounds of the query admit the item."""
    probabilities: dict[str, float]
    """η of each label of the query."""
    steps: tuple[ScoreStep, ...]

    def __str__(self) -> str:
        lines = map(str, self.steps)
        return "\n".join([*lines, *([] if self.admitted else ["excluded by a bound of the query"])])


def explain(index: Index, query: Query, id: str) -> Explanation:
    """Return how the score of an item for a query is computed, step by step."""
    row = dict(zip(index.names, index.rows([id])[0].tolist(), strict=True))
    eta = {label: row[label] for label in query.labels}
    bounds = gate(query.formula)
    admitted = bool(holds(bounds, eta))
    plan = query.plan(index.names)
    values = [float(value) for value in evaluate(plan, eta)]
    shown: set[int] = set()

    def shows(n: int, depth: int, before: str) -> Iterator[ScoreStep]:
        kind, inner, label, value, bound = plan[n]
        if n in shown and inner:
            yield ScoreStep(depth, f"{before}as above", values[n])
            return
        shown.add(n)
        name, befores = quoted(label), [""] * len(plan)
        match kind:
            case "constant":
                text = "certain" if value else "impossible"
            case "factor":
                text = name if value else f"~{name} = 1 − {eta[label]:.6g}"
            case "holds":
                text = f"{bound}: {'holds' if values[n] else 'does not hold'}"
            case "product":
                text = "all, the product of"
            case "complement":
                text = "at least one, 1 minus the product of lacking each"
                inner = plan[inner[0]].parts if plan[inner[0]].kind == "product" else inner
            case "split":
                text = f"{name} repeats: with it and without it"
                befores = [f"with {name}: ", f"without {name}, times {1 - eta[label]:.6g}: "]
        yield ScoreStep(depth, before + text, values[n])
        if kind == "split":
            yield ScoreStep(depth + 1, f"{name}, which multiplies the first", eta[label])
        for part, introduced in zip(inner, befores, strict=False):
            yield from shows(part, depth + 1, introduced)

    steps = [*shows(len(plan) - 1, 0, "")]
    for leaf in leaves(bounds):
        held = bool(holds(leaf, eta))
        steps.append(ScoreStep(0, f"{leaf}: {'holds' if held else 'does not hold'}", float(held)))
    return Explanation(steps[0].value if admitted else 0.0, admitted, eta, tuple(steps))
