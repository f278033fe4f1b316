"""The probability of a formula when labels are independent, as arithmetic that every engine does in the same order.

A conjunction is the product of its parts in the order of the labels, a disjunction 1 − ∏(1 − part). That is exact where
no label occurs twice; a label x that does is first split off (Shannon's expansion), lowest label first:

    P(f) = η_x P(f | x) + (1 − η_x) P(f | not x).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from steelyard.search.formula import All, Bound, Formula, Some, Term, every, given, leaves, negated, some

MOST_REPEATED: Final = 12
Floats: TypeAlias = NDArray[np.float64]


@final
@dataclass(frozen=True)
class Constant:
    """0 or 1."""

    value: float


@final
@dataclass(frozen=True)
class Factor:
    """η of a label, or 1 − η."""

    label: str
    wanted: bool


@final
@dataclass(frozen=True)
class Holds:
    """1 where a bound holds, else 0."""

    bound: Bound


@final
@dataclass(frozen=True)
class Product:
    """The product of at least two parts, from left to right."""

    parts: tuple[Plan, ...]


@final
@dataclass(frozen=True)
class Complement:
    """1 − part."""

    part: Plan


@final
@dataclass(frozen=True)
class Split:
    """η · yes + (1 − η) · no."""

    label: str
    yes: Plan
    no: Plan


Plan: TypeAlias = Constant | Factor | Holds | Product | Complement | Split


def repeated(formula: Formula) -> list[str]:
    """Return the labels that occur more than once as terms; `dog > 0.8` has dog as a term, `dog < 0.8` has not."""
    counts = Counter(leaf.label for leaf in leaves(formula) if isinstance(leaf, Term) or leaf.sign[0] == ">")
    return [label for label, n in counts.items() if n > 1]


def plan(formula: Formula, order: Mapping[str, int]) -> Plan:
    """Return the arithmetic of a formula; `order` gives each label its place."""
    return _expanded(_lowered(formula, True), order, {})


def gate(formula: Formula) -> Formula:
    """Return what must hold of the bounds for an item to be found at all: the formula with every term true."""
    if isinstance(formula, Term):
        return All(())
    if isinstance(formula, Bound):
        return formula
    parts = map(gate, formula.parts)
    return every(parts) if isinstance(formula, All) else some(parts)


def evaluate(plan: Plan, columns: Mapping[str, Floats]) -> Floats:
    """Return the scores (N,) of items whose probabilities by label are `columns`."""
    match plan:
        case Constant(value):
            return np.full(len(next(iter(columns.values()))), value)
        case Factor(label, wanted):
            return columns[label] if wanted else 1.0 - columns[label]
        case Holds(bound):
            return holds(bound, columns).astype(np.float64)
        case Product(parts):
            return reduce(np.multiply, (evaluate(part, columns) for part in parts))
        case Complement(part):
            return 1.0 - evaluate(part, columns)
        case Split(label, yes, no):
            eta = columns[label]
            return eta * evaluate(yes, columns) + (1.0 - eta) * evaluate(no, columns)


def holds(formula: Formula, columns: Mapping[str, Floats]) -> NDArray[np.bool_]:
    """Return for which items a formula of bounds holds."""
    compare: dict[str, Any] = {">": np.greater, ">=": np.greater_equal, "<": np.less, "<=": np.less_equal}
    match formula:
        case Bound(label, sign, value):
            return np.asarray(compare[sign](columns[label], value))
        case All(parts) | Some(parts):
            true = np.full(len(next(iter(columns.values()))), isinstance(formula, All))
            for part in parts:
                true = true & holds(part, columns) if isinstance(formula, All) else true | holds(part, columns)
            return true
        case Term():
            raise ValueError("a term is no bound")


def _lowered(formula: Formula, top: bool) -> Formula:
    """`dog > 0.8` as dog and a bound; on top, where bounds decide what is found, the bound is left out."""
    if isinstance(formula, Term):
        return formula
    if isinstance(formula, Bound):
        kept = () if top else (formula,)
        return every((Term(formula.label), *kept) if formula.sign[0] == ">" else kept)
    parts = (_lowered(part, top and isinstance(formula, All)) for part in formula.parts)
    return every(parts) if isinstance(formula, All) else some(parts)


def _expanded(formula: Formula, order: Mapping[str, int], known: dict[Formula, Plan]) -> Plan:
    if formula not in known:
        counts = Counter(leaf.label for leaf in leaves(formula) if isinstance(leaf, Term))
        twice = [label for label, n in counts.items() if n > 1]
        if twice:
            first = min(twice, key=order.__getitem__)
            yes, no = (_expanded(given(formula, first, present), order, known) for present in (True, False))
            known[formula] = _split(first, yes, no)
        else:
            known[formula] = _arithmetic(formula, order)
    return known[formula]


def _split(label: str, yes: Plan, no: Plan) -> Plan:
    """A split, or less where that is bit by bit the same."""
    if no == Constant(0.0):
        return _product([Factor(label, True), yes])
    if yes == Constant(0.0):
        return _product([Factor(label, False), no])
    return Split(label, yes, no)


def _arithmetic(formula: Formula, order: Mapping[str, int]) -> Plan:
    """The plan of a formula in which no label occurs twice."""

    def place(part: Formula) -> int:
        """Where its first term stands; what has none is exactly 0 or 1, and may stand anywhere."""
        return min((order[leaf.label] for leaf in leaves(part) if isinstance(leaf, Term)), default=len(order))

    match formula:
        case Term(label, wanted):
            return Factor(label, wanted)
        case Bound():
            return Holds(formula)
        case All(parts):
            return _product([_arithmetic(part, order) for part in sorted(parts, key=place)])
        case Some(parts):
            return Complement(_arithmetic(negated(formula), order)) if parts else Constant(0.0)


def _product(parts: list[Plan]) -> Plan:
    """The product; ones are left out."""
    kept = [part for part in parts if part != Constant(1.0)]
    return Constant(1.0) if not kept else kept[0] if len(kept) == 1 else Product(tuple(kept))
