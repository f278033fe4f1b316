"""Rare labels keep their level: the prior line against an independent one, and frequencies on fresh items."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import expit, logit
from scipy.stats import norm

import steelyard.calibrate as cal
from calibration_reference import own_level_line, shift_to_level, smoothed_level
from small_run import part, probability_model_of
from steelyard.calibrate import lines
from steelyard.calibrate.calibrator import held_out
from steelyard.calibrate.crossfit import MAKERS
from steelyard.objective.parts import KINDS

POSITIVES = np.array([5, 16, 37, 0, 400, 900, 1500])
"""Training positives of 4,000: three rare labels, one without any, and some with plenty."""
N = 4000
RARE = slice(0, 4)
LEVELLED = (cal.Platt, cal.Isotonic)
levelled = pytest.mark.parametrize("kind", LEVELLED)


FREQUENCY = np.maximum(POSITIVES, 0.5) / N
SPREAD = 1.5
SHIFTS = np.array([shift_to_level(norm.ppf((np.arange(4000) + 0.5) / 4000), SPREAD, f) for f in FREQUENCY])


def population(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """True log-odds (n, 7) whose mean η are the frequencies above, 1 of 8,000 for no positive, and labels."""
    odds = SPREAD * rng.normal(size=(n, len(FREQUENCY))) + SHIFTS
    return odds, (rng.random(odds.shape) < expit(odds)).astype(np.int8)


def wrong(odds: np.ndarray, by: float) -> np.ndarray:
    """The logits of a model that is too flat, and off by ±2 or so in log-odds on its rare labels."""
    off = np.zeros(odds.shape[1])
    off[RARE] = by * np.array([1, -1, 1, 1])
    return 0.7 * (odds + off)


def log_loss(eta: np.ndarray, y: np.ndarray) -> np.ndarray:
    eta = np.clip(eta, 1e-15, 1 - 1e-15)
    return -np.where(y == 1, np.log(eta), np.log1p(-eta))


def trained_level(rng: np.random.Generator) -> np.ndarray:
    """Levels as training's counts give them."""
    _, y = population(N, rng)
    return smoothed_level(y.sum(0).astype(float), np.full(y.shape[1], float(N)))


# ---- the line itself


@pytest.mark.parametrize("given", [False, True])
def test_the_prior_line_is_that_of_the_reference(given: bool) -> None:
    rng = np.random.default_rng(1)
    z = rng.normal(-1, 1.5, (500, 4))
    t = (rng.random(z.shape) < expit(0.6 * z + np.array([0.0, 1.0, -2.0, -4.0]))).astype(np.int8)
    t[rng.random(t.shape) < 0.2] = -1
    level = np.array([0.3, 0.5, 0.12, 0.01]) if given else None
    line = lines.own_level_line(held_out(z, t), None if level is None else torch.from_numpy(level))
    slope, shifts = own_level_line(z, t, level)
    assert line.slope.item() == pytest.approx(slope, abs=1e-6)
    np.testing.assert_allclose(line.shift, shifts, atol=1e-5)


def test_levels_are_smoothed_toward_the_rate_of_labels_with_positives() -> None:
    n, k = np.array([0.0, 5, 40, 3, 0, 3]), np.array([1000.0, 4000, 400, 3, 0, 1000])
    got = lines.smoothed_level(torch.from_numpy(n), torch.from_numpy(k)).numpy()
    np.testing.assert_allclose(got, smoothed_level(n, k), rtol=1e-14)
    rate = got[4]  # nothing is known of it
    assert rate == pytest.approx((51 + 0.5) / (5403 + 1), rel=1e-12)
    assert got[0] <= 0.5 / 1000
    assert got[1] == pytest.approx(5.5 / 4000, rel=0.02)
    assert rate < got[3] < 0.1  # three of three, but only three
    assert ((got > 0) & (got < 1)).all()
    alone = lines.smoothed_level(torch.zeros(2).double(), torch.tensor([9.0, 0.0]).double()).tolist()
    assert alone == pytest.approx([0.05, 0.5])  # no positive anywhere: (n + ½)/(k + 1)
    full = lines.smoothed_level(torch.tensor([9.0]).double(), torch.tensor([9.0]).double()).item()
    assert 0.9 < full < 1


