"""The last layer of a new network, set so that its first outputs are the labels' frequencies."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from steelyard.data.subset import Subset
from steelyard.losses.loss import NoLink
from steelyard.models.model import Model
from steelyard.objective import Objective
from steelyard.objective.start import checked_loss, first_cells, start_at
from steelyard.training.batches import item_frequencies, ordered
from steelyard.training.settings import TrainSettings

_LOOKED_AT = {"features": 2048}  # items; of images and pairs, which cost more, fewer
_COSTLY = 256


def start_at_prior(model: Model, objective: Objective, data: Any, settings: TrainSettings) -> bool:
    """Start the model where the objective is stationary, and return whether it is one that can.

    Every label's bias becomes the logit at which the loss's link gives Σa/(Σa+Σb), the label's frequency as rule,
    masks, weights and sampler will show it in the first epoch; the last weights become 0. Not changed: models with
    `model.bias` "zero", the cosine head, which has no bias, and losses without a link (two-way, LDAM's softmax).
    Nothing random is drawn, so a run that goes on from a checkpoint computes the same and then takes its weights.

    Args:
        model: new, on the CPU, its biases still 0.
        objective: what it will be trained by, on the CPU.
        data: the training items.
        settings: the section [train], with its epochs and batch size settled.
    """
    head: Any = model.head
    if model.settings.bias == "zero" or not hasattr(head, "start_at"):
        return False
    labels = data.labels
    frequencies = item_frequencies(settings.sampler, labels, settings.seed)
    try:
        cells = first_cells(objective, labels, frequencies, settings.epochs, settings.batch_size)
        eta = torch.sigmoid(cells.log_odds)
        eta = eta * (1 + settings.augment.overlay * (1 - eta))  # laid over one another, items have the labels of both
        outputs = _outputs(model, data) if model.has_memory else None
        head.start_at(start_at(checked_loss(objective), torch.logit(eta), outputs))
    except NoLink:
        return False
    return True


def _outputs(model: Model, data: Any) -> Tensor:
    """The logits (n, L) of some items, for a head whose weights cannot be small."""
    n = min(len(data), _LOOKED_AT.get(model.input.kind, _COSTLY))
    some = Subset(data, np.sort(np.random.default_rng(0).permutation(len(data))[:n]))
    was_training = model.training
    model.eval()
    with torch.no_grad():
        outputs = [model(batch.inputs) for batch in ordered(some, 128, 0)]
    model.train(was_training)
    return torch.cat(outputs)
