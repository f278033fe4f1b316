"""The commands train, evaluate, calibrate and predict as people type them, and everything that may go wrong."""

from __future__ import annotations

import csv
import errno
import html
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import steelyard as sy
from run_data import NAMES, items, left_by, write_npz, write_photos, write_table
from steelyard import __version__
from steelyard.config.recipes import RECIPES
from steelyard.config.settings import load_config
from steelyard.data.dataset import ImageDataset
from steelyard.folder.run_folder import RunFolder
from steelyard.labels import Labels
from steelyard.run import learn
from steelyard.search import Index
from steelyard.training.distributed import together
from training_jobs import forked, in_two_processes, shot, waited
from typed import done, typed

SHORT = ("--set", "train.epochs=3", "--set", "train.batch_size=32", "--set", "train.checkpoint_seconds=0")
QUICK = (*SHORT, "--set", "evaluate.calibration=link")  # to choose a calibrator takes as long as all else
WILD = ("--set", "optimizer.kind=sgd", "--set", "optimizer.lr=1e38")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, photos, an archive of parts, and the finished run `run` of the table."""
    folder = tmp_path_factory.mktemp("commands")
    write_table(folder / "items.csv", *items())
    write_table(folder / "new.csv", *items(70, 1))
    write_npz(folder / "parts.npz", train=items(), val=items(60, 1), test=items(50, 2))
    write_photos(folder / "photos", 30)
    done("train", "--data", folder / "items.csv", "--out", folder / "run", *SHORT)
    return folder


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


# ---- from data to predictions


def test_train_says_what_it_does(place: Path, tmp_path: Path) -> None:
    said = done("train", "--data", place / "items.csv", "--out", tmp_path / "run", *SHORT)
    lines = said.out.splitlines()
    assert said.err == ""
    assert any(line.startswith("Recipe bce: ") for line in lines)
    assert "144 items to train on, 16 to validate on; 3 labels." in lines
    assert [line for line in lines if line.startswith("epoch")] == [
        line
        for line in lines
        if re.fullmatch(r"epoch \d/3  loss [\d.]+  mAP [\d.]+  F1 [\d.]+  ACE [\d.]+  [\d.]+ s", line)
    ]
    assert sum(line.startswith("epoch") for line in lines) == 3
    run = tmp_path / "run"
    assert f"The run is in {run}. In the browser: steelyard serve {run}" in lines  # and no report that is not there
    assert lines[-1] == f"Next: steelyard predict {run} NEW-ITEMS --out predictions.csv"


def test_evaluate_tells_what_training_told(place: Path) -> None:
    said = done("evaluate", place / "run", "--json")
    assert json.loads(said.out) == RunFolder(place / "run").read_metrics()["validation"]
    shown = done("evaluate", place / "run")
    assert "validation" in shown.out
    assert "3 rarest" in shown.out
    other = json.loads(done("evaluate", place / "run", "--data", place / "new.csv", "--json", "--bootstrap", 20).out)
    run = sy.Run.load(place / "run")
    x, y = items(70, 1)
    assert other["items"] == 70
    assert other["brier"] == pytest.approx(float(((run.probability(x).astype(np.float64) - y) ** 2).mean()))
    low, high = other["intervals"]["mAP"]["label"]
    assert low <= other["mAP"]["label"] <= high


def test_report_draws_the_page_of_own_and_of_other_items(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = typed("report", place / "run", "--out", tmp_path / "own.html")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "needs matplotlib" in refused.err
    assert typed("report", tmp_path / "no run").err.endswith("no run is not a folder: give the folder of a run\n")
    odd = typed("report", place / "run", "--out", tmp_path / "own.gif")
    assert odd.err.endswith("own.gif: give a name that ends in .html or .pdf\n")
    assert not (tmp_path / "own.gif").exists()
    monkeypatch.setattr("steelyard.run.run_report.has_matplotlib", lambda: True)
    run = shutil.copytree(place / "run", tmp_path / "run")
    (run / "report.html").unlink(missing_ok=True)
    assert done("report", run).out == f"Written: {run / 'report.html'}\n"
    other = done("report", run, "--data", place / "new.csv", "--out", tmp_path / "new.html")
    assert other.out == f"Written: {tmp_path / 'new.html'}\n"
    own, new = (run / "report.html").read_text(), (tmp_path / "new.html").read_text()
    metrics = RunFolder(run).read_metrics()["validation"]
    for text, found in (
        (own, metrics),
        (new, json.loads(done("evaluate", run, "--data", place / "new.csv", "--json").out)),
    ):
        assert f"{100 * found['mAP']['label']:.1f}" in text
    assert "Measured on 16 validation items" in own
    assert "Measured on 70 items" in new
    assert f"The items are those of {place / 'new.csv'}." in html.unescape(new)
    assert RunFolder(run).read_metrics()["validation"] == metrics  # nothing else of the run is touched


def test_evaluate_takes_tables_that_differ(place: Path, tmp_path: Path) -> None:
    """No ids, columns in another order, a label less, a label more, another format: labels are matched by name."""
    x, y = items(70, 1)
    whole_table = json.loads(done("evaluate", place / "run", "--data", place / "new.csv", "--json").out)
    table = rows_of((place / "new.csv").read_text())
    columns = ["rare bird", "f4", "f2", "dog", "f0", "f1", "cat", "f3", "strange"]
    with (tmp_path / "turned.csv").open("w", newline="") as file:
        rows = csv.DictWriter(file, columns, extrasaction="ignore")
        rows.writeheader()
        rows.writerows({**row, "strange": 1} for row in table)
    turned = json.loads(done("evaluate", place / "run", "--data", tmp_path / "turned.csv", "--json").out)
    assert turned["per_label"] == whole_table["per_label"]
    found, wanted = (
        rows_of(done("predict", place / "run", path).out) for path in (tmp_path / "turned.csv", place / "new.csv")
    )
    assert [{**row, "id": ""} for row in found] == [{**row, "id": ""} for row in wanted]
    write_npz(tmp_path / "items.npz", test=(x, y))
    archive = done("evaluate", place / "run", "--data", tmp_path / "items.npz", "--split", "test", "--json")
    assert json.loads(archive.out)["per_label"] == whole_table["per_label"]
    write_table(tmp_path / "fewer.csv", x, y[:, 1:], NAMES[1:])
    fewer = json.loads(done("evaluate", place / "run", "--data", tmp_path / "fewer.csv", "--json").out)
    assert fewer["labels_lacking"] == ["cat"]
    for found, wanted in zip(fewer["per_label"][1:], whole_table["per_label"][1:], strict=True):
        assert found == pytest.approx(wanted)


def test_splits_of_a_runs_own_data(place: Path, tmp_path: Path) -> None:
    data = ("--set", "data.validation=val", "--set", "data.test=test")
    done("train", "--data", place / "parts.npz", "--out", tmp_path / "run", *data, *QUICK)
    metrics = RunFolder(tmp_path / "run").read_metrics()
    assert {name: found["items"] for name, found in metrics.items()} == {"validation": 60, "test": 50}
    for asked, name in ((), "test"), (("--split", "test"), "test"), (("--split", "val"), "validation"):
        said = json.loads(done("evaluate", tmp_path / "run", *asked, "--json").out)
        assert said == metrics[name]
    train = json.loads(done("evaluate", tmp_path / "run", "--split", "train", "--json").out)
    assert train["items"] == 160
    assert "has no part 'none'" in typed("evaluate", tmp_path / "run", "--split", "none").line


def test_calibrate_changes_how_a_run_is_read(place: Path, tmp_path: Path) -> None:
    done("train", "--data", place / "items.csv", "--out", tmp_path / "run", *SHORT)
    before = sy.Run.load(tmp_path / "run")
    said = done(
        "calibrate", tmp_path / "run", "--kind", "temperature", "--thresholds", "cost", "--false-positive-cost", 3
    )
    assert "temperature fitted" in said.out.replace("\n", " ")
    after = sy.Run.load(tmp_path / "run")
    assert after.trained.probability_model.kind == "temperature"
    assert after.trained.thresholds.tolist() == [0.75] * 3
    x, _ = items(70, 1)
    assert np.array_equal(after.logits(x), before.logits(x))
    assert after.metrics["validation"] == before.metrics["validation"]
    assert after.metrics["recalibration"]["reading"]["kind"] == "temperature"
    other = json.loads(done("calibrate", tmp_path / "run", "--data", place / "new.csv", "--json").out)
    assert other["items"] == 70
    plain = sy.Run.load(tmp_path / "run")
    keep = ("--keep", "--deploy-prior", "estimate")
    (tmp_path / "bare.csv").write_text(re.sub(r"(?m)(,[^,]*){3}$", "", (place / "new.csv").read_text()))
    adapted = json.loads(done("calibrate", tmp_path / "run", "--data", tmp_path / "bare.csv", *keep, "--json").out)
    assert adapted["known"] == 0  # labels are not needed to see how often they come
    assert adapted["deploy_prior"]["items"] == 70
    (tmp_path / "prior.csv").write_text("label,prior\ncat,0.9\n")
    done("calibrate", tmp_path / "run", "--keep", "--deploy-prior", tmp_path / "prior.csv")
    shifted = sy.Run.load(tmp_path / "run")
    assert shifted.trained.probability_model.to_prior[0] == 0.9
    assert (shifted.probability(x)[:, 0] > plain.probability(x)[:, 0]).all()
    assert "--deploy-prior is given" in typed("evaluate", tmp_path / "run", "--deploy-prior", "estimate").line
    said = done("evaluate", tmp_path / "run", "--deploy-prior", "estimate", "--data", place / "new.csv", "--json")
    assert json.loads(said.out)["deploy_prior"]["items"] == 70


def test_train_reads_probabilities_for_another_prior(place: Path, tmp_path: Path) -> None:
    (tmp_path / "prior.csv").write_text("label,prior\ncat,0.9\n")
    asked = ("train", "--data", place / "parts.npz", "--set", "data.validation=val", "--set", "data.test=test", *QUICK)
    done(*asked, "--deploy-prior", tmp_path / "prior.csv", "--out", tmp_path / "there")
    done(*asked, "--out", tmp_path / "here")
    there, here = (sy.Run.load(tmp_path / name) for name in ("there", "here"))
    assert there.trained.probability_model.to_prior[0] == 0.9
    x, _ = items(70, 1)
    assert (there.probability(x)[:, 0] > here.probability(x)[:, 0]).all()
    estimated = done(*asked, "--deploy-prior", "estimate", "--out", tmp_path / "estimated", "--json")
    assert json.loads(estimated.out)["test"]["deploy_prior"]["items"] == 50
    again = ("calibrate", tmp_path / "estimated", "--thresholds", "recall", "--target", 0.8)
    for keep in ((), ("--keep",)):  # what is estimated at every evaluation is no part of the calibration
        assert json.loads(done(*again, *keep, "--json").out)["deploy_prior"] is None
        assert sy.Run.load(tmp_path / "estimated").trained.probability_model.to_prior is None
    alone = ("train", "--data", place / "items.csv", "--out", tmp_path / "no", *QUICK)
    assert "no test items to estimate it from" in typed(*alone, "--deploy-prior", "estimate").line
    assert "nowhere.csv cannot be read" in typed(*alone, "--deploy-prior", "nowhere.csv").line


def test_a_table_in_a_pipe_has_a_row_a_line(place: Path) -> None:
    """Whatever the width of a terminal that is not there."""
    lines = done("evaluate", place / "run").out.splitlines()
    (probabilities,) = [line for line in lines if line.startswith("probabilities: ")]
    assert "; thresholds: " in probabilities
    (error,) = [line for line in lines if line.startswith("calibration error")]
    assert re.search(r"Brier [\d.]+$", error)
    assert len(error) > 80


def test_predict_in_every_form(place: Path, tmp_path: Path) -> None:
    run = sy.Run.load(place / "run")
    x, _ = items(70, 1)
    eta, said = run.probability(x), run.decide(x)
    shown = done("predict", place / "run", place / "new.csv")
    assert shown.err == ""
    table = rows_of(shown.out)
    assert [row["id"] for row in table] == [f"item{i}" for i in range(70)]
    for c, name in enumerate(NAMES):
        assert np.array_equal(np.array([row[f"probability:{name}"] for row in table], np.float32), eta[:, c])
        assert [row[f"decision:{name}"] == "1" for row in table] == said[:, c].tolist()
    written = done("predict", place / "run", place / "new.csv", "--out", tmp_path / "new.parquet", "--batch-size", 7)
    assert written.out == ""
    assert written.err == f"70 items in {tmp_path / 'new.parquet'}.\n"
    columns = pq.read_table(tmp_path / "new.parquet").to_pydict()
    # How many items are computed at once may change the last digit, by the processor.
    np.testing.assert_allclose(np.array(columns["probability:dog"], np.float32), eta[:, 1], rtol=2e-6)
    np.save(tmp_path / "x.npy", x)
    assert len(rows_of(done("predict", place / "run", tmp_path / "x.npy").out)) == 70


def test_three_commands_from_photos_to_predictions(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_photos(tmp_path / "photos", 30)
    small = ("--set", "model.backbone=small", "--set", "data.size=12")
    assert "Recommended recipe" in done("inspect", "photos").out
    done("train", "--data", "photos", *small, *QUICK)
    done("predict", "runs/photos-bce", "photos/images", "--out", "found.csv")
    table = rows_of((tmp_path / "found.csv").read_text())
    assert [row["id"] for row in table] == [f"photo{i:03}.png" for i in range(30)]
    assert list(table[0])[1:4] == ["probability:blue", "probability:green", "probability:red"]
    # The same by a manifest elsewhere, and by names on the standard input.
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "labels.csv").write_text((tmp_path / "photos" / "labels.csv").read_text())
    assert (
        "no image of column 'file' is found" in typed("evaluate", "runs/photos-bce", "--data", "list/labels.csv").line
    )
    there = ("--data", "list/labels.csv", "--images", "photos/images", "--json")
    assert json.loads(done("evaluate", "runs/photos-bce", *there).out)["items"] == 30
    done("train", "--data", "list/labels.csv", "--images", "photos/images", "--out", "again", *small, *QUICK)
    assert Path("again/model.safetensors").read_bytes() == Path("runs/photos-bce/model.safetensors").read_bytes()
    names = io.BytesIO(b"photo003.png\nphoto001.png\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(names))
    piped = rows_of(done("predict", "runs/photos-bce", "-", "--images", "photos/images").out)
    assert [row["id"] for row in piped] == ["photo003.png", "photo001.png"]
    assert piped[0]["probability:red"] == table[3]["probability:red"]


def test_images_are_kept_only_where_a_cache_is_named(tmp_path: Path) -> None:
    """What data.cache says of itself; without a size the small backbone takes images of 32 × 32."""
    write_photos(tmp_path / "photos", 12)
    asked = ("train", "--data", tmp_path / "photos", "--set", "model.backbone=small", *QUICK)
    done(*asked, "--out", tmp_path / "plain")
    assert not (tmp_path / "plain" / "cache").exists()
    assert sy.Run.load(tmp_path / "plain").trained.model.input.shape == (3, 32, 32)
    done(*asked, "--out", tmp_path / "kept", "--set", f"data.cache={tmp_path / 'cache'}")
    (pixels,) = (tmp_path / "cache").glob("*/images.u8")
    assert pixels.stat().st_size == 12 * 3 * 32 * 32
    assert not (tmp_path / "kept" / "cache").exists()


def test_a_run_made_in_python_is_used_by_commands(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 20)
    paths = [str(path) for path in sorted((photos / "images").iterdir())]
    labels = Labels(np.tile(np.eye(3, dtype=np.int8), (7, 1))[:20], ("blue", "green", "red"))
    settings = {"model": {"backbone": "small"}, "train": {"epochs": 1}}
    sy.fit(ImageDataset(paths, labels, size=9), "bce", out=tmp_path / "run", settings=settings, verbose=False)
    assert len(rows_of(done("predict", tmp_path / "run", photos / "images").out)) == 20
    found = json.loads(done("evaluate", tmp_path / "run", "--data", photos, "--json").out)
    assert (found["items"], found["labels_lacking"]) == (20, [])
    assert "was not trained from a path: give the items with --data" in typed("evaluate", tmp_path / "run").line


# ---- settings


@pytest.mark.parametrize(
    "options", [(), ("--recipe", "plm+lpr", "--set", "optimizer.lr=0.02", "--set", "data.labels=['cat','dog']")]
)
def test_the_printed_configuration_is_the_run(place: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    asked = ("train", "--data", place / "items.csv", *options, *QUICK)
    printed = done(*asked, "--print-config")
    assert printed.err == ""
    (tmp_path / "run.toml").write_text(printed.out)
    assert load_config(tmp_path / "run.toml").data.path == str(place / "items.csv")
    done(*asked, "--out", tmp_path / "a")
    done("train", tmp_path / "run.toml", "--out", tmp_path / "b")
    done("train", tmp_path / "a" / "config.toml", "--out", tmp_path / "c")
    first, *others = (left_by(tmp_path / name, ("config.toml",)) for name in "abc")
    for files in (first, *others):
        for name in ("recipe", "why"):  # a configuration does not say which recipe it came from
            files["run.json"].pop(name)
    assert others == [first, first]
    texts = [tomllib.loads((tmp_path / name / "config.toml").read_text()) for name in "abc"]
    assert [text["train"].pop("out") for text in texts] == [str(tmp_path / name) for name in "abc"]
    assert texts == [texts[0]] * 3


def test_print_config_needs_no_data(tmp_path: Path) -> None:
    (tmp_path / "plain.toml").write_text(done("train", "--print-config").out)
    assert load_config(tmp_path / "plain.toml") == load_config(None)
    spa = tomllib.loads(done("train", "--print-config", "--recipe", "spa-lpr", "--set", "train.epochs=7").out)
    assert spa["objective"]["loss"]["kind"] == "spa"
    assert spa["train"]["epochs"] == 7


def test_recipes_are_listed() -> None:
    said = done("train", "--recipes").out
    assert [name for name in RECIPES if f"\n  {name} " not in said] == []


def test_scores_as_json(place: Path, tmp_path: Path) -> None:
    said = done("train", "--data", place / "items.csv", "--out", tmp_path / "run", "--json", *SHORT)
    assert json.loads(said.out) == RunFolder(tmp_path / "run").read_metrics()
    assert said.out.count("\n") == 1
    assert "epoch 3/3" in said.err  # how it goes is for people


def test_what_a_file_takes_from_a_recipe_is_said(place: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('[objective]\nmasking = "none"\n')
    asked = ("train", tmp_path / "mine.toml", "--data", place / "items.csv", "--recipe", "plm", *QUICK)
    said = done(*asked, "--out", tmp_path / "run").out.splitlines()
    assert f"Beware: {tmp_path / 'mine.toml'} changes objective.masking of recipe plm." in said
    assert "changes" not in done("train", *asked[2:], "--out", tmp_path / "plain").out


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("trian",), "No such command 'trian'"),
        (("train", "--dta", "x"), "No such option: --dta"),
        (("predict", "run"), "(see steelyard predict --help)"),
        (("train",), "no data is given: name a table, file or folder with --data"),
        (("train", "nowhere.toml"), "nowhere.toml does not exist: give a TOML file"),
        (("train", "plm"), "did you mean --recipe plm?"),
        (("train", "items.csv"), "items.csv is data, not a TOML file of settings: write --data items.csv"),
        (("train", "odd photos ü"), "odd photos ü is data, not a TOML file of settings: write --data 'odd photos ü'"),
        (("train", "--data", "nowhere.csv"), "nowhere.csv does not exist"),
        (("train", "--data", "empty"), "empty is an empty folder"),
        (("train", "--data", "blank.csv"), "blank.csv"),
        (("train", "--data", "names.csv"), "names.csv has labels, but no inputs: name the folder of its images, --im"),
        (("train", "--data", "nan.csv"), "nan.csv: line 9, column 'f2' holds no finite number"),
        (("train", "--data", "items.csv", "--out", "runs/wild", *WILD, *QUICK), "lower optimizer.lr"),
        (("train", "--data", "items.csv", *QUICK, "--set", "optimizer.lr=1e38"), "optimizer.lr is 1e+38, so the"),
        (("predict", "run", "new.csv", "--top", "x"), "--top takes a whole number: give one (see steelyard predict"),
        (("calibrate", "run", "--target", "x"), "--target takes a number: give one (see steelyard calibrate --help)"),
        (("inspect", "items.csv", "--year", "x"), "--year takes a whole number: give one (see steelyard inspect"),
        (("inspect", "latin.csv"), "or give its encoding, e.g. --encoding latin-1"),
        (("train", "--data", "latin.csv", "--labels", "nowhere"), "or give its encoding, e.g. --encoding latin-1"),
        (("train", "--data", "words.csv", "--labels", "cat", "--labels", "dog"), "label columns with --labels"),
        (("train", "--data", "items.csv", "--set", "train.epoch=3"), "did you mean train.epochs?"),
        (("train", "--data", "items.csv", "--set", "train.epochs=many"), "train.epochs is 'many'"),
        (("train", "--data", "items.csv", "--recipe", "pln"), "did you mean plm?"),
        (("train", "--data", "items.csv", "--set", "data.validation=nowhere"), "has no part 'nowhere'"),
        (("train", "--data", "none.csv"), "no training label is present anywhere"),
        (("train", "--data", "one.csv"), "no label is present anywhere"),
        (("train", "--data", "twice.csv"), "both have the id 'item0'"),
        (("train", "--data", "odd photos ü"), "1 of 12 images are not in odd photos ü/images ('photo009.png')"),
        (("train", "--data", "torn"), "photo005.png cannot be decoded"),
        (("train", "torn.toml"), "torn.toml: line 1"),
        (("train", "--data", "items.csv", "--out", "settings", "--overwrite"), "settings holds 'config.toml'"),
        (("evaluate", "run", "--split", "nowhere"), "has no part 'nowhere': give the path of other data"),
        (("evaluate", "settings"), "settings is not a Steelyard run"),
        (("train", "--data", "tags.csv", "--set", "data.validation=more-tags.csv"), "'new'"),
        (("train", "--data", "items.csv", "--out", "run"), "run holds a finished run"),
        (("train", "--data", "items.csv", "--out", "items.csv"), "items.csv is a file"),
        (("train", "--data", "items.csv", "--out", "items.csv/run"), "Not a directory"),
        (("train", "--data", "items.csv", "--out", "photos"), "photos holds 'images' and is not a Steelyard run"),
        (("train", "--data", "items.csv", "--out", "x", "--set", "train.device=tpu"), "train.device is 'tpu'"),
        (("train", "--data", "items.csv", "--epochs", "3"), "no option --epochs: write --set train.epochs=VALUE"),
        (("train", "--data", "items.csv", "--lr", "1"), "no option --lr: write --set optimizer.lr=VALUE"),
        (("evaluate", "run", "--epochs", "3"), "No such option: --epochs"),
        (("evaluate", "nowhere"), "nowhere is not a folder"),
        (("evaluate", "photos"), "photos is not a Steelyard run"),
        (("evaluate", "run", "--data", "nowhere"), "nowhere does not exist"),
        (("evaluate", "run", "--data", "photos"), "there is no column 'f0'"),
        (("calibrate", "run", "--kind", "plat"), "did you mean platt?"),
        (("calibrate", "run", "--target", "2"), "--target is 2.0"),
        (("calibrate", "run", "--target", "0.9"), "thresholds are for f1: add --thresholds precision or recall"),
        (("calibrate", "run", "--false-negative-cost", "2"), "thresholds are for f1: add --thresholds cost"),
        (("calibrate", "run", "--keep", "--kind", "platt"), "--keep keeps the calibrator: leave one of them out"),
        (("calibrate", "run", "--deploy-prior", "estimate"), "--keep"),
        (("predict", "new.csv", "new.csv", "--runtime", "onnx", "--index", "i"), "give the folder of the run"),
        (("predict", "run", "nowhere.csv"), "nowhere.csv does not exist"),
        (("predict", "run", "photos/images"), "photos/images"),
        (("predict", "run", "new.csv", "--batch-size", "0"), "--batch-size is 0"),
        (("predict", "run", "new.csv", "--device", "tpu"), "--device is 'tpu': give auto, cpu, cuda or cuda:N"),
        (("predict", "run", "nan.csv"), "finite numbers"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_one_line(
    place: Path, args: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch, mistakes: Path
) -> None:
    monkeypatch.chdir(mistakes)
    before = sorted(mistakes.iterdir())
    said = typed(*args)
    assert sentence in said.line
    assert said.code == 2
    left = {path.name for path in mistakes.iterdir()} - {path.name for path in before}
    assert left <= {"x", "runs"}  # a run may have been begun; it makes room for the next


@pytest.fixture(scope="module")
def mistakes(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    for name in ("items.csv", "new.csv", "photos", "run"):
        (folder / name).symlink_to(place / name)
    (folder / "empty").mkdir()
    (folder / "blank.csv").write_text("")
    (folder / "header.csv").write_text("id,f0,cat\n")
    (folder / "settings").mkdir()
    (folder / "settings" / "config.toml").write_text("[tool]\n")
    (folder / "torn.toml").write_text("[train\nepochs = 3\n")
    rows = (place / "items.csv").read_text().splitlines()
    (folder / "one.csv").write_text("\n".join(rows[:2]) + "\n")
    (folder / "twice.csv").write_text("\n".join([*rows, rows[1]]) + "\n")
    for name in ("odd photos ü", "torn"):
        write_photos(folder / name, 12)
    (folder / "odd photos ü" / "images" / "photo009.png").unlink()
    whole = (folder / "torn" / "images" / "photo005.png").read_bytes()
    (folder / "torn" / "images" / "photo005.png").write_bytes(whole[:60])
    (folder / "names.csv").write_text("id,cat,dog\na,1,0\nb,0,1\nc,1,1\nd,0,0\n")
    (folder / "latin.csv").write_bytes("id,f0,café\na,1,0\nb,2,1\n".encode("latin-1"))
    (folder / "words.csv").write_text("id,f0,cat,dog\na,1,0,good\nb,2,1,bad\nc,3,1,1\n")
    x, y = items(40)
    write_table(folder / "none.csv", x, 0 * y)
    x[7, 2] = np.nan
    write_table(folder / "nan.csv", x, y)
    for name, tags in (("tags.csv", ("a|b", "b", "a")), ("more-tags.csv", ("a", "new", "b"))):
        rows = [f"{i},{i % 7},{i % 3},{tags[i % 3]}" for i in range(30)]
        (folder / name).write_text("\n".join(["id,f0,f1,labels", *rows]) + "\n")
    return folder


def test_help_is_no_mistake() -> None:
    said = done()
    assert "predict" in said.out
    assert said.err == ""
    assert "--print-config" in done("train", "--help").out


def test_classes_without_positives_are_told_and_trained_around(place: Path, tmp_path: Path) -> None:
    x, y = items()
    y[:, 2] = 0
    write_table(tmp_path / "two.csv", x, y)
    held = ("--set", f"data.validation={place / 'new.csv'}")  # has what training lacks
    said = done("train", "--data", tmp_path / "two.csv", "--out", tmp_path / "run", *held, *QUICK)
    assert "Beware: label 'rare bird': never present in training" in said.out
    eta = sy.Run.load(tmp_path / "run").probability(items(70, 1)[0])
    assert np.isfinite(eta).all()


def test_an_unwritable_folder(place: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        shut = Path("/proc/steelyard")  # where not even root may make a folder
    else:
        shut = tmp_path / "shut" / "run"
        shut.parent.mkdir(mode=0o500)
    said = typed("train", "--data", place / "items.csv", "--out", shut, *QUICK)
    assert str(shut) in said.line


def test_a_finished_run_is_kept_unless_told(place: Path, tmp_path: Path) -> None:
    asked = ("train", "--data", place / "items.csv", "--out", tmp_path / "run", *QUICK)
    done(*asked)
    first = left_by(tmp_path / "run")
    assert "--overwrite" in typed(*asked, "--set", "train.seed=1").line
    wrong = typed(*asked, "--overwrite", "--set", "train.monitor=error")
    assert "train.monitor" in wrong.line
    assert left_by(tmp_path / "run") == first  # a mistake costs nothing
    done(*asked, "--overwrite", "--set", "train.seed=1")
    second = left_by(tmp_path / "run")
    assert second["model.safetensors"] != first["model.safetensors"]
    assert load_config(tmp_path / "run" / "config.toml").train.seed == 1
    done(*asked[: -len(QUICK)], "--overwrite", "--set", "train.epochs=1", "--set", "data.validation=0")
    assert RunFolder(tmp_path / "run").read_metrics() == {}  # nothing of the run before
    assert not list((tmp_path / "run").glob(".*"))


def test_images_that_were_moved_since(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 30)
    small = ("--set", "model.backbone=small", "--set", "data.size=12")
    manifest, moved = next(photos.glob("*.csv")), tmp_path / "moved"
    done("train", "--data", manifest, "--images", photos / "images", "--out", tmp_path / "run", *small, *QUICK)
    before = done("evaluate", tmp_path / "run", "--json").out
    (photos / "images").rename(moved)
    assert typed("evaluate", tmp_path / "run").code == 2
    assert done("evaluate", tmp_path / "run", "--images", moved, "--json").out == before


def test_images_judged_by_folds_are_counted_once_where_they_cannot_be_read(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 30)
    for name in ("photo007.png", "photo009.png"):
        (photos / "images" / name).write_bytes(b"junk")
    frozen = ("--set", "model.backbone=lite0", "--set", "model.frozen=true", "--set", "data.size=32", "--skip-missing")
    said = done("train", "--data", photos, "--recipe", "bce", *frozen, "--out", tmp_path / "run").out
    assert set(re.findall(r"(\d+) images could not be read", said)) == {"2"}
    assert json.loads((tmp_path / "run" / "run.json").read_text())["unreadable"] == {"train": 2}
    assert "2 images could not be read" in (tmp_path / "run" / "card.md").read_text()


def test_images_that_cannot_be_read(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 30)
    for name in ("photo007.png", "photo009.png"):
        (photos / "images" / name).write_bytes(b"junk")
    small = ("--set", "model.backbone=small", "--set", "data.size=12")
    asked = ("train", "--data", photos, "--out", tmp_path / "run", *small, *QUICK)
    for workers in (0, 2):
        assert re.search(r"photo00[79]\.png", typed(*asked, "--set", f"train.workers={workers}").line)
    skips = ("--set", "data.on_bad_image=skip", "--set", "data.validation=0.5")
    said = done(*asked, *skips).out
    told = r"^Beware: 2 images could not be read and were left out: first .*photo00[79]\.png \(.*\)\.$"
    assert len(re.findall(told, said, re.M)) == 1
    facts = json.loads((tmp_path / "run" / "run.json").read_text())["unreadable"]
    assert sum(facts.values()) == 2
    kept = RunFolder(tmp_path / "run").read_metrics()["validation"]
    measured = json.loads(done("evaluate", tmp_path / "run", "--json").out)
    assert kept["unreadable"] == measured["unreadable"] == facts["validation"] > 0
    assert kept["notes"] == measured["notes"]
    assert re.match(r"\d images? could not be read and w\w+ left out: (first )?.*photo00[79]\.png \(", kept["notes"][0])
    with Index.open(tmp_path / "run" / "index") as index:
        assert index.n_items == 15 - facts["validation"]
    assert "could not be read and" in done("evaluate", tmp_path / "run", "--retrieval").err
    assert re.search(r"photo00[79]\.png", typed("predict", tmp_path / "run", photos / "images").line)
    (photos / "images" / "photo007.png").unlink()  # a missing one is not counted as unreadable: it is not there
    said = done("predict", tmp_path / "run", photos / "images", "--skip-bad", "--out", tmp_path / "found.csv")
    assert "Left out photo009.png" in said.err
    assert "29 items, 1 of them unreadable" in said.err
    for n in range(10, 24):
        (photos / "images" / f"photo{n:03}.png").write_bytes(b"junk")
    assert (
        "Left out 5 more: their rows have no probabilities"
        in done("predict", tmp_path / "run", photos / "images", "--skip-bad").err
    )
    row = next(row for row in rows_of((tmp_path / "found.csv").read_text()) if row["id"] == "photo009.png")
    assert row["probability:red"] == ""


# ---- broken off, and taken up again

METHOD = ("--set", "objective.unknown=annotation", "--set", "objective.masking=plm")


@pytest.fixture(scope="module")
def straight(place: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A training that has a state of every kind, and what it leaves undisturbed."""
    folder = tmp_path_factory.mktemp("straight")
    write_table(folder / "holes.csv", *items(unknown=0.3))
    model = ("--set", "model.backbone=mlp", "--set", "model.width=8", "--set", "model.dropout=0.2")
    asked = ("train", "--data", folder / "holes.csv", "--recipe", "bce", *model, *METHOD, *QUICK)
    done(*asked, "--out", folder / "run")
    return asked, left_by(folder / "run", ("config.toml",))


