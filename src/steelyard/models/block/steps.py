"""Steps of SGD, momentum and Adam over one block of labels at a time, with states of 32, 16 or 8 bits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from steelyard.kernels.block_launch import group_of, settle_, update_
from steelyard.kernels.choice import fuses

Kind = Literal["sgd", "momentum", "adam"]
State = Literal["float32", "bfloat16", "int8"]
Rounding = Literal["nearest", "stochastic"]

_KINDS: dict[str, int] = {kind: i for i, kind in enumerate(get_args(Kind))}  # as the kernels know them
_ROWS = 22528  # whose gradient is in memory at a time: in bfloat16, with 768 features, .7 of an H200's cache
_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class BlockOptimizer:
    """The optimizer that updates a `BlockHead` block by block.

    Args:
        kind: "sgd", "momentum" (m ← μm + g, w ← w − lr·m) or "adam" (with decoupled weight decay, as AdamW).
        momentum: μ (.9).
        betas: β₁ and β₂ of Adam.
        eps: ε of Adam.
        weight_decay: decay of the weights; the bias does not decay.
        state: dtype of m and v. "int8" stores m as integers with one scale per 256 weights, and v by the square root of
            √v.
        rounding: rounding of bfloat16 weights and states. "nearest" loses a step below half a unit in the last place;
            "stochastic" takes it on average.
        seed: seed of stochastic rounding.

    Examples:
        >>> rule = sy.models.BlockOptimizer("momentum", state="float32")
        >>> head = sy.models.BlockHead(2, 3, optimizer=rule, dtype=torch.float32)
        >>> head.moments.rule.kind
        'momentum'
    """

    kind: Kind = "sgd"
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    state: State = "bfloat16"
    rounding: Rounding = "stochastic"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, given, choices in (
            ("kind", self.kind, Kind),
            ("state", self.state, State),
            ("rounding", self.rounding, Rounding),
        ):
            if given not in get_args(choices):
                raise ValueError(f"{name} is {given!r}: choose one of {', '.join(get_args(choices))}")
        for name, value in (("momentum", self.momentum), ("betas[0]", self.betas[0]), ("betas[1]", self.betas[1])):
            if not 0 <= value < 1:
                raise ValueError(f"{name} is {value}: it must be at least 0 and below 1")
        if not (0 < self.eps < math.inf and 0 <= self.weight_decay < math.inf):
            raise ValueError(f"eps is {self.eps}, weight_decay {self.weight_decay}: both are finite, eps above 0")


class Moments(nn.Module):
    """The states of one matrix of weights, those of labels from `first` on, and of the bias (L,), which are float32."""

    def __init__(self, weight: Tensor, bias: Tensor, rule: BlockOptimizer, first: int = 0) -> None:
        super().__init__()
        self.rule, self.first = rule, first
        self.n_steps = 0
        small = rule.state == "int8"
        dtype = torch.int8 if small else torch.promote_types(getattr(torch, rule.state), torch.bfloat16)
        dtype = torch.float64 if weight.dtype == torch.float64 and not small else dtype
        names = {"sgd": (), "momentum": ("m",), "adam": ("m", "v")}[rule.kind]
        for name in names:
            kind = torch.uint8 if small and name == "v" else dtype
            self.register_buffer(name, torch.zeros(weight.shape, dtype=kind, device=weight.device))
            if small:
                n_groups = weight.shape[1] // group_of(weight.shape[1])
                self.register_buffer(f"{name}_scale", torch.zeros(len(weight), n_groups, device=weight.device))
            self.register_buffer(f"bias_{name}", torch.zeros_like(bias))

    def get(self, name: str) -> Tensor | None:
        """Return a state by name, None where this optimizer has none."""
        return self._buffers.get(name)

    def begin(self) -> None:
        """Count one more step; every block of it is then one `step`."""
        self.__dict__["n_steps"] += 1  # past nn.Module's look at whatever is set, which takes as long as a launch

    def get_extra_state(self) -> Tensor:
        """Return the number of steps, for the state_dict."""
        return torch.tensor(self.n_steps)

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the state that `get_extra_state` returned."""
        self.n_steps = int(state)

    def step(self, weight: Tensor, slopes: Tensor, x: Tensor, first: int, lr: float, scale: float) -> None:
        """Move weights (n, D) of the labels from `first` on by the gradient scale · slopesᵀ x."""
        rule = self.rule
        stochastic = rule.rounding == "stochastic" and weight.dtype == torch.bfloat16
        if rule.kind == "sgd" and not stochastic:
            weight.addmm_(slopes.t(), x, beta=1 - lr * rule.weight_decay, alpha=-lr * scale)
            return
        room = x.new_empty(min(_ROWS, len(weight)), x.shape[1])  # for all: two would push each other out of the cache
        for start in range(0, len(weight), _ROWS):
            part = weight[start : start + _ROWS]
            gradient = torch.mm(slopes[:, start : start + _ROWS].t(), x, out=room[: len(part)])
            self._move(part, gradient, first + start, lr, scale)

    def _move(self, weight: Tensor, gradient: Tensor, first: int, lr: float, scale: float) -> None:
        rule, rows = self.rule, slice(first - self.first, first - self.first + len(weight))
        states = [None if (s := self.get(name)) is None else s[rows] for name in ("m", "v", "m_scale", "v_scale")]
        key = (rule.seed * 0x9E3779B1 + self.n_steps * 0x85EBCA77) & _MASK
        numbers, stochastic = self._numbers(lr, scale, rule.weight_decay), rule.rounding == "stochastic"
        if fuses(weight.device) and weight.dtype != torch.float64:
            update_(weight, gradient, states, first, key, numbers, _KINDS[rule.kind], stochastic)
        else:
            narrow = any(x is not None and x.itemsize < 4 for x in (weight, *states))
            bits = noise(weight.shape if narrow else torch.Size((1, 1)), first, key, weight.device)
            plain_update_(weight, gradient, states, bits, numbers, rule.kind, stochastic)

    def settle(self, costs: Tensor, bias: Tensor, slopes: Tensor, first: int, lr: float | None, scale: float) -> Tensor:
        """Return scale · Σ costs, and move the bias (n,) of the labels from `first` on; with no `lr` it stays.

        `slopes` (parts, n), float64 as the costs are, add up to its gradient / scale.
        """
        if lr is not None:
            rows, kind, numbers = slice(first, first + bias.shape[0]), self.rule.kind, self._numbers(lr, scale, 0.0)
            states = [None if (s := self.get(name)) is None else s[rows] for name in ("bias_m", "bias_v")]
            if bias.dtype != torch.float64 and fuses(bias.device):
                return settle_(costs, bias, slopes, states, numbers, _KINDS[kind])
            bits = torch.zeros((), dtype=torch.int64)  # a bias is not rounded at random
            plain_update_(bias, slopes.sum(0), [*states, None, None], bits, numbers, kind, False)
        return (costs.sum() * scale).to(bias.dtype)

    def _numbers(self, lr: float, scale: float, decay: float) -> tuple[float, ...]:
        """Return the numbers of this step, as kernels take them."""
        rule, t = self.rule, self.n_steps
        if rule.kind != "adam":
            return lr, scale, decay, rule.momentum, 0.0, rule.eps, 1.0, 1.0
        beta1, beta2 = rule.betas
        return lr, scale, decay, beta1, beta2, rule.eps, 1 / (1 - beta1**t), (1 - beta2**t) ** -0.5


