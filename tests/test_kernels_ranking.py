"""The Triton kernels of average precision: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from triton_interpreter import outside

CASES = [
    (40, 11, torch.float32, 0.0),
    (257, 5, torch.float16, 8.0),
    (400, 2, torch.float32, 50.0),
    (12, 10, torch.bfloat16, 3.0),
    (1, 5, torch.float32, 2.0),
]


def check(device: str) -> None:
    """Compare with the plain code on ties, infinities, signed zeros, unknown labels, empty and full rows."""
    from steelyard.kernels import ranking as fused
    from steelyard.metrics.ranking import by_sorting_cells

    for n_items, n_labels, dtype, levels in CASES:
        rng = np.random.default_rng(n_items)
        scores = rng.normal(size=(n_items, n_labels))
        scores = np.round(scores * levels) / levels if levels else scores
        scores.flat[::7], scores.flat[1::7], scores.flat[2::31], scores.flat[3::31] = 0.0, -0.0, np.inf, -np.inf
        prevalence = rng.choice([0, 0.1, 0.5, 1], size=n_labels)
        targets = (rng.random(scores.shape) < prevalence).astype(np.float32)
        targets[rng.random(scores.shape) < 0.2] = -1
        s = torch.from_numpy(scores).to(dtype)
        s[torch.from_numpy(targets == -1)] = torch.nan
        t = torch.from_numpy(targets).to(torch.float32 if n_items > 200 else torch.int8)
        for a, b in ((s.T, t.T), (s, t))[: 2 if n_items < 100 else 1]:
            want = by_sorting_cells(a, b == 1, b != -1)
            got = fused.average_precision_rows(a.to(device), b.to(device), on_cpu=n_labels == 5)
            assert got.device.type == ("cpu" if n_labels == 5 else device)
            np.testing.assert_allclose(got.cpu(), want, atol=1e-12)
    s, t = torch.zeros(3, 4, device=device), torch.zeros(3, 4, dtype=torch.bool, device=device)
    t[1, 2] = True
    got = fused.average_precision_rows(s, t)
    np.testing.assert_allclose(got.cpu(), [np.nan, 0.25, np.nan])
    assert bool(fused.average_precision_rows(s, torch.zeros_like(s)).isnan().all())  # type: ignore[union-attr]
    assert fused.average_precision_rows(s[:0], s[:0]).shape == (0,)  # type: ignore[union-attr]
    for bad_score, bad_target in ((torch.nan, 0.0), (0.0, 2.0), (0.0, -0.5), (0.0, torch.nan)):
        s, t = torch.zeros(2, 2, device=device), torch.zeros(2, 2, device=device)
        s[1, 1], t[1, 1] = bad_score, bad_target
        assert fused.average_precision_rows(s, t) is None


@pytest.mark.parametrize("room", ["whole", "blocks"])
def test_kernels(room: str) -> None:
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_kernels_ranking as t; "
    if room == "blocks":
        code += "import steelyard.kernels.ranking as f; f.LEAST_ROOM, f.MOST_IN_BLOCK = 0, 32; "
        code += "f._LANES, f._BLOCKS_AT_ONCE, f._PROGRAMS, f._LOWEST = 16, 2, 1, 4; "
    device, settings = "cuda", {}
    if not torch.cuda.is_available():
        device, settings = "cpu", {"TRITON_INTERPRET": "1"}
        code += "import triton_interpreter; triton_interpreter.mend(); "
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code + f"t.check({device!r})"],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@outside
@pytest.mark.parametrize("by", ["label", "item"])
def test_kernels_compile_for_hopper(by: str) -> None:
    """The interpreter runs what the compiler refuses; compiling needs no GPU."""
    import triton
    from triton.backends.compiler import GPUTarget

    from steelyard.kernels import ranking as fused

    pointers = dict(scores="*fp32", targets="*i8", out="*fp64")
    numbers = ("n_rows", "width", "across", "bad", "s_row", "s_cell", "t_row", "t_cell")
    near = ("s_row", "t_row") if by == "label" else ("s_cell", "t_cell")  # a stride of 1 is compiled in
    for kernel, constants, warps in (
        (fused._gather, dict.fromkeys(near, 1) | dict(ROWS=8, CELLS=128), 4),
        (fused._sort, dict(BLOCK=256), 2),
        (fused._merge, dict(BLOCK=256, LANES=32, COLUMNS=32), 4),
        (fused._bucket, dict.fromkeys(near, 1) | dict(ROWS=8, CELLS=128, LOWEST=64), 4),
        (fused._finish, dict(BLOCK=1024), 4),
    ):
        names = kernel.arg_names
        kinds = {
            n: "constexpr" if n in constants else "i32" if n in numbers else pointers.get(n, "*i32") for n in names
        }
        source = triton.compiler.ASTSource(kernel, kinds, {(names.index(n),): v for n, v in constants.items()})
        done = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
        assert done.asm["cubin"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_finds_the_bad_cell() -> None:
    import steelyard.metrics as m

    s, t = torch.zeros(4, 3, device="cuda"), torch.zeros(4, 3, device="cuda")
    s[2, 1] = torch.nan
    with pytest.raises(ValueError, match=r"scores\[2, 1\] is nan"):
        m.average_precision(s, t)