@pytest.mark.parametrize(("epoch", "step"), [(1, 1), (2, 3), (3, 5)])
def test_killed_while_it_trains(straight: Any, tmp_path: Path, epoch: int, step: int, monkeypatch: Any) -> None:
    asked, wanted = straight
    with monkeypatch.context() as patched:
        patched.setattr(learn, "_watch", shot(epoch, step, signal.SIGKILL))
        child = forked(lambda: typed(*asked, "--out", tmp_path / "run"), tmp_path / "note")
        assert waited(child) == -signal.SIGKILL, (tmp_path / "note").read_text()
    assert "unfinished run" in typed("predict", tmp_path / "run", tmp_path).line
    said = done(*asked, "--out", tmp_path / "run")
    if (epoch, step) != (1, 1):
        assert f"Resuming at epoch {epoch}" in said.out
    assert left_by(tmp_path / "run", ("config.toml",)) == wanted


@pytest.mark.parametrize(
    ("what", "when"),
    [("write_model", "before"), ("write_probability_model", "after"), ("write_metrics", "after"), ("finish", "after")],
)
def test_killed_while_it_finishes(straight: Any, tmp_path: Path, what: str, when: str, monkeypatch: Any) -> None:
    asked, wanted = straight
    plain = getattr(RunFolder, what)

    def fatal(self: RunFolder, *given: Any) -> None:
        if when == "after":
            plain(self, *given)
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(RunFolder, what, fatal)
    child = forked(lambda: typed(*asked, "--out", tmp_path / "run"), tmp_path / "note")
    assert waited(child) == -signal.SIGKILL, (tmp_path / "note").read_text()
    monkeypatch.undo()
    if what == "finish":  # all is there but for the room that checkpoints take
        assert RunFolder(tmp_path / "run").is_finished
        assert sy.Run.load(tmp_path / "run").metrics
        return
    done(*asked, "--out", tmp_path / "run")
    assert left_by(tmp_path / "run", ("config.toml",)) == wanted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_by_hand(straight: Any, tmp_path: Path, number: int, monkeypatch: Any) -> None:
    asked, wanted = straight
    with monkeypatch.context() as patched:
        patched.setattr(learn, "_watch", shot(2, 2, number))
        said = typed(*asked, "--out", tmp_path / "run")
    assert said.code == 130
    assert said.line == "steelyard: stopped in epoch 2; run the same command again to continue"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    said = typed(*asked, "--out", tmp_path / "run", "--set", "optimizer.lr=0.5")
    assert "unfinished run with another optimizer.lr: give the same to resume, --overwrite" in said.line
    data = Path(str(asked[2])).read_bytes()
    try:
        Path(str(asked[2])).write_bytes(data.replace(b",0\r\n", b",1\r\n", 1))
        changed = typed(*asked, "--out", tmp_path / "run")
    finally:
        Path(str(asked[2])).write_bytes(data)
    assert "unfinished run on other" in changed.line
    done(*asked, "--out", tmp_path / "run")
    assert left_by(tmp_path / "run", ("config.toml",)) == wanted


