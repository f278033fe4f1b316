"""SPA and LPR: how logits are read, what is measured, and what is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

from steelyard.config.settings import load_config
from steelyard.losses import SPA, Asymmetric
from steelyard_papers import figures, spa
from steelyard_papers.command import prepared, reproduce
from steelyard_papers.result import Result, RowResult, RunResult
from steelyard_papers.spa import (
    LINK,
    RUNS,
    SIGMA,
    TABLE3,
    TABLE4,
    TEMPERATURE,
    at_chosen_epoch,
    equal_accuracy,
    error_at,
    held_out_loss,
    readings,
    spa_scores,
)
from steelyard_papers.study import Job
from steelyard_papers.trial import Trial, read

BY_NAME = {entry.name: entry for entry in spa.ENTRIES}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Run a reproduction on generated data; the runs of one are there for the next."""
    out = tmp_path_factory.mktemp("papers")

    def run(name: str, *patterns: str) -> Any:
        with prepared(BY_NAME[name], Job(out, out, rows=patterns, smoke=True)) as job:
            return reproduce(BY_NAME[name], replace(job, out=out)), out

    return run


@pytest.fixture(scope="module")
def trials(smoke: Callable[..., Any]) -> dict[str, Trial]:
    """Finished runs of three losses, by the kind of their loss."""
    _, out = smoke("spa-table3", "BCE", "SPA", "TWL + TS")
    found = [read(folder) for folder in (out / "runs").iterdir()]
    return {trial.config.objective.loss.kind: trial for trial in found}


FEATURES = ("spa-table3-features", "spa-table4-features")


def test_rows_are_readings_of_trainings_that_exist() -> None:
    for table in (TABLE3, TABLE4, spa.FIGURE1, spa.FIGURE3, spa.FIGURE4, spa.ANSWERS):
        assert {run for run, _ in table.values()} <= set(RUNS)
    configs = {name: load_config(overrides=spa.FINE).with_overrides(row.settings) for name, row in RUNS.items()}
    assert len({str(config.as_dict()) for config in configs.values()}) == len(RUNS), "no two are the same"
    for name, config in configs.items():
        pairs = config.objective.label_pair
        assert (pairs.kind == "on") == ("LPR" in name), name
        if "LPR" in name:
            assert pairs.arguments["weight"] == 1.0
            on_logits = name in ("focal + LPR", "ASY + LPR")
            assert pairs.arguments["link"] is not on_logits, "as the paper's Table 4 seems to be"
        assert config.optimizer.kind == "sgd"
        assert (config.optimizer.momentum, config.optimizer.weight_decay) == (0.9, 1e-4)
        assert (config.data.size, config.train.batch_size) == (224, 256)
    assert configs["TWL + TS"].data.validation == 0.1
    assert configs["SPA"].objective.loss.arguments == {
        "zeta_pos": 1.0,
        "k_pos": 1.0,
        "b_pos": 0.0,
        "zeta_neg": 5.0,
        "k_neg": 3.0,
        "b_neg": 1.0,
    }


def test_tables_over_features_have_the_numbers_in_print_beside_them(smoke: Callable[..., Any]) -> None:
    for name in FEATURES:
        found, out = smoke(name, "BCE", "SPA + LPR")
        published = BY_NAME[name].printed
        assert published is not None
        assert set(found.columns) <= set(published.columns)
        assert [row.name for row in found.rows] == ["BCE", "SPA + LPR"]
        assert "epochs chosen on COCO 2014, by seed" in (out / f"{name}.md").read_text().lower().replace("coco", "COCO")


def test_links_are_told_from_sigma() -> None:
    facts = {name: spa.link_facts(loss) for name, loss in spa.LOSSES.items()}
    assert facts["BCE"].away == pytest.approx(0, abs=1e-12)
    assert facts["BCE"].rises
    assert facts["SPA"].rises
    assert facts["SPA"].most == pytest.approx(1, abs=1e-6)
    assert not facts["ASY"].rises, "below the margin its negatives cost nothing, and η stays 0"
    detached = spa.link_facts(Asymmetric())
    assert detached.most == pytest.approx(0.942, abs=1e-3), "what PAPERS say that it tops out at"
    z = torch.linspace(-30, 30, 60_001, dtype=torch.float64)
    upper = (3 / 5) * torch.sigmoid(3 * (z - 1))
    eta = upper / (upper + torch.sigmoid(-z))
    assert facts["SPA"].away == pytest.approx(float((eta - torch.sigmoid(z)).abs().max()), rel=1e-9)


