"""Thresholds against brute force over all cuts."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import steelyard.calibrate as cal
from steelyard.metrics import precision_recall_f1


def counted(p: np.ndarray, t: np.ndarray, cut: float) -> tuple[float, float, float, float, float]:
    """Precision, recall, F1, false positives and false negatives of p ≥ cut; t may be fractions of positives."""
    said = p >= cut
    hits, k, total = t[said].sum(), said.sum(), t.sum()
    over = lambda a, b: a / b if b > 0 else 0.0  # noqa: E731
    return over(hits, k), over(hits, total), over(2 * hits, k + total), k - hits, total - hits


def defensible(p: np.ndarray, t: np.ndarray, cut: float) -> bool:
    """What F1 may take: at most three times as many decisions as positives, 1.2 times as precise as chance or ½."""
    if t.all() or cut == np.inf:
        return True
    k = (p >= cut).sum()
    precision = t[p >= cut].mean()
    return bool(cut > 0 and k <= max(3 * t.sum(), 1) and precision >= min(0.5, 1.2 * t.mean()))


def cases(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = rng.random((rng.integers(1, 40), 3))
    p = np.round(p, rng.integers(1, 4)) if rng.random() < 0.6 else p
    t = (rng.random(p.shape) < p).astype(np.int64)
    return p, np.where(rng.random(p.shape) < 0.2, -1, t)


@given(
    seed=st.integers(0, 10**6), goal=st.sampled_from(["f1", "precision", "recall", "cost"]), level=st.floats(0.05, 1)
)
@settings(max_examples=150)
def test_no_cut_does_better(seed: int, goal: str, level: float) -> None:
    p, t = cases(seed)
    extra: dict = {"cost": {"cost_fp": 1.0, "cost_fn": 3.0}, "f1": {}}.get(goal, {"level": level})
    report = cal.threshold_report(p, t, goal, **extra)
    for c in range(3):
        known = t[:, c] != -1
        if not (t[:, c] == 1).any() or not ((t[:, c] == 0).any() or known.all()):
            continue
        x, y = p[known, c], t[known, c]
        got = counted(x, y, report.thresholds[c])
        every = [counted(x, y, cut) for cut in [np.inf, *np.unique(x)] if goal != "f1" or defensible(x, y, cut)]
        np.testing.assert_allclose([report.precision[c], report.recall[c], report.f1[c]], got[:3], atol=1e-12)
        if goal == "f1":
            assert got[2] == report.value[c] == max(e[2] for e in every)
        elif goal == "precision":
            best = max((e[1] for e in every if e[0] >= level), default=0.0)
            assert got[1] == report.value[c] == best
            assert best == 0 or got[0] >= level
        elif goal == "recall":
            assert got[1] >= level
            assert got[0] == report.value[c] == max(e[0] for e in every if e[1] >= level)
        else:
            assert report.value[c] == pytest.approx(min(e[3] + 3 * e[4] for e in every) / len(x), abs=1e-12)
            assert got[3] + 3 * got[4] == pytest.approx(report.value[c] * len(x))


def test_the_value_is_what_precision_recall_f1_finds():
    p, t = cases(3)
    cuts = cal.thresholds(p, t)
    np.testing.assert_allclose(precision_recall_f1(p >= cuts, t).f1, cal.threshold_report(p, t).value, atol=1e-12)


def test_ties_and_neighbours():
    p = np.array([[0.9], [0.5], [0.5], [0.5], [0.1]])
    t = np.array([[1], [1], [1], [0], [0]])
    assert cal.thresholds(p, t).item() == pytest.approx(0.3)  # half-way between .5 and .1
    assert cal.threshold_report(p, t).value.item() == pytest.approx(6 / 7)
    assert cal.thresholds(p, t, "precision", level=1.0).item() == pytest.approx(0.7)
    assert cal.thresholds(p, t, "recall", level=1.0).item() == pytest.approx(0.3)
    assert cal.thresholds(p, 1 - t, "precision", level=0.9).item() == np.inf
    assert cal.thresholds(p, np.ones_like(t)).item() == 0.0
    near = np.array([[1.0], [np.nextafter(1.0, 0)]])
    assert (near >= cal.thresholds(near, np.array([[1], [0]]))).ravel().tolist() == [True, False]
    equal = np.array([[0.8], [0.6], [0.4], [0.2]])  # F1 is 2/3 with one, and with four decided
    assert cal.thresholds(equal, np.array([[1], [0], [0], [1]])).item() == pytest.approx(0.7)
    assert cal.thresholds(equal, np.array([[1], [1], [1], [0]])[::-1]).item() == pytest.approx(0.2)  # all, but not 0


def test_from_probabilities_alone():
    rng = np.random.default_rng(0)
    p = rng.random((3000, 2)) ** np.array([1.0, 6.0])
    report = cal.threshold_report(p)
    for c in range(2):
        best = max(counted(p[:, c], p[:, c], cut)[2] for cut in p[:, c])
        assert report.value[c] == pytest.approx(best, abs=1e-12)
        assert report.thresholds[c] == pytest.approx(best / 2, abs=0.01)  # the optimum is half the best F1
    drawn = (rng.random(p.shape) < p).astype(int)
    achieved = precision_recall_f1(p >= report.thresholds, drawn).f1
    np.testing.assert_allclose(achieved, report.value, atol=0.03)
    precise = cal.threshold_report(p, goal="precision", level=0.9)
    assert (precise.precision >= 0.9).all()
    np.testing.assert_allclose(precise.precision, 0.9, atol=0.01)


def test_costs_give_bayes_threshold():
    rng = np.random.default_rng(0)
    p = rng.random((5000, 3))
    report = cal.threshold_report(p, goal="cost", cost_fp=np.array([1.0, 1.0, 9.0]), cost_fn=np.array([1.0, 4.0, 1.0]))
    np.testing.assert_allclose(report.thresholds, [0.5, 0.2, 0.9], rtol=1e-12)
    want = [
        np.where(p[:, c] >= b, (1 - p[:, c]) * f, p[:, c] * g).mean()
        for c, (b, f, g) in enumerate([(0.5, 1, 1), (0.2, 1, 4), (0.9, 9, 1)])
    ]
    np.testing.assert_allclose(report.value, want, rtol=1e-9)
    t = (rng.random(p.shape) < p).astype(int)
    fitted = cal.thresholds(p, t, "cost", cost_fp=1.0, cost_fn=4.0)
    np.testing.assert_allclose(fitted, 0.2, atol=0.06)
    none = cal.thresholds(p, np.zeros_like(t), "cost", cost_fp=1.0, cost_fn=4.0)
    np.testing.assert_allclose(none, 0.2, rtol=1e-12)  # no positive known: Bayes again


def test_a_label_without_positives_goes_by_its_probabilities_and_unknown_cells_do_not_matter():
    p, t = np.random.default_rng(0).random((200, 3)), np.full((200, 3), -1)
    t[:50, 0] = p[:50, 0] > 0.6
    t[:, 1] = 0
    for goal in ({}, {"goal": "precision", "level": 0.7}):
        cuts = cal.thresholds(np.where((t == -1) & (np.arange(3) == 0), np.nan, p), t, **goal)
        assert cuts[0] == cal.thresholds(p[:50, :1], t[:50, :1], **goal)[0]
        np.testing.assert_array_equal(cuts[2:], cal.thresholds(p[:, 2:], **goal))
        want = cal.thresholds(p[:, 1:2], **goal) if goal else [np.inf]  # known to be absent, never to be present
        np.testing.assert_array_equal(cuts[1:2], want)


@pytest.mark.parametrize("goal", [{}, {"goal": "precision", "level": 0.8}, {"goal": "recall", "level": 0.8}])
def test_known_positives_alone_do_not_decide_for_everything(goal: dict) -> None:
    """Labels of which positives alone are known tell no precision: their probabilities do."""
    rng = np.random.default_rng(0)
    p = rng.random((500, 1)) ** 8
    t = np.where(rng.random(p.shape) < p, 1, -1)
    np.testing.assert_array_equal(cal.thresholds(p, t, **goal), cal.thresholds(p, **goal))
    assert 0.01 < cal.threshold_report(p, t, **goal).share.item() < 0.5


def test_f1_does_not_decide_a_rare_label_for_everybody() -> None:
    """Probabilities that hardly tell items apart: the best F1 is that of deciding for all of them."""
    rng = np.random.default_rng(0)
    p = np.stack([0.002 * (1 + 0.1 * rng.random(4000)), rng.random(4000) ** 20, rng.random(4000)], 1)
    p[:, 2] = 0.3 + 0.01 * p[:, 2]
    t = (rng.random(p.shape) < p).astype(int)
    plain = [max((counted(p[:, c], t[:, c], cut)[2], -cut) for cut in p[:, c])[1] for c in (0, 2)]
    assert (p[:, 2] >= -plain[1]).mean() > 0.9  # what the guard is for
    for targets in (t, None):
        report = cal.threshold_report(p, targets, prior_positives=20.0)
        assert report.thresholds.min() > 0
        assert (report.share <= 3 * t.mean(0) + 1e-9).all()
        assert report.never.tolist() == (report.thresholds == np.inf).tolist()
        assert report.reached.tolist() == (~report.never).tolist()
        assert not report.never[1]
        assert report.share[2] < 0.1  # a few that chance put together
        assert targets is not None or bool(report.never[2])
        decided = (p >= report.thresholds).sum(0)
        np.testing.assert_array_equal(report.decided, decided)
        np.testing.assert_allclose(report.share, decided / 4000)
    nobody = cal.threshold_report(np.full((50, 1), 0.4), np.arange(50)[:, None] % 5 == 0)
    assert nobody.never.all()
    assert nobody.decided.item() == 0
    most = cal.threshold_report(np.full((50, 1), 0.4), np.arange(50)[:, None] % 5 > 0)
    assert most.thresholds.item() == 0.4  # four of five: all of them, but nothing less probable
    zero = cal.threshold_report(np.array([[0.0], [0.0], [0.0]]), np.array([[1], [1], [0]]))
    assert zero.never.all()


def test_the_guard_costs_well_ranked_labels_nothing() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(3000, 6)) * 3 - np.array([0.0, 2, 4, 5, 6, 7])
    p = 1 / (1 + np.exp(-z))
    t = (rng.random(p.shape) < p).astype(int)
    report = cal.threshold_report(p, t)
    for c in range(6):
        assert report.f1[c] == pytest.approx(max(counted(p[:, c], t[:, c], cut)[2] for cut in p[:, c]))


def test_what_cannot_be_reached_is_marked() -> None:
    p = np.array([[0.9, 0.9], [0.5, 0.8], [0.4, 0.1]])
    t = np.array([[0, 1], [1, 1], [0, 0]])
    report = cal.threshold_report(p, t, "precision", level=0.9)
    assert report.reached.tolist() == [False, True]
    assert report.never.tolist() == [True, False]
    assert report.decided.tolist() == [0, 2]
    assert cal.threshold_report(p, t, "recall", level=0.9).reached.all()
    assert cal.threshold_report(p, goal="cost", cost_fp=1.0, cost_fn=1.0).decided.tolist() == [2, 2]


def test_a_prior_steadies_labels_of_few_positives():
    """Over draws of five positives, thresholds with a prior scatter less and lie nearer the best one."""
    rng = np.random.default_rng(0)
    p = rng.random((400, 60)) ** 40
    best = cal.thresholds(rng.random((200_000, 1)) ** 40).item()
    t = (rng.random(p.shape) < p).astype(int)
    assert 5 < t.sum(0).mean() < 15
    raw, steady = (cal.thresholds(p, t, prior_positives=m) for m in (0.0, 20.0))
    assert np.abs(steady - best).mean() < 0.6 * np.abs(raw - best).mean()
    many_p = np.random.default_rng(1).random((20000, 1))
    many_t = (np.random.default_rng(2).random((20000, 1)) < many_p).astype(int)
    gap = cal.thresholds(many_p, many_t, prior_positives=20.0) - cal.thresholds(many_p, many_t)
    assert np.abs(gap).item() < 0.01


def test_arrays_tensors_and_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    p = rng.random((300, 90)).astype(np.float32)
    t = (rng.random(p.shape) < p).astype(np.int8)
    got = cal.thresholds(p, t)
    assert got.dtype == np.float32
    module = sys.modules["steelyard.calibrate.thresholds"]  # the package has a function of that name
    monkeypatch.setattr(module, "_CELLS_AT_ONCE", 2100)  # seven labels at a time
    tensor = cal.thresholds(torch.from_numpy(p), torch.from_numpy(t))
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_array_equal(got, tensor.numpy())
    half = cal.thresholds(torch.from_numpy(p[:50, :2]).half(), torch.from_numpy(t[:50, :2]))
    assert half.dtype == torch.float32
    np.testing.assert_array_equal(cal.thresholds(p[:9, :2].tolist()), cal.thresholds(p[:9, :2].astype(np.float64)))


P, T = np.full((4, 2), 0.5), np.ones((4, 2))
SOME = np.array([[0, 1], [0, 0], [-1, 1], [-1, 0]])
"""Targets whose label 0 has negatives alone, and goes by all its items."""


@pytest.mark.parametrize(
    ("probabilities", "targets", "options", "words"),
    [
        (P, T, {"goal": "f2"}, "goal is 'f2'"),
        (P, T, {"goal": "recall"}, "level is None"),
        (P, T, {"goal": "precision", "level": 1.2}, "level is 1.2"),
        (P, T, {"level": 0.5}, "belongs to the goals"),
        (P, T, {"goal": "cost", "cost_fp": 1.0}, "cost_fp or cost_fn is missing"),
        (P, T, {"goal": "cost", "cost_fp": 0.0, "cost_fn": 1.0}, r"cost_fp.* is 0: a cost is positive"),
        (P, T, {"goal": "cost", "cost_fp": np.array([1.0, np.inf]), "cost_fn": 1.0}, r"cost_fp\[1\] is inf"),
        (P, T, {"goal": "cost", "cost_fp": np.ones(3), "cost_fn": 1.0}, "cost_fp has shape"),
        (P, T, {"cost_fp": 1.0}, "belong to the goal cost"),
        (P, T, {"prior_positives": -1.0}, "prior_positives is -1"),
        (P, T, {"prior": 1.5}, "prior.* is 1.5"),
        (P, T, {"prior": [0.5] * 3}, "prior has shape"),
        (P[0], None, {}, "probabilities has shape"),
        (P[:0], None, {}, "no row"),
        (P + 2.5, T, {}, r"probabilities\[0, 0\] is 3"),
        (P * np.nan, None, {}, r"probabilities\[0, 0\] is nan"),
        (P * np.nan, -T, {}, "which has no"),
        (np.where(SOME == -1, np.nan, P), SOME, {}, "label 0, which has no known positive"),
    ],
)
def test_mistakes_are_one_sentence(
    probabilities: np.ndarray, targets: np.ndarray | None, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        cal.thresholds(probabilities, targets, **options)
