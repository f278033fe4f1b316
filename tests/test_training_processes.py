"""Two processes train as one does: the same weights, losses, ratios, pseudo-labels and validation."""

from __future__ import annotations

import math
import shutil
import signal
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from steelyard.balance import InverseFrequency, LabelPair, PartialLabelMasking, PseudoLabels
from steelyard.losses import BCE, SPA, DistributionBalanced
from steelyard.losses.partial_annotation import Annotation
from steelyard.objective import Objective, Role
from steelyard.training import loop
from steelyard.training.batches import all_outputs
from steelyard.training.checkpoint import load_tensors
from steelyard.training.distributed import Stopped
from steelyard.training.finite import NotFinite
from steelyard.training.loop import Outcome, train
from steelyard.training.settings import OptimizerSettings, SamplerSettings, ScheduleSettings, TrainSettings
from training_jobs import (
    BreakOff,
    BrokenOff,
    Items,
    L,
    Net,
    Noisy,
    arrays,
    forked,
    images,
    seeded,
    untimed,
    validation,
    waited,
)

N = 50  # batches of 16, 16, 16 and 2
SETTINGS = TrainSettings(epochs=2, batch_size=16, seed=1, device="cpu", workers=0, checkpoint_seconds=1e6)
CASES = [
    "mean",
    "item",
    "spa, label pairs",
    "distribution balanced",
    "inverse frequency, negative",
    "plm",
    "annotation",
    "annotation, plm, label pairs",
    "class-aware, average, clipped",
    "role",
]


def case(name: str, folder: Path) -> dict[str, Any]:
    data = arrays(N, unknown=0.3)
    counts, n_known = data.labels.counts, data.labels.n_known
    settings, optimizer = SETTINGS, OptimizerSettings("sgd", lr=0.3)
    masking = PartialLabelMasking(counts, n_known, rate=0.5, seed=2)

    def store() -> PseudoLabels:
        return PseudoLabels(folder / "pseudo-labels", N, L)

    if name in ("mean", "item"):
        objective = Objective(BCE(reduction=name))
    elif name == "spa, label pairs":
        objective = Objective(SPA(), regularizers=[LabelPair(0.5)])
    elif name == "distribution balanced":
        objective = Objective(DistributionBalanced(counts, n_known, gamma=2.0))
    elif name == "inverse frequency, negative":
        objective = Objective(BCE(), "negative", weighting=InverseFrequency(counts))
    elif name == "plm":
        objective = Objective(BCE(), masking=masking)
    elif name == "annotation":
        objective = Objective(BCE(reduction="item"), Annotation(store(), q=0.7))
    elif name == "annotation, plm, label pairs":
        rule = Annotation(store(), q=0.7)
        objective = Objective(BCE(reduction="item"), rule, masking=masking, regularizers=[LabelPair(0.5)])
    elif name == "role":
        objective = Objective(BCE(), Role(data.labels.values, 1.5))
    else:
        objective = Objective(BCE())
        settings = replace(settings, ema=0.8, sampler=SamplerSettings("class_aware", visits=10))
        optimizer = replace(optimizer, clip_norm=0.1)
    return dict(
        model=seeded(Net),
        objective=objective,
        data=data,
        optimizer=optimizer,
        schedule=ScheduleSettings(warmup_epochs=0.5),
        settings=settings,
        folder=folder,
        validate=validation(arrays(31, seed=7)),
    )


def together(work: Callable[[int], Any], folder: Path, processes: int = 2) -> list[Any]:
    """Do `work(rank)` in processes of one group, copies of this one; what each returns."""
    folder.mkdir(exist_ok=True)
    shutil.rmtree(folder / "meeting", ignore_errors=True)
    meeting = folder / "meeting"

    def join(rank: int) -> None:
        dist.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=rank, world_size=processes, timeout=timedelta(seconds=60)
        )
        found = work(rank)
        dist.barrier()
        torch.save(found, folder / f"found-{rank}.pt")

    children = [forked(lambda rank=rank: join(rank), folder / f"failure-{rank}.txt") for rank in range(processes)]
    codes = [waited(child) for child in children]
    meeting.unlink(missing_ok=True)
    told = "\n".join(note.read_text() for note in sorted(folder.glob("failure-*.txt")))
    assert codes == [0] * processes, told
    return [torch.load(folder / f"found-{rank}.pt", weights_only=False) for rank in range(processes)]


def plain(outcome: Outcome) -> dict[str, Any]:
    return {"weights": outcome.weights, "history": untimed(outcome.history), "kept": outcome.kept_epoch}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    """What both processes make of every case, and where."""
    folder = tmp_path_factory.mktemp("two")

    def work(rank: int) -> dict[str, Any]:
        return {name: plain(train(**case(name, folder / name))) for name in CASES}

    return together(work, folder), folder


