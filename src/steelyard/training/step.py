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
from steelyard.training.batches import Batches, Resident, TrainingBatch
from steelyard.training.finite import FiniteMonitor
from steelyard.training.job import Job
from steelyard.training.optimizer import set_rate
from steelyard.training.settings import TrainSettings

Check = Callable[[], None]


class Step(nn.Module):
    """The model and the objective as one module, so that DistributedDataParallel averages the gradients of both.

    The network runs in `precision` (by autocast, where it is not float32); the objective always has float32 logits.
    """

    def __init__(self, model: nn.Module, objective: Objective, device: torch.device, precision: torch.dtype) -> None:
        super().__init__()
        self.model, self.objective = model, objective
        self.device, self.precision = device, precision
        self.memory = model if isinstance(model, Model) and model.has_memory else None
        self.compiled: list[Callable[..., Any]] = []
        """A compiled form of the model; in a list, so that its parameters are not counted twice."""
        self.is_compiled = False
        """Run `compiled`, if there is one, in place of the model."""

    def forward(self, inputs: Any, targets: Tensor, index: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Return the total to minimise, its parts by name, and the logits, which keep their gradient.

        Logits that are not finite in any process, where looking costs no wait, do not reach the objective, its ratios
        and pseudo-labels: the total is NaN in all.
        """
        network = self.compiled[0] if self.is_compiled and self.compiled else self.model
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


def pick_device(name: str, argument: str = "train.device") -> torch.device:
    """Return the device of this name; "auto" is the GPU of this process, or the CPU without one.

    name: auto, cpu, cuda or cuda:N. argument: its name, for errors.
    """
    has_gpu = torch.cuda.is_available()
    try:
        device = torch.device(("cuda" if has_gpu else "cpu") if name == "auto" else name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"{argument} is {name!r}: give auto, cpu, cuda or cuda:N")
    if device.type == "cpu":
        return device
    if not has_gpu:
        raise ValueError(f"{argument} is {name!r}, but this machine has no usable GPU: give cpu or auto")
    if device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    if device.index >= (n := torch.cuda.device_count()):
        raise ValueError(
            f"{argument} is {name!r}, but this machine has {n} GPUs, numbered from 0: give cuda:{n - 1} or less"
        )
    return device


def pick_precision(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype that `train.precision` names; "auto" is bfloat16 on a GPU that has it, else float32."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


class Eager:
    """Steps run by Python, batch by batch: the reference, and the fallback for whatever cannot be captured.

    Args:
        forward: inputs, targets, index → total, parts, logits.
        job: what changes.
        watchman: takes note of every step.
        batches: the data.
        settings: the section [train].
        clip_norm: the largest norm of the whole gradient; 0 does not clip.
    """

    prepared = 0.0
    """Seconds spent on compiling and recording."""

    def __init__(
        self,
        forward: nn.Module,
        job: Job,
        watchman: FiniteMonitor,
        batches: Batches,
        settings: TrainSettings,
        clip_norm: float,
    ) -> None:
        self.forward, self.job, self.watchman = forward, job, watchman
        self.batches, self.settings, self.clip_norm = batches, settings, clip_norm
        self.looks_at_inputs = not isinstance(batches, Resident)  # whose inputs were looked at once
        self.rates: Sequence[float] = ()
        self.beside: Callable[[], AbstractContextManager[None]] = nullcontext
        self.join: Callable[[], None] = lambda: None

    def start_epoch(self, rates: Sequence[float]) -> None:
        """Begin, or take up again, the job's epoch; `rates` are the learning rates of its steps."""
        self.rates = rates

    def __iter__(self) -> Iterator[Any]:
        """Yield what `run` wants for each of the epoch's steps."""
        return iter(self.batches)

    def run(self, batch: Any, check: Check | None) -> int:
        """Take a step and return how many items it had; `check`, if given, is called."""
        job, settings = self.job, self.settings
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

    def update(self, at: Tensor | int, batch: TrainingBatch, check: Check | None = None) -> None:
        """Take step number `at` of the epoch: forward, backward, optimizer, sums; nothing in it waits for the device.

        `check`, if given, is called before the weights move.
        """
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

    def close(self) -> None:
        """Release what the steps needed: nothing."""
