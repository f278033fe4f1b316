"""The store of pseudo-labels: the model's outputs of the last epoch for every unknown label."""

from __future__ import annotations

import json
import math
import mmap
import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from steelyard._files import naming
from steelyard.balance.checks import check_choice
from steelyard.labels.inputs import as_whole
from steelyard.labels.targets import refuse

Feedback = Literal["raw", "link"]
LEVELS = 254  # an even number, so that .5 is stored exactly
MEMORY = 1 << 28
"""Approximate limit of the bytes of the files that a process holds in memory."""
AROUND = 17
"""Pages that come in when a row is read: Linux maps those around it too."""
HALF = LEVELS // 2  # a byte is the level less this: a file of zeros says ½ of everything


class PseudoLabels:
    """Pseudo-labels ỹ (N, L) of the partial-annotation paper on disk, one byte each, ½ before the first prediction.

    Two generations are kept: an epoch reads what the epoch before wrote, so that a batch repeated after a crash reads
    what it read at first, and writes what it wrote. An item that an epoch does not visit keeps its pseudo-labels.
    Several processes may share the files if each writes its own items.

    Args:
        path: a folder, created if it is missing; one that holds a store of the same size is continued.
        n_items, n_labels: N and L.
        feedback: what is written: "raw" σ(z), as in the paper, or "link", the corrected η, with which an
            uninformative rare label does not run away upwards.

    Examples:
        >>> store = sy.balance.PseudoLabels("pseudo", n_items=2, n_labels=2)
        >>> store.read(torch.tensor([0, 1]))
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]])
        >>> store.write(torch.tensor([0]), torch.tensor([[0.9, 0.1]]))
        >>> store.start_epoch(2)
        >>> store.read(torch.tensor([0, 1]))  # item 1 was not visited
        tensor([[0.9016, 0.0984],
                [0.5000, 0.5000]])
    """

    def __init__(self, path: str | Path, n_items: int, n_labels: int, feedback: Feedback = "raw") -> None:
        check_choice(Feedback, feedback=feedback)
        n_items, n_labels = as_whole(n_items, "n_items"), as_whole(n_labels, "n_labels")
        if n_items < 1 or n_labels < 1:
            raise ValueError(f"n_items and n_labels are {n_items} and {n_labels}: both must be at least 1")
        self.path, self.n_items, self.n_labels, self.feedback = Path(path), n_items, n_labels, feedback
        self.epoch = 1
        self._held: _Generations | None = None
        self._pages = 0
        header = {"format": 2, "n_items": n_items, "n_labels": n_labels, "levels": LEVELS}
        self._open(header)

    def start_epoch(self, epoch: int) -> None:
        """Begin epoch `epoch` (from 1): read what the epoch before it wrote. Beginning it again changes nothing."""
        if epoch < 1:
            raise ValueError(f"epoch is {epoch}: epochs count from 1")
        if self._held is not None:
            if epoch == self.epoch:
                return
            self._write_held(self._held)
        if epoch > 1:
            self._complete(epoch - 1)
        self.epoch = epoch
        if self._held is not None:
            self._fill_held(self._held)

    def check_continues(self, epoch: int) -> None:
        """Raise unless `epoch` can be started or resumed: the writes of the epoch before must be there."""
        latest = max(int(visited.max(initial=0)) for visited in self._visited)
        if latest not in (epoch - 1, epoch):
            raise ValueError(
                f"{self.path} holds pseudo-labels of epoch {latest}, and those that epoch {epoch} reads are gone: "
                "train again with --overwrite"
            )

    def reset(self) -> None:
        """Reset every pseudo-label to ½."""
        for values, visited in zip(self._values, self._visited, strict=True):
            visited[:] = 0
            for start in range(0, self.n_items, 65536):
                values[start : start + 65536] = 0
                self._touch(65536)
        if self._held is not None:
            self._fill_held(self._held)
        self.flush()

    @property
    def held(self) -> bool:
        """True if the pseudo-labels are held on a device."""
        return self._held is not None

    def hold_on(self, device: torch.device) -> None:
        """Keep both generations on `device`, one byte per cell: `read` and `write` then never wait for the disk.

        What is written reaches the files by `flush`, and when the next epoch begins. For one process alone. Values
        and indices are not checked.
        """
        self._held = _Generations(self.n_items, self.n_labels, device)
        self._fill_held(self._held)

    def let_go(self) -> None:
        """Read and write the files again; what was not flushed is lost."""
        self._held = None

    def read(self, index: Tensor) -> Tensor:
        """Return the pseudo-labels (B, L) of items `index` (B,), float32 on the device of `index`."""
        if self._held is not None:
            return (self._held.before[index].to(torch.float32) + HALF) / LEVELS
        rows = self._values[(self.epoch - 1) % 2][self._rows(index)]
        self._touch(len(rows), AROUND)
        return (torch.from_numpy(rows).to(index.device).to(torch.float32) + HALF) / LEVELS

    def write(self, index: Tensor, probabilities: Tensor) -> None:
        """Store the predictions (B, L) of items `index` (B,), for the next epoch to read.

        Args:
            index: the items (B,).
            probabilities: (B, L), in [0, 1].
        """
        if probabilities.shape != (len(index), self.n_labels):
            raise ValueError(
                f"probabilities has shape {tuple(probabilities.shape)}: give ({len(index)}, {self.n_labels})"
            )
        if self._held is not None:
            values = probabilities.detach().to(torch.float32)
            self._held.current[index] = (values * LEVELS).round().sub_(HALF).to(torch.int8)
            self._held.visited.index_fill_(0, index, True)
            return
        rows, values = self._rows(index), probabilities.detach().to("cpu", torch.float32)
        refuse(~((values >= 0) & (values <= 1)), "probabilities", values, "give numbers between 0 and 1")
        self._values[self.epoch % 2][rows] = (values * LEVELS).round().sub_(HALF).to(torch.int8).numpy()
        self._visited[self.epoch % 2][rows] = self.epoch
        self._touch(len(rows))

    def flush(self) -> None:
        """Write everything to disk."""
        if self._held is not None:
            self._write_held(self._held)
        for values, visited in zip(self._values, self._visited, strict=True):
            values.flush()
            visited.flush()

    def _open(self, header: dict[str, int]) -> None:
        """Map the files, or make them; the note is written last, so that a killed or a second process does no harm."""
        self.path.mkdir(parents=True, exist_ok=True)
        note = self.path / "pseudo_labels.json"
        try:
            recorded = json.loads(note.read_text())
        except (FileNotFoundError, ValueError):  # no note, or a damaged one
            recorded = None
        if recorded not in (None, header):
            raise ValueError(f"{note} describes {recorded}, not {header}: use another folder or delete this one")
        self._values, self._visited = [], []
        for generation in (0, 1):
            shape = (self.n_items, self.n_labels)
            self._values.append(_mapped(self.path / f"values-{generation}.i8", np.int8, shape, recorded is not None))
            name = self.path / f"visited-{generation}.i32"  # the epoch that last wrote each item
            self._visited.append(_mapped(name, np.int32, (self.n_items,), recorded is not None))
        if recorded is None:
            with naming(note):
                note.write_text(json.dumps(header))

    def _complete(self, epoch: int) -> None:
        """Carry the items that `epoch` did not visit over from the epoch before it, and mark them as visited."""
        current, before, visited = self._values[epoch % 2], self._values[(epoch - 1) % 2], self._visited[epoch % 2]
        left = np.flatnonzero(np.asarray(visited) != epoch)
        for start in range(0, len(left), 65536):
            rows = left[start : start + 65536]
            current[rows] = before[rows]
            visited[rows] = epoch
            self._touch(len(rows), AROUND + 2)

    def _touch(self, n_rows: int, pages: int = 2) -> None:
        """Count the pages that rows bring into this process's memory, and release them when there are many.

        The system keeps them, writes them to disk, and frees them when it needs memory. `pages` is the
        number of pages of a short row.
        """
        self._pages += n_rows * (pages + self.n_labels // mmap.PAGESIZE)
        if self._pages * mmap.PAGESIZE > MEMORY and hasattr(mmap, "MADV_DONTNEED"):
            for values in self._values:
                values._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]
            self._pages = 0

    def _fill_held(self, held: _Generations) -> None:
        """Load from the files what this epoch reads, and what it has already written."""
        held.before.copy_(torch.from_numpy(self._values[(self.epoch - 1) % 2]))
        held.current.copy_(torch.from_numpy(self._values[self.epoch % 2]))
        held.visited.copy_(torch.from_numpy(self._visited[self.epoch % 2] == self.epoch))

    def _write_held(self, held: _Generations) -> None:
        """Write to the files what this epoch has written."""
        rows = held.visited.nonzero().flatten()
        for some in rows.split(65536):
            self._values[self.epoch % 2][some.cpu().numpy()] = held.current[some].cpu().numpy()
            self._visited[self.epoch % 2][some.cpu().numpy()] = self.epoch

    def _rows(self, index: Tensor) -> np.ndarray:
        rows = index.detach().cpu().numpy()
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise ValueError(f"index has shape {rows.shape}: give one whole number per item, (B,)")
        if len(rows) and not (rows.min() >= 0 and rows.max() < self.n_items):
            raise ValueError(
                f"index runs from {rows.min()} to {rows.max()}, but the store has {self.n_items} items: "
                "give their row numbers"
            )
        return rows


