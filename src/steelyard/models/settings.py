"""What can be set about the network: the section [model] of a configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from steelyard.data.files import check_choice

Head = Literal["linear", "cosine", "bottleneck", "ml_gcn", "oltr", "places", "members", "blocks", "none"]

BACKBONES = (
    *("auto", "linear", "mlp", "small", "resnet12", "resnet32", "resnet50"),
    *("lite0", "lite1", "lite2", "cross_attention", "own"),
)
"""What `backbone` may be, besides timm:NAME and hf:FOLDER."""


@dataclass(frozen=True)
class ModelSettings:
    """The section [model]: backbone and head of the network.

    Examples:
        >>> sy.models.ModelSettings(backbone="mlp", width=64).width
        64
        >>> sy.models.ModelSettings(backbone="mpl")
        Traceback (most recent call last):
        ValueError: model.backbone is 'mpl': choose one of ...
    """

    backbone: str = "auto"
    """What makes features of inputs: linear (nothing) or mlp on features; hf:FOLDER, a sentence encoder, on texts;
    small, resnet12, resnet32, resnet50, lite0 to lite2 or timm:NAME on images; cross_attention on regions and words;
    own, a module given to `sy.fit` in Python; auto: linear; lite0, up to 64 pixels resnet12, below 16 small;
    cross_attention."""
    pretrained: bool = True
    """Whether lite0 to lite2 and timm's backbones start from published weights; for the others there are none."""
    frozen: bool | str = "auto"
    """Whether the backbone keeps its weights, and the statistics of its normalisations, as they are: true, false, or
    auto: where published weights would be trained further without a GPU."""
    keep_statistics: bool = False
    """Whether a backbone that is trained keeps the mean and deviation of its batch normalisations as they came, and
    learns all else: to be tried where there are few images, or batches whose labels are not as frequent as later."""
    head: Head = "linear"
    """What makes logits of features; cosine: between −1 and 1, for LDAM's softmax; places: of a convolutional
    backbone's maps, before their mean is taken; members: what a race leaves, it cannot be set; blocks: linear, for
    20,000 labels and more, which train chooses by itself; none: of a module of one's own that gives logits."""
    bias: Literal["prior", "zero"] = "prior"
    """Where the last layer starts: prior at the frequency of every label as the objective sees it, with weights of 0;
    zero at 0 with small random weights, as in the papers. The cosine head has no bias, and losses without a link no
    such start: there it is always zero."""
    width: int = 256
    """Hidden units: of the bottleneck, mlp, cross_attention, and of ML-GCN's first graph convolution."""
    layers: int = 2
    """Layers of cross_attention."""
    dropout: float = 0.0
    """The chance that a feature is dropped before the last layer, in training."""
    reachability: float = 1.0
    """What the oltr head divides by the distance to the nearest centroid: 1 in its paper's formula, 10 in its authors'
    code."""
    mirror: bool = False
    """Whether evaluation, and later use, take the mean of the logits of an image and of its mirror image: twice the
    time, and a little more accurate where left and right do not matter."""
    embeddings: str = ""
    """Word vectors of the labels for ML-GCN, a text file as GloVe's: a word and its numbers a line; none: identity."""
    weights: str = ""
    """A safetensors file whose backbone weights to start from: a model of ours, or a bare backbone (timm's names)."""

    def __post_init__(self) -> None:
        elsewhere = ("timm:", "hf:")
        if not any(self.backbone.startswith(start) and self.backbone != start for start in elsewhere):
            check_choice(self.backbone, (*BACKBONES, "timm:NAME", "hf:FOLDER"), "model.backbone")
            if self.backbone == "timm:NAME":
                raise ValueError("model.backbone is 'timm:NAME': put a model of timm for NAME, e.g. timm:resnet50")
        check_choice(self.head, get_args(Head), "model.head")
        check_choice(self.bias, ("prior", "zero"), "model.bias")
        if self.frozen not in (True, False, "auto"):
            raise ValueError(f"model.frozen is {self.frozen!r}: give true, false or auto")
        for name in ("width", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"model.{name} is {getattr(self, name)}: it must be at least 1")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"model.dropout is {self.dropout}: it must be at least 0 and below 1")
        if not 0 < self.reachability < math.inf:
            raise ValueError(f"model.reachability is {self.reachability}: it must be above 0 and finite")
        if self.is_frozen and self.head == "places":
            raise ValueError(
                "model.head is places, but model.frozen is true: of a frozen backbone the maps that it looks at are "
                "not kept; set frozen = false, or head = linear"
            )
        if self.is_frozen and self.mirror:
            raise ValueError(
                "model.mirror is true, but model.frozen is true too: of a frozen backbone the features of images as "
                "they are are kept, and no others; set one of them to false"
            )
        if self.embeddings and self.head != "ml_gcn":
            raise ValueError(f"model.embeddings is given, but model.head is {self.head!r}: set it to ml_gcn")

    @property
    def is_frozen(self) -> bool:
        """Whether the backbone is frozen; one that is still to be decided is not."""
        return self.frozen is True
