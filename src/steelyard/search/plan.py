"""The probability of a formula when labels are independent, as arithmetic that every engine does in the same order.

A conjunction is the product of its parts in the order of the labels, a disjunction 1 − ∏(1 − part). That is exact where
no label occurs twice; a label x that does is first split off (Shannon's expansion), lowest label first:

    P(f) = η_x P(f | x) + (1 − η_x) P(f | not x).

Equal steps are one object and are worked out once; a plan has at most `MOST_STEPS` of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_, ge, gt, le, lt, mul, or_
from typing import Any, Final, Literal, final

from steelyard.search.formula import FALSE, TRUE, Bound, Formula, Join, Term, joined, leaves, negated, replaced

MOST_REPEATED: Final = 12
MOST_STEPS: Final = 600
_COMPARE: Final = {">": gt, ">=": ge, "<": lt, "<=": le}


class TooLarge(Exception):
    """A plan would have more than `MOST_STEPS` steps."""


@final
@dataclass(frozen=True, eq=False)
class Plan:
    """One step of the arithmetic."""

    kind: Literal["constant", "factor", "holds", "product", "complement", "split"]
    """0 or 1; η or 1 − η; 1 where a bound holds; the product of `parts`; 1 − part; η · yes + (1 − η) · no."""
    parts: tuple[Plan, ...] = ()
    label: str = ""
    """Of a factor and a split."""
    value: float = 1.0
    """Of a constant; of a factor 1 for η, 0 for 1 − η."""
    bound: Bound | None = None


def repeated(formula: Formula) -> list[str]:
    """Return the labels that occur more than once as terms; `dog > 0.8` has dog as a term, `dog < 0.8` has not."""
    counts = Counter(leaf.label for leaf in leaves(formula) if isinstance(leaf, Term) or leaf.sign[0] == ">")
    return [label for label, n in counts.items() if n > 1]


def plan(formula: Formula, order: Mapping[str, int]) -> Plan:
    """Return the arithmetic of a formula; `order` gives each label its place."""
    return _Planner(order).expanded(_lowered(formula, True))


def steps(plan: Plan) -> list[Plan]:
    """Return every step once, those that a step is made of before it."""
    seen: dict[Plan, None] = {}

    def visit(step: Plan) -> None:
        if step not in seen:
            for part in step.parts:
                visit(part)
            seen[step] = None

    visit(plan)
    return list(seen)


def shared(plan: Plan) -> set[Plan]:
    """Return the steps that several others are made of, and that are made of others themselves."""
    uses = Counter(part for step in steps(plan) for part in step.parts)
    return {step for step, n in uses.items() if n > 1 and step.parts}


def gate(formula: Formula) -> Formula:
    """Return what must hold of the bounds for an item to be found at all: the formula with every term true."""
    return replaced(formula, lambda leaf: leaf if isinstance(leaf, Bound) else TRUE)


def evaluate(plan: Plan, eta: Mapping[str, Any]) -> Any:
    """Return the score of an item, or of each of several: `eta` gives each label a number or an array (N,)."""
    kept: dict[Plan, Any] = {}
    several = shared(plan)

    def value(step: Plan) -> Any:
        if step in kept:
            return kept[step]
        match step.kind, [value(part) for part in step.parts]:
            case "constant", _:
                result: Any = step.value
            case "factor", _:
                result = eta[step.label] if step.value else 1.0 - eta[step.label]
            case "holds", _:
                result = holds(step.bound, eta) * 1.0  # type: ignore[arg-type]
            case "complement", [part]:
                result = 1.0 - part
            case "split", [yes, no]:
                result = eta[step.label] * yes + (1.0 - eta[step.label]) * no
            case _, parts:
                result = reduce(mul, parts)
        if step in several:
            kept[step] = result
        return result

    return value(plan)


def holds(formula: Formula, eta: Mapping[str, Any]) -> Any:
    """Return whether a formula of bounds holds, for `eta` see `evaluate`; without bounds it is True or False."""
    if isinstance(formula, Join):
        parts = (holds(part, eta) for part in formula.parts)
        return reduce(and_ if formula.all else or_, parts, formula.all)
    assert isinstance(formula, Bound)
    return _COMPARE[formula.sign](eta[formula.label], formula.value)


def _lowered(formula: Formula, top: bool) -> Formula:
    """`dog > 0.8` as dog and a bound; on top, where bounds decide what is found, the bound is left out."""
    match formula:
        case Join(all, parts):
            return joined(all, (_lowered(part, top and all) for part in parts))
        case Bound(label, sign):
            return joined(True, [*([Term(label)] if sign[0] == ">" else []), *([] if top else [formula])])
    return formula


class _Planner:
    """Makes one plan; counts what it costs to make and to work out, and stops at `MOST_STEPS`."""

    def __init__(self, order: Mapping[str, int]) -> None:
        self.order = order
        self.made: dict[Any, Plan] = {}
        self.known: dict[Formula, Plan] = {}
        self.size = 0

    def step(self, kind: Any, parts: tuple[Plan, ...] = (), **rest: Any) -> Plan:
        key = kind, tuple(map(id, parts)), *rest.items()
        if key not in self.made:
            self.count(max(1, len(parts)))
            self.made[key] = Plan(kind, parts, **rest)
        return self.made[key]

    def count(self, more: int) -> None:
        self.size += more
        if self.size > MOST_STEPS:
            raise TooLarge

    def expanded(self, formula: Formula) -> Plan:
        if formula not in self.known:
            counts = Counter(leaf.label for leaf in leaves(formula) if isinstance(leaf, Term))
            if twice := [label for label, n in counts.items() if n > 1]:
                self.count(1)
                first = min(twice, key=self.order.__getitem__)
                yes, no = (self.expanded(_given(formula, first, present)) for present in (True, False))
                self.known[formula] = self.split(first, yes, no)
            else:
                self.known[formula] = self.arithmetic(formula)
        return self.known[formula]

    def split(self, label: str, yes: Plan, no: Plan) -> Plan:
        """A split, or less where that is bit by bit the same."""
        for value, kept, other in ((1.0, yes, no), (0.0, no, yes)):
            if other.kind == "constant" and not other.value:
                return self.product([self.step("factor", label=label, value=value), kept])
        return self.step("split", (yes, no), label=label)

    def arithmetic(self, formula: Formula) -> Plan:
        """The plan of a formula in which no label occurs twice."""

        def place(part: Formula) -> int:
            """Where its first term stands; what has none is exactly 0 or 1, and may stand anywhere."""
            terms = (self.order[leaf.label] for leaf in leaves(part) if isinstance(leaf, Term))
            return min(terms, default=len(self.order))

        match formula:
            case Term(label, wanted):
                return self.step("factor", label=label, value=float(wanted))
            case Bound():
                return self.step("holds", bound=formula)
            case Join(True, parts):
                return self.product(map(self.arithmetic, sorted(parts, key=place)))
            case _ if formula == FALSE:
                return self.step("constant", value=0.0)
            case _:
                return self.step("complement", (self.arithmetic(negated(formula)),))

    def product(self, parts: Iterable[Plan]) -> Plan:
        """The product; ones are left out."""
        kept = tuple(part for part in parts if part.kind != "constant" or not part.value)
        if len(kept) == 1:
            return kept[0]
        return self.step("product", kept) if kept else self.step("constant", value=1.0)


def _given(formula: Formula, label: str, present: bool) -> Formula:
    """Return what is left to ask once it is known whether a label is present; bounds on it stay."""

    def known(leaf: Term | Bound) -> Formula:
        if isinstance(leaf, Bound) or leaf.label != label:
            return leaf
        return TRUE if leaf.wanted == present else FALSE

    return replaced(formula, known)
