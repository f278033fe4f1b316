"""A loss made of a pair on a GPU: what the one kernel of `pairs` is launched with, and its place in differentiation.

The forward pass computes value and gradient together, the latter for an upstream gradient of 1. The backward pass looks
at the upstream gradient on the device and computes the gradient again only where it is another number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""The dtypes of logits that the kernels take."""

# as in `terms` and `pairs`, which say what they mean, and which cannot be imported without Triton
SOFTPLUS, SHIFTED = 0, 1
_HOST, _GIVEN, _COUNTED, _LATE = 0, 1, 2, 3
_DRAWN, _STORED = 1, 2
_INSIDE, _SUMMED = 1, 2
_BLOCK, _FLAT, _ROW = 0, 1, 2

# where kernels are that are not in `pairs`
_MODULES = dict(count="targets", rows="targets", partials="margins", settled="margins", gradient="margins")
_MODULES |= dict(pick="block", slopes="block", put="block", update="block_update", settle="block_update")

# cells of a tile, warps of a program, programs on a multiprocessor:
_TILE = 2048
_WIDEST, _NARROWEST = 1024, 128  # labels of a tile of several rows
_WARPS, _PROGRAMS = 4, 8
_FLAT_WARPS = 8  # where nothing goes by label
_LONG = 2048  # labels from which on a row is cut into tiles of its own:
_ROW_TILE, _ROW_WARPS, _ROW_PROGRAMS = 1024, 8, 8
_DRAWN_TILE, _DRAWN_WARPS, _DRAWN_PROGRAMS, _DRAWN_CHUNKS = 1024, 4, 16, 2  # with masks drawn; programs a row, at least
_SUM_TILE, _SUM_WARPS, _SUM_PROGRAMS = 2048, 2, 16  # where only targets are read, for the sums of rows
_COUNT_TILE, _COUNT_WARPS, _COUNT_PROGRAMS = 8192, 8, 8  # where only targets are read, for the number of known labels
_TASKS = 64  # tiles after which one more program is better than one more tile
_MOST_PROGRAMS = 16384  # as many as `pairs.ROOM`
_FEW = 32768  # cells that every program may count by itself
_SMALL = 1 << 23  # cells whose gradient may as well be multiplied by the upstream one, and divided only then


