"""Steelyard's loss and metrics in a loop as timm's training script has it, on pairs of digits with missing labels.

    python examples/with_timm.py [loss.svg]

Model, optimizer, schedule, average of weights and meters are timm's. `loss_fn(output, target)` replaces timm's
`BinaryCrossEntropy` or `AsymmetricLossMultiLabel` and takes unknown labels (−1); `Evaluator` replaces `accuracy`.
Needs `pip install steelyard[vision]`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import steelyard as sy
from steelyard._compat import import_torchvision
from steelyard.data import keep_labels
from steelyard.demo.digits import digit_pairs

import_torchvision()  # mends a torchvision that does not fit a CPU-only torch
from timm import create_model  # noqa: E402
from timm.optim import create_optimizer_v2  # noqa: E402
from timm.scheduler import create_scheduler_v2  # noqa: E402
from timm.utils import AverageMeter, ModelEmaV3  # noqa: E402

Loader = Iterable[list[Tensor]]


def train_one_epoch(
    model: nn.Module, loader: Loader, optimizer: torch.optim.Optimizer, loss_fn: nn.Module, ema: ModelEmaV3
) -> float:
    losses = AverageMeter()
    model.train()
    for images, target in loader:
        output = model(images)
        loss = loss_fn(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update(model)
        losses.update(loss.item(), images.size(0))
    return float(losses.avg)


@torch.no_grad()
def validate(model: nn.Module, loader: Loader, loss_fn: sy.losses.SPA, n_labels: int) -> dict[str, float]:
    evaluator = sy.metrics.Evaluator(n_labels)
    model.eval()
    for images, target in loader:
        evaluator.update(loss_fn.probability(model(images)), target)  # the link of the loss, not σ
    scores = evaluator.compute()
    return {"mAP": scores["mAP"]["label"], "ACE": scores["calibration"]["pooled"]["width"]["ace"]}


def main(n_train: int = 1500, epochs: int = 4, name: str = "test_resnet", figure: str = "") -> dict[str, float]:
    torch.manual_seed(0)
    train, test = digit_pairs(n_train, train=True), digit_pairs(1000, train=False)
    labels = keep_labels(train.labels, 0.6, seed=0)

    def loader(inputs: Tensor, targets: sy.Labels, shuffle: bool) -> DataLoader[tuple[Tensor, ...]]:
        images = nn.functional.interpolate(inputs.float() / 255, size=48)
        return DataLoader(TensorDataset(images, torch.from_numpy(targets.values)), batch_size=64, shuffle=shuffle)

    model = create_model(name, pretrained=False, num_classes=labels.n_labels, in_chans=1)
    loss_fn = sy.losses.SPA()
    optimizer = create_optimizer_v2(model, opt="adamw", lr=4e-3, weight_decay=0.02)
    scheduler, n_epochs = create_scheduler_v2(optimizer, sched="cosine", num_epochs=epochs, warmup_epochs=1)
    ema = ModelEmaV3(model, decay=0.9)
    training = loader(torch.from_numpy(train.inputs), labels, shuffle=True)
    testing = loader(torch.from_numpy(test.inputs), test.labels, shuffle=False)
    losses = []
    for epoch in range(n_epochs):
        losses.append(train_one_epoch(model, training, optimizer, loss_fn, ema))
        scheduler.step(epoch + 1)
        print(f"epoch {epoch + 1}: loss {losses[-1]:.4f}")
    if figure:
        curve = ([*range(1, n_epochs + 1)], losses)
        sy.report.save_figure(sy.report.history_curves({"SPA": curve}, "training loss", linear=True), figure)
    return validate(ema.module, testing, loss_fn, labels.n_labels)


if __name__ == "__main__":
    for name, value in main(figure=sys.argv[1] if sys.argv[1:] else "").items():
        print(f"{name:20s} {100 * value:.1f} %")
