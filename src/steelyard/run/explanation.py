"""Where a score came from: every step of its arithmetic with its value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from steelyard.search import Index, Query
from steelyard.search.formula import Bound, leaves, quoted
from steelyard.search.plan import Plan, evaluate, gate, holds


class Step(NamedTuple):
    """One value and what it is; those it is made of come right after it, one deeper."""

    depth: int
    text: str
    value: float

    def __str__(self) -> str:
        return f"{self.value:<12.6g}{'  ' * self.depth}{self.text}"


class Explanation(NamedTuple):
    """How an item came to its score."""

    score: float
    """0 where the bounds leave the item out."""
    admitted: bool
    """Whether the bounds let the item pass."""
    probabilities: dict[str, float]
    """Of the labels of the query."""
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        lines = map(str, self.steps)
        return "\n".join([*lines, *([] if self.admitted else ["left out by its bounds"])])


def explain(index: Index, query: Query, id: str) -> Explanation:
    """Return how the score of an item for a query comes about, step by step."""
    row = dict(zip(index.names, index.rows([id])[0].tolist(), strict=True))
    eta = {label: row[label] for label in query.labels}
    bounds = gate(query.formula)
    admitted = bool(holds(bounds, eta))
    shown: set[Plan] = set()

    def shows(part: Plan, depth: int, before: str) -> Iterator[Step]:
        value = float(evaluate(part, eta))
        if part in shown and part.parts:
            yield Step(depth, f"{before}as above", value)
            return
        shown.add(part)
        inner, name, befores = part.parts, quoted(part.label), [""] * len(part.parts)
        match part.kind:
            case "constant":
                text = "certain" if part.value else "impossible"
            case "factor":
                text = name if part.value else f"~{name} = 1 − {eta[part.label]:.6g}"
            case "holds":
                text = f"{part.bound}: {'holds' if value else 'does not hold'}"
            case "product":
                text = "all, the product of"
            case "complement":
                text = "at least one, 1 minus the product of what lacks each"
                inner = inner[0].parts if inner[0].kind == "product" else inner
                befores = [""] * len(inner)
            case "split":
                text = f"{name} repeats: with it and without it"
                befores = [f"with {name}: ", f"without {name}, times {1 - eta[part.label]:.6g}: "]
        yield Step(depth, before + text, value)
        if part.kind == "split":
            yield Step(depth + 1, f"{name}, which multiplies the first", eta[part.label])
        for one, introduced in zip(inner, befores, strict=True):
            yield from shows(one, depth + 1, introduced)

    steps = [*shows(query.plan(index.names), 0, "")]
    for leaf in leaves(bounds):
        steps += shows(Plan("holds", bound=leaf if isinstance(leaf, Bound) else None), 0, "")
    return Explanation(steps[0].value if admitted else 0.0, admitted, eta, tuple(steps))
