"""Which kernels are used, that they compile for Hopper, and that their tests pass in Triton's interpreter."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from steelyard.kernels import choice, label_pairs
from triton_interpreter import assert_passes_inside, outside

pytestmark = [pytest.mark.interpreter, outside]


def test_in_the_interpreter() -> None:
    assert_passes_inside(str(Path(__file__).with_name("test_kernels_losses.py")))


def test_the_choice(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    assert not choice.fuses(cpu)
    with choice.using("fused"):
        assert choice.fuses(cpu)
        with choice.using("plain"):
            assert not choice.fuses(cpu)
        assert choice.fuses(cpu)
    with pytest.raises(ValueError, match="STEELYARD_KERNELS is 'fast'"), choice.using("fast"):  # type: ignore[arg-type]
        pass
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Old One")
    choice._supported.cache_clear()
    with caplog.at_level("WARNING", "steelyard"):
        assert not choice.fuses(gpu)
        assert not choice.fuses(gpu)
    assert len(caplog.records) == 1
    assert "Old One is older" in caplog.text
    choice._supported.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setitem(sys.modules, "triton", None)
    caplog.clear()
    assert not choice.fuses(gpu)
    assert "Triton is not installed" in caplog.text
    choice._supported.cache_clear()


BLOCK, FLAT, ROW = range(3)
ASL = dict(KIND=1, G_POS=1.0, G_NEG=4.0, M=0.05, EDGE=-2.944439, EDGE_REST=-5e-8)
VARIANTS: dict[str, dict[str, Any]] = {
    "bce": dict(),
    "bf16": dict(logits="*bf16", targets="*u8", HOLES=False, DIVISOR=0),
    "soft": dict(logits="*fp16", targets="*fp32", SIDED=False, H=0.05),
    "asl": ASL,
    "counted": dict(DIVISOR=2, G_POS=2.5, G_NEG=2.5),
    "late": dict(DIVISOR=3),
    "late_db": dict(DIVISOR=3, SHIFTS=1, REBALANCED=1, SHAPE=BLOCK),
    "backward": dict(UPSTREAM=1, SKIP=True),
    "each": dict(EACH=True, SLOPE=False),
    "each_backward": dict(UPSTREAM=2, SHAPE=BLOCK),
    "db_focal": dict(SHIFTS=2, REBALANCED=2, WEIGHT=True, G_POS=2.0, G_NEG=2.0, SHAPE=BLOCK),
    "r_bce": dict(SHIFTS=1, REBALANCED=1, SHAPE=BLOCK),
    "drawn": dict(MASK=1, keep="*i32", INDEXED=True, ASSUMED=True, SHAPE=BLOCK),
    "counter": dict(MASK=1, keep="*i32", SHAPE=BLOCK, GRAIN=4),
    "stored": dict(MASK=2, INDEXED=True, SHAPE=BLOCK, keep="*u8"),
    "row": dict(SHIFTS=2, REBALANCED=2, WEIGHT=True, G_POS=2.0, G_NEG=2.0, SHAPE=ROW),
    "row_bf16": dict(logits="*bf16", SHIFTS=1, REBALANCED=2, SHAPE=ROW),
    "row_drawn": dict(MASK=1, keep="*i32", SHAPE=ROW, GRAIN=1),
    "row_stored": dict(MASK=2, INDEXED=True, SHAPE=ROW, keep="*u8"),
    "cells": dict(CELLS=True, targets="*fp32", SIDED=False, SHAPE=BLOCK, **ASL),
}


TILE = dict(R=16, C=128, z_col=1, t_col=1)
MARGINS: dict[str, dict[str, Any]] = {
    "partials": dict(TILE, CELLS=False, SETTLE=False, N=128, K=16),
    "partials_settle": dict(TILE, CELLS=True, SETTLE=True, N=128, K=16),
    "settled": dict(N=16, K=128),
    "gradient": dict(TILE, CELLS=False),
}


@pytest.mark.parametrize(
    "name", [*VARIANTS, "count", "count_cells", "rows", "rows_cells", "scaled", "label_pairs", "histogram", *MARGINS]
)
def test_compiles_for_hopper(name: str) -> None:
    """The interpreter runs what the compiler refuses; compiling needs no GPU."""
    import triton
    from triton.backends.compiler import GPUTarget

    from steelyard.kernels import histogram, margins, pairs, targets

    pointers = dict.fromkeys(
        ("b_given", "weight", "shifts", "inverse", "drawn", "keep", "upstream", "divisor", "out"), "*fp32"
    )
    pointers |= dict(logits="*fp32", targets="*i8", counted="*u8", items="*i64", parts="*fp64", counter="*i32")
    pointers |= dict(scores="*fp32", values="*fp32", slopes="*fp32", hits="*i32", grad="*fp32", counts="*i32")
    pointers |= dict(partial="*fp32", stats="*fp32")
    floats = ("negative", "unknown", "host_divisor", "alpha", "beta", "mu", "t_neg", "t_pos")
    others = {
        "count": (targets.count, dict(WORDS=True, C=4096)),
        "count_cells": (targets.count, dict(WORDS=False, C=4096)),
        "rows": (targets.rows, dict(HOLES=True, GRAIN=16, C=2048, t_col=1)),
        "rows_cells": (targets.rows, dict(HOLES=True, GRAIN=1, C=2048, t_col=1)),
        "scaled": (pairs.scaled, dict(C=2048)),
        "label_pairs": (label_pairs._pairs, dict(WIDTH=1024, SOME=4)),
        "histogram": (histogram._outputs, dict(BINS=10, R=16, C=128, z_col=1, t_col=1)),
    } | {key: (getattr(margins, key.partition("_")[0]), given) for key, given in MARGINS.items()}
    kernel, constants = others.get(name, (pairs.loss, {}))
    if kernel is pairs.loss:
        flags = ("CELLS", "ASSUMED", "WEIGHT", "INDEXED", "EACH", "SKIP", "DETACH")
        variant = VARIANTS[name]
        shape = variant.get("SHAPE", FLAT)
        constants = dict.fromkeys(flags, False) | dict.fromkeys(("KIND", "MASK", "UPSTREAM", "REBALANCED", "SHIFTS"), 0)
        constants |= dict.fromkeys(("K_POS", "K_NEG", "C_POS", "C_NEG"), 1.0)
        constants |= dict.fromkeys(("B_POS", "B_NEG", "G_POS", "G_NEG", "H", "M", "EDGE", "EDGE_REST"), 0.0)
        constants |= dict(SIDED=True, HOLES=True, DIVISOR=1, SLOPE=True, SHAPE=shape, GRAIN=(1, 16, 4)[shape])
        constants |= dict(R=2 if shape == BLOCK else 1, C=2048 if shape == FLAT else 1024, z_col=1, t_col=1)
        pointers |= {k: v for k, v in variant.items() if k in pointers}
        constants |= {k: v for k, v in variant.items() if k not in pointers}
        pointers["grad"] = pointers["logits"]
    names = kernel.arg_names
    kinds = {n: "constexpr" if n in constants else pointers.get(n, "fp32" if n in floats else "i32") for n in names}
    attributes = {(names.index(n),): [["tt.divisibility", 16]] for n in names if n in pointers}
    values = {(names.index(n),): v for n, v in constants.items()}
    source = triton.compiler.ASTSource(kernel, kinds, values, attributes)
    done = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    assert done.asm["cubin"]
    if kernel is pairs.loss and constants["GRAIN"] > 1 and name != "counter":
        assert re.search(r"ld\.global\.v[42]", done.asm["ptx"])  # several cells at once
    if name in ("count", "rows"):
        assert re.search(r"ld\.global\.v4", done.asm["ptx"])  # sixteen targets at once
    if name == "partials":  # labels are folded in registers: nothing is exchanged before the rows are, after the loop
        assert not re.search(r"shfl|bar\.sync", done.asm["ptx"].partition("st.global")[0])
