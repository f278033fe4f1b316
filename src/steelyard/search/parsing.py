"""From the text of a query to its formula, or to an error with a caret under the place."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, cast

from steelyard.search.formula import KEYWORDS, WORD, All, Bound, Formula, Sign, Some, Term, negated, quoted, single

MOST_CHARACTERS: Final = 10_000
MOST_TERMS: Final = 200
_DEEPEST = 50
_SHOWN = 72
_SIGNS = {"≥": ">=", "≤": "<=", "=>": ">=", "=<": "<="}
_TOKEN = re.compile(
    r'(?P<space>\s+)|(?P<sign>>=|<=|=>|=<|[<>≥≤])|(?P<quote>")|(?P<mark>[()&|~!-])|(?P<word>' + WORD.pattern + ")"
)
_NUMBER = re.compile(r"(\d++\.?\d*+|\.\d++)([eE][+-]?\d++)?", re.ASCII)  # possessive: never tried twice


class QueryError(ValueError):
    """A query that cannot be answered: what is wrong, and where.

    text: the query.
    at: the place, a position in it.
    what: the sentence without the picture.
    """

    def __init__(self, what: str, text: str, at: int) -> None:
        self.what, self.text, self.at = _printable(what), text, min(max(at, 0), len(text))
        super().__init__(self.what)

    def __str__(self) -> str:
        start = max(0, min(self.at - _SHOWN // 2, len(self.text) - _SHOWN))
        part = _printable(self.text[start : start + _SHOWN])
        before, after = "…" * (start > 0), "…" * (start + _SHOWN < len(self.text))
        return f"{self.what}\n  {before}{part}{after}\n  {' ' * (len(before) + self.at - start)}^"

    def __reduce__(self) -> tuple[type[QueryError], tuple[str, str, int]]:
        return QueryError, (self.what, self.text, self.at)


class Token(NamedTuple):
    """A piece of the text."""

    kind: str
    """"label", "sign", a keyword, a parenthesis, or "end"."""
    value: str
    at: int


class Parsed(NamedTuple):
    """A formula, and where each label is first written."""

    formula: Formula
    places: dict[str, int]


def parse(text: str) -> Parsed:
    """Return the formula of a text."""
    if not isinstance(text, str):
        raise ValueError(f"the query is a {type(text).__name__}: give a text such as 'dog & ~car'")
    if len(text) > MOST_CHARACTERS:
        raise QueryError(
            f"the query has {len(text):,} characters: write at most {MOST_CHARACTERS:,}", text, MOST_CHARACTERS
        )
    return _Parser(text).whole()


def check_label(label: str, names: Sequence[str], text: str, at: int) -> None:
    """Raise, with suggestions, unless a label is one of `names`."""
    if label in names:
        return
    near = suggestions(label, names)
    advice = f"did you mean {_listed([quoted(name) for name in near])}?" if near else "give a label of the index"
    raise QueryError(f"there is no label {_short(label)!r}: {advice}", text, at)


def suggestions(label: str, names: Sequence[str], most: int = 3) -> list[str]:
    """Return the names that are most like a label: but for case, by spelling, or with it as one of their words."""
    word = label.casefold().strip()
    folded: dict[str, str] = {}
    for name in names:
        folded.setdefault(name.casefold().strip(), name)
    found = [folded[word]] if word in folded else []
    found += [folded[near] for near in difflib.get_close_matches(word[:80], list(folded), most, 0.6)]
    if word:
        found += [name for fold, name in folded.items() if word in re.split(r"\W+", fold)]
    return list(dict.fromkeys(found))[:most]


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.places, self.depth, self.terms = text, dict[str, int](), 0, 0
        self.tokens = _tokens(text)
        self.here = next(self.tokens)

    def whole(self) -> Parsed:
        if self.here.kind == "end":
            raise QueryError("the query is empty: write labels, such as dog & ~car", self.text, 0)
        formula = self.either()
        if self.here.kind != "end":
            raise self.unexpected("a label, AND, OR or the end")
        return Parsed(formula, self.places)

    def either(self) -> Formula:
        parts = [self.both()]
        while self.here.kind == "OR":
            self.step()
            parts.append(self.both())
        return parts[0] if len(parts) == 1 else Some(_flat(parts, Some))

    def both(self) -> Formula:
        parts = [self.sole()]
        while self.here.kind in ("AND", "NOT", "label", "("):
            if self.here.kind == "AND":
                self.step()
            parts.append(self.sole())
        return parts[0] if len(parts) == 1 else All(_flat(parts, All))

    def sole(self) -> Formula:
        flip = False
        while self.here.kind == "NOT":
            self.step()
            flip = not flip
        formula = self.inner() if self.here.kind == "(" else self.leaf()
        return negated(formula) if flip else formula

    def inner(self) -> Formula:
        opened = self.step()
        self.depth += 1
        if self.depth > _DEEPEST:
            raise QueryError(f"parentheses lie more than {_DEEPEST} deep: write less of them", self.text, opened.at)
        formula = self.either()
        if self.here.kind != ")":
            if self.here.kind == "end":
                raise QueryError("this parenthesis is not closed: write ) after what it holds", self.text, opened.at)
            raise self.unexpected("a label, AND, OR or )")
        self.step()
        self.depth -= 1
        return formula

    def leaf(self) -> Formula:
        if self.here.kind != "label":
            raise self.unexpected("a label")
        label = self.step()
        self.terms += 1
        if self.terms > MOST_TERMS:
            raise QueryError(f"the query has more than {MOST_TERMS} terms: write fewer", self.text, label.at)
        self.places.setdefault(label.value, label.at)
        if self.here.kind != "sign":
            return Term(label.value)
        sign, number = self.step(), self.here
        if number.kind != "label" or not _NUMBER.fullmatch(number.value) or self.text[number.at] == '"':
            raise self.unexpected(f"a number between 0 and 1 after {sign.value}")
        value = float(number.value)
        if not 0 <= value <= 1:
            raise QueryError(
                f"{_short(number.value)} is no probability: give 0 to 1, such as 0.8", self.text, number.at
            )
        self.step()
        return Bound(label.value, cast(Sign, sign.value), single(value))

    def step(self) -> Token:
        token, self.here = self.here, next(self.tokens)
        return token

    def unexpected(self, wanted: str) -> QueryError:
        found = "the query ends" if self.here.kind == "end" else f"{_short(self.here.value)!r} stands"
        return QueryError(f"{found} where {wanted} is expected", self.text, self.here.at)


def _tokens(text: str) -> Iterator[Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            hint = {"=": "compare by > >= < or <=", ",": "join labels by AND or a space"}.get(
                text[at], "put the label in quotes"
            )
            raise QueryError(f"{text[at]!r} cannot stand here: {hint}", text, at)
        value, start, at = found.group(), at, found.end()
        match found.lastgroup:
            case "quote":
                label, at = _label_in_quotes(text, start)
                yield Token("label", label, start)
            case "sign":
                yield Token("sign", _SIGNS.get(value, value), start)
            case "mark":
                kind = {"&": "AND", "|": "OR", "~": "NOT", "!": "NOT", "-": "NOT"}.get(value, value)
                if value in "&|" and text.startswith(value, at):  # && and || as in programs
                    at += 1
                yield Token(kind, value, start)
            case "word":
                yield Token(value.upper() if value.upper() in KEYWORDS else "label", value, start)
            case _:
                pass
    while True:
        yield Token("end", "", len(text))


def _label_in_quotes(text: str, start: int) -> tuple[str, int]:
    """Return the label and where the text goes on after it."""
    label, at = list[str](), start + 1
    while at < len(text):
        match text[at]:
            case '"':
                return "".join(label), at + 1
            case "\\":
                if text[at + 1 : at + 2] not in ('"', "\\"):
                    raise QueryError('a backslash in quotes stands before " or \\ only: write \\\\ for one', text, at)
                label.append(text[at + 1])
                at += 2
            case character:
                label.append(character)
                at += 1
    raise QueryError('this quote is not closed: write " after the label', text, start)


def _flat(parts: list[Formula], kind: type[All] | type[Some]) -> tuple[Formula, ...]:
    return tuple(p for part in parts for p in (part.parts if isinstance(part, kind) else (part,)))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "·" for c in text)


def _short(label: str) -> str:
    return label if len(label) <= 40 else label[:39] + "…"


def _listed(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"