class KernelPair(NamedTuple):
    """A pair as the kernel knows it.

    SOFTPLUS: ℓ₊ = c₊ f(−k₊(z − b₊)), ℓ₋ = c₋ f(k₋(z − b₋)) with f(x) = σ(x)^γ softplus(x) − h x; `shifts`, float32,
    holds class-wise b₊ and b₋ (2, L), or both in one (1, L). SHIFTED: the asymmetric loss with a margin m > 0, whose
    logit is `edge`.
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


class KernelCells(NamedTuple):
    """The coefficients a, b (B, L) of every cell, which cells count (bool, None: all), whether a or b is always 0."""

    a: Tensor
    b: Tensor
    counted: Tensor | None
    sided: bool


class KernelRule(NamedTuple):
    """A rule for unknown labels: ignored, or negatives of weight `unknown` beside known ones of weight `negative`."""

    assumed: bool = False
    negative: float = 1.0
    unknown: float = 0.0


IGNORED = KernelRule()


class KernelRebalanced(NamedTuple):
    """The weight α + σ(β(r − μ)), r = inverse_c / Σ_j present_j inverse_j, of every label; `inverse` (L,) float32."""

    inverse: Tensor
    alpha: float
    beta: float
    mu: float


class Mask(NamedTuple):
    """PLM's mask: thresholds (2, L), int32, to draw it with, or with `stored` the epoch's masks (N, L), bool.

    A label is kept where the whole number 2²⁴ u is below its threshold ⌈2²⁴ · keep-probability⌉, of positives first.

    `items` (B,) are the items' numbers; without it they are first_item, first_item + 1, …
    """

    keep: Tensor
    items: Tensor | None = None
    stored: bool = False
    seed: int = 0
    epoch: int = 0
    first_item: int = 0


class _LaunchArgs(NamedTuple):
    """All but logits that a launch needs, and the same loss by plain means, for second derivatives."""

    pair: KernelPair
    given: Tensor | KernelCells
    rule: KernelRule
    each: bool
    divisor: Tensor | float | None
    weight: Tensor | None
    rebalanced: KernelRebalanced | None
    mask: Mask | None
    plain: Callable[[Tensor], Tensor]
    drawn: Tensor | None
    """Σ_j present_j inverse_j of every row, where a row is more than one tile."""


def takes(logits: Tensor) -> bool:
    """Return whether the kernels can do these logits."""
    return logits.dtype in DTYPES and logits.numel() > 0


def value(
    logits: Tensor,
    given: Tensor | KernelCells,
    pair: KernelPair,
    plain: Callable[[Tensor], Tensor],
    *,
    each: bool = False,
    divisor: Tensor | float | None = None,
    rule: KernelRule = IGNORED,
    weight: Tensor | None = None,
    rebalanced: KernelRebalanced | None = None,
    mask: Mask | None = None,
) -> Tensor:
    """Return Σ (a ℓ₊ + b ℓ₋) / divisor, or with `each` the cells (B, L), float32.

    Args:
        logits: (B, L), any strides, a dtype of `DTYPES`.
        given: targets (B, L) of any dtype (1, 0, soft, −1 unknown), or the cells themselves.
        pair: ℓ₊ and ℓ₋.
        plain: the same loss of logits by differentiable means, for second derivatives.
        each: return every cell.
        divisor: a number, or one on the device; None: the number of known labels, at least 1.
        rule: what unknown labels are.
        weight: (B, L), any strides, multiplies each label's term.
        rebalanced: weights that follow from the targets, computed inside.
        mask: of PLM.
    """
    if isinstance(given, Tensor) and given.dtype == torch.bool:
        given = given.view(torch.uint8)
    drawn, n_labels = None, logits.shape[1]
    if each:
        divisor = 1.0
    is_one_tile = n_labels < _LONG and (n_labels <= _NARROWEST or _tile(n_labels)[1] >= n_labels)
    if rebalanced is not None and not is_one_tile:
        drawn, divisor = _summed(given, rule, rebalanced, divisor)
    elif divisor is None:
        divisor = _n_counted(given, rule, logits)
    return _apply(logits, _LaunchArgs(pair, given, rule, each, divisor, weight, rebalanced, mask, plain, drawn))


class _Fused(torch.autograd.Function):
    """The kernel as a function of logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, job: _LaunchArgs) -> Tensor:
        out = logits.new_empty(logits.shape if job.each else (), dtype=torch.float32)
        grad = None
        if ctx.needs_input_grad[0] and not job.each:
            grad = torch.empty_like(logits, memory_format=torch.contiguous_format)
        ctx.late = torch.empty_like(out) if job.divisor is None and _is_late(logits) else None
        _launch(logits, job, out=out, grad=grad, late=ctx.late)
        ctx.save_for_backward(logits, grad)
        ctx.job = job
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        logits, grad = ctx.saved_tensors
        job: _LaunchArgs = ctx.job
        if torch.is_grad_enabled():  # second derivatives are wanted: leave it to automatic differentiation
            (second,) = torch.autograd.grad(job.plain(logits), logits, upstream, create_graph=True)
            return second, None
        again = grad is None or torch._C._autograd._get_current_graph_task_keep_graph()
        if ctx.late is not None:
            out = torch.empty_like(grad) if again else grad
            _scale(grad, out, upstream, ctx.late)
            return out, None
        if grad is not None and grad.dtype == torch.float32 and grad.numel() <= _SMALL:
            return grad * upstream if again else grad.mul_(upstream), None
        if again:
            grad = torch.empty_like(logits, memory_format=torch.contiguous_format)
        _launch(logits, job, grad=grad, upstream=upstream, skip=not again)
        return grad, None


_apply: Callable[[Tensor, _LaunchArgs], Tensor] = super(torch.autograd.Function, _Fused).apply
"""`_Fused.apply` without its look at functorch's transforms, under which nothing is fused."""


def _is_late(logits: Tensor) -> bool:
    """Return whether known labels are counted while the loss is, and the backward pass then divides by their number."""
    return logits.dtype == torch.float32 and _FEW < logits.numel() <= _SMALL


