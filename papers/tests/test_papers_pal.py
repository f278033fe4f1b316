"""Partially annotated labels: what each setting hides, and rows as in the paper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from steelyard.config.settings import Config, load_config
from steelyard.data import ArrayDataset
from steelyard.labels import Labels
from steelyard.run.datasets import Datasets
from steelyard_papers import pal
from steelyard_papers.command import prepared
from steelyard_papers.datasets import TABLES
from steelyard_papers.pal import SETTINGS, ablation, rows
from steelyard_papers.study import Job, measured_on

BY_NAME = {entry.name: entry for entry in pal.ENTRIES}


def thinned(opened: Datasets, setting: str, seed: int) -> Datasets:
    return pal.thinned(opened, setting, seed, TABLES[0], Path())


def configured(make: object = rows) -> dict[str, Config]:
    return {row.name: load_config(overrides=pal._BASE).with_overrides(row.settings) for row in make(2.9, "SPL")}  # type: ignore[operator]


def whole(n: int = 400) -> Datasets:
    rng = np.random.default_rng(0)
    y = (rng.random((n, 10)) < np.linspace(0.6, 0.05, 10)).astype(np.int8)
    y[:3] = 0
    both = [ArrayDataset(rng.normal(size=(len(part), 4)).astype(np.float32), Labels(part)) for part in (y, y[:50])]
    return Datasets(both[0], None, both[1], ("made up",))


def test_settings_hide_what_they_say_and_only_in_training() -> None:
    full = whole()
    y = full.train.labels.values
    assert list(SETTINGS) == ["FAL", "PAL 0.3", "PAL 0.6", "PAL 0.9", "PPL 0.3", "PPL 0.6", "PPL 0.9", "SPL"]
    for name in SETTINGS:
        found = thinned(full, name, 5)
        values = found.train.labels.values
        known = values != -1
        np.testing.assert_array_equal(values[known], y[known], err_msg="what is known is true")
        assert found.test is full.test, name
        assert found.train.inputs is full.train.inputs
        kind, _, share = name.partition(" ")
        if kind == "FAL":
            assert known.all()
        elif kind == "PAL":
            assert known.mean() == pytest.approx(float(share), abs=0.03)
            assert (values == 1).any()
            assert (values == 0).any()
        else:
            assert not (values == 0).any(), "no negative is known"
            kept = (values == 1).sum(1)
            if kind == "PPL":
                assert kept.sum() / (y == 1).sum() == pytest.approx(float(share), abs=0.05)
            else:
                np.testing.assert_array_equal(kept, (y == 1).any(1))
    np.testing.assert_array_equal(full.train.labels.values, y, err_msg="the data itself is left alone")


def test_items_held_out_are_measured_by_all_of_their_labels(tmp_path: Path) -> None:
    full = whole()
    job = Job(tmp_path, tmp_path, validation=0.25)
    for name in ("FAL", "PPL 0.3", "SPL"):
        thin = thinned(full, name, 5)
        found = measured_on(job, thin, full.train)
        assert (found.test.labels.values != -1).all()
        assert len(found.train) + len(found.test) == len(full.train)
        np.testing.assert_array_equal(found.train.labels.values, thin.train.labels.values[found.train.index])
        assert "held out" in found.notes[-1]
    with prepared(
        replace(BY_NAME["pal-table6"], smoke=TABLES[0]),
        Job(tmp_path, tmp_path, validation=0.3, smoke=True, rows=("BCE",)),
    ) as asked:
        assert (BY_NAME["pal-table6"].run(asked).rows[0].mean("mAP on delicious, SPL") or 0) < 100


def test_every_seed_hides_other_labels() -> None:
    full = whole()
    for name in SETTINGS:
        first, again, other = (thinned(full, name, seed).train.labels.values for seed in (0, 0, 1))
        np.testing.assert_array_equal(first, again)
        assert (first != other).any() == (name != "FAL"), name


def test_rows_are_set_up_as_in_the_paper() -> None:
    found = configured()
    assert list(found) == [
        *("BCE", "BCE-LS", "AN", "AN-LS", "WAN", "EPR", "ROLE", "focal", "ASL", "proposed"),
        *("proposed, P of pseudo-labels", "proposed, link"),
    ]
    rules = {name: config.objective.unknown.kind for name, config in found.items()}
    assert rules == {
        "BCE": "ignore",
        "BCE-LS": "ignore",
        **dict.fromkeys(("AN", "AN-LS", "focal", "ASL"), "negative"),
        "WAN": "wan",
        "EPR": "epr",
        "ROLE": "role",
        **dict.fromkeys(("proposed", "proposed, P of pseudo-labels", "proposed, link"), "annotation"),
    }
    assert found["EPR"].objective.unknown.arguments["expected_positives"] == 2.9
    assert found["ROLE"].objective.unknown.arguments["expected_positives"] == 2.9
    method = found["proposed"].objective.unknown.arguments
    assert {"gamma": 0.05, "m": 3.0, "q": 0.3, "schedule": "exp", "feedback": "raw"}.items() <= method.items()
    assert method["count"] == "known"
    assert found["proposed, P of pseudo-labels"].objective.unknown.arguments == {**method, "count": "pseudo"}
    assert found["proposed, link"].objective.unknown.arguments == {**method, "feedback": "link"}
    for config in found.values():
        assert config.data.size == 448
        assert config.model.backbone == "timm:resnet50"
        assert config.train.augment.flip == 0.5


def test_the_ablation_takes_one_part_away_at_a_time() -> None:
    found = {name: dict(config.objective.unknown.arguments) for name, config in configured(ablation).items()}
    method = found.pop("proposed")
    changed = {name: {key for key in method if said[key] != method[key]} for name, said in found.items()}
    assert changed == {
        "without α, β": {"use_alpha_beta"},
        "without d": {"use_d"},
        "without p": {"use_p"},
        "without q": {"q"},
        "with the linear d": {"schedule"},
        "P of pseudo-labels": {"count"},
        "fed back by the link": {"feedback"},
    }


def test_the_table_of_settings_counts_what_is_known(tmp_path: Path) -> None:
    TABLES[0].generate(tmp_path)
    found = pal._settings(Job(tmp_path, tmp_path, seeds=(0, 1, 2)))
    labels = TABLES[0].open(tmp_path).train.labels
    share = 100 * labels.counts.sum() / labels.values.size
    assert found.row("FAL").mean("% of labels known") == 100
    assert found.row("FAL").mean("% of known labels positive") == pytest.approx(share)
    assert found.row("SPL").mean("% of known labels positive") == 100
    assert found.row("SPL").mean("% of labels known") == pytest.approx(100 * (labels.values.any(1)).mean() / 12)
    assert found.row("PAL 0.6").mean("% of labels known") == pytest.approx(60, abs=5)
    assert found.row("PPL 0.3").std("% of positives known") > 0


def test_a_table_on_generated_data(tmp_path: Path) -> None:
    some = ("AN", "ROLE", "proposed", "proposed, link")
    with prepared(
        replace(BY_NAME["pal-table4"], smoke=TABLES[0]), Job(tmp_path, tmp_path, rows=some, smoke=True)
    ) as job:
        found = BY_NAME["pal-table4"].run(job)
    assert found.columns == ("mAP on delicious, PAL 0.3",)
    assert [row.name for row in found.rows] == list(some)
    assert all(0 < (row.mean(found.columns[0]) or 0) <= 100 for row in found.rows)
    assert "COCO 2014 is not there and left out" in found.notes
