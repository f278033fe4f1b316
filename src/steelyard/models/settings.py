"""The section [model] of a configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from steelyard._schema import AT_LEAST_1, conform
from steelyard.data.files import check_choice

Head = Literal["linear", "cosine", "bottleneck", "ml_gcn", "oltr", "places", "members", "blocks", "none"]

BACKBONES = (
    *("auto", "linear", "mlp", "small", "resnet12", "resnet32", "resnet50"),
    *("lite0", "lite1", "lite2", "cross_attention", "own"),
)
"""Values of `backbone`, besides timm:NAME and hf:FOLDER."""


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
    """Network from inputs to features. Features: linear (no network) or mlp. Texts: hf:FOLDER, a sentence encoder.
    Images: small, resnet12, resnet32, resnet50, lite0 to lite2 or timm:NAME. Regions and words: cross_attention.
    own: a module passed to `sy.fit` in Python. auto takes linear for features, cross_attention for regions and
    words, and for images lite0, resnet12 up to 64 pixels, or small below 16."""
    pretrained: bool = True
    """Start lite0 to lite2 and timm's backbones from published weights; the others have none."""
    frozen: bool | str = "auto"
    """Keep the weights and normalisation statistics of the backbone fixed: true, false, or auto, which is true
    where published weights would otherwise be fine-tuned without a GPU."""
    keep_statistics: bool = False
    """Keep the mean and deviation of a trained backbone's batch normalisations while everything else is trained.
    Worth trying with few images, or with batches whose label frequencies differ from those in use."""
    head: Head = "linear"
    """Layer from features to logits. cosine: logits between −1 and 1, for LDAM's softmax. places: works on the
    feature maps of a convolutional backbone before they are averaged. members: the result of a race; cannot be set.
    blocks: linear, for 20,000 labels or more; train chooses it. none: for your own module that returns logits."""
    bias: Literal["prior", "zero"] = "prior"
    """Initial value of the last layer: prior starts at the frequency of each label as the objective sees it, with
    weights 0; zero starts at 0 with small random weights, as in the papers. The cosine head and losses without a
    link always start at zero."""
    width: int = 256
    """Hidden units of bottleneck, mlp, cross_attention and ML-GCN's first graph convolution."""
    layers: int = 2
    """Layers of cross_attention."""
    dropout: float = 0.0
    """Probability of dropping a feature before the last layer, in training."""
    reachability: float = 1.0
    """Numerator r of the oltr head's reachability r/γ, γ the distance to the nearest centroid: 1 in the paper, 10 in
    the authors' code."""
    mirror: bool = False
    """Average the logits of an image and its mirror image in evaluation and prediction: twice the time, and slightly
    better scores where left and right do not matter."""
    embeddings: str = ""
    """Word vectors of the labels for ML-GCN, a text file like GloVe's: one word and its numbers per line. Without
    it, the identity matrix."""
    weights: str = ""
    """Safetensors file whose backbone weights training starts from: a Steelyard model or a bare backbone (timm's
    names)."""

    def __post_init__(self) -> None:
        conform("model", self, {AT_LEAST_1: ("width", "layers")})
        elsewhere = ("timm:", "hf:")
        if not any(self.backbone.startswith(start) and self.backbone != start for start in elsewhere):
            check_choice(self.backbone, (*BACKBONES, "timm:NAME", "hf:FOLDER"), "model.backbone")
            if self.backbone == "timm:NAME":
                raise ValueError("model.backbone is 'timm:NAME': replace NAME by a timm model, e.g. timm:resnet50")
        if self.frozen not in (True, False, "auto"):
            raise ValueError(f"model.frozen is {self.frozen!r}: give true, false or auto")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"model.dropout is {self.dropout}: it must be at least 0 and below 1")
        if not 0 < self.reachability < math.inf:
            raise ValueError(f"model.reachability is {self.reachability}: it must be above 0 and finite")
        if self.is_frozen and self.head == "places":
            raise ValueError(
                "model.head is places, but model.frozen is true: the feature maps of a frozen backbone are not "
                "kept; set frozen = false, or head = linear"
            )
        if self.is_frozen and self.mirror:
            raise ValueError(
                "model.mirror is true, but model.frozen is true too: a frozen backbone keeps features of the "
                "original images only; set one of them to false"
            )
        if self.embeddings and self.head != "ml_gcn":
            raise ValueError(f"model.embeddings is given, but model.head is {self.head!r}: set it to ml_gcn")

    @property
    def is_frozen(self) -> bool:
        """True if the backbone is frozen; False while that is undecided."""
        return self.frozen is True
