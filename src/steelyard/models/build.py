"""Build models: for given data, and again from a saved description."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from steelyard.data.files import DataError, require
from steelyard.labels import Labels
from steelyard.models.backbone import Backbone, ImageBackbone
from steelyard.models.block import BlockHead
from steelyard.models.cross_attention import CrossAttention
from steelyard.models.heads import BottleneckHead, CosineHead, LinearHead, PlacesHead
from steelyard.models.inputs import Input
from steelyard.models.lite import KINDS, Lite
from steelyard.models.ml_gcn import MLGCNHead, label_graph, label_vectors
from steelyard.models.model import Model
from steelyard.models.oltr import ModulatedAttention, OLTRHead
from steelyard.models.own import OWN, NoHead, own_module
from steelyard.models.race.members import Members
from steelyard.models.resnet import ResNet12, ResNet32
from steelyard.models.resnet50 import ResNet50
from steelyard.models.settings import ModelSettings
from steelyard.models.small import MLP, Features, Small
from steelyard.models.timm_backbone import TimmBackbone, classifier_of, timm_size

_SMALL = 64


def build_model(settings: ModelSettings, input: Input, labels: Labels, module: nn.Module | None = None) -> Model:
    """Return a new model for inputs of this kind and these labels.

    Weights that are not read from a file are drawn from torch's global generator: seed it first.

    Args:
        settings: which model; `auto` is decided here.
        input: what `input_of` returns for the training items.
        labels: the training labels: their number and, for ML-GCN, their names and co-occurrence.
        module: your own module, for the backbone "own"; if it has one output per label, these are the logits.

    Examples:
        >>> labels = sy.Labels([[1, 0], [0, 1]])
        >>> model = sy.models.build_model(sy.models.ModelSettings(), sy.models.Input("features", (4,)), labels)
        >>> model.settings.backbone, model.n_labels
        ('linear', 2)
    """
    settings = replace(settings, backbone=_decided(settings, input))
    if settings.head == "members":
        raise ValueError(
            "model.head is members, which only a race produces: choose another, or train with --recipe auto"
        )
    if settings.mirror and input.kind != "image":
        raise ValueError(f"model.mirror is true, but the data has {input.kind}, no images: set it to false")
    backbone = _backbone(settings, input, module)
    if settings.backbone == OWN:
        settings = _for_own(settings, backbone.n_features, labels.n_labels)
    if isinstance(backbone, ImageBackbone) and input.shape[1]:
        backbone.check_side(input.shape[1], input.shape[2])
    if settings.weights:
        _start_from(settings.weights, backbone, settings.backbone)
    elif not backbone.trained:
        for name in ("frozen", "keep_statistics"):
            if getattr(settings, name) is True:
                raise ValueError(
                    f"model.{name} is true, but {settings.backbone} would start from random weights: give "
                    f"model.weights, a pretrained backbone, or {name} = false"
                )
    embeddings = graph = torch.empty(0)
    if settings.head == "ml_gcn":
        embeddings = torch.eye(labels.n_labels)
        if settings.embeddings:
            embeddings = torch.from_numpy(label_vectors(settings.embeddings, labels.names))
        graph = torch.from_numpy(label_graph(labels.conditional()))
    return _assembled(settings, input, backbone, labels.n_labels, embeddings, graph)


def load_model(description: Mapping[str, Any], tensors: Mapping[str, Tensor], module: nn.Module | None = None) -> Model:
    """Return the model described by `Model.describe` and `Model.state_dict`, in evaluation mode.

    Nothing is downloaded, no file is read, and the state of torch's generators does not change.

    Args:
        description: what `Model.describe` returned.
        tensors: what `Model.state_dict` returned.
        module: your own module again, if the model was built around one.

    Examples:
        >>> labels = sy.Labels([[1, 0], [0, 1]])
        >>> model = sy.models.build_model(sy.models.ModelSettings(), sy.models.Input("features", (4,)), labels)
        >>> again = sy.models.load_model(model.describe(), model.state_dict())
        >>> x = torch.ones(1, 4)
        >>> torch.equal(again(x), model.eval()(x))
        True
    """
    try:
        given = description["input"]
        input = Input(given["kind"], tuple(given["shape"]))
        settings = ModelSettings(**{"bias": "zero", **description["settings"]})  # before there was this setting
        n_labels = int(description["n_labels"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"description does not describe a model ({error!r}): give what describe() returned") from None
    state = dict(tensors)
    empty = torch.empty(0)
    with torch.random.fork_rng(devices=[]):
        backbone = _backbone(replace(settings, pretrained=False), input, module)
        parts = (state.get("head.embeddings", empty), state.get("head.graph", empty))
        if settings.head == "members":
            head = Members.of_description(description["members"], backbone.n_features, n_labels)
            model = Model(settings, input, backbone, head, n_labels, None)
        else:
            model = _assembled(settings, input, backbone, n_labels, *parts)
    if isinstance(model.head, BlockHead) and "head.weight" in state:
        model.head.narrow(state["head.weight"].dtype)
    _fill(model, state, "the file of the model")
    return model.eval()


def with_members(model: Model, head: Members) -> Model:
    """Return a model with the same backbone and another head.

    Args:
        model: the model.
        head: its new head, several small models that take the features of the backbone.

    Examples:
        >>> from steelyard.models.race.members import Members, MemberSpec
        >>> labels = sy.Labels([[1, 0], [0, 1]])
        >>> model = sy.models.build_model(sy.models.ModelSettings(), sy.models.Input("features", (4,)), labels)
        >>> sy.models.with_members(model, Members([MemberSpec("none")], 4, 2)).settings.head
        'members'
    """
    settings = replace(model.settings, head="members")
    return Model(settings, model.input, model.backbone, head, model.n_labels, None)


def fine_tunes(settings: ModelSettings, input: Input) -> bool:
    """Return whether training will update a pretrained image backbone.

    Args:
        settings: which model.
        input: kind and shape of its inputs.

    Examples:
        >>> image = sy.models.Input("image", (3, 160, 160))
        >>> sy.models.fine_tunes(sy.models.ModelSettings(backbone="lite0"), image)
        True
        >>> sy.models.fine_tunes(sy.models.ModelSettings(backbone="lite0", frozen=True), image)
        False
    """
    if input.kind != "image" or settings.is_frozen:
        return False
    name = _decided(settings, input)
    return bool(settings.weights) or (settings.pretrained and (name in KINDS or name.startswith("timm:")))


def image_size(settings: ModelSettings) -> int:
    """Return the side of the images that the backbone was designed for; image files are resized to it.

    Args:
        settings: which model.

    Examples:
        >>> sy.models.image_size(sy.models.ModelSettings(backbone="resnet12"))
        32
    """
    if settings.backbone.startswith("timm:"):
        return timm_size(settings.backbone.removeprefix("timm:"))
    if settings.backbone in ("small", "resnet12", "resnet32"):
        return 32
    return KINDS.get(settings.backbone, KINDS["lite0"]).size


def _decided(settings: ModelSettings, input: Input) -> str:
    """Return the name of the backbone, suited to the input."""
    name = settings.backbone
    if name.startswith("hf:"):
        if input.kind != "features":
            raise ValueError(f"model.backbone is {name}, which takes texts: name their column with data.text")
        return "linear"  # the data holds what the encoder made of its texts
    if name == OWN:
        return name
    image = _for_images(input.shape)
    name = {"features": "linear", "image": image, "pair": "cross_attention"}[input.kind] if name == "auto" else name
    wants = {"linear": "features", "mlp": "features", "cross_attention": "pair"}.get(name, "image")
    if wants != input.kind:
        raise ValueError(
            f"model.backbone is {name}, which takes {wants}, but the data has {input.kind}: set it to auto, or choose "
            "another"
        )
    if input.kind == "image" and name not in ("resnet12", "resnet32", "small") and input.shape[0] not in (1, 3):
        n = input.shape[0]
        raise ValueError(f"the images have {n} channels: {name} takes 1 or 3; choose small, resnet12 or resnet32")
    return name


def _for_images(shape: tuple[int, ...]) -> str:
    """Return the backbone for images of this shape: the smaller they are, the smaller it is."""
    if not 0 < max(shape[1:], default=0) <= _SMALL:
        return "lite0"
    return "resnet12" if min(shape[1:]) >= ResNet12.least else "small"


def _for_own(settings: ModelSettings, n_outputs: int, n_labels: int) -> ModelSettings:
    """Return the settings of a model around a user's module: without a head if its outputs are logits already."""
    for name in ("frozen", "keep_statistics", "weights"):
        if getattr(settings, name) not in (False, "", "auto"):
            raise ValueError(f"model.{name} is set, but the model is a module of your own: set it up before passing it")
    return replace(settings, head="none") if settings.head == "linear" and n_outputs == n_labels else settings


