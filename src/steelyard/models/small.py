"""Small backbones: none, one hidden layer, and a network for tiny images that trains in seconds."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from steelyard.models.backbone import Backbone, init_convolutions


@final
class Features(Backbone):
    """Features as they come: with a linear head, a linear model. n_features: F."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.n_features = n_features

    def forward(self, x: Tensor) -> Tensor:
        """Return `x`."""
        return x


@final
class MLP(Backbone):
    """One hidden layer, ReLU(W x + b), weights drawn as He et al. (2015) do; without BatchNorm, so that items of a
    batch do not mix.

    inputs: F; `width`: hidden units.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.n_features, self.trained = width, False
        self.hidden = nn.Linear(inputs, width)
        nn.init.kaiming_normal_(self.hidden.weight, nonlinearity="relu")
        nn.init.zeros_(self.hidden.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, width)."""
        hidden: Tensor = self.hidden(x).relu()
        return hidden


@final
class Small(Backbone):
    """Two 3×3 convolutions of 16 and 32 maps, 2×2 max-pooling between them, then 128 features, all with ReLU.

    Arguments: `channels`, `height` and `width` of the images, at least 2×2.
    """

    n_features = 128

    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        if height < 2 or width < 2:
            raise ValueError(f"the images are {height} × {width}: small takes images of one size, at least 2 × 2")
        self.channels, self.trained = channels, False
        self.net = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * (height // 2) * (width // 2), 128),
            nn.ReLU(),
        )
        init_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return features (B, 128) of images (B, C, H, W)."""
        features: Tensor = self.net(x)
        return features
