"""One writer at a time in the folder of a run, with and without locks of the system, also after kill −9."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import steelyard as sy
from run_data import QUICK, items, write_table
from steelyard import _locks
from steelyard._locks import Taken, sole
from steelyard.folder.run_folder import RunFolder
from training_jobs import forked, waited
from typed import done, typed

BLOCKED = "import sys; sys.modules['fcntl'] = None; "


@pytest.fixture(params=["with fcntl", "without fcntl"])
def locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the system has locks."""
    if request.param == "without fcntl":
        monkeypatch.setattr(_locks, "fcntl", None)
    return request.param == "with fcntl"


def test_two_trainings_of_one_folder(tmp_path: Path, locks: bool):
    """The second is refused and names the first; killed, the first makes room for the third."""
    out, data = tmp_path / "run", write_table(tmp_path / "data.csv", *items(60))
    words = ("train", "--data", data, "--recipe", "bce", "--out", out, "--set", "train.checkpoint_seconds=0")
    endless = (*words, "--set", "train.epochs=100000")
    first = forked(lambda: typed(*endless), tmp_path / "note")
    try:
        end = time.monotonic() + 120
        while not (out / "config.toml").exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        before = (out / "started.json").read_bytes()
        for more in ((), ("--overwrite",)):
            line = typed(*endless, *more).line
            assert str(out) in line
            assert f"process {first} " in line
        assert (out / "started.json").read_bytes() == before
    finally:
        os.kill(first, signal.SIGKILL)
        waited(first)
    assert (out / ".writing").exists()
    done(*words, "--set", "train.epochs=1", "--overwrite")
    assert RunFolder(out).is_finished
    assert not (out / ".writing").exists()


def test_calibrate_is_refused_while_a_run_is_written(tmp_path: Path):
    out = tmp_path / "run"
    sy.fit(write_table(tmp_path / "data.csv", *items(60)), "bce", out=out, settings=QUICK, verbose=False)
    before = (out / "calibration.json").read_bytes()
    with RunFolder(out).writing():
        assert f"process {os.getpid()} " in typed("calibrate", out).line
    assert (out / "calibration.json").read_bytes() == before


def test_a_refused_run_leaves_no_folder(tmp_path: Path, locks: bool):
    out = tmp_path / "new" / "run"
    x, y = items(40)
    with pytest.raises(ValueError, match="no training label"):
        sy.fit((x, np.zeros_like(y)), "bce", out=out, settings=QUICK, verbose=False)
    assert not (tmp_path / "new").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"notes\.txt"):
        sy.fit((x, y), "bce", out=tmp_path / "mine", settings=QUICK, verbose=False)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_lock_is_held_once_and_let_go(tmp_path: Path, locks: bool):
    path = tmp_path / "lock"
    with sole(path):
        with pytest.raises(Taken, match=f"process {os.getpid()} on"), sole(path):
            pytest.fail("it is held")
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert not path.exists()
    with pytest.raises(KeyError), sole(path):
        raise KeyError
    assert not path.exists()


@pytest.mark.parametrize(
    "left",
    [
        {"pid": 2**22 + 1, "host": "here", "born": "1"},  # a number that no process has
        {"pid": os.getppid(), "host": "here", "born": "1"},  # one that another process has now
    ],
)
def test_what_a_killed_process_left_is_taken_over(
    tmp_path: Path, locks: bool, left: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(_locks.socket, "gethostname", lambda: "here")
    path = tmp_path / "lock"
    path.write_text(json.dumps(left))
    with sole(path):
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


def test_a_process_of_another_machine_may_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_locks, "fcntl", None)
    path = tmp_path / "lock"
    path.write_text(json.dumps({"pid": 2**22 + 1, "host": "elsewhere", "born": "1"}))
    with pytest.raises(Taken, match="elsewhere"), sole(path):
        pytest.fail("it may be held")
    assert path.exists()


def test_a_lock_that_nobody_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_locks, "fcntl", None)
    monkeypatch.setattr(_locks, "_OUTLIVED", 0.2)
    path = tmp_path / "lock"
    path.touch()
    with pytest.raises(Taken, match="another process"), sole(path):
        pytest.fail("it may be held")
    os.utime(path, (0, 0))  # killed long ago between making the file and signing it
    with sole(path):
        assert path.exists()


def test_disks_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(_locks.fcntl, "flock", unsupported)
    path = tmp_path / "lock"
    with sole(path):
        with pytest.raises(Taken), sole(path):
            pytest.fail("it is held")
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert not path.exists()


def _count_up(path: Path, times: int, locks: bool) -> None:
    if not locks:
        _locks.fcntl = None  # type: ignore[assignment]
    for _ in range(times):
        with sole(path.with_suffix(".lock"), waits=True):
            n = int(path.read_text())
            time.sleep(0.001)
            path.write_text(str(n + 1))


def test_writers_that_wait_take_turns(tmp_path: Path, locks: bool):
    path = tmp_path / "number"
    path.write_text("0")
    spawn = get_context("fork")
    crowd = [spawn.Process(target=_count_up, args=(path, 20, locks)) for _ in range(4)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join(120)
    assert path.read_text() == "80"


# ---- fcntl is not there


def test_import_fit_and_search_without_fcntl(tmp_path: Path):
    """As on a system that has none."""
    script = BLOCKED + (
        "import numpy as np, steelyard as sy; "
        "rng = np.random.default_rng(0); x = rng.normal(size=(120, 4)).astype('f4'); y = (x[:, :2] > 0).astype('i1'); "
        "run = sy.fit((x, y), 'bce', out=sys.argv[1], settings={'train': {'epochs': 1}}, verbose=False); "
        "index = sy.search.Index.open(sys.argv[1] + '/index'); print(len(index.search('0 & ~1', 3))); "
        "index.delete([index.search('0', 1)[0].id]); print(index.n_items); "
        "import steelyard_papers.study, steelyard.models.feature_file, steelyard.cli, steelyard.serve; "
        "assert sys.modules['fcntl'] is None"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["3", "11"]
