"""What is listed and what is drawn: the queries of retrieval, the items of a bootstrap."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np

from steelyard.metrics import bootstrap as boot
from steelyard.metrics.retrieval import Answers, draw_queries, every_query


def test_a_query_is_a_row_of_numbers_below_twice_the_labels() -> None:
    n_labels, k = 5, 3
    wanted = {
        tuple(c if present else n_labels + c for c, present in zip(labels, signs, strict=True))
        for labels in combinations(range(n_labels), k)
        for signs in product([True, False], repeat=k)
        if any(signs)
    }
    assert {tuple(q) for q in np.concatenate(list(every_query(n_labels, k)))} == wanted
    drawn = draw_queries(n_labels, k, 5000, np.random.default_rng(0))
    assert {tuple(q) for q in drawn} == wanted


def test_a_query_has_an_answer_where_an_item_has_all_it_asks_for() -> None:
    rng = np.random.default_rng(1)
    for n_items in (1, 7, 64, 65, 600):
        labels = rng.integers(-1, 2, (n_items, 6))
        holds = np.concatenate([labels == 1, labels == 0], axis=1)
        answers = Answers(labels == 1, labels == 0)
        for k in (1, 2, 3):
            queries = np.concatenate(list(every_query(6, k)))
            np.testing.assert_array_equal(answers.exist(queries), holds[:, queries].all(2).any(0))


def test_every_item_is_drawn_as_often_as_any_other() -> None:
    n, resamples = 50, 2000
    weights = boot.resample_weights(n, resamples, seed=3)
    assert (weights.sum(1) == n).all()
    assert np.abs(weights.mean(0) - 1).max() < 5 * np.sqrt((1 - 1 / n) / resamples)


def test_weighted_sums_are_those_of_the_items_repeated() -> None:
    rng = np.random.default_rng(4)
    for n_items in (1, 9, (1 << 16) + 5):  # the last is more than one block
        values, weights = rng.standard_normal((n_items, 2, 3)), rng.integers(0, 4, (5, n_items)).astype(np.uint16)
        want = [np.repeat(values, w, axis=0).sum(0) for w in weights]
        np.testing.assert_allclose(boot.weighted_sums(weights, values), want, rtol=1e-9, atol=1e-9)
