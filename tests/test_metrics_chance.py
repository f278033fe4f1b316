"""Calibration error by chance."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
import torch

from steelyard.metrics import Bins, calibration_error, error_by_chance


def deviation(n: int, p: float) -> float:
    """E|K/n − p|, term by term."""
    return sum(comb(n, k) * p**k * (1 - p) ** (n - k) * abs(k / n - p) for k in range(n + 1))


def bins_of(counts: list[int], confidence: list[float]) -> Bins:
    return Bins(np.linspace(0, 1, len(counts) + 1), np.array(counts), np.array(confidence), np.array(confidence))


@pytest.mark.parametrize("n", [1, 2, 7, 40, 500])
@pytest.mark.parametrize("p", [0.0, 1e-9, 0.03, 0.25, 0.5, 0.97, 1 - 1e-9, 1.0])
def test_one_bin_is_the_mean_deviation_of_a_binomial(n: int, p: float) -> None:
    found = error_by_chance(bins_of([n], [p]))
    assert found.ace == pytest.approx(deviation(n, p), rel=1e-9, abs=1e-15)
    assert found.ece == pytest.approx(found.ace, rel=1e-12)


def test_ace_is_the_mean_over_filled_bins_and_ece_over_cells() -> None:
    a, b = deviation(10, 0.1), deviation(1000, 0.8)
    found = error_by_chance(bins_of([10, 0, 1000], [0.1, np.nan, 0.8]))
    assert found.ace == pytest.approx((a + b) / 2)
    assert found.ece == pytest.approx((10 * a + 1000 * b) / 1010)


def test_by_label() -> None:
    p = torch.tensor([[0.2, 0.9, 0.5], [0.7, 0.9, 0.5], [0.2, 0.1, 0.5]])
    y = torch.tensor([[0, 1, -1], [1, 1, -1], [0, 0, -1]])
    found = error_by_chance(calibration_error(p, y, bins=5, per="label").bins)
    assert isinstance(found.ace, torch.Tensor)
    of_arrays = error_by_chance(calibration_error(p.numpy(), y.numpy(), bins=5, per="label").bins)
    assert isinstance(of_arrays.ace, np.ndarray)
    np.testing.assert_array_equal(of_arrays.ace, found.ace.numpy())
    np.testing.assert_array_equal(of_arrays.ece, found.ece.numpy())
    assert float(found.ace[0]) == pytest.approx((deviation(2, 0.2) + deviation(1, 0.7)) / 2)
    assert float(found.ece[1]) == pytest.approx((2 * deviation(2, 0.9) + deviation(1, 0.1)) / 3)
    assert bool(found.ace[2].isnan())
    assert bool(found.ece[2].isnan())


def test_nothing_known_is_nan() -> None:
    found = error_by_chance(calibration_error(np.full((3, 2), 0.5), np.full((3, 2), -1)).bins)
    assert np.isnan(found.ace)
    assert np.isnan(found.ece)


@pytest.mark.parametrize("items", [60, 3000])
@pytest.mark.parametrize("binning", ["width", "mass"])
def test_it_is_what_labels_drawn_from_the_probabilities_show(items: int, binning: str) -> None:
    draw = np.random.default_rng(5)
    p = draw.beta(0.15, 0.6, (items, 8))
    errors = [calibration_error(p, (draw.random(p.shape) < p).astype(np.int8), binning=binning) for _ in range(200)]
    found = error_by_chance(errors[0].bins)
    assert found.ace == pytest.approx(np.mean([e.ace for e in errors]), rel=0.06)
    assert found.ece == pytest.approx(np.mean([e.ece for e in errors]), rel=0.06)


def test_a_great_many_cells_have_the_deviation_of_a_normal() -> None:
    n, p = 4 * 10**9, 0.3
    found = error_by_chance(bins_of([n], [p]))
    assert found.ace == pytest.approx(np.sqrt(2 * p * (1 - p) / (np.pi * n)), rel=1e-4)
