"""Retrieval: against brute force over all queries, and paper 4's count on VOC 2012."""

from __future__ import annotations

import warnings
from itertools import combinations, product
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

import steelyard.metrics as m
from steelyard.metrics import retrieval
from steelyard.metrics.retrieval import Answers, draw_queries, every_query, n_combinations


def searched(p: np.ndarray, t: np.ndarray, labels: Any, signs: Any) -> float | None:
    """AP of one query; None without a relevant item."""
    score, relevant, known = np.ones(len(p)), np.ones(len(p), bool), np.ones(len(p), bool)
    for c, desired in zip(labels, signs, strict=True):
        eta = p[:, c].astype(np.float64)
        score = score * (eta if desired else 1 - eta)
        relevant &= (t[:, c] >= 0.5) == desired
        known &= t[:, c] != -1
    return float(average_precision_score(relevant[known], score[known])) if (relevant & known).any() else None


def brute_force(p: np.ndarray, t: np.ndarray, max_terms: int) -> dict[int, list[float]]:
    """AP of every query with a relevant item, by its number of terms."""
    found: dict[int, list[float]] = {k: [] for k in range(1, min(max_terms, p.shape[1]) + 1)}
    for k in found:
        for labels in combinations(range(p.shape[1]), k):
            for signs in product([True, False], repeat=k):
                if any(signs) and (ap := searched(p, t, labels, signs)) is not None:
                    found[k].append(ap)
    return found


