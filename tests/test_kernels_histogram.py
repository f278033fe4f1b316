"""PLM's histogram kernel, in Triton's interpreter, against the plain code; compiled for Hopper."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from steelyard.balance import PartialLabelMasking
from steelyard.kernels import choice
from triton_interpreter import assert_passes_inside, inside, outside

pytestmark = pytest.mark.interpreter


@outside
def test_in_the_interpreter() -> None:
    assert_passes_inside(__file__)


def safe_logits(rows: int, labels: int, bins: int) -> torch.Tensor:
    """Logits whose σ is not so near an edge of a bin that rounding decides, and extremes."""
    p = (torch.randint(0, bins, (rows, labels)) + 0.05 + 0.9 * torch.rand(rows, labels)) / bins
    z = torch.logit(p.double()).float()
    z.view(-1)[:4] = torch.tensor([1e4, -1e4, 60.0, -60.0])[: z.numel()]
    return z


@inside
@pytest.mark.parametrize("kind", ["int8", "bool", "soft", "transposed"])
@pytest.mark.parametrize("shape", [(13, 37), (8, 32), (1, 1), (33, 5), (0, 7)])
@pytest.mark.parametrize("bins", [2, 4, 10, 17])
def test_counts(shape: tuple[int, int], kind: str, bins: int) -> None:
    rows, labels = shape
    z = safe_logits(rows, labels, bins)
    t = torch.randint(-1, 2, shape, dtype=torch.int8)
    if kind == "bool":
        t = t > 0
    elif kind == "soft":
        t = torch.rand(shape).where(t >= 0, torch.tensor(-1.0))
    elif kind == "transposed":
        z, t = z.t().contiguous().t(), t.t().contiguous().t()
    one, other = (PartialLabelMasking(torch.full((labels,), 3), 40, bins=bins) for _ in range(2))
    for _ in range(2):  # counts add up
        with choice.using("fused"):
            one.observe_logits(z, t)
        with choice.using("plain"):
            other.observe_logits(z, t)
    assert torch.equal(one.histogram, other.histogram)
    assert other.histogram.sum() == 2 * (t != -1).sum()


@outside
def test_compiles_for_hopper() -> None:
    import triton
    from triton.backends.compiler import GPUTarget

    from steelyard.kernels.histogram import _outputs

    constants = dict(BINS=10, R=16, C=128, z_col=1, t_col=1)
    pointers = dict(logits="*bf16", targets="*i8", counts="*i32")
    names = _outputs.arg_names
    kinds = {n: "constexpr" if n in constants else pointers.get(n, "i32") for n in names}
    source = triton.compiler.ASTSource(_outputs, kinds, {(names.index(n),): v for n, v in constants.items()}, {})
    done = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
    assert done.asm["cubin"]


def test_bad_shapes_are_refused() -> None:
    plm = PartialLabelMasking(torch.full((3,), 3), 40)
    with choice.using("fused"), pytest.raises(ValueError, match=r"logits has shape \(2, 4\): give \(B, 3\)"):
        plm.observe_logits(torch.zeros(2, 4), torch.zeros(2, 3))
