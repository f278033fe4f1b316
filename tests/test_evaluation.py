"""Metrics of a trained model: against their definitions, names in any order, other priors, honest validation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, brier_score_loss, f1_score, roc_auc_score

from small_run import NAMES, items, part, probability_model_of, saved_run, small_run
from steelyard._sealed import checksum
from steelyard.calibrate.aim import Aim
from steelyard.calibrate.crossfit import folds_of
from steelyard.calibrate.probability import ProbabilityModel
from steelyard.config.sections import EvaluateSettings
from steelyard.data.dataset import ArrayDataset
from steelyard.data.inputs import inputs_of
from steelyard.data.opening import open_data
from steelyard.folder.run_folder import Trained
from steelyard.labels import Labels
from steelyard.losses import Focal
from steelyard.metrics import average_precision, calibration_error
from steelyard.report.page import write_page
from steelyard.report.scores import show, summary_lines
from steelyard.run.calibrate import calibrated, recalibrate
from steelyard.run.deployment import read_prior
from steelyard.run.evaluation import beside_baselines, evaluate, judge, outputs_of

SETTINGS = EvaluateSettings(tail=2, head_at=150, tail_below=60)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def logits_of(trained: Trained, data: ArrayDataset) -> torch.Tensor:
    with torch.inference_mode():
        return trained.model(torch.from_numpy(data.inputs)).clone()


def fitted(loss: Any = None, n: int = 400) -> tuple[Trained, ArrayDataset]:
    trained, data = small_run(loss or part("focal")), items(n, seed=3)
    z, y = logits_of(trained, data), torch.from_numpy(data.labels.values)
    return trained.read_by(calibrated(trained.probability_model, z, y, SETTINGS, NAMES)), data


def test_every_number_against_its_definition() -> None:
    trained, _ = fitted()
    data = items(300, seed=4)
    found = evaluate(trained, data, SETTINGS)
    json.dumps(found, allow_nan=False)
    z, y = logits_of(trained, data).double().numpy(), data.labels.values
    eta = trained.probability_model.probability(logits_of(trained, data)).numpy().astype(np.float64)
    said, known = eta >= trained.thresholds.astype(np.float32), y >= 0
    ap, f1, half = [], [], []
    for c in range(4):
        k = known[:, c]
        ap.append(average_precision_score(y[k, c], eta[k, c]))
        f1.append(f1_score(y[k, c], said[k, c]))
        half.append(f1_score(y[k, c], eta[k, c] >= 0.5))
    assert found["mAP"]["label"] == pytest.approx(np.mean(ap), abs=1e-6)
    assert found["macro"]["f1"] == pytest.approx(np.mean(f1), abs=1e-9)
    assert found["at_half"]["macro"]["f1"] == pytest.approx(np.mean(half), abs=1e-9)
    assert found["micro"]["f1"] == pytest.approx(f1_score(y[known], said[known]), abs=1e-9)
    assert found["at_half"]["micro"]["f1"] == pytest.approx(f1_score(y[known], eta[known] >= 0.5), abs=1e-9)
    right = ((said == (y == 1)) | ~known).all(1)
    assert found["exact_match"] == pytest.approx(right.mean())
    assert found["brier"] == pytest.approx(brier_score_loss(y[known], eta[known]), abs=1e-9)
    assert found["plain_sigmoid"]["brier"] == pytest.approx(brier_score_loss(y[known], sigmoid(z)[known]), abs=1e-6)
    plain = calibration_error(torch.sigmoid(logits_of(trained, data)), torch.from_numpy(y))
    assert found["plain_sigmoid"]["calibration"]["pooled"]["ace"] == pytest.approx(plain.ace, abs=1e-9)
    assert found["plain_sigmoid"]["calibration"]["pooled"]["ace"] > found["calibration"]["pooled"]["width"]["ace"]
    by_link = Focal().probability(logits_of(trained, data).double())
    assert found["by_link"]["brier"] == pytest.approx(brier_score_loss(y[known], by_link.numpy()[known]), abs=1e-6)
    rare = np.argsort(trained.counts, kind="stable")[:2]
    assert found["rarest"]["2"]["mAP"] == pytest.approx(np.mean(np.array(ap)[rare]), abs=1e-6)
    assert found["rarest"]["2"]["macro"]["f1"] == pytest.approx(np.mean(np.array(f1)[rare]), abs=1e-9)
    sizes = {name: part["labels"] for name, part in found["groups"].items()}
    assert sizes["head"] == (trained.counts >= 150).sum()
    assert sizes["tail"] == (trained.counts < 60).sum()
    assert found["single_label"] is None
    assert found["notes"] == []
    assert found["reading"]["kind"] == trained.probability_model.kind


def test_logits_and_targets_will_do_and_intervals_come_on_request() -> None:
    trained, data = fitted()
    z, y = logits_of(trained, data), data.labels.values
    whole = evaluate(trained, data, SETTINGS)
    assert evaluate(trained, (z, y), SETTINGS) == whole
    assert evaluate(trained, (z.numpy(), data.labels), SETTINGS) == whole
    assert "intervals" not in whole
    found = evaluate(trained, (z, y), replace(SETTINGS, bootstrap=50))
    low, high = found["intervals"]["mAP"]["label"]
    assert low < found["mAP"]["label"] < high
    assert {**found, "intervals": None} == {**whole, "intervals": None}
    for bad in ((z[:, :3], y[:, :3]), (z[:, :3], y), (z[:3], y)):
        with pytest.raises(ValueError, match="shape"):
            evaluate(trained, bad, SETTINGS)
    worse = z.clone()
    worse[5, 1] = torch.inf
    with pytest.raises(ValueError, match="item 5 is not finite"):
        evaluate(trained, (worse, y), SETTINGS)


def test_own_items_are_judged_by_a_fit_to_others_as_it_is() -> None:
    """Calibrated on validation items, they are judged out of fold; calibrated on others since, as the model is used."""
    trained, data = fitted()
    own = evaluate(trained, data, SETTINGS, out_of_fold=True)
    assert own["reading"]["out_of_fold"]
    assert own["notes"] == []
    flattered = evaluate(trained, data, SETTINGS)
    assert "fitted to: scores are too good" in flattered["notes"][0]
    assert flattered["log_loss"] != own["log_loss"]
    x, y = outputs_of(trained, items(300, seed=9), 64, "cpu", 0)[:2]
    other = trained.probability_model.fit(x, y, "isotonic").with_thresholds(Aim("f1"), torch.sigmoid(x), y)
    for probability_model in (other, ProbabilityModel.from_json(other.to_json())):
        found = evaluate(trained.read_by(probability_model), data, SETTINGS, out_of_fold=True)
        assert found == evaluate(trained.read_by(probability_model), data, SETTINGS)
        assert not found["reading"]["out_of_fold"]
        assert found["notes"] == []
    # The calibrator is of the validation items still, thresholds were set on others: only the first is left out.
    z, t = outputs_of(trained, data, 64, "cpu", 0)[:2]
    mixed = trained.probability_model.with_thresholds(Aim("f1"), torch.sigmoid(x), y)
    judged = judge(trained.read_by(mixed), data, SETTINGS, out_of_fold=True)
    assert judged.out_of_fold
    assert torch.equal(judged.probabilities, mixed.out_of_fold(z, t))
    assert torch.equal(judged.decisions, mixed.decisions(judged.probabilities))


def test_a_reading_of_the_first_version_knows_no_items() -> None:
    trained, data = fitted()
    document = json.loads(trained.probability_model.to_json())
    for name in ("format", "version", "sha256", "fitted_to", "chosen_on"):
        del document[name]
    marks = {"format": "steelyard reading", "version": 1, "sha256": checksum(document)}
    old = ProbabilityModel.from_json(json.dumps({**document, **marks}))
    assert (old.fitted_to, old.chosen_on) == (None, None)
    found = evaluate(trained.read_by(old), data, SETTINGS, out_of_fold=True)
    assert found == evaluate(trained, data, SETTINGS, out_of_fold=True)


def test_labels_are_matched_by_name() -> None:
    trained, data = fitted()
    whole = evaluate(trained, data, SETTINGS)
    order = [2, 0, 3, 1]
    y = data.labels.values
    shuffled = ArrayDataset(data.inputs, Labels(y[:, order], [NAMES[c] for c in order]))
    assert evaluate(trained, shuffled, SETTINGS) == whole

    more = ArrayDataset(data.inputs, Labels(np.insert(y, 1, 1, 1), ["cat", "bird", *NAMES[1:]]))
    found = evaluate(trained, more, SETTINGS)
    assert found["labels_besides"] == ["bird"]
    assert "'bird'" in found["notes"][0]
    assert {**found, "labels_besides": [], "notes": whole["notes"]} == whole

    fewer = ArrayDataset(data.inputs, Labels(y[:, [1, 0]], ["dog", "cat"]))
    found = evaluate(trained, fewer, SETTINGS)
    assert found["labels_lacking"] == list(NAMES[2:])
    assert found["per_label"][0] == pytest.approx(whole["per_label"][0], rel=1e-12)  # its items come in another order
    assert found["per_label"][2]["known"] == 0
    assert found["mAP"]["labels_left_out"] == 2
    assert found["known"] == (y[:, :2] >= 0).sum()

    other = ArrayDataset(data.inputs, Labels(y))
    with pytest.raises(ValueError, match=r"none of the model's labels.*'0'.*'cat'") as error:
        evaluate(trained, other, SETTINGS)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("n", [0, 1])
def test_one_item_and_none(n: int) -> None:
    trained, data = fitted()
    few = ArrayDataset(data.inputs[:n], Labels(data.labels.values[:n], NAMES))
    found = evaluate(trained, few, SETTINGS)
    assert found["items"] == n
    json.dumps(found, allow_nan=False)
    empty = ArrayDataset(data.inputs[:5], Labels(np.zeros((5, 4), np.int8), NAMES))
    assert evaluate(trained, empty, SETTINGS)["mAP"]["label"] is None
    unknown = ArrayDataset(data.inputs[:5], Labels(np.full((5, 4), -1, np.int8), NAMES))
    nothing = evaluate(trained, unknown, SETTINGS)
    assert nothing["brier"] is None
    show(nothing, Console(quiet=True))


def test_a_loss_without_probabilities_is_ranked_all_the_same() -> None:
    trained, data = small_run(part("two_way")), items(300, seed=4)
    z = 40 * logits_of(trained, data)  # σ of these is 1 in float32
    found = evaluate(trained, (z, data.labels), replace(SETTINGS, bootstrap=5))
    wanted = np.nanmean(average_precision(z.double().numpy(), data.labels.values))
    assert found["mAP"]["label"] == pytest.approx(wanted, abs=1e-4)
    for key in ("macro", "micro", "exact_match", "brier", "log_loss", "calibration", "at_half", "threshold"):
        assert found[key] is None
    assert found["per_label"][0]["f1"] is None
    assert found["per_label"][0]["average_precision"] is not None
    assert found["groups"]["head"]["ace"] is None
    assert found["groups"]["head"]["by_chance"] is None
    assert "TwoWay" in found["notes"][0]
    assert found["intervals"]["macro"] is None
    assert found["intervals"]["mAP"]["label"][0] < wanted
    lines = summary_lines(found)
    assert any("no probabilities" in line for line in lines)
    json.dumps(found, allow_nan=False)


def test_accuracy_by_argmax() -> None:
    trained = replace(small_run(), single_label=True, counts=np.array([50.0, 9, 30, 8]))
    g = np.random.default_rng(0)
    truth = g.integers(0, 4, 200)
    z = (g.normal(size=(200, 4)) + 1.5 * np.eye(4)[truth]).astype(np.float32)
    y = np.eye(4, dtype=np.int8)[truth]
    y[0] = [1, 1, 0, 0]
    y[1] = -1
    found = evaluate(trained, (z, y), SETTINGS)["single_label"]
    eta = trained.probability_model.probability(z)
    right = eta.argmax(1) == truth
    assert found["items"] == 198
    assert found["items_left_out"] == 2
    assert found["accuracy"] == pytest.approx(right[2:].mean())
    assert found["error"] == pytest.approx(1 - right[2:].mean())
    assert found["by_logit"] == pytest.approx((z.argmax(1) == truth)[2:].mean())
    rare = np.isin(truth, [1, 3])
    assert found["rarest"]["2"] == {
        "items": int(rare[2:].sum()),
        "accuracy": pytest.approx(right[2:][rare[2:]].mean()),
        "error": pytest.approx(1 - right[2:][rare[2:]].mean()),
    }
    assert evaluate(trained, (z, y), replace(SETTINGS, single_label="no"))["single_label"] is None
    asked = evaluate(replace(trained, single_label=False), (z, y), replace(SETTINGS, single_label="yes"))
    assert asked["single_label"] is not None
    steep = replace(trained, probability_model=trained.probability_model.fit(z, y, "isotonic"))
    tied = evaluate(steep, (20 * z, y), SETTINGS)["single_label"]  # η of many is 1 in float32
    assert tied["accuracy"] > 0.5
    assert evaluate(trained, (z[:0], y[:0]), SETTINGS)["single_label"]["accuracy"] is None


def test_validation_is_judged_by_fits_that_did_not_see_the_item() -> None:
    g = np.random.default_rng(0)
    n = 60
    y = (g.random((n, 4)) < 0.2).astype(np.int8)
    z = (g.normal(size=(n, 4)) + 0.5 * y).astype(np.float32)  # little to be learned
    trained = small_run()
    probability_model = trained.probability_model.fit(z, y, "isotonic")
    probability_model = probability_model.with_thresholds(Aim("f1"), probability_model.out_of_fold(z, y), y)
    trained = trained.read_by(probability_model)
    honest = evaluate(trained, (z, y), SETTINGS, out_of_fold=True)
    flattered = evaluate(trained, (z, y), SETTINGS)
    assert honest["log_loss"] > flattered["log_loss"]
    assert honest["macro"]["f1"] < flattered["macro"]["f1"]
    assert honest["reading"]["out_of_fold"]
    judged = judge(trained, (z, y), SETTINGS, out_of_fold=True)
    folds = folds_of(torch.from_numpy(y))
    before = probability_model.out_of_fold(z, y, folds)
    assert np.array_equal(judged.probabilities.numpy(), before)
    for fold in range(5):
        chosen = probability_model.with_thresholds(Aim("f1"), before[folds != fold], y[folds != fold])
        at = folds == fold
        assert np.array_equal(judged.decisions.numpy()[at], before[at] >= chosen.thresholds.astype(np.float32))
    said = judged.decisions.numpy()
    assert honest["micro"]["f1"] == pytest.approx(f1_score(y.ravel(), said.ravel()))
    assert honest["per_label"][1]["f1"] == pytest.approx(f1_score(y[:, 1], said[:, 1]))
    rare = np.argsort(trained.counts, kind="stable")[:2]
    assert honest["rarest"]["2"]["macro"]["f1"] == pytest.approx(np.mean([f1_score(y[:, c], said[:, c]) for c in rare]))
    drawn = evaluate(trained, (z, y), replace(SETTINGS, bootstrap=5), out_of_fold=True)["intervals"]
    low, high = drawn["macro"]["f1"]
    assert low < honest["macro"]["f1"] < high
    assert "mAP" in drawn
    assert "micro" not in drawn


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
def test_rankings_are_those_of_the_run_and_not_of_the_calibrators_of_folds(kind: str) -> None:
    g = np.random.default_rng(1)
    y = (g.random((80, 4)) < 0.08).astype(np.int8)
    y[:2] = 1
    z = (g.normal(size=(80, 4)) + y).astype(np.float32)
    trained = small_run()
    probability_model = trained.probability_model.fit(z, y, kind)
    probability_model = probability_model.with_thresholds(Aim("f1"), probability_model.out_of_fold(z, y), y)
    trained = trained.read_by(probability_model)
    settings = replace(SETTINGS, bootstrap=20)
    honest = evaluate(trained, (z, y), settings, out_of_fold=True)
    eta = probability_model.probability(z)
    by_run = average_precision(eta, y)
    assert by_run == pytest.approx(average_precision(z, y), abs=0.01)  # but for ties by rounding
    by_folds = average_precision(probability_model.out_of_fold(z, y), y)
    assert np.abs(by_run - by_folds).max() > 0.01  # else there is nothing to see here
    assert [row["average_precision"] for row in honest["per_label"]] == pytest.approx(by_run)
    assert honest["mAP"]["label"] == pytest.approx(by_run.mean())
    rare = np.argsort(trained.counts, kind="stable")[:2]
    assert honest["rarest"]["2"]["mAP"] == pytest.approx(by_run[rare].mean())
    assert [row["auroc"] for row in honest["per_label"]] == pytest.approx(
        [roc_auc_score(y[:, c], eta[:, c]) for c in range(4)]
    )
    own = evaluate(trained, (z, y), settings)
    assert honest["intervals"]["mAP"]["label"] == own["intervals"]["mAP"]["label"]
    assert honest["log_loss"] > own["log_loss"]
    judged = judge(trained, (z, y), settings, out_of_fold=True)
    rows = beside_baselines(judged, Labels(y), torch.from_numpy(z))
    assert rows is not None
    assert rows["this run"]["map"] == pytest.approx(by_run.mean())
    said = judged.decisions.numpy()
    table = honest["thresholds"]["labels"]
    assert [row["decided"] for row in table] == said.sum(0).tolist()
    assert [row["recall"] for row in table] == pytest.approx([row["recall"] for row in honest["per_label"]])
    assert said.sum() != probability_model.decisions(probability_model.out_of_fold(z, y)).sum()


# ---- deployment


def world(n: int, prior: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits that BCE would have learned where every label has frequency ½, and labels of another frequency."""
    g = np.random.default_rng(seed)
    y = (g.random((n, 4)) < prior).astype(np.int8)
    return (2 * g.normal(size=(n, 4)) + np.where(y == 1, 2.0, -2.0)).astype(np.float32), y


