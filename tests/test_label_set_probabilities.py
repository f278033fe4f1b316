"""Label sets in a reading: chosen on held-out items, estimated where the model is used, against sums over all sets."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

import steelyard as sy
from small_run import part, probability_model_of
from steelyard.calibrate import LabelSets
from steelyard.calibrate.crossfit import label_sets
from steelyard.calibrate.probability import ProbabilityModel
from steelyard.config.sections import EvaluateSettings
from steelyard.data.dataset import ArrayDataset
from steelyard.export.trace import ProbabilityNetwork
from steelyard.folder.fingerprints import fingerprints
from steelyard.folder.run_folder import RunFolder
from steelyard.labels import Labels
from steelyard.metrics import calibration_error, exact_match
from steelyard.run.api import Run
from steelyard.run.calibrate import calibrated, recalibrate
from steelyard.run.deployment import _sets_there, deployment
from steelyard.run.evaluation import evaluate

NAMES = tuple("abcde")
SETS = np.array([s for s in product((0, 1), repeat=5) if 1 <= sum(s) <= 2])
"""All sets that items have: of one label, or of two."""
A_HERE, B_HERE = np.array([1.5, 0.7, 0.0, -0.7, -1.4]), np.array([-np.inf, 0.0, 0.3])
A_THERE, B_THERE = np.zeros(5), np.array([-np.inf, 0.0, 1.5])


def prior_of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The probability of each set, p(S) ∝ exp(Σ a_c + b_|S|)."""
    weight = np.exp(SETS @ a + b[SETS.sum(1)])
    return weight / weight.sum()


