"""A loss made of a pair on a GPU: what the one kernel of `pairs` is launched with, and its place in differentiation.

The forward pass computes value and gradient together, the latter for an upstream gradient of 1. The backward pass looks
at the upstream gradient on the device and computes the gradient anew only where it is another number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""The dtypes of logits that the kernels take."""

SOFTPLUS, SHIFTED = 0, 1
_HOST, _GIVEN, _COUNTED = 0, 1, 2
_DRAWN, _STORED = 1, 2

_TILE = 2048  # cells
_WIDEST, _NARROWEST = 1024, 128  # labels of a tile of several rows
_WARPS = 4
_PROGRAMS = 8  # on a multiprocessor
_TASKS = 64  # tiles after which one more program is better than one more tile
_MOST_PROGRAMS = 16384
_FEW = 32768  # cells that every program may count by itself
_SMALL = 1 << 20  # cells whose gradient may as well be multiplied by the upstream one
_MOST_CHUNKS = 16  # parts of a row which each read the whole row for its re-balanced weight


class Pair(NamedTuple):
    """A pair as the kernel knows it.

    SOFTPLUS: ℓ₊ = c₊ f(−k₊(z − b₊)), ℓ₋ = c₋ f(k₋(z − b₋)) with f(x) = σ(x)^γ softplus(x) − h x; `shifts` (2, L),
    float32, holds class-wise b₊ and b₋. SHIFTED: the asymmetric loss with a margin m > 0, whose logit is `edge`.
    """

    kind: int = SOFTPLUS
    slope: tuple[float, float] = (1.0, 1.0)
    scale: tuple[float, float] = (1.0, 1.0)
    shift: tuple[float, float] = (0.0, 0.0)
    gamma: tuple[float, float] = (0.0, 0.0)
    detach: bool = False
    smoothing: float = 0.0
    margin: float = 0.0
    edge: tuple[float, float] = (0.0, 0.0)
    shifts: Tensor | None = None


class Cells(NamedTuple):
    """The coefficients a, b (B, L) of every cell, which cells count (bool, None: all), whether a or b is always 0."""

    a: Tensor
    b: Tensor
    counted: Tensor | None
    sided: bool


class Rule(NamedTuple):
    """What unknown labels are: ignored, or negatives of weight `unknown` beside known ones of weight `negative`."""

    assumed: bool = False
    negative: float = 1.0
    unknown: float = 0.0


IGNORED = Rule()


class Rebalanced(NamedTuple):
    """The weight α + σ(β(r − μ)), r = inverse_c / Σ_j present_j inverse_j, of every label; `inverse` (L,) float32."""

    inverse: Tensor
    alpha: float
    beta: float
    mu: float


class Mask(NamedTuple):
    """PLM's mask: keep-probabilities (2, L), float32, to draw it with, or with `stored` the epoch's masks (N, L), bool.

    `items` (B,) are the items' numbers; without it they are first_item, first_item + 1, …
    """

    keep: Tensor
    items: Tensor | None = None
    stored: bool = False
    seed: int = 0
    epoch: int = 0
    first_item: int = 0


class _Job(NamedTuple):
    """All but logits that a launch needs, and the same loss by plain means, for second derivatives."""

    pair: Pair
    given: Tensor | Cells
    rule: Rule
    each: bool
    divisor: Tensor | float | None
    weight: Tensor | None
    rebalanced: Rebalanced | None
    mask: Mask | None
    plain: Callable[[Tensor], Tensor]


def takes(logits: Tensor) -> bool:
    """Return whether the kernels can do these logits."""
    return logits.dtype in DTYPES and logits.numel() > 0


def value(
    logits: Tensor,
    given: Tensor | Cells,
    pair: Pair,
    plain: Callable[[Tensor], Tensor],
    *,
    each: bool = False,
    divisor: Tensor | float | None = None,
    rule: Rule = IGNORED,
    weight: Tensor | None = None,
    rebalanced: Rebalanced | None = None,
    mask: Mask | None = None,
) -> Tensor:
    """Return Σ (a ℓ₊ + b ℓ₋) / divisor, or with `each` the cells (B, L), float32.

    Args:
        logits: (B, L), any strides, a dtype of `DTYPES`.
        given: targets (B, L) of any dtype (1, 0, soft, −1 unknown), or the cells themselves.
        pair: ℓ₊ and ℓ₋.
        plain: the same loss of logits by differentiable means, for second derivatives.
        each: return every cell.
        divisor: a number, or one on the device; None: the number of labels that count, at least 1.
        rule: what unknown labels are.
        weight: (B, L), any strides, multiplies each label's term.
        rebalanced: weights that follow from the targets, computed inside.
        mask: of PLM.
    """
    targets = given.view(torch.uint8) if isinstance(given, Tensor) and given.dtype == torch.bool else given
    job = _Job(pair, targets, rule, each, 1.0 if each else divisor, weight, rebalanced, mask, plain)
    out: Tensor = _Fused.apply(logits, job)  # type: ignore[no-untyped-call]
    return out


