"""Average precision: against scikit-learn and a ten-line reference, on every way of computing it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score
from torch import Tensor

import steelyard.metrics as m
from steelyard.metrics import ranking
from steelyard.metrics.ranking import average_precision_rows, by_sorting_cells, by_sorting_rows

WAYS = [by_sorting_rows, by_sorting_cells]


def reference(scores: np.ndarray, targets: np.ndarray) -> float:
    """Σ over distinct scores, descending, of (gain in recall) × precision, in float64."""
    keep = targets != -1
    s, y = scores[keep].astype(np.float64), targets[keep] >= 0.5
    total, found = 0.0, 0
    for threshold in np.unique(s)[::-1]:
        above = s >= threshold
        gained = (y & above).sum() - found
        found += gained
        total += gained * found / above.sum()
    return total / y.sum() if y.any() else np.nan


def cases(seed: int, n_items: int, n_labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores with ties from none to all, classes from empty to full."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(n_items, n_labels))
    levels = rng.choice([0, 1, 2, 5, 1000], size=n_labels)
    scores = np.where(levels == 1000, scores, np.round(scores * levels) / np.maximum(levels, 1))
    scores[:, ::7] = np.where(scores[:, ::7] == 0, -0.0, scores[:, ::7])
    prevalence = rng.choice([0, 0.02, 0.3, 0.9, 1], size=n_labels)
    return scores, (rng.random((n_items, n_labels)) < prevalence).astype(np.int8)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("n_items", "n_labels"), [(1, 40), (2, 40), (7, 120), (40, 200), (1100, 60)])
def test_agrees_with_scikit_learn(dtype: type, n_items: int, n_labels: int) -> None:
    scores, targets = cases(n_items, n_items, n_labels)
    scores = scores.astype(dtype)
    got = m.average_precision(scores, targets)
    assert got.dtype == np.float64
    assert got.shape == (n_labels,)
    for j in range(n_labels):
        if targets[:, j].any():
            assert got[j] == pytest.approx(average_precision_score(targets[:, j], scores[:, j]), abs=1e-12)
        else:
            assert np.isnan(got[j])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(4))
def test_every_way_agrees_with_the_reference(
    way: Callable[..., Tensor], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        monkeypatch.setattr(ranking, "CELLS_AT_ONCE", 200)  # several blocks of rows
    scores, targets = cases(seed, 90, 50)
    rng = np.random.default_rng(seed)
    targets[rng.random(targets.shape) < 0.3] = -1
    scores[rng.random(scores.shape) < 0.02] = np.inf
    scores[rng.random(scores.shape) < 0.02] = -np.inf
    want = [reference(s, t) for s, t in zip(scores.T, targets.T, strict=True)]
    scores[targets == -1] = rng.choice([np.nan, np.inf, -np.inf, 0], size=(targets == -1).sum())
    s, t = torch.from_numpy(scores).T, torch.from_numpy(targets).T
    np.testing.assert_allclose(way(s, t == 1, t != -1), want, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_float64_scores_are_told_apart_where_float32_ones_would_tie(way: Callable[..., Tensor]) -> None:
    scores = 1 + 1e-12 * torch.arange(600, dtype=torch.float64)[None]
    assert way(scores, scores > scores[0, 299]).tolist() == [1]


@settings(max_examples=150)
@given(data=st.data(), n=st.integers(1, 12))
def test_any_small_column(data: st.DataObject, n: int) -> None:
    value = st.sampled_from([-np.inf, -1.0, -0.0, 0.0, 0.5, np.inf])
    scores = np.array(data.draw(st.lists(value, min_size=n, max_size=n)))[:, None]
    label = st.sampled_from([-1.0, 0.0, 0.49, 0.5, 1.0])
    targets = np.array(data.draw(st.lists(label, min_size=n, max_size=n)))[:, None]
    want = reference(scores[:, 0], targets[:, 0])
    s, t = torch.from_numpy(scores).T, torch.from_numpy(targets).T
    for way in WAYS:
        np.testing.assert_allclose(way(s, t >= 0.5, t != -1), [want], atol=1e-12)
    np.testing.assert_allclose(m.average_precision(scores, targets), [want], atol=1e-12)
    np.testing.assert_allclose(m.average_precision(scores.T, targets.T, per="item"), [want], atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("per", ["label", "item"])
def test_tensors_of_every_dtype(dtype: torch.dtype, per: str) -> None:
    scores, targets = cases(3, 600, 30)
    s, t = torch.from_numpy(scores).to(dtype), torch.from_numpy(targets)
    got = m.average_precision(s, t, per=per)
    assert isinstance(got, Tensor)
    assert got.dtype == torch.float64
    exact = s.double().numpy()
    pairs = zip(exact.T, targets.T, strict=True) if per == "label" else zip(exact, targets, strict=True)
    np.testing.assert_allclose(got, [reference(a, b) for a, b in pairs], atol=1e-12)


def test_order_of_items_does_not_matter_at_all() -> None:
    scores, targets = cases(5, 700, 40)
    order = np.random.default_rng(1).permutation(len(scores))
    np.testing.assert_array_equal(
        m.average_precision(scores, targets), m.average_precision(scores[order], targets[order])
    )


def test_rows_longer_than_the_switch_agree_with_shorter_code() -> None:
    width = ranking.LONG_ROW
    scores, targets = cases(6, width, 20)
    s, t = torch.from_numpy(scores).T, torch.from_numpy(targets).T
    np.testing.assert_array_equal(average_precision_rows(s, t == 1), by_sorting_rows(s, t == 1))
    np.testing.assert_allclose(average_precision_rows(s, t == 1), by_sorting_cells(s, t == 1), atol=1e-14)


@pytest.mark.parametrize("threads", [3, 60])
def test_many_threads_and_one_agree(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scores, targets = cases(7, 4000, 50)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    one = m.average_precision(scores, targets)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    np.testing.assert_array_equal(m.average_precision(scores, targets), one)


def test_monotone_transforms_change_nothing() -> None:
    scores, targets = cases(8, 300, 30)
    np.testing.assert_array_equal(m.average_precision(scores, targets), m.average_precision(scores**3, targets))


def test_inputs_are_left_alone_and_may_be_read_only() -> None:
    scores, targets = cases(9, 800, 12)
    targets[::3] = -1
    scores_before, targets_before = scores.copy(), targets.copy()
    scores.flags.writeable = targets.flags.writeable = False
    m.average_precision(scores, targets)
    m.average_precision(scores[::-1, ::2], targets[::-1, ::2], per="item")
    np.testing.assert_array_equal(scores, scores_before)
    np.testing.assert_array_equal(targets, targets_before)


def test_kinds_of_targets_and_scores() -> None:
    scores = np.array([[3, 1], [2, 2], [1, 3]])
    want = m.average_precision(scores.astype(float), np.array([[1, 0], [0, 0], [1, 1]]))
    np.testing.assert_allclose(want, [(1 + 2 / 3) / 2, 1])
    for targets in (
        np.array([[True, False], [False, False], [True, True]]),
        np.array([[1, 0], [0.4, 0.1], [0.5, 0.9]]),
    ):
        np.testing.assert_array_equal(m.average_precision(scores, targets), want)
    for kind in (np.uint8, np.uint16, np.uint64):
        ints = np.array([[1, 0], [0, 0], [1, 1]]).astype(kind)
        np.testing.assert_array_equal(m.average_precision(scores.astype(kind), ints), want)
    swapped = scores.astype(">f4")
    np.testing.assert_array_equal(m.average_precision(swapped, np.array([[1, 0], [0, 0], [1, 1]])), want)


def test_mean_leaves_out_and_counts_the_undefined() -> None:
    scores, targets = cases(10, 50, 60)
    ap = m.average_precision(scores, targets)
    mean = m.mean_defined(ap)
    assert mean.left_out == (targets.sum(0) == 0).sum() > 0
    assert mean.n + mean.left_out == 60
    assert m.mean_average_precision(scores, targets) == mean.value == pytest.approx(np.nanmean(ap))
    by_item = m.mean_average_precision(torch.from_numpy(scores), torch.from_numpy(targets), per="item")
    assert by_item == pytest.approx(np.nanmean(m.average_precision(scores, targets, per="item")))
    assert np.isnan(m.mean_average_precision(scores, np.full(scores.shape, -1)))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (600, 0), (0, 600)])
def test_empty(shape: tuple[int, int]) -> None:
    nothing = np.zeros(shape)
    assert np.isnan(m.average_precision(nothing, nothing)).tolist() == [True] * shape[1]
    assert np.isnan(m.average_precision(nothing, nothing, per="item")).tolist() == [True] * shape[0]
    assert np.isnan(m.mean_average_precision(nothing, nothing))


@pytest.mark.parametrize(
    ("scores", "targets", "words"),
    [
        (np.zeros((1, 2)), np.array([[2, 0]]), r"targets\[0, 0\] is 2"),
        (np.zeros((1, 2)), np.array([[np.nan, 0]]), r"targets\[0, 0\] is nan"),
        (torch.zeros(1, 1, dtype=torch.complex64), torch.zeros(1, 1), "scores has dtype torch.complex64"),
        (np.array([["a"]]), np.zeros((1, 1)), "scores has dtype <U1"),
        (torch.zeros(1, 1), torch.zeros(1, 1, device="meta"), "targets is on meta, but scores is on cpu"),
    ],
)
def test_bad_input_is_one_sentence(scores: np.ndarray, targets: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        m.average_precision(scores, targets)
    assert "\n" not in str(error.value)
