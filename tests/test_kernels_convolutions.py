"""ResNet-32's kernels, in Triton's interpreter, against the plain modules in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton", reason="Triton is not installed")

from steelyard.kernels import convolutions as kernels
from steelyard.models import fused_resnet32 as fused
from steelyard.models.resnet import ResNet32
from triton_interpreter import assert_passes_inside, generator, inside, outside

pytestmark = pytest.mark.interpreter


@outside
def test_in_the_interpreter() -> None:
    assert_passes_inside(__file__)


@pytest.fixture
def g() -> torch.Generator:
    return generator()


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several programs of several tiles each, the last one not full."""
    rows = {16: {"ROW": True, "BM": 32}, 32: {"ROW": True, "BM": 16}, 64: {"ROW": False, "BM": 16}}
    monkeypatch.setattr(fused, "_CONVOLVED", rows)
    weights = {16: {"ROW": True, "BM": 32}, 32: {"ROW": False, "BM": 16}, 64: {"ROW": True, "BM": 16}}
    monkeypatch.setattr(fused, "_WEIGHTS", weights)
    monkeypatch.setattr(fused, "_MAP", {"BM": 16})
    monkeypatch.setattr(fused, "_PARTS", {16: 3, 32: 2, 64: 2})
    monkeypatch.setattr(fused, "_PROGRAMS", dict.fromkeys((16, 32, 64), 3))


def networks(g: torch.Generator, channels: int = 3) -> tuple[ResNet32, ResNet32]:
    """The network with a third of its blocks, all kinds among them, and the same in float64."""
    torch.manual_seed(int(torch.randint(1 << 30, (), generator=g)))
    own, reference = ResNet32(channels), ResNet32(channels).double()
    for net in (own, reference):
        net.blocks = nn.Sequential(*(net.blocks[k] for k in (0, 5, 6, 10, 11)))
    for part in own.modules():
        if isinstance(part, nn.BatchNorm2d):
            assert part.running_mean is not None
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.uniform_(part.bias, -0.3, 0.3)
            nn.init.uniform_(part.running_mean, -0.2, 0.2)
    reference.load_state_dict(own.state_dict())
    return own.train(), reference.train()


def far(found: Tensor, want: Tensor) -> float:
    return float((found.double() - want.double()).norm() / want.double().norm())


def of_kernels(own: ResNet32, x: Tensor, upstream: Tensor) -> tuple[Tensor, fused.Plan]:
    plan = fused.Plan(own.stem, list(own.blocks), torch.device("cpu"))
    maps = fused.fused_maps(plan, x)
    maps.backward(upstream.to(maps.dtype))
    return maps.detach(), plan


