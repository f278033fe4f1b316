"""Shifted priors: the shift, and EM's estimate against EM itself, the truth and its standard error."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import steelyard.calibrate as cal


def logit(p: np.ndarray | float) -> np.ndarray:
    return np.log(p) - np.log1p(-np.asarray(p))


def deployed(n: int, train: np.ndarray, prior: np.ndarray, distance: float, seed: int = 0) -> np.ndarray:
    """Calibrated η for the training prior, of items whose labels have another: normal scores, `distance` apart."""
    rng = np.random.default_rng(seed)
    y = rng.random((n, len(train))) < prior
    score = rng.normal(0, 1, y.shape) + distance * y
    return 1 / (1 + np.exp(-(logit(train) + distance * score - distance**2 / 2)))


def likelihood(p: np.ndarray, pi: float, q: float) -> float:
    return float(np.log(q * p / pi + (1 - q) * (1 - p) / (1 - pi)).sum())


def em(p: np.ndarray, pi: float, rounds: int = 2000, start: float | None = None) -> float:
    """Saerens, Latinne, Decaestecker (2002), as printed."""
    q = pi if start is None else start
    for _ in range(rounds):
        present = p * q / pi
        q = float((present / (present + (1 - p) * (1 - q) / (1 - pi))).mean())
    return q


def test_shift_multiplies_the_odds():
    rng = np.random.default_rng(0)
    train, prior = np.array([0.1, 0.5, 0.02]), np.array([0.3, 0.1, 0.02])
    p = rng.random((20, 3))
    got = 1 / (1 + np.exp(-cal.shift_prior(logit(p), train, prior)))
    present, absent = p * prior / train, (1 - p) * (1 - prior) / (1 - train)
    np.testing.assert_allclose(got, present / (present + absent), rtol=1e-12)
    z = torch.randn(5, 3)
    there = cal.shift_prior(z, 0.2, torch.from_numpy(prior))
    assert there.dtype == torch.float32
    torch.testing.assert_close(cal.shift_prior(there, prior, 0.2), z, atol=1e-5, rtol=1e-5)


def test_shift_at_the_borders():
    z = np.array([[1.0, 2.0, 3.0, 4.0]])
    got = cal.shift_prior(z, np.array([0.5, 0.5, 0.0, 1.0]), np.array([0.0, 1.0, 0.0, 1.0]))
    np.testing.assert_array_equal(got, [[-100.0, 100.0, 3.0, 4.0]])


@given(seed=st.integers(0, 10**6), distance=st.floats(0.3, 4.0))
@settings(max_examples=20)
def test_the_estimate_is_where_em_ends(seed: int, distance: float) -> None:
    rng = np.random.default_rng(seed)
    train, prior = rng.uniform(0.05, 0.95, 2), rng.uniform(0.05, 0.95, 2)
    p = deployed(60, train, prior, distance, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cal.UncalibratedWarning)
        report = cal.prior_report(p, train)
    assert report.converged.all()
    for c in range(2):
        slow, found = em(p[:, c], train[c]), report.prior[c]
        assert (
            min(train[c], found) - 1e-12 <= slow <= max(train[c], found) + 1e-12
        )  # EM climbs, and is on its way there
        assert likelihood(p[:, c], train[c], found) >= likelihood(p[:, c], train[c], slow) - 1e-9
        if distance > 1.5 and 0.01 < found < 0.99:
            assert found == pytest.approx(slow, abs=1e-6)
            assert found == pytest.approx(em(p[:, c], train[c], 1, start=found), abs=1e-9)


def test_the_estimate_agrees_with_the_population_within_its_error():
    """Bonferroni at .001 over 200 labels; and the errors are neither too small nor too large."""
    n_labels = 200
    rng = np.random.default_rng(5)
    train = np.exp(rng.uniform(np.log(0.01), np.log(0.6), n_labels))
    prior = np.exp(rng.uniform(np.log(0.01), np.log(0.6), n_labels))
    p = deployed(20000, train, prior, 2.0, 6)
    report = cal.prior_report(p, train)
    z = (report.prior - prior) / report.standard_error
    assert np.abs(z).max() < norm.isf(0.001 / 2 / n_labels)
    assert 0.85 < z.std() < 1.15
    assert report.converged.all()
    assert not report.suspicious.any()
    assert report.steps.max() < 40
    often = prior * len(p) > 10000
    assert often.sum() > 5
    assert np.abs(report.prior / prior - 1)[often].max() < 0.05


def test_arrays_and_tensors_give_their_like_and_a_number_serves_all_labels():
    p = deployed(500, np.array([0.2, 0.2]), np.array([0.4, 0.1]), 2.0)
    got = cal.estimate_prior(p, 0.2)
    assert isinstance(got, np.ndarray)
    assert got.shape == (2,)
    tensor = cal.estimate_prior(torch.from_numpy(p), torch.tensor([0.2, 0.2], dtype=torch.float64))
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_allclose(tensor.numpy(), got, rtol=1e-12)
    np.testing.assert_allclose(cal.estimate_prior(p.astype(np.float32), 0.2), got, rtol=1e-4)
    np.testing.assert_array_equal(cal.estimate_prior(p.tolist(), 0.2), got)


def test_labels_that_tell_nothing_keep_their_prior():
    p = deployed(500, np.array([0.2] * 4), np.array([0.4] * 4), 2.0)
    p[:, 1] = 0.3
    p[:, 2], p[:, 3] = 0.0, 1.0
    report = cal.prior_report(p, np.array([0.2, 0.3, 0.0, 1.0]))
    assert report.prior[1:].tolist() == [0.3, 0.0, 1.0]
    assert np.isnan(report.standard_error[1:]).all()
    assert report.prior[0] == pytest.approx(0.4, abs=0.1)
    assert not report.suspicious.any()
    assert report.converged.all()


def test_certain_probabilities_count():
    p = np.array([[1.0], [0.0], [0.0], [0.0]])
    assert cal.estimate_prior(p, 0.5).item() == pytest.approx(0.25, abs=1e-12)


def test_uncalibrated_input_is_noticed():
    train = np.array([0.05, 0.3])
    p = deployed(4000, train, train, 2.0)
    inflated = 1 / (1 + np.exp(-logit(p) / 4))  # squeezed toward .5, as focal losses leave them
    with pytest.warns(cal.UncalibratedWarning, match="label 0 and 1 more are not calibrated") as caught:
        report = cal.prior_report(inflated, train)
    assert caught[0].filename == __file__
    assert report.suspicious.tolist() == [True, True]
    assert report.prior.tolist() == [1.0, 1.0]
    with pytest.warns(cal.UncalibratedWarning) as caught:
        cal.estimate_prior(inflated, train)
    assert caught[0].filename == __file__
    shifted = 1 / (1 + np.exp(-logit(p) - 1.5))  # an inner maximum: only items with training's prior tell
    assert not cal.prior_report(shifted, train).suspicious.any()
    with pytest.warns(cal.UncalibratedWarning, match="not calibrated"):
        report = cal.prior_report(shifted, train, reference=shifted)
    assert report.suspicious.all()
    assert not cal.prior_report(p, train, reference=p).suspicious.any()


def test_a_label_that_vanished_is_worth_a_word_and_a_rare_one_is_not():
    p = deployed(2000, np.array([0.2]), np.array([0.0]), 6.0)
    with pytest.warns(cal.UncalibratedWarning):
        assert cal.estimate_prior(p, 0.2).item() == pytest.approx(0.0, abs=1e-3)
    few = deployed(100, np.array([0.01]), np.array([0.0]), 6.0)
    assert cal.estimate_prior(few, 0.01).item() == pytest.approx(0.0, abs=1e-3)


P = np.full((3, 2), 0.5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: cal.estimate_prior(np.full((3, 2), 1.5), 0.5), r"probabilities\[0, 0\] is 1.5"),
        (lambda: cal.estimate_prior(np.full((3, 2), np.nan), 0.5), r"probabilities\[0, 0\] is nan"),
        (lambda: cal.estimate_prior(np.full(3, 0.5), 0.5), r"probabilities has shape \(3,\)"),
        (lambda: cal.estimate_prior(np.zeros((0, 2)), 0.5), "at least one item"),
        (lambda: cal.estimate_prior(P, np.array([0.5] * 3)), "train_prior has shape"),
        (lambda: cal.estimate_prior(P, np.array([0.5, -0.1])), r"train_prior\[1\] is -0\.1"),
        (lambda: cal.estimate_prior(P, 0.5, np.full((3, 3), 0.5)), "reference has 3 labels"),
        (lambda: cal.estimate_prior(P, 0.5, np.full((3, 2), 2.0)), r"reference\[0, 0\] is 2"),
        (lambda: cal.estimate_prior(P, 0.5, np.full(2, 0.5)), r"reference has shape \(2,\)"),
        (lambda: cal.shift_prior(P, np.array([0.5, 0.0]), 0.1), r"from_prior\[1\] is 0"),
        (lambda: cal.shift_prior(P, 0.5, 1.5), r"to_prior\[0\] is 1\.5"),
        (lambda: cal.shift_prior(P, float("nan"), 0.5), r"from_prior\[0\] is nan"),
        (lambda: cal.shift_prior(P, 0.5, np.full(3, 0.5)), "to_prior has shape"),
    ],
)
def test_mistakes_are_one_sentence(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
