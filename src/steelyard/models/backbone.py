"""The interface of backbones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

from torch import Tensor, nn

Statistics: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]

IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and deviation of red, green and blue over ImageNet, of pixels in 0..1."""


class Backbone(nn.Module, ABC):
    """A network from inputs to features (B, F)."""

    n_features: int
    """F."""
    size: int = 0
    """Side of the images it was made for; 0: any side, or no images."""
    channels: int = 0
    """Channels of its images; 0: no images."""
    statistics: Statistics | None = None
    """(mean, std) of the inputs that its weights were trained with; None takes those of the training items."""
    trained: bool = True
    """False if its weights are random."""

    @abstractmethod
    def forward(self, x: Any) -> Tensor:
        """Return features (B, F)."""


class ImageBackbone(Backbone):
    """A backbone in two halves, from images to maps and from maps to features, with room for attention between them."""

    least: int = 1
    """Smallest side of an image from which it can make maps."""

    def check_side(self, height: int, width: int) -> None:
        """Raise where images are too small for it."""
        if min(height, width) < self.least:
            raise ValueError(
                f"the images are {height} × {width} pixels, but {type(self).__name__.lower()} needs at least "
                f"{self.least} × {self.least}: give larger ones (image files: set data.size = {self.size}), or "
                "choose another model.backbone, such as small"
            )

    @abstractmethod
    def maps(self, x: Tensor) -> Tensor:
        """Return the feature maps of images (B, C, H, W) before pooling."""

    def pool(self, maps: Tensor) -> Tensor:
        """Return features (B, F) of maps: the mean over places."""
        return maps.mean((2, 3))

    def map_channels(self) -> int:
        """Return K where `maps` gives (B, K, h, w), 0 where it gives something else."""
        return self.n_features

    def forward(self, x: Tensor) -> Tensor:
        """Return features (B, F) of images (B, C, H, W)."""
        return self.pool(self.maps(x))


def init_convolutions(net: nn.Module) -> None:
    """Draw the weights of convolutions as He et al. (2015) do: normal with variance 2 / (k·k·outputs of a group)."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            fan = module.weight.numel() // module.in_channels
            nn.init.normal_(module.weight, std=(2 / fan) ** 0.5)
