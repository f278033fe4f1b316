"""From predictions to a search: `predict` into an index, by onnxruntime and by Spark, `evaluate --retrieval`."""

from __future__ import annotations

import csv
import json
import shutil
from importlib.util import find_spec
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

import steelyard as sy
from run_data import NAMES, items, write_photos, write_table
from steelyard.run import index as run_index
from steelyard.search import Index
from typed import done, typed

QUICK = ("--set", "train.epochs=2", "--set", "train.batch_size=32")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one table, `bce` and `spa`, and one of photos, `pictures`."""
    folder = tmp_path_factory.mktemp("searched")
    write_table(folder / "items.csv", *items())
    write_table(folder / "new.csv", *items(70, 1))
    write_photos(folder / "photos", 24)
    for recipe in ("bce", "spa"):
        done("train", "--data", folder / "items.csv", "--recipe", recipe, "--out", folder / recipe, *QUICK)
    small = ("--set", "model.backbone=small", "--set", "data.size=12")
    done("train", "--data", folder / "photos", "--out", folder / "pictures", *small, *QUICK)
    return folder


def read(path: Path) -> tuple[list[str], np.ndarray]:
    """Ids and probabilities of a wide CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    eta = [[float(v) for key, v in row.items() if key.startswith("probability:")] for row in rows]
    return [row["id"] for row in rows], np.array(eta, np.float32)


# ---- into an index


