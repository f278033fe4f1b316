"""`steelyard search`: the table, JSON, contact sheets, explanations, and the index that a run writes."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from small_run import NAMES as RUN_NAMES
from small_run import items, saved_run, small_run
from steelyard.report import contact_sheet
from steelyard.report.contact_sheet import thumbnail
from steelyard.run.index import index_of
from steelyard.run.search import find, open_index
from steelyard.search import Index, QueryError

pytest.importorskip("duckdb")

NAMES = ["dog", "car", "<b>x</b>", "a\nb"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An index of four items: two images, a broken one, and one without a file."""
    for name, color in (("red.png", "red"), ("<i>.png", "blue")):
        Image.new("RGB", (40, 20), color).save(tmp_path / name)
    (tmp_path / "broken.png").write_bytes(b"no image")
    ids = ["red.png", "<i>.png", "broken.png", "nowhere\x1b[1m"]
    eta = [[0.9, 0.5, 0.1, 0.2], [0.8, 0.0, 0.2, 0.3], [0.5, 0.25, 0.3, 0.4], [0.0001, 0.5, 0.4, 0.5]]
    paths = [str(tmp_path / name) for name in ids[:3]]
    Index.build(tmp_path / "index", ids, eta, NAMES, [*paths, None]).close()
    return tmp_path / "index"


def test_the_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    find(str(folder), "dog & ~car", 3)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["score", "dog", "~car", "item"]
    assert [line.split() for line in lines[1:4]] == [
        ["1", ".8000", ".800", ".000", "<i>.png"],
        ["2", ".4500", ".900", ".500", "red.png"],
        ["3", ".3750", ".500", ".250", "broken.png"],
    ]
    assert lines[4] == "3 of 4 items"


