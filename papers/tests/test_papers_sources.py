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
from steelyard_papers import sources
from steelyard_papers.catalogue import CATALOGUE
from steelyard_papers.published import PRINTED, PUBLISHED, Published
from steelyard_papers.reproduction import Job
from steelyard_papers.result import Result, RowResult, RunResult, beside, read_as
from steelyard_papers.sources import Source, data_table, one_of, present

SOURCES = [value for value in vars(sources).values() if isinstance(value, Source)] + list(sources.TABLES)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_what_is_written_for_smoke_runs_is_read_as_the_real_data(source: Source, tmp_path: Path) -> None:
    assert not source.is_there(tmp_path)
    source.fixture(tmp_path)
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
    need = one_of((sources.CUB, sources.VISPR), sources.VISPR)
    assert need.what == "CUB or VISPR"
    assert need.where == f"CUB: {sources.CUB.where}; VISPR: {sources.VISPR.where}"
    assert one_of(sources.TABLES, sources.CUB).where == sources.TABLES[0].where, "one place, said once"
    assert "CUB_200_2011/" in need.where
    assert "VISPR/" in need.where
    assert not need.check(tmp_path)
    need.fixture(tmp_path)
    assert need.check(tmp_path)
    assert not sources.CUB.is_there(tmp_path)


def test_the_published_splits_are_tested_on_what_is_there_and_it_is_said(shared_data: Path) -> None:
    found = sources.VOC_MLT.open(shared_data)
    assert len(found.train) == 1142
    assert len(found.test) == 5008
    assert "VOC 2007 trainval, since the images of its test split are not there" in found.notes[0]
    found = sources.VOC2012.open(shared_data)
    assert (len(found.train), len(found.test)) == (5717, 5823)
    assert found.test.labels.unknown_rate == 0


def test_coco_mlt_is_tested_on_labelled_images_where_those_of_2017_are_absent(tmp_path: Path) -> None:
    sources.COCO_MLT.fixture(tmp_path)
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
    sources.CUB.fixture(tmp_path)
    labels = sources.CUB.open(tmp_path).train.labels
    found = data_table((sources.CUB, sources.VISPR), Job(tmp_path, tmp_path))
    assert [row.name for row in found.rows] == ["CUB"]
    values = found.rows[0].runs[0].values
    assert values["training items"] == 64
    assert values["test items"] == 32
    assert values["labels"] == 30
    assert values["positives an item"] == pytest.approx(labels.values.sum() / 64)
    assert values["% of training labels unknown"] == 0


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


def test_what_is_published_says_where_it_is_printed() -> None:
    for name, table in PUBLISHED.items():
        assert name in CATALOGUE, name
        assert table.source, name
        assert table.note, name
        numbers = [value for row in table.rows.values() for value in row if value is not None]
        assert numbers, name
        assert all(0 < value < 100 for value in numbers), name
        assert not table.baseline or table.baseline in table.rows, name


def test_no_printed_number_is_lost_or_changed() -> None:
    """Every score of the papers is in one table here, whatever its row and column are called."""
    for name, table in PUBLISHED.items():
        if table.only_data:
            continue
        parts = [part for key, part in PRINTED.items() if key == name or key.startswith(f"{name}, ")]
        printed = [value for part in parts for values in part["rows"].values() for value in values]
        here = [value for values in table.rows.values() for value in values]
        assert sorted(v for v in here if v is not None) == sorted(v for v in printed if v is not None), name


def test_the_numbers_are_those_that_were_checked_row_by_row() -> None:
    file = Path(__file__).resolve().parents[3] / "shared" / "published.json"
    if not file.exists():
        pytest.skip("the checked list of printed numbers does not lie beside the checkout")
    checked = {name: table for name, table in json.loads(file.read_text()).items() if "rows" in table}
    assert PRINTED.keys() == checked.keys()
    for name, table in checked.items():
        assert PRINTED[name] == {"columns": table["columns"], "rows": table["rows"]}, name


def test_the_same_number_is_the_same_wherever_it_stands() -> None:
    for name, data in (("voc-mlt-db", "VOC-MLT"), ("coco-mlt-db", "COCO-MLT")):
        said = [float(text) for text in re.findall(r"\d+\.\d+", RECIPES[name].expected)]
        columns = [f"{column} on {data}" for column in ("mAP", "mAP head", "mAP medium", "mAP tail")]
        assert [PUBLISHED["db-table1"].value("DB-Focal", column) for column in columns] == said
    assert "80.35" in RECIPES["multimnist-plm"].expected
    assert "65.73" in RECIPES["multimnist-plm"].expected
    assert PUBLISHED["plm-table1"].value("BCE", "F1") == 80.35
    assert PUBLISHED["plm-table1"].value("BCE", "F1 of the 3 rarest") == 65.73


def test_a_number_that_is_not_printed_is_none() -> None:
    assert PUBLISHED["plm-table3"].value("LDAM-DRW, ρ 200", "error") is None
    assert PUBLISHED["plm-table3"].value("LDAM-DRW, ρ 100", "error") == 22.97
    assert PUBLISHED["plm-table1"].value("BCE", "mAP") is None
    assert PUBLISHED["spa-table3"].value("focal by φ", "ACE on VOC 2012") == 7.0


def test_a_table_that_does_not_fit_its_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="row 'BCE' has 1 numbers for 2 columns"):
        Published(("a", "b"), {"BCE": (1.0,)}, "x")


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
    source: Source, name: str, row: str, tmp_path: Path
) -> None:
    source.fixture(tmp_path / "data")
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
    source: Source, name: str, row: str, network: str, tmp_path: Path
) -> None:
    """Drawn at random, since nothing is fetched here."""
    source.fixture(tmp_path / "data")
    sets = (f"model.backbone=timm:{network}", "model.pretrained=false")
    result = CATALOGUE[name].run(Job(tmp_path / "data", tmp_path / "out", rows=(row,), smoke=True, sets=sets))
    assert 0 < (result.rows[0].mean(result.columns[0]) or 0) <= 100
    (run,) = (tmp_path / "out" / "runs").iterdir()
    assert f'backbone = "timm:{network}"' in (run / "config.toml").read_text(encoding="utf-8")
