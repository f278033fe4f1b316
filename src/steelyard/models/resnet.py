"""The two small residual networks of the PLM paper: ResNet-12 for MultiMNIST and ResNet-32 for CIFAR."""

from __future__ import annotations

from itertools import pairwise
from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.models.backbone import ImageBackbone, init_convolutions


class _Stage(nn.Module):
    """One residual block of three 3×3 convolutions with a 1×1 convolution as its shortcut, then 2×2 max-pooling."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(_convolution(before, after), nn.ReLU(inplace=True)),
            *(_convolution(after, after), nn.ReLU(inplace=True)),
            _convolution(after, after),
        )
        self.shortcut = _convolution(before, after, side=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(self.body(x) + self.shortcut(x), inplace=True), 2)


@final
class ResNet12(ImageBackbone):
    """ResNet-12: four stages of one residual block of three 3×3 convolutions, widths 64-128-256-512, max-pooling.

    Batch normalisation after every convolution, ReLU, the mean over the last map: 512 features. Convolutions start as
    He et al. (2015) draw them, scales at 1 and shifts at 0. 7,995,520 parameters on one channel. Images are at least
    16 × 16: each stage halves them.

    channels: of the images.
    """

    size, n_features, least = 32, 512, 16

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels, self.trained = channels, False
        widths = (channels, 64, 128, 256, 512)
        self.stages = nn.Sequential(*(_Stage(a, b) for a, b in pairwise(widths)))
        init_convolutions(self)

    def maps(self, x: Tensor) -> Tensor:
        """Return (B, 512, H/16, W/16)."""
        self.check_side(x.shape[-2], x.shape[-1])
        maps: Tensor = self.stages(x)
        return maps


class _ResidualBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut without parameters: every `stride`-th place, new channels zero."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.stride, self.new = stride, after - before
        self.body = nn.Sequential(
            *(_convolution(before, after, stride=stride), nn.ReLU(inplace=True)), _convolution(after, after)
        )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        if self.new:
            half = self.new // 2
            shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, self.new - half))
        return F.relu(self.body(x) + shortcut, inplace=True)


@final
class ResNet32(ImageBackbone):
    """CIFAR's ResNet-32 (He et al., 2016): three stages of five blocks, widths 16-32-64, shortcuts of option A.

    A shortcut into a new stage takes every second place and fills the new channels with zeros, half of them before
    and half after the old ones. Convolutions start as He et al. (2015) draw them. 64 features; 463,504 parameters on
    three channels, 464,154 with a linear layer to ten labels. Images are at least 5 × 5: the last maps then have more
    than one place, without which the normalisation of a batch of one item is not defined.

    channels: of the images.
    """

    size, n_features, least = 32, 64, 5

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels, self.trained = channels, False
        blocks = []
        width = 16
        for after in (16, 32, 64):
            for _ in range(5):
                blocks.append(_ResidualBlock(width, after, after // width))
                width = after
        self.stem = nn.Sequential(_convolution(channels, 16), nn.ReLU(inplace=True))
        self.blocks = nn.Sequential(*blocks)
        init_convolutions(self)

    def maps(self, x: Tensor) -> Tensor:
        """Return (B, 64, H/4, W/4)."""
        self.check_side(x.shape[-2], x.shape[-1])
        maps: Tensor = self.blocks(self.stem(x))
        return maps


def _convolution(before: int, after: int, side: int = 3, stride: int = 1) -> nn.Sequential:
    """A convolution without bias, then batch normalisation."""
    return nn.Sequential(nn.Conv2d(before, after, side, stride, padding=side // 2, bias=False), nn.BatchNorm2d(after))
