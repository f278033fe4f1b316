"""From logits to η: the chain by hand, out of fold, chosen kinds, other priors, thresholds, and files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from small_run import LOSSES, part, probability_model_of
from steelyard.balance import ClassBalanced, PartialLabelMasking
from steelyard.calibrate import Isotonic, Platt, Temperature, threshold_report
from steelyard.calibrate.aim import Aim
from steelyard.calibrate.crossfit import MAKERS, folds_of, settle
from steelyard.calibrate.link import pair_of, probe
from steelyard.calibrate.prior import believed
from steelyard.calibrate.probability import ProbabilityModel
from steelyard.losses import NoLink
from steelyard.losses.table import TABLE
from steelyard.metrics import mean_average_precision
from steelyard.objective import Objective
from steelyard.objective.parts import KINDS, make_loss
from steelyard.run.deployment import deployment

COUNTS, N_KNOWN = np.array([400.0, 60, 12, 3]), 1000
WITH_LINK = [name for name in LOSSES if name != "Two-way"]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def logit(p: np.ndarray) -> np.ndarray:
    return np.log(p) - np.log1p(-p)


def held_out(n: int = 300, seed: int = 0, unknown: float = 0.1, scale: float = 1.0, shift: float = 0.0):
    """Logits and labels with P(y = 1 | z) = σ(scale z + shift), rarer from label to label."""
    g = np.random.default_rng(seed)
    z = g.normal(size=(n, 4)) * 2 - np.array([0.5, 1.5, 2.5, 3.0])
    y = (g.random(z.shape) < sigmoid(scale * z + shift)).astype(np.int8)
    y[g.random(z.shape) < unknown] = -1
    return z, y


# ---- the chain


def test_every_loss_of_the_table_has_a_part() -> None:
    assert set(LOSSES) == {row.name for row in TABLE}
    for row in TABLE:
        made, meant = make_loss(LOSSES[row.name], COUNTS, N_KNOWN), row.make(torch.from_numpy(COUNTS), N_KNOWN, "mean")
        assert type(made) is type(meant)
        if row.name in WITH_LINK:
            torch.testing.assert_close(probe(pair_of(made)), probe(pair_of(meant)), rtol=0, atol=0)
    assert {p.kind for p in LOSSES.values()} | {"hill", "logit_adjusted"} == set(KINDS["loss"])


def test_the_whole_chain_by_hand() -> None:
    g = np.random.default_rng(0)
    masking = PartialLabelMasking(COUNTS, N_KNOWN, rate=0.0, initial="mean")
    objective = Objective(make_loss(part(), COUNTS, N_KNOWN), masking=masking, weighting=ClassBalanced(COUNTS, 0.99))
    objective.start_epoch(1, 1)
    targets = torch.from_numpy((g.random((64, 4)) < 0.3).astype(np.int8))
    objective(torch.zeros(64, 4), targets, torch.arange(64))
    probability_model = ProbabilityModel.of_objective(objective, part(), COUNTS, N_KNOWN, class_aware=False)
    z, y = held_out()

    r = COUNTS / (N_KNOWN - COUNTS)
    keep_positive, keep_negative = np.minimum(1, r.mean() / r), np.minimum(1, r / r.mean())
    linked = z - np.log(keep_positive / keep_negative)  # class-balanced weights are the same for both signs
    np.testing.assert_allclose(probability_model.log_odds(z), linked, rtol=1e-6, atol=1e-6)

    fitted = probability_model.fit(z, y, "platt")
    line = Platt().fit(probability_model.log_odds(z), y, probability_model.level)
    calibrated = line.slope.numpy() * probability_model.log_odds(z) + line.shift.numpy()
    np.testing.assert_allclose(fitted.log_odds(z), calibrated, rtol=1e-12, atol=1e-12)
    known = y >= 0
    prior = (known * sigmoid(calibrated)).sum(0) / known.sum(0)
    np.testing.assert_allclose(fitted.prior, prior, rtol=1e-12)

    to = np.array([0.1, 0.2, 0.3, np.nan])
    shifted = calibrated + np.where(np.isnan(to), 0, logit(to) - logit(prior))
    np.testing.assert_allclose(fitted.with_prior(to).log_odds(z), shifted, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(fitted.with_prior(to).probability(z), sigmoid(shifted), rtol=1e-10)
    assert fitted.with_prior(to).probability(z.astype(np.float32)).dtype == np.float32
    assert isinstance(fitted.probability(torch.from_numpy(z)), torch.Tensor)


def test_the_objective_s_own_probability_and_class_aware_sampling_undone_by_brute_force() -> None:
    g = np.random.default_rng(1)
    masking = PartialLabelMasking(COUNTS, N_KNOWN, rate=0.0, initial="max")
    loss = part("distribution_balanced", gamma=2.0)
    objective = Objective(make_loss(loss, COUNTS, N_KNOWN), masking=masking, weighting=ClassBalanced(COUNTS))
    objective.start_epoch(1, 1)
    targets = torch.from_numpy((g.random((64, 4)) < 0.3).astype(np.int8))
    objective(torch.randn(64, 4), targets, torch.arange(64))
    z = torch.from_numpy(g.normal(size=(50, 4)) + 1)
    plain = ProbabilityModel.of_objective(objective, loss, COUNTS, N_KNOWN)
    torch.testing.assert_close(plain.log_odds(z), objective.log_odds(z).clamp(-100, 100), rtol=1e-12, atol=1e-12)

    aware = ProbabilityModel.of_objective(objective, loss, COUNTS, N_KNOWN, class_aware=True)
    sampled = plain.log_odds(z).numpy()
    eta = sigmoid(sampled)
    for _ in range(20_000):  # logit η_c = z_c − log(1 + (1/n_c) / Σ_{j≠c} η_j/n_j)
        others = (eta / COUNTS).sum(1, keepdims=True) - eta / COUNTS
        eta = sigmoid(sampled - np.log1p(1 / COUNTS / others))
    solid = eta.max(1) > 1e-6
    assert solid.sum() > 20
    np.testing.assert_allclose(aware.probability(z).numpy()[solid], eta[solid], rtol=1e-6)
    assert not np.allclose(aware.probability(z), plain.probability(z))


def test_sigma_alone_is_what_none_means() -> None:
    z, y = held_out()
    probability_model = probability_model_of(part("focal"), COUNTS, N_KNOWN).fit(z, y, "none")
    np.testing.assert_allclose(probability_model.probability(z), sigmoid(z), rtol=1e-12)
    assert "nothing undone" in probability_model.how


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in LOSSES
        for kind in [*MAKERS, "auto", "link"]
        if kind in ("platt", "link") or name in ("BCE", "ASL", "Two-way")
    ],
)
def test_every_loss_with_every_calibrator_comes_back_from_json_bit_for_bit(name: str, kind: str) -> None:
    z, y = held_out(60, seed=3)
    probability_model = probability_model_of(LOSSES[name], COUNTS, N_KNOWN, class_aware=name in ("DB", "ASL"))
    if name == "Two-way" and kind == "link":
        with pytest.raises(NoLink):
            probability_model.fit(z, y, kind)
        return
    fitted = probability_model.fit(z, y, kind)
    eta = fitted.out_of_fold(z, y)
    assert ((eta >= 0) & (eta <= 1)).all()
    fitted = fitted.with_prior([0.3, np.nan, 0.01, 0.02]).with_thresholds(Aim("f1"), eta, y)
    text = fitted.to_json()
    again = ProbabilityModel.from_json(text)
    for dtype in (np.float32, np.float64):
        given_ = z.astype(dtype)
        assert np.array_equal(again.probability(given_), fitted.probability(given_))
        assert np.array_equal(again.log_odds(given_), fitted.log_odds(given_))
    assert np.array_equal(again.thresholds, fitted.thresholds)
    assert np.array_equal(again.prior, fitted.prior)
    assert again.to_json() == text
    assert (again.kind, again.base, again.aim, again.trials) == (fitted.kind, fitted.base, fitted.aim, fitted.trials)
    if kind in MAKERS:
        assert isinstance(again.calibrator, {"temperature": Temperature, "platt": Platt, "isotonic": Isotonic}[kind])


def test_losses_without_a_link_say_why_until_they_are_calibrated() -> None:
    z, y = held_out()
    for loss, said in ((part("two_way"), "TwoWay"), (part("ldam", softmax=True), "LDAM")):
        probability_model = probability_model_of(loss, COUNTS, N_KNOWN)
        assert not probability_model.has_probability
        assert said in probability_model.why
        for call in (lambda r=probability_model: r.probability(z), lambda r=probability_model: r.log_odds(z)):
            with pytest.raises(NoLink, match=rf"{said}.*calibrat"):
                call()
        for kind in ("link", "none"):
            with pytest.raises(NoLink, match=rf"{kind}.*{said}.*temperature"):
                probability_model.fit(z, y, kind)
        fitted = probability_model.fit(z, y)
        assert fitted.has_probability
        assert fitted.kind in MAKERS
        assert "link" not in fitted.trials
        nothing = probability_model.fit(z, np.where(y == 1, -1, y))  # no positive to fit to
        assert not nothing.has_probability
        assert ProbabilityModel.from_json(nothing.to_json()).why == probability_model.why


def test_softmax_is_calibrated_on_what_it_determines() -> None:
    z, y = held_out()
    probability_model = probability_model_of(part("ldam", softmax=True), COUNTS, N_KNOWN).fit(z / 10, y, "platt")
    moved = z / 10 + np.random.default_rng(0).normal(size=(len(z), 1))
    np.testing.assert_allclose(
        probability_model.probability(moved), probability_model.probability(z / 10), rtol=1e-8, atol=1e-12
    )
    s = 30 * z / 10
    rest = np.stack([np.log(np.exp(np.delete(s, c, 1)).sum(1)) for c in range(4)], 1)
    line = Platt().fit(np.clip(s - rest, -100, 100), y, probability_model.level)
    np.testing.assert_allclose(
        probability_model.probability(z / 10), line(np.clip(s - rest, -100, 100)), rtol=1e-8, atol=1e-12
    )


def test_a_label_that_falls_with_its_logits_keeps_their_order() -> None:
    z = np.random.default_rng(0).normal(size=(400, 2))
    y = (np.random.default_rng(1).random((400, 2)) < sigmoid(z * [-2.0, 2.0])).astype(np.int8)
    fitted = probability_model_of(part(), np.full(2, 200.0), np.full(2, 400.0)).fit(z, y, "platt")
    odds, line = fitted.log_odds(z), Platt().fit(z, y, fitted.level)
    assert line.slope[0] == 0 < line.slope[1]
    assert np.array_equal(odds[:, 0].argsort(), z[:, 0].argsort())
    assert np.ptp(odds[:, 0]) < 1e-3
    np.testing.assert_allclose(odds[:, 1], line.log_odds(z)[:, 1], rtol=1e-12)
    assert np.isfinite(fitted.log_odds(np.array([[np.inf, 0.0], [-np.inf, 0.0]]))).all()


def test_one_class_under_class_aware_sampling_has_no_link() -> None:
    probability_model = probability_model_of(part(), np.array([5.0, 0, 0]), 10, class_aware=True)
    assert not probability_model.has_probability
    assert "class-aware" in probability_model.why


def test_the_part_must_be_the_objective_s() -> None:
    objective = Objective(make_loss(part("focal"), COUNTS, N_KNOWN))
    for other in (part("focal", gamma=3.0), part()):
        with pytest.raises(ValueError, match="loss_part"):
            ProbabilityModel.of_objective(objective, other, COUNTS, N_KNOWN)


def test_many_rows_are_read_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = held_out()
    probability_model = probability_model_of(part("spa"), COUNTS, N_KNOWN).fit(z, y, "isotonic")
    whole = probability_model.probability(z)
    monkeypatch.setattr("steelyard.calibrate.probability._CELLS_AT_ONCE", 28)
    np.testing.assert_allclose(probability_model.probability(z), whole, rtol=1e-14)
    assert probability_model.probability(z[:0]).shape == (0, 4)
    with pytest.raises(ValueError, match=r"\(N, 4\)"):
        probability_model.probability(z[:, :3])


# ---- out of fold, and the choice of a kind


@pytest.mark.parametrize("kind", MAKERS)
def test_out_of_fold_leaves_the_fold_out(kind: str) -> None:
    z, y = held_out(200, unknown=0.0)
    folds = np.arange(200) % 4
    probability_model = probability_model_of(part("focal"), COUNTS, N_KNOWN)
    clean = probability_model.fit(z, y, kind, folds).out_of_fold(z, y, folds)
    poisoned = y.copy()
    poisoned[folds == 2] = 1 - poisoned[folds == 2]
    other = probability_model.fit(z, poisoned, kind, folds).out_of_fold(z, poisoned, folds)
    assert np.array_equal(clean[folds == 2], other[folds == 2])
    for fold in (0, 1, 3):
        assert not np.allclose(clean[folds == fold], other[folds == fold], atol=1e-3)
    odds = probability_model.log_odds(z)
    mine = MAKERS[kind]().fit(odds[folds != 2], y[folds != 2], probability_model.level)(odds[folds == 2])
    np.testing.assert_allclose(clean[folds == 2], mine, atol=3e-4)  # the slope of isotonic steps


def test_out_of_fold_with_little_to_fit_on() -> None:
    probability_model = probability_model_of(part(), COUNTS, N_KNOWN)
    z = np.array([[1.0, -1, 0, 2], [0, 0, 0, 0]])
    y = np.array([[1, -1, 0, -1], [-1, -1, -1, -1]], np.int8)
    fitted = probability_model.fit(z, y, "platt")
    np.testing.assert_allclose(fitted.out_of_fold(z, y)[0], sigmoid(z[0]))  # nothing but itself to be fitted to
    one = probability_model.fit(z[:1], y[:1])
    assert one.kind == "link"
    np.testing.assert_allclose(one.out_of_fold(z[:1], y[:1]), sigmoid(z[:1]))


def test_folds_share_out_every_label() -> None:
    _, y = held_out(500)
    folds = folds_of(torch.from_numpy(y), 5)
    assert sorted(np.unique(folds)) == [0, 1, 2, 3, 4]
    positives = np.stack([(y[folds == k] == 1).sum(0) for k in range(5)])
    total = positives.sum(0)
    assert (abs(positives - total / 5) <= 2 + 0.1 * total).all()
    assert len(np.unique(folds_of(torch.from_numpy(y[:3]), 5))) == 3
    pairs = np.repeat(np.eye(2, dtype=np.int8), 2, axis=0)
    assert len(np.unique(folds_of(torch.from_numpy(np.concatenate([pairs, pairs], 1)), 5))) > 1


@pytest.mark.parametrize(
    ("scale", "shift", "kinds"),
    [(1.0, 0.0, {"link"}), (0.4, 0.0, {"temperature"}), (0.5, -1.5, {"platt"})],
)
def test_auto_takes_the_simplest_that_will_do(scale: float, shift: float, kinds: set[str]) -> None:
    z, y = held_out(2000, seed=5, scale=scale, shift=shift)
    fitted = probability_model_of(part(), COUNTS, N_KNOWN).fit(z, y)
    assert fitted.kind in kinds
    assert list(fitted.trials) == ["link", "temperature", "platt", "isotonic"]
    assert fitted.trials[fitted.kind] < min(fitted.trials.values()) + 0.005


def test_auto_takes_steps_where_nothing_straight_fits() -> None:
    g = np.random.default_rng(0)
    z = g.normal(size=(6000, 2)) * 3
    y = (g.random(z.shape) < np.where(abs(z) < 2, 0.5, np.where(z > 0, 0.98, 0.02))).astype(np.int8)
    assert probability_model_of(part(), [3000, 3000], 6000).fit(z, y).kind == "isotonic"


def test_auto_keeps_to_the_link_with_too_few_labels() -> None:
    z, y = held_out(300, scale=0.2)
    few = y.copy()
    few[np.flatnonzero((y == 1).any(1))[3:]] = -1
    assert 0 < (few == 1).sum() < 10
    probability_model = probability_model_of(part(), COUNTS, N_KNOWN)
    assert probability_model.fit(z, few).kind == "link"
    assert probability_model.fit(z, few).trials == {}
    assert probability_model.fit(z, np.full_like(y, -1)).kind == "link"
    assert probability_model.fit(z[:0], y[:0]).kind == "link"
    assert probability_model.fit(z, few, "platt").kind == "platt"
    with pytest.raises(ValueError, match="no known label"):
        probability_model.fit(z, np.full_like(y, -1), "platt")


def test_no_probability_is_one() -> None:
    probability_model = probability_model_of(part(), COUNTS, N_KNOWN)
    z = np.full((1, 4), 90.0)
    for dtype in (np.float16, np.float32, np.float64):
        eta = probability_model.probability(z.astype(dtype))
        assert (eta == np.nextafter(eta.dtype.type(1), eta.dtype.type(0))).all()
        assert (probability_model.probability(-z.astype(dtype)) > 0).all()
    assert probability_model.log_odds(z).max() == 90


def test_steps_do_not_cost_the_ranking() -> None:
    z, y = held_out(800, seed=2)
    fitted = probability_model_of(part(), COUNTS, N_KNOWN).fit(z, y, "isotonic")
    eta = fitted.probability(z.astype(np.float32))
    steps = Isotonic().fit(z, y, fitted.level)(z.astype(np.float32))
    np.testing.assert_allclose(eta, steps, atol=3e-4)
    wanted = mean_average_precision(z, y)
    assert abs(mean_average_precision(eta, y) - wanted) < 1e-3
    assert mean_average_precision(steps, y) < wanted - 0.003


def test_where_the_link_gives_zero_calibrators_look_behind_it() -> None:
    z, y = held_out(1500, scale=0.5)
    fitted = probability_model_of(part("asymmetric"), COUNTS, N_KNOWN).fit(z, y)
    assert fitted.base == "logits"
    assert {name for name in fitted.trials if name.endswith("on logits")} == {f"{k} on logits" for k in MAKERS}
    direct = MAKERS[fitted.kind]().fit(z, y, fitted.level)
    np.testing.assert_allclose(fitted.probability(z), direct(z), atol=3e-4)
    assert "logits" in fitted.how


# ---- priors


def test_with_prior_goes_there_and_back() -> None:
    z, y = held_out(400)
    fitted = probability_model_of(part("focal"), COUNTS, N_KNOWN).fit(z, y, "platt")
    eta = fitted.out_of_fold(z, y)
    fitted = fitted.with_thresholds(Aim("f1"), eta, y)
    there = fitted.with_prior([0.9, 0.001, 0.5, 0.2])
    assert not np.allclose(there.probability(z), fitted.probability(z))
    assert np.array_equal(there.decisions(there.probability(z)), fitted.decisions(fitted.probability(z)))
    np.testing.assert_allclose(there.with_prior([0.1] * 4).with_prior(None).thresholds, fitted.thresholds, rtol=1e-9)
    np.testing.assert_allclose(fitted.with_prior(fitted.prior).log_odds(z), fitted.log_odds(z), rtol=1e-12, atol=1e-12)
    half = fitted.with_thresholds(Aim("half")).with_prior([0.9, 0.001, 0.5, 0.2])
    assert (half.thresholds == 0.5).all()
    with pytest.raises(ValueError, match=r"to_prior\[1\] is 1\.5"):
        fitted.with_prior([0.5, 1.5, 0.5, 0.5])


def test_labels_never_or_always_present_are_left_alone() -> None:
    counts, known = np.array([0.0, 50, 100, 0]), np.array([100.0, 100, 100, 0])
    probability_model = probability_model_of(part(), counts, known)
    assert probability_model.movable.tolist() == [False, True, False, False]
    assert np.isnan(probability_model.prior[3])
    z = np.random.default_rng(0).normal(size=(20, 4))
    shifted = probability_model.with_prior([0.2, 0.2, 0.2, 0.2]).log_odds(z)
    np.testing.assert_allclose(shifted[:, [0, 2, 3]], z[:, [0, 2, 3]])
    np.testing.assert_allclose(shifted[:, 1], z[:, 1] + logit(0.2), rtol=1e-12)
    never = probability_model.with_prior([0.2, 0.0, 0.2, 0.2]).log_odds(z)
    assert (never[:, 1] == -100).all()


def test_a_prior_estimated_on_the_items_fitted_to_moves_nothing() -> None:
    z, y = held_out(2000, unknown=0.0, scale=0.7, shift=-0.3)
    fitted = probability_model_of(part(), COUNTS, N_KNOWN).fit(z, y, "platt")
    names = ("a", "b", "c", "d")
    found = deployment("estimate", fitted, names, torch.from_numpy(z))
    np.testing.assert_allclose(found.prior, fitted.prior, rtol=1e-12)
    np.testing.assert_allclose([row["estimate"] for row in found.report["labels"].values()], fitted.prior, rtol=1e-6)
    assert found.report["converged"]
    assert not found.report["shifted"]
    assert "no prior changes" in found.notes[0]


def test_estimates_are_believed_as_far_as_they_go_beyond_chance() -> None:
    g = np.random.default_rng(0)
    n = 2000
    pi = np.full(n, 0.2)
    variance, true = 0.25, 0.8 * g.normal(size=n)  # of log-odds
    q = sigmoid(logit(pi) + true + np.sqrt(variance) * g.normal(size=n))
    error = np.sqrt(variance / (1 + 300 / 900)) * q * (1 - q)
    found = believed(pi, q, error, 300, np.full(n, 900.0))
    assert found.spread == pytest.approx(0.8, abs=0.05)
    assert found.chance < 1e-9
    shifts = logit(found.prior) - logit(pi)
    np.testing.assert_allclose(shifts, (logit(q) - logit(pi)) * found.spread**2 / (variance + found.spread**2))
    assert ((shifts - true) ** 2).mean() < 0.75 * ((logit(q) - logit(pi) - true) ** 2).mean()

    chances = []
    for _ in range(300):  # nothing has shifted: the test errs at its level, and its chances are uniform
        q = sigmoid(logit(pi[:14]) + np.sqrt(variance) * g.normal(size=14))
        still = believed(pi[:14], q, np.sqrt(variance / 2) * q * (1 - q), 10, np.full(14, 10.0))
        chances.append(still.chance)
        assert (still.chance < 0.01) == (still.spread > 0)
        if still.spread == 0:
            assert np.array_equal(still.prior, pi[:14])
    assert np.mean(np.array(chances) < 0.5) == pytest.approx(0.5, abs=0.12)
    clear = believed(
        np.array([0.5, 0.2, 0.3]), np.array([0.01, 0.9, 0.0]), np.array([1e-4, 1e-3, np.nan]), 9, np.full(3, 1e9)
    )
    np.testing.assert_allclose(clear.prior, [0.01, 0.9, np.nan], rtol=1e-3)
    nothing = believed(np.array([0.5]), np.array([1.0]), np.array([np.nan]), 9, np.ones(1))
    assert np.isnan(nothing.prior).all()
    assert np.isnan(nothing.chance)


# ---- thresholds


def test_thresholds_for_another_prior_are_those_of_a_sample_that_has_it() -> None:
    z, y = held_out(300, unknown=0.0)
    eta = sigmoid(z)
    for goal, level in (("f1", None), ("precision", 0.7), ("recall", 0.8)):
        for c in range(4):
            positive = y[:, c] == 1
            repeated = np.concatenate([np.arange(300), *[np.flatnonzero(positive)] * 4])  # positives count five times
            prior = 5 * positive.sum() / (5 * positive.sum() + (~positive).sum())
            wanted = threshold_report(eta[repeated, c : c + 1], y[repeated, c : c + 1], goal, level=level)
            found = threshold_report(eta[:, c : c + 1], y[:, c : c + 1], goal, level=level, prior=prior)
            for field in ("thresholds", "value", "precision", "recall", "f1"):
                np.testing.assert_allclose(getattr(found, field), getattr(wanted, field), rtol=1e-9)
    bayes = threshold_report(eta, None, "cost", cost_fp=1.0, cost_fn=3.0, prior=eta.mean(0)).thresholds
    np.testing.assert_allclose(bayes, 0.25)
    # odds of η times (π'/π)/((1−π')/(1−π)) are those of η' there, whose Bayes threshold is ¼
    there = threshold_report(eta, None, "cost", cost_fp=1.0, cost_fn=3.0, prior=0.6).thresholds
    np.testing.assert_allclose(sigmoid(logit(there) + logit(np.float64(0.6)) - logit(eta.mean(0))), 0.25)


def test_thresholds_of_a_shifted_reading_are_optimal_in_the_shifted_world() -> None:
    g = np.random.default_rng(0)
    n = 40_000
    y = (g.random((n, 1)) < 0.3).astype(np.int8)
    z = g.normal(size=(n, 1)) * 1.5 + np.where(y == 1, 1.125, -1.125) + logit(np.float64(0.3))  # calibrated by design
    probability_model = probability_model_of(part(), [0.3 * n], n).with_prior([0.05])
    shifted = probability_model.with_thresholds(Aim("f1"), sigmoid(z), y)
    there = (g.random((n, 1)) < 0.05).astype(np.int8)
    z_there = g.normal(size=(n, 1)) * 1.5 + np.where(there == 1, 1.125, -1.125) + logit(np.float64(0.3))
    eta = probability_model.probability(z_there)
    best = threshold_report(eta, there, "f1")
    said = shifted.decisions(eta)
    f1 = 2 * (said & (there == 1)).sum() / (said.sum() + there.sum())
    assert f1 > best.value[0] - 0.01
    kept = probability_model_of(part(), [0.3 * n], n).with_thresholds(Aim("f1"), sigmoid(z), y).with_prior([0.05])
    stale = kept.decisions(eta)
    assert 2 * (stale & (there == 1)).sum() / (stale.sum() + there.sum()) < f1 - 0.02


def test_aims_that_need_no_items() -> None:
    probability_model = probability_model_of(part(), COUNTS, N_KNOWN)
    assert (probability_model.with_thresholds(Aim("f1")).thresholds == 0.5).all()
    cost = Aim("cost", false_positive_cost=1.0, false_negative_cost=4.0)
    assert (probability_model.with_thresholds(cost).thresholds == 0.2).all()
    free = probability_model.with_thresholds(Aim("cost", false_positive_cost=0.0))
    assert free.decisions(np.zeros((2, 4))).all()
    never = probability_model.with_thresholds(Aim("cost", false_negative_cost=0.0))
    assert not never.decisions(np.ones((2, 4))).any()
    assert np.array_equal(ProbabilityModel.from_json(never.to_json()).thresholds, never.thresholds)
    for bad in ({"goal": "best"}, {"goal": "recall", "target": 0.0}, {"goal": "cost", "false_positive_cost": -1.0}):
        with pytest.raises(ValueError, match=r"goal|target|cost"):
            Aim(**bad)  # type: ignore[arg-type]


def test_decisions_round_thresholds_as_probabilities_are() -> None:
    probability_model = replace(probability_model_of(part(), COUNTS, N_KNOWN), chosen_thresholds=np.full(4, 0.1))
    assert probability_model.decisions(np.full((1, 4), 0.1, np.float32)).all()
    assert probability_model.decisions(torch.full((1, 4), 0.1)).all()
    assert not probability_model.decisions(np.full((1, 4), 0.0999)).any()


# ---- files


def test_a_damaged_file_is_one_sentence(tmp_path: Path) -> None:
    z, y = held_out()
    path = tmp_path / "calibration.json"
    fitted = probability_model_of(part("spa"), COUNTS, N_KNOWN, class_aware=True).fit(z, y, "isotonic")
    fitted.save(path)
    whole = path.read_bytes()
    assert np.array_equal(ProbabilityModel.load(path).probability(z), fitted.probability(z))
    assert [p.name for p in tmp_path.iterdir()] == ["calibration.json"]
    g = np.random.default_rng(0)
    broken = [whole[:k] for k in g.integers(0, len(whole) - 2, 20).tolist()]
    for k in g.integers(0, len(whole) - 1, 60).tolist():
        flipped = bytearray(whole)
        flipped[k] ^= 1 << int(g.integers(8))
        broken.append(bytes(flipped))
    document = json.loads(whole)
    broken += [b"", b"[]", b"{}", json.dumps(document | {"version": 2}).encode(), b"[" * 100_000]
    survived = 0
    for content in broken:
        path.write_bytes(content)
        try:
            loaded = ProbabilityModel.load(path)
        except ValueError as error:
            said = str(error)
        else:  # white space, or a key written otherwise: the content is the same
            survived += 1
            assert np.array_equal(loaded.probability(z), fitted.probability(z))
            continue
        assert str(path) in said
        assert "\n" not in said
    assert survived < 5
    with pytest.raises(ValueError, match="cannot be read"):
        ProbabilityModel.load(tmp_path / "missing.json")


@settings(max_examples=25)
@given(st.integers(0, 12), st.integers(0, 2**31), st.sampled_from([*MAKERS, "auto"]), st.booleans())
def test_whatever_the_items_the_result_is_a_probability_or_a_sentence(
    n: int, seed: int, kind: str, aware: bool
) -> None:
    g = np.random.default_rng(seed)
    z = g.normal(size=(n, 3)) * 10.0 ** g.integers(-2, 3)
    y = g.choice(np.array([-1.0, 0, 1, 0.3]), size=(n, 3), p=[0.3, 0.4, 0.2, 0.1])
    probability_model = probability_model_of(part("focal"), [5, 0, 2], 9, class_aware=aware)
    known = y[y >= 0]
    if kind != "auto" and not 0 < known.sum() < len(known):
        with pytest.raises(ValueError, match=r"^targets holds no [^\n]*$"):
            probability_model.fit(z, y, kind)
        return
    fitted = probability_model.fit(z, y, kind)
    for eta in (fitted.probability(z), fitted.out_of_fold(z, y)):
        assert eta.shape == (n, 3)
        assert ((eta >= 0) & (eta <= 1)).all()
    if not aware:
        grid = np.linspace(-30, 30, 50)[:, None].repeat(3, 1)
        assert (np.diff(fitted.log_odds(grid), axis=0) >= -1e-9).all()
    chosen = fitted.with_thresholds(Aim("f1"), fitted.out_of_fold(z, y), y)
    assert np.array_equal(ProbabilityModel.from_json(chosen.to_json()).thresholds, chosen.thresholds)


def test_of_a_refitted_model_platt_is_preferred_unless_it_is_worse() -> None:
    """Levels that are a little off go unmended by the rule of one standard error; of a refitted model they do not."""
    generator = torch.manual_seed(0)
    z = 2 * torch.randn(600, 4, generator=generator).double() - 2
    targets = (torch.rand(600, 4, generator=generator) < torch.sigmoid(z)).to(torch.int8)
    low = {"link": z - 0.15}
    assert settle("auto", low, True, targets, None).kind == "link"
    assert settle("auto", low, True, targets, None, refitted=True).kind == "platt"
    assert settle("temperature", low, True, targets, None, refitted=True).kind == "temperature"
