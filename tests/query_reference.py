"""Random queries as nested tuples, their texts, and their scores computed anew in float64: what search is tested by.

A query is ("is", label), (">", label, value) with any of the four signs, ("not", query), ("and", …) or ("or", …),
labels given by their numbers.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

COMPARE = {">": np.greater, ">=": np.greater_equal, "<": np.less, "<=": np.less_equal}
OPPOSITE = {">": "<=", "<=": ">", "<": ">=", ">=": "<", "and": "or", "or": "and", "is": "isn't", "isn't": "is"}


def scores(query: Any, p: Any) -> tuple[Any, Any]:
    """The score of every row of p (N, L), float64, and whether bounds admit it."""
    pure = without_not(query)
    return np.where(admitted(pure, p), expanded(lowered(pure, True), p), 0.0), admitted(pure, p)


def without_not(q: Any, no: bool = False) -> Any:
    if q[0] == "not":
        return without_not(q[1], not no)
    kind = OPPOSITE[q[0]] if no else q[0]
    return (kind, *(without_not(x, no) for x in q[1:])) if kind in ("and", "or") else (kind, *q[1:])


def admitted(q: Any, p: Any) -> Any:
    if q[0] in COMPARE:
        return COMPARE[q[0]](p[:, q[1]], np.float32(q[2]))
    if q[0] in ("and", "or"):
        return (np.all if q[0] == "and" else np.any)([admitted(x, p) for x in q[1:]], axis=0)
    return np.ones(len(p), bool)


def lowered(q: Any, top: bool) -> Any:
    """Above a bound is the label itself; on top the bounds are seen to by `admitted`."""
    if q[0] in COMPARE:
        return joined("and", [*([("is", q[1])] if q[0][0] == ">" else []), *([] if top else [q])])
    if q[0] in ("and", "or"):
        return joined(q[0], [lowered(x, top and q[0] == "and") for x in q[1:]])
    return q


def joined(kind: str, parts: list[Any]) -> Any:
    flat: list[Any] = []
    for part in parts:
        flat += [x for x in (part[1:] if part[0] == kind else [part]) if x not in flat]
    return (OPPOSITE[kind],) if (OPPOSITE[kind],) in flat else flat[0] if len(flat) == 1 else (kind, *flat)


def labels_of(q: Any) -> list[int]:
    return [q[1]] if q[0] in ("is", "isn't") else [] if q[0] in COMPARE else [i for x in q[1:] for i in labels_of(x)]


def expanded(q: Any, p: Any) -> Any:
    """With a repeated label and without it, else the product in the order of the labels."""

    def given(x: Any, label: int, there: bool) -> Any:
        if x[0] in ("and", "or"):
            return joined(x[0], [given(y, label, there) for y in x[1:]])
        if x[0] in ("is", "isn't") and x[1] == label:
            return ("and",) if (x[0] == "is") == there else ("or",)
        return x

    all_labels = labels_of(q)
    if twice := [i for i in all_labels if all_labels.count(i) > 1]:
        i = min(twice)
        return p[:, i] * expanded(given(q, i, True), p) + (1 - p[:, i]) * expanded(given(q, i, False), p)
    if q[0] == "or":
        return 1 - expanded(without_not(q, no=True), p) if len(q) > 1 else np.zeros(len(p))
    if q[0] == "and":
        product = np.ones(len(p))
        for x in sorted(q[1:], key=lambda x: min(labels_of(x), default=10**9)):
            product = product * expanded(x, p)
        return product
    return p[:, q[1]] if q[0] == "is" else 1 - p[:, q[1]] if q[0] == "isn't" else admitted(q, p).astype(float)


def ranking(query: Any, p: Any, ids: list[str], k: int) -> list[tuple[str, float]]:
    score, fits = scores(query, np.asarray(p, np.float64))
    best = sorted(np.flatnonzero(fits).tolist(), key=lambda i: (-score[i], ids[i]))
    return [(ids[i], float(score[i])) for i in best[:k]]


def random_query(g: random.Random, n_labels: int, depth: int = 3) -> Any:
    if depth == 0 or g.random() < 0.25:
        label = g.randrange(n_labels)
        return ("is", label) if g.random() < 0.8 else (g.choice(list(COMPARE)), label, g.randrange(101) / 100)
    if g.random() < 0.2:
        return ("not", random_query(g, n_labels, depth - 1))
    return (g.choice(("and", "and", "or")), *(random_query(g, n_labels, depth - 1) for _ in range(g.choice((2, 2, 3)))))


def conjunction(g: random.Random, n_labels: int, most: int = 6) -> Any:
    """Wanted and unwanted labels, each once: what people ask."""
    terms = [
        ("is", i) if g.random() < 0.6 else ("not", ("is", i)) for i in g.sample(range(n_labels), g.randint(1, most))
    ]
    return terms[0] if len(terms) == 1 else ("and", *terms)


def text_of(g: random.Random, q: Any, names: list[str]) -> str:
    """One of the many ways to write a query."""
    if q[0] == "not":
        inner = text_of(g, q[1], names)
        return g.choice(("~", "NOT ", "-", "! ", "not ")) + (f"({inner})" if q[1][0] in ("and", "or") else inner)
    if q[0] in ("and", "or"):
        parts = [text_of(g, x, names) for x in q[1:]]
        parts = [f"({t})" if x[0] in ("and", "or") else t for x, t in zip(q[1:], parts, strict=True)]
        return g.choice((" & ", " AND ", " ", "&&", " and ") if q[0] == "and" else ("|", " OR ", " || ", " or ")).join(
            parts
        )
    name = names[q[1]]
    bare = name.isidentifier() and name.upper() not in ("AND", "OR", "NOT") and g.random() < 0.7
    word = name if bare else '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return word if q[0] == "is" else f"{word}{g.choice((' ', ''))}{q[0]}{g.choice((' ', ''))}{q[2]}"
