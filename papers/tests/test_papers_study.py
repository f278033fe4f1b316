"""Rows × seeds: every run once, taken up where it was broken off, measured on the right items."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from steelyard._source import commit
from steelyard.config.recipes import AS_PAPERS
from steelyard.config.settings import load_config
from steelyard.data.dataset import ArrayDataset
from steelyard.labels import Labels
from steelyard.run.datasets import Datasets
from steelyard.run.resume import FREE, facts
from steelyard.training.checkpoint import History
from steelyard_papers import trial as trials
from steelyard_papers.study import Job, Measured, Row, claimed, note, noted, settings_of, study
from steelyard_papers.trial import Trial, key_of, read
from steelyard_papers.trial import tested_on as known_by

BASE: dict[str, Any] = {
    "data": {"validation": 0.0},
    "model": {"backbone": "mlp", "width": 8},
    "optimizer": {"kind": "sgd", "lr": 0.1},
    "train": {"epochs": 4, "batch_size": 16, "device": "cpu", "checkpoint_seconds": 0.0},
    "evaluate": {"calibration": "none", "thresholds": "half"},
}
ROWS = (Row("BCE"), Row("PLM", {"objective": {"masking": {"kind": "plm", "rate": 1.0}}}))


def items(n: int, seed: int) -> ArrayDataset:
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(n, 5)).astype(np.float32)
    values = (inputs[:, :3] + rng.normal(size=(n, 3)) > np.array([-0.5, 0.5, 1.5])).astype(np.int8)
    return ArrayDataset(inputs, Labels(values, names=["a", "b", "c"]))


def datasets(data: str = "", seed: int = 0) -> Datasets:
    return Datasets(items(60 + 4 * len(data) + seed, 1), None, items(30, 2), ("made up",))


def losses(trial: Trial) -> Measured:
    z, y = trial.logits.double(), trial.targets.double()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(z, y)
    ratios = [record.get("plm_ratio") for record in trial.history]
    return Measured({"loss": float(loss), "items": float(len(z))}, {"ratios": ratios})


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds of the trainings that were begun, in order."""
    seeds: list[int] = []
    original = trials.learn

    def learn(asked: Any, *args: Any) -> Any:
        seeds.append(asked.config.train.seed)
        return original(asked, *args)

    monkeypatch.setattr(trials, "learn", learn)
    return seeds


def job(out: Path, **more: Any) -> Job:
    return Job(Path(), out, **{"seeds": (0, 1), **more})


def run(asked: Job, rows: Any = ROWS, open_data: Callable[[str, int], Datasets] = datasets, **more: Any) -> Any:
    return study(asked, BASE, rows, open_data, losses, ("loss",), **more)


def test_every_run_is_trained_once_whoever_asks_for_it(tmp_path: Path, trained: list[int]) -> None:
    first = run(job(tmp_path))
    assert trained == [0, 1, 0, 1]
    again = run(job(tmp_path))
    assert trained == [0, 1, 0, 1]
    assert again == first
    renamed = [Row("another name", ROWS[1].settings)]
    part = run(job(tmp_path), renamed)
    assert trained == [0, 1, 0, 1]
    assert [r.values for r in part.rows[0].runs] == [r.values for r in first.row("PLM").runs]
    assert first.row("PLM").mean("loss") != first.row("BCE").mean("loss")
    assert first.row("PLM").runs[0].values != first.row("PLM").runs[1].values
    run(job(tmp_path, sets=("train.epochs=2",)))
    assert trained == [0, 1, 0, 1] * 2


def test_measures_of_the_same_run_do_not_mix(tmp_path: Path, trained: list[int]) -> None:
    def other(trial: Trial) -> Measured:
        return Measured({"positives": float(trial.targets.sum())})

    run(job(tmp_path, seeds=(0,)), ROWS[:1])
    found = study(job(tmp_path, seeds=(0,)), BASE, ROWS[:1], datasets, other, ("positives",))
    assert trained == [0]
    assert found.rows[0].mean("positives") == datasets().test.labels.counts.sum()


