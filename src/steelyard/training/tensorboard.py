"""The history, for TensorBoard too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from steelyard.training.progress import Watch


class Board(Watch):
    """Writes every epoch's numbers to `folder` as TensorBoard reads them, and passes everything on to `inner`."""

    def __init__(self, folder: Path, inner: Watch) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError(
                "train.tensorboard is true, but the package is not there: pip install tensorboard, or set it to false"
            ) from None
        self.folder, self.inner, self._make = folder, inner, SummaryWriter
        self._writer: Any = None

    def begin(self, epoch: int, step: int, epochs: int) -> None:
        """Open the folder; what was written of this and later epochs is superseded."""
        self._writer = self._make(str(self.folder), purge_step=epoch)
        self.inner.begin(epoch, step, epochs)

    def step(self, epoch: int, step: int, steps: int) -> None:
        """Pass it on."""
        self.inner.step(epoch, step, steps)

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        """Write the numbers of an epoch."""
        numbers = {"training/loss": record["loss"], "training/lr": record["lr"]}
        numbers |= {f"training/{name}": value for name, value in record["parts"].items() if name != "loss"}
        numbers |= {f"validation/{name}": value for name, value in (record.get("validation") or {}).items()}
        for name, value in numbers.items():
            if value is not None:
                self._writer.add_scalar(name, value, record["epoch"])
        self._writer.flush()
        self.inner.epoch(record, epochs)

    def end(self) -> None:
        """Close the folder."""
        if self._writer is not None:
            self._writer.close()
        self.inner.end()
