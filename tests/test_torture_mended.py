"""What the fault campaign found: the checksum of a run's configuration, and signals that were lost."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing import resource_sharer
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from small_run import saved_run, small_run
from steelyard import cli
from steelyard._signals import stoppable
from steelyard.data.loading import WORKER_DIED, beginning, fetched, loader
from steelyard.folder.run_folder import RunFolder
from steelyard.run.locate import run_config
from steelyard_papers.trial import read_facts
from training_jobs import forked, images, waited

NAMES = ["cat", "dog", "car"]


def test_a_configuration_that_was_edited_is_told(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", small_run())
    assert run_config(str(run.path)).train.epochs == 1
    (run / "config.toml").write_text("[train]\nepochs = 2\n")
    for use in (run.load, run.read_config, lambda: run_config(str(run.path))):
        with pytest.raises(ValueError, match=r"config\.toml is corrupt or was edited"):
            use()
    begun = json.loads((run / "started.json").read_text())
    (run / "started.json").write_text(json.dumps({k: v for k, v in begun.items() if k != "config"}))
    assert RunFolder(run.path).load().config == "[train]\nepochs = 2\n"  # the first version noted no checksum


@pytest.mark.parametrize("content", ["", "[]", "{", '{"facts": {"seconds": 1}, "sha256": "other"}'])
def test_a_damaged_trial_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "trial.json").write_text(content)
    with pytest.raises(ValueError, match=r"trial\.json is corrupt .*: delete .* to train it again") as told:
        read_facts(tmp_path)
    assert "\n" not in str(told.value)


def test_a_worker_that_dies_before_the_others_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's iterator is half made then, and its end must not print a traceback over the one line."""
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    start, n = BaseProcess.start, 0

    def dies(process: BaseProcess) -> None:
        nonlocal n
        n += 1
        if n == 2:
            raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed. ")
        start(process)

    with monkeypatch.context() as patched:
        patched.setattr(BaseProcess, "start", dies)
        with pytest.raises(ValueError, match="a process that reads items was killed"):
            list(fetched(loader(images(), [[0, 1], [2, 3]], workers=2, pin=False)))
    gc.collect()
    assert told == []


def test_a_reader_says_nothing_of_one_who_asked_and_is_gone(tmp_path: Path) -> None:
    """The command ends, told of another's death, just when this one hands it a tensor: one line is said, not two."""
    said, note, begin = tmp_path / "said", tmp_path / "failure.txt", beginning()

    def read() -> None:
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 2)
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        begin(0)
        shared = resource_sharer.DupFd(0)
        with socket.socket(socket.AF_UNIX) as asks:
            asks.connect(resource_sharer._resource_sharer._address)
        os.close(shared.detach())  # answered when the one before it was
        sys.stderr.flush()

    assert waited(forked(read, note)) == 0, note.read_text()
    assert said.read_text() == ""


# signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_both_signals_interrupt(number: signal.Signals) -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)], sys.unraisablehook
    with stoppable() as stop, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
    assert stop.asked
    assert ([signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)], sys.unraisablehook) == before


def test_a_signal_in_a_destructor_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    class Deaf:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            sum(range(1000))

    def work() -> None:
        deaf = Deaf()
        del deaf
        for _ in range(1000):
            time.sleep(0.01)

    with stoppable(), pytest.raises(KeyboardInterrupt):
        work()
    assert "Exception ignored" not in capsys.readouterr().err


HIDDEN = """
import os, signal, sys
from steelyard import cli
@cli.app.command()
def hides() -> None:
    try:
        os.kill(os.getpid(), signal.{signal})
    except KeyboardInterrupt:
        raise ImportError("a library that was interrupted while it was imported") from None
sys.argv = ["steelyard", "hides"]
cli.main()
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupted_import_is_one_line(name: str) -> None:
    code = HIDDEN.replace("{signal}", name)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "steelyard: stopped\n")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_while_python_shuts_down_changes_no_exit_code(name: str) -> None:
    kill = f"atexit.register(lambda: os.kill(os.getpid(), signal.{name}))"
    typed = "from steelyard import cli; sys.argv = ['steelyard', '--version']; cli.main()"
    code = f"import atexit, os, signal, sys; {kill}; {typed}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stop_while_a_compiled_library_is_imported_ends_at_once() -> None:
    """A KeyboardInterrupt inside of torch's own start ends in an abort."""
    script = (
        "import os, signal, sys, types\n"
        "from importlib.machinery import ModuleSpec\n"
        "from steelyard._signals import stoppable\n"
        "half = sys.modules['torch'] = types.ModuleType('torch')\n"
        "half.__spec__ = ModuleSpec('torch', None)\n"
        "half.__spec__._initializing = True\n"
        "with stoppable():\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    finally:\n"
        "        print('went on')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "steelyard: stopped\n")


def test_a_reader_that_dies_anywhere_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Torch raises it from a signal handler, wherever the command is."""

    def dies(**_: object) -> None:
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")

    monkeypatch.setattr(cli.group, "app", dies)
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert capsys.readouterr().err == f"steelyard: {WORKER_DIED}\n"
