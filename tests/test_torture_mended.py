"""What the fault campaign found: checksums of an index and of a run's configuration, and signals that were lost."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from multiprocessing import resource_sharer
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from small_run import saved_run, small_run
from steelyard import cli
from steelyard._sealed import checksum
from steelyard._signals import stoppable
from steelyard.data.loading import WORKER_DIED, beginning, fetched, loader
from steelyard.papers.trial import read_facts
from steelyard.run.command import config_of
from steelyard.run.folder import RunFolder
from steelyard.search import Index
from steelyard.search.blocks import Blocks, sums_of
from training_jobs import forked, images, waited

NAMES = ["cat", "dog", "car"]


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """An index of two parts with deleted items; the files of names have several blocks."""
    rng = np.random.default_rng(0)
    ids = [f"item {i:05}" for i in range(6000)]
    made = Index.build(tmp_path / "index", ids, rng.random((6000, 3)), NAMES, [f"/images/{i}.jpg" for i in ids])
    made.append([f"more {i}" for i in range(900)], rng.random((900, 3)))
    made.delete(ids[5:9])
    made.close()
    return tmp_path / "index"


def everything(folder: Path) -> Any:
    """All that can be asked of an index; or the sentence in which it refuses."""
    try:
        with Index.open(folder) as opened:
            hits = [opened.search(name, k=7000) for name in NAMES]
            some = [hit.id for hit in hits[0][::500]]
            return hits, opened.rows(some).tolist(), [opened.path(i) for i in some], "item 00006" in opened
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("pattern", ["part-000000.parquet", "part-000000.arrow", "part-000001.arrow", "dead-*.parquet"])
def test_a_flipped_bit_never_changes_an_answer(index: Path, pattern: str) -> None:
    wanted = everything(index)
    assert not isinstance(wanted, str)
    (file,) = index.glob(pattern)
    whole, rng = file.read_bytes(), random.Random(pattern)
    named = 0
    for _ in range(25):
        edge = rng.randrange(min(600, len(whole)))
        at = rng.choice([rng.randrange(len(whole)), edge, len(whole) - 1 - edge])
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :])
        found = everything(index)
        if isinstance(found, str):
            assert str(file) in found, found
            assert "is damaged" in found
            named += 1
        else:
            assert found == wanted, at
    assert named > 5
    file.write_bytes(whole)
    assert everything(index) == wanted


def test_only_what_is_read_is_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query touches the labels it names: damage of another does not stand in its way."""
    monkeypatch.setattr("steelyard.search.part._TABLE_BLOCK", 256)
    with Index.build(tmp_path, [f"i{i:04}" for i in range(2000)], np.full((2000, 3), 0.25), NAMES) as made:
        middle = int(made.parts[0]._chunks[1][0, 4]) - 4000  # of the values of car
    file = tmp_path / "part-000000.parquet"
    content = bytearray(file.read_bytes())
    content[middle] ^= 1
    file.write_bytes(content)
    with Index.open(tmp_path) as opened:
        assert len(opened.search("cat & dog", k=3000)) == 2000
        for query in ("car", "cat & ~car"):
            with pytest.raises(ValueError, match=r"part-000000\.parquet is damaged"):
                opened.search(query)
        assert opened.rows(["i0001"]).tolist() == [[0.25] * 3]
        with pytest.raises(ValueError, match=r"part-000000\.parquet is damaged"):
            opened.rows(["i1000"])
        with pytest.raises(ValueError, match=r"part-000000\.parquet is damaged"):
            opened.delete([f"i{i:04}" for i in range(900)])  # what is left would be written anew


def test_blocks(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    sums = sums_of(path, 16)
    content = bytearray(path.read_bytes())
    content[50] ^= 8  # in the block of bytes 48 to 63
    path.write_bytes(content)
    blocks = Blocks(path, sums, 16)
    blocks.test(0, 48)
    blocks.test(64)
    blocks.test_at(np.array([44, 64, 96]))
    for bad in (lambda: blocks.test(), lambda: blocks.test(47, 49), lambda: blocks.test_at(np.array([45]))):
        with pytest.raises(ValueError, match=r"file is damaged \(the block at byte 48 does not have its checksum\)"):
            bad()
    Blocks(path, "", 16).test()  # an index of the first version noted none
    with pytest.raises(ValueError, match="is damaged"):
        Blocks(path, sums, 8)


def test_an_index_without_checksums_is_read_as_before(index: Path) -> None:
    from steelyard.search import manifest as manifests

    wanted = everything(index)
    document = json.loads((index / "manifest.json").read_text())
    for name in ("format", "version", "sha256", "dead_sum"):
        del document[name]
    for part in document["parts"]:
        del part["sums"]
    old = {"format": manifests.FORMAT, "version": 1, **document, "sha256": checksum(document)}
    (index / "manifest.json").write_text(json.dumps(old))
    assert everything(index) == wanted


def test_a_configuration_that_was_edited_is_told(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", small_run())
    assert config_of(str(run.path)).train.epochs == 1
    (run / "config.toml").write_text("[train]\nepochs = 2\n")
    for use in (run.load, run.read_config, lambda: config_of(str(run.path))):
        with pytest.raises(ValueError, match=r"config\.toml is damaged or was edited"):
            use()
    begun = json.loads((run / "started.json").read_text())
    (run / "started.json").write_text(json.dumps({k: v for k, v in begun.items() if k != "config"}))
    assert RunFolder(run.path).load().config == "[train]\nepochs = 2\n"  # the first version noted no checksum


@pytest.mark.parametrize("content", ["", "[]", "{", '{"facts": {"seconds": 1}, "sha256": "other"}'])
def test_a_damaged_trial_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "trial.json").write_text(content)
    with pytest.raises(ValueError, match=r"trial\.json is damaged .*: delete .* to train it again") as told:
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

    monkeypatch.setattr(cli, "app", dies)
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert capsys.readouterr().err == f"steelyard: {WORKER_DIED}\n"