def test_readings_are_those_of_the_loss(trials: dict[str, Trial]) -> None:
    plain = readings(trials["bce"])
    assert set(plain) == {SIGMA, LINK, TEMPERATURE}
    torch.testing.assert_close(plain[SIGMA], plain[LINK], rtol=0, atol=1e-6)
    found, z = readings(trials["spa"]), trials["spa"].logits
    torch.testing.assert_close(found[LINK].double(), SPA().probability(z.double()), rtol=0, atol=1e-6)
    assert float((found[LINK] - found[SIGMA]).abs().max()) > 0.05
    ranked = trials["two_way"]
    assert LINK not in readings(ranked), "it has none"
    generator = torch.Generator().manual_seed(0)
    held = torch.randn(4000, 20, generator=generator) * 4
    truth = (torch.rand(4000, 20, generator=generator) < torch.sigmoid(held / 2)).to(torch.int8)
    fitted = readings(replace(ranked, outputs={"validation": (held, truth), "test": ranked.outputs["test"]}))
    torch.testing.assert_close(fitted["T"], torch.sigmoid(ranked.logits / 2), rtol=0, atol=0.02)
    assert LINK not in fitted


def test_scores_are_those_of_the_definitions(trials: dict[str, Trial]) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    trial = at_chosen_epoch(trials["spa"])[0]
    z, y = trial.logits.double().numpy(), trial.targets.numpy()
    found = spa_scores(trials["spa"])
    by_label = [sklearn.average_precision_score(y[:, c], z[:, c]) for c in range(y.shape[1]) if y[:, c].any()]
    by_item = [sklearn.average_precision_score(row, score) for row, score in zip(y, z, strict=True) if row.any()]
    assert found.values["mAP@y"] == pytest.approx(100 * np.mean(by_label), rel=1e-5)
    assert found.values["mAP@x"] == pytest.approx(100 * np.mean(by_item), rel=1e-5)
    for how, eta in readings(trial).items():
        p, t = eta.double().numpy().ravel(), y.ravel()
        place = np.minimum((p * 15).astype(int), 14)
        gaps = [abs(p[place == b].mean() - t[place == b].mean()) for b in range(15) if (place == b).any()]
        assert found.values[f"ACE by {how}"] == pytest.approx(100 * np.mean(gaps), abs=0.2)
        assert found.values[f"MCE by {how}"] == pytest.approx(100 * np.max(gaps), abs=0.2)
        assert sum(found.details["bins"][how]["counts"]) == y.size


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trial]:
    """Runs of three epochs, by the kind of their loss."""
    out = tmp_path_factory.mktemp("followed")
    job = Job(out, out, rows=("SPA", "TWL"), smoke=True, sets=("train.epochs=3", "optimizer.lr=0.05"))
    with prepared(BY_NAME["spa-epochs"], job) as ready:
        spa._along(TABLE3, replace(ready, out=out))
    found = [read(folder) for folder in (out / "runs").iterdir()]
    return {trial.config.objective.loss.kind: trial for trial in found}


@pytest.mark.parametrize("kind", ["spa", "two_way"])
def test_the_epoch_of_the_least_held_out_loss_is_taken(followed: dict[str, Trial], kind: str) -> None:
    trial = followed[kind]
    shown, each, epoch = at_chosen_epoch(trial)
    assert len(each) == 3 == len(trial.history)
    for part in ("validation", "test"):
        torch.testing.assert_close(each[-1].outputs[part][0], trial.outputs[part][0])
    assert not torch.equal(each[0].logits, each[1].logits)
    losses = []
    for one in each:
        z, t = (part.double().numpy() for part in one.outputs["validation"])
        if kind == "spa":
            upper, lower = 3 / 5 / (1 + np.exp(-3 * (z - 1))), 1 / (1 + np.exp(z))
            losses.append(_log_loss(upper / (upper + lower), t))
        else:  # the best of all temperatures
            losses.append(min(_log_loss(1 / (1 + np.exp(-z * slope)), t) for slope in np.geomspace(1e-3, 1e2, 4001)))
        assert held_out_loss(one) == pytest.approx(losses[-1], rel=1e-4)
    assert epoch == 1 + int(np.argmin(losses))
    torch.testing.assert_close(shown.logits, each[epoch - 1].logits)
    found = spa_scores(trial)
    assert found.details["epoch"] == epoch
    along = found.details["epochs"]
    assert along[epoch - 1]["mAP@y"] == found.values["mAP@y"]
    assert [one["held-out log-loss"] for one in along] == pytest.approx(losses, rel=1e-4)
    assert len({one["mAP@y"] for one in along}) > 1


