"""A network for tiny images that trains in seconds on a CPU."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from steelyard.models.backbone import Backbone, init_convolutions


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
