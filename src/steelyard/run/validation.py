"""Scores on the validation items after an epoch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from steelyard.calibrate.crossfit import item_log_loss
from steelyard.config.sections import EvaluateSettings
from steelyard.labels import Labels
from steelyard.labels.targets import UNKNOWN, known
from steelyard.losses.loss import NoLink
from steelyard.metrics import calibration_error, mean_average_precision, precision_recall_f1
from steelyard.objective import Objective
from steelyard.training.batches import all_outputs
from steelyard.training.loop import Validate
from steelyard.training.step import pick_precision


def is_single_label(settings: EvaluateSettings, labels: Labels) -> bool:
    """Return whether every item has one label, by `evaluate.single_label` or else by the training labels."""
    if settings.single_label != "auto":
        return settings.single_label == "yes"
    items, _, values = labels.cells()
    present = torch.bincount(torch.from_numpy(items[values >= 0.5].astype("int64")), minlength=labels.n_items)
    return labels.n_labels > 1 and labels.unknown_rate == 0 and bool((present == 1).all())


def validator(
    data: Any,
    objective: Objective,
    settings: EvaluateSettings,
    single_label: bool,
    workers: int,
    precision: str,
    follow: Callable[[nn.Module, torch.device], None] | None = None,
) -> Validate:
    """Return the function that the training loop calls after an epoch: (model, device) → metrics of `data`.

    Probabilities are those of the loss's link. `follow`, if given, is called first with the same model and device. PLM
    with observes = "validation" updates its ratios from these outputs.
    """
    masking = objective.masking

    def validate(model: nn.Module, device: torch.device) -> dict[str, float]:
        if follow is not None:
            follow(model, device)
        dtype = pick_precision(precision, device)
        outputs = all_outputs(model, data, settings.batch_size, device, workers, dtype)
        logits, targets = (part.to(device) for part in outputs)
        if masking is not None and masking.observes == "validation":
            masking.observe_logits(logits, targets.clamp_min(0) if objective.resolver.assumes_negative else targets)
        return scores(logits, targets, objective, settings.bins, single_label)

    return validate


def scores(logits: Tensor, targets: Tensor, objective: Objective, bins: int, single_label: bool) -> dict[str, float]:
    """Return mAP, F1 at probability ½, ACE and log-loss of known labels, and for single labels the error by argmax.

    Where labels are unknown, mAP and log-loss with those taken as absent are added. A loss without a link has mAP and
    the error only; the others are NaN.
    """
    bad = ~torch.isfinite(logits) & known(targets)
    if bool(bad.any()):
        i, c = bad.nonzero()[0].tolist()
        raise ValueError(
            f"the network gives {logits[i, c].item()} for label {c} of validation item {i}: lower optimizer.lr, or "
            "check that item"
        )
    metrics = {"map": mean_average_precision(logits, targets), "f1": math.nan, "ace": math.nan, "loss": math.nan}
    log_odds = None
    try:
        log_odds = objective.log_odds(logits.double())
        eta = torch.sigmoid(log_odds)
        metrics["f1"] = float(precision_recall_f1(eta >= 0.5, targets).macro.f1)
        metrics["ace"] = float(calibration_error(eta, targets, bins).ace)
        metrics["loss"] = float(item_log_loss(log_odds, targets).sum() / known(targets).sum())
    except NoLink:
        pass
    if bool((targets == UNKNOWN).any()):
        assumed = targets.clamp_min(0)
        metrics["assumed_map"] = mean_average_precision(logits, assumed)
        metrics["assumed_loss"] = math.nan
        if log_odds is not None:
            metrics["assumed_loss"] = float(item_log_loss(log_odds, assumed).sum() / assumed.numel())
    if single_label:
        one = (targets >= 0.5).sum(1) == 1  # other items, such as unreadable images, have no right answer
        metrics["error"] = 1 - float((logits[one].argmax(1) == targets[one].argmax(1)).double().mean())
    return metrics