@pytest.mark.parametrize("slope", [0.0, 0.3, 5.0, 1e4])
def test_the_shift_gives_the_mean(slope: float) -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(3, 4, (300, 5))
    level = np.array([1e-9, 0.001, 0.3, 0.5, 1 - 1e-6])
    a = torch.tensor([slope], dtype=torch.float64)
    shift = lines.shift_to_level(held_out(z, z > 3), a, torch.from_numpy(level)).numpy()
    mean = expit(slope * z + shift).mean(0)
    np.testing.assert_allclose(mean, level, rtol=1e-9 if slope < 100 else 1e-3)


def test_a_label_never_known_has_its_level_over_all_items_and_garbage_there_is_left_out() -> None:
    rng = np.random.default_rng(0)
    odds, y = population(3000, rng)
    y[:, 1] = -1
    z = odds.copy()
    z[:5, 1] = [np.nan, np.inf, -np.inf, np.nan, np.nan]
    level = np.full(7, np.nan)
    level[1] = 0.02
    for kind in LEVELLED:
        eta = kind().fit(z, y, level)(z[5:])
        assert eta[:, 1].mean() == pytest.approx(0.02, rel=0.03)
    z[:, 1] = np.nan
    assert cal.Platt().fit(z, y, level).shift[1].item() == pytest.approx(logit(0.02))


# ---- what it is for


