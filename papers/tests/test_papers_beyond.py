"""`auto` beside the papers' rows: what it trains, what is measured of it, and images that are decoded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from steelyard.config.recipes import settings
from steelyard.config.settings import Config, load_config
from steelyard.data import ImageDataset
from steelyard.data.subset import Subset
from steelyard.labels import Labels
from steelyard.metrics import calibration_error
from steelyard.run.datasets import Datasets
from steelyard_papers import beyond, db, pal
from steelyard_papers import trial as trials
from steelyard_papers.command import CATALOGUE, prepared, reproduce
from steelyard_papers.datasets import TABLES, VOC_MLT
from steelyard_papers.result import Result
from steelyard_papers.study import Job, Row
from steelyard_papers.trial import read


def pictures(folder: Path, n: int, bad: str = "error") -> ImageDataset:
    rng = np.random.default_rng(0)
    paths = []
    for i in range(n):
        paths.append(folder / f"{i}.png")
        Image.fromarray(rng.integers(0, 256, (20, 14, 3), np.uint8)).save(paths[-1])
    labels = Labels(rng.integers(0, 2, (n, 3)).astype(np.int8))
    return ImageDataset(paths, labels, 8, bad)  # type: ignore[arg-type]


def test_images_in_memory_are_those_of_the_files(tmp_path: Path) -> None:
    files = pictures(tmp_path, 7)
    parts = Datasets(Subset(files, [5, 0, 3]), None, files)
    held = trials.in_memory(parts, workers=0)
    assert held.validation is None
    for name in ("train", "test"):
        before, after = getattr(parts, name), getattr(held, name)
        assert after.inputs.dtype == np.uint8
        assert len(after) == len(before)
        assert after.labels.ids == before.labels.ids
        for i in range(len(before)):
            for one, other in zip(before[i], after[i], strict=True):
                np.testing.assert_array_equal(one, other)


def test_what_is_too_large_or_may_be_skipped_stays_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = pictures(tmp_path, 4)
    monkeypatch.setattr(trials, "MOST", 4 * 3 * 8 * 8)
    assert trials.in_memory(Datasets(files, None, files), 0).train is not files, "exactly as much as may be"
    monkeypatch.setattr(trials, "MOST", 4 * 3 * 8 * 8 - 1)
    assert trials.in_memory(Datasets(files, None, files), 0).train is files
    skipping = pictures(tmp_path, 1, "skip")
    assert trials.in_memory(Datasets(skipping, None, None), 0).train is skipping
    table = TABLES[1]
    table.generate(tmp_path)
    arrays = table.open(tmp_path)
    assert trials.in_memory(arrays, 0).train is arrays.train


def configured(rows: Sequence[Row], base: dict[str, Any] | None = None) -> dict[str, Config]:
    return {row.name: load_config(overrides=base or {}).with_overrides(row.settings) for row in rows}


def changed(one: Config, other: Config) -> set[str]:
    """The settings in which two configurations differ."""
    mine, its = one.as_dict(), other.as_dict()
    return {f"{s}.{k}" for s in mine for k in mine[s] if mine[s][k] != its[s][k]}


FROZEN = [entry for entry in db.ENTRIES if entry.name.endswith("-frozen")]
BESIDE = ("auto", "DB-Focal", "DB", "CB-Focal")
SPA_EITHER_WAY = {
    "without held-out items": {"data.validation"},
    "by SPA + LPR": {"objective.loss", "objective.label_pair"},
    "by the two-way loss": {"objective.loss"},
}
DB_EITHER_WAY = {"by the focal loss": {"objective.loss"}, "by cross-entropy": {"objective.loss"}}
LINEAR = {"model.head", "model.width", "model.dropout", "train.epochs", "train.keep"}


@pytest.mark.parametrize(
    ("rows", "base", "expected"),
    [
        (
            beyond.spa_auto(settings("bce")),
            {},
            {
                "without mirror images": {"model.mirror"},
                "without crops": {"train.augment"},
                "without averaged weights": {"train.ema"},
                **SPA_EITHER_WAY,
                "by the two-way loss": {"objective.loss", "train.monitor"},
            },
        ),
        (
            beyond.spa_auto_frozen(settings("bce")),
            {},
            {"at 160 pixels": {"data.size"}, "without dropout": {"model.dropout"}, **SPA_EITHER_WAY},
        ),
        (
            beyond.db_auto(settings("db")),
            settings("voc-mlt-db"),
            {
                "with a tenth held out": {"data.validation"},
                "without mirror images": {"model.mirror"},
                "without kept statistics": {"model.keep_statistics"},
                "without crops": {"train.augment"},
                "without averaged weights": {"train.ema"},
                **DB_EITHER_WAY,
            },
        ),
        (
            beyond.db_auto_frozen(settings("db")),
            settings("voc-mlt-db"),
            {
                "at 160 pixels": {"data.size"},
                "without dropout": {"model.dropout"},
                "under a linear layer": {"model.head"},
                **DB_EITHER_WAY,
            },
        ),
        (
            beyond.pal_auto(settings("wan"), "SPL"),
            pal.OURS[1].settings,
            {
                "under a linear layer": {"model.backbone", "model.width", "optimizer.weight_decay", "train.epochs"},
                "without dropout": {"model.dropout"},
                "with a weight decay of .01": {"optimizer.weight_decay"},
            },
        ),
        (
            beyond.pal_auto_frozen(settings("wan"), "SPL"),
            pal.OURS[0].settings,
            {
                "at 160 pixels": {"data.size"},
                "under a linear layer": LINEAR,
                "under a linear layer, at 160 pixels": LINEAR | {"data.size"},
                "without dropout": {"model.dropout"},
            },
        ),
    ],
)
def test_a_part_is_left_out_at_a_time(rows: Sequence[Row], base: dict[str, Any], expected: dict[str, set[str]]) -> None:
    made = configured(rows, dict(base))
    assert {name: changed(made["auto"], config) for name, config in made.items() if name not in BESIDE} == expected
    if "at 160 pixels" in expected:  # over a frozen backbone
        assert (made["auto"].model.frozen, made["auto"].data.size) == (True, 224)


def test_a_page_over_a_frozen_backbone_says_nothing_of_training_it() -> None:
    for entry in FROZEN:
        for said in ("network, schedule", "below it", "mirrored", "statistics", "db-table1 ", "db-table1;"):
            assert said not in f"{entry.note};"
    assert "photographs are not varied" in FROZEN[0].note


def test_the_paper_s_row_over_a_frozen_backbone_is_that_of_its_table() -> None:
    base = settings("voc-mlt-db")
    beside = configured(beyond.db_auto_frozen(settings("db")), base)["DB-Focal"]
    table = next(row for row in db.rows(VOC_MLT) if row.name == "DB-Focal")
    job = Job(Path(), Path(), sets=db.FROZEN_SETS)
    assert changed(beside, configured([table], base)["DB-Focal"].with_overrides(job.overrides)) == set()


def test_an_epoch_that_visits_every_class_is_about_as_long_as_the_data() -> None:
    labels = Labels(np.eye(40, dtype=np.int8)[np.arange(200) % 40])
    assert beyond.short_epochs(settings("db"), labels)["train"]["sampler"] == {"kind": "class_aware", "visits": 5}
    assert beyond.short_epochs(settings("wan"), labels) == settings("wan")
    assert beyond.short_epochs(settings("db"), labels.take(np.arange(3)))["train"]["sampler"]["visits"] == 1


def test_the_paper_s_row_beside_auto_is_that_of_table_1() -> None:
    base = settings("voc-mlt-db")
    made = configured(beyond.db_auto(settings("db")), base)
    assert made["auto"].train.sampler.kind == "class_aware"
    beside = made["DB-Focal"]
    table = next(row for row in db.rows(VOC_MLT) if row.name == "DB-Focal")
    mine = configured([table], base)["DB-Focal"]
    assert changed(beside, mine) == set()


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    out = tmp_path_factory.mktemp("beyond")

    def run(name: str, *patterns: str) -> Any:
        with prepared(CATALOGUE[name], Job(out, out, rows=patterns, smoke=True)) as job:
            return reproduce(CATALOGUE[name], replace(job, out=out)), out

    return run


def test_calibration_is_that_of_the_run_s_own_probabilities(smoke: Callable[..., Any]) -> None:
    result, out = smoke("spa-beyond", "auto")
    assert [row.name for row in result.rows] == ["auto"]
    assert result.notes[0].startswith("auto chooses the recipe ")
    (folder,) = (out / "runs").iterdir()
    trial = read(folder)
    eta = np.asarray(trial.probability_model.probability(trial.logits), np.float64).ravel()
    truth = trial.targets.numpy().ravel()
    bins = np.minimum((eta * 15).astype(int), 14)
    gaps = [abs(eta[bins == b].mean() - truth[bins == b].mean()) for b in range(15) if (bins == b).any()]
    values = beyond.auto_scores(trial).values
    assert values["ACE"] == pytest.approx(100 * np.mean(gaps), abs=1e-3)
    assert values["MCE"] == pytest.approx(100 * max(gaps), abs=1e-3)
    draw = np.random.default_rng(0)
    by_chance = [calibration_error(eta[:, None], (draw.random(len(eta)) < eta)[:, None]).ace for _ in range(200)]
    assert values["ACE by chance"] == pytest.approx(100 * np.mean(by_chance), rel=0.1)
    assert values["ACE by the link"] != pytest.approx(values["ACE"], abs=1e-6), "held-out items have moved it"


def test_a_loss_without_a_probability_has_its_epoch_by_map(smoke: Callable[..., Any]) -> None:
    result, _ = smoke("spa-beyond", "by the two-way loss")
    assert 0 < result.rows[0].mean("mAP@y") <= 100


def test_partial_labels_choose_by_what_is_known(smoke: Callable[..., Any]) -> None:
    result, _ = smoke("pal-beyond", "auto", "without dropout")
    assert [row.name for row in result.rows] == ["auto", "without dropout"]
    assert result.columns == ("mAP on bibtex, FAL",)
    assert result.notes[0].startswith("auto chooses: bibtex, FAL: ")


def test_over_a_frozen_backbone_only_that_is_set_besides() -> None:
    asked: list[Job] = []

    def run(job: Job) -> Result:
        asked.append(job)
        return Result(("mAP",), changed=job.sets)

    of = replace(CATALOGUE["db-table1"], run=run)
    made = db.frozen(of)
    job = Job(Path(), Path(), sets=("train.epochs=2",))
    result = made.run(job)
    assert asked[0].sets == (*db.FROZEN_SETS, "train.epochs=2")
    assert result.changed == ("train.epochs=2",), "what a person set, and no more"
    assert (made.name, made.printed) == ("db-table1-frozen", None), "the paper's numbers are of another network"
    made.run(replace(job, smoke=True))
    assert asked[1].sets == ("train.epochs=2",), "a trial has a tiny network, which no weights are published for"
    assert {name for name in CATALOGUE if name.startswith("db-") and name.endswith("-frozen")} == {
        f"{name}-frozen"
        for name in (*(f"db-{x}" for x in ("table1", "table2", "fig6", "fig7", "fig10", "parts")), "db-beyond")
    }
