"""Probabilities of being present from those of being annotated, where a share of the positives was annotated."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import steelyard as sy
from steelyard.calibrate.prior import scale_annotated
from steelyard.calibrate.probability import ProbabilityModel
from steelyard.export.trace import ProbabilityNetwork
from typed import done


def drawn(n: int, seed: int, share: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features, what is annotated (nothing but positives), what is true, and the true probabilities."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    eta = 1 / (1 + np.exp(-(2 * x[:, :3] - 1)))
    y = (rng.random(eta.shape) < eta).astype(np.int8)
    known = np.where((y == 1) & (rng.random(y.shape) < share), 1, sy.UNKNOWN).astype(np.int8)
    return x, known, y, eta


def test_the_formula() -> None:
    """σ(scaled) = min(1, σ(z)/c), against float64 arithmetic in probabilities; NaN shares leave a label alone."""
    z = torch.linspace(-40, 5, 200, dtype=torch.float64)[:, None].repeat(1, 3)
    share = torch.tensor([0.25, 0.8, float("nan")], dtype=torch.float64)
    out = scale_annotated(z, share)
    with np.errstate(over="ignore"):
        expected = np.minimum(1 / (1 + np.exp(-z.numpy())) / np.array([0.25, 0.8, 1.0]), 1)
    np.testing.assert_allclose(torch.sigmoid(out).numpy(), expected, rtol=1e-12)
    assert (out[:, 0].diff() >= 0).all()
    assert scale_annotated(torch.tensor([[torch.nan]]).double(), share[:1]).isnan().all()


def test_scaled_probabilities_are_those_of_being_present(tmp_path: Path) -> None:
    x, known, y, eta = drawn(1500, 0, 0.4)
    per_item = float(y.sum(1).mean())
    runs = [
        sy.fit((x, known), settings={"train": {"budget": 1e9}, "evaluate": {"positives_per_item": k}}, verbose=False)
        for k in (0.0, per_item)
    ]
    plain, scaled = (run.probability(x) for run in runs)
    assert np.abs(plain - eta).mean() > 0.15
    assert np.abs(scaled - eta).mean() < 0.4 * np.abs(plain - eta).mean()
    np.testing.assert_allclose(scaled.sum(1).mean(), per_item, rtol=0.05)
    assert "scaled" in " ".join(runs[1].metrics["validation"]["notes"])
    # decisions do not change, and the file gives the same reading again
    np.testing.assert_array_equal(runs[0].decide(x), runs[1].decide(x))
    probability_model = runs[1].trained.probability_model
    again = ProbabilityModel.from_json(probability_model.to_json())
    logits = runs[1].logits(x[:20])
    np.testing.assert_array_equal(again.probability(logits), probability_model.probability(logits))
    exported = ProbabilityNetwork(probability_model)(torch.from_numpy(logits))[0]
    np.testing.assert_allclose(exported.numpy(), probability_model.probability(logits), atol=1e-6)


@pytest.mark.parametrize("per_item", [0.0, 2.0])
def test_every_command_says_what_the_probability_is_of(tmp_path: Path, per_item: float) -> None:
    x, known, y, _ = drawn(300, 1, 0.4)
    np.savez(tmp_path / "some.npz", X=x, Y=known)
    np.savez(tmp_path / "full.npz", X=x[:100], Y=y[:100])
    out, words = tmp_path / "run", ["--positives-per-item", per_item] if per_item else []
    meant = "scaled" if per_item else "that of being annotated, not of being present"
    said = done("train", "--data", tmp_path / "some.npz", "--set", "train.budget=1e9", *words, "--out", out).out
    assert meant in " ".join(said.split())
    before = sy.Run.load(out)
    baselines = before.metrics["validation"]["baselines"]
    assert baselines["logistic regression"]["better_by"]["map"] is not None
    calls = {
        "own": ("evaluate", out),
        "other": ("evaluate", out, "--data", tmp_path / "full.npz"),
        "kept": ("calibrate", out, "--keep", "--thresholds", "recall"),
        "again": ("calibrate", out, "--kind", "platt"),
    }
    for name, call in calls.items():
        found = json.loads(done(*call, "--json").out)
        assert any(meant in note for note in found["notes"]), name
        assert ("scaled" if per_item else "of being annotated") in found["reading"]["how"]
        if name != "other":
            assert found["baselines"]["label frequency"]["map"] == baselines["label frequency"]["map"]
            assert found["baselines"]["this run"]["log_loss"] == pytest.approx(found["log_loss"], rel=0.02)
    assert meant in " ".join(done("predict", out, tmp_path / "full.npz", "--out", tmp_path / "p.csv").err.split())
    after = sy.Run.load(out).probability(x)
    np.testing.assert_allclose(after.sum(1).mean(), before.probability(x).sum(1).mean(), rtol=0.05)


@pytest.mark.usefixtures("pages")
def test_a_page_that_is_written_again_keeps_baselines_and_meaning(tmp_path: Path) -> None:
    x, known, _, _ = drawn(120, 1, 0.4)
    np.savez(tmp_path / "some.npz", X=x, Y=known)
    done("train", "--data", tmp_path / "some.npz", "--set", "train.budget=1e9", "--out", tmp_path / "run")
    for command in (("report", tmp_path / "run"), ("calibrate", tmp_path / "run", "--keep")):
        (tmp_path / "run" / "report.html").write_text("<h1>x</h1>\n")
        done(*command)
        page = (tmp_path / "run" / "report.html").read_text()
        assert "logistic regression" in page
        assert "that of being annotated, not of being present" in page


def test_too_few_positives_per_item_are_refused() -> None:
    x, known, _, _ = drawn(100, 0, 0.9)
    with pytest.raises(ValueError, match=r"--positives-per-item is 0.1"):
        sy.fit((x, known), settings={"evaluate": {"positives_per_item": 0.1}}, verbose=False)


@pytest.mark.parametrize("recipe", ["auto", "bce"])
def test_nothing_is_scaled_where_negatives_are_known(recipe: str) -> None:
    x, _, y, _ = drawn(60, 0, 0.9)
    with pytest.raises(ValueError, match="--positives-per-item"):
        sy.fit((x, y), recipe, settings={"evaluate": {"positives_per_item": 3.0}}, verbose=False)
