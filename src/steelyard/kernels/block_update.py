"""One step of SGD, momentum or Adam (Triton): of weights, whose states have 8, 16 or 32 bits, and of the bias."""

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


@triton.jit
def _from_byte(code):
    """The number in a byte, signed or not: the last digits of 1.5 · 2²³ + code, without a slow conversion."""
    return (code.to(tl.int32) + 0x4B400000).to(tl.float32, bitcast=True) - 12582912.0


@triton.jit
def _to_byte(x):
    """The whole number nearest to x, from −128 to 255, as a byte: the last digits of 1.5 · 2²³ + x."""
    return (x + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8)


@triton.jit
def _centred(bits):
    """The last 23 bits as a number from −½ to ½: what is added to it and rounded to nearest is rounded at random."""
    return ((bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True) - 1.5


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
    g = tl.load(grads + cells, mask=inside, other=0.0).to(tl.float32)
    share, rate = scale * (1 - beta1), lr  # of numbers alone: once per program, not once per weight
    if KIND != ADAM:
        share = 1.0
        g = g * scale + decay * w
    step = g
    if KIND != SGD:
        m = tl.load(m_state + cells, mask=inside, other=0, eviction_policy=OLD)
        if SMALL:
            m = _from_byte(m) * (beta1 * tl.load(m_scale + rows, mask=there, other=0.0))[:, None]
        else:
            m = beta1 * m.to(tl.float32)
        m += share * g
        step = m
        if SMALL:
            unit = tl.max(tl.abs(m), 1) / 127
            tl.store(m_scale + rows, unit, mask=there)
            code = m * (1 / tl.where(unit > 0, unit, 1.0))[:, None] + _centred(bits >> 9)
            tl.store(m_state + cells, _to_byte(tl.minimum(code, 127)), mask=inside, eviction_policy=OLD)
        else:
            tl.store(
                m_state + cells,
                _narrow(m, bits >> 16, m_state.dtype.element_ty, STOCHASTIC),
                mask=inside,
                eviction_policy=OLD,
            )
    if KIND == ADAM:
        v = tl.load(v_state + cells, mask=inside, other=0, eviction_policy=OLD)
        if SMALL:
            v = _from_byte(v)
            v *= v * (tl.load(v_scale + rows, mask=there, other=0.0) * (tl.sqrt(beta2) / 65025))[:, None]
            v *= v
        else:
            v = beta2 * v.to(tl.float32)
        v += (1 - beta2) * scale * scale * g * g
        root = tl.sqrt(v)
        step = m * reciprocal(root * up2 + eps)
        rate = lr * up1
        w *= 1 - lr * decay
        if SMALL:
            largest = tl.max(root, 1)
            tl.store(v_scale + rows, largest, mask=there)
            code = tl.sqrt(root * (65025 / tl.where(largest > 0, largest, 1.0))[:, None]) + _centred(bits)
            code = tl.where(root > 0, tl.minimum(tl.maximum(code, 1), 255), 0)
            tl.store(v_state + cells, _to_byte(code).to(tl.uint8, bitcast=True), mask=inside, eviction_policy=OLD)
        else:
            tl.store(
                v_state + cells,
                _narrow(v, bits >> 8, v_state.dtype.element_ty, STOCHASTIC),
                mask=inside,
                eviction_policy=OLD,
            )
    tl.store(
        weights + cells,
        _narrow(w - rate * step, bits, weights.dtype.element_ty, STOCHASTIC),
        mask=inside,
        eviction_policy=OLD,
    )


@triton.jit(do_not_specialize=["parts", "n_costs"])
def settle(
    sums, costs, value, bias, m_state, v_state, n, parts, n_costs, lr, scale, decay, beta1, beta2, eps, up1, up2,
    KIND: tl.constexpr, P: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Write scale · Σ costs to `value`, and move a bias (n,) by scale · sums (parts, n), both float64.

    Small sums of a block in one launch: a step of few labels takes as long as its launches. The bias does not decay,
    and its states are float32.
    """
    if tl.program_id(0) == 0:
        cost = tl.zeros([P * C], tl.float64)
        for first in range(0, n_costs, P * C):
            cells = first + tl.arange(0, P * C)
            cost += tl.load(costs + cells, mask=cells < n_costs, other=0.0)
        tl.store(value, (scale * tl.sum(cost, 0)).to(tl.float32))
    columns = tl.program_id(0) * C + tl.arange(0, C)
    within = columns < n
    total = tl.zeros([P, C], tl.float64)
    for first in range(0, parts, P):
        rows = first + tl.arange(0, P)
        inside = (rows < parts)[:, None] & within[None, :]
        total += tl.load(sums + rows[:, None].to(tl.int64) * n + columns[None, :], mask=inside, other=0.0)
    g = (scale * tl.sum(total, 0)).to(tl.float32)
    step, rate = g, lr
    if KIND != SGD:
        step = beta1 * tl.load(m_state + columns, mask=within, other=0.0) + (1 - beta1 if KIND == ADAM else 1.0) * g
        tl.store(m_state + columns, step, mask=within)
    if KIND == ADAM:
        v = beta2 * tl.load(v_state + columns, mask=within, other=0.0) + (1 - beta2) * g * g
        tl.store(v_state + columns, v, mask=within)
        step, rate = step * reciprocal(tl.sqrt(v) * up2 + eps), lr * up1
    tl.store(bias + columns, tl.load(bias + columns, mask=within, other=0.0) - rate * step, mask=within)
