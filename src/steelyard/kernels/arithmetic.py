"""Functions of float32 in few instructions, for kernels (Triton): exponentials, logarithms, quotients, powers."""

# mypy: ignore-errors

from __future__ import annotations

import os

import triton
import triton.language as tl

FAST = tl.constexpr(os.environ.get("TRITON_INTERPRET", "0") != "1")  # machine instructions, not for the interpreter


@triton.jit
def exp2(x):
    """2^x in one instruction; what is below 1e-38 is 0."""
    if FAST:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        return tl.exp2(x)


@triton.jit
def exp(x):
    """e^x in two instructions; what is below 1e-38 is 0."""
    if FAST:
        return exp2(x * 1.4426950408889634)
    else:
        return tl.exp(x)


@triton.jit
def reciprocal(x):
    """1/x in one instruction."""
    if FAST:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        return 1 / x


@triton.jit
def log(x):
    """log x in two instructions, to 2e-7 of itself away from 1."""
    if FAST:
        y = tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
        return y * 0.6931471805599453
    else:
        return tl.log(x)


@triton.jit
def log1p(e):
    """log(1 + e) for e in [0, 1], to 3e-7 of itself."""
    y = -0.00837115255 * e + 0.04349389982
    y = y * e - 0.1068500286
    y = y * e + 0.176874767
    y = y * e - 0.2447477418
    y = y * e + 0.3327192838
    y = y * e - 0.4999717452
    return (y * e + 0.9999997808) * e


@triton.jit
def one_minus_exp(d):
    """1 − e^(−d) for d ≥ 0, with all its digits where d is small."""
    y = -0.001123404219 * d + 0.008189613631
    y = y * d - 0.04163007283
    y = y * d + 0.1666624187
    y = y * d - 0.4999998188
    y = (y * d + 0.9999999987) * d
    return tl.where(d < 0.5, y, 1 - exp(-d))


@triton.jit
def power(x, log_x, GAMMA: tl.constexpr):
    """x^GAMMA by products where GAMMA is a small whole number, else from log x; GAMMA is not 0."""
    if GAMMA == 1:
        return x
    elif GAMMA == 2:
        return x * x
    elif GAMMA == 3:
        return x * x * x
    elif GAMMA == 4:
        return (x * x) * (x * x)
    else:
        return exp(GAMMA * log_x)
