"""The error of a plain torch ResNet-32 on long-tailed CIFAR-10, without a line of Steelyard: what to hold ours against.

python bench/plain_resnet32.py DATA [--ratio 100] [--loss ce] [--seed 0] [--epochs 200]

DATA holds cifar-10-batches-bin/. The recipe is plm-table3's: SGD at .1 with momentum .9 and a weight decay of 2e-4,
batches of 128, losses summed over the classes, a warm-up of 5 epochs, the rate times .01 at 80 and at 90 % of the
epochs, crops out of images padded by 4 black pixels, mirror images. Prints a line of JSON: the error on the test
images, over all classes and over the five rarest.

What is not as in plm-table3: float32, where ours trains in bfloat16 on a GPU; another draw of the long tail;
convolutions drawn by fan-in, ours by fan-out; torch's own start of the last layer, ours nearly 0; a warm-up by epochs,
ours by steps; pixels normalised by all images, ours by up to 2,000.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES, MOST, BATCH = 10, 5000, 128


def read(*files: Path) -> tuple[Tensor, Tensor]:
    """Return the images, uint8 (N, 3, 32, 32), and their classes."""
    for file in files:
        if not file.is_file() or not file.stat().st_size or file.stat().st_size % 3073:
            raise SystemExit(f"{file} is no file of CIFAR-10's binary version: fetch it again")
    records = np.concatenate([np.fromfile(file, np.uint8).reshape(-1, 3073) for file in files])
    return torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy()), torch.from_numpy(records[:, 0].astype("i8"))


def long_tail(y: Tensor, ratio: float, generator: torch.Generator) -> Tensor:
    """Return the positions of n_c = ⌊5000 ratio^(-c/9)⌋ items of each class c, drawn at random."""
    chosen = []
    for c in range(CLASSES):
        there = torch.nonzero(y == c).flatten()
        n = int(MOST * ratio ** (-c / (CLASSES - 1)))
        if len(there) < n:
            raise SystemExit(f"class {c} has {len(there)} images, and a ratio of {ratio:g} asks for {n}: raise --ratio")
        chosen.append(there[torch.randperm(len(there), generator=generator)[:n]])
    return torch.cat(chosen)


class Block(nn.Module):
    """Two 3 × 3 convolutions; a shortcut into a new stage takes every second place and fills with zeros."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.stride = after // before
        self.conv1 = nn.Conv2d(before, after, 3, self.stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.stride > 1:
            more = x.shape[1] // 2
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, more, more))
        return F.relu(x + y)


def resnet32() -> nn.Module:
    """Return the network of He et al. (2016) for 32 × 32 images."""
    widths = [16] * 6 + [32] * 5 + [64] * 5
    blocks = [Block(before, after) for before, after in pairwise(widths)]
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    net = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))
    for part in net.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight)
    return net


def varied(x: Tensor) -> Tensor:
    """Return each image shifted by up to 4 pixels, black moving in, half of them mirrored."""
    n, device = len(x), x.device
    shift = torch.randint(0, 9, (2, n, 1), device=device)
    step = torch.arange(32, device=device)
    columns = torch.where(torch.rand(n, 1, device=device) < 0.5, 31 - step, step.expand(n, 32)) + shift[1]
    rows = step + shift[0]
    return F.pad(x, (4, 4, 4, 4))[
        torch.arange(n, device=device)[:, None, None, None],
        torch.arange(3, device=device)[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


def error(net: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return the share of items, in per cent, whose most probable class is another: of all, of the five rarest."""
    net.eval()
    with torch.no_grad():
        wrong = torch.cat([net(part).argmax(1) for part in x.split(1000)]) != y
    return 100 * wrong.double().mean().item(), 100 * wrong[y >= CLASSES // 2].double().mean().item()


def main() -> None:
    """Train and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("data", type=Path)
    options.add_argument("--ratio", type=float, default=100, help="positives of the commonest class over the rarest's")
    options.add_argument("--loss", choices=("ce", "bce"), default="ce", help="cross-entropy, or one sigmoid a class")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--epochs", type=int, default=200)
    said = options.parse_args()
    folder = said.data / "cifar-10-batches-bin"
    if not (files := sorted(folder.glob("data_batch_*.bin"))):
        raise SystemExit(f"{folder} has no data_batch_1.bin: name the folder that holds CIFAR-10's binary version")
    began = time.monotonic()
    torch.manual_seed(said.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    (x, y), (test, truth) = read(*files), read(folder / "test_batch.bin")
    chosen = long_tail(y, said.ratio, torch.Generator().manual_seed(said.seed))
    x, y = x[chosen].to(device).float() / 255, y[chosen].to(device)
    mean, std = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True)
    net = resnet32().to(device)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=2e-4)
    warm, falls = 5, (said.epochs * 8 // 10, said.epochs * 9 // 10)
    for epoch in range(said.epochs):
        net.train()
        sgd.param_groups[0]["lr"] = 0.1 * min(1.0, (epoch + 1) / warm) * 0.01 ** sum(epoch >= fall for fall in falls)
        for batch in torch.randperm(len(y), device=device).split(BATCH):
            z = net((varied(x[batch]) - mean) / std)
            if said.loss == "ce":
                loss = F.cross_entropy(z, y[batch])
            else:
                loss = CLASSES * F.binary_cross_entropy_with_logits(z, F.one_hot(y[batch], CLASSES).to(z.dtype))
            sgd.zero_grad()
            loss.backward()
            sgd.step()
    overall, rarest = error(net, (test.to(device).float() / 255 - mean) / std, truth.to(device))
    facts = {"ratio": said.ratio, "loss": said.loss, "seed": said.seed, "epochs": said.epochs, "images": len(y)}
    scores = {"error": round(overall, 2), "error of the 5 rarest": round(rarest, 2)}
    print(json.dumps({**facts, **scores, "seconds": round(time.monotonic() - began), "device": device}))


if __name__ == "__main__":
    main()
