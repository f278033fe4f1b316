"""Order statistics by counting bits, against sorting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.metrics.order import mass_edges


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 300),
    bins=st.integers(1, 20),
    dtype=st.sampled_from([np.float16, np.float32]),
    levels=st.sampled_from([0, 1, 3, 50]),
)
@settings(max_examples=200, deadline=None)
def test_agrees_with_sorting(seed: int, n: int, bins: int, dtype: type, levels: int) -> None:
    rng = np.random.default_rng(seed)
    p = rng.random(n) ** rng.choice([1, 8, 40])  # down to the smallest numbers there are
    p = (np.round(p * levels) / levels if levels else p).astype(dtype)
    p[rng.random(n) < 0.1] = -0.0
    cuts = np.sort(rng.integers(0, n + 1, size=3))
    got = mass_edges(bins, lambda: np.split(p, cuts))
    np.testing.assert_array_equal(got, np.sort(p)[np.arange(1, bins) * n // bins])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_more_than_one_chunk(dtype: type) -> None:
    p = np.random.default_rng(0).random(600_001).astype(dtype)
    got = mass_edges(15, lambda: [p])
    np.testing.assert_array_equal(got, np.sort(p)[np.arange(1, 15) * len(p) // 15])


def test_nothing_is_nan() -> None:
    for chunks in (lambda: [np.empty(0, np.float32)], list):
        np.testing.assert_array_equal(mass_edges(4, chunks), [np.nan] * 3, strict=True)
