"""A training that is killed, at any moment, and started again ends as if nothing had happened, bit for bit."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from steelyard.balance import PseudoLabels
from steelyard.training import checkpoint as files
from steelyard.training.checkpoint import Checkpoints, History, State
from steelyard.training.loop import train
from training_jobs import BreakOff, BrokenOff, N, everything, forked, job, run, same, seeded, waited

JOBS = ["annotation", "role", "plain"]
KILLS = 8
Undisturbed = dict[str, tuple[dict[str, Any], float]]
"""What each job leaves when nothing disturbs it, and the seconds it takes."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    left = {}
    run("plain", tmp_path_factory.mktemp("first"), epochs=1)  # so that imports do not count
    for name in JOBS:
        folder = tmp_path_factory.mktemp(name)
        started = time.monotonic()
        run(name, folder)
        left[name] = (everything(name, folder), time.monotonic() - started)
    return left


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def started(name: str, folder: Path, disturb: Callable[[], None] = lambda: None) -> int:
    """A process that goes on with a job; `disturb` is called in it first."""

    def work() -> None:
        disturb()
        run(name, folder)

    return forked(work, folder.parent / "failure.txt")


def finished(name: str, folder: Path) -> None:
    """Let a job end."""
    failure = folder.parent / "failure.txt"
    code = waited(started(name, folder))
    assert code == 0, failure.read_text()