def test_predicted_items_are_found(place: Path, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    run, index, images = place / "pictures", tmp_path / "deep" / "index", place / "photos" / "images"
    said = done("predict", run, images, "--index", index, "--out", tmp_path / "p.csv")
    assert said.out == ""
    assert said.err == f"24 items in {tmp_path / 'p.csv'} and {index}.\n"
    ids, eta = read(tmp_path / "p.csv")
    with Index.open(index) as found:
        assert found.n_items == 24
        np.testing.assert_array_equal(found.rows(ids), eta)
        assert [found.path(name) for name in ids] == [str(images / name) for name in ids]
        names = found.names
    hits = json.loads(done("search", index, f"{names[0]} & ~{names[1]}", "-k", 3, "--json").out)["hits"]
    score = eta[:, 0].astype(float) * (1 - eta[:, 1].astype(float))
    assert [hit["id"] for hit in hits] == [ids[i] for i in sorted(range(24), key=lambda i: (-score[i], ids[i]))[:3]]


def test_more_items_are_added_and_the_same_replaced(place: Path, tmp_path: Path) -> None:
    run, index, images = place / "pictures", tmp_path / "index", tmp_path / "here"
    shutil.copytree(place / "photos" / "images", images)
    assert done("predict", run, images, "--index", index).err == f"24 items in {index}.\n"
    with Index.open(index) as before:
        old = before.rows(["photo000.png", "photo001.png"])
    (images / "photo000.png").write_bytes((images / "photo001.png").read_bytes())
    (images / "later").mkdir()
    shutil.copy(images / "photo002.png", images / "later" / "new.png")
    assert done("predict", run, images, "--index", index).err == f"25 items in {index}, 24 replaced.\n"
    with Index.open(index) as after:
        assert after.n_items == 25
        np.testing.assert_array_equal(after.rows(["photo000.png", "photo001.png"]), old[[1, 1]])
        assert "later/new.png" in after
    shutil.copytree(images / "later", tmp_path / "elsewhere")
    done("predict", run, tmp_path / "elsewhere", "--index", index)
    with Index.open(index) as wide:
        assert wide.n_items == 26
        assert wide.path("new.png") == str(tmp_path / "elsewhere" / "new.png")


def test_steps_make_the_index_that_one_makes(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    for folder, cells in (("one/index", 1 << 26), ("several", 60)):
        monkeypatch.setattr(run_index, "_CELLS", cells)
        done("predict", place / "bce", place / "new.csv", "--index", tmp_path / folder, "--batch-size", 8)
    ids = [f"item{i}" for i in range(70)]
    with Index.open(tmp_path / "one" / "index") as one, Index.open(tmp_path / "several") as several:
        assert several.generation > one.generation
        assert (one.n_items, several.n_items) == (70, 70)
        np.testing.assert_array_equal(one.rows(ids), several.rows(ids))
        assert {**one.notes} == {**several.notes}
        assert one.path("item3") is None


def test_an_index_of_another_model_or_calibration_is_refused(place: Path, tmp_path: Path) -> None:
    run, index = tmp_path / "run", tmp_path / "run" / "index"
    shutil.copytree(place / "bce", run)
    done("predict", run, place / "new.csv", "--index", index)
    assert done("search", run, "cat").err == ""
    refused = "holds probabilities of another model or calibration: give another folder, or drop them with --overwrite"
    assert refused in typed("predict", place / "spa", place / "new.csv", "--index", index).line
    done("calibrate", run, "--data", place / "items.csv", "--kind", "temperature")
    assert refused in typed("predict", run, place / "new.csv", "--index", index).line
    said = done("search", run, "cat")
    assert "Beware: the index was made before the run was trained or calibrated again" in said.err
    assert done("search", index, "cat").err == ""  # the index alone is no run that it could be behind
    assert "160" not in done("search", run, "cat").out
    done("predict", run, place / "new.csv", "--index", index, "--overwrite")
    assert "70 items" in done("search", run, "cat").out
    with Index.open(index) as found:
        x, _ = items(70, 1)
        np.testing.assert_array_equal(found.rows([f"item{i}" for i in range(70)]), sy.Run.load(run).probability(x))


def test_what_cannot_be_indexed_is_told_before_any_work(place: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("steelyard.predict.prediction.pour", lambda *_: pytest.fail("it worked first"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all there is")
    new = ("predict", place / "bce", place / "new.csv")
    assert "holds 'thesis.txt' and is no index" in typed(*new, "--index", tmp_path / "mine").line
    assert "thesis.txt is a file" in typed(*new, "--index", tmp_path / "mine" / "thesis.txt").line
    assert "--overwrite empties an index" in typed(*new, "--overwrite").line
    assert "--runtime is 'tensorrt': choose one of torch, onnx" in typed(*new, "--runtime", "tensorrt").line
    assert "--engine is 'dask': choose one of local, spark" in typed(*new, "--engine", "dask").line


def test_an_id_twice_leaves_the_index_as_it_was(place: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    done("predict", place / "bce", place / "new.csv", "--index", index)
    lines = (place / "new.csv").read_text().splitlines()
    (tmp_path / "twice.csv").write_text("\n".join([*lines[:4], lines[2]]) + "\n")
    out = tmp_path / "p.csv"
    assert "item1" in typed("predict", place / "bce", tmp_path / "twice.csv", "--index", index, "--out", out).line
    assert not out.exists()
    with Index.open(index) as found:
        assert (found.n_items, found.generation) == (70, 1)


# ---- other engines


@pytest.mark.onnx
@pytest.mark.skipif(find_spec("onnxruntime") is None or find_spec("onnxscript") is None, reason="no extra export")
def test_onnxruntime_predicts_what_torch_does(place: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(place / "pictures", run)
    by_onnx = ("predict", run, place / "photos" / "images", "--runtime", "onnx")
    assert f"write it with steelyard export {run}" in typed(*by_onnx).line
    said = done("export", run).out.splitlines()
    assert said[0].startswith(f"Written: {run / 'model.onnx'} (")
    apart = float(said[1].split("differ by ")[1].split(" ")[0])
    assert 0 <= apart < 1e-5
    assert len(done("export", run, "--no-check").out.splitlines()) == 1
    done(*by_onnx, "--out", tmp_path / "onnx.csv", "--index", tmp_path / "index")
    done("predict", run, place / "photos" / "images", "--out", tmp_path / "torch.csv")
    ids, eta = read(tmp_path / "onnx.csv")
    wanted_ids, wanted = read(tmp_path / "torch.csv")
    assert ids == wanted_ids
    np.testing.assert_allclose(eta, wanted, atol=1e-5)
    with Index.open(tmp_path / "index") as found:
        np.testing.assert_array_equal(found.rows(ids), eta)
    done("predict", run, place / "photos" / "images", "--index", tmp_path / "index")  # of the same model: taken
    assert "--runtime onnx runs on the CPU" in typed(*by_onnx, "--device", "cuda").line
    done("calibrate", run, "--data", place / "photos", "--kind", "temperature")
    assert "is older than the run" in typed(*by_onnx).line


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "--engine spark writes a folder of Parquet files: name it with --out"),
        (("--index", "x"), "--index is 'x', but Spark writes no index"),
        (("--form", "long"), "--form is 'long', but Spark writes the wide form only"),
        (("--top", "3"), "--top is 3, but Spark writes the wide form only"),
        (("--device", "cuda"), "--device is 'cuda', but Spark scores on the CPUs"),
        (("--runtime", "onnx"), "--runtime is 'onnx', but Spark scores with torch"),
    ],
)
def test_what_spark_cannot_do_is_told_without_it(place: Path, options: tuple[str, ...], says: str) -> None:
    assert says in typed("predict", place / "bce", "items.parquet", "--engine", "spark", *options).line


def test_spark_reads_no_standard_input(place: Path) -> None:
    line = typed("predict", place / "bce", "-", "--engine", "spark", "--out", "x").line
    assert "DATA is -, but Spark reads Parquet files" in line


# ---- searching with several runs


def by_hand(eta: np.ndarray, y: np.ndarray, n_terms: int) -> list[float]:
    found = []
    for labels in combinations(range(eta.shape[1]), n_terms):
        for wanted in product((True, False), repeat=n_terms):
            right = (y[:, labels] == np.array(wanted)).all(1)
            if any(wanted) and right.any():
                score = np.where(wanted, eta[:, labels].astype(float), 1 - eta[:, labels].astype(float)).prod(1)
                found.append(float(average_precision_score(right, score)))
    return found


def test_runs_are_compared_by_searching_with_them(place: Path, tmp_path: Path) -> None:
    runs = (place / "bce", place / "spa")
    data = ("--data", place / "new.csv")
    found = json.loads(done("evaluate", *runs, "--retrieval", *data, "--json").out)
    x, y = items(70, 1)
    assert [run["name"] for run in found["runs"]] == ["bce", "spa"]
    assert (found["items"], found["labels"]) == (70, len(NAMES))
    for folder, run in zip(runs, found["runs"], strict=True):
        eta = sy.Run.load(folder).probability(x)
        for n in (1, 2, 3):
            assert run["by_terms"][str(n)]["mAP"] == pytest.approx(np.mean(by_hand(eta, y, n)), abs=1e-9)
    said = done("evaluate", place / "bce", "--retrieval", *data).out
    assert f"{100 * found['runs'][0]['by_terms']['2']['mAP']:.1f}" in said
    own = json.loads(done("evaluate", *runs, "--retrieval", "--json").out)  # the items that both held out
    assert own["items"] == 16


def test_the_page_of_a_comparison(place: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page = tmp_path / "search.html"
    said = done("evaluate", place / "bce", place / "spa", "--retrieval", "--data", place / "new.csv", "--html", page)
    assert said.out.rstrip().endswith(f"A page with the plot is in {page}.")
    text = page.read_text(encoding="utf-8")
    assert "on 70 items with 3 labels" in text
    assert text.count("<img") == 1


def test_mistakes_of_a_comparison(place: Path, tmp_path: Path) -> None:
    two = ("evaluate", place / "bce", place / "spa")
    assert "compare them with --retrieval, or evaluate one at a time" in typed(*two).line
    assert "--html is given, but only --retrieval draws" in typed("evaluate", place / "bce", "--html", "x.html").line
    assert "--bootstrap is given" in typed(*two, "--retrieval", "--bootstrap", 10).line
    assert "is given more than once" in typed("evaluate", place / "bce", place / "bce", "--retrieval").line
    assert "do not both have the label" in typed("evaluate", place / "bce", place / "pictures", "--retrieval").line
    assert "cannot be written" in typed(*two, "--retrieval", "--html", tmp_path / "no" / "x.html").line
