"""The folder of a run: created, continued, refused, loaded bit for bit, and every kind of damage named."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from small_run import items, part, saved_run, small_run
from steelyard.calibrate.aim import Aim
from steelyard.data import ArrayDataset
from steelyard.folder.run_folder import RunFolder
from steelyard.labels import Labels
from steelyard.run.datasets import Datasets
from steelyard.run.resume import facts


def test_a_run_comes_back_bit_for_bit(tmp_path: Path) -> None:
    trained = small_run(part("spa"))
    data = items(50)
    x = torch.from_numpy(data.inputs)
    with torch.inference_mode():
        z = trained.model(x)
    fitted = trained.probability_model.fit(z, data.labels.values, "platt")
    fitted = fitted.with_thresholds(Aim("f1"), fitted.out_of_fold(z, data.labels.values), data.labels.values)
    trained = trained.read_by(fitted)
    run = saved_run(tmp_path / "run", trained)
    loaded = RunFolder(str(run.path)).load()
    with torch.inference_mode():
        assert torch.equal(loaded.model(x), z)
    assert torch.equal(loaded.probability_model.probability(z), trained.probability_model.probability(z))
    for name in ("counts", "n_known", "prior", "thresholds"):
        assert np.array_equal(getattr(loaded, name), getattr(trained, name))
    assert loaded.names == trained.names
    assert loaded.config == trained.config
    assert loaded.folder == run.path
    assert not loaded.model.training
    assert not loaded.single_label
    assert not list(run.path.glob(".*"))
    assert json.loads((run / "run.json").read_text()) == {"finished": True, "seconds": 1.5}


def test_no_file_holds_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = saved_run(tmp_path / "run", small_run())
    assert {p.suffix for p in run.path.iterdir()} == {".json", ".toml", ".safetensors"}
    for path in run.path.glob("*.json"):
        json.loads(path.read_text())

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a pickle was read")

    for target in ("pickle.load", "pickle.loads", "pickle.Unpickler", "torch.load", "numpy.load"):
        monkeypatch.setattr(target, refuse)
    run.load()


def test_metrics_of_other_items_stay(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", small_run())
    run.write_metrics({"test": {"items": 4}})
    assert run.read_metrics() == {"validation": {"items": 3}, "test": {"items": 4}}
    with pytest.raises(ValueError, match="JSON"):
        run.write_metrics({"test": {"mAP": float("nan")}})
    assert run.read_metrics()["test"] == {"items": 4}


def test_what_is_created_continued_refused_and_overwritten(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "deep" / "run")
    assert run.unfinished() is None
    run.create(False, "[train]\nepochs = 3\n", {"labels": 5})
    assert run.is_run
    assert not run.is_finished
    assert run.unfinished() == {"labels": 5}
    (run / ".model.json.123.partial").write_text("half")
    run.create(False, "[train]\nepochs = 3\n", {"labels": 5})
    assert not (run / ".model.json.123.partial").exists()

    done = saved_run(tmp_path / "done", small_run())
    assert done.is_finished
    assert done.unfinished() is None
    for name in ("checkpoint", "cache", "pseudo-labels"):
        (done / name).mkdir()
        (done / name / "x").write_text("x")
    with pytest.raises(ValueError, match=r"finished run.*--overwrite"):
        done.create(False, "", {})
    (done / "mine.txt").write_text("not of the run")
    done.create(True, "a = 1\n", {"labels": 6})
    assert sorted(p.name for p in done.path.iterdir()) == ["cache", "config.toml", "mine.txt", "started.json"]
    assert (done / "cache" / "x").exists()


def test_a_folder_of_something_else_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_text("dear")
    for overwrite in (False, True):
        with pytest.raises(ValueError, match=r"photo.jpg.*empty or new"):
            RunFolder(tmp_path).create(overwrite, "", {})
    assert [p.name for p in tmp_path.iterdir()] == ["photo.jpg"]
    with pytest.raises(ValueError, match="is a file"):
        RunFolder(tmp_path / "photo.jpg").create(True, "", {})
    empty = tmp_path / "empty"
    empty.mkdir()
    RunFolder(empty).create(False, "", {})
    assert RunFolder(empty).is_run


@pytest.mark.parametrize(
    "files",
    [
        {"config.toml": "[tool]\n"},
        {"config.toml": "[tool]\n", "started.json": "[1]", "model.json": "{}", "checkpoint/x": "dear"},
        {"config.toml": "[tool]\n", "started.json": '{"day": 3}', "run.json": "{}", "index/x": "dear"},
        {"checkpoint/x": "dear"},
        {"model.json": '{"format": "of another"}', "report.html": "dear"},
        {".photo.1.partial": "dear"},
    ],
)
def test_names_alone_make_no_run(tmp_path: Path, files: dict[str, str]) -> None:
    """Files of others may be called as ours are: without a mark of ours none is removed, with --overwrite either."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    run = RunFolder(tmp_path)
    assert not run.is_run
    assert run.unfinished() is None
    for overwrite in (False, True):
        with pytest.raises(ValueError, match=r"is not a Steelyard run: give a folder that is empty or new"):
            run.create(overwrite, "", {})
    with pytest.raises(ValueError, match=r"not a Steelyard run"):
        run.load()
    assert {str(p.relative_to(tmp_path)): p.read_text() for p in tmp_path.rglob("*") if p.is_file()} == files