def _backbone(settings: ModelSettings, input: Input, module: nn.Module | None) -> Backbone:
    name, pretrained = settings.backbone, settings.pretrained and not settings.weights
    makers: dict[str, Callable[[], Backbone]] = {
        OWN: lambda: own_module(module, input),
        "linear": lambda: Features(input.shape[0]),
        "mlp": lambda: MLP(input.shape[0], settings.width),
        "cross_attention": lambda: CrossAttention(input.shape, settings.width, settings.layers),
        "resnet12": lambda: ResNet12(input.shape[0]),
        "resnet32": lambda: ResNet32(input.shape[0]),
        "resnet50": ResNet50,
        "small": lambda: Small(*input.shape),
        **{kind: lambda: Lite(name, pretrained) for kind in KINDS},
    }
    if name in makers:
        return makers[name]()
    return TimmBackbone(name.removeprefix("timm:"), pretrained, (input.shape[1], input.shape[2]))


def _assembled(
    settings: ModelSettings, input: Input, backbone: Backbone, n_labels: int, embeddings: Tensor, graph: Tensor
) -> Model:
    features, attention = backbone.n_features, None
    head: nn.Module
    if settings.head == "none":
        if features != n_labels or settings.backbone != OWN:
            raise ValueError(
                f"model.head is none, but {settings.backbone} gives {features} features for {n_labels} labels: choose "
                "another head, such as linear"
            )
        head = NoHead()
    elif settings.head in ("linear", "cosine"):
        head = (LinearHead if settings.head == "linear" else CosineHead)(features, n_labels, settings.dropout)
    elif settings.head == "blocks":
        head = BlockHead(features, n_labels, dtype=torch.float32)
    elif settings.head == "bottleneck":
        head = BottleneckHead(features, n_labels, settings.width, settings.dropout)
    elif settings.head == "ml_gcn":
        head = MLGCNHead(features, embeddings, graph, settings.width, settings.dropout, settings.bias == "prior")
    elif settings.head == "places":
        if not isinstance(backbone, ImageBackbone) or backbone.map_channels() != features:
            raise ValueError(
                f"model.head is places, but {settings.backbone} has no feature maps: choose model.backbone "
                "lite0, lite1, lite2, resnet12, resnet32 or a convolutional network of timm, or head = linear"
            )
        head = PlacesHead(features, n_labels, settings.dropout)
    else:
        head = OLTRHead(features, n_labels, settings.dropout, settings.reachability)
        if isinstance(backbone, ImageBackbone) and not settings.is_frozen and (channels := backbone.map_channels()):
            attention = ModulatedAttention(channels)
    return Model(settings, input, backbone, head, n_labels, attention)


