"""Where a score came from: every step of its arithmetic with its value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from steelyard.search.formula import Bound, leaves, quoted
from steelyard.search.plan import Plan, evaluate, gate, holds
from steelyard.search.query import Query

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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
    row = probabilities.astype(float)
    columns = {name: row[i : i + 1] for i, name in enumerate(names) if name in query.labels}
    plan = query.plan(names)
    bounds = gate(query.formula)
    admitted = bool(holds(bounds, columns)[0])
    shown: set[Plan] = set()

    def shows(part: Plan, depth: int, before: str) -> Iterator[Step]:
        value = float(evaluate(part, columns)[0])
        if part in shown and part.parts:
            yield Step(depth, f"{before}as above", value)
            return
        shown.add(part)
        inner = part.parts
        name = quoted(part.label)
        eta = float(columns[part.label][0]) if part.kind in ("factor", "split") else 0.0
        match part.kind:
            case "constant":
                text = "certain" if part.value else "impossible"
            case "factor":
                text = name if part.value else f"~{name} = 1 − {eta:.6g}"
            case "holds":
                text = f"{part.bound}: {'holds' if value else 'does not hold'}"
            case "product":
                text = "all, the product of"
            case "complement":
                text = "at least one, 1 minus the product of what lacks each"
                inner = inner[0].parts if inner[0].kind == "product" else inner
            case "split":
                text = f"{name} repeats: with it and without it"
        yield Step(depth, before + text, value)
        befores = [""] * len(inner)
        if part.kind == "split":
            yield Step(depth + 1, f"{name}, which multiplies the first", eta)
            befores = [f"with {name}: ", f"without {name}, times {1 - eta:.6g}: "]
        for one, introduced in zip(inner, befores, strict=True):
            yield from shows(one, depth + 1, introduced)

    steps = [*shows(plan, 0, "")]
    passed = [Plan("holds", bound=leaf) for leaf in leaves(bounds) if isinstance(leaf, Bound)]
    steps += [step for part in passed for step in shows(part, 0, "")]
    eta = {name: float(column[0]) for name, column in columns.items()}
    return Explanation(steps[0].value if admitted else 0.0, admitted, eta, tuple(steps))
