"""ℓ₊(z) and ℓ₋(z) of a pair, with their slopes, inside a kernel (Triton): KIND and a few numbers say which."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from steelyard.kernels.arithmetic import exp, log, log1p, one_minus_exp, power, reciprocal

SOFTPLUS = tl.constexpr(0)  # c f(k(z − b)), f(x) = σ(x)^γ softplus(x) − h x: BCE, focal, NTR, SPA, LDAM, ASL without m
SHIFTED = tl.constexpr(1)  # ASL with a margin


@triton.jit
def _focused(x, H: tl.constexpr, GAMMA: tl.constexpr, DETACH: tl.constexpr):
    """f(x) = σ(x)^γ softplus(x) − h x and its slope; with DETACH the focus is a constant to training."""
    e = exp(-tl.abs(x))
    near = reciprocal(1 + e)
    p = tl.where(x >= 0, near, e * near)
    rest = log1p(e)
    cost = tl.maximum(x, 0.0) + rest
    slope = p
    if GAMMA != 0:
        focus = power(p, tl.minimum(x, 0.0) - rest, GAMMA)
        if DETACH:
            slope = focus * p
        else:
            q = tl.where(x >= 0, e * near, near)
            slope = focus * (p + GAMMA * q * cost)
        cost = focus * cost
    if H != 0:
        cost -= H * x
        slope -= H
    return cost, slope


@triton.jit
def _absent_shifted(s, ds, inverse, cost, GAMMA: tl.constexpr, DETACH: tl.constexpr):
    """ℓ₋ and ℓ₋' of ASL with a margin, given s, ds/dz, 1/(1 − s) and −log(1 − s)."""
    if GAMMA == 0:
        slope = tl.where(s > 0, ds * inverse, 0.0)
    elif GAMMA == 2 or GAMMA == 3 or GAMMA == 4:
        near = power(s, s, GAMMA - 1)
        slope = ds * near * (s * inverse) if DETACH else ds * near * (s * inverse + GAMMA * cost)
        cost = near * s * cost
    else:
        some = tl.where(s > 0, s, 1.0)
        focus = tl.where(s > 0, power(some, tl.log(some), GAMMA), 0.0)
        slope = ds * focus * (inverse if DETACH else inverse + GAMMA * (cost / some))
        cost = focus * cost
    return cost, slope


@triton.jit
def _present_shifted(z, p, q, rest, GAMMA: tl.constexpr, DETACH: tl.constexpr):
    """ℓ₊ and ℓ₊' of ASL, given log(1 + e^(−|z|))."""
    cost = tl.maximum(-z, 0.0) + rest
    slope = -q
    if GAMMA != 0:
        focus = power(q, tl.minimum(-z, 0.0) - rest, GAMMA)
        slope = -focus * q if DETACH else -focus * (q + GAMMA * p * cost)
        cost = focus * cost
    return cost, slope


@triton.jit
def absent(
    z, shift, KIND: tl.constexpr, GAMMA: tl.constexpr, K: tl.constexpr, SCALE: tl.constexpr, H: tl.constexpr,
    M: tl.constexpr, EDGE: tl.constexpr, EDGE_REST: tl.constexpr, DETACH: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """ℓ₋(z) and ℓ₋'(z) alone, both 0 at z = −∞ unless H is used.

    Without FINE, for logits in bfloat16, p − m of ASL is a plain difference and its logarithm one instruction: their
    last digits are lost only where the loss is next to nothing.
    """
    if KIND == SHIFTED:
        z = tl.maximum(z, EDGE)
        e = exp(-z)
        p = reciprocal(1 + e)
        q = e * p
        inverse = reciprocal(q + M)
        if FINE:
            d = tl.maximum((z - EDGE) - EDGE_REST, 0.0)
            s = (1 - M) * p * tl.where(d < 0.5, one_minus_exp(tl.minimum(d, 0.5)), 1 - (M / (1 - M)) * e)
            ratio = s * inverse
            cost = tl.where(ratio <= 1, log1p(tl.minimum(ratio, 1.0)), log(inverse))
        else:
            s = tl.maximum(p - M, 0.0)
            cost = log(inverse)
        return _absent_shifted(s, p * q, inverse, cost, GAMMA, DETACH)
    else:
        cost, slope = _focused(K * (z - shift), H, GAMMA, DETACH)
        return SCALE * cost, (SCALE * K) * slope


@triton.jit
def terms(
    z, present, counts, shift_pos, shift_neg, KIND: tl.constexpr, G_POS: tl.constexpr, G_NEG: tl.constexpr,
    K_POS: tl.constexpr, K_NEG: tl.constexpr, C_POS: tl.constexpr, C_NEG: tl.constexpr, H: tl.constexpr,
    M: tl.constexpr, EDGE: tl.constexpr, EDGE_REST: tl.constexpr, DETACH: tl.constexpr, SIDED: tl.constexpr,
    SUNK: tl.constexpr,
):  # fmt: skip
    """ℓ₊(z), ℓ₊'(z), ℓ₋(z) and ℓ₋'(z); with SIDED only the two that `present` asks for are right.

    With SUNK f is taken so far below 0, where a cell does not count, that it and its slope are 0.
    """
    if KIND == SHIFTED:
        e = exp(-tl.abs(z))
        near = reciprocal(1 + e)
        p = tl.where(z >= 0, near, e * near)
        q = tl.where(z >= 0, e * near, near)
        s = (1 - M) * p * one_minus_exp(tl.maximum((z - EDGE) - EDGE_REST, 0.0))  # p − m, without cancelling
        inverse = reciprocal(q + M)  # 1/(1 − s) wherever s > 0
        ratio = s * inverse
        rest = log1p(tl.where(present, e, tl.minimum(ratio, 1.0)) if SIDED else e)
        cost = tl.where(ratio <= 1, rest if SIDED else log1p(tl.minimum(ratio, 1.0)), log(inverse))
        up, rise = _present_shifted(z, p, q, rest, G_POS, DETACH)
        down, fall = _absent_shifted(s, p * q, inverse, cost, G_NEG, DETACH)
    elif SIDED and G_POS == G_NEG:
        x = tl.where(present, -K_POS * (z - shift_pos), K_NEG * (z - shift_neg))
        if SUNK:
            x = tl.where(counts, x, -1e30)
        cost, slope = _focused(x, H, G_POS, DETACH)
        up, rise = C_POS * cost, (-C_POS * K_POS) * slope
        down, fall = C_NEG * cost, (C_NEG * K_NEG) * slope
    else:
        up, rise = _focused(-K_POS * (z - shift_pos), H, G_POS, DETACH)
        down, fall = _focused(K_NEG * (z - shift_neg), H, G_NEG, DETACH)
        up, rise = C_POS * up, (-C_POS * K_POS) * rise
        down, fall = C_NEG * down, (C_NEG * K_NEG) * fall
    return up, rise, down, fall
