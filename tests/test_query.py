"""Queries: what is read, what is refused and where, and scores against brute force."""

from __future__ import annotations

import os
import pickle
import random
import re
import time
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from query_reference import conjunction, labels_of, random_query, scores, text_of, without_not
from steelyard.search.formula import MOST_CHARACTERS, suggestions
from steelyard.search.query import Query, QueryError

NAMES = [
    "dog",
    "person",
    "car",
    "traffic light",
    "or",
    'a"b\\',
    "",
    "t-shirt",
    "Dog",
    "n\nl",
    "x'; DROP TABLE items; --",
]
FUZZED = int(os.environ.get("STEELYARD_FUZZED_QUERIES", "4000"))
ETA = np.random.default_rng(0).random((50, len(NAMES))).astype(np.float32)


def score(text: str, **eta: float) -> float:
    return float(Query.parse(text).score([list(eta.values())], list(eta))[0])


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("dog person -car", "dog & person & ~car"),
        ("dog AND person AND NOT car", "dog & person & ~car"),
        ("dog and not car or person", "(dog & ~car) | person"),
        ("dog | person car", "dog | (person & car)"),
        ("~dog | person", "(~dog) | person"),
        ("~(dog & ~person | car)", "(~dog | person) & ~car"),
        ("~~dog !!car - -person", "dog & car & person"),
        ("dog && car || person", "dog & car | person"),
        ('"dog" "traffic light"', 'dog & "traffic light"'),
        ("dog>.8", "dog > 0.8"),
        ("dog ≥ 8e-1", "dog >= 0.8"),
        ("~(dog > 0.8)", "dog <= 0.8"),
        ("not dog < 0.5", "dog >= 0.5"),
        ("((dog))", "dog"),
        ("dog(car)", "dog & car"),
        ("dog\n\tcar", "dog & car"),
    ],
)
def test_ways_to_write_the_same(text: str, same: str) -> None:
    assert Query.parse(text) == Query.parse(same)
    assert hash(Query.parse(text)) == hash(Query.parse(same))


def test_what_is_written_is_read_back() -> None:
    g = random.Random(1)
    for _ in range(500):
        query = Query.parse(text_of(g, random_query(g, len(NAMES)), NAMES), NAMES)
        assert Query.parse(str(query), NAMES) == query
        assert eval(repr(query)) == query


def test_labels_and_terms() -> None:
    query = Query.parse("person -car (dog | ~person)")
    assert query.labels == ("person", "car", "dog")
    assert query.terms == (("person", True), ("car", False), ("dog", True), ("person", False))
    assert Query.parse("person -car (dog | ~person)", NAMES).labels == ("dog", "person", "car")
    assert Query.parse("dog > .2 & car < .3").terms == (("dog", True), ("car", False))
    assert Query.parse('"a\\"b\\\\" ""').labels == ('a"b\\', "")
    assert Query.parse("t-shirt -t-shirt2 3d").labels == ("t-shirt", "t-shirt2", "3d")