@pytest.mark.parametrize("name", ["model.json", "metrics.json", "run.json"])
@pytest.mark.parametrize("problem", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_a_write_that_fails_while_it_finishes(
    straight: Any, tmp_path: Path, name: str, problem: BaseException, monkeypatch: Any
) -> None:
    asked, wanted = straight
    plain = Path.write_bytes

    def failing(self: Path, content: Any) -> int:
        if self.name == name:
            plain(self, content[:10])
            raise problem
        return plain(self, content)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", failing)
        said = typed(*asked, "--out", tmp_path / "run")
    full = f"{tmp_path / 'run' / name}: No space left on device"
    assert said.line == f"steelyard: {full if isinstance(problem, OSError) else 'stopped'}"
    assert not (tmp_path / "run" / name).exists()
    done(*asked, "--out", tmp_path / "run")
    assert left_by(tmp_path / "run", ("config.toml",)) == wanted


# ---- processes


@pytest.mark.parametrize(
    ("rank", "failed", "ends"),
    [(0, "11", ValueError), (1, "11", SystemExit), (1, "01", ValueError), (0, "01", SystemExit), (0, "00", None)],
)
def test_of_several_processes_the_first_that_fails_says_why(
    rank: int, failed: str, ends: type[BaseException] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steelyard.training.distributed.n_processes", lambda: 2)
    monkeypatch.setattr("steelyard.training.group.rank", lambda: rank)
    flags = [torch.tensor([one == "1"]) for one in failed]
    monkeypatch.setattr("steelyard.training.group.gathered", lambda flag: flags if flag == flags[rank] else [])

    def work() -> str:
        if failed[rank] == "1":
            raise ValueError("why")
        return "found"

    if ends is None:
        assert together(work) == "found"
    else:
        with pytest.raises(ends, match="why" if ends is ValueError else "2"):
            together(work)


def test_python_m_steelyard() -> None:
    said = subprocess.run([sys.executable, "-m", "steelyard", "version"], capture_output=True, text=True, check=True)
    assert (said.stdout, said.stderr) == (f"{__version__}\n", "")


def test_two_processes_train_one_run(place: Path, tmp_path: Path) -> None:
    """As under torchrun: the first speaks and writes, and what comes out is what one process makes."""
    plain = ("--set", "optimizer.kind=sgd", "--set", "optimizer.lr=0.5", *QUICK)
    asked = [str(part) for part in ("train", "--data", place / "items.csv", *plain)]
    two = [*asked, "--out", str(tmp_path / "two")]
    first, second = in_two_processes(tmp_path, *two)
    assert (first.code, first.err) == (0, "")
    assert "2 processes share every batch of 32." in first.out
    assert first.out.count("epoch ") == 3
    assert (second.code, second.out, second.err) == (0, "", "")  # the second says nothing
    first, second = in_two_processes(tmp_path, *two)
    refusal = f"steelyard: {tmp_path / 'two'} holds a finished run: give another folder with --out, or --overwrite\n"
    assert (first.code, first.out, first.err) == (2, "", refusal)
    assert (second.code, second.out, second.err) == (2, "", "")
    done(*asked, "--out", tmp_path / "one")
    one, both = (sy.Run.load(tmp_path / name) for name in ("one", "two"))
    x, _ = items(70, 1)
    np.testing.assert_allclose(both.logits(x), one.logits(x), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(both.probability(x), one.probability(x), rtol=1e-4, atol=1e-4)
    losses = [[line["loss"] for line in run.history] for run in (one, both)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert {path.name for path in (tmp_path / "two").iterdir()} == {path.name for path in (tmp_path / "one").iterdir()}


def test_two_processes_that_fail_alike_say_one_line(place: Path, tmp_path: Path) -> None:
    """A loss that diverges in both, and a batch that both cannot share."""
    asked = [str(part) for part in ("train", "--data", place / "items.csv", *QUICK, "--out", tmp_path / "run")]
    for more, why in ((WILD, "not finite"), (("--set", "train.batch_size=33"), "train.batch_size is 33")):
        first, second = in_two_processes(tmp_path, *asked, *more)
        assert first.code == second.code == 2
        (line,) = [found.err for found in (first, second) if found.err]
        assert line.startswith("steelyard: ")
        assert line.count("\n") == 1
        assert why in line


def test_two_processes_of_which_one_fails(place: Path, tmp_path: Path) -> None:
    """Each says a line, neither waits for ever, and none shows a traceback."""
    asked = [str(part) for part in ("train", "--data", place / "items.csv", *QUICK)]
    first, second = in_two_processes(tmp_path, *asked, "--out", str(tmp_path / "lost"), fails=True)
    assert first.code == second.code == 2
    assert second.err == "steelyard: process 1 met a bad item\n"
    noticed = r"steelyard: another process of this training ended, as process 0 noticed: .*\n"
    assert re.fullmatch(noticed, first.err)
    done(*asked, "--out", tmp_path / "lost")  # and it goes on, by one process too
    assert RunFolder(tmp_path / "lost").is_finished