def test_the_data_is_opened_once_for_all_rows_and_seeds(tmp_path: Path) -> None:
    opened: list[tuple[str, int]] = []

    def open_data(data: str, seed: int) -> Datasets:
        opened.append((data, seed))
        return datasets(data, seed)

    rows = (ROWS[0], replace(ROWS[1], data="x"), replace(ROWS[0], name="third"))
    found = run(job(tmp_path / "one"), rows, open_data)
    assert opened == [("", 0), ("x", 0)]
    assert [r.name for r in found.rows] == ["BCE", "PLM", "third"]
    assert found.row("third").runs[0].values == found.row("BCE").runs[0].values
    opened.clear()
    run(job(tmp_path / "two"), rows[:1], open_data, seeded_data=True)
    assert opened == [("", 0), ("", 1)]


def test_a_run_that_was_killed_goes_on_and_ends_as_if_it_had_not_been(
    tmp_path: Path, trained: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = job(tmp_path / "killed", seeds=(3,))
    original = History.append

    def append(self: History, record: dict[str, Any]) -> None:
        original(self, record)
        if record["epoch"] == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(History, "append", append)
    with pytest.raises(KeyboardInterrupt):
        run(asked, ROWS[1:])
    monkeypatch.setattr(History, "append", original)
    (folder,) = (tmp_path / "killed" / "runs").iterdir()
    before = sorted(path.name for path in (folder / "checkpoint").glob("0*"))
    assert before
    assert not before[-1].startswith("000001-00000000")
    steps: list[int] = []
    monkeypatch.setattr(History, "append", lambda self, record: (steps.append(record["epoch"]), original(self, record)))
    found = run(asked, ROWS[1:])
    assert steps[0] > 1  # it did not begin anew
    whole = run(job(tmp_path / "whole", seeds=(3,)), ROWS[1:])
    assert found.rows[0].runs[0].values == whole.rows[0].runs[0].values
    assert found.rows[0].runs[0].details == whole.rows[0].runs[0].details
    one, other = (read(next((tmp_path / name / "runs").iterdir())) for name in ("killed", "whole"))
    assert torch.equal(one.logits, other.logits)
    assert not (one.folder / "checkpoint").exists()


def test_a_kill_between_training_and_measuring_costs_no_training(
    tmp_path: Path, trained: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = job(tmp_path, seeds=(0,))

    def broken(trial: Trial) -> Measured:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study(asked, BASE, ROWS[:1], datasets, broken, ("loss",))
    found = run(asked, ROWS[:1])
    assert trained == [0]
    assert found.rows[0].mean("items") == 30


def test_a_row_may_have_fewer_seeds(tmp_path: Path, trained: list[int]) -> None:
    found = run(job(tmp_path), (ROWS[0], replace(ROWS[1], most_seeds=1)))
    assert trained == [0, 1, 0]
    assert [len(r.runs) for r in found.rows] == [2, 1]


def test_with_validation_the_test_items_stay_unseen(tmp_path: Path, trained: list[int]) -> None:
    class Untouched(ArrayDataset):
        def __getitems__(self, indices: Any) -> Any:
            raise AssertionError("a test item was looked at")

    sets = datasets()
    hidden = sets._replace(test=Untouched(sets.test.inputs, sets.test.labels))
    found = run(job(tmp_path, seeds=(0,), validation=0.2), ROWS[:1], lambda *_: hidden)
    assert found.rows[0].mean("items") == pytest.approx(0.2 * len(sets.train), abs=2)
    assert "held out" in found.data
    tested = run(job(tmp_path, seeds=(0,)), ROWS[:1])
    assert trained == [0, 0]  # on fewer items it is another run
    assert tested.rows[0].mean("items") == 30


def test_settings_are_the_studys_then_the_rows_then_the_jobs(tmp_path: Path) -> None:
    row = Row("x", {"train": {"epochs": 7, "batch_size": 8}})
    config = settings_of(job(tmp_path, sets=("train.epochs=9", "model.width=4")), BASE, row, 5, datasets())
    assert (config.train.epochs, config.train.batch_size, config.train.seed) == (9, 8, 5)
    assert (config.model.width, config.model.backbone) == (4, "mlp")
    smoke = settings_of(job(tmp_path, smoke=True), BASE, row, 0, datasets())
    assert (smoke.train.epochs, smoke.model.backbone) == (1, "mlp")
    images = Datasets(ArrayDataset(np.zeros((4, 1, 8, 8), np.uint8), Labels(np.eye(4, dtype=np.int8))), None, None)
    assert settings_of(job(tmp_path, smoke=True), {}, Row("x"), 0, images).model.backbone == "small"


def test_a_run_is_known_by_what_changes_its_numbers(tmp_path: Path) -> None:
    def key(sets: Datasets, *texts: str, seed: int = 0, out: Path = tmp_path) -> str:
        return key_of(settings_of(job(out, sets=texts), BASE, Row("x"), seed, sets), sets)

    here = key(datasets())
    assert key(datasets(), "train.workers=3", out=tmp_path / "elsewhere") == here
    others = [
        key(datasets(), "train.epochs=5"),
        key(datasets(), seed=1),
        key(datasets("x")),
        key(datasets()._replace(test=items(31, 2))),
        key(datasets()._replace(train=ArrayDataset(datasets().train.inputs + 1, datasets().train.labels))),
        key(datasets(), "model.mirror=true"),
        key(datasets(), "model.keep_statistics=true"),
        key(datasets(), "model.bias=prior"),
    ]
    assert len({here, *others}) == 9


def test_runs_from_before_a_setting_came_are_known_again(tmp_path: Path) -> None:
    config = settings_of(job(tmp_path), BASE, Row("x"), 0, datasets())
    said = config.as_dict()
    later = {"model": ("mirror", "keep_statistics", "bias", "reachability"), "train": ("learner", "budget", "single")}
    for section, name in (*FREE, *((section, name) for section, names in later.items() for name in names)):
        said[section].pop(name)
    for name in ("names", "group", "audit", "text", "corrections", "embeddings", "categories"):
        said["data"].pop(name)
    said["evaluate"].pop("positives_per_item")
    sizes = [None if part is None else len(part) for part in datasets()[:3]]
    known = {name: value for name, value in facts(datasets()).items() if name != "corrections"}
    text = json.dumps([said, known, sizes], sort_keys=True)
    assert key_of(config, datasets()) == hashlib.sha256(text.encode()).hexdigest()[:12]


def test_runs_from_before_a_correction_are_not_known_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def keys(kind: str) -> set[str]:
        config = settings_of(job(tmp_path), BASE, Row("x", {"objective": {"weighting": {"kind": kind}}}), 0, datasets())
        found = {key_of(config, datasets())}
        for version in (None, 1):
            part = ("weighting", "inverse_frequency")
            monkeypatch.setattr(trials, "_CORRECTED", {part: version} if version else {})
            found.add(key_of(config, datasets()))
        monkeypatch.undo()
        return found

    assert len(keys("inverse_frequency")) == 3
    assert len(keys("class_balanced")) == 1


def test_a_new_setting_changes_no_key_of_a_ledger() -> None:
    """Should this fail, a setting or a fact is new: name it, with what it was before, in `trial._LATER`."""
    data = ArrayDataset(np.arange(12, dtype=np.float32).reshape(4, 3), Labels(np.eye(4, dtype=np.int8)))
    plain = Datasets(data, None, data)
    assert key_of(load_config(overrides=AS_PAPERS), plain) == "bcbc22525879"
    assert len(known_by(plain)) == 3


def test_a_result_says_what_its_runs_were_made_with(tmp_path: Path) -> None:
    said: list[str] = []
    found = run(job(tmp_path, sets=("train.epochs=2",), note="re-encoded", progress=said.append), ROWS[:1])
    assert found.changed == ("train.epochs=2",)
    assert found.data == "made up; re-encoded"
    assert found.versions["torch"] == torch.__version__
    assert found.hardware == ("CPU, 1 thread",)
    assert found.seconds == pytest.approx(sum(r.seconds for r in found.rows[0].runs))
    assert len(said) == 2
    assert said[0].startswith("BCE, seed 0: trained in")
    folder = next((tmp_path / "runs").iterdir())
    assert json.loads((folder / "trial.json").read_text())["facts"]["commit"] == found.commits[0]


def test_outside_a_checkout_the_commit_is_what_one_says(monkeypatch: pytest.MonkeyPatch) -> None:
    commit.cache_clear()
    monkeypatch.setenv("STEELYARD_COMMIT", "abc123")
    assert commit() == "abc123"
    commit.cache_clear()
    monkeypatch.delenv("STEELYARD_COMMIT")
    monkeypatch.setenv("PATH", "")
    assert commit() == "unknown"
    commit.cache_clear()


def test_the_reading_undoes_the_masking(tmp_path: Path) -> None:
    """PLM's runs keep the ratios of their last epoch: read by the link, logits move by log(r̄/r)."""
    run(job(tmp_path, seeds=(0,), sets=("evaluate.calibration=link",)), ROWS[1:])
    one = read(next((tmp_path / "runs").iterdir()))
    shift = np.log(np.array(one.history[-1]["plm_ratio"]) / (one.counts / (one.n_known - one.counts)))
    assert np.abs(shift).max() > 0.1
    np.testing.assert_allclose(
        one.probability_model.log_odds(one.logits), one.logits - torch.from_numpy(shift), atol=1e-4
    )


def test_a_rate_with_which_ratios_run_away_still_gives_numbers(tmp_path: Path) -> None:
    rows = [Row("PLM", {"objective": {"masking": {"kind": "plm", "rate": 500.0}}})]
    found = run(job(tmp_path, seeds=(0,)), rows)
    ratios = np.array(found.rows[0].runs[0].details["ratios"][-1])
    assert ratios.max() / ratios.min() > 1e300
    assert np.isfinite(found.rows[0].mean("loss"))


def test_a_kill_before_the_outputs_were_kept_costs_no_training(
    tmp_path: Path, trained: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, original = job(tmp_path, seeds=(0,)), trials.outputs_of

    def broken(*args: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(trials, "outputs_of", broken)
    with pytest.raises(KeyboardInterrupt):
        run(asked, ROWS[1:])
    monkeypatch.setattr(trials, "outputs_of", original)
    epochs: list[int] = []
    monkeypatch.setattr(History, "append", lambda self, record: epochs.append(record["epoch"]))
    found = run(asked, ROWS[1:])
    assert epochs == []
    assert len(found.rows[0].runs[0].details["ratios"]) == 4


@pytest.mark.parametrize("seeded_data", [False, True])
def test_a_run_that_another_process_is_at_comes_last(tmp_path: Path, trained: list[int], seeded_data: bool) -> None:
    asked = job(tmp_path, seeds=(0, 1))
    lock = tmp_path / "locks" / key_of(settings_of(asked, BASE, ROWS[0], 0, datasets()), datasets())
    with claimed(lock, waits=False) as ours:
        assert ours
        with claimed(lock, waits=False) as theirs:
            assert not theirs
        helper = threading.Thread(target=run, args=(asked, ROWS[:1]), kwargs={"seeded_data": seeded_data})
        helper.start()
        deadline = time.monotonic() + 60
        while trained != [1] and time.monotonic() < deadline:
            time.sleep(0.02)
        assert trained == [1], "the next one, while another process is at the first"
        assert helper.is_alive()
    helper.join(60)
    assert trained == [1, 0]


def test_a_ledger_keeps_what_is_drawn_of_the_first_seed_alone(tmp_path: Path) -> None:
    def measure(trial: Trial) -> Measured:
        return Measured({"x": 1.0}, {"by class": [1, 2]}, {"curve": [trial.config.train.seed]})

    for seeds in ((0, 1), (1, 0)):
        ledger = tmp_path / f"{seeds[0]}.jsonl"
        found = study(job(tmp_path, seeds=seeds, ledger=ledger), BASE, ROWS[:1], datasets, measure, ("x",))
        assert [one.details["curve"] for one in found.rows[0].runs] == [[seed] for seed in seeds]
        lines = [json.loads(line)["details"] for line in ledger.read_text().splitlines()]
        assert [line.get("curve") for line in lines] == [[seeds[0]], None]
        assert [line["by class"] for line in lines] == [[1, 2]] * 2


def test_a_ledger_stands_in_for_runs_that_are_gone(tmp_path: Path, trained: list[int]) -> None:
    ledger = tmp_path / "notes" / "ledger.jsonl"
    first = run(job(tmp_path / "a", ledger=ledger, seeds=(0,)))
    assert trained == [0, 0]
    more = run(job(tmp_path / "b", ledger=ledger))
    assert trained == [0, 0, 1, 1]
    for row, before in zip(more.rows, first.rows, strict=True):
        assert row.runs[0].values == before.runs[0].values
        assert row.runs[0].seconds == before.runs[0].seconds
        was = before.runs[0].details["ratios"]
        assert (was[0] is None) == (row.name == "BCE")
        for one, other in zip(row.runs[0].details["ratios"], was, strict=True):
            assert one == (other if other is None else pytest.approx(other, rel=1e-3))
    assert more.commits == first.commits
    assert more.seconds > first.seconds
    again = run(job(tmp_path / "c", ledger=ledger))
    assert trained == [0, 0, 1, 1]
    assert [row.values("loss") for row in again.rows] == [row.values("loss") for row in more.rows]
    assert not (tmp_path / "c" / "runs").exists()


def test_finished_runs_are_noted_and_other_settings_are_not_taken(tmp_path: Path, trained: list[int]) -> None:
    def loss(out: str, **more: Any) -> list[float]:
        return list(run(job(tmp_path / out, seeds=(0,), **more), ROWS[:1]).rows[0].values("loss"))

    ledger = tmp_path / "ledger.jsonl"
    plain = loss("a")
    assert loss("a", ledger=ledger) == plain
    assert len(ledger.read_text().splitlines()) == 1
    assert loss("b", ledger=ledger) == plain
    assert trained == [0]
    loss("b", ledger=ledger, sets=("train.epochs=3",))
    loss("b", ledger=ledger, validation=0.2)
    assert trained == [0] * 3
    ledger.write_text(ledger.read_text().replace('"losses"', '"others"'))  # by another measure
    loss("c", ledger=ledger)
    assert trained == [0] * 4


def test_a_damaged_line_of_a_ledger_is_passed_over(tmp_path: Path, trained: list[int]) -> None:
    ledger = tmp_path / "ledger.jsonl"

    def loss(out: str) -> list[float]:
        return list(run(job(tmp_path / out, ledger=ledger, seeds=(0,)), ROWS[:1]).rows[0].values("loss"))

    first = loss("a")
    (line,) = ledger.read_text().splitlines()
    key = json.loads(line)["key"]
    worse = [f'{{"key": "{key}"}}', f'["{key}"]', line.replace('"facts": {', '"facts": {"x": {'), line[:-30]]
    ledger.write_text("\n".join(worse))  # the last without its end, as a full disk leaves it
    assert loss("b") == first
    assert trained == [0, 0]
    assert len(ledger.read_text().splitlines()) == 5
    assert loss("c") == first
    assert trained == [0, 0]


def test_a_ledger_that_cannot_be_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for bad in (tmp_path, tmp_path / "file" / "ledger.jsonl", tmp_path / "file" / "x" / "ledger.jsonl"):
        with pytest.raises(ValueError, match="which no file can be written to: name another"):
            job(tmp_path / "a", ledger=bad)
    for content in (b"\x89PNG\r\n", b"label\n", b'{"format": 1}', b"[]"):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(ValueError, match="other, which exists but is not a ledger: pass a ledger or a new path"):
            job(tmp_path / "a", ledger=tmp_path / "other")
        assert (tmp_path / "other").read_bytes() == content
    (tmp_path / "cut off").write_bytes(b'{"ke')
    for good in (tmp_path / "file", tmp_path / "cut off", tmp_path / "x" / "y" / "ledger.jsonl", Path("ledger.jsonl")):
        assert job(tmp_path / "a", ledger=good).ledger == good


def test_a_ledger_that_cannot_be_written_any_more_is_named_and_the_run_is_kept(
    tmp_path: Path, trained: list[int]
) -> None:
    ledger = tmp_path / "x" / "ledger.jsonl"
    asked = job(tmp_path / "a", ledger=ledger, seeds=(0,))
    (tmp_path / "x").touch()
    with pytest.raises(OSError, match="x") as caught:
        run(asked, ROWS[:1])
    assert caught.value.filename == str(ledger)
    run(job(tmp_path / "a", seeds=(0,)), ROWS[:1])
    assert trained == [0]


def test_the_copy_of_the_data_is_that_which_runs_saw(tmp_path: Path) -> None:
    def data(out: str, **more: Any) -> str:
        return str(run(job(tmp_path / out, **{"seeds": (0,), **more}), ROWS[:1]).data)

    ledger = tmp_path / "ledger.jsonl"
    assert data("a", ledger=ledger, note="blurred") == "made up; blurred"
    assert data("a", note="sharp") == "made up; blurred", "a run keeps what was said of its data"
    assert data("b", ledger=ledger) == "made up; blurred", "and so does a ledger"
    assert data("b", ledger=ledger, seeds=(0, 1), note="sharp") == "made up; blurred; sharp"


def test_a_trial_on_generated_data_is_not_noted(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    run(job(tmp_path / "a", ledger=ledger, seeds=(0,), smoke=True), ROWS[:1])
    assert not ledger.exists()


def test_other_test_items_are_not_taken_for_those_of_a_run(tmp_path: Path, trained: list[int]) -> None:
    def others(data: str, seed: int) -> Datasets:
        return datasets(data, seed)._replace(test=items(30, 3))

    ledger = tmp_path / "ledger.jsonl"
    first = run(job(tmp_path / "a", seeds=(0,), ledger=ledger), ROWS[:1])
    with pytest.raises(ValueError, match="was tested on other items: delete it to train it again, or give another"):
        run(job(tmp_path / "a", seeds=(0,)), ROWS[:1], others)
    second = run(job(tmp_path / "b", seeds=(0,), ledger=ledger), ROWS[:1], others)
    assert trained == [0, 0]
    assert second.rows[0].values("loss") != first.rows[0].values("loss")
    before = {"note", "test"}  # lines that were noted before they said so are taken
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    for line in lines:
        line["facts"] = {key: value for key, value in line["facts"].items() if key not in before}
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines[:1]))
    third = run(job(tmp_path / "c", seeds=(0,), ledger=ledger, note="a copy"), ROWS[:1])
    assert third.rows[0].values("loss") == first.rows[0].values("loss")
    assert third.data == "made up; a copy"
    assert trained == [0, 0]


def test_a_corrected_measure_has_another_name_and_old_numbers_stay_apart(tmp_path: Path, trained: list[int]) -> None:
    """Wherever its source lies, a measure is known by its name: in the folder of a run and in a ledger."""

    def first(trial: Trial) -> Measured:
        return Measured({"x": 1.0})

    def second(trial: Trial) -> Measured:
        return Measured({"x": 2.0})

    asked = job(tmp_path / "a", seeds=(0,), ledger=tmp_path / "ledger.jsonl")
    for measure, number in ((first, 1.0), (second, 2.0), (first, 1.0)):
        assert study(asked, BASE, ROWS[:1], datasets, measure, ("x",)).rows[0].mean("x") == number
    assert trained == [0]
    (folder,) = (tmp_path / "a" / "runs").iterdir()
    assert sorted(file.name for file in folder.glob("measured-*")) == ["measured-first.json", "measured-second.json"]
    lines = [json.loads(line)["measure"] for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert lines == ["first", "second"]
    (folder / "measured-first.json").write_text((folder / "measured-first.json").read_text().replace("1.0", "3.0", 1))
    plain = job(tmp_path / "a", seeds=(0,))
    assert study(plain, BASE, ROWS[:1], datasets, first, ("x",)).rows[0].mean("x") == 1.0, "a corrupt file is no result"


def test_what_is_left_to_train_is_said_first(tmp_path: Path, trained: list[int]) -> None:
    told: list[str] = []
    ledger = tmp_path / "ledger.jsonl"
    run(job(tmp_path / "a", ledger=ledger, seeds=(0,), progress=told.append), ROWS[:1])
    assert told[0] == "1 runs, 0 of them in the ledger; 1 to train"
    told.clear()
    run(job(tmp_path / "b", ledger=ledger, seeds=(0, 1), progress=told.append))
    assert told[0].startswith("4 runs, 1 of them in the ledger; 3 to train, about 0.")
    assert told[0].endswith(" minutes by the seconds of those that it notes")
    told.clear()
    run(job(tmp_path / "c", ledger=ledger, seeds=(0, 1), progress=told.append))
    assert told == []


@pytest.mark.parametrize("sign", "\u2028\x85\x0b\n\r")
def test_a_line_of_a_ledger_is_found_again_whatever_its_note_holds(tmp_path: Path, sign: str) -> None:
    facts = {"seconds": 1.0, "device": "CPU", "versions": {}, "commit": "c0ffee", "note": f"one{sign}two"}
    for value in (1.0, 2.0):
        note(tmp_path / "ledger.jsonl", "key", "losses", {"values": {"x": value}, "details": {}, "facts": facts})
    line = noted(tmp_path / "ledger.jsonl", "key", "losses")
    assert line is not None
    assert (line["values"], line["facts"]) == ({"x": 2.0}, facts), "the latest"


def test_what_cannot_be_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="bytes that are not UTF-8"):
        job(tmp_path, note="caf\udce9")
    with pytest.raises(ValueError, match=r"train\.seed is not to be set here: --seeds says"):
        job(tmp_path, sets=("train.seed=7",))
    with pytest.raises(ValueError, match=r"data\.cache is not to be set here"):
        job(tmp_path, sets=("data.cache=x",))


def test_what_is_not_a_number_is_left_out_of_means(tmp_path: Path) -> None:
    def undefined(trial: Trial) -> Measured:
        return Measured({"mAP": float("nan") if trial.config.train.seed else 50.0})

    (row,) = study(job(tmp_path), BASE, ROWS[:1], datasets, undefined, ("mAP",)).rows
    assert (row.mean("mAP"), row.std("mAP")) == (50.0, None)


def test_an_unfinished_run_that_cannot_go_on_says_what_to_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def learn(*_: Any) -> Any:
        raise ValueError("x holds an unfinished run on other labels: give the same to go on, --overwrite to start anew")

    monkeypatch.setattr(trials, "learn", learn)
    with pytest.raises(ValueError, match=r"x holds an unfinished run on other labels: delete .* to train it again"):
        run(job(tmp_path, seeds=(0,)), ROWS[:1])