@levelled
@pytest.mark.parametrize(("by", "given"), [(2.0, False), (-2.0, True), (0.0, True)])
def test_rare_labels_keep_their_frequency_and_beat_the_constant(kind: type, by: float, given: bool) -> None:
    """On fresh items, over repetitions: the mean η and the log-loss, against what chance in the counts allows."""
    means, costs = [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        odds, y = population(N, rng)
        fitted = kind().fit(wrong(odds, by), y, trained_level(rng) if given else None)
        fresh, _ = population(5_000, rng)
        eta, true = fitted(wrong(fresh, by)), expit(fresh)
        means.append(eta.mean(0))
        costs.append((true * log_loss(eta, 1) + (1 - true) * log_loss(eta, 0)).mean(0))
    mean, cost = np.mean(means, 0), np.mean(costs, 0)
    # counts of n positives are off by 1/√n: twice that each, and 4 standard errors of the mean of 8
    error = np.sqrt(1 / np.maximum(POSITIVES, 0.5) / 8)
    assert (np.abs(mean - FREQUENCY)[POSITIVES > 0] < (4 * error * FREQUENCY)[POSITIVES > 0]).all()
    assert mean[3] < 3 / N
    constant = -(FREQUENCY * np.log(FREQUENCY) + (1 - FREQUENCY) * np.log1p(-FREQUENCY))
    assert (cost < constant + 1 / N).all()  # two fitted numbers cost half a unit of log-likelihood each
    assert (cost < constant)[POSITIVES > 0].all()


@levelled
def test_few_held_out_items_rest_on_training_s_level(kind: type) -> None:
    """With a tenth held out most rare labels have no positive there: training's counts are what is known of them."""
    gaps: dict[str, list[np.ndarray]] = {"given": [], "own": []}
    for seed in range(10):
        rng = np.random.default_rng(seed)
        level = trained_level(rng)
        odds, y = population(400, rng)
        fresh, _ = population(5_000, rng)
        for name, frequency in (("given", level), ("own", None)):
            eta = kind().fit(wrong(odds, 2.0), y, frequency)(wrong(fresh, 2.0))
            gaps[name].append(np.log(eta[:, 1:3].mean(0) / (POSITIVES[1:3] / N)))
    given, own = (np.sqrt(np.square(gaps[name]).mean()) for name in ("given", "own"))
    assert given < 0.45  # 1/√16 and 1/√37 of training, and what 400 items add
    assert given < 0.7 * own


@levelled
def test_a_sharp_model_is_held_to_the_positives_that_the_items_have(kind: type) -> None:
    """Thirty items with one clear positive of a label of level .002: its η is not pressed down to the level."""
    rng = np.random.default_rng(0)
    z = np.where(rng.random((30, 8)) < 0.3, 5.0, -5.0) + rng.normal(size=(30, 8))
    y = (z > 0).astype(np.int8)
    z[:, 0] = -6 + 0.5 * rng.normal(size=30)
    z[7, 0] = 5.0
    y[:, 0] = np.arange(30) == 7
    level = np.array([0.002, *[0.3] * 7])
    eta = kind().fit(z, y, level)(z)
    assert eta[7, 0] > 0.5
    assert np.delete(eta[:, 0], 7).max() < 0.02


@levelled
def test_levels_that_the_items_contradict_are_not_believed(kind: type) -> None:
    """Items with other frequencies than training's, such as a balanced split: their own count."""
    rng = np.random.default_rng(0)
    odds, y = population(4000, rng)
    level = np.clip(y.mean(0) / 20, 1e-5, None)
    eta = kind().fit(odds, y, level)(odds)
    np.testing.assert_allclose(eta.mean(0)[4:], y.mean(0)[4:], rtol=0.05)
    np.testing.assert_allclose(eta.mean(0)[1:3], y.mean(0)[1:3], rtol=0.3)
    none = y.copy()
    none[:, 6] = 0  # often present in training, never here: heard, positives or not
    assert kind(prior_positives=20.0).fit(odds, none, POSITIVES.clip(1) / N)(odds)[:, 6].sum() < 30


def test_a_temperature_has_no_level_and_a_pooled_line_none_either() -> None:
    rng = np.random.default_rng(0)
    odds, y = population(1000, rng)
    level = np.full(7, 0.2)
    for made in (cal.Temperature(), cal.Temperature("pooled"), cal.Platt("pooled"), cal.Isotonic("pooled")):
        without = type(made)(made.per).fit(odds, y)(odds)
        np.testing.assert_array_equal(made.fit(odds, y, level)(odds), without)


@pytest.mark.parametrize("kind", [cal.Temperature, cal.Platt, cal.Isotonic])
def test_bad_levels_are_one_sentence(kind: type) -> None:
    odds, y = population(200, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"level has shape \(3,\)"):
        kind().fit(odds, y, np.full(3, 0.5))
    for bad in (0.0, 1.0, -0.1):
        with pytest.raises(ValueError, match=r"level\[2\] is"):
            kind().fit(odds, y, np.where(np.arange(7) == 2, bad, 0.5))


# ---- in a reading


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
def test_a_reading_takes_the_level_from_training_in_every_fold(kind: str) -> None:
    rng = np.random.default_rng(0)
    odds, y = population(400, rng)
    counts = POSITIVES.astype(float)
    counts[5] = 0
    known = np.full(7, float(N))
    known[5] = 0  # never known in training: its level is that of the items
    probability_model = probability_model_of(part(), counts, known)
    want = np.where(known > 0, smoothed_level(counts, known), np.nan)
    np.testing.assert_allclose(probability_model.level, want, rtol=1e-14)
    z, folds = wrong(odds, 2.0), np.arange(400) % 4
    fitted = probability_model.fit(z, y, kind)
    eta = fitted.probability(z)
    np.testing.assert_allclose(eta, MAKERS[kind]().fit(z, y, want)(z), atol=3e-4)
    fold = MAKERS[kind]().fit(z[folds != 2], y[folds != 2], want)(z[folds == 2])
    np.testing.assert_allclose(fitted.out_of_fold(z, y, folds)[folds == 2], fold, atol=3e-4)
    assert (eta.mean(0)[RARE] < 3 * np.maximum(counts[RARE], 1) / N).all()


@pytest.mark.parametrize("loss", KINDS["loss"])
@pytest.mark.parametrize("kind", ["platt", "isotonic"])
def test_every_loss_read_by_a_calibrator_gives_rare_labels_their_frequency(loss: str, kind: str) -> None:
    """Whatever the link makes of the logits: on fresh items, within what chance in the counts allows."""
    rng = np.random.default_rng(3)
    _, trained = population(N, rng)
    odds, y = population(1000, rng)
    fresh, truth = population(8_000, rng)
    probability_model = probability_model_of(part(loss), trained.sum(0).astype(float), N).fit(wrong(odds, 2.0), y, kind)
    mean = probability_model.probability(wrong(fresh, 2.0)).mean(0)
    positives, n = (trained.sum(0) + y.sum(0)).astype(float), N + 1000
    allowed = 4 * np.sqrt(np.maximum(positives, 1)) / n + 4 * np.sqrt(truth.mean(0) / 8_000)
    assert (np.abs(mean - positives / n)[RARE] < allowed[RARE]).all()
    assert mean[3] < 4 / n
