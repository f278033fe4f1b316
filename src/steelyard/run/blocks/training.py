"""Training of a linear model of many labels over features, one block of labels at a time, by one process or several."""

from __future__ import annotations

import math
import time
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard.balance.picked_labels import PickedLabels
from steelyard.balance.processes import n_processes
from steelyard.config.settings import Config
from steelyard.data.subset import item_inputs
from steelyard.models import Model
from steelyard.models.block import BlockHead, BlockOptimizer, SparseTargets, prior_bias
from steelyard.objective import Objective
from steelyard.training import group
from steelyard.training.checkpoint import Checkpoints, History, State, module_tensors, prefixed, without_prefix
from steelyard.training.distributed import Stopped, listening
from steelyard.training.finite import NotFinite, check_weights
from steelyard.training.loop import CHECK_EVERY, Outcome
from steelyard.training.optimizer import rate
from steelyard.training.progress import Watch
from steelyard.training.step import pick_precision


def optimizer_of(config: Config, device: torch.device) -> BlockOptimizer:
    """Return the optimizer that the section [optimizer] names, with states that suit the device."""
    given = config.optimizer
    kind = "adam" if given.kind == "adamw" else "momentum" if given.momentum > 0 else "sgd"
    state = "bfloat16" if device.type == "cuda" else "float32"
    return BlockOptimizer(kind, given.momentum, given.betas, 1e-8, given.weight_decay, state, seed=config.train.seed)  # type: ignore[arg-type]


def features_of(data: Any, index: NDArray[np.int64]) -> Tensor:
    """Return the features (n, F) of some items, float32."""
    return item_inputs(data, index).float()


def train_blocks(
    model: Model,
    objective: Objective,
    data: Any,
    config: Config,
    device: torch.device,
    folder: Path,
    watch: Watch | None = None,
) -> Outcome:
    """Train the head of `model`, resuming from checkpoints in `folder` where there are any.

    Several processes split the labels and share every batch. At the end each of them has the whole head.

    Args:
        model: of features, whose head is a BlockHead.
        objective: what is minimised.
        data: the training items, features in memory.
        config: the sections [optimizer], [schedule] and [train], none of them automatic.
        device: where to train.
        folder: `checkpoint/` and `history.jsonl` are written here.
        watch: shows progress.
    """
    training = _Training(model, objective, data, config, device, folder)
    shown, epochs = watch or Watch(), config.train.epochs
    try:
        shown.begin(training.epoch, training.step, epochs)
        with listening() as stop:
            while training.epoch <= epochs:
                record = training.run_epoch(stop, shown)
                shown.epoch(record, epochs)
    finally:
        shown.end()
    training.head.join()
    training.head.optimize_by(BlockOptimizer())
    records, damaged = training.history.records, training.checkpoints.damaged
    return Outcome({}, len(records), records, training.seconds, False, None, damaged, 0.0)