def close(got: dict[str, Any], want: dict[str, Any], tolerance: float = 1e-5) -> None:
    assert got["weights"].keys() == want["weights"].keys()
    for name, value in want["weights"].items():
        torch.testing.assert_close(got["weights"][name], value, rtol=0, atol=tolerance)
    assert got["kept"] == want["kept"]
    for mine, theirs in zip(got["history"], want["history"], strict=True):
        assert flat(mine) == pytest.approx(flat(theirs), rel=1e-4, abs=1e-6)


def flat(record: dict[str, Any]) -> dict[str, float]:
    """A line of history as numbers under one name each."""
    numbers: dict[str, float] = {}
    for key, value in record.items():
        parts: Iterable[tuple[Any, Any]] = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else [("", value)]
        )
        numbers |= {f"{key} {part}": number for part, number in parts}
    return numbers


@pytest.mark.parametrize("name", CASES)
def test_two_processes_train_as_one(name: str, two: tuple[list[dict[str, Any]], Path], tmp_path: Path) -> None:
    found, folder = two
    one = plain(train(**case(name, tmp_path)))
    for process in found:
        close(process[name], one)
    if (tmp_path / "pseudo-labels").exists():
        for file in sorted((tmp_path / "pseudo-labels").glob("values-*")):
            ours, theirs = (
                np.fromfile(where / file.name, np.int8).astype(int)
                for where in (tmp_path / "pseudo-labels", folder / name / "pseudo-labels")
            )
            assert np.abs(ours - theirs).max() <= 1
            assert ours.any()


def test_both_processes_return_the_same(two: tuple[list[dict[str, Any]], Path]) -> None:
    first, second = two[0]
    for name in CASES:
        assert first[name]["history"] == second[name]["history"]
        assert first[name]["kept"] == second[name]["kept"]
        for key, value in first[name]["weights"].items():
            assert torch.equal(second[name]["weights"][key], value)


def test_the_best_epoch_of_a_net_with_batch_statistics(tmp_path: Path) -> None:
    """Each process has statistics of its own, and only the first one wrote the best weights: all return those."""
    scores = [0.1, 0.9, 0.3]

    def work(rank: int) -> dict[str, Any]:
        given = iter(scores)
        seen = []

        def validate(model: nn.Module, device: torch.device) -> dict[str, float]:
            seen.append({name: value.clone() for name, value in model.state_dict().items()})
            return {"map": next(given)}

        outcome = train(
            model=seeded(Noisy),
            objective=Objective(BCE()),
            data=images(48),
            optimizer=OptimizerSettings(lr=0.01),
            schedule=ScheduleSettings(),
            settings=replace(SETTINGS, epochs=3, monitor="map"),
            folder=tmp_path / "run",
            validate=validate,
        )
        return {**plain(outcome), "seen": seen[1]}

    first, second = together(work, tmp_path)
    assert first["kept"] == second["kept"] == 2
    for name, value in first["seen"].items():
        for other in (first["weights"], second["weights"], second["seen"]):
            torch.testing.assert_close(other[name], value, rtol=0, atol=0)


def test_outputs_are_shared_out_and_gathered(tmp_path: Path) -> None:
    sizes = (31, 7, 3)

    def work(rank: int) -> list[tuple[Tensor, Tensor]]:
        return [all_outputs(seeded(Net), arrays(n, unknown=0.2), 7) for n in sizes]

    for found in together(work, tmp_path):
        for n, (logits, targets) in zip(sizes, found, strict=True):
            data = arrays(n, unknown=0.2)
            want = seeded(Net)(torch.from_numpy(data.inputs)).detach()
            torch.testing.assert_close(logits, want)
            assert torch.equal(targets, torch.from_numpy(data.labels.values))


# going on with as many processes, or others


STATEFUL = ["annotation, plm, label pairs", "class-aware, average, clipped"]


def broken_off(name: str, folder: Path, steps: int) -> None:
    """Train until so many steps are done, with a checkpoint after every one."""
    wanted = case(name, folder)
    wanted["settings"] = replace(wanted["settings"], checkpoint_seconds=0)
    with pytest.raises(BrokenOff):
        train(**wanted, watch=BreakOff(steps))