def _start_from(path: str, backbone: Backbone, name: str) -> None:
    """Fill the backbone from a file: a model of ours, statistics included, or a bare backbone, classifier left out."""
    if not list(backbone.parameters()):
        raise ValueError(f"model.weights is {path}, but {name} has no weights of its own: leave it out")
    try:
        tensors = load_file(require(path))
    except SafetensorError:
        raise DataError(f"{path} is not a valid safetensors file: convert or download it again") from None
    if any(key.startswith("backbone.") for key in tensors):
        if "normalise.mean" in tensors and "normalise.std" in tensors:
            mean, std = (tuple(tensors[f"normalise.{part}"].flatten().tolist()) for part in ("mean", "std"))
            backbone.statistics = (mean, std)
        tensors = {key.removeprefix("backbone."): t for key, t in tensors.items() if key.startswith("backbone.")}
    elif isinstance(backbone, TimmBackbone):
        drop = tuple(f"{layer}." for layer in classifier_of(backbone))
        tensors = {f"net.{key}": t for key, t in tensors.items() if not key.startswith(drop)}
    _fill(backbone, tensors, path)
    backbone.trained = True


def _fill(module: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Copy every tensor to its place, or name what does not fit."""
    try:
        module.load_state_dict(dict(tensors))
    except RuntimeError as error:
        detail = " ".join(str(error).split("\n")[1:2]).strip().rstrip(".")
        raise ValueError(f"{source} belongs to another model: {detail:.200}") from None