class _Training:
    """State of a training by blocks; arguments as for `train_blocks`."""

    def __init__(
        self, model: Model, objective: Objective, data: Any, config: Config, device: torch.device, folder: Path
    ) -> None:
        head = model.head
        assert isinstance(head, BlockHead)
        self.model, self.head, self.objective, self.data, self.config = model, head, objective, data, config
        self.device = device
        self.checkpoints = Checkpoints(folder / "checkpoint")
        state = self.checkpoints.load()
        if state is None and config.model.bias == "prior":
            head.start_at(prior_bias(objective, data.labels, config.train.epochs))
        head.split()
        if device.type == "cuda":
            head.narrow(pick_precision(config.train.precision, device))
        model.to(device)
        objective.to(device)
        head.optimize_by(optimizer_of(config, device))
        self.epoch, self.step, self.seconds, self.seconds_before, self.lr = 1, 0, 0.0, 0.0, 0.0
        self.total = torch.zeros((), dtype=torch.float64, device=device)
        store = getattr(objective.resolver, "store", None)
        self.store = store if isinstance(store, PickedLabels) else None
        if state is not None:
            self._restore(state)
        elif self.store is not None and group.is_first():
            self.store.reset()
        group.barrier()
        self.history = History(folder / "history.jsonl", self.epoch, writes=group.is_first())
        self.saved_at = time.monotonic()

    def run_epoch(self, stop: Event, watch: Watch) -> dict[str, Any]:
        """Take the remaining steps of an epoch, begin the next, and return the epoch's line of the history."""
        train, n_items = self.config.train, len(self.data.labels)
        steps = math.ceil(n_items / train.batch_size)
        order = np.random.default_rng((train.seed, self.epoch)).permutation(n_items)
        self.objective.train()
        self.objective.start_epoch(self.epoch, train.epochs)
        since = time.monotonic()
        for step in range(self.step, steps):
            index = order[step * train.batch_size : (step + 1) * train.batch_size]
            self.lr = self.config.optimizer.lr * rate(self.config.schedule, self.epoch - 1 + step / steps, train.epochs)
            self._take(index)
            self.step = step + 1
            watch.step(self.epoch, self.step, steps)
            if self.step == steps or (self.step % CHECK_EVERY and (n_processes() > 1 or not self._wants(stop))):
                continue
            self._check()
            if group.agreed(self._wants(stop)):
                since = self._pause(since)
                self._save()
                if group.agreed(stop.is_set()):
                    raise Stopped(f"stopped in epoch {self.epoch}; run the same command again to continue")
        self._pause(since)
        record = self._record(steps)
        self.history.append(record)
        self.epoch, self.step, self.seconds_before = self.epoch + 1, 0, self.seconds
        self.total.zero_()
        is_last = self.epoch > train.epochs
        if group.agreed(self._wants(stop) or is_last or self.store is not None):
            self._save()
        if group.agreed(stop.is_set()) and not is_last:
            raise Stopped(f"stopped after epoch {self.epoch - 1}; run the same command again to continue")
        return record

    def _take(self, batch: NDArray[np.int64]) -> None:
        """Take one step; each of several processes contributes its part of the items, in order."""
        index = np.array_split(batch, n_processes())[group.rank()]
        x = self.model.features(features_of(self.data, index).to(self.device))
        targets = SparseTargets.from_labels(self.data.labels, index).to(self.device)
        items = torch.from_numpy(index).to(self.device)
        self.total += self.head.step(x, targets, self.objective, self.lr, items).total * len(batch)

    def _wants(self, stop: Event) -> bool:
        """Return whether a checkpoint is due or requested."""
        return stop.is_set() or time.monotonic() - self.saved_at >= self.config.train.checkpoint_seconds

    def _check(self) -> None:
        if not math.isfinite(float(self.total)):
            where = f"in epoch {self.epoch}, before step {self.step}"
            raise NotFinite(f"the loss is not finite {where}: lower optimizer.lr (it was {self.lr:.3g})")

    def _pause(self, since: float) -> float:
        """Check that loss and weights are finite, add the seconds since, and return the time."""
        self._check()
        check_weights(self.model, self.epoch, self.step, self.lr)
        now = time.monotonic()
        self.seconds += now - since
        return now

    def _record(self, steps: int) -> dict[str, Any]:
        n, seconds = len(self.data.labels), self.seconds - self.seconds_before
        return {
            "epoch": self.epoch,
            "steps": steps,
            "seconds": round(seconds, 3),
            "lr": self.lr,
            "loss": float(self.total) / n,
            "parts": {},
            "items_per_second": round(n / max(seconds, 1e-9), 1),
        }

    def _save(self) -> None:
        tensors = prefixed("head", self.head.whole_state()) | prefixed("objective", module_tensors(self.objective))
        notes = {name: getattr(self, name) for name in ("epoch", "step", "seconds", "seconds_before")}
        state = State({**tensors, "total": self.total}, {**notes, "best_file": ""})
        if self.store is not None:
            self.store.flush()
        group.barrier()  # all pseudo-labels are there before a checkpoint says so
        if group.is_first():
            self.checkpoints.save(self.epoch, self.step, state)
        group.barrier()
        self.saved_at = time.monotonic()

    def _restore(self, state: State) -> None:
        for name in ("epoch", "step", "seconds", "seconds_before"):
            setattr(self, name, state.notes[name])
        if self.store is not None:
            self.store.check_continues(self.epoch)
        self.head.load_whole_state(without_prefix("head", state.tensors))
        self.objective.load_state_dict(without_prefix("objective", state.tensors))
        self.total.copy_(state.tensors["total"])
