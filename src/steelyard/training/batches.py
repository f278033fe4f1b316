"""Batches: from arrays that lie on the training device, or from items that worker processes fetch."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import BatchSampler

from steelyard._arrays import slices
from steelyard.balance.processes import n_processes
from steelyard.balance.samplers import ClassAware, PlannedSampler, Shuffled, Undersample
from steelyard.data.dataset import ArrayDataset, as_inputs, as_tensor
from steelyard.data.loading import fetched, loader
from steelyard.data.subset import Subset, item_inputs, source_of
from steelyard.labels import Labels
from steelyard.models.inputs import in_pieces
from steelyard.training import group
from steelyard.training.settings import SamplerSettings

Inputs: TypeAlias = Tensor | tuple[Tensor, ...]
SHARE_OF_GPU = 0.25
"""Arrays up to this share of a GPU's free memory are kept on it."""


class TrainingBatch(NamedTuple):
    """Inputs (B, …), or a tuple of such, targets (B, L), and the items' numbers in the data (B,)."""

    inputs: Inputs
    targets: Tensor
    index: Tensor  # type: ignore[assignment]


def make_sampler(settings: SamplerSettings, labels: Labels, seed: int) -> PlannedSampler:
    """Return the sampler of [train.sampler] over training labels."""
    if settings.kind == "class_aware":
        return ClassAware(labels, settings.visits or None, seed=seed)
    if settings.kind == "undersample":
        return Undersample(labels, settings.per_class, seed=seed)
    return Shuffled(labels.n_items, seed=seed)


def item_frequencies(settings: SamplerSettings, labels: Labels, seed: int) -> NDArray[np.float64] | None:
    """Return how often an epoch visits each item (N,), up to a factor; None where it visits all equally often.

    Class-aware sampling draws an item for each of its labels j with chance 1/n_j. Of undersampling it is the first
    epoch's choice.
    """
    if settings.kind == "class_aware":
        _, items = labels.items_by_label()
        chances = np.repeat(1 / np.maximum(labels.counts, 1), labels.counts)
        return np.bincount(items, chances, minlength=labels.n_items).astype(np.float64)
    if settings.kind == "undersample":
        sampler = Undersample(labels, settings.per_class, 0, 1, seed)
        sampler.set_epoch(1)
        return np.bincount(sampler.left(), minlength=labels.n_items).astype(np.float64)
    return None


def drawn_odds(settings: SamplerSettings, labels: Labels, seed: int) -> NDArray[np.float64] | None:
    """Return by how much undersampling raises the odds of each label, (L,); None for other samplers."""
    if settings.kind != "undersample":
        return None
    chances = item_frequencies(settings, labels, seed)
    assert chances is not None
    present, known = np.zeros(labels.n_labels), np.zeros(labels.n_labels)
    for rows in slices((labels.n_items, labels.n_labels), 1 << 24):
        values = labels.rows(np.arange(labels.n_items)[rows])
        present += chances[rows] @ np.where(values >= 0, values, 0)
        known += chances[rows] @ (values >= 0)
    odds = (present + 0.5) / (known - present + 0.5)
    return np.asarray(odds * (labels.n_known - labels.counts + 0.5) / (labels.counts + 0.5))