def _log_loss(eta: Any, t: Any) -> float:
    return float(-(t * np.log(eta) + (1 - t) * np.log(1 - eta)).mean())


def test_a_run_that_was_not_followed_has_no_epochs(trials: dict[str, Trial]) -> None:
    trial = replace(trials["spa"], folder=Path("elsewhere"))
    assert at_chosen_epoch(trial) == (trial, [], 0)
    with pytest.raises(ValueError, match="elsewhere"):
        trial.after_epochs()


@pytest.mark.parametrize(
    ("maps", "errors", "level", "wanted"),
    [
        ([50, 60, 70], [1, 2, 5], 65, 3.5),
        ([50, 60, 70], [1, 2, 5], 60, 2),
        ([70, 60, 80], [1, 2, 5], 65, 1),  # the first time counts
        ([50, 70, 60, 80], [4, 2, 9, 1], 65, 2.5),
    ],
)
def test_the_error_at_an_accuracy_is_on_the_line_between_epochs(
    maps: list[float], errors: list[float], level: float, wanted: float
) -> None:
    assert error_at(maps, errors, level) == pytest.approx(wanted)
    assert equal_accuracy({"a": [(maps, errors)], "b": [([1, level, 2], [0, 0, 0]), ([99], [0])]}) == level


def test_a_table_reads_one_training_in_several_ways(smoke: Callable[..., Any]) -> None:
    found, _out = smoke("spa-table3", "SPA*")
    assert [row.name for row in found.rows] == ["SPA by σ", "SPA", "SPA + LPR"]
    by_sigma, by_link = found.rows[:2]
    assert by_sigma.mean("mAP@y on VOC 2012") == by_link.mean("mAP@y on VOC 2012")
    assert by_sigma.mean("ACE on VOC 2012") != by_link.mean("ACE on VOC 2012")
    with pytest.raises(ValueError, match=r"there is no row 'SAP': choose from 'BCE', 'focal"):
        smoke("spa-table3", "SAP")


def test_the_figures_of_the_runs_train_nothing_new(smoke: Callable[..., Any]) -> None:
    pytest.importorskip("matplotlib")
    _, out = smoke("spa-table3", "focal", "ASY", "SPA", "SPA + LPR", "BCE")
    with prepared(BY_NAME["spa-fig4"], Job(out, out, smoke=True)) as job:
        BY_NAME["spa-table4"].run(replace(job, out=out, rows=("BCE", "ASY", "SPA", "SPA + LPR")))
        before = set((out / "runs").iterdir())
        assert list(BY_NAME["spa-fig1"].run(replace(job, out=out)).figure or {}) == list(spa.FIGURE1)
        found = BY_NAME["spa-fig4"].run(replace(job, out=out))
    assert set((out / "runs").iterdir()) == before
    assert str(job.data_root) not in found.to_json(), "no path of this machine"
    queries = found.figure["queries"]
    assert [query["text"] for query in queries] == [
        *("dog, person, not sofa, not car", "bicycle, person, not car", "chair, diningtable, not person")
    ]
    for query in queries:
        assert list(query["runs"]) == ["BCE", "ASY", "SPA", "SPA + LPR"]
        for hits in query["runs"].values():
            assert len(hits["ids"]) == len(hits["right"]) == 6
    for row in found.rows:
        right = [sum(query["runs"][row.name]["right"]) for query in queries]
        assert [row.mean(column) for column in found.columns] == right
    draw = BY_NAME["spa-fig4"].draw
    drawn = draw(type(found).from_json(found.to_json()))
    assert not any(axes.images for axes in drawn.axes), "no photograph is passed on"
    names = [id_.replace("_", "\n") for query in queries for hits in query["runs"].values() for id_ in hits["ids"]]
    assert [text.get_text() for axes in drawn.axes for text in axes.texts] == names


