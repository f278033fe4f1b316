"""Small trainings that the tests of `steelyard.training` share, and ways to break them off."""

from __future__ import annotations

import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from steelyard.balance import ClassBalanced, Deferred, LabelPair, PartialLabelMasking, PseudoLabels
from steelyard.data.dataset import ArrayDataset
from steelyard.labels import Labels
from steelyard.losses import BCE
from steelyard.losses.partial_annotation import Annotation
from steelyard.metrics import mean_average_precision
from steelyard.objective import Objective, Role
from steelyard.run import learn
from steelyard.training.batches import all_outputs
from steelyard.training.checkpoint import Checkpoints
from steelyard.training.loop import Outcome, train
from steelyard.training.progress import Watch
from steelyard.training.settings import (
    AugmentSettings,
    OptimizerSettings,
    SamplerSettings,
    ScheduleSettings,
    TrainSettings,
)
from torture.child import Ended, Running

N, F, L = 60, 6, 5
TIMINGS = ("seconds", "seconds_before", "items_per_second")


def table(n: int = N, n_labels: int = L, unknown: float = 0.0, seed: int = 0) -> Labels:
    """Labels of falling frequency, the first two of which depend on the inputs of `features`."""
    rng = np.random.default_rng(seed)
    scores = features(n, seed) @ np.random.default_rng(99).normal(size=(F, n_labels)) + rng.normal(size=(n, n_labels))
    values = (scores > np.linspace(0, 2.5, n_labels)).astype(np.int8)
    values[:n_labels] |= np.eye(n_labels, dtype=np.int8)[:n]  # no class is empty
    values[rng.random(values.shape) < unknown] = -1
    return Labels(values)


def features(n: int = N, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(1000 + seed).normal(size=(n, F)).astype(np.float32)


def arrays(n: int = N, unknown: float = 0.0, seed: int = 0) -> ArrayDataset:
    return ArrayDataset(features(n, seed), table(n, unknown=unknown, seed=seed))


class Items:
    """A data set that is no array, so that a loader fetches its items one by one."""

    def __init__(self, inputs: Any, labels: Labels) -> None:
        self.inputs, self.labels = inputs, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Any, Tensor, int]:
        x = tuple(part[i] for part in self.inputs) if isinstance(self.inputs, tuple) else self.inputs[i]
        return x, torch.from_numpy(self.labels.rows([i])[0]), i


def images(n: int = 48, seed: int = 0) -> Items:
    pixels = np.random.default_rng(seed).integers(0, 256, (n, 3, 8, 8), dtype=np.uint8)
    return Items(torch.from_numpy(pixels), table(n, seed=seed))


class Net(nn.Module):
    """A net without BatchNorm and dropout, so that items of a batch do not mix."""

    def __init__(self, n_labels: int = L) -> None:
        super().__init__()
        self.backbone, self.head = nn.Sequential(nn.Linear(F, 8), nn.Tanh()), nn.Linear(8, n_labels)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


class Noisy(nn.Module):
    """A net of images with BatchNorm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(36, L))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x.float() / 255))


def seeded(make: Callable[[], nn.Module], seed: int = 5) -> nn.Module:
    """A net with weights of its own seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def validation(data: Any) -> Callable[[nn.Module, torch.device], dict[str, float]]:
    """Validation by mean average precision and mean BCE."""

    def validate(model: nn.Module, device: torch.device) -> dict[str, float]:
        logits, targets = all_outputs(model, data, 7, device)
        loss = BCE()(logits, targets)
        return {"map": float(mean_average_precision(logits, targets)), "loss": float(loss)}

    return validate


def job(name: str, folder: Path) -> dict[str, Any]:
    """The arguments of `train` for one of three trainings that together use all that has a state."""
    settings = TrainSettings(epochs=3, batch_size=12, seed=3, device="cpu", checkpoint_seconds=0, workers=0)
    if name == "annotation":
        data = arrays(unknown=0.35)
        store = PseudoLabels(folder / "pseudo-labels", N, L)
        counts, n_known = data.labels.counts, data.labels.n_known
        return dict(
            model=seeded(Net),
            objective=Objective(
                BCE(reduction="item"),
                Annotation(store, q=(0.3, 0.9), seed=1),
                masking=PartialLabelMasking(counts, n_known, rate=0.5, seed=2),
                regularizers=[LabelPair(0.5)],
            ),
            data=data,
            optimizer=OptimizerSettings(lr=0.02, clip_norm=0.5, backbone_lr=0.3),
            schedule=ScheduleSettings(warmup_epochs=0.7),
            settings=replace(settings, ema=0.9, sampler=SamplerSettings("class_aware", visits=12)),
            folder=folder,
            validate=validation(arrays(30, seed=7)),
        )
    if name == "role":
        data = arrays(unknown=0.35)
        return dict(
            model=seeded(Net),
            objective=Objective(
                BCE(),
                Role(data.labels.values, 1.5, seed=1),
                weighting=Deferred(ClassBalanced(data.labels.counts, 0.9), 2),
            ),
            data=data,
            optimizer=OptimizerSettings("sgd", lr=0.1, nesterov=True),
            schedule=ScheduleSettings("multistep", milestones=(1.5, 2.0)),
            settings=replace(settings, monitor="loss", sampler=SamplerSettings("undersample", per_class=11)),
            folder=folder,
            validate=validation(arrays(30, seed=7)),
        )
    return dict(
        model=seeded(Noisy),
        objective=Objective(BCE()),
        data=images(),
        optimizer=OptimizerSettings(lr=0.01),
        schedule=ScheduleSettings(),
        settings=replace(settings, workers=1, augment=AugmentSettings(flip=0.5, pad_crop=1, resized_crop=0.5)),
        folder=folder,
        validate=validation(images(20, seed=7)),
    )