@pytest.mark.parametrize("name", JOBS)
def test_killed_at_random_moments(name: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    want, seconds = undisturbed[name]
    moments = random.Random(name)
    kills = 0
    for attempt in range(KILLS):
        folder = tmp_path / str(attempt)
        while kills < KILLS:
            child = started(name, folder)
            time.sleep(moments.uniform(0, 0.6 * seconds))
            os.kill(child, signal.SIGKILL)  # nothing, if it is done: it was not waited for yet
            code = waited(child)
            assert code in (0, -signal.SIGKILL), (tmp_path / "failure.txt").read_text()
            if code == 0:
                break
            kills += 1
        finished(name, folder)
        same(everything(name, folder), want)
        if kills == KILLS:
            return
    raise AssertionError(f"only {kills} of {KILLS} kills came before the end of a run")


def before_rename(call: Callable[..., Any], *args: Any, **options: Any) -> None:
    kill_self()


def after_it(call: Callable[..., Any], *args: Any, **options: Any) -> None:
    call(*args, **options)
    kill_self()


def half_a_file(call: Callable[..., Any], tensors: Any, path: Path, header: Any) -> None:
    call(tensors, path, header)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    kill_self()


def half_a_line(call: Callable[..., Any], history: History, record: dict[str, Any]) -> None:
    with history.path.open("a") as file:
        file.write(json.dumps(record)[:40])
        file.flush()
        kill_self()


def without_marks(call: Callable[..., Any], store: PseudoLabels, index: torch.Tensor, said: torch.Tensor) -> None:
    store._visited = [marks.copy() for marks in store._visited]
    call(store, index, said)
    kill_self()


def half_carried_over(call: Callable[..., Any], store: PseudoLabels, epoch: int) -> None:
    real, store._visited = store._visited, [marks.copy() for marks in store._visited]
    call(store, epoch)
    half = store._visited[epoch % 2][: N // 2]
    real[epoch % 2][: N // 2] = half
    kill_self()


PLACES: dict[str, tuple[Any, str, Callable[..., Any], list[int]]] = {
    "before a rename": (os, "replace", before_rename, [1, 2, 3, 9, 12]),
    "after a rename": (os, "replace", after_it, [1, 2, 3, 10]),
    "with half a checkpoint written": (files, "save_file", half_a_file, [1, 5]),
    "with half a line of history": (History, "append", half_a_line, [1, 2, 3]),
    "between history and checkpoint": (History, "append", after_it, [1, 2, 3]),
    "between the best weights and the checkpoint": (Checkpoints, "save_best", after_it, [1, 2]),
    "between a checkpoint and the end": (Checkpoints, "save", after_it, [1, 5]),
    "between the rows and marks of the store": (PseudoLabels, "write", without_marks, [1, 6, 3]),
    "half through an epoch's carrying over in the store": (PseudoLabels, "_complete", half_carried_over, [1, 2]),
    "before the reset of the store": (PseudoLabels, "reset", before_rename, [1]),
    "after the reset of the store": (PseudoLabels, "reset", after_it, [1]),
}


@pytest.mark.parametrize("place", PLACES)
def test_killed_in_the_worst_places(
    place: str, undisturbed: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (where, what, kill, counts), name = PLACES[place], "annotation"
    monkeypatch.setattr("steelyard._files._flush", lambda path: None)  # a kill takes nothing from the system
    monkeypatch.setattr(PseudoLabels, "flush", lambda store: None)
    call = getattr(where, what)

    def disturb(count: int) -> None:
        left = [count]

        def counting(*args: Any, **options: Any) -> Any:
            left[0] -= 1
            return kill(call, *args, **options) if left[0] == 0 else call(*args, **options)

        setattr(where, what, counting)  # in the child alone

    folder = tmp_path / "run"
    for count in counts:
        code = waited(started(name, folder, lambda count=count: disturb(count)))
        assert code in (0, -signal.SIGKILL), (tmp_path / "failure.txt").read_text()
        if count == counts[0]:
            assert code == -signal.SIGKILL
    finished(name, folder)
    same(everything(name, folder), undisturbed[name][0])


@pytest.mark.parametrize("name", ["annotation", "role"])
@pytest.mark.parametrize("steps", [1, 4, 7])
def test_another_exception_loses_nothing(name: str, steps: int, undisturbed: Undisturbed, tmp_path: Path) -> None:
    with pytest.raises(BrokenOff):
        run(name, tmp_path, watch=BreakOff(steps))
    with pytest.raises(BrokenOff):
        run(name, tmp_path, watch=BreakOff(2))
    run(name, tmp_path)
    same(everything(name, tmp_path), undisturbed[name][0])


@pytest.mark.parametrize("seconds", [0.0, 1e6])
def test_how_often_checkpoints_are_written_changes_nothing(
    seconds: float, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run("annotation", tmp_path, checkpoint_seconds=seconds)
    assert len(list((tmp_path / "checkpoint").glob("0*.safetensors"))) == 2
    same(everything("annotation", tmp_path), undisturbed["annotation"][0])


# damage


@pytest.fixture(scope="module")
def half_way(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs broken off in the middle of their second epoch, with two checkpoints each."""
    folders = {}
    for name, steps in (("annotation", 8), ("role", 6)):
        folders[name] = tmp_path_factory.mktemp(f"half-{name}")
        with pytest.raises(BrokenOff):
            run(name, folders[name], watch=BreakOff(steps))
    return folders


def checkpoints_of(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoint").glob("0*.safetensors"))


def test_damage_of_any_byte_is_seen(half_way: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(half_way["annotation"], folder)
    older, newest = checkpoints_of(folder)
    whole = newest.read_bytes()
    fallback = files.load_tensors(older)[1]
    assert files.load_tensors(newest)[1]["step"] == fallback["step"] + 1
    rng = random.Random(0)
    header = 8 + int.from_bytes(whole[:8], "little")
    spots = [*range(8), *(rng.randrange(8, end) for end in [header, len(whole)] * 60)]
    for damage in [*spots, *(-rng.randrange(len(whole)) for _ in range(20)), -len(whole)]:
        if damage >= 0:
            flipped = whole[damage] ^ (1 << rng.randrange(8))
            newest.write_bytes(whole[:damage] + bytes([flipped]) + whole[damage + 1 :])
        else:
            newest.write_bytes(whole[:damage])
        found = Checkpoints(folder / "checkpoint")
        state = found.load()
        assert state.notes == fallback, damage
        assert [message.split(" is corrupt")[0] for message in found.damaged] == [str(newest)]
        assert "\n" not in found.damaged[0]
    assert older.exists()


@pytest.mark.parametrize("name", ["annotation", "role"])
@pytest.mark.parametrize("damage", ["cut short", "a bit"])
def test_a_damaged_checkpoint_is_passed_over_and_named(
    name: str,
    damage: str,
    half_way: dict[str, Path],
    undisturbed: Undisturbed,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(half_way[name], folder)
    newest = checkpoints_of(folder)[-1]
    whole = bytearray(newest.read_bytes())
    if damage == "a bit":
        whole[-100] ^= 4
    newest.write_bytes(whole[: len(whole) // 3] if damage == "cut short" else whole)
    with pytest.raises(BrokenOff):  # the damaged one is ahead of what is written now, and must not stand for the newest
        run(name, folder, watch=BreakOff(1))
    assert len(checkpoints_of(folder)) <= 2
    outcome = run(name, folder)
    assert [message.split(" is corrupt")[0] for message in outcome.damaged] in ([], [str(newest)])
    same(everything(name, folder), undisturbed[name][0])


def test_after_damage_there_are_two_whole_checkpoints_again(half_way: dict[str, Path], tmp_path: Path) -> None:
    """One that goes on ahead of the new ones, damaged, does not take the place of the one before."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(half_way["role"] / "checkpoint", folder)
    newest = checkpoints_of(tmp_path)[-1]
    state = State({"weights": torch.arange(3.0)}, files.load_tensors(newest)[1])
    newest.rename(folder / "000003-00000003.safetensors")
    (folder / "000003-00000003.safetensors").write_bytes(b"no checkpoint")
    for step in (3, 4):
        again = Checkpoints(folder)
        assert again.load() is not None
        again.save(2, step, state)
    assert [file.stem for file in checkpoints_of(tmp_path)] == ["000002-00000003", "000002-00000004"]


def test_two_damaged_checkpoints_are_one_sentence(half_way: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(half_way["role"], folder)
    for file in checkpoints_of(folder):
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=rf"{checkpoints_of(folder)[-1]} is corrupt .*--overwrite$"):
        run("role", folder)


def test_a_checkpoint_of_another_format_is_refused(half_way: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(half_way["role"] / "checkpoint", tmp_path / "checkpoint")
    newest = checkpoints_of(tmp_path)[-1]
    tensors, notes = files.load_tensors(newest)
    files.save_tensors(newest, tensors, {**notes, "format": 999})
    with pytest.raises(ValueError, match="another version: train again"):
        Checkpoints(tmp_path / "checkpoint").load()


def test_the_checkpoint_before_keeps_its_best_weights(tmp_path: Path) -> None:
    """The best epoch of the older checkpoint is there as long as that checkpoint is."""
    with pytest.raises(BrokenOff):
        run("role", tmp_path, watch=BreakOff(2))
    for _ in range(12):
        files_left = checkpoints_of(tmp_path)
        for file in files_left:
            best = files.load_tensors(file)[1]["best_file"]
            assert best == "" or (tmp_path / "checkpoint" / best).exists()
        try:
            run("role", tmp_path, watch=BreakOff(1))
        except BrokenOff:
            continue
        break


@pytest.mark.parametrize("what", ["damaged", "missing"])
def test_damaged_best_weights_are_named_and_chosen_anew(what: str, half_way: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(half_way["role"], folder)
    best = sorted((folder / "checkpoint").glob("best-*"))[-1]
    if what == "missing":
        best.unlink()
    else:
        best.write_bytes(best.read_bytes()[:-3])
    outcome = run("role", folder)
    assert any(str(best) in message for message in outcome.damaged)
    assert outcome.kept_epoch >= 2
    assert set(outcome.weights) == set(seeded(lambda: job("role", folder)["model"]).state_dict())


# the store and the checkpoints must fit together


def test_a_store_of_a_later_epoch_is_refused(tmp_path: Path) -> None:
    """Of a checkpoint two epochs old, what it would read is overwritten: that is said, not trained on."""
    with pytest.raises(BrokenOff):
        run("annotation", tmp_path, watch=BreakOff(3))
    kept = tmp_path.parent / f"{tmp_path.name}-kept"
    shutil.copytree(tmp_path / "checkpoint", kept)
    run("annotation", tmp_path)
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.copytree(kept, tmp_path / "checkpoint")
    with pytest.raises(ValueError, match="holds pseudo-labels of epoch 3, and those that epoch 1 reads are gone"):
        run("annotation", tmp_path)


def test_a_store_that_was_deleted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokenOff):
        run("annotation", tmp_path, watch=BreakOff(13))
    shutil.rmtree(tmp_path / "pseudo-labels")
    with pytest.raises(ValueError, match="holds pseudo-labels of epoch 0, and those that epoch 3 reads are gone"):
        run("annotation", tmp_path)


def test_a_finished_run_only_tells_what_it_was(undisturbed: Undisturbed, tmp_path: Path) -> None:
    first = run("role", tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    second = run("role", tmp_path)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    assert second.history == first.history
    assert second.seconds == first.seconds
    assert second.kept_epoch == first.kept_epoch
    for name, value in first.weights.items():
        assert torch.equal(second.weights[name], value)


def test_more_epochs_can_be_trained_later(tmp_path: Path) -> None:
    """The rate here does not depend on how many epochs there are, so it is one run in two sittings."""
    for folder, sittings in ((tmp_path / "one", [3]), (tmp_path / "two", [1, 3])):
        for epochs in sittings:
            run("role", folder, epochs=epochs)
    same(everything("role", tmp_path / "one"), everything("role", tmp_path / "two"))


def test_the_outcome_is_not_changed_by_further_training(tmp_path: Path) -> None:
    wanted = job("role", tmp_path)
    outcome = train(**wanted)
    before = {name: value.clone() for name, value in outcome.weights.items()}
    for value in wanted["model"].parameters():
        value.data.fill_(7)
    assert all(torch.equal(outcome.weights[name], value) for name, value in before.items())
