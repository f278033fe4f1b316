"""Temperature, Platt and Isotonic: against independent optimisers, and what shrinkage does to rare labels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar
from sklearn.isotonic import IsotonicRegression

import steelyard.calibrate as cal
from calibration_reference import own_level_line
from steelyard.metrics import log_loss

FREE = 1e-9  # a prior so weak that the label's own fit is left
KINDS = (cal.Temperature, cal.Platt, cal.Isotonic)
every_kind = pytest.mark.parametrize("kind", KINDS)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def drawn(n: int, slope: list[float], shift: list[float], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = rng.normal(-1, 2, (n, len(slope)))
    return z, (rng.random(z.shape) < sigmoid(np.array(slope) * z + np.array(shift))).astype(np.int8)


def cross_entropy(a: float, b: float, z: np.ndarray, t: np.ndarray) -> float:
    x = a * z + b
    return float((t * np.logaddexp(0, -x) + (1 - t) * np.logaddexp(0, x)).sum())


def platt_by_simplex(z: np.ndarray, t: np.ndarray) -> np.ndarray:
    options = {"xatol": 1e-9, "fatol": 1e-9, "maxiter": 4000, "maxfev": 4000}
    return minimize(lambda x: cross_entropy(x[0], x[1], z, t), [1.0, 0.0], method="Nelder-Mead", options=options).x


def mixed(z: np.ndarray, t: np.ndarray, line: tuple[float, float], m: float) -> np.ndarray:
    """The rule in ten lines: m outcomes of the rarer kind, labelled by the line before."""
    q = sigmoid(line[0] * z + line[1])
    n = max(min(t.sum(), (1 - t).sum()), min(q.sum(), (1 - q).sum()))
    share = m / (m + n)
    return (1 - share) * t + share * q


def test_platt_against_a_simplex_search_with_the_rule_written_out():
    z, t = drawn(600, [0.5, 1.5, 1.0], [0.5, -1.0, -3.5])
    fitted = cal.Platt(prior_positives=20.0).fit(z, t)
    pooled = platt_by_simplex(z.ravel(), mixed(z.ravel(), t.ravel(), (1.0, 0.0), 1.0))
    slope, shifts = own_level_line(z, t)
    for c in range(3):
        want = platt_by_simplex(z[:, c], mixed(z[:, c], t[:, c], (slope, shifts[c]), 20.0))
        assert fitted.slope[c].item() == pytest.approx(want[0], abs=2e-5)
        assert fitted.shift[c].item() == pytest.approx(want[1], abs=2e-5)
    one = cal.Platt(per="pooled").fit(z, t)
    assert (one.slope.item(), one.shift.item()) == pytest.approx(tuple(pooled), abs=2e-5)


def test_temperature_against_a_scalar_search_with_the_rule_written_out():
    z, t = drawn(600, [0.5, 1.5, 3.0], [0.0, 0.0, 0.0])
    fitted = cal.Temperature(prior_positives=7.0).fit(z, t)

    def best(x: np.ndarray, y: np.ndarray) -> float:
        return minimize_scalar(lambda s: cross_entropy(s, 0.0, x, y), (0.1, 2.0), options={"xtol": 1e-10}).x

    pooled = best(z.ravel(), mixed(z.ravel(), t.ravel(), (1.0, 0.0), 1.0))
    want = [1 / best(z[:, c], mixed(z[:, c], t[:, c], (pooled, 0.0), 7.0)) for c in range(3)]
    np.testing.assert_allclose(fitted.temperature, want, rtol=1e-5)
    assert cal.Temperature(per="pooled").fit(z, t).temperature.tolist() == pytest.approx([1 / pooled], rel=1e-5)


def test_isotonic_against_scikit_learn():
    z, t = drawn(800, [0.5, 2.0], [0.5, -1.0])
    z = np.round(z, 1)  # ties
    free = cal.Isotonic(prior_positives=FREE).fit(z, t)(z)
    for c in range(2):
        want = IsotonicRegression(out_of_bounds="clip").fit(z[:, c], t[:, c]).predict(z[:, c])
        np.testing.assert_allclose(free[:, c], want, atol=1e-9)
    pooled = IsotonicRegression(out_of_bounds="clip").fit(z.ravel(), mixed(z.ravel(), t.ravel(), (1.0, 0.0), 1.0))
    np.testing.assert_allclose(cal.Isotonic(per="pooled").fit(z, t)(z), pooled.predict(z.ravel()).reshape(z.shape))
    level = np.log(pooled.predict(z.ravel()) / (1 - pooled.predict(z.ravel()))).reshape(z.shape)
    got = cal.Isotonic(prior_positives=30.0).fit(z, t)(z)
    slope, shifts = own_level_line(level, t)
    for c in range(2):
        own = IsotonicRegression().fit(z[:, c], t[:, c]).predict(z[:, c])
        a, b = platt_by_simplex(level[:, c], mixed(level[:, c], t[:, c], (slope, shifts[c]), 30.0))
        share = 30 / (30 + min(t[:, c].sum(), (1 - t[:, c]).sum()))
        np.testing.assert_allclose(got[:, c], (1 - share) * own + share * sigmoid(a * level[:, c] + b), atol=2e-5)


@every_kind
def test_a_label_of_five_positives_is_not_overfitted(kind: type) -> None:
    """Such a label stays near the pooled curve at its level, and that serves it better on fresh labels than its own."""
    gaps, losses = [], []
    for seed in range(8):
        z, t = drawn(5000, [1.0, 1.0, 1.0], [0.0, 0.0, 0.0], seed)
        rng = np.random.default_rng(seed)
        z[:, 2] = rng.normal(-8, 1.5, len(z))
        p = sigmoid(z[:, 2])
        t[:, 2] = 0
        t[rng.choice(len(z), 5, replace=False, p=p / p.sum()), 2] = 1
        level = np.array([np.nan, np.nan, p.mean()])  # as training would have it
        shrunk, free, pooled = kind().fit(z, t, level), kind(prior_positives=FREE).fit(z, t), kind("pooled").fit(z, t)
        grid = np.tile(np.linspace(-8, -3, 50)[:, None], 3)
        gaps.append([np.abs(x(grid)[:, 2] - pooled(grid)[:, 2]).mean() for x in (shrunk, free)])
        fresh = (rng.random((len(z), 1)) < p[:, None]).astype(np.int8)
        losses.append([log_loss(np.clip(x(z)[:, 2:], 1e-12, None), fresh) for x in (shrunk, free, pooled)])
    near, far = np.mean(gaps, axis=0)
    assert near < 0.5 * far
    shrunk_loss, free_loss, pooled_loss = np.mean(losses, axis=0)
    if kind is not cal.Temperature:  # five positives are enough for its one number
        assert shrunk_loss < free_loss
        assert shrunk_loss - pooled_loss < 0.5 * (free_loss - pooled_loss)


@every_kind
def test_a_label_of_five_thousand_positives_fits_freely(kind: type) -> None:
    z, t = drawn(12000, [1.0, 1.0, 0.4], [0.0, 0.0, 0.0])
    assert 4500 < t[:, 2].sum() < 5500
    shrunk, free, pooled = kind().fit(z, t), kind(prior_positives=FREE).fit(z, t), kind("pooled").fit(z, t)
    grid = np.tile(np.linspace(-6, 4, 200)[:, None], 3)
    truth = sigmoid(0.4 * grid[:, 2])
    assert np.abs(shrunk(grid)[:, 2] - free(grid)[:, 2]).max() < 0.005
    assert np.abs(shrunk(grid)[:, 2] - truth).mean() < 0.25 * np.abs(pooled(grid)[:, 2] - truth).mean()


def test_a_level_far_from_the_pooled_one_is_kept():
    """Five positives where the logits expect hundreds are five positives."""
    rng = np.random.default_rng(0)
    z = rng.normal(0, 1, (4000, 3))
    t = (rng.random(z.shape) < sigmoid(z)).astype(np.int8)
    t[:, 2] = 0
    t[:5, 2] = 1
    for kind in (cal.Platt, cal.Isotonic):
        assert kind(prior_positives=20.0).fit(z, t)(z)[:, 2].sum() == pytest.approx(5, abs=1)


@every_kind
def test_a_label_without_positives_or_negatives_gets_its_prior(kind: type) -> None:
    z, t = drawn(500, [1.0, 2.0, 1.0, 1.0, 1.0], [0.0, -1.0, 0.0, 0.0, 0.0])
    t[:, 2], t[:, 3], t[:, 4] = 0, 1, -1
    fitted, pooled = kind().fit(z, t), kind(per="pooled").fit(z, t)
    assert np.abs(fitted(z)[:, 1] - pooled(z)[:, 1]).max() > 0.02
    if kind is cal.Temperature:
        np.testing.assert_allclose(fitted(z)[:, 2:], pooled(z)[:, 2:], rtol=1e-12)
        return
    eta = fitted(z)
    assert eta[:, 2].mean() < 1 / 500
    assert eta[:, 3].mean() > 1 - 1 / 500
    rate = t[:, [0, 1, 3]].mean()  # of the labels that have a positive
    assert eta[:, 4].mean() == pytest.approx(rate, rel=0.01)
    assert (np.diff(eta[np.argsort(z[:, 2]), 2]) >= 0).all()


@every_kind
def test_unknown_is_the_same_as_dropped(kind: type) -> None:
    z, t = drawn(400, [1.0, 2.0], [0.0, -1.0])
    hidden = np.random.default_rng(1).random(t.shape) < 0.4
    garbage, holes = np.where(hidden, np.nan, z), np.where(hidden, -1, t)
    grid = np.tile(np.linspace(-6, 6, 50)[:, None], 2)
    got = kind().fit(garbage, holes)(grid)
    padded = [np.concatenate([x[~hidden[:, c], c] for c in range(2)]) for x in (z, t)]
    rows = [int((~hidden[:, c]).sum()) for c in range(2)]
    wide_z, wide_t = np.zeros((sum(rows), 2)), np.full((sum(rows), 2), -1)
    for c, start in enumerate((0, rows[0])):
        wide_z[start : start + rows[c], c] = padded[0][start : start + rows[c]]
        wide_t[start : start + rows[c], c] = padded[1][start : start + rows[c]]
    np.testing.assert_allclose(got, kind().fit(wide_z, wide_t)(grid), atol=1e-9)


@every_kind
def test_soft_targets_count_as_so_many_hard_ones(kind: type) -> None:
    z, t = drawn(300, [1.0, 1.5], [0.0, -1.0])
    soft = np.where(t == 1, 0.75, 0.25)
    each = np.concatenate([t, t, t, 1 - t])
    grid = np.tile(np.linspace(-6, 6, 50)[:, None], 2)
    got = kind(prior_positives=20.0).fit(z, soft)(grid)
    want = kind(prior_positives=80.0).fit(np.concatenate([z] * 4), each)(grid)
    np.testing.assert_allclose(got, want, atol=2e-3)  # the pooled prior, one positive, weighs a quarter there


@every_kind
@pytest.mark.parametrize("per", ["label", "pooled"])
@given(seed=st.integers(0, 10**6), n=st.integers(3, 60), scale=st.sampled_from([1e-3, 1.0, 50.0, 1e4]))
@settings(max_examples=25)
def test_monotone_finite_and_in_range_whatever_the_labels(
    kind: type, per: str, seed: int, n: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    z = rng.normal(rng.normal(), 1, (n, 3)) * scale
    t = rng.integers(-1, 2, (n, 3))
    t[:3, 0] = (1, 0, -1)
    fitted = kind(per).fit(z, t)
    grid = np.tile(np.sort(np.concatenate([z.ravel(), np.linspace(-3, 3, 101) * scale]))[:, None], 3)
    eta = fitted(grid)
    assert ((eta >= 0) & (eta <= 1)).all()
    assert (np.diff(eta, axis=0) >= -1e-12).all()
    assert np.abs(fitted.log_odds(grid)).max() <= 100


@every_kind
def test_separated_labels_and_constant_logits_have_finite_fits(kind: type) -> None:
    z = np.linspace(-3, 3, 40)[:, None]
    eta = kind().fit(z, (z > 0).astype(int))(z)
    assert ((eta > 0) & (eta < 1)).all()
    assert log_loss(eta, (z > 0).astype(int)) < log_loss(sigmoid(z), (z > 0).astype(int))
    flat = kind().fit(np.zeros((400, 1)), (np.arange(400)[:, None] % 10 == 0))(np.zeros((2, 1)))
    expected = 0.5 if kind is cal.Temperature else 0.1
    np.testing.assert_allclose(flat, expected, atol=0.003)


@pytest.mark.parametrize("kind", [cal.Temperature, cal.Platt])
def test_a_falling_line_is_made_flat(kind: type) -> None:
    z = np.random.default_rng(0).normal(0, 3, (500, 1))
    fitted = kind().fit(z, (z < 0).astype(int))
    assert fitted.slope.tolist() == [0.0]
    np.testing.assert_allclose(fitted(np.array([[-np.inf], [0.0], [np.inf]])), 0.5, atol=0.05)
    assert np.isnan(fitted(np.array([[np.nan]])))  # flat or not, a logit that is none has no probability


@every_kind
def test_arrays_and_tensors_of_any_float_give_their_like(kind: type) -> None:
    z, t = drawn(200, [1.0, 2.0], [0.0, -1.0])
    want = kind().fit(z, t)(z)
    assert isinstance(want, np.ndarray)
    assert want.dtype == np.float64
    tensor = kind().fit(torch.from_numpy(z), torch.from_numpy(t))(torch.from_numpy(z))
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_array_equal(tensor.numpy(), want)
    z32 = torch.from_numpy(z).float()
    fitted = kind().fit(z32, torch.from_numpy(t.astype(bool)))
    assert fitted(z32).dtype == fitted(z32.half()).dtype == torch.float32
    np.testing.assert_allclose(fitted(z32), want, atol=1e-4)
    np.testing.assert_allclose(sigmoid(fitted.log_odds(z)), fitted(z), rtol=1e-9)


Z, T = drawn(50, [1.0, 2.0], [0.0, -1.0])


@every_kind
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda kind: kind()(Z), "is not fitted: call fit"),
        (lambda kind: kind().state(), "is not fitted"),
        (lambda kind: kind().fit(Z, T)(np.zeros((2, 3))), "3 labels, but the calibrator was fitted on 2"),
        (lambda kind: kind().fit(Z, np.full_like(T, -1)), "no known label"),
        (lambda kind: kind().fit(Z, np.zeros_like(T)), "no positive"),
        (lambda kind: kind().fit(Z, np.ones_like(T)), "no negative"),
        (lambda kind: kind().fit(np.where(np.arange(100).reshape(50, 2) == 7, np.inf, Z), T), r"logits\[3, 1\] is inf"),
        (lambda kind: kind().fit(Z, T[:20]), "shape"),
        (lambda kind: kind().fit(Z, T)(Z[0]), "shape"),
        (lambda kind: kind("class"), "per is"),
        (lambda kind: kind(prior_positives=0), "prior_positives is 0"),
        (lambda kind: kind().fit(Z, np.full_like(T, 2)), r"targets\[0, 0\] is 2"),
    ],
)
def test_mistakes_are_one_sentence(kind: type, call: Callable[[type], object], words: str) -> None:
    with pytest.raises(cal.NotFitted if "not fitted" in words else ValueError, match=words):
        call(kind)


def test_many_cells_go_in_blocks():
    """More cells than are taken at once give the line that scikit-learn finds."""
    from sklearn.linear_model import LogisticRegression

    z, t = drawn(300_000, [0.7], [-2.0])
    fitted = cal.Platt(prior_positives=FREE).fit(z, t)
    peer = LogisticRegression(C=np.inf, tol=1e-8).fit(z, t[:, 0])
    assert fitted.slope.item() == pytest.approx(peer.coef_[0, 0], abs=1e-4)
    assert fitted.shift.item() == pytest.approx(peer.intercept_[0], abs=1e-4)