@pytest.mark.parametrize(
    ("text", "at", "says"),
    [
        ("", 0, "empty"),
        ("  ", 0, "empty"),
        ("dog & ", 6, "ends where a label"),
        ("dog & | car", 6, "'|' stands where a label"),
        ("dog AND OR car", 8, "'OR' stands where a label"),
        ("(dog", 0, "not closed"),
        ("dog)", 3, "')' stands where"),
        ("()", 1, "')' stands where a label"),
        ('dog "car', 4, "quote is not closed"),
        ('"d\\og"', 2, "backslash"),
        ("dog > 1.5", 6, "no probability"),
        ("dog > car", 6, "a number between 0 and 1"),
        ('dog > "0.5"', 6, "a number between 0 and 1"),
        ("dog > -0.5", 6, "a number between 0 and 1"),
        ("dog >", 5, "a number between 0 and 1"),
        ("> 0.5", 0, "a label"),
        ("dog = 0.5", 4, "compare by"),
        ("dog, car", 3, "join labels"),
        ("person dgo", 7, "did you mean dog"),
        ("light", 0, 'did you mean "traffic light"?'),
        ("CAR", 0, "did you mean car"),
        ("zebra", 0, "the labels are "),
        ("(" * 60 + "dog" + ")" * 60, 50, "more than 50 deep"),
        ("dog " * 201, 800, "more than 200 terms"),
        ("x" * (MOST_CHARACTERS + 1), MOST_CHARACTERS, "at most 10,000"),
    ],
)
def test_an_error_shows_the_place(text: str, at: int, says: str) -> None:
    with pytest.raises(QueryError, match=re.escape(says)) as caught:
        Query.parse(text, NAMES)
    error = caught.value
    assert (error.text, error.at) == (text, at)
    what, shown, caret = str(error).split("\n")
    assert what == error.what
    assert caret.strip() == "^"
    if at < len(text):
        assert shown[caret.index("^")] == text[at]
    assert len(shown) < 80
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)


def test_an_error_stays_on_its_lines_whatever_the_query_holds() -> None:
    with pytest.raises(QueryError) as caught:
        Query.parse('"a\nb\x1b[31m" zebra', NAMES)
    assert str(caught.value).count("\n") == 2
    assert "\x1b" not in str(caught.value)


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(ValueError, match="give a text"):
        Query.parse(None)  # type: ignore[arg-type]


def test_suggestions() -> None:
    assert suggestions("trafic", NAMES) == ["traffic light"]
    assert suggestions("DOG", NAMES)[:1] == ["dog"]
    assert suggestions("", ["a"]) == []
    assert suggestions("x" * 10_000, NAMES) == []


def test_the_algebra() -> None:
    assert score("a & a & a", a=0.3) == 0.3
    assert score("a & ~a", a=0.3) == 0
    assert score("a | ~a", a=0.3) == 1
    assert score("a | a", a=0.3) == pytest.approx(0.3)
    assert score("a & b", a=0.3, b=0.5) == 0.15
    assert score("a | b", a=0.3, b=0.5) == 1 - 0.7 * 0.5
    assert score("(a | b) & (a | ~b)", a=0.3, b=0.5) == pytest.approx(0.3)
    assert score("a -b", a=0.3, b=0.25) == 0.3 * 0.75
    assert score("c b a", a=0.1, b=0.7, c=0.3) == (0.1 * 0.7) * 0.3 != 0.1 * (0.7 * 0.3)
    assert score("c c b a", a=0.1, b=0.7, c=0.3) == (0.1 * 0.7) * 0.3


def test_bounds() -> None:
    near = float(np.float32(0.7))
    assert score("a > 0.5", a=0.6) == 0.6
    assert score("a > 0.5", a=0.5) == score("a > 0.5", a=0.4) == 0
    assert score("a >= 0.7", a=near) == near
    assert score("a > 0.7", a=near) == 0
    assert score("a < 0.5", a=0.2) == 1
    assert score("a < 0.5 & b", a=0.2, b=0.3) == 0.3
    assert score("a > .2 & a < .5", a=0.3) == 0.3
    assert score("a & a > .2", a=0.3) == 0.3
    assert score("a > 0.5 | b", a=0.4, b=0.3) == pytest.approx(0.3)
    assert score("a > 0.5 | b", a=0.6, b=0.3) == pytest.approx(1 - 0.4 * 0.7)
    query = Query.parse("a > .5 & b")
    assert query.admits([[0.6, 0], [0.4, 1]], ["a", "b"]).tolist() == [True, False]
    assert Query.parse("a > .5 | b").admits([[0.4, 0.0]], ["a", "b"]).tolist() == [True]