def test_a_run_is_known_by_either_of_its_marks(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", small_run())
    (run / "started.json").unlink()  # only what predicting needs was copied
    assert run.is_run
    run.load()
    (run / "started.json").write_text('{"training labels": 1}')  # as the first version wrote it
    (run / "model.json").unlink()
    assert run.is_run


@pytest.mark.parametrize("at", range(1, 13))
def test_broken_off_while_it_is_overwritten(tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any of its steps the folder is a run's, and nothing of the old training is taken for the new one's."""
    run = saved_run(tmp_path / "run", small_run())
    (run / "checkpoint").mkdir()
    (run / "checkpoint" / "000001-00000000.safetensors").write_text("old")
    (run / "mine.txt").write_text("not of the run")
    left = [at]
    unlink, rmtree = Path.unlink, shutil.rmtree

    def step(real: Any) -> Any:
        def counted(*given: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
            return real(*given, **options)

        return counted

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", step(unlink))
        patched.setattr(shutil, "rmtree", step(rmtree))
        with pytest.raises(KeyboardInterrupt):
            run.create(True, "a = 1\n", {"labels": 2})
    if run.is_run and (run / "checkpoint").exists():
        assert run.is_finished or run.read_config() != "a = 1\n"
    else:
        assert not (run / "checkpoint").exists()
    run.create(True, "a = 1\n", {"labels": 2})
    assert run.read_config() == "a = 1\n"
    assert (run / "mine.txt").exists()


def test_what_is_not_a_finished_run_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    run = RunFolder(tmp_path / "half")
    run.create(False, "", {})
    for path, said in (
        ("nowhere", "not a folder"),
        ("empty", "no config.toml"),
        ("half", "unfinished.*steelyard train"),
    ):
        with pytest.raises(ValueError, match=said) as error:
            RunFolder(tmp_path / path).load()
        assert "\n" not in str(error.value)
    (run / "config.toml").write_text("a = [")
    with pytest.raises(ValueError, match=r"config.toml is corrupt"):
        run.unfinished()


@pytest.mark.parametrize("name", ["model.json", "model.safetensors", "calibration.json", "config.toml"])
def test_every_damage_is_named(tmp_path: Path, name: str) -> None:
    run = saved_run(tmp_path / "run", small_run())
    whole = (run / name).read_bytes()
    g = np.random.default_rng(0)
    broken = [whole[: len(whole) // 2], b"", b"\xff\xfe\x00", None]
    for k in g.integers(0, len(whole), 25).tolist():
        flipped = bytearray(whole)
        flipped[k] ^= 1 << int(g.integers(8))
        broken.append(bytes(flipped))
    found = 0
    for content in broken:
        (run / name).unlink(missing_ok=True)
        if content is not None:
            (run / name).write_bytes(content)
        try:
            run.load()
        except ValueError as error:
            said = str(error)
        else:
            continue
        assert str(run.path) in said
        assert "\n" not in said
        found += 1
    assert found >= (2 if name == "config.toml" else len(broken) - 3)  # white space; a configuration is any text


def test_files_of_two_runs_do_not_mix(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", small_run())
    other = small_run()
    model = other.model
    names = ("p", "q", "r", "s")
    mixed = saved_run(tmp_path / "other", small_run())
    mixed.write_model(model, names, other.counts, other.n_known, False)
    (run / "model.safetensors").write_bytes((mixed / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match="different runs"):
        run.load()
    with pytest.raises(ValueError, match="4 labels"):
        run.write_model(model, names[:3], other.counts, other.n_known, False)


def test_killed_while_writing_every_file_is_whole(tmp_path: Path) -> None:
    trained = small_run()
    run = saved_run(tmp_path / "run", trained)
    g = np.random.default_rng(0)
    for _ in range(10):
        child = os.fork()
        if child == 0:
            try:
                while True:
                    run.write_model(trained.model, trained.names, trained.counts, trained.n_known, False)
                    run.write_probability_model(trained.probability_model)
                    run.write_metrics({"validation": {"items": 3}})
            finally:
                os._exit(1)
        time.sleep(float(g.uniform(0.02, 0.1)))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        assert run.load().names == trained.names
        assert run.read_metrics()["validation"] == {"items": 3}


def test_a_run_is_known_again_by_what_its_labels_leave_unsaid() -> None:
    def begun(fill: int) -> dict[str, Any]:
        labels = Labels.from_cells([0, 2], [0, 1], [1, 1], (3, 2), fill)
        return facts(Datasets(ArrayDataset(np.zeros((3, 1)), labels), None, None))

    assert begun(0) == begun(0)
    assert begun(0)["training labels"] != begun(-1)["training labels"]  # the same cells are listed