class Batches(ABC):
    """The batches of every epoch, each a pure function of (seed, epoch, step).

    Args:
        sampler: which items an epoch visits; of several processes it gives each its share.
        batch_size: items per step, over all processes together.
    """

    def __init__(self, sampler: PlannedSampler, batch_size: int) -> None:
        check_share(batch_size, sampler.num_replicas)
        self.sampler, self.batch_size = sampler, batch_size
        self.share = batch_size // sampler.num_replicas

    def start_epoch(self, epoch: int, step: int = 0) -> int:
        """Prepare `epoch` from `step` on, and return how many steps the whole epoch has."""
        self.sampler.set_epoch(epoch)
        steps = -(-len(self.sampler) // self.share)
        if steps == 0:
            raise ValueError(f"an epoch has fewer items than the {self.sampler.num_replicas} processes: start fewer")
        if step > 0:
            self.sampler.set_epoch(epoch, min(step * self.batch_size, len(self.sampler) * self.sampler.num_replicas))
        return steps

    def draws(self, step: int, n: int, device: torch.device) -> Tensor:
        """Return the positions (n,) in the epoch's plan of this process's items of a step."""
        first = step * self.batch_size + self.sampler.rank
        return first + self.sampler.num_replicas * torch.arange(n, device=device)

    @abstractmethod
    def __iter__(self) -> Iterator[TrainingBatch]:
        """Yield the rest of the prepared epoch."""


def check_share(batch_size: int, n_processes: int) -> None:
    """Raise unless processes can share a batch equally."""
    if batch_size % n_processes:
        raise ValueError(f"train.batch_size is {batch_size}: it must be a multiple of the {n_processes} processes")


class Resident(Batches):
    """Batches of arrays that lie in the memory of the training device; only the rows of a batch are copied."""

    def __init__(
        self, data: ArrayDataset | Subset, sampler: PlannedSampler, batch_size: int, device: torch.device
    ) -> None:
        super().__init__(sampler, batch_size)
        self.inputs = as_tensor(as_inputs(data.inputs)).to(device)
        self.targets = torch.from_numpy(data.labels.rows(np.arange(len(data)))).to(device)
        self.device = device

    def order(self) -> Tensor:
        """Return the items (n,) that are left of the prepared epoch, on the device."""
        return torch.from_numpy(self.sampler.left()).to(self.device)

    def __iter__(self) -> Iterator[TrainingBatch]:
        order = self.order()
        for start in range(0, len(order), self.share):
            yield self.rows(order[start : start + self.share])

    def rows(self, index: Tensor) -> TrainingBatch:
        """Return the items at `index` (B,), on the device."""
        return TrainingBatch(self.inputs[index], self.targets[index], index)


class Loaded(Batches):
    """Batches of items that worker processes fetch, such as images from files."""

    def __init__(self, data: Any, sampler: PlannedSampler, batch_size: int, device: torch.device, workers: int) -> None:
        super().__init__(sampler, batch_size)
        self.device = device
        self._loader = loader(
            data, BatchSampler(sampler, self.share, drop_last=False), workers, pin=device.type == "cuda"
        )

    def __iter__(self) -> Iterator[TrainingBatch]:
        for batch in fetched(self._loader):
            yield TrainingBatch(*(moved(part, self.device) for part in batch))


def make_batches(
    data: Any, sampler: PlannedSampler, batch_size: int, device: torch.device, workers: int
) -> Resident | Loaded:
    """Return `Resident` batches where the data are arrays that fit on the device, else `Loaded` ones."""
    if is_array(data) and fits(data, device):
        return Resident(data, sampler, batch_size, device)
    return Loaded(data, sampler, batch_size, device, n_workers(workers, data))


def is_array(data: Any) -> bool:
    """Return whether all inputs of `data` lie in one array."""
    return isinstance(source_of(data), ArrayDataset)


def fits(data: Any, device: torch.device) -> bool:
    """Return whether the arrays of `data` may be kept on `device`."""
    inputs = source_of(data).inputs
    a_row = math.prod(inputs.shape[1:]) * (1 if inputs.dtype == np.uint8 else 4)
    room = SHARE_OF_GPU * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 8e9
    return bool(len(data) * (a_row + data.labels.rows([0]).nbytes) <= room)


def n_workers(requested: int, data: Any) -> int:
    """Return how many processes fetch items: as requested, or those there are cores for; none for arrays."""
    if requested >= 0:
        return requested
    if data is not None and is_array(data):
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 8) if cores > 1 else 0


def ordered(data: Any, batch_size: int, workers: int, rank: int = 0, of: int = 1) -> Iterator[TrainingBatch]:
    """Yield all items of `data` in order, on the CPU; process `rank` of `of` gets every `of`-th batch."""
    slices = [range(start, min(start + batch_size, len(data))) for start in range(0, len(data), batch_size)]
    if is_array(data):
        yield from (_rows(data, rows) for rows in slices[rank::of])
        return
    for batch in fetched(loader(data, [list(rows) for rows in slices[rank::of]], workers, pin=False)):
        yield TrainingBatch(*batch)


def moved(x: Any, device: torch.device) -> Any:
    """Return a tensor, or each of a tuple, on `device`."""
    if isinstance(x, tuple):
        return tuple(moved(part, device) for part in x)
    return x.to(device, non_blocking=True)


def _rows(data: Any, rows: range) -> TrainingBatch:
    """Return some consecutive items of arrays without making each a sample first."""
    index = np.arange(rows.start, rows.stop)
    return TrainingBatch(item_inputs(data, index), torch.from_numpy(data.labels.rows(index)), torch.from_numpy(index))


def all_outputs(
    model: nn.Module,
    data: Any,
    batch_size: int = 256,
    device: str | torch.device = "cpu",
    workers: int = 0,
    precision: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Return the logits (N, L), float32, and targets (N, L) of all items, on the CPU.

    The model is put in evaluation mode, and back in the end. In a process group each process does every R-th batch.
    """
    place, was_training = torch.device(device), model.training
    rows: list[tuple[Tensor, Tensor, Tensor]] = []
    model.eval()
    try:
        for batch in ordered(data, batch_size, workers, group.rank(), n_processes()):
            with torch.inference_mode(), torch.autocast(place.type, precision, enabled=precision != torch.float32):
                logits = in_pieces(model, moved(batch.inputs, place)).float().cpu()
            rows.append((logits, batch.targets, batch.index))
    finally:
        model.train(was_training)
    if not rows:
        none = torch.zeros(0, data.labels.n_labels)
        rows = [(none, none.to(torch.int8), torch.zeros(0, dtype=torch.int64))]
    logits, targets, index = (torch.cat(column) for column in zip(*rows, strict=True))
    if n_processes() == 1:
        return logits, targets
    logits, targets, index = (torch.cat(group.gathered(part)) for part in (logits, targets, index))
    order = torch.argsort(index)
    return logits[order], targets[order]
