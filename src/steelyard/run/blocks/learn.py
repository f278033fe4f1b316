"""Training of a linear model of many labels over features, one block of labels at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard.config.settings import Config
from steelyard.data.dataset import as_inputs, as_tensor
from steelyard.data.subset import Subset
from steelyard.labels import Labels
from steelyard.models import Model, input_of
from steelyard.models.block import BlockHead, BlockOptimizer, SparseTargets, prior_bias
from steelyard.objective import Objective
from steelyard.objective.parts import has_link
from steelyard.run.datasets import MANY_LABELS
from steelyard.training.batches import is_array
from steelyard.training.finite import NotFinite
from steelyard.training.optimizer import rate
from steelyard.training.step import pick_precision

_RULES = ("ignore", "negative", "weak_negative", "wan", "annotation")
_EPOCHS, _BATCH = 10, 1024
_CHECK_EVERY = 50  # steps after which the loss is looked at: that waits for the device


def takes_blocks(config: Config, train: Any, fewest: int = MANY_LABELS) -> bool:
    """Return whether a run has many labels over features, and an objective that sees each label alone."""
    labels: Labels = train.labels
    if labels.n_labels < fewest or input_of(train).kind != "features" or not is_array(train):
        return False
    model, objective, settings = config.model, config.objective, config.train
    masks = objective.masking
    still = masks.kind == "none" or masks.arguments.get("rate") == 0 or masks.arguments.get("observes") == "validation"
    if objective.unknown.kind == "annotation":
        still = masks.kind == objective.weighting.kind == "none" and objective.unknown.arguments["count"] == "known"
    return (
        model.head in ("linear", "blocks")
        and model.backbone in ("auto", "linear")
        and model.dropout == 0
        and has_link(objective.loss)
        and objective.unknown.kind in _RULES
        and objective.label_pair.kind == "none"
        and still
        and settings.sampler.kind == "shuffle"
        and settings.ema == 0
    )


def optimizer_of(config: Config, device: torch.device) -> BlockOptimizer:
    """Return the optimizer that the section [optimizer] names, with states that suit the device."""
    given = config.optimizer
    kind = "adam" if given.kind == "adamw" else "momentum" if given.momentum > 0 else "sgd"
    state = "bfloat16" if device.type == "cuda" else "float32"
    return BlockOptimizer(kind, given.momentum, given.betas, 1e-8, given.weight_decay, state, seed=config.train.seed)  # type: ignore[arg-type]


def features_of(data: Any, index: NDArray[np.int64]) -> Tensor:
    """Return the features (n, F) of some items, float32."""
    inside: Any = data.data if isinstance(data, Subset) else data
    at = data.index[index] if isinstance(data, Subset) else index
    return as_tensor(as_inputs(inside.inputs[at])).float()


def train_blocks(
    model: Model, objective: Objective, data: Any, config: Config, device: torch.device, say: Callable[[str], None]
) -> list[dict[str, float]]:
    """Train the head of `model` and return the history, one record per epoch.

    Args:
        model: of features, whose head is a BlockHead.
        objective: what is minimised.
        data: the training items, features in memory.
        config: the sections [optimizer], [schedule] and [train]; automatic are 10 epochs of batches of 1,024 items.
        device: where to train.
        say: takes a line per epoch.
    """
    head = model.head
    assert isinstance(head, BlockHead)
    labels, settings = data.labels, config.train
    if config.model.bias == "prior":
        head.start_at(prior_bias(objective, labels))
    if device.type == "cuda":
        head.narrow(pick_precision(settings.precision, device))
    model.to(device)
    objective.to(device)
    head.optimize_by(optimizer_of(config, device))
    epochs, batch = settings.epochs or _EPOCHS, min(settings.batch_size or _BATCH, len(labels))
    steps, history = math.ceil(len(labels) / batch), list[dict[str, float]]()
    schedule = config.schedule
    if schedule.warmup_epochs < 0:
        schedule = replace(schedule, warmup_epochs=epochs / 20)
    for epoch in range(1, epochs + 1):
        objective.train()
        objective.start_epoch(epoch, epochs)
        begun, total = time.monotonic(), torch.zeros((), dtype=torch.float64, device=device)
        for step, index in enumerate(_batches(len(labels), batch, settings.seed, epoch)):
            lr = config.optimizer.lr * rate(schedule, epoch - 1 + step / steps, epochs)
            x = model.features(features_of(data, index).to(device))
            targets = SparseTargets.from_labels(labels, index).to(device)
            total += head.step(x, targets, objective, lr, torch.from_numpy(index).to(device)).total * len(index)
            if step % _CHECK_EVERY == 0 and not math.isfinite(float(total)):
                raise NotFinite(f"the loss is not finite in epoch {epoch}, step {step}: lower optimizer.lr", None)
        seconds = time.monotonic() - begun
        history.append({"epoch": epoch, "loss": float(total) / len(labels), "seconds": seconds})
        say(f"epoch {epoch} of {epochs}: loss {history[-1]['loss']:.4g}, {seconds:.1f} s")
    head.optimize_by(BlockOptimizer())
    return history


def _batches(n: int, size: int, seed: int, epoch: int) -> Iterator[NDArray[np.int64]]:
    """Give the items of each step: all of them once, in an order of seed and epoch."""
    order = np.random.default_rng((seed, epoch)).permutation(n)
    for start in range(0, n, size):
        yield order[start : start + size]