class _Fused(torch.autograd.Function):
    """The kernel as a function of logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, job: _Job) -> Tensor:
        out = torch.empty(logits.shape if job.each else (), dtype=torch.float32, device=logits.device)
        grad = None
        if ctx.needs_input_grad[0] and not job.each:
            grad = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
        if job.divisor is None:
            job = job._replace(divisor=_n_counted(job))
        _launch(logits, job, out=out, grad=grad)
        ctx.save_for_backward(logits, grad, *(job.given[:3] if isinstance(job.given, Cells) else (job.given,)))
        ctx.job = job
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        logits, grad, *_ = ctx.saved_tensors
        job: _Job = ctx.job
        if torch.is_grad_enabled():  # second derivatives are wanted: leave it to automatic differentiation
            (wanted,) = torch.autograd.grad(job.plain(logits), logits, upstream, create_graph=True)
            return wanted, None
        if grad is not None and grad.dtype == torch.float32 and grad.numel() <= _SMALL:
            return grad * upstream, None
        again = grad is None or torch._C._autograd._get_current_graph_task_keep_graph()
        if again:
            grad = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
        _launch(logits, job, grad=grad, upstream=upstream, skip=not again)
        return grad, None


def _n_counted(job: _Job) -> Tensor | float | None:
    """Return the number of labels that count; None where it is best counted on the way."""
    given = job.given
    if isinstance(given, Cells):
        return float(given.a.numel()) if given.counted is None else given.counted.sum().clamp_min(1)
    if job.rule.assumed or given.dtype == torch.uint8:
        return float(given.numel())
    if not given.is_contiguous():
        return (given != -1).sum().clamp_min(1)
    if given.numel() <= _FEW:
        return None
    from steelyard.kernels import pairs

    out = torch.empty(1, dtype=torch.float32, device=given.device)
    parts, counter = _workspace(given.device)
    tasks = -(-given.numel() // _TILE)
    with nullcontext() if given.device.type == "cpu" else torch.cuda.device(given.device):
        pairs.count[(_n_programs(tasks, given.device),)](given, out, parts, counter, given.numel(), C=_TILE)
    return out


def _launch(
    logits: Tensor,
    job: _Job,
    out: Tensor | None = None,
    grad: Tensor | None = None,
    upstream: Tensor | None = None,
    skip: bool = False,
) -> None:
    """Launch the kernel: forward with `out`, backward with `upstream`."""
    n_rows, n_labels = logits.shape
    pair, rule, mask, weight = job.pair, job.rule, job.mask, job.weight
    if isinstance(job.given, Cells):
        targets, b, counted, sided = job.given
        holes = counted is not None
        counted = counted.contiguous().view(torch.uint8) if counted is not None else logits
    else:
        targets, b, counted = job.given, logits, logits
        sided, holes = not targets.is_floating_point(), targets.dtype != torch.uint8
    flat = (
        all(part is None for part in (weight, job.rebalanced, mask, pair.shifts))
        and (upstream is None or upstream.ndim == 0)
        and logits.is_contiguous()
        and targets.is_contiguous()
        and not isinstance(job.given, Cells)
    )
    device, chunks, tiles = logits.device, 1, 1
    if flat:
        rows, columns = 1, _TILE
        n_rows, n_labels = 1, n_rows * n_labels
        tasks = -(-n_labels // columns)
        programs = _n_programs(tasks, device)
    else:
        rows, columns = _tile(n_labels)
        blocks = -(-n_rows // rows)
        spare = _n_programs(1 << 60, device, few=True) // blocks
        chunks = max(1, min(spare, -(-n_labels // columns), _MOST_CHUNKS if job.rebalanced else spare))
        tiles = -(-n_labels // (chunks * columns))
        chunks = -(-n_labels // (tiles * columns))
        tasks = blocks * chunks
        programs = _n_programs(tasks, device)
    mode, divisor, number = _HOST, logits, 1.0
    if job.divisor is None:
        mode = _COUNTED
    elif isinstance(job.divisor, Tensor):
        mode, divisor = _GIVEN, job.divisor
    else:
        number = float(job.divisor)
    rebalanced = job.rebalanced or Rebalanced(logits, 0.0, 1.0, 0.0)
    items = logits if mask is None or mask.items is None else mask.items
    seed, first_item, epoch = (0, 0, 0) if mask is None else (mask.seed, mask.first_item, mask.epoch)
    keep = logits if mask is None else mask.keep.view(torch.uint8) if mask.stored else mask.keep
    parts, counter = _workspace(device) if out is not None and not job.each else (logits, logits)
    up = 0 if upstream is None else 1 if upstream.ndim == 0 else 2
    w_strides = (0, 0) if weight is None else weight.stride()
    u_strides = upstream.stride() if upstream is not None and up == 2 else (0, 0)
    tensors = (
        logits, targets, b, counted, logits if weight is None else weight,
        logits if pair.shifts is None else pair.shifts,
        rebalanced.inverse, keep, items, logits if upstream is None else upstream, divisor,
        logits if grad is None else grad, logits if out is None else out, parts, counter,
    )  # fmt: skip
    strides = (*logits.stride(), *targets.stride(), *b.stride(), *w_strides, *u_strides)
    whole = (n_rows, n_labels, tasks, chunks, tiles, *((0, 1, 0, 1, *strides[4:]) if flat else strides))
    grain = math.gcd(n_labels, 0 if flat else math.gcd(strides[0], strides[2], w_strides[0]), 16)
    numbers = (rule.negative, rule.unknown, number, rebalanced.alpha, rebalanced.beta, rebalanced.mu)
    words = (_word(seed), _word(seed >> 32), _word(epoch), _word(first_item), _word(first_item >> 32))
    fixed = (
        pair.kind, *pair.slope, *pair.scale, *pair.shift, *pair.gamma, pair.detach, pair.smoothing, pair.margin,
        *pair.edge,
        sided, isinstance(job.given, Cells), holes, rule.assumed, pair.shifts is not None, weight is not None,
        job.rebalanced is not None, 0 if mask is None else _STORED if mask.stored else _DRAWN,
        mask is not None and mask.items is not None, mode, job.each, grad is not None, up, skip, flat, grain,
        rows, columns,
    )  # fmt: skip
    _run(programs, device, tensors, whole, numbers, words, fixed)


def _run(
    programs: int,
    device: torch.device,
    tensors: tuple[Tensor, ...],
    whole: tuple[int, ...],
    numbers: tuple[float, ...],
    words: tuple[int, ...],
    fixed: tuple[float, ...],
) -> None:
    """Launch; what was compiled for the same shapes, strides, dtypes and alignments is launched again directly."""
    from steelyard.kernels import pairs

    if device.type == "cpu":
        pairs.loss[(programs,)](*tensors, *whole, *numbers, *words, *fixed)
        return
    aligned = tuple(t.data_ptr() % 16 == 0 for t in tensors)
    key = (device.index, whole, fixed, aligned, tuple(t.dtype for t in tensors))
    if device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            pairs.loss[(programs,)](*tensors, *whole, *numbers, *words, *fixed, num_warps=_WARPS)
        return
    compiled = _compiled.get(key)
    if compiled is not None:
        compiled[(programs, 1, 1)](*tensors, *whole, *numbers, *words, *fixed)
        return
    if len(_compiled) >= 1024:
        _compiled.clear()
    _compiled[key] = pairs.loss[(programs,)](*tensors, *whole, *numbers, *words, *fixed, num_warps=_WARPS)


_compiled: dict[tuple[object, ...], Any] = {}
_workspaces: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
_multiprocessors: dict[int, int] = {}


def _workspace(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return room for the programs' sums and a counter that is 0, of this stream's own."""
    if device.type == "cpu" or torch.cuda.is_current_stream_capturing():  # a graph may run beside any stream
        return _new_workspace(device)
    key = (device.index, torch.cuda.current_stream(device).cuda_stream)
    if key not in _workspaces:
        _workspaces[key] = _new_workspace(device)
    return _workspaces[key]


