"""ResNet-50 as in its paper (v1), the network of the papers' photographs."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

from steelyard.models.backbone import ImageBackbone, init_convolutions

_EPS = 1.001e-5
_BLOCKS, _WIDTHS = (3, 4, 6, 3), (64, 128, 256, 512)


class _Bottleneck(nn.Module):
    """Convolutions 1×1, 3×3, 1×1 beside a shortcut; the stride is in the first of them, and in the shortcut's."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.conv1, self.bn1 = _convolution(before, width, 1, stride)
        self.conv2, self.bn2 = _convolution(width, width, 3)
        self.conv3, self.bn3 = _convolution(width, after, 1)
        projected = stride != 1 or before != after
        self.shortcut = nn.Sequential(*_convolution(before, after, 1, stride)) if projected else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        return F.relu(self.bn3(self.conv3(y)) + self.shortcut(x), inplace=True)


@final
class ResNet50(ImageBackbone):
    """ResNet-50 v1 (He et al., 2016): stages of 3, 4, 6 and 3 bottleneck blocks, 2,048 features.

    A stage's stride is in the first 1 × 1 convolution of its first block; timm:resnet50 has it in the 3 × 3 one (v1.5).
    Batch normalisation has eps 1.001e-5, and pixels are normalised as the weights that `steelyard_papers.features`
    converts want it: less the mean of ImageNet's channels, not divided by their deviation. 23,508,032 parameters.
    Weights come from `model.weights`; without it they are random.
    """

    size, channels, n_features, least = 224, 3, 2048, 33
    statistics = ((123.68 / 255, 116.779 / 255, 103.939 / 255), (1 / 255, 1 / 255, 1 / 255))

    def __init__(self) -> None:
        super().__init__()
        self.trained = False
        self.conv1, self.bn1 = _convolution(3, 64, 7, 2)
        before, stages = 64, []
        for i, (n, width) in enumerate(zip(_BLOCKS, _WIDTHS, strict=True)):
            blocks = []
            for b in range(n):
                blocks.append(_Bottleneck(before, width, 2 if i and not b else 1))
                before = 4 * width
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        init_convolutions(self)

    def maps(self, x: Tensor) -> Tensor:
        """Return (B, 2048, H/32, W/32)."""
        self.check_side(x.shape[-2], x.shape[-1])
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        maps: Tensor = self.stages(x)
        return maps


def _convolution(before: int, after: int, side: int, stride: int = 1) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """A convolution without bias, and its batch normalisation."""
    convolution = nn.Conv2d(before, after, side, stride, padding=side // 2, bias=False)
    return convolution, nn.BatchNorm2d(after, eps=_EPS)