def test_a_deployment_prior_estimated_or_given_mends_the_probabilities(tmp_path: Path) -> None:
    trained = replace(small_run(), probability_model=probability_model_of(part(), np.full(4, 500.0), 1000))
    there = np.array([0.5, 0.2, 0.05, 0.01])
    z, y = world(20_000, there, 0)
    plain = evaluate(trained, (z, y), SETTINGS)
    found = evaluate(trained, (z, y), replace(SETTINGS, deploy_prior="estimate"))
    assert found["log_loss"] < plain["log_loss"] - 0.05
    assert found["calibration"]["pooled"]["width"]["ece"] < 0.01 < plain["calibration"]["pooled"]["width"]["ece"]
    report = found["deploy_prior"]
    for name, q in zip(NAMES, there, strict=True):
        row = report["labels"][name]
        assert abs(row["prior"] - q) < 5 * row["standard_error"]
        assert row["calibrated_for"] == 0.5
    assert report["converged"]
    assert report["suspicious"] == []
    file = tmp_path / "prior.json"
    file.write_text(json.dumps(dict(zip(NAMES, there.tolist(), strict=True))))
    given = evaluate(trained, (z, y), replace(SETTINGS, deploy_prior=str(file)))
    assert given["log_loss"] == pytest.approx(found["log_loss"], abs=1e-3)
    assert given["deploy_prior"]["source"] == str(file)

    aimed = trained.read_by(trained.probability_model.with_thresholds(Aim("f1"), *map(np.asarray, _here(trained))))
    moved = evaluate(aimed, (z, y), replace(SETTINGS, deploy_prior="estimate"))
    stale = evaluate(aimed, (z, y), SETTINGS)
    assert moved["macro"]["f1"] > stale["macro"]["f1"] + 0.05


