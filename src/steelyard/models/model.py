"""A network from inputs to logits: normalisation, a backbone, and a head."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, final

import torch
from torch import Tensor, nn

from steelyard.data.subset import Labelled
from steelyard.models.backbone import Backbone, ImageBackbone
from steelyard.models.heads import PlacesHead
from steelyard.models.inputs import Input
from steelyard.models.normalise import Normalise
from steelyard.models.oltr import ModulatedAttention, OLTRHead
from steelyard.models.race.members import Members
from steelyard.models.settings import ModelSettings


@final
class Model(nn.Module):
    """A network: normalisation, backbone and head, from inputs to logits (B, L).

    It takes images, uint8 (B, C, H, W) or floats in 0..1; features (B, F); or a pair (regions (B, R, F), words (B, T)).
    `build_model` and `load_model` make one.

    `backbone` and `head` may have their own learning rates; the OLTR head on a trainable backbone adds `attention`,
    which is new like the head. A frozen backbone has no gradients and stays in evaluation mode, so that its
    normalisation statistics do not change; with `settings.keep_statistics` only its batch normalisations stay so. With
    `settings.mirror`, logits and features in evaluation mode are averages over an image and its mirror image.

    Args:
        settings: settings of the model, nothing automatic.
        input: kind and shape of its inputs.
        backbone: inputs → features.
        head: features → logits.
        n_labels: L.
        attention: the OLTR head's attention over feature maps, or None.

    Examples:
        >>> settings, input = sy.models.ModelSettings(backbone="linear"), sy.models.Input("features", (4,))
        >>> model = sy.models.build_model(settings, input, sy.Labels([[1, 0], [0, 1]]))
        >>> model(torch.zeros(3, 4)).shape, model.features(torch.zeros(3, 4)).shape
        (torch.Size([3, 2]), torch.Size([3, 4]))
    """

    def __init__(
        self,
        settings: ModelSettings,
        input: Input,
        backbone: Backbone,
        head: nn.Module,
        n_labels: int,
        attention: ModulatedAttention | None,
    ) -> None:
        super().__init__()
        self.settings, self.input, self.n_labels = settings, input, n_labels
        self.normalise = Normalise(input, backbone.statistics, backbone.channels)
        self.backbone, self.attention, self.head = backbone, attention, head
        self.n_features, self.size = backbone.n_features, backbone.size
        if settings.is_frozen:
            self.backbone.requires_grad_(False)
            self.backbone.eval()

    def features(self, x: Any) -> Tensor:
        """Return features (B, F)."""
        if self.settings.is_frozen:
            with torch.no_grad():
                return self._features(x)
        return self._features(x)

    def _features(self, x: Any) -> Tensor:
        x = self.normalise(x)
        if self.attention is not None and isinstance(self.backbone, ImageBackbone):
            return self.backbone.pool(self.attention(self.backbone.maps(x)))
        features: Tensor = self.backbone(x)
        return features

    def forward(self, x: Any, with_features: bool = False) -> Any:
        """Return logits (B, L), or with `with_features` (logits, features)."""
        logits, features = self._forward(x)
        if self.settings.mirror and not self.training:
            logits, features = ((a + b) / 2 for a, b in zip((logits, features), self._forward(x.flip(-1)), strict=True))
        return (logits, features) if with_features else logits

    def _forward(self, x: Any) -> tuple[Tensor, Tensor]:
        if isinstance(self.head, PlacesHead) and isinstance(self.backbone, ImageBackbone):
            maps = self.backbone.maps(self.normalise(x))
            logits, features = self.head(maps), self.backbone.pool(maps)
        else:
            features = self.features(x)
            logits = self.head(features)
        return logits, features

    def train(self, mode: bool = True) -> Model:
        """Set training mode, or evaluation mode; parts that keep their statistics stay in evaluation mode."""
        super().train(mode)
        if self.settings.is_frozen:
            self.backbone.eval()
        elif self.settings.keep_statistics:
            for part in self.backbone.modules():
                if isinstance(part, nn.modules.batchnorm._BatchNorm):
                    part.eval()
        return self

    def fit_normalisation(self, data: Labelled) -> None:
        """Take the mean and deviation of inputs from training items; see `Normalise.fit`. Pretrained ones stay."""
        self.normalise.fit(data)

    @property
    def has_memory(self) -> bool:
        """True if training must call `observe` after every step: the head is OLTR's."""
        return isinstance(self.head, OLTRHead)

    def observe(self, features: Tensor, targets: Tensor) -> None:
        """Let a head with a memory see the features (B, F) and targets (B, L) of a training step; others ignore it."""
        if isinstance(self.head, OLTRHead):
            self.head.update_centroids(features, targets)

    def start_epoch(self) -> None:
        """Let a head with a memory use what it saw; call it before every epoch, the first included."""
        if isinstance(self.head, OLTRHead):
            self.head.start_epoch()

    def describe(self) -> dict[str, Any]:
        """Return what `load_model` needs besides the tensors of `state_dict()`, as plain JSON."""
        description = {
            "settings": asdict(self.settings),
            "input": {"kind": self.input.kind, "shape": list(self.input.shape)},
            "n_labels": self.n_labels,
        }
        return description | ({"members": self.head.describe()} if isinstance(self.head, Members) else {})