@inside
@pytest.mark.parametrize("row", [True, False])
@pytest.mark.parametrize(
    ("channels", "shape"), [(3, (2, 8, 12)), (1, (2, 5, 7)), (16, (2, 9, 6))], ids=["even", "odd", "full"]
)
def test_the_network_and_its_gradients(
    channels: int, shape: tuple[int, int, int], row: bool, g: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maps, gradients of all weights and normalisations, and running statistics, for sides of any length."""
    for name in ("_CONVOLVED", "_WEIGHTS"):
        tiles = {c: {**tile, "ROW": row} for c, tile in getattr(fused, name).items()}
        monkeypatch.setattr(fused, name, tiles)
    own, reference = networks(g, channels)
    batch, height, width = shape
    x = torch.randn(batch, channels, height, width, generator=g)
    want = reference.blocks(reference.stem(x.double()))
    upstream = torch.randn(want.shape, generator=g)
    maps, plan = of_kernels(own, x, upstream)
    want.backward(upstream.double())
    assert maps.shape == want.shape
    assert far(maps, want.detach()) < 1e-5
    for (name, mine), theirs in zip(own.named_parameters(), reference.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert mine.grad.shape == mine.shape
        assert far(mine.grad, theirs.grad) < 1e-4, name
    for (name, moved), wanted in zip(own.named_buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(moved.double(), wanted.double(), rtol=1e-4, atol=1e-5, msg=name)
    assert not any(norm.counters.any() for norm in plan.norms)  # ready for the next step


@inside
def test_half_precision_is_as_near_as_plain_modules_are(g: torch.Generator) -> None:
    own, reference = networks(g)
    x, plain = torch.randn(2, 3, 8, 8, generator=g), networks(g)[0]
    plain.load_state_dict(own.state_dict())
    want = reference.blocks(reference.stem(x.double()))
    upstream = torch.randn(want.shape, generator=g)
    want.backward(upstream.double())
    with torch.autocast("cpu", torch.bfloat16):
        maps, _ = of_kernels(own, x, upstream)
        usual = plain.blocks(plain.stem(x))
    usual.backward(upstream.to(usual.dtype))
    assert maps.dtype == torch.bfloat16
    assert far(maps, want.detach()) < 2 * far(usual.detach(), want.detach()) + 0.01  # the interpreter cuts off
    gradients = [torch.cat([p.grad.flatten() for p in n.parameters() if p.grad is not None]) for n in (own, plain)]
    exact = torch.cat([p.grad.flatten() for p in reference.parameters() if p.grad is not None])
    assert far(gradients[0], exact) < 2 * far(gradients[1], exact) + 0.01


@inside
def test_the_same_bits_every_time(g: torch.Generator) -> None:
    own, _ = networks(g)
    x, state = torch.randn(2, 3, 8, 5, generator=g), {k: v.clone() for k, v in own.state_dict().items()}
    upstream, found = torch.randn(2, 64, 2, 2, generator=g), []
    for _ in range(2):
        own.load_state_dict(state)
        own.zero_grad()
        maps, _ = of_kernels(own, x, upstream)
        found.append([maps, *(p.grad for p in own.parameters() if p.grad is not None), *own.buffers()])
        found[-1] = [part.clone() for part in found[-1]]
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@inside
def test_what_is_not_a_number_stays_so(g: torch.Generator) -> None:
    own, _ = networks(g)
    x = torch.randn(2, 3, 5, 5, generator=g)
    x[1, 0, 3, 3] = torch.nan
    maps, _ = of_kernels(own, x, torch.ones(2, 64, 2, 2))
    assert maps.isnan().any()


@inside
def test_they_are_used_in_training_alone(g: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    own, reference = networks(g)
    calls: list[int] = []

    def counted(plan: fused.Plan, x: Tensor) -> Tensor:
        calls.append(len(x))
        return kept(plan, x)

    kept = fused.fused_maps
    monkeypatch.setattr(fused, "fused_maps", counted)
    x = torch.randn(2, 3, 8, 8, generator=g)
    own.use_kernels(torch.device("cpu"))
    assert far(own(x).detach(), reference(x.double()).detach()) < 1e-5
    own.eval()
    own(x)
    assert calls == [2]
    own.train().use_kernels(None)
    own(x)
    assert calls == [2]
    many = ResNet32(17)
    many.use_kernels(torch.device("cpu"))  # has more channels than there are kernels for
    many.train()(torch.randn(2, 17, 8, 8))
    assert calls == [2]


@outside
@pytest.mark.parametrize("channels", [16, 32, 64])
def test_compiles_for_hopper(channels: int) -> None:
    """The interpreter runs what the compiler refuses; compiling needs no GPU."""
    import triton
    from triton.backends.compiler import GPUTarget

    def compiled(kernel: Any, **given: int) -> bool:
        options = {name: given.pop(name) for name in ("num_warps", "num_stages") if name in given}
        halves = () if kernel is kernels.gathered else ("x", "w", "y", "g", "a", "short", "out")
        kinds = dict.fromkeys(kernel.arg_names, "*fp32") | dict.fromkeys(halves, "*bf16")
        kinds |= dict.fromkeys(("n", "n_in", "n_out", "n_real", "each", "n_parts"), "i32")
        kinds |= dict(eps="fp32", momentum="fp32", n_seen="*i64", counter="*i32")
        kinds |= dict.fromkeys(given, "constexpr")
        kinds = {name: kinds[name] for name in kernel.arg_names}
        at = {(kernel.arg_names.index(name),): value for name, value in given.items()}
        source = triton.compiler.ASTSource(kernel, kinds, at)
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        return bool(made.asm["cubin"]) and made.metadata.shared <= 227 << 10

    sides = dict(H=512 // channels, W=512 // channels)
    for stride in (1, 2) if channels < 64 else (1,):
        shape = {**sides, "I": channels, "O": channels * stride, "STRIDE": stride}
        assert compiled(kernels.convolved, **shape, **TILES[channels])
        assert compiled(kernels.weights_back, **shape, **OF_WEIGHTS[channels])
        back = TILES[channels * stride] | ({"ROW": False} if stride > 1 else {})
        for short in (0, stride):
            assert compiled(kernels.convolved_back, **shape, **back, SHORT=short)
    for short in (0, 1, 2):
        assert compiled(kernels.joined, **sides, C=channels, MORE=channels // 2, SHORT=short, **MAP)
    assert compiled(kernels.masked, C=channels, **MAP)
    assert compiled(kernels.normalised_back, **sides, C=channels, **MAP)
    assert compiled(kernels.gathered, BLOCK=128, num_warps=4)


TILES, OF_WEIGHTS, MAP = fused._CONVOLVED, fused._WEIGHTS, fused._MAP  # as they are outside of these tests