def _new_workspace(device: torch.device) -> tuple[Tensor, Tensor]:
    parts = torch.empty(_MOST_PROGRAMS, dtype=torch.float64, device=device)
    return parts, torch.zeros(1, dtype=torch.int32, device=device)


def _n_programs(tasks: int, device: torch.device, few: bool = False) -> int:
    """Return how many programs share `tasks` tiles; with `few`, how many there are room for at once."""
    if device.type == "cpu":
        return min(tasks, 3)  # the interpreter: each has several tiles
    if device.index not in _multiprocessors:
        _multiprocessors[device.index] = torch.cuda.get_device_properties(device).multi_processor_count
    room = _PROGRAMS * _multiprocessors[device.index]
    return room if few else min(tasks, max(room, min(_MOST_PROGRAMS, -(-tasks // _TASKS))))


def _tile(n_labels: int) -> tuple[int, int]:
    """Return rows and labels of a tile: as few lanes beyond the last label as can be."""
    columns = 16
    while columns < min(n_labels, _NARROWEST):
        columns *= 2
    best = columns
    while columns < _WIDEST and columns < n_labels:
        columns *= 2
        if -(-n_labels // columns) * columns <= -(-n_labels // best) * best:
            best = columns
    return max(1, _TILE // best), best


def _word(x: int) -> int:
    """Return the low 32 bits of x as a signed number."""
    return ((x & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000