@pytest.mark.parametrize("name", STATEFUL)
@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 1), (1, 2)])
def test_going_on_with_as_many_processes_or_others(
    name: str,
    before: int,
    after: int,
    two: tuple[list[dict[str, Any]], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The checkpoint of a broken-off epoch serves any number of processes: PLM's counts and the losses included."""
    monkeypatch.setattr(loop, "CHECK_EVERY", 1)
    folder = tmp_path / "run"
    if before == 2:
        together(lambda rank: broken_off(name, folder, 6), tmp_path)
    else:
        broken_off(name, folder, 6)
    newest = sorted((folder / "checkpoint").glob("0*"))[-1]
    notes = load_tensors(newest)[1]
    assert (notes["epoch"], notes["step"], notes["processes"]) == (2, 1, before)
    assert notes["n_seen"] == 16
    if after == 2:
        found = together(lambda rank: plain(train(**case(name, folder))), tmp_path)
    else:
        found = [plain(train(**case(name, folder)))]
    for process in found:
        close(process, two[0][0][name])
    if before == after:
        for key, value in two[0][0][name]["weights"].items():
            assert torch.equal(found[0]["weights"][key], value)


def test_going_on_where_nothing_is_left_for_two(tmp_path: Path) -> None:
    """The one item of a last step is dropped by two processes: the epoch is over, with the losses it had."""

    def wanted(folder: Path) -> dict[str, Any]:
        settings = replace(SETTINGS, epochs=1, checkpoint_seconds=0)
        return {**case("mean", folder), "data": arrays(33), "settings": settings}

    with pytest.raises(BrokenOff):
        train(**wanted(tmp_path / "run"), watch=BreakOff(3))
    newest = sorted((tmp_path / "run" / "checkpoint").glob("0*"))[-1]
    notes = load_tensors(newest)[1]
    assert (notes["step"], notes["n_seen"]) == (2, 32)
    for found in together(lambda rank: plain(train(**wanted(tmp_path / "run"))), tmp_path):
        assert found["history"][0]["loss"] == pytest.approx(notes["sums"]["total"] / 32)
        assert found["history"][0]["steps"] == 2


@pytest.mark.parametrize("rank_asked", [0, 1])
def test_one_process_asked_to_stop_stops_all(
    rank_asked: int, two: tuple[list[dict[str, Any]], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECK_EVERY", 1)

    def work(rank: int) -> None:
        asked = BreakOff(3, number=signal.SIGTERM) if rank == rank_asked else None
        with pytest.raises(Stopped):
            train(**case("plm", tmp_path / "run"), watch=asked)

    together(work, tmp_path)
    notes = load_tensors(sorted((tmp_path / "run" / "checkpoint").glob("0*"))[-1])[1]
    assert (notes["epoch"], notes["step"]) == (1, 3)
    for found in together(lambda rank: plain(train(**case("plm", tmp_path / "run"))), tmp_path):
        for key, value in two[0][0]["plm"]["weights"].items():
            assert torch.equal(found["weights"][key], value)


@pytest.mark.parametrize("name", ["mean", "annotation, plm, label pairs"])
def test_one_process_with_a_bad_number_stops_all(name: str, tmp_path: Path) -> None:
    """No process waits for another that has given up, and the one with the item names it."""

    def work(rank: int) -> str:
        wanted = case(name, tmp_path / "run")
        inputs = torch.from_numpy(wanted["data"].inputs.copy())
        inputs[17, 2] = math.nan
        wanted["data"] = Items(inputs, wanted["data"].labels)
        with pytest.raises(NotFinite, match="at epoch 1, step ") as e:
            train(**wanted)
        return str(e.value)

    told = together(work, tmp_path)
    assert sorted("an input of item '17' is NaN" in message for message in told) == [False, True]
    assert sum("logits of another process's items are NaN or infinite" in message for message in told) == 1


def test_two_processes_may_make_a_store_at_once(tmp_path: Path) -> None:
    """Neither cuts off the other's file, nor loses what it wrote."""

    def work(rank: int) -> None:
        for i in range(40):
            dist.barrier()
            store = PseudoLabels(tmp_path / str(i), 500, 20)
            store.write(torch.arange(rank, 500, 2), torch.ones(250, 20))
            dist.barrier()
            store.start_epoch(2)
            assert bool((store.read(torch.arange(500)) == 1).all())

    together(work, tmp_path)


def test_a_process_without_items_is_refused(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        with pytest.raises(ValueError, match="an epoch has fewer items than the 2 processes: start fewer"):
            train(**{**case("mean", tmp_path / "run"), "data": arrays(1)})
        with pytest.raises(ValueError, match=r"train.batch_size is 15: it must be a multiple of the 2 processes"):
            train(**{**case("mean", tmp_path / "run"), "settings": replace(SETTINGS, batch_size=15)})

    together(work, tmp_path)


def test_the_last_odd_item_is_left_out(tmp_path: Path) -> None:
    """As the samplers say: so that all processes make equally many steps."""

    def work(rank: int) -> list[int]:
        seen: list[int] = []
        wanted = case("mean", tmp_path / "run")
        data = wanted["data"] = arrays(N + 1)
        wanted["model"].register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
        wanted["validate"] = None
        train(**wanted)
        assert len(data) == N + 1
        return seen

    assert together(work, tmp_path) == [[8, 8, 8, 1] * 2] * 2
