"""The kernels of ResNet-12's normalisations, in Triton's interpreter, against torch's own layers in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("triton", reason="Triton is not installed")

from steelyard.kernels import norms
from steelyard.models import fused_resnet
from steelyard.models.resnet import ResNet12
from triton_interpreter import assert_passes_inside, generator, inside, outside

pytestmark = pytest.mark.interpreter

C, BM, BC = 64, 16, 32  # channels, and a tile
DTYPES = {torch.float32: 1e-5, torch.bfloat16: 2.0**-6}
"""What may be lost of a value's size; the interpreter cuts bfloat16 off."""


@outside
def test_in_the_interpreter() -> None:
    assert_passes_inside(__file__)


@pytest.fixture
def g() -> torch.Generator:
    return generator()


class Norm:
    """A normalisation by the kernels, in several programs of several tiles each, and the same layer in float64."""

    def __init__(self, g: torch.Generator) -> None:
        self.layer = nn.BatchNorm2d(C).double()
        parts = (self.layer.weight, self.layer.bias, self.layer.running_mean, self.layer.running_var)
        for value, low in zip(parts, (-1.0, -1.0, -1.0, 1.0), strict=True):
            assert value is not None
            value.data.copy_(low + 2 * torch.rand(C, generator=g))
        self.weight, self.bias, self.running_mean, self.running_var = (
            part.detach().float().clone() for part in parts if part is not None
        )
        self.n_seen, self.counters = torch.tensor(0), torch.zeros(2, dtype=torch.int32)
        self.mean, self.inverse = torch.empty(C), torch.empty(C)

    @property
    def line(self) -> tuple[Tensor, ...]:
        return self.mean, self.inverse, self.weight, self.bias

    def see(self, x: Tensor) -> Norm:
        """Take the statistics of a batch."""
        n = x.numel() // C
        norms.statistics[summing(n)](
            x, parts(n, 2), self.counters, self.mean, self.inverse, self.running_mean, self.running_var, self.n_seen,
            n, 2 * BM, C, self.layer.eps, 0.1, BM=BM, BC=BC,
        )  # fmt: skip
        return self


def summing(n: int) -> tuple[int, int]:
    """The grid of a sum: two tiles a program."""
    return -(-n // (2 * BM)), C // BC


def over(n: int) -> tuple[int, int]:
    """The grid of what covers rows once."""
    return -(-n // BM), C // BC


def parts(n: int, n_sums: int) -> Tensor:
    return torch.full((summing(n)[0] * n_sums * C,), torch.nan)


def maps(g: torch.Generator, batch: int, height: int, width: int, dtype: torch.dtype, offset: float = 0.3) -> Tensor:
    x = offset + 1.7 * torch.randn(batch, C, height, width, generator=g)
    return x.to(dtype).contiguous(memory_format=torch.channels_last)


def close(got: Tensor, want: Tensor, part: float) -> None:
    """Equal but for `part` of a value, and of the largest of its kind where sums cancel."""
    torch.testing.assert_close(got.double(), want.detach(), rtol=part, atol=part * want.abs().max().item() + 1e-12)


@inside
@pytest.mark.parametrize("offset", [0.0, 300.0])
@pytest.mark.parametrize("shape", [(1, 2, 2), (5, 8, 6)])
def test_statistics(shape: tuple[int, int, int], offset: float, g: torch.Generator) -> None:
    """Mean and deviation of a batch, the running ones that move, also where the mean is far from 0."""
    norm, x = Norm(g), maps(g, *shape, torch.float32, offset)
    norm.see(x)
    wide, layer = x.double(), norm.layer
    torch.testing.assert_close(norm.mean.double(), wide.mean((0, 2, 3)), rtol=0, atol=1e-6 * wide.abs().max().item())
    close(norm.inverse, 1 / (wide.var((0, 2, 3), unbiased=False) + layer.eps).sqrt(), 1e-4 if offset else 1e-5)
    layer(wide)
    assert layer.running_mean is not None
    assert layer.running_var is not None
    close(norm.running_mean, layer.running_mean, 1e-5)
    close(norm.running_var, layer.running_var, 1e-4 if offset else 1e-5)
    assert norm.n_seen == layer.num_batches_tracked == 1
    assert not norm.counters.any()  # ready for the next step
    again = Norm(g).see(x)
    assert torch.equal(norm.inverse, again.inverse)  # the same bits every time


@inside
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 2, 2), (3, 5, 7)])
def test_rectified_both_ways(shape: tuple[int, int, int], dtype: torch.dtype, g: torch.Generator) -> None:
    norm, x, upstream = Norm(g), maps(g, *shape, dtype), maps(g, *shape, dtype)
    norm.see(x)
    n, y, grad, sums = x.numel() // C, torch.empty_like(x), torch.empty_like(x), torch.empty(2, C)
    norms.rectified[over(n)](x, y, *norm.line, n, C, BM=BM, BC=BC)
    norms.rectified_sums[summing(n)](
        upstream, x, parts(n, 2), norm.counters, *norm.line, sums, n, 2 * BM, C, BM=BM, BC=BC
    )
    norms.rectified_back[over(n)](upstream, x, grad, *norm.line, sums, n, C, BM=BM, BC=BC)
    wide = x.double().requires_grad_()
    want = F.relu(norm.layer(wide))
    want.backward(upstream.double())
    assert wide.grad is not None
    assert norm.layer.bias.grad is not None
    assert norm.layer.weight.grad is not None
    close(y, want, DTYPES[dtype])
    close(grad, wide.grad, DTYPES[dtype])
    close(sums[0], norm.layer.bias.grad, 1e-5)
    close(sums[1], norm.layer.weight.grad, 1e-5)
    assert not norm.counters.any()