def _here(trained: Trained) -> tuple[np.ndarray, np.ndarray]:
    z, y = world(5000, np.full(4, 0.5), 1)
    return trained.probability_model.probability(z), y


def test_an_estimate_that_cannot_be_right_is_told() -> None:
    counts = np.array([500.0, 500, 0, 500])
    trained = replace(small_run(), probability_model=probability_model_of(part(), counts, 1000))
    z, y = world(2000, np.full(4, 0.5), 0)
    z[:, 1] = 6  # sure of what training saw in half the items
    found = evaluate(trained, (z, y), replace(SETTINGS, deploy_prior="estimate"))
    assert found["deploy_prior"]["suspicious"] == ["dog"]
    assert "'dog'" in found["notes"][-2]
    assert "'a, b'" in found["notes"][-1]
    assert found["deploy_prior"]["labels"]["dog"]["prior"] is None
    assert "a, b" not in found["deploy_prior"]["labels"]


def test_prior_files(tmp_path: Path) -> None:
    names = ("cat", "dog", "a, b")
    good = {
        "a.csv": 'label,prior\ncat,0.5\n"a, b",1e-3\n',
        "b.csv": '\ufeffcat,0.5\r\n\r\n"a, b",0.001\r\n',
        "c.json": '{"a, b": 0.001, "cat": 0.5}',
    }
    for name, text in good.items():
        (tmp_path / name).write_bytes(text.encode())
        np.testing.assert_array_equal(read_prior(tmp_path / name, names), [0.5, np.nan, 0.001])
    bad = {
        "cat,0.5\ndgo,0.1\n": "row 2 names 'dgo'.*did you mean 'dog'",
        "cat,0.5\nzebra,0.1\n": "zebra.*correct or remove",
        "cat,0.5\ncat,0.4\n": "second time",
        "cat,1.5\n": r"prior 1.5.*a number from 0 to 1",
        "cat,nan\n": "a number from 0 to 1",
        "cat,0.5\ndog,much\n": "row 2.*'much'",
        "cat,0.5,1\n": "3 columns",
        "label,prior\n": "no prior",
        "": "no prior",
        'cat,"0.5\n': "not CSV",
    }
    for text, said in bad.items():
        (tmp_path / "x.csv").write_text(text)
        with pytest.raises(ValueError, match=said) as error:
            read_prior(tmp_path / "x.csv", names)
        assert "\n" not in str(error.value)
    for text, said in {
        "[1]": "no JSON object",
        "{": "not JSON",
        '{"cat": 0.1, "cat": 0.2}': "second",
        '{"cat": true}': "True",
        '{"cat": "a"}': "a number from 0 to 1",
        '{"cat": {"dog": 1}}': "a number from 0 to 1",
    }.items():
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(ValueError, match=said):
            read_prior(tmp_path / "x.json", names)
    with pytest.raises(ValueError, match="cannot be read"):
        read_prior(tmp_path / "none.csv", names)


