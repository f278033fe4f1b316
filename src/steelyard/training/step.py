"""One step of training: what is computed between a batch and its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from steelyard.models.model import Model
from steelyard.objective import Objective
from steelyard.training import group
from steelyard.training.augment import OVERLAY, augment, overlaid, uniforms
from steelyard.training.batches import Batch, Batches
from steelyard.training.finite import Watchman
from steelyard.training.job import Job
from steelyard.training.optimizer import set_rate
from steelyard.training.settings import TrainSettings


class Step(nn.Module):
    """The model and the objective as one module, so that DistributedDataParallel averages the gradients of both.

    The network runs in `precision` (by autocast, where it is not float32); the objective always has float32 logits.
    """

    def __init__(self, model: nn.Module, objective: Objective, device: torch.device, precision: torch.dtype) -> None:
        super().__init__()
        self.model, self.objective = model, objective
        self.device, self.precision = device, precision
        self.memory = model if isinstance(model, Model) and model.has_memory else None
        self._compiled: list[Callable[..., Any]] = []  # in a list, so that its parameters are not counted twice
        self.is_compiled = False

    def set_compiled(self, network: Callable[..., Any]) -> None:
        """Run `network`, a compiled form of the model, in its stead while `is_compiled` says so."""
        self._compiled = [network]

    def forward(self, inputs: Any, targets: Tensor, index: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Return the total to minimise, its parts by name, and the logits, which keep their gradient.

        Logits that are not finite in any process, where looking costs no wait, do not reach the objective, its ratios
        and pseudo-labels: the total is NaN in all.
        """
        network = self._compiled[0] if self.is_compiled and self._compiled else self.model
        with torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32):
            if self.memory is None:
                logits = network(inputs)
            else:
                logits, features = network(inputs, with_features=True)
        if self.memory is not None and self.training:
            self.memory.observe(features.detach(), targets)
        logits = logits.float()
        if logits.requires_grad:
            logits.retain_grad()
        stored = self.objective.resolver.stored()
        waits = logits.device.type == "cpu" or (stored is not None and not stored.held)
        if waits and group.agreed(not bool(torch.isfinite(logits).all())):
            return logits.sum() * math.nan, {}, logits
        value = self.objective(logits, targets, index)
        parts = {name: part.detach() for name, part in value.parts.items()}
        return value.total, parts, logits


def pick_device(name: str, said: str = "train.device") -> torch.device:
    """Return the device of this name; "auto" is the GPU of this process, or the CPU without one.

    name: auto, cpu, cuda or cuda:N. said: where it was given, to be named where it is wrong.
    """
    if name == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"{said} is {name!r}: give auto, cpu, cuda or cuda:N")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"{said} is {name!r}, but this machine has no usable GPU: give cpu or auto")
        if device.index is not None and device.index >= torch.cuda.device_count():
            n = torch.cuda.device_count()
            raise ValueError(
                f"{said} is {name!r}, but this machine has {n} GPUs, numbered from 0: give cuda:{n - 1} or less"
            )
        return torch.device("cuda", torch.cuda.current_device()) if device.index is None else device
    return device


def pick_precision(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype that `train.precision` names; "auto" is bfloat16 on a GPU that has it, else float32."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


Check = Callable[[], None]


class Update:
    """Forward, backward, optimizer, average, sums: all of a step that happens on the device, and nothing that waits.

    Args:
        forward: inputs, targets, index → total, parts, logits.
        job: what changes.
        watchman: takes note of every step.
        clip_norm: the largest norm of the whole gradient; 0 does not clip.
        looks_at_inputs: whether inputs, too, are to be looked at for numbers that are not finite.
    """

    def __init__(
        self, forward: nn.Module, job: Job, watchman: Watchman, clip_norm: float, looks_at_inputs: bool
    ) -> None:
        self.forward, self.job, self.watchman = forward, job, watchman
        self.clip_norm, self.looks_at_inputs = clip_norm, looks_at_inputs
        self.beside: Callable[[], AbstractContextManager[None]] = nullcontext
        self.join: Callable[[], None] = lambda: None

    def __call__(self, at: Tensor | int, batch: Batch, check: Check | None = None) -> None:
        """Take step number `at` of the epoch; `check`, if given, is called before the weights move."""
        job, inputs = self.job, batch.inputs if self.looks_at_inputs else None
        total, parts, logits = self.forward(*batch)
        with self.beside():
            self.watchman.note(at, total, parts, logits, inputs, batch.index)
            job.add(total, parts, len(batch.index))
        job.optimizer.zero_grad(set_to_none=True)
        job.scaler.scale(total).backward()
        with self.beside():
            self.watchman.note_slopes(logits.grad)
        if check is not None:
            check()
        if self.clip_norm > 0:
            job.scaler.unscale_(job.optimizer)
            nn.utils.clip_grad_norm_(self.forward.parameters(), self.clip_norm)
        job.scaler.step(job.optimizer)
        job.scaler.update()
        self.join()


class Eager:
    """Steps as Python runs them, batch by batch: the reference, and the way for whatever cannot be captured."""

    prepared = 0.0
    """Seconds spent on compiling and recording."""

    def __init__(self, update: Update, batches: Batches, settings: TrainSettings) -> None:
        self.update, self.batches, self.settings = update, batches, settings
        self.rates: Sequence[float] = ()

    def start_epoch(self, rates: Sequence[float]) -> None:
        """Begin, or take up again, the job's epoch; `rates` are the learning rates of its steps."""
        self.rates = rates

    def __iter__(self) -> Iterator[Any]:
        """Yield what `run` wants for each of the epoch's steps."""
        return iter(self.batches)

    def run(self, batch: Any, check: Check | None) -> int:
        """Take a step and return how many items it had; `check`, if given, is called."""
        job, settings = self.update.job, self.settings
        set_rate(job.optimizer, self.rates[job.step])
        draws = self.batches.draws(job.step, len(batch.index), batch.index.device)
        batch = batch._replace(inputs=augment(batch.inputs, settings.augment, settings.seed, job.epoch, draws))
        if settings.augment.overlay > 0:
            u = uniforms(settings.augment, settings.seed, job.epoch, draws)
            batch = overlaid(batch, settings.augment.overlay, u[:, OVERLAY])
        self.update(job.step, batch, check)
        if job.average is not None:
            job.average.update(job.model)
        return len(batch.index)

    def close(self) -> None:
        """Give back what the steps needed: nothing."""
