"""The data sets of the papers, what the papers print about them, rows trained on them, and results side by side."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from steelyard.config.recipes import RECIPES
from steelyard.data.files import DataError
from steelyard.models import input_of
from steelyard_papers import datasets as sources
from steelyard_papers.claims import Entry
from steelyard_papers.command import CATALOGUE
from steelyard_papers.datasets import DataSet, counted, present
from steelyard_papers.plm import RHOS
from steelyard_papers.result import Result, RowResult, RunResult, beside, read_as
from steelyard_papers.study import Job

OF_PLM = (sources.MNIST, sources.CIFAR10, sources.CIFAR100)
EVERY = [value for value in vars(sources).values() if isinstance(value, DataSet)] + list(sources.TABLES)
SOURCES = [source for source in EVERY if source not in OF_PLM and not source.is_features]
IN_PRINT = {name: entry.printed for name, entry in CATALOGUE.items() if entry.printed and "-features" not in name}


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_what_is_written_for_smoke_runs_is_read_as_the_real_data(source: DataSet, tmp_path: Path) -> None:
    assert not source.is_there(tmp_path)
    source.generate(tmp_path)
    assert present(tmp_path, SOURCES).count(source) == 1
    found = source.open(tmp_path)
    assert found.train.labels.names == found.test.labels.names
    assert len(found.train) > len(found.test) > 0
    assert found.train.labels.counts.min() > 0, "every label has a positive"
    assert found.test.labels.counts.sum() > 0
    assert found.validation is None
    assert found.notes
    assert source.name.split(" ")[0].split("-")[0] in found.notes[0]
    shape = input_of(found.train)
    assert shape.kind == {"VQA v2": "pair"}.get(source.name, "features" if source in sources.TABLES else "image")


def test_one_of_several_will_do_and_all_are_named(tmp_path: Path) -> None:
    def of(*data: DataSet) -> Entry:
        return Entry("x", "X", "t", data, 1, lambda job: Result())

    need = of(sources.CUB, sources.VISPR)
    assert need.needs == "CUB or VISPR"
    assert need.where == f"CUB: {sources.CUB.where}; VISPR: {sources.VISPR.where}"
    assert of(*sources.TABLES).where == sources.TABLES[0].where, "one place, said once"
    assert not need.has_data(tmp_path)
    sources.VISPR.generate(tmp_path)
    assert need.has_data(tmp_path)
    assert not sources.CUB.is_there(tmp_path)
    assert of().has_data(tmp_path), "formulas need none"


def test_the_published_splits_are_tested_on_what_is_there_and_it_is_said(shared_data: Path) -> None:
    found = sources.VOC_MLT.open(shared_data)
    assert len(found.train) == 1142
    assert len(found.test) == 5008
    assert "VOC 2007 trainval, since the images of its test split are not there" in found.notes[0]
    found = sources.VOC2012.open(shared_data)
    assert (len(found.train), len(found.test)) == (5717, 5823)
    assert found.test.labels.unknown_rate == 0


def test_coco_mlt_is_tested_on_labelled_images_where_those_of_2017_are_absent(tmp_path: Path) -> None:
    sources.COCO_MLT.generate(tmp_path)
    train = sources.COCO_MLT.open(tmp_path).train
    (tmp_path / "annotations" / "instances_val2017.json").unlink()
    assert not sources.COCO_MLT.is_there(tmp_path)
    values = np.zeros((3, 80), np.uint8)
    values[[0, 1, 2], [5, 6, 7]] = 1
    ids = np.array([42, int(train.labels.ids[1]), 294])
    np.savez(tmp_path / "labels" / "coco2014_val_part.npz", ids=ids, Y=values)
    assert sources.COCO_MLT.is_there(tmp_path)
    found = sources.COCO_MLT.open(tmp_path)
    assert list(found.test.labels.ids) == ["42", "294"], "none that is trained on"
    assert found.test.labels.values.nonzero()[1].tolist() == [5, 7]
    assert found.test.paths[0] == str(tmp_path / "train2017" / "000000000042.jpg")
    assert "2 images of COCO's val2014 that are not in it" in found.notes[0]
    np.savez(tmp_path / "labels" / "coco2014_val_part.npz", ids=ids)
    with pytest.raises(DataError, match="coco2014_val_part"):
        sources.COCO_MLT.open(tmp_path)


def test_the_data_table_counts(tmp_path: Path) -> None:
    sources.CUB.generate(tmp_path)
    labels = sources.CUB.open(tmp_path).train.labels
    columns = ("training items", "test items", "labels", "positives per item", "positives over negatives")
    found = counted(columns, (sources.CUB, sources.VISPR), Job(tmp_path, tmp_path))
    assert [row.name for row in found.rows] == ["CUB"]
    values = found.rows[0].runs[0].values
    assert values["training items"] == 64
    assert values["test items"] == 32
    assert values["labels"] == 30
    n = labels.values.sum()
    assert values["positives per item"] == pytest.approx(n / 64)
    assert values["positives over negatives"] == pytest.approx(n / (64 * 30 - n))


def made(name: str, scores: dict[int, float], column: str = "mAP", **more: object) -> Result:
    runs = tuple(RunResult(seed, {column: value}, 2.0, {"seed": seed}) for seed, value in scores.items())
    said = Result((column,), (RowResult(name, runs),), f"data of {name}", seeds=tuple(scores), seconds=4.0)
    return replace(said, **more)  # type: ignore[arg-type]


def test_results_beside_each_other_keep_every_number_in_its_place() -> None:
    both = beside(
        {"A": made("BCE", {0: 1.0, 1: 3.0}), "B": made("BCE", {0: 10.0, 1: 30.0}), "C": made("SPA", {0: 5.0})}
    )
    assert both.columns == ("mAP on A", "mAP on B", "mAP on C")
    assert both.row("BCE").values("mAP on A") == [1.0, 3.0]
    assert both.row("BCE").mean("mAP on B") == 20.0
    assert both.row("BCE").mean("mAP on C") is None, "it was not run there"
    assert both.row("SPA").mean("mAP on C") == 5.0
    assert both.row("BCE").runs[1].details == {"A": {"seed": 1}, "B": {"seed": 1}}
    assert both.seconds == 12.0
    assert both.data == "data of BCE; data of SPA"


def test_rows_may_be_readings_of_the_same_run() -> None:
    runs = Result(
        (), (RowResult("SPA", (RunResult(0, {"mAP": 70.0, "by σ": 30.0, "by φ": 8.0}, 3.0),)),), seeds=(0,), seconds=3.0
    )
    table = read_as(
        runs,
        [
            ("SPA by σ", "SPA", {"mAP": "mAP", "ACE": "by σ"}),
            ("SPA", "SPA", {"mAP": "mAP", "ACE": "by φ"}),
            ("focal", "focal", {"mAP": "mAP", "ACE": "by σ"}),
        ],
        ("mAP", "ACE"),
    )
    assert [row.name for row in table.rows] == ["SPA by σ", "SPA"]
    assert [row.mean("ACE") for row in table.rows] == [30.0, 8.0]
    assert [row.mean("mAP") for row in table.rows] == [70.0, 70.0]
    assert table.seconds == 3.0, "it was trained once"


def test_what_is_printed_says_where() -> None:
    for name, table in IN_PRINT.items():
        assert table.source, name
        assert table.note, name
        numbers = [value for row in table.rows.values() for value in row if value is not None]
        assert numbers, name
        assert table.is_data or all(0 < value < 100 for value in numbers), name
        assert not table.baseline or table.baseline in {row.partition(", ρ ")[0] for row in table.rows}, name


def as_here(name: str, row: str, column: str) -> tuple[str, str]:
    """The row and the column that a row and a column in print have here."""
    row = {"Ours": "proposed", "λ 1.0": "λ 1", "λ 0.0 (BCE)": "λ 0", "dataset (r_c)": "dataset"}.get(row, row)
    if name.startswith(("pal", "spa")):
        row = row.replace("Focal", "focal")
        column = column.replace("COCO", "COCO 2014")
    if name in ("plm-table3", "plm-table4"):
        column, rho = column.split(", ρ ")
        return f"{row}, ρ {rho}", column
    if name in ("pal-table3", "pal-table6"):
        return row, f"{column}, {'FAL' if name == 'pal-table3' else 'SPL'}"
    if name.startswith("spa-table3"):
        measure, _, network = column.partition(", ")
        data = name.partition(", ")[2].replace("COCO", "COCO 2014")
        return row, f"{measure} on {data}" + (f", {network}" if network != "ECA-ResNet50-T" else "")
    if name in ("pal-table2", "spa-table2"):  # rows are data sets here
        words = (("per image", "per item"), ("images", "items"))
        for there, here in words:
            row = row.replace(there, here)
        return column, row
    return row, f"{column} on COCO 2014" if name == "spa-table4" else column


def test_the_numbers_are_those_that_were_checked_row_by_row() -> None:
    file = Path(__file__).resolve().parents[3] / "shared" / "published.json"
    if not file.exists():
        pytest.skip("the checked list of printed numbers does not lie beside the checkout")
    checked = {name: table for name, table in json.loads(file.read_text()).items() if "rows" in table}
    assert {name.partition(", ")[0] for name in checked} == IN_PRINT.keys()
    left = {
        name: {(r, c) for r in t.rows for c in t.columns if t.value(r, c) is not None} for name, t in IN_PRINT.items()
    }
    for name, table in checked.items():
        here = IN_PRINT[name.partition(", ")[0]]
        for row, values in table["rows"].items():
            for column, value in zip(table["columns"], values, strict=True):
                place = as_here(name, row, column)
                if row != "Total":  # of the digits: the items, which the note has
                    assert here.value(*place) == value, (name, row, column)
                left[name.partition(", ")[0]].discard(place)
    assert not any(left.values()), "and no number besides"


def test_the_numbers_in_the_text_of_the_papers_stand_on_the_pages_of_figures() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs" / "results"
    facts = {}
    for name in ("plm-fig2", "plm-fig4", "plm-fig8"):
        made = CATALOGUE[name].facts
        assert made is not None
        facts |= {what: (paper, ours) for what, paper, ours in made(Result.load(docs / f"{name}.json"))}
    assert {paper for paper, _ in facts.values()} == {
        90.33,
        1.82,
        0.24,
        0.007,
        0.047,
        352.92,
        11.16,
        12.73,
        7.86,
        13.04,
    }
    assert facts["ratio of digit 0 at first"][1] == pytest.approx(9517 / (14694 - 9517), rel=1e-3)


def test_the_same_number_is_the_same_wherever_it_stands() -> None:
    for name, data in (("voc-mlt-db", "VOC-MLT"), ("coco-mlt-db", "COCO-MLT")):
        said = [float(text) for text in re.findall(r"\d+\.\d+", RECIPES[name].expected)]
        columns = [f"{column} on {data}" for column in ("mAP", "mAP head", "mAP medium", "mAP tail")]
        assert [IN_PRINT["db-table1"].value("DB-Focal", column) for column in columns] == said
    assert "80.35" in RECIPES["multimnist-plm"].expected
    assert "65.73" in RECIPES["multimnist-plm"].expected
    assert IN_PRINT["plm-table1"].value("BCE", "F1") == 80.35
    assert IN_PRINT["plm-table1"].value("BCE", "F1 of the 3 rarest") == 65.73


def test_a_number_that_is_not_printed_is_none() -> None:
    assert IN_PRINT["plm-table3"].value(f"LDAM-DRW, ρ {RHOS[0]}", "error") is None
    assert IN_PRINT["plm-table3"].value("LDAM-DRW, ρ 100", "error") == 22.97
    assert IN_PRINT["plm-table1"].value("BCE", "mAP") is None
    assert IN_PRINT["spa-table3"].value("focal by φ", "ACE on VOC 2012") == 7.0


TRAINED = [
    (sources.VOC2012, "spa-table3", "SPA + LPR"),
    (sources.WIDER, "spa-table3", "SPA + LPR"),
    (sources.VQA, "spa-vqa", "SPA + LPR"),
    (sources.COCO_MLT, "db-table1", "DB-Focal"),
    (sources.NUS_WIDE, "pal-table4", "proposed"),
    (sources.OPEN_IMAGES, "pal-table4", "proposed"),
]
"""One of each kind of labels and inputs; that all are read is held by test_papers_sources.py."""


@pytest.mark.parametrize(("source", "name", "row"), TRAINED, ids=lambda part: getattr(part, "name", part))
def test_a_row_is_trained_on_what_lies_as_its_owner_gives_it(
    source: DataSet, name: str, row: str, tmp_path: Path
) -> None:
    source.generate(tmp_path / "data")
    result = CATALOGUE[name].run(Job(tmp_path / "data", tmp_path / "out", rows=(row,), smoke=True))
    assert [found.name for found in result.rows] == [row]
    measured = {column: result.rows[0].mean(column) for column in result.columns}
    first = next(iter(measured))
    assert name == "spa-vqa" or source.name in first
    assert 0 < (measured[first] or 0) <= 100
    (run,) = (tmp_path / "out" / "runs").iterdir()
    assert (run / "trial.json").is_file()


@pytest.mark.parametrize(
    ("source", "name", "row", "network"),
    [
        pytest.param(sources.CUB, "pal-table4", "BCE", "resnet50", marks=pytest.mark.slow),
        pytest.param(sources.WIDER, "spa-table3", "BCE", "ecaresnet50t", marks=pytest.mark.slow),
        pytest.param(sources.VOC2012, "spa-table3", "BCE", "vit_base_patch32_224", marks=pytest.mark.slow),
    ],
)
def test_a_row_is_trained_over_the_papers_networks(
    source: DataSet, name: str, row: str, network: str, tmp_path: Path
) -> None:
    """Drawn at random, since nothing is fetched here."""
    source.generate(tmp_path / "data")
    sets = (f"model.backbone=timm:{network}", "model.pretrained=false")
    result = CATALOGUE[name].run(Job(tmp_path / "data", tmp_path / "out", rows=(row,), smoke=True, sets=sets))
    assert 0 < (result.rows[0].mean(result.columns[0]) or 0) <= 100
    (run,) = (tmp_path / "out" / "runs").iterdir()
    assert f'backbone = "timm:{network}"' in (run / "config.toml").read_text(encoding="utf-8")
