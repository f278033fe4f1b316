"""The demo: its data, its runs, its table and page, on few items."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

import steelyard as sy
from steelyard import demo
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


def test_the_data_are_pairs_with_a_long_tail_and_holes() -> None:
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
    demo.Score("first", 80.0, 60.0, 10.0, 9.0, 5.0, 1.0),
    demo.Score("second", 90.0, 50.0, 30.0, 8.0, 6.0, 1.0),
    demo.Score("third", 70.0, 60.0, 20.0, 7.0, 4.0, 1.0),
]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """The demo without its trainings; what `compare` was called with."""
    calls: list[tuple[object, ...]] = []

    def compare(items: object, out: Path, console: Console, seed: int = 0, epochs: int = 16) -> list[demo.Score]:
        calls.append((items, out, seed, epochs))
        console.print("  first: mAP 80.0 in 1 s")
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
        if (row := re.split(r"\s*[┃│|]\s*", line.strip("┃│| "))) and row[0] in ("first", "second", "third")
    }
    assert cells == {
        "first": ["80.0", "60.0*", "10.0", "9.0", "5.0"],
        "second": ["90.0*", "50.0", "30.0*", "8.0", "6.0"],
        "third": ["70.0", "60.0*", "20.0", "7.0*", "4.0*"],
    }
    assert "steelyard inspect DATA" in said
    assert "steelyard train --data DATA" in said
    assert "report.html" in said


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
