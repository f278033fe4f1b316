"""The simplest things a user would otherwise do, measured on the same items as the run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from steelyard.labels import Labels
from steelyard.labels.targets import known
from steelyard.metrics import mean_average_precision
from steelyard.metrics.measures import number
from steelyard.training.candidates import macro_log_loss

FREQUENCY = "label frequency"
REGRESSION = "logistic regression"


def scores_of(log_odds: Tensor, targets: Tensor) -> dict[str, float | None]:
    """Return mAP, and the log-loss of known cells as the mean over labels."""
    if not bool(known(targets).any()):
        return {"map": None, "log_loss": None}
    loss = macro_log_loss(log_odds.double(), targets)
    return {"map": number(mean_average_precision(log_odds, targets)), "log_loss": number(loss)}


def beside_baselines(run: Tensor, targets: Tensor, labels: Labels, regression: Tensor | None) -> dict[str, Any]:
    """Return the scores of a run beside those of baselines on the same items.

    Args:
        run: log-odds (N, L) of the run.
        targets: (N, L).
        labels: of the training items, whose frequencies are the first baseline.
        regression: log-odds (N, L) by logistic regression, None where there is none.
    """
    n, k = (torch.tensor(part, dtype=torch.float64) for part in (labels.counts, labels.n_known))
    constant = torch.logit((n + 0.5) / (k + 1)).expand(targets.shape)
    rows = {"this run": scores_of(run, targets), FREQUENCY: scores_of(constant, targets)}
    if regression is not None:
        rows[REGRESSION] = scores_of(regression, targets)
    return rows
