"""The store of pseudo-labels: what the model said of every unknown label in the last epoch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

Feedback = Literal["raw", "link"]
LEVELS = 254  # an even number, so that .5 is stored exactly


class PseudoLabels:
    """Pseudo-labels ỹ (N, L) of the partial-annotation paper on disk, one byte a cell, ½ before the first prediction.

    Two generations are kept: an epoch reads what the epoch before wrote, so that a batch repeated after a crash reads
    what it read at first, and writes what it wrote. An item that an epoch does not visit keeps its pseudo-labels.
    Several processes may share the files if each writes its own items.

    Args:
        path: a folder, created if it is missing; one that holds a store of the same size is continued.
        n_items, n_labels: N and L.
        feedback: what is written: "raw" σ(z), as in the paper, or "link", the corrected η, with which an
            uninformative rare label does not run away upwards.
    """

    def __init__(self, path: str | Path, n_items: int, n_labels: int, feedback: Feedback = "raw") -> None:
        if feedback not in get_args(Feedback):
            raise ValueError(f"feedback is {feedback!r}: choose one of {', '.join(get_args(Feedback))}")
        if n_items < 1 or n_labels < 1:
            raise ValueError(f"n_items and n_labels are {n_items} and {n_labels}: both must be at least 1")
        self.path, self.n_items, self.n_labels, self.feedback = Path(path), n_items, n_labels, feedback
        self.epoch = 1
        header = {"format": 1, "n_items": n_items, "n_labels": n_labels, "levels": LEVELS}
        self._open(header)

    def start_epoch(self, epoch: int) -> None:
        """Begin epoch `epoch` (from 1): read what the epoch before it wrote. Beginning it again changes nothing."""
        if epoch < 1:
            raise ValueError(f"epoch is {epoch}: epochs count from 1")
        if epoch > 1:
            self._complete(epoch - 1)
        self.epoch = epoch

    def check_continues(self, epoch: int) -> None:
        """Raise unless `epoch` can be taken up, or up again: a later one has overwritten what it would read."""
        latest = max(int(visited.max(initial=0)) for visited in self._visited)
        if latest > epoch:
            raise ValueError(
                f"{self.path} holds pseudo-labels of epoch {latest}, and those that epoch {epoch} reads are gone: "
                "train anew with --overwrite"
            )

    def reset(self) -> None:
        """Forget everything: every pseudo-label is ½ again."""
        for values, visited in zip(self._values, self._visited, strict=True):
            visited[:] = 0
            for start in range(0, self.n_items, 65536):
                values[start : start + 65536] = LEVELS // 2
        self.flush()

    def read(self, index: Tensor) -> Tensor:
        """Return the pseudo-labels (B, L) of items `index` (B,), float32 on the device of `index`."""
        rows = self._values[(self.epoch - 1) % 2][self._rows(index)]
        return torch.from_numpy(rows).to(index.device).to(torch.float32) / LEVELS

    def write(self, index: Tensor, probabilities: Tensor) -> None:
        """Store the predictions (B, L) of items `index` (B,), for the next epoch to read."""
        if probabilities.shape != (len(index), self.n_labels):
            raise ValueError(
                f"probabilities has shape {tuple(probabilities.shape)}: give ({len(index)}, {self.n_labels})"
            )
        rows, said = self._rows(index), probabilities.detach().to("cpu", torch.float32)
        bad = ~((said >= 0) & (said <= 1))
        if bad.any():
            raise ValueError(f"probabilities has the value {said[bad][0].item():g}: give numbers between 0 and 1")
        self._values[self.epoch % 2][rows] = (said * LEVELS).round().to(torch.uint8).numpy()
        self._visited[self.epoch % 2][rows] = self.epoch

    def flush(self) -> None:
        """Hand everything written to the disk."""
        for values, visited in zip(self._values, self._visited, strict=True):
            values.flush()
            visited.flush()

    def _open(self, header: dict[str, int]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        note = self.path / "pseudo_labels.json"
        if note.exists():
            found = json.loads(note.read_text())
            if found != header:
                raise ValueError(f"{note} describes {found}, not {header}: use another folder or delete this one")
            mode: Literal["r+", "w+"] = "r+"
        else:
            mode = "w+"
        self._values, self._visited = [], []
        for generation in (0, 1):
            shape = (self.n_items, self.n_labels)
            self._values.append(np.memmap(self.path / f"values-{generation}.u8", np.uint8, mode, shape=shape))
            name = self.path / f"visited-{generation}.i32"  # the epoch that last wrote each item
            self._visited.append(np.memmap(name, np.int32, mode, shape=(self.n_items,)))
        if mode == "w+":
            self.reset()
            note.write_text(json.dumps(header))

    def _complete(self, epoch: int) -> None:
        """Carry the items that `epoch` did not visit over from the epoch before it, and mark them as visited."""
        current, before, visited = self._values[epoch % 2], self._values[(epoch - 1) % 2], self._visited[epoch % 2]
        left = np.flatnonzero(np.asarray(visited) != epoch)
        for start in range(0, len(left), 65536):
            rows = left[start : start + 65536]
            current[rows] = before[rows]
            visited[rows] = epoch

    def _rows(self, index: Tensor) -> np.ndarray:
        rows = index.detach().cpu().numpy()
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise ValueError(f"index has shape {rows.shape}: give one whole number an item, (B,)")
        if len(rows) and not (rows.min() >= 0 and rows.max() < self.n_items):
            raise ValueError(f"index runs from {rows.min()} to {rows.max()}, but the store has {self.n_items} items")
        return rows
