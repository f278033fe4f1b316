"""Precision, recall, F1 and exact match, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, precision_recall_fscore_support

import steelyard.metrics as m


def drawn(seed: int, n_items: int, n_labels: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    said = rng.random((n_items, n_labels)) < rng.choice([0, 0.1, 0.5, 1], size=n_labels)
    truth = rng.random((n_items, n_labels)) < rng.choice([0, 0.1, 0.5, 1], size=n_labels)
    return said, truth.astype(np.int8)


@pytest.mark.parametrize("seed", range(32))
def test_agrees_with_scikit_learn(seed: int) -> None:
    said, truth = drawn(seed, [1, 2, 5, 30][seed % 4], [1, 2, 17, 40][seed // 4 % 4])
    got = m.precision_recall_f1(said, truth)
    if truth.shape[1] > 1:
        p, r, f, s = precision_recall_fscore_support(truth, said, average=None, zero_division=0)
        for mine, theirs in ((got.precision, p), (got.recall, r), (got.f1, f), (got.support, s)):
            np.testing.assert_allclose(mine, theirs, atol=1e-12)
        for average in ("macro", "micro"):
            want = precision_recall_fscore_support(truth, said, average=average, zero_division=0)[:3]
            mine = getattr(got, average)
            assert (mine.precision, mine.recall, mine.f1) == pytest.approx(want, abs=1e-12)
    assert m.exact_match(said, truth) == pytest.approx(accuracy_score(truth, said))


@pytest.mark.parametrize("seed", range(8))
def test_unknown_is_as_if_the_cell_were_not_there(seed: int) -> None:
    said, truth = drawn(seed, 40, 12)
    unknown = np.random.default_rng(seed).random(truth.shape) < 0.4
    unknown[:3] = True
    got = m.precision_recall_f1(said, np.where(unknown, -1, truth))
    for j in range(12):
        keep = ~unknown[:, j]
        p, r, f, s = precision_recall_fscore_support(truth[keep, j], said[keep, j], labels=[1], zero_division=0)
        assert [got.precision[j], got.recall[j], got.f1[j], got.support[j]] == pytest.approx([p[0], r[0], f[0], s[0]])
    rows = [(said[i, ~u] == truth[i, ~u]).all() for i, u in enumerate(unknown) if not u.all()]
    assert m.exact_match(said, np.where(unknown, -1, truth)) == pytest.approx(np.mean(rows))


def test_kinds_of_arrays() -> None:
    said, truth = drawn(1, 30, 6)
    want = m.precision_recall_f1(said, truth)
    for decisions in (said.astype(np.int64), said.astype(np.float32)):
        np.testing.assert_array_equal(m.precision_recall_f1(decisions, truth).f1, want.f1)
    got = m.precision_recall_f1(torch.from_numpy(said), torch.from_numpy(truth))
    assert isinstance(got.f1, torch.Tensor)
    np.testing.assert_array_equal(got.f1, want.f1)
    assert got.macro == want.macro
    soft = np.where(truth == 1, 0.5, 0.49)
    np.testing.assert_array_equal(m.precision_recall_f1(said, soft).f1, want.f1)


def test_nothing_known_and_nothing_at_all() -> None:
    assert np.isnan(m.exact_match(np.zeros((3, 2)), np.full((3, 2), -1)))
    assert np.isnan(m.exact_match(np.zeros((0, 2)), np.zeros((0, 2))))
    got = m.precision_recall_f1(np.ones((3, 2)), np.full((3, 2), -1))
    assert got.precision.tolist() == got.recall.tolist() == got.f1.tolist() == [0, 0]
    assert got.micro == m.Averages(0, 0, 0)
