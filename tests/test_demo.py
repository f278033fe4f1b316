"""The demo: its data, its runs, its table and page, on few items."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import steelyard as sy
from steelyard.demo import digits as demo
from steelyard.folder.run_folder import RunFolder
from typed import done, typed


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[demo.Score], str]:
    """Six recipes on few items: the folder, the scores, and what was said on the way."""
    pytest.importorskip("matplotlib", reason="the pages need matplotlib")
    out = tmp_path_factory.mktemp("demo")
    said = io.StringIO()
    scores = demo.compare(demo.datasets(260, 200), out, Console(file=said, width=100), epochs=2)
    return out, scores, said.getvalue()


def test_the_data_are_pairs_with_a_long_tail_and_unknown_labels() -> None:
    data = demo.datasets(1500, 600)
    again = demo.datasets(1500, 600)
    assert np.array_equal(data.train.inputs, again.train.inputs)
    assert np.array_equal(data.train.labels.values, again.train.labels.values)
    assert data.train.inputs.shape == (1500, 1, demo.CANVAS, demo.CANVAS)
    assert data.train.inputs.dtype == np.uint8
    assert data.train.labels.unknown_rate == pytest.approx(0.4, abs=0.02)
    assert data.test.labels.unknown_rate == 0
    per_item = (data.test.labels.values == 1).sum(1)
    assert set(per_item.tolist()) == {1, 2}
    counts = data.test.labels.counts
    assert counts[0] > 8 * counts[9] > 0
    assert not np.array_equal(data.train.inputs, demo.datasets(1500, 600, seed=1).train.inputs)


def test_what_is_drawn_is_what_is_labelled_and_no_digit_is_in_both_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen digits of one pixel each, told apart by how bright it is."""
    images = np.zeros((16, 8, 8))
    images[:, 3, 3] = np.arange(1, 17)
    target = np.arange(16) % 10
    monkeypatch.setattr(demo, "load_digits", lambda: SimpleNamespace(images=images, target=target))
    which = {round(v * 255 / 16): v - 1 for v in range(1, 17)}
    drawn: dict[bool, set[int]] = {}
    for train in (True, False):
        data = demo.digit_pairs(400, train=train)
        drawn[train] = set()
        for image, row in zip(data.inputs, data.labels.values, strict=True):
            digits = [which[int(v)] for v in image[image > 0]]
            classes = set(target[digits].tolist())
            assert classes <= set(np.flatnonzero(row).tolist())
            assert len(digits) < 2 or classes == set(np.flatnonzero(row).tolist())
            drawn[train].update(digits)
    assert not drawn[True] & drawn[False]
    assert drawn[True] | drawn[False] == set(range(16))


def test_every_recipe_leaves_a_run(compared: tuple[Path, list[demo.Score], str]) -> None:
    out, scores, said = compared
    assert [score.name for score in scores] == list(demo.RECIPES)
    for score, recipe in zip(scores, demo.RECIPES.values(), strict=True):
        run = sy.Run.load(out / recipe)
        found = run.metrics["test"]
        assert score.map == pytest.approx(100 * found["mAP"]["label"])
        assert score.f1 == pytest.approx(100 * found["macro"]["f1"])
        assert score.tail_f1 == pytest.approx(100 * found["rarest"]["3"]["macro"]["f1"])
        assert score.ace == pytest.approx(100 * found["calibration"]["pooled"]["width"]["ace"])
        assert score.ace_by_sigmoid == pytest.approx(100 * found["plain_sigmoid"]["calibration"]["pooled"]["ace"])
        assert found["items"] == 200
        assert run.metrics["validation"]["items"] == 39
        assert f"{score.name}: mAP {score.map:.1f} in" in said
        assert RunFolder(out / recipe).is_finished


def test_one_page_compares_them(compared: tuple[Path, list[demo.Score], str]) -> None:
    out, scores, _ = compared
    page = (out / "report.html").read_text()
    for name, recipe in demo.RECIPES.items():
        assert name in page
        assert f'href="{recipe}/report.html"' in page
    assert "<img" in page
    assert f"{scores[0].map:.1f}" in page


SCORES = [
    demo.Score("BCE", 80.0, 60.0, 10.0, 9.0, 5.0, 1.0),
    demo.Score("PLM", 90.0, 50.0, 30.0, 8.0, 6.0, 1.0),
    demo.Score("DB-Focal", 70.0, 60.0, 20.0, 7.0, 4.0, 1.0),
]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """The demo without its trainings; what `compare` was called with."""
    calls: list[tuple[object, ...]] = []

    def compare(items: object, out: Path, console: Console, seed: int = 0, epochs: int = 16) -> list[demo.Score]:
        calls.append((items, out, seed, epochs))
        console.print("  BCE: mAP 80.0 in 1 s")
        return SCORES

    monkeypatch.setattr(demo, "compare", compare)
    monkeypatch.setattr(demo, "datasets", lambda seed: f"data of seed {seed}")
    return calls


