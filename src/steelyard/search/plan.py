"""The probability of a formula when labels are independent, as arithmetic that every engine does in the same order.

A conjunction is the product of its parts in the order of the labels, a disjunction 1 − ∏(1 − part). That is exact where
no label occurs twice; a label x that does is first split off (Shannon's expansion), lowest label first:

    P(f) = η_x P(f | x) + (1 − η_x) P(f | not x).

A plan lists its steps, each made of earlier ones; equal steps are shared. NumPy, DuckDB and Spark compute a plan with
bitwise equal results. SQL never contains the name of a label or the text of a query.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import and_, ge, gt, le, lt, mul, or_
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from steelyard.search.formula import FALSE, TRUE, Bound, Formula, Join, LabelTerm, joined, leaves, negated, replaced

MOST_STEPS: Final = 600
_COMPARE: Final = {">": gt, ">=": ge, "<": lt, "<=": le}


class TooLarge(Exception):
    """The plan needs more than `MOST_STEPS` steps."""


class PlanStep(NamedTuple):
    """One step of the arithmetic."""

    kind: Literal["constant", "factor", "holds", "product", "complement", "split"]
    """0 or 1; η or 1 − η; 1 where a bound holds; the product of `parts`; 1 − part; η · yes + (1 − η) · no."""
    parts: tuple[int, ...] = ()
    label: str = ""
    """Of a factor and a split."""
    value: float = 1.0
    """Of a constant; of a factor 1 for η, 0 for 1 − η."""
    bound: Bound | None = None


Plan: TypeAlias = tuple[PlanStep, ...]
"""The last step is the score; `parts` are positions in the plan."""


class Statement(NamedTuple):
    """The SQL of a query over a relation with the columns p0, p1, …, the FLOAT probabilities of the labels.

    columns: the position of each of its labels among those of the index.
    condition: that items must meet to match; "" if all do.
    levels: columns shared by several steps; each level uses those before it.
    score: DOUBLE.
    likeness: the column of that name, FLOAT, where items are compared with one; "" where they are not.
    """

    columns: tuple[tuple[str, int], ...]
    condition: str
    levels: tuple[str, ...]
    score: str
    likeness: str = ""

    def like(self, embedding: Sequence[float]) -> Statement:
        """Return the same with scores times (1 + cosine)/2 of the items' embeddings and this one, all of length 1."""
        numbers = ", ".join(f"{number:.9g}" for number in embedding)
        cosine = f"array_inner_product(v, [{numbers}]::FLOAT[{len(embedding)}])"
        half = "least(1e0, greatest(0e0, 5e-1 + 5e-1 * CAST(likeness AS DOUBLE)))"
        condition = " AND ".join(filter(None, [self.condition, "likeness IS NOT NULL"]))
        return self._replace(condition=condition, score=f"({self.score}) * {half}", likeness=cosine)

    def best(self, source: str, chosen: str, tie: str, limit: int, least: float = 0.0) -> str:
        """Return the SELECT of the score and some columns of the best items of a relation, ties by the column `tie`.

        At least `limit` of them score `least` or more.
        """
        for level in self.levels:
            source = f"(SELECT *, {level} FROM {source}) AS scored"
        enough = f"{self.score} >= {least:.17e}" if least else ""
        where = " AND ".join(filter(None, [self.condition, enough]))
        where = f" WHERE {where}" if where else ""
        scored = f"SELECT {self.score} AS score, {chosen} FROM {source}{where}"
        return f"{scored} ORDER BY score DESC, {tie} ASC LIMIT {limit}"


EVERYTHING: Final = Statement((), "", (), "1e0")
"""Matches every item."""


def repeated(formula: Formula) -> list[str]:
    """Return the labels that occur more than once as terms; `dog > 0.8` has dog as a term, `dog < 0.8` has not."""
    counts = Counter(leaf.label for leaf in leaves(formula) if isinstance(leaf, LabelTerm) or leaf.sign[0] == ">")
    return [label for label, n in counts.items() if n > 1]


def plan(formula: Formula, order: Mapping[str, int]) -> Plan:
    """Return the arithmetic of a formula; `order` gives each label its place."""
    planner = _Planner(order)
    last = planner.expanded(_lowered(formula, top=True))
    return tuple(planner.steps)[: last + 1]


def gate(formula: Formula) -> Formula:
    """Return what must hold of the bounds for an item to match at all: the formula with every term true."""
    return replaced(formula, lambda leaf: leaf if isinstance(leaf, Bound) else TRUE)


def evaluate(plan: Plan, eta: Mapping[str, Any]) -> list[Any]:
    """Return the value of each step, the score last; `eta` maps each label to a number or an array (N,)."""
    values: list[Any] = []
    for kind, parts, label, value, bound in plan:
        match kind, [values[part] for part in parts]:
            case "constant", _:
                values.append(value)
            case "factor", _:
                values.append(eta[label] if value else 1.0 - eta[label])
            case "holds", _:
                values.append(holds(bound or TRUE, eta) * 1.0)
            case "complement", [inner]:
                values.append(1.0 - inner)
            case "split", [yes, no]:
                values.append(eta[label] * yes + (1.0 - eta[label]) * no)
            case _, factors:
                values.append(reduce(mul, factors))
    return values


def holds(formula: Formula, eta: Mapping[str, Any]) -> Any:
    """Return whether a formula of bounds holds, for `eta` see `evaluate`; without bounds it is True or False."""
    if isinstance(formula, Join):
        parts = (holds(part, eta) for part in formula.parts)
        return reduce(and_ if formula.all else or_, parts, formula.all)
    assert isinstance(formula, Bound)
    return _COMPARE[formula.sign](eta[formula.label], formula.value)


