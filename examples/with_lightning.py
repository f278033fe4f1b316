"""Partial label masking and calibration under Lightning's Trainer, on pairs of digits with missing labels.

    python examples/with_lightning.py [reliability.svg]

The LightningModule holds a `steelyard.Objective`; `ObjectiveCallback` starts its epochs and calibrates at the end. The
rest is plain Lightning; its checkpoints include the ratios of partial label masking. Needs `pip install lightning`.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

import steelyard as sy
from steelyard.data import keep_labels, stratified_split
from steelyard.demo.digits import digit_pairs
from steelyard.integrations.lightning import ObjectiveCallback

import lightning  # isort: skip  (after steelyard, which mends a torchvision that does not fit a CPU-only torch)


class Net(lightning.LightningModule):
    def __init__(self, labels: sy.Labels) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(144, 128), nn.ReLU(), nn.Linear(128, labels.n_labels))
        self.objective = sy.Objective(
            sy.losses.BCE(), masking=sy.balance.PartialLabelMasking(labels.counts, labels.n_known, initial="mean")
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images.float() / 255)
        return logits

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        images, targets, index = batch
        value: Tensor = self.objective(self(images), targets, index).total
        return value

    def validation_step(self, batch: list[Tensor], _: int) -> dict[str, Tensor]:
        images, targets, _index = batch
        return {"logits": self(images), "targets": targets}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 3e-3)


def main(n_train: int = 3000, epochs: int = 8, figure: str = "") -> dict[str, float]:
    torch.manual_seed(0)
    pairs = digit_pairs(n_train, train=True)
    labels = keep_labels(pairs.labels, 0.6, seed=0)
    items: Any = sy.data.ArrayDataset(pairs.inputs, labels)
    test = digit_pairs(2000, train=False)
    rest, held = stratified_split(labels, 0.2, seed=0)
    callback = ObjectiveCallback(sy.calibrate.Platt())
    net = Net(labels)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            default_root_dir=folder,
            max_epochs=epochs,
            accelerator="cpu",
            devices=1,
            callbacks=[callback],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(
            net,
            DataLoader(Subset(items, rest.tolist()), batch_size=128, shuffle=True),
            DataLoader(Subset(items, held.tolist()), batch_size=512),
        )
    with torch.no_grad():
        logits = net.eval()(torch.from_numpy(test.inputs))
    truth = test.labels.values
    scores, curves = {"mAP": sy.metrics.mean_average_precision(logits, truth)}, []
    for name, eta in {
        "σ": logits.sigmoid(),
        "link": net.objective.probability(logits),
        "calibrated": callback.probability(logits),
    }.items():
        error = sy.metrics.calibration_error(eta, truth)
        scores[f"ACE by {name}"] = float(error.ace)
        curves.append((f"{name}: ACE {100 * error.ace:.1f} %", error.bins))
    if figure:
        sy.report.save_figure(sy.report.reliability_diagram(curves, looks=(1, 0, 2)), figure)
    return scores


if __name__ == "__main__":
    for name, value in main(figure=sys.argv[1] if sys.argv[1:] else "").items():
        print(f"{name:20s} {100 * value:.1f} %")