def table_of_truth(q: Any, p: Any) -> Any:
    """The sum over all assignments of the labels: what independence means, with nothing clever."""
    labels = sorted(set(labels_of(q)))

    def true(x: Any, row: Any, says: dict[int, bool]) -> bool:
        if x[0] in ("and", "or"):
            return (all if x[0] == "and" else any)(true(y, row, says) for y in x[1:])
        if x[0] in ("is", "isn't"):
            return says[x[1]] == (x[0] == "is")
        value, bound = row[x[1]], float(np.float32(x[2]))
        return {">": value > bound, ">=": value >= bound, "<": value < bound, "<=": value <= bound}[x[0]]

    total = np.zeros(len(p))
    for values in product((True, False), repeat=len(labels)):
        says = dict(zip(labels, values, strict=True))
        weight = np.prod([np.ones(len(p)), *(p[:, i] if says[i] else 1 - p[:, i] for i in labels)], axis=0)
        total += weight * [true(q, row, says) for row in p]
    return total


def with_terms(q: Any) -> Any:
    """A bound from below names its label too."""
    if q[0] in ("and", "or"):
        return (q[0], *map(with_terms, q[1:]))
    return ("and", ("is", q[1]), q) if q[0][0] == ">" else q


def test_scores_are_the_sum_over_all_assignments() -> None:
    g = random.Random(2)
    p = np.random.default_rng(1).random((6, 5)).astype(np.float32).astype(np.float64)
    names = list("abcde")
    for _ in range(150):
        q = random_query(g, 5)
        found = Query.parse(text_of(g, q, names), names).score(p, names)
        np.testing.assert_allclose(found, table_of_truth(with_terms(without_not(q)), p), rtol=0, atol=1e-12)


def test_scores_are_bit_by_bit_those_of_the_reference() -> None:
    g = random.Random(3)
    p = ETA.astype(np.float64)
    for i in range(400):
        q = random_query(g, len(NAMES)) if i % 2 else conjunction(g, len(NAMES))
        query = Query.parse(text_of(g, q, NAMES), NAMES)
        wanted, admits = scores(q, p)
        np.testing.assert_array_equal(query.score(p, NAMES), wanted)
        np.testing.assert_array_equal(query.admits(p, NAMES), admits)


def test_many_labels_may_repeat_where_the_plan_stays_small() -> None:
    names = [f"x{i}" for i in range(14)]
    p = np.random.default_rng(3).random((3, 14))
    found = Query.parse(" & ".join(f"(x{i} | x{i + 1})" for i in range(13)), names).score(p, names)
    state = np.stack([1 - p[:, 0], p[:, 0]], 1)  # (x_i absent, x_i present), none of the pairs before lacking both
    for i in range(1, 14):
        state = np.stack([state[:, 1] * (1 - p[:, i]), state.sum(1) * p[:, i]], 1)
    np.testing.assert_allclose(found, state.sum(1), rtol=1e-12)


def test_score_checks_its_table() -> None:
    with pytest.raises(ValueError, match=r"shape \(2, 3\): give \(N, 1\)"):
        Query.parse("dog").score(np.zeros((2, 3)), ["dog"])
    with pytest.raises(QueryError, match="no label 'dog'"):
        Query.parse("dog").score(np.zeros((2, 1)), ["cat"])
    for call in (lambda: Query.parse("dog", "hotdog"), lambda: Query.parse("dog").score(np.zeros((2, 6)), "hotdog")):
        with pytest.raises(ValueError, match="names is the single string 'hotdog'"):
            call()


SQL = re.compile(
    r"(SELECT|FROM|WHERE|AND|OR|ORDER|BY|ASC|DESC|LIMIT 9|AS|CASE|WHEN|THEN|ELSE|END|CAST|DOUBLE|FLOAT"
    r"|id|score|scored|items|[ps]\d+|[01]e0|\d\.\d{16}e[+-]\d\d|[ ,()*+<>=-])*"
)


def sql_of(query: Query, names: list[str]) -> str:
    return query.statement(names).best("items", "id", "id", 9)