# ---- calibrated anew


def test_recalibrate_rewrites_the_reading_and_nothing_else(tmp_path: Path) -> None:
    trained = small_run(part("focal"))
    run = saved_run(tmp_path / "run", trained)
    before = {p.name: p.read_bytes() for p in run.path.iterdir()}
    data = items(400, seed=9)
    found = recalibrate(run, data, replace(SETTINGS, calibration="platt", thresholds="recall", target=0.8))
    changed = {p.name for p in run.path.iterdir() if before.get(p.name) != p.read_bytes()}
    assert changed == {"calibration.json", "metrics.json"}
    loaded = run.load()
    assert loaded.probability_model.kind == "platt"
    assert loaded.probability_model.aim == Aim("recall", 0.8)
    z = logits_of(trained, data)
    wanted = trained.probability_model.fit(z, data.labels.values, "platt")
    assert torch.equal(loaded.probability_model.probability(z), wanted.probability(z))
    assert run.read_metrics()["recalibration"] == found
    assert run.read_metrics()["validation"] == {"items": 3}
    assert found["reading"]["out_of_fold"]
    assert found["log_loss"] < evaluate(trained, data, SETTINGS)["log_loss"]


def test_thresholds_refitted_beside_a_kept_calibrator_are_judged_by_fits_to_other_items(tmp_path: Path) -> None:
    g = np.random.default_rng(3)
    y = (g.random((60, 4)) < 0.2).astype(np.int8)
    z = (g.normal(size=(60, 4)) + 0.5 * y).astype(np.float32)
    trained = small_run()
    run = saved_run(tmp_path / "run", trained.read_by(trained.probability_model.fit(z, y, "platt")))
    precise = replace(SETTINGS, thresholds="precision", target=0.5)
    found = recalibrate(run, (z, y), precise, keep=True)
    assert found["reading"]["out_of_fold"]
    assert found["notes"] == []
    kept = run.load()
    assert found["log_loss"] > evaluate(kept, (z, y), precise)["log_loss"]
    assert found["thresholds"]["labels"][0]["threshold"] == kept.probability_model.thresholds[0]
    assert any(row["reached"] is False for row in found["thresholds"]["labels"])  # each was, on the items themselves


