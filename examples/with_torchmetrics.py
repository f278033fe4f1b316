"""Steelyard's metrics in a torchmetrics `MetricCollection`, beside one of torchmetrics' own, with unknown labels.

    python examples/with_torchmetrics.py

Our metrics leave unknown labels (−1) out; torchmetrics does so with `ignore_index=-1`. This example needs
`pip install torchmetrics`.
"""

from __future__ import annotations

import torch

from steelyard.integrations.torchmetrics import Brier, CalibrationError, LabelF1, MeanAveragePrecision

from torchmetrics import MetricCollection  # isort: skip  (after steelyard, as in with_lightning.py)
from torchmetrics.classification import MultilabelAveragePrecision  # isort: skip


def main(n: int = 2000, n_labels: int = 6) -> dict[str, float]:
    g = torch.Generator().manual_seed(0)
    eta = torch.rand(n, n_labels, generator=g) ** 3  # long-tailed
    target = (torch.rand(n, n_labels, generator=g) < eta).int()
    target[torch.rand(n, n_labels, generator=g) < 0.4] = -1
    metrics = MetricCollection(
        {
            "mAP": MeanAveragePrecision(n_labels),
            "mAP of torchmetrics": MultilabelAveragePrecision(n_labels, ignore_index=-1),
            "F1": LabelF1(n_labels),
            "Brier": Brier(),
            "ACE": CalibrationError(n_labels),
        }
    )
    for preds, known in zip(eta.split(256), target.split(256), strict=True):
        metrics.update(preds, known)
    return {name: float(value) for name, value in metrics.compute().items()}


if __name__ == "__main__":
    for name, value in main().items():
        print(f"{name:20s} " + (f"{value:.4f}" if name == "Brier" else f"{100 * value:.1f} %"))
