"""Parse query text into a formula: labels and bounds joined by AND and OR, with NOT at the leaves only."""

from __future__ import annotations

import difflib
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from typing import Final, NamedTuple, TypeAlias, final

MOST_CHARACTERS: Final = 10_000
MOST_TERMS: Final = 200
_DEEPEST: Final = 50
_SHOWN: Final = 72
_OPPOSITE: Final = {">": "<=", "<=": ">", "<": ">=", ">=": "<"}
_SIGNS: Final = {"≥": ">=", "≤": "<=", "=>": ">=", "=<": "<="}
_MARKS: Final = {"&": "AND", "&&": "AND", "|": "OR", "||": "OR", "~": "NOT", "!": "NOT", "-": "NOT"}
_KEYWORDS: Final = ("AND", "OR", "NOT")
_WORD: Final = re.compile(r'[^\s()&|~!"<>=≥≤,;-][^\s()&|~!"<>=≥≤,;]*')
_TOKEN: Final = re.compile(
    r'\s*(?:(?P<sign>>=|<=|=>|=<|[<>≥≤])|(?P<quoted>"(?:[^"\\]|\\.)*+")|(?P<mark>&&|\|\||[()&|~!-])|(?P<word>'
    + _WORD.pattern
    + "))",
    re.DOTALL,
)
_NUMBER: Final = re.compile(r"(\d++\.?\d*+|\.\d++)([eE][+-]?\d++)?", re.ASCII)  # possessive: no backtracking