def drawn(seed: int, shape: tuple[int, int], unknown: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    t = (rng.random(shape) < 0.3).astype(np.int8)
    p = np.round(1 / (1 + np.exp(-rng.normal(size=shape) - 2 * t + 1)), [1, 2, 9][seed % 3]).astype(np.float32)
    t[rng.random(shape) < unknown] = -1
    return p, t


@pytest.mark.parametrize("unknown", [0.0, 0.3])
@pytest.mark.parametrize(
    ("shape", "max_terms"), [((40, 5), 5), ((40, 5), 9), ((25, 7), 3), ((600, 4), 4), ((1, 3), 3), ((30, 1), 5)]
)
def test_exact_against_brute_force(shape: tuple[int, int], max_terms: int, unknown: float) -> None:
    p, t = drawn(shape[0] + max_terms, shape, unknown)
    want = brute_force(p, t, max_terms)
    got = m.retrieval_map(np.where(t == -1, np.nan, p), t, max_terms=max_terms)
    assert got.exact
    assert got.n_queries_by_terms == {k: len(v) for k, v in want.items()}
    assert got.n_queries == got.n_scored == sum(map(len, want.values()))
    for k, values in want.items():
        assert got.by_terms[k] == pytest.approx(np.mean(values) if values else np.nan, abs=1e-9, nan_ok=True)
    everything = [v for values in want.values() for v in values]
    assert got.overall == pytest.approx(np.mean(everything) if everything else np.nan, abs=1e-9, nan_ok=True)
    assert got.interval == pytest.approx((got.overall, got.overall), nan_ok=True)


def test_perfect_probabilities_rank_perfectly() -> None:
    _, t = drawn(1, (50, 6), 0.0)
    assert m.retrieval_map(t.astype(np.float64), t).overall == 1.0


def test_one_term_is_mean_average_precision() -> None:
    p, t = drawn(2, (300, 8), 0.2)
    assert m.retrieval_map(p, t, max_terms=1).overall == pytest.approx(m.mean_average_precision(p, t), abs=1e-12)


def test_tensors_and_order_of_items() -> None:
    p, t = drawn(4, (80, 6), 0.1)
    order = np.random.default_rng(0).permutation(len(p))
    want = m.retrieval_map(p, t)
    got = m.retrieval_map(torch.from_numpy(p[order]), torch.from_numpy(t[order]))
    assert got.overall == pytest.approx(want.overall, abs=1e-12)
    assert got.n_queries == want.n_queries


def test_every_query_is_listed_once() -> None:
    for n_labels, k in ((5, 1), (6, 3), (7, 5)):
        queries = np.concatenate(list(every_query(n_labels, k, labels_at_once=3)))
        assert len(queries) == n_combinations(n_labels, k) == len({tuple(q) for q in queries})
        assert (queries < n_labels).any(1).all()
        assert all(len(set(q % n_labels)) == k for q in queries)
    assert sum(n_combinations(20, k) for k in range(1, 6)) == 561_869
    assert sum(n_combinations(80, k) for k in range(1, 6)) == 769_548_876


def test_a_query_has_an_answer_where_an_item_has_all_it_asks_for() -> None:
    rng = np.random.default_rng(1)
    for n_items in (1, 7, 64, 65, 600):
        labels = rng.integers(-1, 2, (n_items, 6))
        holds = np.concatenate([labels == 1, labels == 0], axis=1)
        answers = Answers(labels == 1, labels == 0)
        for k in (1, 2, 3):
            queries = np.concatenate(list(every_query(6, k)))
            np.testing.assert_array_equal(answers.exist(queries), holds[:, queries].all(2).any(0))


def test_drawn_queries_are_uniform() -> None:
    rng = np.random.default_rng(0)
    n = 60_000
    queries = draw_queries(5, 3, n, rng)
    _, counts = np.unique(queries, axis=0, return_counts=True)
    cells = n_combinations(5, 3)
    assert len(counts) == cells
    chi2 = ((counts - n / cells) ** 2 / (n / cells)).sum()
    assert abs(chi2 - (cells - 1)) < 5 * np.sqrt(2 * (cells - 1))


def test_the_count_of_voc_2012(shared_data: Path) -> None:
    present = np.load(shared_data / "features" / "voc2012-lite0-160.npz")["Y_val"] == 1  # difficult counts as absent
    assert present.shape == (5823, 20)
    answers = Answers(present, ~present)
    counts = [sum(int(answers.exist(q).sum()) for q in every_query(20, k)) for k in range(1, 6)]
    assert sum(counts) == 239_289


@pytest.mark.parametrize("seed", range(3))
def test_sampling_covers_the_exact_value(seed: int) -> None:
    p, t = drawn(seed, (120, 9), 0.1)
    exact = m.retrieval_map(p, t, max_terms=4)
    got = m.retrieval_map(p, t, max_terms=4, exact_up_to=100, samples=400, confidence=0.9999, seed=seed)
    assert exact.exact
    assert not got.exact
    assert got.n_scored < exact.n_queries
    assert got.by_terms[1] == exact.by_terms[1]
    assert got.interval_by_terms[1] == (exact.by_terms[1], exact.by_terms[1])
    for (low, high), value in [(got.interval, exact.overall)] + [
        (got.interval_by_terms[k], exact.by_terms[k]) for k in (2, 3, 4)
    ]:
        assert low < value < high
        assert high - low < 0.25
    assert got.n_queries == pytest.approx(exact.n_queries, rel=0.1)
    again = m.retrieval_map(p, t, max_terms=4, exact_up_to=100, samples=400, confidence=0.9999, seed=seed)
    assert again == got


def test_intervals_cover_as_often_as_they_say() -> None:
    p, t = drawn(1, (60, 8), 0.0)
    exact = m.retrieval_map(p, t, max_terms=3)
    inside = 0
    for seed in range(100):
        got = m.retrieval_map(p, t, max_terms=3, exact_up_to=10, samples=100, confidence=0.8, seed=seed)
        inside += got.interval[0] <= exact.overall <= got.interval[1]
    assert 65 <= inside <= 94  # 80 of 100 expected, standard deviation 4


class Told:
    """Says of the i-th query that is asked about whether it has an answer, as told beforehand."""

    def __init__(self, outcomes: np.ndarray) -> None:
        self.outcomes = outcomes
        self.asked = np.empty((0, 3), np.int64)

    def exist(self, queries: np.ndarray) -> np.ndarray:
        start = len(self.asked)
        self.asked = np.concatenate([self.asked, queries])
        return self.outcomes[start : start + len(queries)]


@pytest.mark.parametrize("rate", [0.01, 0.04, 0.1, 0.5])
def test_drawing_stops_at_the_last_sample(rate: float) -> None:
    outcomes = np.random.default_rng(0).random(30_000) < rate
    told = Told(outcomes)
    queries, (share, variance) = retrieval._draw_answered(told, 7, 3, 30, np.random.default_rng(1))  # type: ignore[arg-type]
    answered = np.flatnonzero(outcomes)[:30]
    np.testing.assert_array_equal(queries, told.asked[answered])
    assert share == pytest.approx(29 / answered[-1], rel=1e-12)
    assert variance == pytest.approx(share**2 * (1 - share) / 30, rel=1e-12)


@pytest.mark.parametrize("answered", [[], [5], [5, 2900]])
def test_drawing_gives_up_after_1000_a_sample(answered: list[int]) -> None:
    told = Told(np.isin(np.arange(10_000), answered))
    queries, (share, variance) = retrieval._draw_answered(told, 7, 3, 3, np.random.default_rng(1))  # type: ignore[arg-type]
    assert len(told.asked) == 3000
    np.testing.assert_array_equal(queries, told.asked[answered])
    assert share == pytest.approx(len(answered) / 3000, rel=1e-12)
    assert variance == pytest.approx(share**2 * (1 - share) / max(1, len(answered)), rel=1e-12)


def test_intervals_are_those_of_the_delta_method(monkeypatch: pytest.MonkeyPatch) -> None:
    p, t = drawn(5, (60, 7), 0.1)
    plans, draw = {}, retrieval._draw_answered

    def noted(answers: Answers, n_labels: int, n_terms: int, *rest: Any) -> Any:
        plans[n_terms] = draw(answers, n_labels, n_terms, *rest)
        return plans[n_terms]

    monkeypatch.setattr(retrieval, "_draw_answered", noted)
    got = m.retrieval_map(p, t, max_terms=4, exact_up_to=7, samples=12, confidence=0.9, seed=3)
    of_one = [ap for ap in (searched(p, t, [c], [True]) for c in range(7)) if ap is not None]
    sizes, size_variances, means, mean_variances = [float(len(of_one))], [0.0], [np.mean(of_one)], [0.0]
    for k in (2, 3, 4):
        queries, (share, variance) = plans[k]
        ap = [searched(p, t, q % 7, q < 7) for q in queries]
        sizes.append(share * n_combinations(7, k))
        size_variances.append(variance * n_combinations(7, k) ** 2)
        means.append(np.mean(ap))
        mean_variances.append(np.var(ap, ddof=1) / 12)
    size, mean = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (sizes, means))
    overall = (size * mean).sum() / size.sum()
    by_size, by_mean = (g.numpy() for g in torch.autograd.grad(overall, (size, mean)))
    z = NormalDist().inv_cdf(0.95)
    half = z * np.sqrt((by_size**2 * size_variances).sum() + (by_mean**2 * mean_variances).sum())
    assert got.overall == pytest.approx(overall.item(), abs=1e-9)
    assert got.interval == pytest.approx((overall.item() - half, overall.item() + half), abs=1e-9)
    assert got.n_queries == round(sum(sizes))
    for k in (1, 2, 3, 4):
        half = z * np.sqrt(mean_variances[k - 1])
        assert got.n_queries_by_terms[k] == round(sizes[k - 1])
        assert got.interval_by_terms[k] == pytest.approx((means[k - 1] - half, means[k - 1] + half), abs=1e-9)


