"""Progress of training: a bar on a terminal, plain lines elsewhere, nothing when output is off."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from steelyard._extras import needed

SECONDS = 30.0
"""Seconds between plain lines within an epoch."""


class Watch:
    """Progress display that shows nothing; base of the others."""

    def begin(self, epoch: int, step: int, epochs: int) -> None:
        """Training starts, or resumes, at `step` of `epoch`."""

    def step(self, epoch: int, step: int, steps: int) -> None:
        """`step` steps of `steps` are done."""

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        """An epoch is done; `record` is its line in the history."""

    def end(self) -> None:
        """Training has ended, in whatever way."""


class Lines(Watch):
    """Prints one line per epoch, and one every half minute within it."""

    def __init__(self, console: Console) -> None:
        self.console, self._last = console, time.monotonic()

    def begin(self, epoch: int, step: int, epochs: int) -> None:
        """Print where training resumes."""
        if 1 < epoch <= epochs or step > 0:
            self.console.print(f"Resuming at epoch {epoch} of {epochs}, step {step + 1}.", highlight=False)

    def step(self, epoch: int, step: int, steps: int) -> None:
        """Print a line now and then."""
        if time.monotonic() - self._last > SECONDS:
            self._last = time.monotonic()
            self.console.print(f"epoch {epoch}: step {step} of {steps}", highlight=False)

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        """Print the epoch's line."""
        self._last = time.monotonic()
        self.console.print(described(record, epochs), highlight=False)


class Bar(Lines):
    """Shows a bar for the current epoch, and above it one line per finished epoch."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task("training")
        self._epochs = 0

    def begin(self, epoch: int, step: int, epochs: int) -> None:
        """Start the bar."""
        super().begin(epoch, step, epochs)
        self._epochs = epochs
        self._progress.start()

    def step(self, epoch: int, step: int, steps: int) -> None:
        """Move the bar."""
        self._progress.update(self._task, description=f"epoch {epoch}/{self._epochs}", completed=step, total=steps)

    def end(self) -> None:
        """Remove the bar."""
        self._progress.stop()


def watch(console: Console) -> Watch:
    """Return what fits the console: a bar on a terminal, lines elsewhere."""
    return Bar(console) if console.is_terminal else Lines(console)


def described(record: dict[str, Any], epochs: int) -> str:
    """Return an epoch's record as one line."""
    text = [f"epoch {record['epoch']}/{epochs}", f"loss {record['loss']:.4f}"]
    names = {"map": "mAP", "f1": "F1", "ace": "ACE", "error": "error"}
    for key, value in (record.get("validation") or {}).items():
        if key in names and value is not None:
            text.append(f"{names[key]} {100 * value:.1f}")
    text.append(f"{record['seconds']:.1f} s")
    return "  ".join(text)


class Logger(Protocol):
    """Interface of `sy.fit(logger=…)`: records the numbers of each epoch."""

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        """Keep numbers such as training/loss and validation/map; of a model without epochs there are none."""


class Logged(Watch):
    """Hands every epoch's numbers to a logger, and passes everything on to `inner`."""

    def __init__(self, logger: Logger, inner: Watch) -> None:
        self.logger, self.inner = logger, inner
        self.begin, self.step, self.end = inner.begin, inner.step, inner.end  # type: ignore[method-assign]

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        """Log the numbers of an epoch."""
        self.logger.log(numbers_of(record), record["epoch"])
        self.inner.epoch(record, epochs)


def numbers_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of an epoch by name, those that are not known left out."""
    numbers = {"training/loss": record["loss"], "training/lr": record["lr"]}
    numbers |= {f"training/{name}": value for name, value in record["parts"].items() if name != "loss"}
    numbers |= {f"validation/{name}": value for name, value in (record.get("validation") or {}).items()}
    return {name: value for name, value in numbers.items() if value is not None}


class TensorBoard:
    """A logger that writes to `folder` as TensorBoard reads it; nothing is there before the first epoch is done."""

    def __init__(self, folder: Path) -> None:
        with needed("train.tensorboard needs", "tensorboard, or set it to false"):
            from torch.utils.tensorboard import SummaryWriter
        self.folder, self._make = folder, SummaryWriter
        self._writer: Any = None

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        """Write the numbers of an epoch; what an earlier process wrote of this and later epochs is superseded."""
        self._writer = self._writer or self._make(str(self.folder), purge_step=epoch)
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, epoch)
        self._writer.flush()