@pytest.mark.usefixtures("pages")
@pytest.mark.parametrize("case", ["labels", "no labels", "no matplotlib"])
def test_recalibrate_leaves_no_report_of_before(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = saved_run(tmp_path / "run", small_run(part("focal")))
    write_page(run / "report.html", "base.html", "Probabilities as they were.")
    if case == "no matplotlib":
        monkeypatch.setattr("steelyard.run.run_report.has_matplotlib", lambda: False)
    settings = replace(SETTINGS, calibration="platt")
    outdated = "The run was recalibrated after this page was written"
    for _ in range(1 if case == "labels" else 2):  # the second time nothing is said twice
        if case == "no labels":
            there = replace(settings, deploy_prior="estimate")
            recalibrate(run, inputs_of(items(60, seed=12)), there, keep=True)
        else:
            recalibrate(run, items(60, seed=9), settings)
        page = (run / "report.html").read_text()
        assert page.count(outdated) == (case != "labels")
        assert ("Probabilities as they were." in page) == (case != "labels")
        assert ("Measured on 60 recalibration items" in page) == (case == "labels")
    if case == "labels":
        assert "Platt" in page or "platt" in page
        assert page.count("<img") > 2


def test_recalibrate_for_a_prior_in_a_file(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", small_run())
    (tmp_path / "p.csv").write_text("cat,0.9\ndog,0.01\n")
    data = items(400, seed=9)
    recalibrate(str(run.path), data, replace(SETTINGS, deploy_prior=str(tmp_path / "p.csv")))
    probability_model = run.load().probability_model
    assert probability_model.to_prior[:2].tolist() == [0.9, 0.01]
    assert np.isnan(probability_model.to_prior[2:]).all()
    z, y = logits_of(small_run(), data), data.labels.values
    plain = probability_model.with_prior(None)
    wanted = probability_model.with_thresholds(Aim("f1"), plain.out_of_fold(z, y), y)
    np.testing.assert_allclose(probability_model.thresholds, wanted.thresholds, rtol=1e-12)
    unshifted = plain.with_thresholds(Aim("f1"), plain.out_of_fold(z, y), y)
    assert not np.allclose(probability_model.thresholds[:2], unshifted.thresholds[:2])
    np.testing.assert_allclose(probability_model.thresholds[2:], unshifted.thresholds[2:])


def test_adapting_to_items_without_labels(tmp_path: Path) -> None:
    trained, _ = fitted()
    run = saved_run(tmp_path / "run", trained)
    data = items(600, seed=11)
    mostly_cats = np.flatnonzero((data.labels.values[:, 0] == 1) | (np.arange(600) % 5 == 0))
    there = ArrayDataset(data.inputs[mostly_cats], data.labels.take(mostly_cats))
    settings = replace(SETTINGS, deploy_prior="estimate")
    with pytest.raises(ValueError, match="--keep"):
        recalibrate(run, there, settings)
    same = recalibrate(run, inputs_of(items(500, seed=12)), settings, keep=True)
    assert not same["deploy_prior"]["shifted"]
    assert run.load().probability_model.to_json() == trained.probability_model.to_json()
    recalibrate(run, inputs_of(items(500, seed=12)), replace(settings, thresholds="cost"), keep=True)
    assert run.load().probability_model.chosen_thresholds is None
    found = recalibrate(run, inputs_of(there), settings, keep=True)
    probability_model = run.load().probability_model
    assert probability_model.kind == trained.probability_model.kind
    assert probability_model.to_prior[0] > trained.probability_model.prior[0] + 0.1
    assert found["deploy_prior"]["items"] == len(there)
    assert found["known"] == 0
    assert evaluate(run.load(), there, SETTINGS)["log_loss"] < evaluate(trained, there, SETTINGS)["log_loss"]
    again = recalibrate(run, data, replace(SETTINGS, thresholds="half"), keep=True)
    assert (run.load().thresholds == 0.5).all()
    assert run.load().probability_model.to_prior is None
    assert again["deploy_prior"] is None
    with pytest.raises(ValueError, match="no items"):
        recalibrate(run, ArrayDataset(data.inputs[:0], data.labels.take(np.arange(0))), SETTINGS)


def test_calibrated_without_items_reads_by_the_link() -> None:
    probability_model = small_run(part("focal")).probability_model
    none = torch.zeros(0, 4)
    found = calibrated(probability_model, none, none.to(torch.int8), SETTINGS, NAMES)
    assert found.kind == "link"
    assert (found.thresholds == 0.5).all()
    assert found.aim.goal == "f1"
    plain = calibrated(probability_model, none, none.to(torch.int8), replace(SETTINGS, calibration="none"), NAMES)
    assert plain.kind == "none"


# ---- the terminal


def test_the_table_says_what_the_numbers_are() -> None:
    trained, data = fitted()
    cats = np.flatnonzero((data.labels.values[:, 0] == 1) | (np.arange(len(data)) % 6 == 0))
    there = ArrayDataset(data.inputs[cats], data.labels.take(cats))
    settings = replace(SETTINGS, bootstrap=20, single_label="yes", deploy_prior="estimate")
    found = evaluate(trained, there, settings)
    assert any("no prior changes" in note for note in evaluate(trained, data, settings)["notes"])
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    show(found, console, "Test items")
    text = console.export_text()
    chance = found["calibration"]["pooled"]["width"]["by_chance"]["ace"]
    score = f"{100 * found['mAP']['label']:.1f}"
    words = ("Test items", "head", "2 rarest", "by plain σ", "accuracy", "best F1", score)
    assert all(said in text for said in (*words, f"by chance alone {100 * chance:.1f}"))
    table = {line.split()[0]: line.split() for line in text.splitlines() if line.startswith(("labels", "all", "head"))}
    assert table["labels"][-3:] == ["ACE", "by", "chance"]
    for row, of in (("all", found["calibration"]["pooled"]["width"]), ("head", found["groups"]["head"])):
        assert table[row][-2:] == [f"{100 * x:.1f}" for x in (of["ace"], of["by_chance"]["ace"])]
    assert "estimated without their labels" in text
    assert "mAP: 95 % interval" in text
    assert all("\n" not in line for line in summary_lines(found))


def test_real_labels_and_a_model_fitted_by_another_library(shared_data: Path) -> None:
    """Yeast (Mulan): the logits of logistic regressions, calibrated on half of its training part."""
    parts = [open_data(shared_data / "mulan" / f"yeast-{part}.arff").data for part in ("train", "test")]
    (x, y), (x_test, y_test) = ((d.inputs, d.labels.values) for d in parts)
    models = [LogisticRegression(C=1e3, max_iter=300).fit(x[::2], y[::2, c]) for c in range(y.shape[1])]
    held, test = (np.stack([m.decision_function(v) for m in models], 1).astype(np.float32) for v in (x[1::2], x_test))
    counts, n = y[::2].sum(0).astype(np.float64), len(y[::2])
    trained = replace(
        small_run(),
        names=parts[0].labels.names,
        counts=counts,
        n_known=np.full(len(counts), float(n)),
        probability_model=probability_model_of(part(), counts, n),
    )
    settings = EvaluateSettings()
    z, t = torch.from_numpy(held), torch.from_numpy(y[1::2])
    after = trained.read_by(calibrated(trained.probability_model, z, t, settings, trained.names))
    plain, found = (evaluate(run, (test, y_test), settings) for run in (trained, after))
    honest = evaluate(after, (z, t), settings, out_of_fold=True)
    assert found["log_loss"] < plain["log_loss"] - 0.02
    assert found["macro"]["f1"] > plain["macro"]["f1"] + 0.02
    assert found["mAP"]["label"] == pytest.approx(plain["mAP"]["label"], abs=1e-3)
    assert honest["log_loss"] == pytest.approx(found["log_loss"], abs=0.02)
    assert honest["macro"]["f1"] == pytest.approx(found["macro"]["f1"], abs=0.03)
