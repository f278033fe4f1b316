"""Data sets of the papers on photographs, in their owners' layouts: a row of a paper's table is trained on each."""

from __future__ import annotations

from pathlib import Path

import pytest

from steelyard_papers import sources
from steelyard_papers.catalogue import CATALOGUE
from steelyard_papers.reproduction import Job
from steelyard_papers.sources import Source

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
