"""Runs that are used from another folder than they were trained in, or moved; indexes that are not outdated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import steelyard as sy
from run_data import items, write_photos, write_table
from steelyard.run.locate import run_config
from steelyard.run.search import open_index, outdated
from steelyard.serve.truth import own_truth
from typed import typed as run


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data and a run that was trained with relative paths."""
    home = tmp_path / "project"
    home.mkdir()
    (tmp_path / "elsewhere").mkdir()
    write_table(home / "data.csv", *items(200))
    write_table(home / "more.csv", *items(60, seed=1))
    (home / "prior.csv").write_text("cat,0.4\ndog,0.2\nrare bird,0.1\n")
    monkeypatch.chdir(home)
    sets = ("--set", "data.test=more.csv", "--set", "train.epochs=1", "--deploy-prior", "prior.csv", "--json")
    assert run("train", "--data", "data.csv", "--recipe", "bce", "--out", "runs/one", *sets)[0] == 0
    return home


def test_a_run_finds_its_data_from_another_folder(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
):
    here = run("evaluate", "runs/one", "--json")
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "data.csv").write_text("id,other\na,1\nb,0\n")  # of the same name, and none of its
    there = run("evaluate", project / "runs" / "one", "--json")
    assert here[0] == there[0] == 0
    assert json.loads(here[1]) == json.loads(there[1])
    assert run("calibrate", project / "runs" / "one")[0] == 0
    request.getfixturevalue("pages")
    assert run("report", project / "runs" / "one")[0] == 0
    truth = own_truth(project / "runs" / "one", sy.Run.load(project / "runs" / "one").names)
    assert {part: len(labels) for part, labels in truth.parts.items()}["test"] == 60


def test_a_run_that_was_moved_with_its_data(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = run("evaluate", "runs/one", "--json")[1]
    monkeypatch.chdir(tmp_path)
    moved = project.rename(tmp_path / "moved")
    assert run_config(moved / "runs" / "one").data.path == str(moved / "data.csv")
    code, after, _ = run("evaluate", moved / "runs" / "one", "--json")
    assert code == 0
    assert json.loads(after.replace(str(moved), str(project))) == json.loads(before)
    (moved / "data.csv").unlink()
    code, _, err = run("evaluate", moved / "runs" / "one")
    assert code == 2
    assert str(project / "data.csv") in err
    assert "--data" in err


def test_an_unfinished_run_goes_on_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_table(tmp_path / "data.csv", *items(200))
    monkeypatch.chdir(tmp_path)
    words = ("--recipe", "bce", "--set", "train.epochs=2", "--json")
    assert run("train", "--data", "data.csv", *words, "--out", "run")[0] == 0
    (tmp_path / "run" / "run.json").unlink()  # as if it was broken off before its last step
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run("train", tmp_path / "run" / "config.toml", "--out", tmp_path / "run", "--json")[0] == 0
    assert (tmp_path / "run" / "run.json").exists()


def test_images_named_by_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    photos = write_photos(tmp_path / "photos", 30)
    (photos / "labels.csv").rename(tmp_path / "labels.csv")
    monkeypatch.chdir(tmp_path)
    words = ("--set", "train.epochs=1", "--set", "model.backbone=resnet12", "--set", "data.size=16", "--json")
    data = ("--data", "labels.csv", "--images", "photos/images")
    assert run("train", *data, "--recipe", "bce", *words, "--out", "r")[0] == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run("evaluate", tmp_path / "r", "--json")[0] == 0


def test_thresholds_do_not_make_an_index_outdated(project: Path):
    def beware() -> str:
        with open_index("runs/one") as index:
            return outdated(index, "runs/one")

    assert beware() == ""
    assert run("calibrate", "runs/one", "--keep", "--json")[0] == 0
    assert beware() == ""
    assert run("calibrate", "runs/one", "--keep", "--thresholds", "half", "--json")[0] == 0
    assert beware() == ""
    code, _, err = run("search", "runs/one", "cat")
    assert code == 0
    assert "Beware" not in err
    (project / "other.csv").write_text("cat,0.1\ndog,0.6\nrare bird,0.3\n")
    assert run("calibrate", "runs/one", "--keep", "--deploy-prior", "other.csv", "--json")[0] == 0
    assert "Beware" in beware()  # other probabilities
