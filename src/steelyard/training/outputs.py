"""What a model says of data: logits, batch by batch, in the order of the items."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from steelyard.balance.processes import n_processes
from steelyard.models.pieces import in_pieces
from steelyard.training import group
from steelyard.training.batches import moved, ordered


def outputs(
    model: nn.Module,
    data: Any,
    batch_size: int = 256,
    device: str | torch.device = "cpu",
    workers: int = 0,
    precision: torch.dtype = torch.float32,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield (logits, targets, index) of all items of `data` in order, on the CPU, logits float32.

    The model is put in evaluation mode, and back in the end. In a process group each process does every R-th batch.
    """
    place = torch.device(device)
    was_training = model.training
    model.eval()
    try:
        for batch in ordered(data, batch_size, workers, group.rank(), n_processes()):
            with torch.inference_mode(), _autocast(place, precision):
                logits = in_pieces(model, moved(batch.inputs, place))
            yield logits.float().cpu(), batch.targets, batch.index
    finally:
        model.train(was_training)


def all_outputs(
    model: nn.Module,
    data: Any,
    batch_size: int = 256,
    device: str | torch.device = "cpu",
    workers: int = 0,
    precision: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Return the logits (N, L) and targets (N, L) of all items; in a process group they share the work."""
    rows = list(outputs(model, data, batch_size, device, workers, precision))
    n_labels = data.labels.n_labels
    if rows:
        logits, targets, index = (torch.cat(column) for column in zip(*rows, strict=True))
    else:
        logits, targets = torch.zeros(0, n_labels), torch.zeros(0, n_labels, dtype=torch.int8)
        index = torch.zeros(0, dtype=torch.int64)
    if n_processes() == 1:
        return logits, targets
    logits, targets, index = (torch.cat(group.gathered(x)) for x in (logits, targets, index))
    order = torch.argsort(index)
    return logits[order], targets[order]


def _autocast(device: torch.device, precision: torch.dtype) -> Any:
    return nullcontext() if precision == torch.float32 else torch.autocast(device.type, precision)
