"""Automatic settings of training: what they become, that the run keeps them, and when a run has not converged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import steelyard as sy
from run_data import items
from steelyard.balance.samplers import ClassAware
from steelyard.config import recipes
from steelyard.config.settings import Config, load_config
from steelyard.labels import Labels
from steelyard.training.budget import Workload, batch_for, draws_of, epochs_for, monitored, settled
from steelyard.training.loop import _converged
from steelyard.training.settings import SamplerSettings, ScheduleSettings, TrainSettings

FULL = Labels(np.random.default_rng(0).integers(0, 2, (40, 3)))


def work(**changes: Any) -> Workload:
    return Workload(FULL, 40, FULL, False, True, False)._replace(**changes)


@pytest.mark.parametrize(
    ("n", "batch"), [(1, 16), (300, 16), (639, 16), (640, 32), (2559, 64), (2560, 128), (10**6, 128)]
)
def test_batches_suit_the_number_of_items(n: int, batch: int) -> None:
    assert batch_for(n) == batch


def test_a_batch_can_be_shared_by_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steelyard.training.budget.n_processes", lambda: 3)
    assert batch_for(100) == 18


@pytest.mark.parametrize(
    ("steps", "epochs"), [(1, 100), (19, 100), (20, 100), (47, 43), (66, 31), (67, 30), (9000, 30)]
)
def test_epochs_make_two_thousand_steps(steps: int, epochs: int) -> None:
    assert epochs_for(steps, False) == epochs
    assert epochs_for(steps, True) == 30


def test_draws_are_those_of_the_sampler() -> None:
    assert draws_of(SamplerSettings("class_aware"), FULL) == len(ClassAware(FULL))
    assert draws_of(SamplerSettings("class_aware", visits=7), FULL) == 21
    assert draws_of(SamplerSettings(), FULL) == 40
    assert draws_of(SamplerSettings("undersample", per_class=2), FULL) == 6


def test_what_is_given_stays_and_twice_is_as_once() -> None:
    given = TrainSettings(epochs=7, batch_size=5, monitor="f1", patience=0), ScheduleSettings(warmup_epochs=0)
    assert settled(*given, work()) == given
    once = settled(TrainSettings(), ScheduleSettings(), work())
    assert once[0].epochs == 100
    assert (once[0].batch_size, once[0].monitor, once[0].patience) == (16, "loss", 20)
    assert once[1].warmup_epochs == 5
    assert settled(*once, work(is_costly=True)) == once
    assert settled(TrainSettings(), ScheduleSettings(), work(validation=None))[0].patience == 0
    rarely = settled(TrainSettings(epochs=20, validate_every=10), ScheduleSettings(), work())[0]
    assert rarely.patience == 20


def test_the_monitor_suits_objective_and_labels() -> None:
    holes = np.array([[1, -1], [0, 1], [-1, 0]])
    partly, positives = Labels(holes), Labels(np.where(holes == 1, 1, -1))
    assert monitored(work()) == "loss"
    assert monitored(work(has_link=False)) == "map"
    assert monitored(work(assumes_negative=True)) == "loss"
    assert monitored(work(validation=partly)) == "loss"
    assert monitored(work(validation=partly, assumes_negative=True)) == "assumed_loss"
    assert monitored(work(validation=positives)) == "assumed_map"
    assert monitored(work(validation=positives, assumes_negative=True, has_link=False)) == "assumed_map"
    assert monitored(work(validation=None)) == "loss"


# ---- runs


def test_a_run_keeps_what_automatic_settings_became(tmp_path: Path) -> None:
    given = {"train": {"epochs": 3, "device": "cpu"}}
    sy.fit(items(200), "bce", out=tmp_path / "run", settings=given, verbose=False)
    config = load_config(tmp_path / "run" / "config.toml")
    assert (config.train.epochs, config.train.batch_size, config.train.monitor) == (3, 16, "loss")
    assert config.train.patience == 5
    assert config.schedule.warmup_epochs == pytest.approx(0.15)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["converged"] in (True, False)
    sy.fit(items(200), "bce", out=tmp_path / "held", validation=0, settings=given, verbose=False)
    assert json.loads((tmp_path / "held" / "run.json").read_text())["converged"] is None


def test_a_run_of_positives_alone_does_not_keep_its_first_epoch(tmp_path: Path) -> None:
    """mAP of known labels is 1 from the start where no absent one is known."""
    x, y = items(300)
    given = {"train": {"epochs": 8, "device": "cpu"}, "optimizer": {"lr": 0.03}}
    sy.fit((x, np.where(y == 1, 1, -1)), "wan", out=tmp_path / "run", settings=given, verbose=False)
    assert load_config(tmp_path / "run" / "config.toml").train.monitor == "assumed_loss"
    assert json.loads((tmp_path / "run" / "run.json").read_text())["kept_epoch"] > 1
    history = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert history[-1]["validation"]["assumed_loss"] < history[0]["validation"]["assumed_loss"]


def test_a_monitor_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"train.monitor is 'assumed_map', but no validation label is unknown"):
        sy.fit(items(), "bce", settings={"train": {"monitor": "assumed_map"}}, verbose=False)
    x, y = items(unknown=0.3)
    with pytest.raises(ValueError, match=r"train.monitor is 'assumed_loss', but objective.loss 'two_way'"):
        sy.fit((x, y), "two-way", settings={"train": {"monitor": "assumed_loss"}}, verbose=False)


@pytest.mark.parametrize(
    ("values", "monitor", "converged"),
    [
        ([0.5, 0.4, 0.3], "loss", False),
        ([0.5, 0.3, 0.299], "loss", True),
        ([0.5, 0.3, 0.4], "loss", True),
        ([0.5, 0.6, 0.7], "map", False),
        ([0.5, 0.7, 0.6], "map", True),
        ([0.3] * 18 + [0.25, 0.25], "loss", False),
        ([0.3] * 17 + [0.25] * 3, "loss", True),
        ([None, None], "loss", None),
        ([], "loss", None),
    ],
)
def test_still_improving_at_the_end(values: list[float | None], monitor: str, converged: bool | None) -> None:
    records: list[dict[str, Any]] = [{"epoch": i, "validation": {monitor: v}} for i, v in enumerate(values)]
    assert _converged([{"epoch": 0}, *records], monitor) is converged


def test_what_did_not_converge_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"train": {"epochs": 2, "device": "cpu"}, "optimizer": {"lr": 0.05}}
    sy.fit(items(300), "bce", out=tmp_path / "run", settings=given)
    assert "improving at the last epoch: raise train.epochs." in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "run.json").read_text())["converged"] is False


# ---- the papers


def test_set_ups_of_papers_have_the_defaults_of_before() -> None:
    """Nothing is automatic in them, and the bias starts at 0: their tables stay what they are."""
    before = load_config(overrides=recipes.AS_PAPERS)
    assert (before.train.epochs, before.train.batch_size, before.train.monitor, before.train.patience) == (
        *(30, 128, "map", 0),
    )
    assert (before.schedule.warmup_epochs, before.model.bias) == (0, "zero")
    for name, recipe in recipes.SETUPS.items():
        config = load_config(recipe=name)
        wanted = before.with_overrides(recipe.settings)
        assert config == wanted, name
    assert Config().model.bias == "prior"
