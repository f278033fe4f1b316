"""Queries: parsed text, its labels, and the scores of items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, final

from steelyard.search.formula import Formula, LabelTerm, Parser, QueryError, leaves, quoted, short, suggestions
from steelyard.search.plan import Plan, Statement, TooLarge, evaluate, gate, holds, plan, repeated, statement

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Floats: TypeAlias = NDArray[np.float64]

__all__ = ["Query", "QueryError"]


@final
@dataclass(frozen=True, repr=False)
class Query:
    """A query for labels that should be present or absent, made by `Query.parse`.

        dog & person & ~car      dog person -car      dog AND NOT (car OR bus)      "traffic light" | dog > 0.8

    NOT (`~`, `!`, `-`) binds before AND (`&`, or nothing), AND before OR (`|`). The score of an item is the probability
    that the whole is true if labels were independent given the item; exact also where labels repeat, see `plan`.
    A bound admits only items on its side: `dog > 0.8` is dog where η exceeds .8; `dog < 0.8` has no score of
    its own; NOT turns one into the other.

    Examples:
        >>> query = sy.search.Query.parse("dog & ~car")
        >>> query.labels, query.terms
        (('dog', 'car'), (('dog', True), ('car', False)))
        >>> query.score(np.array([[0.5, 0.25]]), ["dog", "car"]).tolist()
        [0.375]
    """

    text: str = field(compare=False)
    """The query as written."""
    formula: Formula
    """The parsed query; NOT stands at its leaves only."""
    _positions: dict[str, int] = field(compare=False)

    @classmethod
    def parse(cls, text: str, names: Sequence[str] | None = None) -> Query:
        """Return the query written in `text`; with `names`, a label that is not one of them is an error.

        Text that is no query raises a `QueryError` that shows the position.
        """
        parser = Parser(text)
        query = cls(text, parser.whole(), parser.positions)
        known = parser.positions if names is None else query.columns(names)
        return cls(text, query.formula, {label: parser.positions[label] for label in known})

    def columns(self, names: Sequence[str]) -> dict[str, int]:
        """Return the position of each label in `names`, in their order; an unknown label is a `QueryError`."""
        if isinstance(names, str | bytes):
            raise ValueError(f"names is the single string {names!r:.60}: give one string for each")
        columns = {name: i for i, name in enumerate(names) if name in self._positions}
        for label, position in sorted(self._positions.items(), key=lambda pair: pair[1]):
            if label not in columns:
                near = " or ".join(map(quoted, suggestions(label, names)))
                some = ", ".join(quoted(short(name)) for name in names[:8])
                more = f" and {len(names) - 8:,} more" if len(names) > 8 else ""
                advice = f"did you mean {near}?" if near else f"the labels are {some}{more}"
                raise QueryError(f"there is no label {short(label)!r}: {advice}", self.text, position)
        return columns

    @property
    def labels(self) -> tuple[str, ...]:
        """The distinct labels, in the order of the names it was parsed with, else as written."""
        return tuple(self._positions)

    @property
    def terms(self) -> tuple[tuple[str, bool], ...]:
        """(label, whether it should be present) of every leaf, each once; only a lower bound counts as present."""
        signed = ((x.label, x.present if isinstance(x, LabelTerm) else x.sign[0] == ">") for x in leaves(self.formula))
        return tuple(dict.fromkeys(signed))

    def plan(self, names: Sequence[str]) -> Plan:
        """Return the arithmetic of the score, factors in the order of `names`; one that is too long is an error."""
        try:
            return plan(self.formula, self.columns(names))
        except TooLarge:
            again = repeated(self.formula)
            advice = "write each once, such as a & (b | c) for (a & b) | (a & c), or ask for its parts one by one"
            what = f"{len(again)} labels occur more than once, which makes the query too costly: {advice}"
            raise QueryError(what, self.text, min((self._positions[label] for label in again), default=0)) from None

    def statement(self, names: Sequence[str]) -> Statement:
        """Return the SQL of the query over labels `names`."""
        return statement(self.plan(names), self.formula, self.columns(names))

    def score(self, probabilities: ArrayLike, names: Sequence[str]) -> Floats:
        """Return the scores (N,), 0 where the bounds leave an item out, from probabilities (N, L) of labels `names`."""
        import numpy as np

        scores = evaluate(self.plan(names), self._eta(probabilities, names))[-1]
        return np.where(self.admits(probabilities, names), scores, 0.0)

    def admits(self, probabilities: ArrayLike, names: Sequence[str]) -> NDArray[np.bool_]:
        """Return which items (N,) meet the bounds."""
        import numpy as np

        return np.full(len(np.asarray(probabilities)), holds(gate(self.formula), self._eta(probabilities, names)))

    def _eta(self, probabilities: ArrayLike, names: Sequence[str]) -> dict[str, Floats]:
        import numpy as np

        table, columns = np.asarray(probabilities, np.float64), self.columns(names)
        if table.ndim != 2 or table.shape[1] != len(names):
            raise ValueError(f"probabilities has shape {table.shape}: give (N, {len(names)}), one column per name")
        return {label: table[:, j] for label, j in columns.items()}

    def __str__(self) -> str:
        return str(self.formula)

    def __repr__(self) -> str:
        return f"Query.parse({str(self)!r})"