def test_the_table_marks_the_best(
    short: list[tuple[object, ...]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    demo.show(3, str(tmp_path / "out"), as_json=False)
    said = capsys.readouterr().out
    assert short == [("data of seed 3", tmp_path / "out", 3, 16)]
    header = next(line for line in said.splitlines() if "recipe" in line and "mAP" in line)
    titles = ["recipe", "mAP", "F1", "F1 of rarest 3", "ACE by σ", "ACE"]
    assert re.split(r"\s*[┃│|]\s*", header.strip("┃│| ")) == titles
    cells = {
        row[0]: row[1:]
        for line in said.splitlines()
        if (row := re.split(r"\s*[┃│|]\s*", line.strip("┃│| "))) and row[0] in ("BCE", "PLM", "DB-Focal")
    }
    assert cells == {
        "BCE": ["80.0", "60.0*", "10.0", "9.0", "5.0"],
        "PLM": ["90.0*", "50.0", "30.0*", "8.0", "6.0"],
        "DB-Focal": ["70.0", "60.0*", "20.0", "7.0*", "4.0*"],
    }
    assert "steelyard inspect DATA" in said
    assert "steelyard train --data DATA" in said
    assert "report.html" in said
    last = said.splitlines()[-1].strip()
    assert last == f"steelyard serve {tmp_path / 'out' / 'plm'} --images {tmp_path / 'out' / 'images'}"  # the best mAP


def test_commands_that_are_not_on_the_path_are_shown_with_theirs(
    short: list[tuple[object, ...]],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("duckdb", reason="the index needs duckdb")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", [".venv/bin/steelyard", "demo"])
    demo.show(0, str(tmp_path / "out"), as_json=False)
    printed = capsys.readouterr().out
    assert "own data: .venv/bin/steelyard inspect DATA" in printed
    assert f".venv/bin/steelyard serve {tmp_path / 'out' / 'plm'}" in printed


def test_the_page_of_the_last_line_shows_the_digits(compared: tuple[Path, list[demo.Score], str]) -> None:
    pytest.importorskip("duckdb", reason="the index needs duckdb")
    pytest.importorskip("fastapi", reason="the page needs fastapi")
    from fastapi.testclient import TestClient

    from steelyard.serve import make_app

    out, _, _ = compared
    data = demo.datasets(260, 200).test
    with TestClient(make_app(out / "plm", images=out / "images"), base_url="http://127.0.0.1") as client:
        hits = client.get("/api/search", params={"present": "0", "k": 100}).json()["hits"]
        assert {hit["id"] for hit in hits} < set(data.labels.ids)
        shown = client.get("/api/thumbnail", params={"id": hits[0]["id"], "size": "large"})
    _, (above, below), (left, right) = demo.MARGINS
    side = (left + demo.CANVAS + right, above + demo.CANVAS + below)
    image = np.asarray(Image.open(io.BytesIO(shown.content)).convert("L").resize(side), float)
    image = image[above:-below, left:-right]
    drawn = data.inputs[list(data.labels.ids).index(hits[0]["id"]), 0].astype(float)
    assert np.corrcoef(image.ravel(), drawn.ravel())[0, 1] > 0.95
    digits = np.flatnonzero(data.labels.values[list(data.labels.ids).index(hits[0]["id"])] == 1)
    assert set(hits[0]["id"].split("-")[1:]) == set(map(str, digits))


def test_without_duckdb_no_search_is_promised(
    short: list[tuple[object, ...]], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    demo.show(0, str(tmp_path), as_json=False)
    assert "steelyard serve" not in capsys.readouterr().out


def test_drawn_scenes_have_a_table_with_a_share_of_empty_cells(tmp_path: Path) -> None:
    def drawn(name: str, *options: object) -> list[list[str]]:
        told = done("demo", "--scenes", tmp_path / name, "--items", 30, *options)
        assert told.out.strip() == str(tmp_path / name / "labels.csv")
        assert len(list((tmp_path / name / "images").glob("*.jpg"))) == 30
        return [line.split(",")[1:] for line in (tmp_path / name / "labels.csv").read_text().splitlines()[1:]]

    full, some = drawn("full"), drawn("some", "--unknown", 0.3)
    pairs = [(a, b) for rows in zip(full, some, strict=True) for a, b in zip(*rows, strict=True)]
    empty = [b == "" for _, b in pairs]
    assert 0.2 < sum(empty) / len(empty) < 0.4
    assert all(a in "01" and b in ("", a) for a, b in pairs)
    for options in (["--items", 0], ["--unknown", 1]):
        assert str(options[0]) in typed("demo", "--scenes", tmp_path / "other", *options).line
    assert "exists already" in typed("demo", "--scenes", tmp_path / "full").line


def test_without_matplotlib_no_page_is_promised(
    short: list[tuple[object, ...]], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "has_matplotlib", lambda: False)
    demo.show(0, str(tmp_path), as_json=False)
    assert "report.html" not in capsys.readouterr().out


def test_scores_as_json(short: list[tuple[object, ...]]) -> None:
    said = done("demo", "--json", "--seed", 5, "--out", "somewhere")
    assert json.loads(said.out) == [score._asdict() for score in SCORES]
    assert list(json.loads(said.out)[0]) == ["name", "map", "f1", "tail_f1", "ace_by_sigmoid", "ace", "seconds"]
    assert "handwritten digits" in said.err  # what is for people does not spoil what is for programs
    assert short == [("data of seed 5", Path("somewhere"), 5, 16)]


def test_a_folder_of_others_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "an").mkdir()
    (tmp_path / "an" / "thesis.tex").write_text("years of work")
    few = demo.datasets(120, 60)
    monkeypatch.setattr(demo, "datasets", lambda seed: few)
    assert "thesis.tex" in typed("demo", "--out", tmp_path).line
    assert (tmp_path / "an" / "thesis.tex").read_text() == "years of work"