def _scale(grad: Tensor, out: Tensor, upstream: Tensor, inverse: Tensor) -> None:
    """Write upstream · inverse · grad into `out`."""
    n, device = grad.numel(), grad.device
    plan = _plan(("scaled", device.index, n), lambda: _Launch("scaled", -(-n // _TILE), (n,), (_TILE,), _FLAT_WARPS))
    _run(plan, device, (grad, out, upstream, inverse), plan.arguments(()))


def _n_counted(given: Tensor | KernelCells, rule: KernelRule, logits: Tensor) -> Tensor | float | None:
    """Return the number of labels that count; None where it is best counted on the way."""
    if isinstance(given, KernelCells):
        return float(given.a.numel()) if given.counted is None else given.counted.sum().clamp_min(1)
    if rule.assumed or given.dtype == torch.uint8:
        return float(given.numel())
    if _is_late(logits):
        return None
    if not given.is_contiguous():
        return (given != -1).sum().clamp_min(1)
    if given.numel() <= _FEW:
        return None
    out = torch.empty(1, dtype=torch.float32, device=given.device)
    words = _in_words(given)

    def make() -> _Launch:
        programs = _n_programs(-(-given.numel() // _COUNT_TILE), given.device, _COUNT_PROGRAMS)
        return _Launch("count", programs, (given.numel(),), (words, _COUNT_TILE), _COUNT_WARPS)

    plan = _plan(("count", given.device.index, given.dtype, given.numel(), words), make)
    _run(plan, given.device, (given, out, *_workspace(given.device)), plan.arguments(()))
    return out


def _in_words(given: Tensor) -> bool:
    """Return whether targets can be read four at a time: of a byte, side by side, from an aligned address on."""
    return given.element_size() == 1 and given.stride(1) == 1 and given.data_ptr() % 16 == 0


def _summed(
    given: Tensor | KernelCells, rule: KernelRule, rebalanced: KernelRebalanced, divisor: Tensor | float | None
) -> tuple[Tensor, Tensor | float | None]:
    """Return what re-balanced weights need of every row, and the divisor: the number of labels that count if None."""
    assert isinstance(given, Tensor), "weights follow from targets"
    counts = divisor is None and not rule.assumed and given.dtype != torch.uint8
    if divisor is None and not counts:
        divisor = float(given.numel())
    drawn = torch.empty(given.shape[0], dtype=torch.float32, device=given.device)
    out = torch.empty(1, dtype=torch.float32, device=given.device)
    words = _in_words(given)
    key = ("rows", given.device.index, given.dtype, given.shape, given.stride(), counts, words)

    def make() -> _Launch:
        n_rows, n_labels = given.shape
        grain = 16 if words else 16 // given.element_size() if given.stride(1) == 1 and given.element_size() > 1 else 1
        programs = _n_programs(n_rows, given.device, _SUM_PROGRAMS)
        return _Launch("rows", programs, (n_rows, n_labels, *given.stride()), (counts, grain, _SUM_TILE), _SUM_WARPS)

    plan = _plan(key, make)
    tensors = (given, rebalanced.inverse, drawn, out, *_workspace(given.device))
    _run(plan, given.device, tensors, plan.arguments(()))
    return drawn, out if counts else divisor


class _Launch:
    """The constants of a launch and, once launched, the kernel compiled for it."""

    def __init__(
        self,
        kernel: str,
        programs: int,
        whole: tuple[int, ...],
        fixed: tuple[float, ...],
        warps: int,
        registers: int | None = None,
    ) -> None:
        self.kernel, self.programs, self.whole, self.fixed, self.warps = kernel, programs, whole, fixed, warps
        self.registers = registers
        """Maximum registers of a thread; None leaves it to the compiler."""
        self.compiled: Any = None
        self.last: tuple[tuple[float, ...], tuple[float, ...]] | None = None
        """Numbers of the previous launch, and all its arguments besides tensors."""

    def arguments(self, numbers: tuple[float, ...]) -> tuple[float, ...]:
        """Return the arguments of a launch besides tensors: mostly those of the launch before."""
        last = self.last
        if last is None or last[0] != numbers:
            self.last = last = numbers, (*self.whole, *numbers, *self.fixed)
        return last[1]


_plans: dict[tuple[object, ...], _Launch] = {}


def _plan(key: tuple[object, ...], make: Callable[[], _Launch]) -> _Launch:
    """Return the plan of `key`, made at the first call."""
    plan = _plans.get(key)
    if plan is None:
        if len(_plans) >= 1024:
            _plans.clear()
        plan = _plans[key] = make()
    return plan


def _launch(
    logits: Tensor,
    job: _LaunchArgs,
    out: Tensor | None = None,
    grad: Tensor | None = None,
    upstream: Tensor | None = None,
    skip: bool = False,
    late: Tensor | None = None,
) -> None:
    """Launch the kernel: forward with `out`, backward with `upstream`.

    `late` takes 1 over the number of known labels. With `skip` nothing is done where `upstream` is 1.
    """
    given, pair, mask, rebalanced = job.given, job.pair, job.mask, job.rebalanced
    divisor = job.divisor if isinstance(job.divisor, Tensor) else late
    targets, b, counted, sided = given if isinstance(given, KernelCells) else (given, None, None, None)
    keep, items = (None, None) if mask is None else mask[:2]
    inverse = None if rebalanced is None else rebalanced.inverse
    beside = (b, counted, job.weight, pair.shifts, inverse, job.drawn, keep, items, upstream, divisor)
    key = (
        logits.device.index, logits.shape, logits.dtype, logits.stride(), targets.dtype, targets.stride(), pair[:9],
        job.rule, job.each, job.divisor is None, sided, mask is not None and mask.stored, out is None, grad is None,
        skip, *[None if part is None else (part.dtype, part.stride()) for part in beside],
    )  # fmt: skip
    plan = _plan(key, lambda: _planned(logits, job, targets, grad is not None, upstream, skip, late is not None))
    parts, counter = (None, None) if out is None or job.each else _workspace(logits.device)
    if counted is not None:
        counted = counted.contiguous().view(torch.uint8)
    if keep is not None and keep.dtype == torch.bool:
        keep = keep.view(torch.uint8)
    tensors = (
        logits, targets, b, counted, job.weight, pair.shifts, inverse, job.drawn, keep, items, upstream, divisor, grad,
        out, parts, counter,
    )  # fmt: skip
    number = 1.0 if divisor is not None or job.divisor is None else float(job.divisor)
    balance = (0.0, 1.0, 0.0) if rebalanced is None else rebalanced[1:]
    numbers = (job.rule.negative, job.rule.unknown, number, *balance, *_words(mask))
    _run(plan, logits.device, tensors, plan.arguments(numbers))


def _planned(
    logits: Tensor, job: _LaunchArgs, targets: Tensor, slope: bool, upstream: Tensor | None, skip: bool, late: bool
) -> _Launch:
    """Return how the matrix is cut into tiles, and what the kernel is compiled for."""
    n_rows, n_labels = logits.shape
    pair, mask, weight, device = job.pair, job.mask, job.weight, logits.device
    if isinstance(job.given, KernelCells):
        b, holes, sided = job.given.b, job.given.counted is not None, job.given.sided
    else:
        b, holes, sided = logits, targets.dtype != torch.uint8, not targets.is_floating_point()
    up = 0 if upstream is None else 1 if upstream.ndim == 0 else 2
    lies = not isinstance(job.given, KernelCells) and up != 2 and logits.is_contiguous() and targets.is_contiguous()
    shape = _BLOCK
    if lies and all(part is None for part in (weight, job.rebalanced, mask, pair.shifts)):
        shape = _FLAT
    elif lies and n_labels >= _LONG:
        shape = _ROW
    z_row, z_col, t_row, t_col = *logits.stride(), *targets.stride()
    w_row, w_col = (0, 0) if weight is None else weight.stride()
    u_row, u_col = upstream.stride() if upstream is not None and up == 2 else (0, 0)
    drawn = mask is not None and not mask.stored
    warps = (_WARPS, _FLAT_WARPS, _DRAWN_WARPS if drawn else _ROW_WARPS)[shape]
    programs = (_PROGRAMS, _PROGRAMS, _DRAWN_PROGRAMS if drawn else _ROW_PROGRAMS)[shape]
    chunks, tiles = 1, 1
    if shape == _FLAT:
        rows, columns = 1, _TILE
        n_rows, n_labels, z_row, z_col, t_row, t_col = 1, n_rows * n_labels, 0, 1, 0, 1
        tasks = -(-n_labels // columns)
    else:
        rows, columns = (1, _DRAWN_TILE if drawn else _ROW_TILE) if shape == _ROW else _tile(n_labels)
        blocks = -(-n_rows // rows)
        least = _DRAWN_CHUNKS if shape == _ROW and drawn else 1
        chunks = min(max(least, _room(device, programs) // blocks), -(-n_labels // columns))
        tiles = -(-n_labels // (chunks * columns))
        chunks = -(-n_labels // (tiles * columns))
        tasks = blocks * chunks
    if shape == _ROW:  # a mask is drawn four labels at a time, which must be those that are read together
        grain = math.gcd(n_labels, 4) if drawn else 4
    else:
        grain = math.gcd(n_labels, z_row, t_row, w_row, 16)
    whole = (
        n_rows, n_labels, tasks, chunks, tiles, z_row, z_col, t_row, t_col, *b.stride(), w_row, w_col, u_row,
        u_col,
    )  # fmt: skip
    balance = 0 if job.rebalanced is None else _INSIDE if job.drawn is None else _SUMMED
    fixed = (
        pair.kind, *pair.slope, *pair.scale, *pair.shift, *pair.gamma, pair.detach, pair.smoothing, pair.margin,
        *pair.edge, sided, isinstance(job.given, KernelCells), holes, job.rule.assumed,
        0 if pair.shifts is None else len(pair.shifts), weight is not None, balance,
        0 if mask is None else _STORED if mask.stored else _DRAWN,
        mask is not None and mask.items is not None,
        _LATE if late else _COUNTED if job.divisor is None else _GIVEN if isinstance(job.divisor, Tensor) else _HOST,
        job.each, slope, up, skip, shape, grain, rows, columns,
    )  # fmt: skip
    return _Launch("loss", _n_programs(tasks, device, programs), whole, fixed, warps)


def _run(plan: _Launch, device: torch.device, tensors: tuple[Tensor | None, ...], rest: tuple[float, ...]) -> None:
    """Launch; where all addresses are multiples of 16, what a plan was compiled to is launched directly."""
    pointers, bits = [], 0
    for x in tensors:
        pointer = 0 if x is None else x.data_ptr()
        bits |= pointer
        pointers.append(pointer)
    aligned = bits & 15 == 0
    if aligned and plan.compiled is not None and device.index == torch._C._cuda_getDevice():
        plan.compiled(torch._C._cuda_getCurrentRawStream(device.index), (*pointers, *rest))
        return
    kernel = getattr(import_module(f"steelyard.kernels.{_MODULES.get(plan.kernel, 'pairs')}"), plan.kernel)
    grid = (plan.programs, 1, 1)
    given = [tensors[0] if x is None else x for x in tensors]  # arguments that a kernel does not read must be something
    if device.type == "cpu":
        kernel[grid](*given, *rest)
        return
    with torch.cuda.device(device):
        made = kernel[grid](*given, *rest, num_warps=plan.warps, maxnreg=plan.registers)
    if aligned:
        plan.compiled = _launcher(made, grid)


def _launcher(made: Any, grid: tuple[int, int, int]) -> Callable[[int, tuple[float, ...]], None]:
    """Return how a compiled kernel is launched; without launch hooks, they are skipped."""
    import triton
    from triton import knobs

    by_triton = made[grid]
    if not triton.__version__.startswith("3.6."):
        return lambda stream, arguments: by_triton(*arguments, stream=stream)
    before, after = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    run, function, metadata = made.run, made.function, made.packed_metadata

    def launch(stream: int, arguments: tuple[float, ...]) -> None:
        if before.calls or after.calls:
            by_triton(*arguments, stream=stream)
        else:
            run(*grid, stream, function, metadata, None, None, None, *arguments)

    return launch


_workspaces: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
_multiprocessors: dict[int, int] = {}


def _workspace(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return room for the programs' sums and counts, and a counter that is 0, of this stream's own."""
    if device.type == "cpu" or torch._C._cuda_isCurrentStreamCapturing():  # a graph may run beside any stream
        return _new_workspace(device)
    key = (device.index, torch._C._cuda_getCurrentRawStream(device.index))
    workspace = _workspaces.get(key)
    if workspace is None:
        workspace = _workspaces[key] = _new_workspace(device)
    return workspace


def _new_workspace(device: torch.device) -> tuple[Tensor, Tensor]:
    parts = torch.empty(2 * _MOST_PROGRAMS, dtype=torch.float64, device=device)
    return parts, torch.zeros(1, dtype=torch.int32, device=device)


def _n_programs(tasks: int, device: torch.device, each: int) -> int:
    """Return how many programs share `tasks` tiles, with `each` on a multiprocessor."""
    return min(tasks, max(_room(device, each), min(_MOST_PROGRAMS, tasks // _TASKS)))


def _room(device: torch.device, each: int) -> int:
    """Return how many programs there are at once, with `each` on a multiprocessor."""
    if device.type == "cpu":
        return 3  # the interpreter: each has several tiles
    if device.index not in _multiprocessors:
        _multiprocessors[device.index] = torch.cuda.get_device_properties(device).multi_processor_count
    return each * _multiprocessors[device.index]


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


def _words(mask: Mask | None) -> tuple[int, ...]:
    """Return seed, epoch and first item of a mask as the kernels take them."""
    if mask is None:
        return (0, 0, 0, 0, 0)
    seed, first = mask.seed, mask.first_item
    return _word(seed), _word(seed >> 32), _word(mask.epoch), _word(first), _word(first >> 32)
