"""Any backbone of timm, by its name there."""

from __future__ import annotations

import difflib
import socket
from pathlib import Path
from types import ModuleType
from typing import Any, final
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from torch import Tensor

from steelyard._compat import import_torchvision
from steelyard._extras import needed
from steelyard.models.backbone import ImageBackbone


@final
class TimmBackbone(ImageBackbone):
    """A backbone of timm with pooled features, and the mean, deviation and size of timm's own configuration.

    name: timm's, such as resnet50, ecaresnet50t, vit_base_patch32_224.
    pretrained: whether to take timm's weights, from its cache or by a download.
    size: (height, width) of the images, for nets that are made for one size; (0, 0): timm's own.
    """

    channels = 3

    def __init__(self, name: str, pretrained: bool, size: tuple[int, int] = (0, 0)) -> None:
        super().__init__()
        timm = _timm(name)
        config = timm.get_pretrained_cfg(name)
        fixed = config is not None and config.fixed_input_size
        if fixed and size[0] != size[1]:
            raise ValueError(
                f"model.backbone timm:{name} takes square images, but images are {size[0]} × {size[1]}: set data.size"
            )
        side = size[0]
        arguments = {"img_size": side} if fixed and side and side != config.input_size[-1] else {}
        self.net: Any = _create(timm, name, pretrained, arguments)
        data = timm.data.resolve_model_data_config(self.net)
        if data["input_size"][0] != 3:
            raise ValueError(f"model.backbone timm:{name} takes {data['input_size'][0]} channels: choose one for RGB")
        self.size = side if arguments else int(data["input_size"][-1])
        self.statistics = (tuple(data["mean"]), tuple(data["std"]))
        self.trained = pretrained
        self.n_features = int(self.net.head_hidden_size or self.net.num_features)

    def maps(self, x: Tensor) -> Tensor:
        """Return what timm's `forward_features` gives: (B, K, h, w) of a convolutional net, tokens of others."""
        maps: Tensor = self.net.forward_features(x)
        return maps

    def pool(self, maps: Tensor) -> Tensor:
        """Return the input of the net's own classifier."""
        features: Tensor = self.net.forward_head(maps, pre_logits=True)
        return features

    @torch.no_grad()
    def map_channels(self) -> int:
        """Return K, found by sending one black image through; 0 where maps are not (B, K, h, w)."""
        was = self.net.training
        self.net.eval()
        maps = self.maps(torch.zeros(1, 3, self.size, self.size))
        self.net.train(was)
        return int(self.net.num_features) if maps.ndim == 4 and maps.shape[1] == self.net.num_features else 0


def timm_size(name: str) -> int:
    """Return the side of the images that timm's backbone `name` was made for."""
    config = _timm(name).get_pretrained_cfg(name)
    return 224 if config is None else int(config.input_size[-1])


def classifier_of(net: TimmBackbone) -> tuple[str, ...]:
    """Return the names of the classifier's layers, which files of weights hold and features do without."""
    names = net.net.pretrained_cfg.get("classifier") or ()
    return (names,) if isinstance(names, str) else tuple(names)


def _timm(name: str) -> ModuleType:
    """Return timm, if it is installed and knows `name`."""
    with needed(f"model.backbone timm:{name} needs", "'steelyard[vision]'"):
        import_torchvision()
        import timm
        import timm.data
    if not timm.is_model(name):
        architecture = name.split(".")[0]
        near = difflib.get_close_matches(architecture, timm.list_models(), 1, 0.5)
        hint = f"did you mean timm:{near[0]}?" if near else "timm.list_models() lists them"
        raise ValueError(f"model.backbone is timm:{name}, which timm {timm.__version__} does not know: {hint}")
    try:
        timm.get_pretrained_cfg(name)
    except RuntimeError:
        tags = ", ".join(timm.list_pretrained(f"{name.split('.')[0]}.*"))
        raise ValueError(
            f"model.backbone is timm:{name}, a tag that timm does not know: choose one of {tags}"
        ) from None
    module: ModuleType = timm
    return module


def _create(timm: ModuleType, name: str, pretrained: bool, arguments: dict[str, int]) -> Any:
    """Return the net without its classifier; if its weights cannot be fetched, raise an error that says why."""
    if not pretrained:
        return timm.create_model(name, pretrained=False, num_classes=0, **arguments)
    cause = None
    reason = _unreachable(timm.get_pretrained_cfg(name))
    if not reason:
        try:
            return timm.create_model(name, pretrained=True, num_classes=0, **arguments)
        except Exception as error:  # hubs, proxies and caches fail in many ways
            cause, reason = error, (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")
    raise ValueError(
        f"the weights of timm:{name} could not be fetched ({reason:.160}): give model.weights a safetensors file, or "
        "set model.pretrained = false"
    ) from cause


def _unreachable(config: Any) -> str:
    """Return the reason why a download cannot succeed, at once: the hub itself would try for most of a minute."""
    from huggingface_hub import constants  # comes with timm

    if config is None or not config.hf_hub_id or config.file or getproxies():
        return ""
    host = urlsplit(constants.ENDPOINT).hostname
    if (Path(constants.HF_HUB_CACHE) / f"models--{config.hf_hub_id.replace('/', '--')}" / "snapshots").is_dir():
        return ""
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return f"there is no copy in {constants.HF_HUB_CACHE} and no way to {host}"
    return ""
