"""The Distribution-Balanced paper's tables and figures: rows as in the paper, numbers as defined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from steelyard.config.recipes import settings
from steelyard.config.settings import Config, load_config
from steelyard.data.builders import pareto_long_tail
from steelyard.labels import Labels
from steelyard_papers import db, figures
from steelyard_papers.command import prepared, reproduce
from steelyard_papers.datasets import COCO_MLT, VOC_MLT, DataSet
from steelyard_papers.db import ON_COCO, SWEEPS, combinations, rows, sweep, weighted
from steelyard_papers.result import Result, RowResult, RunResult
from steelyard_papers.study import Job, Row

BY_NAME = {reproduction.name: reproduction for reproduction in db.ENTRIES}


def configured(source: DataSet, make: Callable[[DataSet], tuple[Row, ...]] = rows) -> dict[str, Config]:
    base = load_config(overrides=settings("voc-mlt-db" if source is VOC_MLT else "coco-mlt-db"))
    return {row.name: base.with_overrides(row.settings) for row in make(source)}


def test_table_1_is_set_up_as_in_the_paper() -> None:
    found = configured(VOC_MLT)
    assert list(found) == [
        *("ERM", "RW", "Focal", "RS", "RS-Focal", "ML-GCN", "OLTR", "LDAM", "CB-Focal"),
        *("R-BCE", "R-BCE-Focal", "DB", "DB-Focal"),
    ]
    resampled = {"RS", "RS-Focal", "R-BCE", "R-BCE-Focal", "DB", "DB-Focal"}
    for name, config in found.items():
        assert config.optimizer.lr == (0.1 if name in ("CB-Focal", "OLTR") else 0.02), name
        assert config.optimizer.momentum == 0.9
        assert config.optimizer.weight_decay == 1e-4
        assert config.train.batch_size == 32
        assert config.data.size == 224
        assert config.model.backbone == "timm:resnet50"
        assert config.model.width == 256
        n_draws = 20 * 194 if name in resampled else 1142
        assert config.train.sampler.kind == ("class_aware" if name in resampled else "shuffle"), name
        assert config.train.epochs == (8 if name in resampled else 80)
        assert config.schedule.milestones == ((5, 7) if name in resampled else (55, 70))
        assert config.schedule.warmup_epochs * n_draws / 32 == pytest.approx(500), "iterations of warm-up"
        assert config.schedule.warmup_from == pytest.approx(1 / 3)
    paper = {"alpha": 0.1, "beta": 10.0, "mu": 0.3, "lam": 5.0, "kappa": 0.05, "gamma": 2.0, "as_released": True}
    assert paper.items() <= dict(found["DB-Focal"].objective.loss.arguments).items()
    assert (paper | {"gamma": 0.0}).items() <= dict(found["DB"].objective.loss.arguments).items()
    assert (paper | {"lam": 1.0, "kappa": 0.0}).items() <= dict(found["R-BCE-Focal"].objective.loss.arguments).items()
    assert found["CB-Focal"].objective.weighting.arguments["mode"] == "mean_effective"
    assert found["CB-Focal"].objective.weighting.arguments["beta"] == 0.99
    assert found["Focal"].objective.loss.arguments == {"gamma": 2.0, "scale": 2.0}
    assert found["ML-GCN"].model.head == "ml_gcn"
    oltr = found["OLTR"]
    assert (oltr.model.head, oltr.model.dropout, oltr.optimizer.lr, oltr.optimizer.backbone_lr) == ("oltr", 0, 0.1, 0.1)
    assert oltr.model.reachability == 10
    coco = configured(COCO_MLT)
    assert coco["DB-Focal"].objective.loss.arguments["mu"] == 0.2
    assert coco["DB-Focal"].objective.loss.arguments["lam"] == 2.0
    assert coco["CB-Focal"].objective.weighting.arguments["beta"] == 0.9
    assert coco["ERM"].schedule.warmup_epochs * 1909 / 32 == pytest.approx(500)


def test_table_2_has_the_rows_in_print() -> None:
    found, first = configured(VOC_MLT, weighted), configured(VOC_MLT)
    published = BY_NAME["db-table2"].printed
    assert published is not None
    assert list(found) == list(published.rows)
    assert {name: found[name] for name in ("RS", "RS-Focal", "R-BCE-Focal")}.items() <= first.items()
    for name, kind in (("RS+RW-Focal", "inverse_frequency"), ("RS+CB-Focal", "class_balanced")):
        assert found[name].train.sampler.kind == "class_aware"
        assert found[name].objective.weighting.kind == kind
        assert found[name].objective.loss == first["RS-Focal"].objective.loss


def test_coco_mlt_has_some_rows_unless_others_are_asked_for() -> None:
    made = rows(COCO_MLT)
    plain = Job(Path(), Path())
    assert [row.name for row in db.rows_on(COCO_MLT, plain, made)] == list(ON_COCO)
    assert [row.name for row in db.rows_on(VOC_MLT, plain, made)] == [row.name for row in made]
    assert [row.name for row in db.rows_on(COCO_MLT, replace(plain, rows=("RW", "DB*")), made)] == [
        "RW",
        "DB",
        "DB-Focal",
    ]


def test_parts_share_their_rows_with_table_1() -> None:
    found, first = configured(VOC_MLT, combinations), configured(VOC_MLT)
    for name in set(found) & set(first):
        assert found[name] == first[name], name
    assert len({str(config.as_dict()) for config in found.values()}) == len(found), "no two rows are the same"
    assert found["RS + RW"].train.sampler.kind == "class_aware"
    assert found["RS + RW"].objective.weighting.kind == "inverse_frequency"
    assert found["NT-BCE without RS"].train.sampler.kind == "shuffle"
    assert found["DB-Focal, the formula"].objective.loss.arguments["as_released"] is False


@pytest.mark.parametrize("name", list(SWEEPS))
def test_a_sweep_changes_one_constant_at_a_time(name: str) -> None:
    paper = configured(VOC_MLT)["DB-Focal"].objective.loss.arguments
    found = configured(VOC_MLT, lambda source: sweep(name, source))
    for symbol, (argument, values) in SWEEPS[name].items():
        assert paper[argument] in values, "the paper's own value is among them"
        for value in values:
            assert found[f"{symbol} = {value:g}"].objective.loss.arguments == {**paper, argument: value}


@dataclass
class Said:
    """What `db_scores` takes of a trial."""

    logits: torch.Tensor
    targets: torch.Tensor
    counts: Any = field(default_factory=lambda: np.array([150, 100, 99, 20, 19, 1]))
    probability_model: Any = field(default_factory=lambda: SimpleNamespace(has_probability=False))


def test_scores_are_means_of_the_labels_of_each_group() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(60, 6)), rng.integers(0, 2, (60, 6))
    ap = np.array([100 * sklearn.average_precision_score(y[:, c], z[:, c]) for c in range(6)])
    found = db.db_scores(Said(torch.from_numpy(z), torch.from_numpy(y)))  # type: ignore[arg-type]
    assert found.details["ap"] == pytest.approx(ap)
    wanted = {"mAP": ap.mean(), "mAP head": ap[:2].mean(), "mAP medium": ap[2:4].mean(), "mAP tail": ap[4:].mean()}
    assert found.values == pytest.approx(wanted)
    says = SimpleNamespace(has_probability=True, probability=lambda z: torch.full_like(z, 0.5))
    known = db.db_scores(Said(torch.from_numpy(z), torch.from_numpy(y), probability_model=says))  # type: ignore[arg-type]
    assert known.values["ACE"] == pytest.approx(100 * abs(0.5 - y.mean()))
    y[:, 5] = 0
    found = db.db_scores(Said(torch.from_numpy(z), torch.from_numpy(y)))  # type: ignore[arg-type]
    assert found.details["ap"][5] is None
    assert found.values["mAP tail"] == pytest.approx(ap[4])


def test_statistics_are_those_of_the_definitions() -> None:
    rng = np.random.default_rng(1)
    y = (rng.random((50, 5)) < [0.8, 0.4, 0.3, 0.2, 0.1]).astype(int)
    y[0], y[1] = [0, 0, 0, 0, 1], 0
    n = y.sum(0)
    order = np.argsort(-n, kind="stable")
    found = db.statistics(Labels(y))
    s = [sum(y[k, j] / n[j] for j in range(5)) for k in range(50)]
    assert found["counts"] == n[order].tolist()
    for place, c in enumerate(order):
        own = [k for k in range(50) if y[k, c]]
        drawn = np.array([s[k] for k in own])
        assert found["spread"][place] == pytest.approx(drawn.std() / drawn.mean(), abs=1e-6)
        n_draws = 5 * -(-int(n.max()) // 4)
        after = sum(sum(y[k, c] for k in range(50) if y[k, j]) / n[j] for j in range(5)) / 5
        assert found["expected"][place] == pytest.approx(n_draws * after)
        spread = np.sqrt(n_draws * after * (1 - after))
        assert abs(found["drawn"][place] - found["expected"][place]) < 4 * spread + 1, "sampled as equation 1 says"
        for other, i in enumerate(order):
            assert found["conditional"][other][place] == pytest.approx(y[own, i].mean(), abs=1e-4)


def test_the_published_splits_have_their_counts(shared_data: Path) -> None:
    found = db.split_statistics(Job(shared_data, shared_data)).figure or {}
    assert {name: of["items"] for name, of in found.items()} == {"VOC-MLT": 1142, "COCO-MLT": 1909}
    assert found["VOC-MLT"]["counts"][:3] == [775, 479, 249]


def test_a_table_on_generated_data_has_the_columns_in_print(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with prepared(BY_NAME["db-table1"], Job(out, out, rows=("ERM", "DB-Focal"), smoke=True)) as job:
        found = reproduce(BY_NAME["db-table1"], job)
    published = BY_NAME["db-table1"].printed
    assert set(found.columns) < set(published.columns)
    assert [row.name for row in found.rows] == ["ERM", "DB-Focal"]
    for row in found.rows:
        assert all(0 <= (row.mean(column) or 0) <= 100 for column in found.columns)
    assert "COCO-MLT is not there and left out" in found.notes
    assert "78.9" in (out / "db-table1.md").read_text()


@pytest.mark.parametrize("name", [f"db-fig{x}" for x in (2, 3, 5, 8, 9)])
def test_figures_of_labels_and_losses_are_drawn_from_their_json(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with prepared(BY_NAME[name], Job(tmp_path, tmp_path, smoke=True)) as job:
        again = Result.from_json(BY_NAME[name].run(job).to_json())
    assert BY_NAME[name].draw(again).axes  # type: ignore[misc]


def test_gains_are_differences_of_the_steps_in_order() -> None:
    pytest.importorskip("matplotlib")
    numbers = {
        "names": ["rare", "often"],
        "counts": [3, 300],
        "ap": {"ERM": [10.0, 50.0], "RS": [30.0, 45.0], "DB": [33.0, None]},
    }
    figure = figures.label_gains(Result(figure={"VOC-MLT": numbers}))
    heights = [[bar.get_height() for bar in axes.containers[0]] for axes in figure.axes]
    assert heights[0] == [-5.0, 20.0], "the most frequent label comes first"
    assert heights[1][1] == pytest.approx(3.0)
    assert np.isnan(heights[1][0])
    assert figure.axes[0].get_title(loc="left") == "VOC-MLT, ERM → RS: +7.50"
    figure.canvas.draw()
    top = max(bar.get_window_extent().y1 for bar in figure.axes[0].containers[0])
    assert all(text.get_window_extent().y0 > top for text in figure.axes[0].texts), "no bar touches a group's name"


def test_a_long_tail_is_watched_while_it_is_made(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = (rng.random((4000, 80)) < 1 / np.arange(2, 82)).astype(np.uint8)
    assert "steps" not in (db.construction(Job(tmp_path, tmp_path)).figure or {}), "curves alone"
    (tmp_path / "labels").mkdir()
    np.savez(tmp_path / "labels" / "coco2014_train.npz", ids=np.arange(4000), Y=y)
    found = db.construction(Job(tmp_path, tmp_path)).figure or {}
    assert list(found["steps"]) == ["1", "21", "40", "60", "80"]
    taken = pareto_long_tail(Labels(y), 1200)
    order = np.argsort(-Labels(y).resampled_prior(), kind="stable")
    assert found["steps"]["80"] == y[taken].sum(0)[order].tolist()
    assert found["steps"]["1"][0] == 1200, "the first label is filled up first"


def test_test_items_are_counted_in_the_order_of_training(tmp_path: Path) -> None:
    VOC_MLT.generate(tmp_path)
    order = np.argsort(-VOC_MLT.open(tmp_path).train.labels.counts, kind="stable")
    here = db.to_test_on(Job(tmp_path, tmp_path)).figure or {}
    assert here["VOC-MLT"]["test"] == VOC_MLT.open(tmp_path).test.labels.counts[order].tolist()
    official = np.full((6, 20), -1, np.int8)
    official[:3, 14], official[3:5, 2], official[5, 2] = 1, 1, 0
    np.savez(tmp_path / "labels" / "voc2007_test_labels.npz", Y_official=official)
    found = (db.to_test_on(Job(tmp_path, tmp_path)).figure or {})["VOC-MLT"]
    assert found["test items"] == 6
    assert {name: n for name, n in zip(found["names"], found["test"], strict=True) if n} == {"person": 3, "bird": 3}


def test_a_sweep_is_drawn_over_its_values() -> None:
    pytest.importorskip("matplotlib")
    points = {1.0: {"mAP": (60.0, 1.0), "mAP tail": (40.0, 2.0)}, 5.0: {"mAP": (65.0, 0.5), "mAP tail": (50.0, 0.0)}}
    half = {v: {c: (mean, std / 2**0.5) for c, (mean, std) in of.items()} for v, of in points.items()}
    rows = tuple(
        RowResult(
            f"λ = {v:g}",
            tuple(RunResult(i, {c: m + sign * s for c, (m, s) in of.items()}) for i, sign in enumerate((-1, 1))),
        )
        for v, of in half.items()
    )
    figure = figures.sweep({"λ": {5.0: "λ = 5", 1.0: "λ = 1"}, "β": {1.0: "β = 1"}}, Result(("mAP", "mAP tail"), rows))
    assert len(figure.axes) == 1, "β was not run"
    drawn = {bars.get_label(): bars for bars in figure.axes[0].containers}
    lines = {name: list(bars.lines[0].get_ydata()) for name, bars in drawn.items()}
    assert lines == {"mAP": pytest.approx([60.0, 65.0]), "mAP tail": pytest.approx([40.0, 50.0])}
    (bars,) = drawn["mAP tail"].lines[2]
    ends = np.array([[y for _, y in ends] for ends in bars.get_segments()])
    np.testing.assert_allclose(ends, [[38.0, 42.0], [50.0, 50.0]])  # ± a deviation
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["1", "5"]
