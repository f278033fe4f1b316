"""Images laid over one another in training: two pictures in one, with the labels of both."""

from __future__ import annotations

import torch
from torch import Tensor

from steelyard.labels.targets import UNKNOWN
from steelyard.losses.ldam import SoftmaxLDAM
from steelyard.objective import Objective
from steelyard.training.batches import Batch


def overlaid(batch: Batch, chance: float, u: Tensor) -> Batch:
    """Return a batch in which, by chance, an image has another of the batch laid over it.

    The picture is the larger of the two at every pixel, its labels are the union: present where either is, unknown
    where one is and the other is not present. An image that is alone stays as it is.

    Args:
        batch: images (B, C, H, W) and targets (B, L).
        chance: that it happens to an image.
        u: random numbers (B, 2): whether, and which of the B − 1 others.
    """
    n = len(batch.index)
    if chance == 0 or n == 1 or not isinstance(batch.inputs, Tensor):
        return batch
    here = torch.arange(n, device=u.device)
    other = (here + 1 + (u[:, 1] * (n - 1)).to(torch.int64).clamp_max(n - 2)) % n
    laid = u[:, 0] < chance
    images = torch.maximum(batch.inputs, batch.inputs[other])
    targets = union(batch.targets, batch.targets[other])
    return batch._replace(
        inputs=torch.where(laid[:, None, None, None], images, batch.inputs),
        targets=torch.where(laid[:, None], targets, batch.targets),
    )


def union(one: Tensor, other: Tensor) -> Tensor:
    """Return the targets of two items taken together: the larger, unknown where that may yet be exceeded."""
    larger = torch.maximum(one, other)
    open_ = (torch.minimum(one, other) == UNKNOWN) & (larger < 1)
    return torch.where(open_, UNKNOWN, larger)


def check_overlay(chance: float, objective: Objective) -> None:
    """Refuse an objective that keeps something for every item by its number, which two in one do not have, or that
    takes one label an item.
    """
    if chance > 0 and isinstance(objective.loss, SoftmaxLDAM):
        raise ValueError(
            "train.augment.overlay gives items the labels of two, but objective.loss.softmax takes one: drop either"
        )
    resolver = objective.resolver
    keeps = resolver.stored() is not None or next(resolver.parameters(), None) is not None
    if chance > 0 and (objective.masking is not None or keeps):
        what = "objective.masking" if objective.masking is not None else "objective.unknown"
        raise ValueError(
            f"train.augment.overlay makes items of two, but {what} keeps something for every single one: drop either"
        )