class _Generations:
    """Two generations on a device: what this epoch reads, what it writes, and the items it has written."""

    def __init__(self, n_items: int, n_labels: int, device: torch.device) -> None:
        self.before, self.current = (torch.empty(n_items, n_labels, dtype=torch.int8, device=device) for _ in range(2))
        self.visited = torch.zeros(n_items, dtype=torch.bool, device=device)


def _mapped(path: Path, dtype: type[Any], shape: tuple[int, ...], is_made: bool) -> np.memmap[Any, Any]:
    """Map a file whose new cells are 0. Disk space is reserved now: running out of it later would be a crash."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    there = path.stat().st_size if path.is_file() else 0
    if there > size or (is_made and there < size):
        raise ValueError(f"{path} is missing or not {size} bytes long: delete its folder and train again")
    with path.open("ab") as file:
        size_before = file.tell()
        if size_before < size:
            try:
                _extend(file.fileno(), size)
            except OSError as error:
                os.ftruncate(file.fileno(), size_before)
                reason = f"{error.strerror}, and {size / 1e9:.3g} GB are needed for pseudo-labels"
                raise OSError(error.errno, reason, str(path)) from None
    mapped = np.memmap(path, dtype, "r+", shape=shape)
    if hasattr(mmap, "MADV_RANDOM"):
        mapped._mmap.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]  # reading ahead of a row is useless
    return mapped


def _extend(descriptor: int, size: int) -> None:
    """Extend a file with zeros, reserving disk space where the system can."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)