def run(name: str, folder: Path, **changes: Any) -> Outcome:
    """Train one of `job`; of the settings named in `changes` those replace the job's."""
    wanted = job(name, folder)
    watch = changes.pop("watch", None)
    settings = replace(wanted.pop("settings"), **changes)
    return train(**wanted, settings=settings, watch=watch)


def everything(name: str, folder: Path) -> dict[str, Any]:
    """All that a finished run leaves, timings aside, to be compared bit for bit."""
    outcome = run(name, folder)  # finished: it only reads
    state = Checkpoints(folder / "checkpoint").load()
    left: dict[str, Any] = {f"kept {key}": bits(value) for key, value in outcome.weights.items()}
    left |= {f"state {key}": bits(value) for key, value in state.tensors.items()}
    left |= {f"note {key}": value for key, value in state.notes.items() if key not in TIMINGS}
    left["history"] = untimed(outcome.history)
    left["kept_epoch"] = outcome.kept_epoch
    left |= {file.name: file.read_bytes() for file in sorted((folder / "pseudo-labels").glob("*"))}
    litter = [file.name for file in folder.rglob(".*")]
    assert not litter, litter
    kept = [file.name for file in (folder / "checkpoint").iterdir()]
    assert len(kept) <= 6, kept  # two checkpoints and their best weights, and a third one where a kill left it
    return left


def untimed(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key not in TIMINGS} for record in history]


def bits(value: Tensor) -> tuple[Any, ...]:
    return value.dtype, tuple(value.shape), value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(a: dict[str, Any], b: dict[str, Any]) -> None:
    """Assert that two runs left the same, naming what differs."""
    other = sorted(key for key in a.keys() | b.keys() if a.get(key, "missing") != b.get(key, "missing"))
    told = "; ".join(f"{key}: {str(a.get(key))[:300]} and {str(b.get(key))[:300]}" for key in other)
    assert not other, told


def forked(work: Callable[[], object], note: Path) -> int:
    """Start `work` in a copy of this process; its process id. A failure is written to `note`."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        note.write_text(traceback.format_exc())
    finally:
        os._exit(code)


def waited(child: int, seconds: float = 60) -> int:
    """Wait for a process; its exit code, or minus the signal that ended it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError(f"the process did not end in {seconds} s")


class BrokenOff(Exception):
    """Not an error of training's."""


class BreakOff(Watch):
    """Breaks training off after so many steps of this sitting."""

    def __init__(self, steps: int, error: BaseException | None = None, number: int | None = None) -> None:
        self.left, self.error, self.number = steps, error or BrokenOff(), number

    def step(self, epoch: int, step: int, steps: int) -> None:
        self.left -= 1
        if self.left == 0:
            if self.number is None:
                raise self.error
            os.kill(os.getpid(), self.number)


class Shot(Watch):
    """Sends this process a signal when a step is done."""

    def __init__(self, epoch: int, step: int, number: int) -> None:
        self.spot, self.number = (epoch, step), number

    def step(self, epoch: int, step: int, steps: int) -> None:
        if (epoch, step) == self.spot:
            os.kill(os.getpid(), self.number)


def shot(epoch: int, step: int, number: int) -> Callable[..., Watch]:
    return lambda *_: Shot(epoch, step, number)


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def in_two_processes(folder: Path, *command: str, fails: bool = False) -> list[Ended]:
    """What a command ends with in each of two processes; with `fails` the second fails in the second epoch."""
    port = str(free_port())

    def join(rank: int) -> None:
        there = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        os.environ.update(there, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        if fails and rank == 1:
            learn._watch = lambda *_: Fails()

    started = [Running(command, folder, lambda rank=rank: join(rank)) for rank in range(2)]
    return [process.wait(120) for process in started]


class Fails(Watch):
    """Fails in the second epoch."""

    def step(self, epoch: int, step: int, steps: int) -> None:
        if epoch == 2:
            raise ValueError("process 1 met a bad item")