def plain_update_(
    weight: Tensor,
    gradient: Tensor,
    states: list[Tensor | None],
    bits: Tensor,
    numbers: tuple[float, ...],
    kind: Kind,
    stochastic: bool,
) -> None:
    """Do in plain torch what the kernel `block_update.update` does; with `noise` as `bits` the results are the same."""
    lr, scale, decay, beta1, beta2, eps, up1, up2 = numbers
    m_state, v_state, m_scale, v_scale = states
    wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
    w, g = weight.to(wide), gradient.to(wide) * scale
    if kind != "adam":
        g = g + decay * w
    step = g
    if m_state is not None:
        m = m_state.to(wide) if m_scale is None else m_state.to(wide) * _spread(m_scale, m_state)
        step = m = beta1 * m + (g if kind == "momentum" else (1 - beta1) * g)
        if m_scale is None:
            m_state.copy_(_narrow(m, bits >> 16, m_state.dtype, stochastic))
        else:
            m_scale.copy_(m.abs().view(*m_scale.shape, -1).amax(2) / 127)
            unit = _spread(torch.where(m_scale > 0, m_scale, 1), m)
            m_state.copy_((m / unit + (bits >> 9) / 2**23).floor_().clamp_(-127, 127))
    if v_state is not None:
        v = (
            v_state.to(wide)
            if v_scale is None
            else ((v_state.to(wide) / 255).square() * _spread(v_scale, v_state)).square()
        )
        v = beta2 * v + (1 - beta2) * g * g
        root = v.sqrt()
        step = (step * up1) / (root * up2 + eps)
        w = w * (1 - lr * decay)
        if v_scale is None:
            v_state.copy_(_narrow(v, bits >> 8, v_state.dtype, stochastic))
        else:
            v_scale.copy_(root.view(*v_scale.shape, -1).amax(2))
            code = (root / _spread(torch.where(v_scale > 0, v_scale, 1), root)).sqrt_() * 255
            code = (code + (bits & 0x7FFFFF) / 2**23).floor_().clamp_(1, 255)
            v_state.copy_(torch.where(root > 0, code, 0))
    weight.copy_(_narrow(w - lr * step, bits, weight.dtype, stochastic))


def _spread(scale: Tensor, like: Tensor) -> Tensor:
    """Return scales by label and group (n, G) for each weight (n, D)."""
    return scale.repeat_interleave(like.shape[1] // scale.shape[1], dim=1)


def noise(shape: torch.Size, first: int, key: int, device: torch.device) -> Tensor:
    """Return 32 random bits for each of (n, D) weights whose first row is number `first`, int64."""
    n, width = shape
    rows = first + torch.arange(n, device=device).unsqueeze(1)
    x = ((rows * width + torch.arange(width, device=device)) & _MASK) ^ key
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _MASK
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _MASK
    return x ^ (x >> 16)


def _narrow(x: Tensor, bits: Tensor, dtype: torch.dtype, stochastic: bool) -> Tensor:
    """Return x in `dtype`; bfloat16 stochastically rounded: 16 random bits are added to those that are cut off."""
    if dtype != torch.bfloat16 or not stochastic:
        return x.to(dtype)
    wide = x.to(torch.float32).view(torch.int32) + (bits & 0xFFFF).to(torch.int32)
    return (wide & -65536).view(torch.float32).to(dtype)