def statement(plan: Plan, formula: Formula, columns: Mapping[str, int]) -> Statement:
    """Return the SQL of a plan and of the bounds of its formula; shared steps are computed once."""
    uses = Counter(part for step in plan for part in step.parts)
    texts, depths, levels = list[str](), list[int](), list[list[str]]()
    for n, (kind, parts, label, value, bound) in enumerate(plan):
        eta = f"CAST(p{columns[label]} AS DOUBLE)" if kind in ("factor", "split") else ""
        match kind, [texts[part] for part in parts]:
            case "constant", _:
                text = "1e0" if value else "0e0"
            case "factor", _:
                text = eta if value else f"(1e0 - {eta})"
            case "holds", _:
                text = f"(CASE WHEN {_condition(bound or TRUE, columns)} THEN 1e0 ELSE 0e0 END)"
            case "complement", [inner]:
                text = f"(1e0 - {inner})"
            case "split", [yes, no]:
                text = f"({eta} * {yes} + (1e0 - {eta}) * {no})"
            case _, factors:
                text = f"({' * '.join(factors)})"
        depth = max((depths[part] for part in parts), default=0)
        if parts and uses[n] > 1:
            levels += [[]] if depth == len(levels) else []
            levels[depth].append(f"{text} AS s{n}")
            text, depth = f"s{n}", depth + 1
        texts.append(text)
        depths.append(depth)
    condition = _condition(gate(formula), columns)
    return Statement(tuple(columns.items()), condition, tuple(map(", ".join, levels)), texts[-1])


def _condition(formula: Formula, columns: Mapping[str, int]) -> str:
    """Return a formula of bounds, "" where it is true anyway."""
    if isinstance(formula, Join):
        parts = [_condition(part, columns) for part in formula.parts]
        text = (" AND " if formula.all else " OR ").join(parts)
        return f"({text})" if len(parts) > 1 else text
    assert isinstance(formula, Bound)
    return f"p{columns[formula.label]} {formula.sign} CAST({formula.value:.16e} AS FLOAT)"


def _lowered(formula: Formula, top: bool) -> Formula:
    """Return the formula with `dog > 0.8` as dog and a bound; at the top, where `gate` applies them, without bounds."""
    match formula:
        case Join(all, parts):
            return joined(all, (_lowered(part, top and all) for part in parts))
        case Bound(label, sign):
            return joined(True, [*([LabelTerm(label)] if sign[0] == ">" else []), *([] if top else [formula])])
    return formula


class _Planner:
    """Makes the `steps` of one plan; counts what they cost to make and to compute, and stops at `MOST_STEPS`."""

    def __init__(self, order: Mapping[str, int]) -> None:
        self._order, self._size = order, 0
        self.steps: dict[PlanStep, int] = {}
        self._known: dict[Formula, int] = {}

    def expanded(self, formula: Formula) -> int:
        """Return the step of a formula, split by the labels that occur twice."""
        if formula in self._known:
            return self._known[formula]
        counts = Counter(leaf.label for leaf in leaves(formula) if isinstance(leaf, LabelTerm))
        if twice := [label for label, n in counts.items() if n > 1]:
            self._count(1)
            first = min(twice, key=self._order.__getitem__)
            step = self._split(first, *(self.expanded(_given(formula, first, present)) for present in (True, False)))
        else:
            step = self._arithmetic(formula)
        return self._known.setdefault(formula, step)

    def _split(self, label: str, yes: int, no: int) -> int:
        """Return the split by a label, or a shorter step with bitwise the same value."""
        never = self.steps.get(PlanStep("constant", value=0.0))
        if never in (yes, no):
            factor = self._step(PlanStep("factor", label=label, value=float(no == never)))
            return self._product([factor, yes if no == never else no])
        return self._step(PlanStep("split", (yes, no), label))

    def _arithmetic(self, formula: Formula) -> int:
        """Return the step of a formula in which no label occurs twice."""
        match formula:
            case LabelTerm(label, present):
                return self._step(PlanStep("factor", label=label, value=float(present)))
            case Bound():
                return self._step(PlanStep("holds", bound=formula))
            case Join(True, parts):
                return self._product(map(self._arithmetic, sorted(parts, key=self._place)))
            case _ if formula == FALSE:
                return self._step(PlanStep("constant", value=0.0))
        return self._step(PlanStep("complement", (self._arithmetic(negated(formula)),)))

    def _place(self, part: Formula) -> int:
        """Return the position of its first label; a part without one is exactly 0 or 1, and may stand anywhere."""
        return min((self._order[leaf.label] for leaf in leaves(part) if isinstance(leaf, LabelTerm)), default=1 << 62)

    def _product(self, parts: Iterable[int]) -> int:
        """Return the product of steps without those that are 1."""
        certain = PlanStep("constant")
        factors = tuple(part for part in parts if part != self.steps.get(certain))
        if len(factors) == 1:
            return factors[0]
        return self._step(PlanStep("product", factors) if factors else certain)

    def _step(self, step: PlanStep) -> int:
        if step not in self.steps:
            self._count(max(1, len(step.parts)))
        return self.steps.setdefault(step, len(self.steps))

    def _count(self, more: int) -> None:
        self._size += more
        if self._size > MOST_STEPS:
            raise TooLarge


def _given(formula: Formula, label: str, present: bool) -> Formula:
    """Return the formula given that a label is present or absent; bounds on it stay."""
    known: dict[Formula, Formula] = {LabelTerm(label, present): TRUE, LabelTerm(label, not present): FALSE}
    return replaced(formula, lambda leaf: known.get(leaf, leaf))