def answered(text: str) -> bool:
    """Whether a text is a query; then nothing of it is in its SQL."""
    query, error = None, None
    try:
        query = Query.parse(text, NAMES)
    except QueryError as refused:
        error = refused
    if query is None:
        assert 0 <= error.at <= len(text)
        assert str(error).count("\n") == 2
        return False
    assert SQL.fullmatch(sql_of(query, NAMES))
    found = query.score(ETA, NAMES)
    assert ((found >= -1e-12) & (found <= 1 + 1e-12)).all()
    return True


PIECES = (
    *("dog", "person", "car", '"traffic light"', '"or"', '""', "t-shirt", "AND", "OR", "NOT", "and", "&", "|", "~"),
    *("-", "!", "(", ")", "(", ")", ">", "<", ">=", "≤", "0.5", "1", ".25", "1e-3", "2"),
    *('"', "\\", "'", ";", "--", "/*", "\n", "\x00", "DROP TABLE items", "p0", "?", "$1", "<b>"),
    *("é", "𝄞", "\u202e", "\ud800", ",", "=", "%", "*", " ", " ", " ", " "),
)


def test_fuzzed_texts_are_a_query_or_an_error() -> None:
    g = random.Random(4)
    n_answered = 0
    for i in range(FUZZED):
        if i % 4 == 0:
            text = "".join(chr(g.choice((g.randrange(128), g.randrange(0x3000)))) for _ in range(g.randrange(30)))
        elif i % 4 == 1:
            text = g.choice(("", " ")).join(g.choice(PIECES) for _ in range(g.randrange(14)))
        else:
            text = text_of(g, random_query(g, len(NAMES)), NAMES)
            if i % 4 == 2:
                at = g.randrange(len(text))
                text = text[:at] + g.choice(PIECES) + text[at + g.randrange(3) :]
        n_answered += answered(text)
    assert FUZZED / 4 < n_answered < FUZZED


@settings(max_examples=300)
@given(st.text(max_size=60))
def test_any_text_is_a_query_or_an_error(text: str) -> None:
    answered(text)


@settings(max_examples=200)
@given(st.lists(st.text(max_size=12), min_size=1, max_size=4, unique=True))
def test_any_label_can_be_asked_for(names: list[str]) -> None:
    from steelyard.search.formula import quoted

    query = Query.parse(" ".join(map(quoted, names)), names)
    assert query.labels == tuple(names)
    assert all(name not in sql_of(query, names) for name in names if len(name) > 8)


def clauses(n: int, labels: int, per: int, seed: int = 0) -> str:
    g = random.Random(seed)
    return " | ".join("(" + " & ".join(g.sample([f"x{i}" for i in range(labels)], per)) + ")" for _ in range(n))


def test_a_query_whose_plan_explodes_is_refused_at_once() -> None:
    """66 clauses over 12 labels: 2¹² branches, once 27 CPU seconds and 2.8 GB."""
    names = [f"x{i}" for i in range(12)]
    began = time.process_time()
    with pytest.raises(QueryError, match=r"12 labels occur more than once, .* ask for its parts"):
        Query.parse(clauses(66, 12, 3)).statement(names)
    assert time.process_time() - began < 2


def test_shared_steps_are_written_and_worked_out_once() -> None:
    names = [f"x{i}" for i in range(12)]
    ring = Query.parse(" | ".join(f"(x{i} & x{(i + 1) % 12})" for i in range(12)), names)
    text = sql_of(ring, names)
    assert len(text) < 20_000
    assert re.search(r" AS s\d+", text)
    p = np.random.default_rng(0).random((40, 12)).astype(np.float32)
    query = ("or", *(("and", ("is", i), ("is", (i + 1) % 12)) for i in range(12)))
    np.testing.assert_array_equal(ring.score(p, names), scores(query, p.astype(np.float64))[0])
