"""A store of pseudo-labels for many labels: only of the cells that the next epoch picks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from steelyard.balance.checks import check_choice
from steelyard.balance.processes import n_processes
from steelyard.balance.pseudo_labels import HALF, LEVELS, Feedback


class PickedLabels:
    """Pseudo-labels ỹ of the partial-annotation paper on disk, one byte for each cell that the next epoch will read.

    Which cells an epoch picks follows from seed, epoch, item and label, so the epoch before it knows them: N·q·L bytes
    take the place of N·L. Each epoch writes a file of its own, item after item; a batch taken again writes them again.
    An item that the epoch before did not visit has ½. Every process keeps the labels of its share.

    Args:
        path: a folder, created if it is missing.
        n_items: N.
        n_labels: L.
        feedback: as of `PseudoLabels`.

    Examples:
        >>> store = sy.balance.PickedLabels("picked", n_items=2, n_labels=1000)
        >>> store.start_epoch(1)
        >>> items, counts = torch.tensor([0, 1]), torch.tensor([2, 1])  # two cells of item 0, one of item 1
        >>> store.write(items, counts, torch.tensor([0.9, 0.1, 0.4]))
        >>> store.start_epoch(2)
        >>> store.read(items, counts)
        tensor([0.9016, 0.0984, 0.4016])
    """

    def __init__(self, path: str | Path, n_items: int, n_labels: int, feedback: Feedback = "raw") -> None:
        check_choice(Feedback, feedback=feedback)
        self.path, self.n_items, self.n_labels, self.feedback = Path(path), n_items, n_labels, feedback
        self.path.mkdir(parents=True, exist_ok=True)
        self.epoch = 0
        self._before, self._starts_before = np.zeros(0, np.int8), np.full(n_items, -1)
        self._starts, self._length = np.full(n_items, -1), 0

    def _files(self, epoch: int) -> tuple[Path, Path]:
        rank = dist.get_rank() if n_processes() > 1 else 0
        return self.path / f"picked-{epoch}-{rank}.i8", self.path / f"starts-{epoch}-{rank}.npy"

    def start_epoch(self, epoch: int) -> None:
        """Begin or resume epoch `epoch` (from 1): read what the epoch before it wrote."""
        if epoch < 1:
            raise ValueError(f"epoch is {epoch}: epochs count from 1")
        if epoch == self.epoch:
            return
        if epoch == self.epoch + 1:
            self.flush()
        for old in (file for e in range(max(epoch - 4, 0), epoch - 2) for file in self._files(e)):
            old.unlink(missing_ok=True)
        values, starts = self._files(epoch - 1)
        self._before, self._starts_before = np.zeros(0, np.int8), np.full(self.n_items, -1)
        if epoch > 1 and starts.is_file():
            self._starts_before = np.load(starts, allow_pickle=False)
            if values.stat().st_size:
                self._before = np.memmap(values, np.int8, "r")
        values, starts = self._files(epoch)
        values.touch()
        self.epoch, self._length = epoch, values.stat().st_size  # what a batch taken again wrote is left behind
        self._starts = np.load(starts, allow_pickle=False) if starts.is_file() else np.full(self.n_items, -1)

    def reset(self) -> None:
        """Reset every pseudo-label to ½."""
        for file in [*self.path.glob("picked-*"), *self.path.glob("starts-*")]:
            file.unlink(missing_ok=True)
        self.epoch = 0

    def check_continues(self, epoch: int) -> None:
        """Raise unless `epoch` can be started: the writes of the epoch before must be there."""
        if epoch > 1 and not self._files(epoch - 1)[1].is_file():
            raise ValueError(
                f"{self.path} has no pseudo-labels of epoch {epoch - 1}, which epoch {epoch} reads: "
                "train again with --overwrite"
            )

    def read(self, index: Tensor, counts: Tensor) -> Tensor:
        """Return the pseudo-labels of the picked cells of items `index` (B,), `counts` (B,) of each, by item and label.

        They are float32, (sum of counts,).
        """
        n, starts = counts.cpu().numpy(), self._starts_before[index.cpu().numpy()]
        within = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)
        firsts, levels = np.repeat(starts, n), np.zeros(n.sum(), np.int8)
        there = firsts >= 0
        levels[there] = self._before[(firsts + within)[there]]
        return (torch.from_numpy(levels).to(index.device).to(torch.float32) + HALF) / LEVELS

    def write(self, index: Tensor, counts: Tensor, probabilities: Tensor) -> None:
        """Store the predictions of the cells that the next epoch picks, in the order in which it will read them.

        Args:
            index: the items (B,).
            counts: how many of each item's labels the next epoch picks, (B,).
            probabilities: of these, by item and label, (sum of counts,).
        """
        n = counts.cpu().numpy()
        self._starts[index.cpu().numpy()] = self._length + np.cumsum(n) - n
        levels = (probabilities.to("cpu", torch.float32) * LEVELS).round().sub_(HALF).to(torch.int8)
        with self._files(self.epoch)[0].open("ab") as file:
            file.write(levels.numpy().tobytes())
        self._length += len(levels)

    def flush(self) -> None:
        """Write everything to disk, so that the next epoch can also begin after a restart."""
        if self.epoch:
            np.save(self._files(self.epoch)[1], self._starts)
