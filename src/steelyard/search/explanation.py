"""Where a score came from: every step of its arithmetic with its value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.search.formula import Bound, Term, leaves, quoted
from steelyard.search.plan import Complement, Constant, Factor, Holds, Plan, Product, Split, evaluate, gate, holds
from steelyard.search.query import Query


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


def explanation(query: Query, names: Sequence[str], probabilities: NDArray[np.float32]) -> Explanation:
    """Return how the score of one item, whose probabilities are (L,), comes about."""
    row = np.asarray(probabilities, np.float64)
    columns = {name: row[i : i + 1] for i, name in enumerate(names) if name in query.labels}
    plan = query.plan(names)
    bounds = gate(query.formula)
    admitted = bool(holds(bounds, columns)[0])

    def value(part: Plan) -> float:
        return float(evaluate(part, columns)[0])

    def steps(part: Plan, depth: int, before: str) -> Iterator[Step]:
        match part:
            case Constant():
                yield Step(depth, f"{before}certain" if part.value else f"{before}impossible", part.value)
            case Factor(label, wanted):
                eta = columns[label][0]
                text = str(Term(label, wanted)) + ("" if wanted else f" = 1 − {eta:.6g}")
                yield Step(depth, before + text, value(part))
            case Holds(bound):
                yield Step(depth, f"{before}{bound}: {'holds' if value(part) else 'does not hold'}", value(part))
            case Product(parts):
                yield Step(depth, f"{before}all, the product of", value(part))
                for inner in parts:
                    yield from steps(inner, depth + 1, "")
            case Complement(inner):
                yield Step(depth, f"{before}at least one, 1 minus the product of what lacks each", value(part))
                for lacking in inner.parts if isinstance(inner, Product) else (inner,):
                    yield from steps(lacking, depth + 1, "")
            case Split(label, yes, no):
                name = quoted(label)
                yield Step(depth, f"{before}{name} repeats: with it and without it", value(part))
                yield Step(depth + 1, f"{name}, which multiplies the first", float(columns[label][0]))
                yield from steps(yes, depth + 1, f"with {name}: ")
                yield from steps(no, depth + 1, f"without {name}, times {1 - columns[label][0]:.6g}: ")

    score = value(plan) if admitted else 0.0
    eta = {name: float(column[0]) for name, column in columns.items()}
    passed = (steps(Holds(leaf), 0, "") for leaf in leaves(bounds) if isinstance(leaf, Bound))
    return Explanation(score, admitted, eta, (*steps(plan, 0, ""), *(step for found in passed for step in found)))
