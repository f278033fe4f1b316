"""One step of SGD, momentum or Adam over rows of weights, states of 8, 16 or 32 bits, rounded at random (Triton)."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from steelyard.kernels.arithmetic import reciprocal

SGD, MOMENTUM, ADAM = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _bits(position, key):
    """32 bits that are random enough to round by, as `models.block.steps.noise` makes them."""
    x = position.to(tl.uint32) ^ key.to(tl.uint32, bitcast=True)
    zero = tl.zeros_like(x)
    x = (x ^ (x >> 16)) * (0x85EBCA6B + zero)
    x = (x ^ (x >> 13)) * (0xC2B2AE35 + zero)
    return x ^ (x >> 16)


@triton.jit
def _narrow(x, bits, kind: tl.constexpr, STOCHASTIC: tl.constexpr):
    """x in a dtype; bfloat16 stochastically rounded: 16 random bits are added to those that are cut off."""
    if kind == tl.bfloat16 and STOCHASTIC:
        wide = x.to(tl.uint32, bitcast=True) + (bits & 0xFFFF)
        return (wide >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return x.to(kind)


@triton.jit(do_not_specialize=["first", "key"])
def update(
    weights, grads, m_state, v_state, m_scale, v_scale, n, D, first, key, lr, scale, decay, beta1, beta2, eps, up1, up2,
    KIND: tl.constexpr, SMALL: tl.constexpr, STOCHASTIC: tl.constexpr, HINT: tl.constexpr, R: tl.constexpr,
    P: tl.constexpr,
):  # fmt: skip
    """Move weights (n, D) by `grads`·scale; states are those of the same rows.

    Rows are parts of labels' weights. SMALL: m is int8 with one scale per row, √v is (code/255)² times another. `up1`
    is 1/(1 − β₁ᵗ), `up2` 1/√(1 − β₂ᵗ). `first` is the number of the first row among all: what is rounded up does not
    depend on how labels are cut into blocks. HINT: weights and states, read once per step, do not drive gradients out
    of the cache.

    Every branch is on a constant: a compiled kernel has none of them.
    """
    # kept whole: three optimizers and two forms of their states read and write each weight once; apart, they would
    # repeat the loads, the random bits and the final store
    OLD: tl.constexpr = "evict_first" if HINT else ""
    rows = tl.program_id(0) * R + tl.arange(0, R)
    columns = tl.arange(0, P)
    there = rows < n
    inside = there[:, None] & (columns < D)[None, :]
    cells = rows[:, None].to(tl.int64) * D + columns[None, :]
    number = (rows.to(tl.uint32) + first.to(tl.uint32, bitcast=True)) * D  # modulo 2³²
    bits = _bits(number[:, None] + columns[None, :].to(tl.uint32), key)
    w = tl.load(weights + cells, mask=inside, other=0.0, eviction_policy=OLD).to(tl.float32)
    g = tl.load(grads + cells, mask=inside, other=0.0).to(tl.float32) * scale
    if KIND != ADAM:
        g += decay * w
    step = g
    if KIND != SGD:
        m = tl.load(m_state + cells, mask=inside, other=0, eviction_policy=OLD).to(tl.float32)
        if SMALL:
            m *= tl.load(m_scale + rows, mask=there, other=0.0)[:, None]
        m = beta1 * m + (g if KIND == MOMENTUM else (1 - beta1) * g)
        step = m
        if SMALL:
            unit = tl.max(tl.abs(m), 1) / 127
            tl.store(m_scale + rows, unit, mask=there)
            code = m * (1 / tl.where(unit > 0, unit, 1.0))[:, None] + (bits >> 16).to(tl.float32) * (1 / 65536.0)
            tl.store(
                m_state + cells,
                tl.minimum(tl.maximum(tl.floor(code), -127), 127).to(tl.int8),
                mask=inside,
                eviction_policy=OLD,
            )
        else:
            tl.store(
                m_state + cells,
                _narrow(m, bits >> 16, m_state.dtype.element_ty, STOCHASTIC),
                mask=inside,
                eviction_policy=OLD,
            )
    if KIND == ADAM:
        v = tl.load(v_state + cells, mask=inside, other=0, eviction_policy=OLD).to(tl.float32)
        if SMALL:
            v = v * v * (1 / 65025.0)
            v *= tl.load(v_scale + rows, mask=there, other=0.0)[:, None]
            v = v * v
        v = beta2 * v + (1 - beta2) * g * g
        root = tl.sqrt(v)
        step = (m * up1) * reciprocal(root * up2 + eps)
        w *= 1 - lr * decay
        if SMALL:
            largest = tl.max(root, 1)
            tl.store(v_scale + rows, largest, mask=there)
            code = tl.sqrt(root * (65025 / tl.where(largest > 0, largest, 1.0))[:, None])
            code = tl.floor(code + ((bits >> 8) & 0xFFFF).to(tl.float32) * (1 / 65536.0))
            code = tl.where(root > 0, tl.maximum(code, 1), 0)
            tl.store(v_state + cells, tl.minimum(code, 255).to(tl.uint8), mask=inside, eviction_policy=OLD)
        else:
            tl.store(
                v_state + cells,
                _narrow(v, bits >> 8, v_state.dtype.element_ty, STOCHASTIC),
                mask=inside,
                eviction_policy=OLD,
            )
    tl.store(
        weights + cells,
        _narrow(w - lr * step, bits, weights.dtype.element_ty, STOCHASTIC),
        mask=inside,
        eviction_policy=OLD,
    )
