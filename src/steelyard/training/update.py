"""What a batch does to a training, and the plain way of going from batch to batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn

from steelyard.training.augment import OVERLAY, augment, uniforms
from steelyard.training.batches import Batch, Batches
from steelyard.training.finite import Watchman
from steelyard.training.job import Job
from steelyard.training.optimizer import set_rate
from steelyard.training.overlay import overlaid
from steelyard.training.settings import TrainSettings

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
