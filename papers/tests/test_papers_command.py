"""`steelyard reproduce` as people type it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from steelyard_papers import beyond, command, generated, report
from steelyard_papers.claims import best_row
from steelyard_papers.command import CATALOGUE, PAPERS
from steelyard_papers.result import Result
from typed import typed as run

typed = partial(run, "reproduce")


def test_the_list_says_data_time_and_command_of_everything(tmp_path: Path) -> None:
    code, out, _ = typed("--list", "--data", tmp_path)
    assert code == 0
    for name, entry in CATALOGUE.items():
        assert f"  {name} " in out
        assert entry.title in out
    assert "MNIST (not there)" in out
    assert "steelyard reproduce plm-table1 --data FOLDER" in out
    assert "BCE F1 80.35" in out
    generated.mnist(tmp_path)
    assert "MNIST (not there)" not in typed("--list", "--data", tmp_path)[1]


def test_the_list_as_json(tmp_path: Path) -> None:
    said = json.loads(typed("--list", "--json", "--data", tmp_path)[1])
    assert [entry["name"] for entry in said] == list(CATALOGUE)
    assert {"paper", "title", "needs", "expected", "minutes", "command", "note"} < set(said[0])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plm-table2",), "plm-table2 needs COCO 2014 (COCO 2014: annotations/"),
        (("plm-tabel1",), "did you mean plm-table1?"),
        (("nothing",), "see steelyard reproduce --list"),
        (("plm-table1", "--smoke", "--rows", "XYZ"), "there is no row 'XYZ': choose from 'BCE', 'Focal'"),
        (("plm-table1", "--smoke", "--set", "train.epoch=3"), "did you mean train.epochs?"),
        (("plm-table1", "--seeds", "0"), "--seeds is 0"),
        (("--dashboard", "not-there"), "not-there is not a folder"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    code, _, err = typed(*words, "--data", tmp_path)
    assert code == 2
    assert err.count("\n") == 1
    assert err.startswith("steelyard: ")
    assert said in err


def test_a_smoke_run_writes_json_a_page_and_a_picture(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said, err = typed("plm-fig2", "--smoke", "--set", "train.epochs=2", "--out", out)
    assert code == 0, err
    found = Result.load(out / "plm-fig2.json")
    assert found.command == "steelyard reproduce plm-fig2 --smoke --set train.epochs=2"
    assert found.changed == ("train.epochs=2",)
    assert found.data.startswith("generated, and of no meaning")
    assert (out / "plm-fig2.svg").read_text().startswith("<?xml")
    assert "![" in (out / "plm-fig2.md").read_text()
    assert said.count("trained in") == 2
    assert "trained in" not in typed("plm-fig2", "--smoke", "--set", "train.epochs=2", "--out", out)[1]


def test_real_layouts_run_with_seeds_rows_and_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steelyard_papers.plm.N_MAX", generated.MNIST_N_MAX)
    generated.mnist(tmp_path)
    small = ("--set", "train.epochs=1", "--set", "model.backbone=small", "--set", "train.device=cpu")
    words = ("plm-table1", "--data", tmp_path, "--out", tmp_path / "out", "--seeds", "2", "--rows", "BCE", *small)
    code, out, err = typed(*words, "--note", "a copy", "--json")
    assert code == 0, err
    found = Result.from_json(out)
    assert [row.name for row in found.rows] == ["BCE"]
    assert found.seeds == (0, 1)
    assert found.rows[0].std("F1") is not None
    assert found.data.endswith("a copy")
    assert str(tmp_path) not in out  # what is committed names no folder of a machine
    table = typed(*words)[1]
    assert "| BCE | " in table
    assert "80.3 → " in table


def test_all_passes_over_what_has_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = {name: CATALOGUE[name] for name in ("plm-table1", "plm-fig6")}
    monkeypatch.setattr(command, "CATALOGUE", some)
    code, out, _ = typed("all", "--data", tmp_path, "--out", tmp_path / "out")
    assert code == 0
    assert "plm-table1: passed over, MNIST is not there" in out
    assert (tmp_path / "out" / "plm-fig6.svg").is_file()


def test_the_dashboard_is_written_from_what_was_run(tmp_path: Path) -> None:
    assert typed("plm-fig6", "--out", tmp_path)[0] == 0
    (tmp_path / "plm-fig6.svg").unlink()
    assert typed("--dashboard", tmp_path)[0] == 0
    assert "| [plm-fig6](plm-fig6.md) |" in (tmp_path / "README.md").read_text()
    assert (tmp_path / "plm-fig6.svg").is_file()


def test_every_table_and_figure_of_the_four_papers_is_in_the_list() -> None:
    names = {f"plm-table{i}" for i in range(1, 8)} | {f"plm-fig{i}" for i in range(1, 9)}
    names |= {"db-table1", "db-table2"} | {f"db-fig{i}" for i in (2, 3, 5, 6, 7, 8, 9, 10)}
    names |= {f"pal-table{i}" for i in range(1, 8)} | {"pal-fig2"}
    names |= {f"spa-table{i}" for i in range(1, 5)} | {f"spa-fig{i}" for i in range(1, 5)} | {"spa-vqa"}
    assert names <= set(CATALOGUE)
    for name, entry in CATALOGUE.items():
        assert entry.name == name
        assert entry.title
        assert entry.minutes >= 0
        assert all(data.name and data.where for data in entry.data)
        assert entry.draw is not None or "-fig" not in name


def test_the_pages_in_docs_are_those_of_the_json_beside_them() -> None:
    """No number in them is typed in: should this fail, run `steelyard reproduce --dashboard docs/results`."""
    folder = Path(__file__).resolve().parents[2] / "docs" / "results"
    results, repeated = report.load(folder), report.load(folder / report.AGAIN)
    assert results.keys() <= CATALOGUE.keys()
    assert (folder / "README.md").read_text(encoding="utf-8") == report.dashboard(results, PAPERS, CATALOGUE)
    assert (folder / report.BEYOND_PAGE).read_text("utf-8") == report.beyond(results, CATALOGUE, repeated)
    for name, result in results.items():
        page = report.page(result, CATALOGUE[name], results, CATALOGUE)
        assert (folder / f"{name}.md").read_text(encoding="utf-8") == page


def test_the_row_called_the_best_here_is_the_best_of_the_table() -> None:
    """`db-beyond` stands beside it: another row must be named there should the table's runs change."""
    results = report.load(Path(__file__).resolve().parents[2] / "docs" / "results")
    for name, beside in (("db-table1", beyond.DB_BESIDE), ("db-table1-frozen", beyond.DB_BESIDE_FROZEN)):
        best = best_row(results[name], "mAP on VOC-MLT")
        assert best.name in beside


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plm-table7", "--rows", "BCE"], "plm-table7 needs all of its rows: leave --rows out"),
        (["db-fig6", "--rows", "ERM"], "db-fig6 needs all of its rows: leave --rows out"),
        (["spa-table1", "--rows", "nothing"], "spa-table1 trains nothing: leave --rows, --set and --validation out"),
        (["db-fig3", "--set", "train.epochs=3"], "db-fig3 trains nothing"),
        (["pal-table2", "--validation", ".2"], "pal-table2 trains nothing"),
    ],
)
def test_what_would_be_passed_over_is_refused(words: list[str], said: str, tmp_path: Path) -> None:
    code, _, error = typed(*words, "--smoke", "--out", tmp_path / "out")
    assert code == 2
    assert said in error
    assert not list(tmp_path.glob("out/*.json"))