class QueryError(ValueError):
    """A query that cannot be answered: `what` is wrong, and the position `at` in the `text`.

    Args:
        what: the fault and how to mend it, in one line.
        text: the query.
        at: the position of the fault, from 0.

    Examples:
        >>> try:
        ...     sy.search.Query.parse("dgo & cat", ["cat", "dog"])
        ... except sy.search.QueryError as error:
        ...     print(error)
        there is no label 'dgo': did you mean dog?
          dgo & cat
          ^
    """

    def __init__(self, what: str, text: str, at: int) -> None:
        self.what, self.text, self.at = _printable(what), text, min(at, len(text))
        super().__init__(self.what)

    def __str__(self) -> str:
        start = max(0, min(self.at - _SHOWN // 2, len(self.text) - _SHOWN))
        part = _printable(self.text[start : start + _SHOWN])
        before, after = "…" * (start > 0), "…" * (start + _SHOWN < len(self.text))
        return f"{self.what}\n  {before}{part}{after}\n  {' ' * (len(before) + self.at - start)}^"

    def __reduce__(self) -> tuple[type[QueryError], tuple[str, str, int]]:
        return QueryError, (self.what, self.text, self.at)


@final
@dataclass(frozen=True)
class LabelTerm:
    """A label that should be present, or absent."""

    label: str
    present: bool = True

    def __str__(self) -> str:
        return ("" if self.present else "~") + quoted(self.label)


@final
@dataclass(frozen=True)
class Bound:
    """A bound on the probability of a label."""

    label: str
    sign: str
    """One of > >= < <=."""
    value: float
    """Rounded to float32 like stored probabilities: `dog >= 0.7` holds for a probability stored as 0.7."""

    def __str__(self) -> str:
        digits = next(text for n in range(1, 10) if _single(float(text := f"{self.value:.{n}g}")) == self.value)
        return f"{quoted(self.label)} {self.sign} {Decimal(digits):f}"


@final
@dataclass(frozen=True)
class Join:
    """True if all parts are, or if at least one is; without parts, `all` is true and its opposite false."""

    all: bool
    parts: tuple[Formula, ...]

    def __str__(self) -> str:
        if self.all:
            return " & ".join(f"({part})" if isinstance(part, Join) else str(part) for part in self.parts)
        return " | ".join(map(str, self.parts))


Formula: TypeAlias = LabelTerm | Bound | Join
TRUE: Final = Join(True, ())
FALSE: Final = Join(False, ())


def joined(all: bool, parts: Iterable[Formula]) -> Formula:
    """Return the AND (`all`) or OR of the parts, flattened, without duplicates, simplified by true and false parts."""
    nested = (part.parts if isinstance(part, Join) and part.all == all else [part] for part in parts)
    flat = dict.fromkeys(chain.from_iterable(nested))
    if Join(not all, ()) in flat:
        return Join(not all, ())
    return next(iter(flat)) if len(flat) == 1 else Join(all, tuple(flat))


def replaced(formula: Formula, by: Callable[[LabelTerm | Bound], Formula]) -> Formula:
    """Return a formula with each leaf replaced."""
    if isinstance(formula, Join):
        return joined(formula.all, (replaced(part, by) for part in formula.parts))
    return by(formula)


def negated(formula: Formula) -> Formula:
    """Return the negation of a formula, by De Morgan's laws."""
    match formula:
        case LabelTerm(label, present):
            return LabelTerm(label, not present)
        case Bound(label, sign, value):
            return Bound(label, _OPPOSITE[sign], value)
        case Join(all, parts):
            return Join(not all, tuple(map(negated, parts)))


def leaves(formula: Formula) -> Iterator[LabelTerm | Bound]:
    """Return the leaves in the order in which they were written."""
    return chain.from_iterable(map(leaves, formula.parts)) if isinstance(formula, Join) else iter([formula])


def quoted(label: str) -> str:
    """Return a label as a query spells it, in quotes where needed."""
    if _WORD.fullmatch(label) and label.upper() not in _KEYWORDS:
        return label
    return '"' + label.replace("\\", "\\\\").replace('"', '\\"') + '"'


def suggestions(label: str, names: Sequence[str], most: int = 3) -> list[str]:
    """Return the names most similar to a label: equal but for case, of similar spelling, or with it as a word."""
    word = label.casefold().strip()
    folded = {name.casefold().strip(): name for name in reversed(names)}
    near = [word, *difflib.get_close_matches(word[:80], list(folded), most, 0.6)]
    near += [fold for fold in folded if word and word in re.split(r"\W+", fold)]
    return list(dict.fromkeys(folded[fold] for fold in near if fold in folded and word))[:most]


class Token(NamedTuple):
    """A piece of a text; its kind is label, sign, (, ), AND, OR, NOT or end."""

    kind: str
    value: str
    start: int


class Parser:
    """Parser of one text; after `whole`, `positions` gives where each label first occurs."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise ValueError(f"the query is a {type(text).__name__}: give a text such as 'dog & ~car'")
        self._text, self._depth, self._n_terms, self.positions = text, 0, 0, dict[str, int]()
        if len(text) > MOST_CHARACTERS:
            raise self._error(f"the query has {len(text):,} characters: write at most {MOST_CHARACTERS:,}", 10_000)
        self._tokens = _tokens(text)
        self._here = next(self._tokens)

    def whole(self) -> Formula:
        """Return the formula of the text."""
        if self._here.kind == "end":
            raise self._error("the query is empty: write labels, such as dog & ~car", 0)
        formula = self._either()
        if self._here.kind != "end":
            raise self._unexpected("a label, AND, OR or the end")
        return formula

    def _either(self) -> Formula:
        parts = [self._both()]
        while self._took("OR"):
            parts.append(self._both())
        return joined(False, parts)

    def _both(self) -> Formula:
        parts = [self._sole()]
        while self._took("AND") or self._here.kind in ("NOT", "label", "("):
            parts.append(self._sole())
        return joined(True, parts)

    def _sole(self) -> Formula:
        opened, turned = self._here.start, False
        while self._took("NOT"):
            opened, turned = self._here.start, not turned
        formula = self._inner(opened) if self._took("(") else self._leaf()
        return negated(formula) if turned else formula

    def _inner(self, opened: int) -> Formula:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error(f"parentheses lie more than {_DEEPEST} deep: write less of them", opened)
        formula = self._either()
        if self._here.kind == "end":
            raise self._error("this parenthesis is not closed: write ) after what it holds", opened)
        if not self._took(")"):
            raise self._unexpected("a label, AND, OR or )")
        self._depth -= 1
        return formula

    def _leaf(self) -> Formula:
        _, label, start = self._here
        if not self._took("label"):
            raise self._unexpected("a label")
        self._n_terms += 1
        if self._n_terms > MOST_TERMS:
            raise self._error(f"the query has more than {MOST_TERMS} terms: write fewer", start)
        self.positions.setdefault(label, start)
        sign = self._here.value
        if not self._took("sign"):
            return LabelTerm(label)
        _, number, start = self._here
        if not _NUMBER.fullmatch(number) or self._text[start] == '"':
            raise self._unexpected(f"a number between 0 and 1 after {sign}")
        if not 0 <= float(number) <= 1:
            raise self._error(f"{short(number)} is no probability: give 0 to 1, such as 0.8", start)
        self._here = next(self._tokens)
        return Bound(label, sign, _single(float(number)))

    def _took(self, kind: str) -> bool:
        """Consume a token of this kind; return whether there was one."""
        if self._here.kind != kind:
            return False
        self._here = next(self._tokens)
        return True

    def _error(self, what: str, at: int) -> QueryError:
        return QueryError(what, self._text, at)

    def _unexpected(self, expected: str) -> QueryError:
        present = "the query ends" if self._here.kind == "end" else f"{short(self._here.value)!r} stands"
        return self._error(f"{present} where {expected} is expected", self._here.start)


def _tokens(text: str) -> Iterator[Token]:
    at, end = 0, len(text.rstrip())
    while at < end:
        piece = _TOKEN.match(text, at)
        if piece is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            if text[at] == '"':
                raise QueryError('this quote is not closed: write " after the label', text, at)
            hints = {"=": "compare by > >= < or <=", ",": "join labels by AND or a space"}
            hint = hints.get(text[at], "put the label in quotes")
            raise QueryError(f"{text[at]!r} cannot stand here: {hint}", text, at)
        kind, at = str(piece.lastgroup), piece.end()
        value, start = piece[kind], piece.start(kind)
        if kind == "quoted":
            if wrong := re.search(r'(?<!\\)(?:\\\\)*(\\)[^"\\]', value, re.DOTALL):
                what = 'a backslash in quotes stands before " or \\ only: write \\\\ for one'
                raise QueryError(what, text, start + wrong.start(1))
            yield Token("label", re.sub(r"\\(.)", r"\1", value[1:-1]), start)
        elif kind == "word":
            yield Token(value.upper() if value.upper() in _KEYWORDS else "label", value, start)
        else:
            yield Token(_MARKS.get(value, value) if kind == "mark" else kind, _SIGNS.get(value, value), start)
    while True:
        yield Token("end", "", len(text))


def _single(value: float) -> float:
    """Return the float32 that is nearest to a value."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "·" for c in text)


def short(label: str) -> str:
    """Return a label, cut to 40 characters."""
    return label if len(label) <= 40 else label[:39] + "…"
