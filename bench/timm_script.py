"""How busy images from files keep a GPU: our training beside a loop made of timm's own loader, in one run.

    python bench/timm_script.py FOLDER [--backbone resnet50] [--size 224] [--batch 128] [--epochs 3] [--workers 8]

FOLDER holds JPEG files; their labels are made up. Three rates, in images a second over all epochs but the first:
`ceiling`, the network on one batch that lies on the device, over and over; `timm`, its `create_loader` (processes that
read, prefetching, normalising on the device) around the same network, loss and optimizer; `ours`, `steelyard.training`.
A rate over the ceiling is the share of the time in which the device computes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from steelyard._compat import import_torchvision
from steelyard.data.dataset import ImageDataset
from steelyard.labels import Labels
from steelyard.losses import BCE
from steelyard.models import ModelSettings, build_model, input_of
from steelyard.objective import Objective
from steelyard.training.loop import train
from steelyard.training.settings import AugmentSettings, OptimizerSettings, ScheduleSettings, TrainSettings

N_LABELS = 20


class Files(torch.utils.data.Dataset[Any]):
    """Images and labels as timm's loader wants them: it sets `transform`."""

    def __init__(self, paths: list[Path], labels: Labels) -> None:
        self.paths, self.targets = paths, labels.values.astype(np.int64).tolist()
        self.transform: Any = None

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, list[int]]:
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB")), self.targets[index]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, targets: Tensor) -> None:
    """One step as timm's script takes it with --amp --channels-last."""
    with torch.autocast(images.device.type, torch.bfloat16):
        loss = nn.functional.binary_cross_entropy_with_logits(model(images), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def wait(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def theirs(given: argparse.Namespace, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    import timm  # type: ignore[import-not-found,import-untyped,unused-ignore]

    model = timm.create_model(given.backbone, num_classes=N_LABELS).to(device, memory_format=torch.channels_last)
    return model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)


def ceiling(given: argparse.Namespace, device: torch.device) -> float:
    model, optimizer = theirs(given, device)
    images = torch.randn(given.batch, 3, given.size, given.size, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    targets = torch.zeros(given.batch, N_LABELS, device=device)
    for _ in range(3):
        step(model, optimizer, images, targets)
    start, steps = wait(device), given.steps
    for _ in range(steps):
        step(model, optimizer, images, targets)
    return float(steps * given.batch / (wait(device) - start))


def by_timm(paths: list[Path], labels: Labels, given: argparse.Namespace, device: torch.device) -> float:
    from timm.data import create_loader  # type: ignore[import-not-found,import-untyped,unused-ignore]

    model, optimizer = theirs(given, device)
    loader = create_loader(
        Files(paths, labels),
        (3, given.size, given.size),
        given.batch,
        is_training=True,
        num_workers=given.workers,
        device=device,
        pin_memory=device.type == "cuda",
        persistent_workers=given.workers > 0,
    )
    seen, start = 0, 0.0
    for epoch in range(given.epochs):
        if epoch == 1:
            start = wait(device)
        for images, targets in loader:
            step(model, optimizer, images.contiguous(memory_format=torch.channels_last), targets.float())
            seen += len(images) if epoch else 0
    return seen / (wait(device) - start)


def by_us(
    paths: list[Path], labels: Labels, given: argparse.Namespace, device: torch.device, cache: str | None
) -> float:
    data = ImageDataset(paths, labels, given.size, cache=cache)
    model = build_model(ModelSettings(backbone=f"timm:{given.backbone}", pretrained=False), input_of(data), labels)
    settings = TrainSettings(
        epochs=given.epochs,
        batch_size=given.batch,
        device=device.type,
        precision="bfloat16",
        workers=given.workers,
        keep="last",
        checkpoint_seconds=1e9,
        augment=AugmentSettings(flip=True),
    )
    optimizer = OptimizerSettings("sgd", lr=0.01, weight_decay=1e-4)
    with tempfile.TemporaryDirectory() as folder:
        done = train(
            model,
            Objective(BCE()),
            data,
            optimizer,
            ScheduleSettings("constant", warmup_epochs=0),
            settings,
            Path(folder),
        )
    later = done.history[1:]
    return len(data) * len(later) / sum(record["seconds"] for record in later)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backbone", default="resnet50")
    for name, value in (("size", 224), ("batch", 128), ("epochs", 3), ("workers", 8), ("repeats", 1), ("steps", 30)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    import_torchvision()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    paths = sorted(given.folder.rglob("*.jpg")) * given.repeats
    labels = Labels((np.random.default_rng(0).random((len(paths), N_LABELS)) < 0.1).astype(np.int8))
    print(f"torch {torch.__version__}, {device}, {len(paths)} files, {given.backbone} at {given.size}", flush=True)
    top = ceiling(given, device)
    print(f"{'ceiling':22s}{top:9.0f} images/s", flush=True)
    with tempfile.TemporaryDirectory() as cache:
        for name, rate in (
            ("timm", lambda: by_timm(paths, labels, given, device)),
            ("ours", lambda: by_us(paths, labels, given, device, None)),
            ("ours, images cached", lambda: by_us(paths, labels, given, device, cache)),
        ):
            found = rate()
            print(f"{name:22s}{found:9.0f} images/s  {found / top:7.1%} of the ceiling", flush=True)


if __name__ == "__main__":
    main()