@inside
def test_what_is_not_a_number_stays_so(g: torch.Generator) -> None:
    """Training is told by it that something went wrong; a maximum would hide it."""
    norm, x, z = Norm(g), maps(g, 2, 4, 4, torch.float32), maps(g, 2, 4, 4, torch.float32)
    norm.see(x)
    x[0, 3, 1, 2] = torch.nan
    y = torch.empty_like(x)
    norms.rectified[over(32)](x, y, *norm.line, 32, C, BM=BM, BC=BC)
    assert y[0, 3, 1, 2].isnan()
    assert y.isnan().sum() == 1
    top, x_top, z_top = (maps(g, 2, 2, 2, torch.float32) for _ in range(3))
    code = torch.empty_like(top, dtype=torch.uint8)
    norms.pooled[over(8)](x, z, top, code, x_top, z_top, *norm.line, *norm.line, 8, 4, C, BM=BM, BC=BC)
    assert top[0, 3, 0, 1].isnan()
    assert top.isnan().sum() == 1


@inside
@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 2, 2), (3, 6, 10)])
def test_pooled_both_ways(shape: tuple[int, int, int], dtype: torch.dtype, two: bool, g: torch.Generator) -> None:
    """The sum of two normalised maps, pooled and rectified, and its gradient, which may come in two parts."""
    batch, height, width = shape
    x, z = maps(g, *shape, dtype), maps(g, *shape, dtype)
    a, b = Norm(g).see(x), Norm(g).see(z)
    y, x_top, z_top, upstream, more = (maps(g, batch, height // 2, width // 2, dtype) for _ in range(5))
    n, code = y.numel() // C, torch.empty_like(y, dtype=torch.uint8)
    norms.pooled[over(n)](x, z, y, code, x_top, z_top, *a.line, *b.line, n, width, C, BM=BM, BC=BC)
    sums, x_grad, z_grad = torch.empty(3, C), torch.empty_like(x), torch.empty_like(z)
    norms.pooled_sums[summing(n)](
        upstream, more, code, x_top, z_top, parts(n, 3), a.counters, *a.line[:2], *b.line[:2], sums, n, 2 * BM, C,
        two, BM=BM, BC=BC,
    )  # fmt: skip
    norms.pooled_back[over(n)](
        upstream, more, code, x, z, x_grad, z_grad, *a.line[:3], *b.line[:3], sums, n, width, C, two, BM=BM, BC=BC
    )
    wide_x, wide_z = x.double().requires_grad_(), z.double().requires_grad_()
    want = F.max_pool2d(F.relu(a.layer(wide_x) + b.layer(wide_z)), 2)
    want.backward(upstream.double() + more.double() if two else upstream.double())
    close(y, want, DTYPES[dtype])
    assert torch.equal(code == 4, y == 0)
    of_both = (wide_x.grad, wide_z.grad, a.layer.bias.grad, a.layer.weight.grad, b.layer.weight.grad)
    for got, wanted, part in zip(
        (x_grad, z_grad, *sums), of_both, (DTYPES[dtype], DTYPES[dtype], 1e-5, 1e-5, 1e-5), strict=True
    ):
        assert wanted is not None
        close(got, wanted, part)
    assert not a.counters.any()


@inside
def test_the_whole_network(g: torch.Generator) -> None:
    """Four stages of ResNet-12, forward and backward, are those of its plain modules; statistics move alike.

    A pooling window with a near tie may send its gradient elsewhere, in plain float32 too: not every input can agree.
    """
    errors: list[float] = []
    while not errors or (errors[-1] >= 1e-4 and len(errors) < 3):  # one that agrees is enough
        errors.append(_of_network(g))
    assert min(errors) < 1e-4, errors
    assert max(errors) < 0.05, errors


def _of_network(g: torch.Generator) -> float:
    """The largest relative error of a parameter's gradient."""
    torch.manual_seed(int(torch.randint(1 << 30, (), generator=g)))
    own, reference = ResNet12(1), ResNet12(1).double()
    reference.load_state_dict(own.state_dict())
    plan = fused_resnet.Plan(list(own.stages), torch.device("cpu"))
    x = torch.randn(2, 1, 16, 32, generator=g)
    found, want = fused_resnet.fused_maps(plan, x), reference.stages(x.double())
    upstream = torch.randn(want.shape, generator=g)
    found.backward(upstream)
    want.backward(upstream.double())
    close(found, want, 1e-4)
    for (name, moved), wanted in zip(own.named_buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(moved.double(), wanted.double(), rtol=1e-4, atol=1e-5, msg=name)
    errors = []
    for mine, theirs in zip(own.parameters(), reference.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        errors.append(float((mine.grad.double() - theirs.grad).norm() / theirs.grad.norm()))
    return max(errors)


@outside
@pytest.mark.parametrize("dtype", ["*fp32", "*bf16"])
def test_compiles_for_hopper(dtype: str) -> None:
    """The interpreter runs what the compiler refuses; compiling needs no GPU."""
    import triton
    from triton.backends.compiler import GPUTarget

    like = ("x", "z", "y", "g", "h", "out", "x_top", "z_top", "x_out", "z_out")
    pointers = dict.fromkeys(like, dtype) | dict(code="*u8", counters="*i32", n_seen="*i64")
    numbers = dict(n="i32", each="i32", C="i32", width="i32", eps="fp32", momentum="fp32")
    of_sums = (norms.statistics, norms.rectified_sums, norms.pooled_sums)
    for kernel in (*of_sums, norms.rectified, norms.rectified_back, norms.pooled, norms.pooled_back):
        names, rows = kernel.arg_names, 256 if kernel in of_sums else 16
        constants = {n: v for n, v in dict(BM=rows, BC=32, TWO=True).items() if n in names}
        kinds = {n: "constexpr" if n in constants else numbers.get(n, pointers.get(n, "*fp32")) for n in names}
        source = triton.compiler.ASTSource(kernel, kinds, {(names.index(n),): v for n, v in constants.items()})
        done = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
        assert done.asm["cubin"]