def test_as_many_combinations_as_allowed_are_all_scored() -> None:
    p, t = drawn(0, (40, 6), 0.0)
    assert m.retrieval_map(p, t, max_terms=3, exact_up_to=n_combinations(6, 3)).exact
    assert not m.retrieval_map(p, t, max_terms=3, exact_up_to=n_combinations(6, 3) - 1, samples=5).exact


def test_one_query_found_has_a_mean_and_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    p, t = drawn(1, (60, 4), 0.0)
    monkeypatch.setattr(retrieval, "_draw_answered", lambda *_: (np.array([[2]]), (0.1, 0.01)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = m.retrieval_map(p, t, max_terms=1, exact_up_to=0)
    assert got.overall == pytest.approx(searched(p, t, [2], [True]), abs=1e-12)
    assert np.isnan([*got.interval, *got.interval_by_terms[1]]).all()


def test_more_items_than_are_scored_at_once() -> None:
    n = (1 << 21) + 1
    scorer = retrieval._Scorer(torch.arange(n)[:, None] / n, torch.arange(n)[:, None] == n - 3, None)
    assert scorer(np.array([[0]]), lambda _: None) == pytest.approx([1 / 3], abs=1e-12)


def test_two_queries_are_enough_for_an_interval() -> None:
    p, t = drawn(3, (60, 8), 0.0)
    got = m.retrieval_map(p, t, max_terms=2, exact_up_to=0, samples=2, seed=1)
    assert got.n_scored == 4
    for k, (low, high) in got.interval_by_terms.items():
        assert low < got.by_terms[k] < high


def test_no_answer_anywhere() -> None:
    p = np.full((4, 12), 0.5)
    for t in (np.zeros((4, 12)), np.full((4, 12), -1)):
        for limit in (500_000, 0):
            got = m.retrieval_map(p, t, max_terms=3, exact_up_to=limit, samples=2)
            assert np.isnan(got.overall)
            assert got.n_queries == got.n_scored == 0
    assert np.isnan(m.retrieval_map(np.empty((0, 3)), np.empty((0, 3))).overall)


def test_progress_is_told() -> None:
    p, t = drawn(0, (50, 6), 0.0)
    told: list[tuple[int, int]] = []
    got = m.retrieval_map(p, t, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (got.n_queries, got.n_queries)
    assert [d for d, _ in told] == sorted(d for d, _ in told)


def test_a_terminal_sees_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    p, t = drawn(0, (50, 6), 0.0)
    want = m.retrieval_map(p, t, max_terms=1)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert m.retrieval_map(p, t, max_terms=1) == want
    shown = capsys.readouterr().err
    assert "queries " in shown
    assert "100%" in shown
    assert shown.endswith("\x1b[1A\x1b[2K")  # one line up, and that is wiped


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_terms": 0}, "max_terms is 0"),
        ({"samples": 1}, "samples is 1"),
        ({"samples": 20.5}, "samples is 20.5: give a whole number"),
        ({"max_terms": "2"}, "max_terms is '2': give a whole number"),
        ({"seed": 0.5}, "seed is 0.5: give a whole number"),
        ({"confidence": 1.0}, "confidence is 1.0"),
        ({"confidence": 0.0}, "confidence is 0.0"),
    ],
)
def test_mistakes(options: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        m.retrieval_map(np.full((2, 2), 0.5), np.ones((2, 2)), **options)
    with pytest.raises(ValueError, match=r"probabilities\[0, 0\] is 2"):
        m.retrieval_map(np.array([[2.0]]), np.ones((1, 1)))