def drawn(n: int, prior: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Label sets, and what is seen of each label: 2 where it is present, with noise."""
    rng = np.random.default_rng(seed)
    y = SETS[rng.choice(len(SETS), n, p=prior)]
    return y.astype(np.int8), 2.0 * y + 1.2 * rng.normal(size=y.shape)


def posterior(x: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """η by Bayes, over all sets."""
    log = -((x[:, None] - 2.0 * SETS[None]) ** 2).sum(2) / (2 * 1.2**2) + np.log(prior)
    p = np.exp(log - log.max(1, keepdims=True))
    return (p / p.sum(1, keepdims=True)) @ SETS


def odds(eta: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.log(eta) - np.log1p(-eta))


def prior_of_sizes(prior: np.ndarray) -> list[float]:
    return [prior[SETS.sum(1) == k].sum() for k in range(3)]


HERE, THERE = prior_of(A_HERE, B_HERE), prior_of(A_THERE, B_THERE)


@pytest.fixture(scope="module")
def held_out() -> tuple[torch.Tensor, torch.Tensor]:
    y, x = drawn(1500, HERE, 0)
    return odds(posterior(x, HERE)), torch.from_numpy(y)


@pytest.fixture(scope="module")
def fitted(held_out: tuple[torch.Tensor, torch.Tensor]) -> ProbabilityModel:
    z, y = held_out
    plain = probability_model_of(part(), y.double().sum(0).numpy(), len(y))
    return calibrated(plain, z, y, EvaluateSettings(calibration="link"), NAMES)


def test_estimated_sets_give_what_bayes_would(fitted: ProbabilityModel) -> None:
    y, x = drawn(4000, THERE, 1)
    z, t, wanted = odds(posterior(x, HERE)), torch.from_numpy(y), posterior(x, THERE)
    found = deployment("estimate", fitted, NAMES, z)
    by_sets, by_label = found.of(fitted), replace(found, sets=None).of(fitted)
    eta = by_sets.probability(z)
    assert np.abs(eta.numpy() - wanted).mean() < 0.012
    assert np.abs(by_label.probability(z).numpy() - wanted).mean() > 0.03
    assert exact_match(eta >= 0.5, t) > exact_match(by_label.probability(z) >= 0.5, t) + 0.01
    assert calibration_error(eta, t).ace < calibration_error(by_label.probability(z), t).ace
    assert found.report["sizes"] == pytest.approx(
        [0, y.sum(1).tolist().count(1) / 4000, (y.sum(1) == 2).mean()], abs=0.06
    )
    np.testing.assert_allclose(found.prior, y.mean(0), atol=0.05)
    assert by_sets.how.endswith("of label sets")
    assert not by_label.how.endswith("of label sets")


def test_labels_of_the_items_are_not_looked_at_and_items_like_before_move_nothing(fitted: ProbabilityModel) -> None:
    z = odds(posterior(drawn(1500, HERE, 2)[1], HERE))
    found = deployment("estimate", fitted, NAMES, z)
    assert not found.moves
    assert found.sets is None
    assert found.report["sizes"] is None
    assert torch.equal(found.of(fitted).probability(z), fitted.probability(z))


def test_a_reading_with_sets_comes_back_from_its_file(fitted: ProbabilityModel, tmp_path: Path) -> None:
    z = odds(posterior(drawn(200, THERE, 3)[1], HERE))
    for probability_model in (fitted, deployment("estimate", fitted, NAMES, z).of(fitted)):
        probability_model.save(tmp_path / "calibration.json")
        again = ProbabilityModel.load(tmp_path / "calibration.json")
        assert torch.equal(again.probability(z), probability_model.probability(z))
        assert again.to_json() == probability_model.to_json()
        assert again.sets is not None
        assert (again.sets_there is None) == (probability_model.sets_there is None)
    text = fitted.to_json().replace('"sizes": [null, ', '"sizes": [null, 7.0, ')
    with pytest.raises(ValueError, match="checksum"):
        ProbabilityModel.from_json(text)


def test_another_prior_takes_the_place_of_sets(fitted: ProbabilityModel) -> None:
    z = odds(posterior(drawn(300, THERE, 4)[1], HERE))
    there = LabelSets(torch.from_numpy(A_THERE), torch.from_numpy(B_THERE))
    moved = fitted.with_sets(there)
    np.testing.assert_allclose(moved.to_prior, THERE @ SETS, atol=1e-9)
    assert torch.equal(moved.with_prior(None).probability(z), fitted.probability(z))
    half = np.full(5, 0.5)
    assert torch.equal(moved.with_prior(half).probability(z), fitted.with_prior(half).probability(z))
    with pytest.raises(ValueError, match="not calibrated for label sets"):
        replace(fitted, sets=None).with_sets(there)
    with pytest.raises(ValueError, match="ONNX"):
        ProbabilityNetwork(moved)
    ProbabilityNetwork(fitted)


def test_shifts_are_shrunk_as_far_as_they_are_not_believed(fitted: ProbabilityModel) -> None:
    z = odds(posterior(drawn(2000, THERE, 5)[1], HERE))
    whole = fitted.sets.estimate(z)
    same = _sets_there(fitted.sets, z, np.ones(5))
    for one, other in zip(same.frequencies, whole.frequencies, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=0)
    none = _sets_there(fitted.sets, z, np.array([1e-12] * 5))
    contrast = none.labels - fitted.sets.labels
    torch.testing.assert_close(contrast - contrast.mean(), torch.zeros(5, dtype=torch.float64), atol=1e-9, rtol=0)


def test_sets_are_chosen_where_items_show_them(held_out: tuple[torch.Tensor, torch.Tensor]) -> None:
    z, y = held_out
    chosen = label_sets(z, y)
    np.testing.assert_allclose(chosen.frequencies[0], torch.sigmoid(z).mean(0), atol=1e-3)
    np.testing.assert_allclose(chosen.frequencies[1], prior_of_sizes(HERE), atol=0.02)
    some = y.clone()
    some[0, 0] = sy.UNKNOWN
    assert label_sets(z, some) is None
    lonely = y.clone()
    lonely[0] = 1  # the only item with five labels
    assert label_sets(z, lonely) is None
    assert label_sets(z[:9], y[:9]) is None


def test_sets_are_not_chosen_where_probabilities_tell_of_one_label_alone() -> None:
    """η_c of what is seen of label c: by Bayes right, label by label, and ignorant of how many labels an item has."""
    y, x = drawn(1500, HERE, 10)
    prior = HERE @ SETS
    ratio = np.exp((x**2 - (x - 2.0) ** 2) / (2 * 1.2**2))
    z, t = torch.from_numpy(np.log(ratio * prior / (1 - prior))), torch.from_numpy(y)
    assert calibration_error(torch.sigmoid(z), t).ace < 0.04
    assert label_sets(z, t) is None
    assert label_sets(odds(posterior(x, HERE)), t) is not None


def test_sets_are_not_chosen_where_labels_come_as_they_please() -> None:
    rng = np.random.default_rng(6)
    y = torch.from_numpy((rng.random((1500, 6)) < [0.5, 0.3, 0.3, 0.2, 0.1, 0.05]).astype(np.int8))
    z = 3.0 * y - 1.5 + torch.from_numpy(rng.normal(size=y.shape))
    assert label_sets(z, y) is None
    sure = 40.0 * (2 * torch.from_numpy(drawn(1500, HERE, 7)[0]) - 1).double()
    assert label_sets(sure, (sure > 0).to(torch.int8)) is None  # nothing is left to explain


class Bayes(torch.nn.Module):
    """A network that gives the log-odds of the posterior where items are as they were in training."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return odds(posterior(x.double().numpy(), HERE)).float()


def test_a_finished_run_is_read_by_sets_from_its_file_on(tmp_path: Path) -> None:
    """Trained for real, then its network put right: what is asked here is what becomes of its outputs."""
    y, x = drawn(900, HERE, 8)
    y_there, x_there = drawn(1500, THERE, 9)
    out, there = tmp_path / "run", ArrayDataset(x_there.astype(np.float32), Labels(y_there))
    data = (x.astype(np.float32), y)
    settings = {"train": {"epochs": 1, "device": "cpu"}}
    sy.fit(data, "bce", settings=settings, out=out, verbose=False)
    trained = RunFolder(out).load()
    logits, targets = Bayes()(torch.from_numpy(data[0])), torch.from_numpy(y)
    by_link = EvaluateSettings(calibration="link", thresholds="half")
    probability_model = calibrated(trained.probability_model, logits, targets, by_link, trained.names)
    assert probability_model.sets is not None
    RunFolder(out).write_probability_model(probability_model)
    given = (Bayes()(torch.from_numpy(there.inputs)), there.labels)
    wanted = posterior(x_there, THERE)
    said = evaluate(RunFolder(out).load(), given, EvaluateSettings(deploy_prior="estimate"))
    assert said["reading"]["how"].endswith("of label sets")
    assert said["deploy_prior"]["sizes"][2] == pytest.approx((y_there.sum(1) == 2).mean(), abs=0.03)
    recalibrate(out, given, EvaluateSettings(deploy_prior="estimate", thresholds="half"), keep=True)
    kept = Run.load(out).trained.probability_model
    eta = kept.probability(given[0])
    assert np.abs(eta.numpy() - wanted).mean() < 0.015
    assert (kept.decisions(eta) == (eta >= 0.5)).all()
    before = fingerprints(out)["calibration"]
    RunFolder(out).write_probability_model(probability_model)
    assert fingerprints(out)["calibration"] != before
