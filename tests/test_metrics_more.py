"""AUROC, Hamming, Jaccard, ranking loss, coverage and the top k: against scikit-learn, torchmetrics and loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch

from steelyard import metrics
from steelyard.metrics import bootstrap, measures

pytest.importorskip("steelyard.integrations.torchmetrics", exc_type=ImportError)
tm = pytest.importorskip("torchmetrics.functional")  # after ours, which sees to torchvision

N, L, K = 60, 9, 3


def data(seed: int, ties: bool, unknown: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Scores and targets; every item and label has a known positive and a known negative."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 5, (N, L)) / 5 if ties else rng.random((N, L))
    targets = rng.integers(0, 2, (N, L))
    targets[rng.random((N, L)) < unknown] = -1
    targets[:, 0], targets[:, 1] = np.arange(N) % 2, (np.arange(N) + 1) % 2
    return scores, targets


@pytest.mark.parametrize("ties", [False, True])
def test_full_labels_as_in_scikit_learn(ties: bool) -> None:
    s, t = data(0, ties)
    d = s >= 0.6
    np.testing.assert_allclose(metrics.auroc(s, t), sk.roc_auc_score(t, s, average=None))
    np.testing.assert_allclose(metrics.auroc(s, t, per="item"), sk.roc_auc_score(t.T, s.T, average=None))
    assert metrics.ranking_loss(s, t) == pytest.approx(sk.label_ranking_loss(t, s))
    assert metrics.coverage_error(s, t) == pytest.approx(sk.coverage_error(t, s))
    assert metrics.ndcg_at_k(s, t, K) == pytest.approx(sk.ndcg_score(t, s, k=K))
    assert metrics.hamming_loss(d, t) == pytest.approx(sk.hamming_loss(t, d))
    np.testing.assert_allclose(metrics.jaccard(d, t), sk.jaccard_score(t, d, average=None))
    assert metrics.jaccard(d, t, per="all") == pytest.approx(sk.jaccard_score(t, d, average="micro"))
    assert metrics.jaccard(d, t, per="item").mean() == pytest.approx(
        sk.jaccard_score(t, d, average="samples", zero_division=0)
    )


def test_full_labels_as_in_torchmetrics() -> None:
    s, t = (torch.from_numpy(x) for x in data(1, ties=False))
    torch.testing.assert_close(metrics.auroc(s, t), tm.classification.multilabel_auroc(s, t, L, average=None).double())
    assert metrics.ranking_loss(s, t) == pytest.approx(float(tm.classification.multilabel_ranking_loss(s, t, L)))
    assert metrics.coverage_error(s, t) == pytest.approx(float(tm.classification.multilabel_coverage_error(s, t, L)))
    assert metrics.hamming_loss(s >= 0.5, t) == pytest.approx(
        float(tm.classification.multilabel_hamming_distance(s, t, L, average="micro"))
    )
    torch.testing.assert_close(
        metrics.jaccard(s >= 0.5, t), tm.classification.multilabel_jaccard_index(s, t, L, average=None).double()
    )
    rows = list(zip(s, t, strict=True))
    p = [float(tm.retrieval.retrieval_precision(a, b, top_k=K)) for a, b in rows]
    gain = [float(tm.retrieval.retrieval_normalized_dcg(a, b, top_k=K)) for a, b in rows]
    assert metrics.precision_at_k(s, t, K) == pytest.approx(np.mean(p))
    assert metrics.ndcg_at_k(s, t, K) == pytest.approx(np.mean(gain))


# ---- references with unknown labels: loops over items, expectation over random orders of ties


def by_hand(scores: np.ndarray, targets: np.ndarray, p: np.ndarray) -> dict[str, float]:
    """The measures of one item at a time, unknown cells dropped; None where one is not defined."""
    found: dict[str, list[float]] = {name: [] for name in ("loss", "coverage", "p@k", "ndcg", "auroc")}
    psp = np.zeros(2)
    for s, t in zip(scores, targets, strict=True):
        known = t >= 0
        s, t, w = s[known], t[known], 1 / p[known]
        pos, neg = s[t == 1], s[t == 0]
        if len(pos) and len(neg):
            pairs = [(a, b) for a in pos for b in neg]
            found["loss"].append(np.mean([a <= b for a, b in pairs]))
            found["auroc"].append(np.mean([(a > b) + 0.5 * (a == b) for a, b in pairs]))
        if len(pos):
            found["coverage"].append((s >= pos.min()).sum())
        gains = np.zeros(3)
        draws = 4000 if len(set(s)) < len(s) else 1
        rng = np.random.default_rng(5)
        for _ in range(draws):
            order = np.lexsort((rng.random(len(s)), -s))[:K]
            discount = 1 / np.log2(np.arange(2, len(order) + 2))
            gains += [t[order].sum() / draws, (t[order] * discount).sum() / draws, (t * w)[order].sum() / draws]
        if len(s):
            found["p@k"].append(gains[0] / min(K, len(s)))
        if len(pos):
            best = (1 / np.log2(np.arange(2, K + 2)))[: len(pos)].sum()
            found["ndcg"].append(gains[1] / best)
        psp += gains[2], np.sort(t * w)[::-1][:K].sum()
    return {**{name: float(np.mean(values)) for name, values in found.items()}, "psp": psp[0] / psp[1]}


@pytest.mark.parametrize(("ties", "unknown", "tolerance"), [(False, 0.0, 1e-9), (False, 0.6, 1e-9), (True, 0.6, 0.01)])
def test_unknown_labels_are_as_if_they_were_not_there(ties: bool, unknown: float, tolerance: float) -> None:
    s, t = data(2, ties, unknown)
    s, t = s[:25], t[:25]
    t[0] = -1  # nothing known
    t[1], t[2] = np.minimum(t[1], 0), np.abs(t[2])  # no positive, nothing unknown
    s[t < 0] = np.nan
    p = np.linspace(0.2, 1, L)
    want = by_hand(s, t, p)
    got = {
        "loss": metrics.ranking_loss(s, t),
        "coverage": metrics.coverage_error(s, t),
        "p@k": metrics.precision_at_k(s, t, K),
        "ndcg": metrics.ndcg_at_k(s, t, K),
        "auroc": metrics.mean_defined(metrics.auroc(s, t, per="item")).value,
        "psp": metrics.psp_at_k(s, t, p, K),
    }
    for name, value in want.items():
        assert got[name] == pytest.approx(value, abs=tolerance), name


def test_decisions_with_unknown_labels() -> None:
    s, t = data(3, False, 0.5)
    t[:, 4] = -1
    d = s >= 0.4
    known = t >= 0
    for per, axis in (("label", 0), ("item", 1), ("all", None)):
        wrong = ((d != t) & known).sum(axis) / np.where(known.sum(axis) > 0, known.sum(axis), np.nan)
        both, either = (d & (t == 1)).sum(axis), ((d & known) | (t == 1)).sum(axis)
        np.testing.assert_allclose(metrics.hamming_loss(d, t, per), wrong)  # type: ignore[arg-type]
        np.testing.assert_allclose(metrics.jaccard(d, t, per), both / np.maximum(either, 1))  # type: ignore[arg-type]
    assert np.isnan(metrics.hamming_loss(d, t, "label")[4])
    assert metrics.jaccard(d, t)[4] == 0


def test_intervals_of_decisions_are_those_of_resampled_tables() -> None:
    rng = np.random.default_rng(4)
    eta = torch.from_numpy(rng.random((N, L)))
    t = torch.from_numpy(np.where(rng.random((N, L)) < 0.2, -1, rng.random((N, L)) < eta.numpy()).astype(np.int8))
    decided, groups = eta >= 0.4, {"rarest": {"2": np.array([0, 5])}}
    evaluator = metrics.Evaluator(L, counts=np.arange(L) + 1)
    evaluator.update(eta, t)
    report = evaluator.compute(0.4, [2], bootstrap=40)
    measures.redecide(report, decided, t, groups, 40)
    drawn = [np.repeat(np.arange(N), w) for w in bootstrap.resample_weights(N, 40, 0)]
    f1 = np.array([metrics.precision_recall_f1(decided[i], t[i]).f1.numpy() for i in drawn])
    exact = np.array([metrics.exact_match(decided[i], t[i]) for i in drawn])
    found = report["intervals"]
    assert found["macro"]["f1"] == pytest.approx(bootstrap.interval(report["macro"]["f1"], f1.mean(1), 0.95))
    assert found["exact_match"] == pytest.approx(bootstrap.interval(report["exact_match"], exact, 0.95))
    few = report["rarest"]["2"]["macro"]["f1"]
    assert found["rarest"]["2"]["macro"]["f1"] == pytest.approx(bootstrap.interval(few, f1[:, [0, 5]].mean(1), 0.95))
    assert "micro" not in found


def test_the_interval_of_the_log_loss_per_label_is_that_of_resampled_tables() -> None:
    rng = np.random.default_rng(5)
    eta = torch.from_numpy(rng.uniform(0.01, 0.99, (N, L)))
    t = torch.from_numpy(np.where(rng.random((N, L)) < 0.2, -1, rng.random((N, L)) < eta.numpy()).astype(np.int8))
    t[:, 3] = -1  # a label of which nothing is known has no say

    def per_label(eta: torch.Tensor, t: torch.Tensor) -> float:
        return float(np.mean([metrics.log_loss(eta[:, [c]], t[:, [c]]) for c in range(L) if c != 3]))

    drawn = [np.repeat(np.arange(N), w) for w in bootstrap.resample_weights(N, 30, 0)]
    draws = np.array([per_label(eta[i], t[i]) for i in drawn])
    wanted = bootstrap.interval(per_label(eta, t), draws, 0.95, share=False)
    assert measures.log_loss_interval(eta, t, 30) == pytest.approx(wanted)


def test_propensities_are_those_of_the_paper() -> None:
    counts, n = np.array([1, 10, 1000]), 14146
    c = (np.log(n) - 1) * 2.5**0.55
    np.testing.assert_allclose(metrics.propensities(counts, n), 1 / (1 + c * np.exp(-0.55 * np.log(counts + 1.5))))
    ones = np.ones(L)
    s, t = data(4, False)
    assert metrics.psp_at_k(s, t, ones, K) == pytest.approx(
        metrics.precision_at_k(s, t, K) * K / np.minimum(t.sum(1), K).mean()
    )


def test_the_evaluator_reports_them() -> None:
    s, t = data(6, True, 0.3)
    s = s.astype(np.float32)
    counts = np.array([200, 100, 50, 40, 30, 20, 10, 5, 1])
    evaluator = metrics.Evaluator(L, counts=counts)
    evaluator.update(s[:20], t[:20])
    evaluator.update(s[20:], t[20:])
    report = evaluator.compute(0.6)
    d, auroc = s >= np.float32(0.6), metrics.auroc(s, t)
    assert report["auroc"]["label"] == pytest.approx(metrics.mean_defined(auroc).value)
    assert report["hamming_loss"] == pytest.approx(metrics.hamming_loss(d, t))
    assert report["macro"]["jaccard"] == pytest.approx(metrics.jaccard(d, t).mean())
    assert report["micro"]["jaccard"] == pytest.approx(metrics.jaccard(d, t, "all"))
    assert report["top"]["p@3"] == pytest.approx(metrics.precision_at_k(s, t, 3))
    assert report["top"]["ndcg@5"] == pytest.approx(metrics.ndcg_at_k(s, t, 5))
    p = metrics.propensities(counts, 1000)
    assert evaluator.compute(0.6, training_items=1000)["top"]["psp@1"] == pytest.approx(metrics.psp_at_k(s, t, p, 1))
    assert report["top"]["psp@1"] is None
    assert report["ranking_loss"] == pytest.approx(metrics.ranking_loss(s, t))
    assert report["coverage_error"] == pytest.approx(metrics.coverage_error(s, t))
    assert [row["auroc"] for row in report["per_label"]] == pytest.approx(auroc.tolist())
    assert [row["hamming_loss"] for row in report["per_label"]] == pytest.approx(metrics.hamming_loss(d, t, "label"))
    assert [row["jaccard"] for row in report["per_label"]] == pytest.approx(metrics.jaccard(d, t).tolist())
    head = report["groups"]["head"]
    assert head["auroc"] == pytest.approx(auroc[:2].mean())
    assert head["hamming_loss"] == pytest.approx(metrics.hamming_loss(d[:, :2], t[:, :2]))
    assert head["macro"]["jaccard"] == pytest.approx(metrics.jaccard(d[:, :2], t[:, :2]).mean())


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda s, t: metrics.auroc(s, t, "cell"), "per is 'cell'"),  # type: ignore[arg-type]
        (lambda s, t: metrics.average_precision(s, t, per="cell"), "per is 'cell'"),  # type: ignore[arg-type]
        (lambda s, t: metrics.jaccard(s > 0, t, "cell"), "per is 'cell': choose one of label, item"),  # type: ignore[arg-type]
        (lambda s, t: metrics.precision_at_k(s, t, 0), "k is 0: give at least 1"),
        (lambda s, t: metrics.psp_at_k(s, t, np.zeros(L), 1), r"propensity has shape \(9,\)"),
        (lambda s, t: metrics.psp_at_k(s, t, np.ones(2), 1), r"propensity has shape \(2,\)"),
        (lambda s, t: metrics.propensities(np.ones(2), 1), "n_items is 1"),
        (lambda s, t: metrics.ranking_loss(s * np.nan, t), "a known label needs a score"),
    ],
)
def test_what_is_refused(call: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call(*data(0, False))


def test_no_items_and_no_labels() -> None:
    empty = np.zeros((0, 3))
    assert np.isnan(metrics.auroc(empty, empty)).all()
    assert np.isnan(metrics.ranking_loss(empty, empty))
    assert np.isnan(metrics.precision_at_k(np.zeros((2, 0)), np.zeros((2, 0)), 1))
    assert np.isnan(metrics.coverage_error(np.zeros((2, 0)), np.zeros((2, 0))))
