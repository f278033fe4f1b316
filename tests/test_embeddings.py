"""Embeddings in a file of their own beside a manifest: train, evaluate, predict, search, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import steelyard as sy
from run_data import NAMES, items
from steelyard.data.opening import open_data
from steelyard.data.part import open_part
from typed import done, typed

N = 120


def manifest(folder: Path, y: np.ndarray, splits: bool = True) -> Path:
    path = folder / "labels.csv"
    lines = [",".join(["id", "note", *(["split"] if splits else []), *NAMES])]
    for i, row in enumerate(y):
        part = ["test" if i % 4 == 0 else "train"] if splits else []
        lines.append(",".join([f"item{i}", str(i * 17 % 5), *part, *map(str, row)]))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def given(tmp_path: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    x, y = items(N)
    np.save(tmp_path / "emb.npy", x)
    return manifest(tmp_path, y), x, y


@pytest.mark.parametrize("named", [False, True])
def test_rows_meet_their_items_in_every_part(given: Any, tmp_path: Path, named: bool) -> None:
    path, x, y = given
    file, order = tmp_path / "emb.npy", np.random.default_rng(1).permutation(N)
    if named:  # in another order, and with rows that are not asked for
        file = tmp_path / "emb.npz"
        more = np.concatenate([x[order], np.zeros((1, 5), np.float32)])
        np.savez(file, X=more, ids=np.array([f"item{i}" for i in order] + ["no item"]))
    opened = open_data(path, embeddings=file)
    test = open_part(opened, split="test").data
    at = np.arange(N) % 4 == 0
    np.testing.assert_array_equal(opened.data.inputs, x[~at])
    np.testing.assert_array_equal(test.inputs, x[at])
    np.testing.assert_array_equal(test.labels.values, y[at])
    assert f"the input is the rows of {file}" in opened.note
    assert "'note'" in opened.note, "a column of numbers is not used beside them, and that is said"


def test_a_run_trains_evaluates_predicts_and_searches(given: Any, tmp_path: Path, monkeypatch: Any) -> None:
    path, x, _ = given
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    how = ("--recipe", "bce", "--set", "data.embeddings=emb.npy", "--set", "data.test=test")
    done("train", "--data", path, "--out", out, *how)
    run = sy.Run.load(out)
    assert run.trained.model.input.shape == (5,)
    monkeypatch.chdir("/")  # the run knows where its embeddings lie
    done("evaluate", out)
    done("predict", out, tmp_path / "emb.npy", "--out", tmp_path / "eta.csv")
    assert len((tmp_path / "eta.csv").read_text().splitlines()) == N + 1
    assert "item" in done("search", out, f'"{NAMES[0]}" & ~"{NAMES[1]}"').out
    np.testing.assert_allclose(run.probability(tmp_path / "emb.npy"), run.probability(x), atol=1e-6)
    assert "trained on embeddings" in typed("predict", out, path, "--out", tmp_path / "no.csv").line


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"X": np.zeros((N - 1, 3))}, "119 rows, but the manifest 120 items"),
        ({"X": np.zeros((N, 3)), "ids": np.arange(N)}, "no row for 120 of 120 items"),
        ({"X": np.zeros((N, 3)), "ids": np.array(["item0"] * N)}, "occur twice"),
        ({"X": np.zeros((N, 3)), "ids": np.arange(5)}, "one id per row"),
        ({"X": np.full((N, 3), np.nan)}, r"row 0 \(item 'item0'\) and 119 others hold no finite"),
        ({"X": np.where(np.arange(N)[:, None] == 7, 1e39, 0.0)}, r"row 7 \(item 'item7'\) holds no finite float32"),
        ({"X": np.zeros(N)}, r"one row per item, \(N, D\)"),
        ({"X": np.array([["a"]] * N)}, r"one row per item, \(N, D\)"),
        ({"Y": np.zeros((N, 3))}, "no array X"),
    ],
)
def test_files_that_do_not_fit_are_one_sentence(tmp_path: Path, arrays: dict[str, Any], sentence: str) -> None:
    path = manifest(tmp_path, items(N)[1], splits=False)
    np.savez(tmp_path / "emb.npz", **arrays)
    with pytest.raises(ValueError, match=sentence) as error:
        open_data(path, embeddings=tmp_path / "emb.npz")
    assert "\n" not in str(error.value)


def test_only_one_kind_of_input_is_given(given: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one kind of input"):
        open_data(given[0], embeddings=tmp_path / "emb.npy", features=["note"])
    np.savez(tmp_path / "both.npz", X=given[1], Y=given[2])
    with pytest.raises(ValueError, match="embeddings"):
        open_data(tmp_path / "both.npz", embeddings=tmp_path / "emb.npy")