def test_nothing_found_small_scores_and_strange_names(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    find(str(folder), "dog > 0.95")
    assert capsys.readouterr().out == "None of 4 items fits dog > 0.95.\n"
    find(str(folder), "dog & ~dog")
    assert capsys.readouterr().out == "None of 4 items fits dog & ~dog.\n"
    find(str(folder), "car", as_json=True)
    assert "<i>.png" not in {hit["id"] for hit in json.loads(capsys.readouterr().out)["hits"]}  # its η is 0
    find(str(folder), 'dog "a\nb" "<b>x</b>"')
    out = capsys.readouterr().out
    assert "2.0e-05" in out
    assert '"a·b"' in out
    assert "\x1b" not in out


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    find(str(folder), "dog -car", 2, as_json=True, explain=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["query"], found["items"]) == ("dog & ~car", 4)
    first, second = found["hits"]
    assert first["id"] == "<i>.png"
    assert first["path"] == str(folder.parent / "<i>.png")
    assert first["probabilities"] == {"dog": float(np.float32(0.8)), "car": 0.0}
    assert second["steps"][0] == {"depth": 0, "text": "all, the product of", "value": second["score"]}
    find(str(folder), "dog", 4, as_json=True)
    last = json.loads(capsys.readouterr().out)["hits"][-1]
    assert last["path"] is None
    assert "steps" not in last


def test_explanations(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    find(str(folder), "dog & ~car & dog > 0.6", 1, explain=True)
    out = capsys.readouterr().out
    assert re.search(r"^0\.8 +~?dog|^0\.8 +all, the product of", out, re.M)
    assert "~car = 1 − 0" in out
    assert "dog > 0.6: holds" in out


def test_a_picture(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sheet.PNG"
    find(str(folder), "dog", 4, sheet=str(path))
    assert "sheet.PNG" in capsys.readouterr().err
    with Image.open(path) as sheet:
        assert sheet.width == 12 + 4 * 236
        colors = {color for _, color in sheet.convert("RGB").getcolors(1 << 20) or []}
    assert {(255, 0, 0), (0, 0, 255)} <= colors
    find(str(folder), "dog > .95", sheet=str(path))
    with Image.open(path) as sheet:
        assert sheet.size[0] > 0


def test_a_sheet_is_bounded_and_says_what_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    eta = np.linspace(1, 0.1, 620)[:, None]
    Index.build(tmp_path / "index", [f"i{i:03d}" for i in range(620)], eta, ["dog"]).close()
    find(str(tmp_path / "index"), "dog", 620, sheet=str(tmp_path / "a.html"))
    text, said = (tmp_path / "a.html").read_text(), "The first 500 are shown, 120 are left out."
    assert text.count("<figure") == 500
    assert "i499" in text
    assert "i500" not in text
    assert said in text
    assert said in " ".join(capsys.readouterr().err.split())
    find(str(tmp_path / "index"), "dog", 500, sheet=str(tmp_path / "a.html"))
    assert "left out" not in (tmp_path / "a.html").read_text() + capsys.readouterr().err
    monkeypatch.setattr(contact_sheet, "MOST", 5)
    heights = {}
    for k in (5, 100):
        find(str(tmp_path / "index"), "dog", k, sheet=str(tmp_path / "a.png"))
        with Image.open(tmp_path / "a.png") as sheet:
            heights[k] = sheet.height
    assert heights[100] == heights[5] + 16  # the line that says so


def test_a_page(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "sheet.html"
    find(str(folder), 'dog "<b>x</b>"', 4, sheet=str(path))
    text = path.read_text()
    assert text.count("data:image/jpeg;base64,") == 2
    assert text.count("no image") == 2
    assert "<b>x" not in text
    assert "<i>.png" not in text
    assert "&lt;i&gt;.png" in text
    assert "http:" not in text
    assert "https:" not in text


def test_a_thumbnail_keeps_its_shape(tmp_path: Path) -> None:
    for size in ((40, 20), (4000, 2000)):
        Image.new("RGB", size).save(tmp_path / "wide.png")
        found = thumbnail(str(tmp_path / "wide.png"), 100)
        assert found.size == (100, 50)
    assert thumbnail(None) is None
    assert thumbnail("/nowhere/at/all.png") is None


def test_mistakes(folder: Path, tmp_path: Path) -> None:
    for arguments, says in (
        ((str(tmp_path / "gone"), "dog"), "is not a folder"),
        ((str(tmp_path), "dog", 3, False, "x.gif"), r"ends in none of \.png"),
        ((str(folder), "dog", 3, False, str(tmp_path / "no" / "x.png")), "cannot be written"),
        ((str(folder), "dog", 0), "k is 0"),
        ((str(folder), "dog", 3, False, None, False, "sqlite"), "choose one of duckdb, spark"),
    ):
        with pytest.raises(ValueError, match=says):
            find(*arguments)
    with pytest.raises(QueryError, match="did you mean dog"):
        find(str(folder), "dgo")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="neither a run nor an index"):
        find(str(tmp_path / "empty"), "dog")


def test_the_index_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = small_run()
    run = saved_run(tmp_path / "run", trained)
    with pytest.raises(ValueError, match="has no index yet: make one with steelyard predict"):
        open_index(run.path)
    data = items(30)
    eta = trained.probability_model.probability(trained.model(torch_of(data)).detach()).numpy()
    paths = [tmp_path / "photos" / f"{i}.jpg" if i else None for i in range(30)]
    index_of(run.load(), data.labels.ids, eta, paths, run / "index").close()
    index_of(run.load(), data.labels.ids, eta, paths, run / "index").close()  # again: it is replaced
    with open_index(run.path) as index:
        assert index.names == RUN_NAMES
        np.testing.assert_array_equal(index.rows(list(data.labels.ids)), eta)
        assert index.path("3") == str(tmp_path / "photos" / "3.jpg")
        assert index.path("0") is None
        notes = index.notes
    assert notes["calibration"] == hashlib.sha256((run / "calibration.json").read_bytes()).hexdigest()
    assert re.fullmatch("[0-9a-f]{64}", notes["model"])
    assert "images" not in notes  # whoever serves the index names the folder of images
    assert notes["run"] == str(run.path)
    find(str(run.path), 'cat & ~dog & "a, b" < 0.9', 3)
    assert "3 of 30 items" in capsys.readouterr().out


def torch_of(data: object) -> object:
    import torch

    return torch.from_numpy(data.inputs)  # type: ignore[attr-defined]


def test_spark_is_asked_where_it_is_wanted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Other:
        def __init__(self, index: object) -> None:
            pass

        def top(self, sql: object, k: int, offset: int) -> list[object]:
            asked.append((sql, k, offset))
            return []

    monkeypatch.setattr("steelyard.predict.spark_search.Spark", Other)
    find(str(folder), "dog", 7, engine="spark")
    assert [(k, offset) for _, k, offset in asked] == [(7, 0)]
