"""Where an evaluator keeps its items: what comes out is what went in; order statistics by counting bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.metrics import store as store_module
from steelyard.metrics.store import Store, mass_edges


@pytest.mark.parametrize(("cells", "n_blocks"), [(1 << 22, 1), (8, 2), (2, 6)])
def test_what_comes_out_is_what_went_in(cells: int, n_blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches are put together; whole targets take a byte, soft ones and those of their block four."""
    monkeypatch.setattr(store_module, "CELLS_IN_BLOCK", cells)
    store = Store(2, np.dtype(np.float16))
    targets = [np.array([row], np.float32) for row in ([1, 0], [-1, 1], [0, 1], [0, 0], [-1, 0.75], [0, 1])]
    scores = [np.full((1, 2), i, np.float16) for i in range(6)]
    for batch in zip(scores, targets, strict=True):
        store.append(*batch)
    assert len(store) == 6
    got_scores, got_targets = zip(*store.blocks(), strict=True)
    assert len(got_scores) == n_blocks
    assert {t.dtype for t in got_targets[:-1]} <= {np.dtype(np.int8), np.dtype(np.float32)}
    assert got_targets[0].dtype == (np.float32 if n_blocks == 1 else np.int8)
    np.testing.assert_array_equal(np.concatenate(got_targets), np.concatenate(targets))
    np.testing.assert_array_equal(np.concatenate(got_scores), np.concatenate(scores))
    assert store.nbytes == sum(s.nbytes + t.nbytes for s, t in store.blocks())


def test_a_batch_is_copied() -> None:
    store, scores = Store(3, np.dtype(np.float32)), np.zeros((4, 3), np.float32)
    store.append(scores, np.zeros((4, 3), np.int8))
    assert store.nbytes == 4 * 3 * (4 + 1)
    scores[:] = 1
    assert [s.sum() for s, _ in store.blocks()] == [0]


def test_rows_wider_than_what_is_worked_on_at_a_time() -> None:
    n_labels = (1 << 20) + 1
    targets = np.zeros((2, n_labels), np.int8)
    targets[0, 0] = -1
    store = Store(n_labels, np.dtype(np.float16))
    store.append(np.zeros((2, n_labels), np.float16), targets)
    assert [len(scores) for scores in store.known()] == [n_labels - 1, n_labels]
    assert sorted(store.canonical_order()) == [0, 1]


@pytest.mark.parametrize(
    ("dtype", "order"),
    [("float32", [8, 11, 4, 0, 10, 5, 6, 3, 9, 2, 1, 7]), ("float16", [9, 7, 2, 0, 4, 5, 3, 1, 8, 11, 6, 10])],
)
def test_the_order_is_the_one_that_intervals_were_drawn_in(dtype: str, order: list[int]) -> None:
    """Another one is as good, but a report's intervals could no longer be had again from its seed."""
    store = Store(3, np.dtype(dtype))
    cells = np.arange(36).reshape(12, 3)
    store.append((cells / 36).astype(dtype), (cells // 2 % 3 - 1).astype(np.int8))
    assert store.canonical_order().tolist() == order


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 300),
    bins=st.integers(1, 20),
    dtype=st.sampled_from([np.float16, np.float32]),
    levels=st.sampled_from([0, 1, 3, 50]),
)
@settings(max_examples=200)
def test_order_statistics_agree_with_sorting(seed: int, n: int, bins: int, dtype: type, levels: int) -> None:
    rng = np.random.default_rng(seed)
    p = rng.random(n) ** rng.choice([1, 8, 40])  # down to the smallest numbers there are
    p = (np.round(p * levels) / levels if levels else p).astype(dtype)
    p[rng.random(n) < 0.1] = -0.0
    cuts = np.sort(rng.integers(0, n + 1, size=3))
    got = mass_edges(bins, lambda: np.split(p, cuts))
    np.testing.assert_array_equal(got, np.sort(p)[np.arange(1, bins) * n // bins])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_order_statistics_of_more_than_one_chunk(dtype: type) -> None:
    p = np.random.default_rng(0).random(600_001).astype(dtype)
    got = mass_edges(15, lambda: [p])
    np.testing.assert_array_equal(got, np.sort(p)[np.arange(1, 15) * len(p) // 15])


def test_order_statistics_of_nothing_are_nan() -> None:
    for chunks in (lambda: [np.empty(0, np.float32)], list):
        np.testing.assert_array_equal(mass_edges(4, chunks), [np.nan] * 3, strict=True)
