"""What a query asks: labels and bounds, joined by and, or and not, with not at the leaves only."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal, TypeAlias, final

Sign: TypeAlias = Literal[">", ">=", "<", "<="]
OPPOSITE: Final[dict[Sign, Sign]] = {">": "<=", "<=": ">", "<": ">=", ">=": "<"}
KEYWORDS: Final = ("AND", "OR", "NOT")
WORD: Final = re.compile(r'[^\s()&|~!"<>=≥≤,;-][^\s()&|~!"<>=≥≤,;]*')
"""A label that needs no quotes."""


@final
@dataclass(frozen=True)
class Term:
    """A label that is wanted, or not wanted."""

    label: str
    wanted: bool = True

    def __str__(self) -> str:
        return ("" if self.wanted else "~") + quoted(self.label)


@final
@dataclass(frozen=True)
class Bound:
    """A label whose probability lies above or below a value."""

    label: str
    sign: Sign
    value: float
    """Of float32, as probabilities are kept: `dog >= 0.7` holds for what was written as 0.7."""

    def __str__(self) -> str:
        digits = next(text for n in range(1, 18) if single(float(text := f"{self.value:.{n}g}")) == self.value)
        return f"{quoted(self.label)} {self.sign} {Decimal(digits):f}"


@final
@dataclass(frozen=True)
class All:
    """Everything of it; of nothing, true."""

    parts: tuple[Formula, ...]

    def __str__(self) -> str:
        return " & ".join(f"({part})" if isinstance(part, Some) else str(part) for part in self.parts)


@final
@dataclass(frozen=True)
class Some:
    """At least one of it; of nothing, false."""

    parts: tuple[Formula, ...]

    def __str__(self) -> str:
        return " | ".join(map(str, self.parts))


Formula: TypeAlias = Term | Bound | All | Some
TRUE: Final = All(())
FALSE: Final = Some(())


def single(value: float) -> float:
    """Return the float32 that is nearest to a value."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def quoted(label: str) -> str:
    """Return a label as it is written in a query."""
    if WORD.fullmatch(label) and label.upper() not in KEYWORDS:
        return label
    return '"' + label.replace("\\", "\\\\").replace('"', '\\"') + '"'


def negated(formula: Formula) -> Formula:
    """Return what holds where `formula` does not, by De Morgan's laws."""
    if isinstance(formula, Term):
        return Term(formula.label, not formula.wanted)
    if isinstance(formula, Bound):
        return Bound(formula.label, OPPOSITE[formula.sign], formula.value)
    parts = tuple(map(negated, formula.parts))
    return Some(parts) if isinstance(formula, All) else All(parts)


def every(parts: Iterable[Formula]) -> Formula:
    """Return the conjunction: flat, each part once, false where one is."""
    flat = dict.fromkeys(p for part in parts for p in (part.parts if isinstance(part, All) else (part,)))
    if FALSE in flat:
        return FALSE
    return next(iter(flat)) if len(flat) == 1 else All(tuple(flat))


def some(parts: Iterable[Formula]) -> Formula:
    """Return the disjunction: flat, each part once, true where one is."""
    flat = dict.fromkeys(p for part in parts for p in (part.parts if isinstance(part, Some) else (part,)))
    if TRUE in flat:
        return TRUE
    return next(iter(flat)) if len(flat) == 1 else Some(tuple(flat))


def leaves(formula: Formula) -> Iterator[Term | Bound]:
    """Yield the leaves, in the order they are written."""
    if isinstance(formula, All | Some):
        for part in formula.parts:
            yield from leaves(part)
    else:
        yield formula


def given(formula: Formula, label: str, present: bool) -> Formula:
    """Return what is left to ask once it is known whether a label is present; bounds on it stay."""
    if isinstance(formula, Term):
        return formula if formula.label != label else (TRUE if formula.wanted == present else FALSE)
    if isinstance(formula, Bound):
        return formula
    parts = (given(part, label, present) for part in formula.parts)
    return every(parts) if isinstance(formula, All) else some(parts)