def test_photographs_that_are_at_hand_are_shown(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    Image.new("RGB", (20, 10), (200, 0, 0)).save(tmp_path / "b.png")
    hits = {"ids": ["a", "b"], "right": [False, True]}
    queries = [{"text": "dog", "runs": {"BCE": hits, "SPA": hits}}]
    first = RunResult(0, {}, details={"files": {"b": str(tmp_path / "b.png")}})
    named, shown, *_ = figures.retrieved(Result(rows=(RowResult("BCE", (first,)),), figure={"queries": queries})).axes
    assert [text.get_text() for text in named.texts] == ["a"]
    assert not named.images
    assert not shown.texts
    pixels = np.asarray(shown.images[0].get_array())
    assert pixels.shape[1] == 2 * pixels.shape[0]
    np.testing.assert_array_equal(np.unique(pixels.reshape(-1, 3), axis=0), [[200, 0, 0]])
    assert named.spines["left"].get_edgecolor() != shown.spines["left"].get_edgecolor()


def test_the_best_items_are_those_of_the_product() -> None:
    rng = np.random.default_rng(0)
    eta = rng.random((40, 5))
    eta[3, 2] = 1.0
    product_ = eta[:, 0] * eta[:, 1] * (1 - eta[:, 2])
    found = spa.best_items(eta, (0, 1), (2,), 6)
    np.testing.assert_array_equal(found, np.argsort(-product_, kind="stable")[:6])
    assert 3 not in found.tolist()


def test_retrieval_is_the_mean_over_queries(trials: dict[str, Trial]) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    trial = trials["spa"]
    few = replace(
        trial,
        folder=Path("none of its epochs"),
        outputs={"test": (trial.logits[:, :4], (trial.targets[:, :4] > 0).to(torch.int8))},
        probability_model=replace(trial.probability_model, link=None),
    )
    found = spa.spa_retrieval_by_sigma(few)
    eta, y = torch.sigmoid(few.logits).double().numpy(), few.targets.numpy()
    by_terms: dict[int, list[float]] = {}
    for k in range(1, 5):
        for labels in combinations(range(4), k):
            for signs in product((True, False), repeat=k):
                relevant = np.all([y[:, c] == sign for c, sign in zip(labels, signs, strict=True)], axis=0)
                if any(signs) and relevant.any():
                    parts = [eta[:, c] if sign else 1 - eta[:, c] for c, sign in zip(labels, signs, strict=True)]
                    score = sklearn.average_precision_score(relevant, np.prod(parts, axis=0))
                    by_terms.setdefault(k, []).append(score)
    every = [score for scores in by_terms.values() for score in scores]
    assert found.values["retrieval mAP"] == pytest.approx(100 * np.mean(every), abs=1e-3)
    assert found.details["queries"] == len(every)
    for k, scores in by_terms.items():
        assert found.details["by_terms"][str(k)] == pytest.approx(100 * np.mean(scores), abs=1e-3)


def test_answers_are_scored_by_how_many_people_gave_them() -> None:
    class Said:
        logits = torch.tensor([[3.0, 1.0, 0.0], [0.0, 2.0, 1.0]])
        targets = torch.tensor([[1 / 3, 1.0, 0.0], [0.0, 1.0, 0.0]])

        outputs: ClassVar[dict[str, Any]] = {}

        class probability_model:
            link = None

    found = spa.spa_answers(Said())  # type: ignore[arg-type]
    assert found.values["accuracy"] == pytest.approx(100 * (1 / 3 + 1) / 2)
    assert found.values["ACE by σ"] > 0


def test_questions_and_formulas_run_on_generated_data(smoke: Callable[..., Any], tmp_path: Path) -> None:
    found, _ = smoke("spa-vqa", "BCE", "SPA")
    assert [row.name for row in found.rows] == ["BCE", "SPA"]
    assert all(0 <= (row.mean("accuracy") or -1) <= 100 for row in found.rows)
    losses, _ = smoke("spa-table1")
    assert losses.row("SPA").mean("one to one") == 1
    assert losses.row("ASY").mean("one to one") == 0
    assert losses.row("TWL").mean("one to one") is None
