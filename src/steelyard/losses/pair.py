"""A loss is a pair of partial losses of the logit, ℓ₊(z) and ℓ₋(z); its probability follows from the pair."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from steelyard.kernels import fused
from steelyard.kernels.choice import fuses
from steelyard.kernels.compiled import compiled, compiles
from steelyard.labels.targets import ArrayLike, as_tensor, refuse
from steelyard.losses.loss import Cells, Loss, LossBatch, NoLink, Reduction, compute_dtype


class PairLoss(Loss):
    """A loss given by the cost of a present label, ℓ₊, and of an absent one, ℓ₋.

    Its probability is the derived link, the η at which the conditional risk is stationary.

    Formula:
        risk(z) = w₊ η ℓ₊(z) + w₋ (1 − η) ℓ₋(z)
        log η/(1 − η) = log ℓ₋′(z) − log(−ℓ₊′(z)) + log w₋/w₊

    `eta_range` is the open interval of η that the link reaches with equal weights.

    Args:
        n_labels: L where the loss has class-wise constants, else None.
        reduction: "mean" (Σ w·ℓ over the number of known labels), "item" (sum over labels, mean over items), "sum" or
            "none" (B, L).
        validate: check target values on CUDA too.

    Examples:
        >>> loss, z = sy.losses.SPA(), torch.zeros(1)
        >>> isinstance(loss, sy.losses.PairLoss)
        True
        >>> loss.probability(z)
        tensor([0.0538])
        >>> loss.probability(z, pos_weight=4.0)  # training counted positives four times: their odds are divided by 4
        tensor([0.0140])
    """

    eta_range: tuple[float, float] = (0.0, 1.0)

    def __init__(self, n_labels: int | None = None, *, reduction: Reduction = "mean", validate: bool = False) -> None:
        super().__init__(n_labels, reduction, validate)
        self._link_checked = False

    @abstractmethod
    def positive(self, z: Tensor) -> Tensor:
        """Return ℓ₊(z), what a present label costs.

        Args:
            z: logits, any shape.
        """

    @abstractmethod
    def negative(self, z: Tensor) -> Tensor:
        """Return ℓ₋(z), what an absent label costs.

        Args:
            z: logits, any shape.
        """

    @abstractmethod
    def link(self, z: Tensor) -> Tensor:
        """Return log ℓ₋'(z) − log(−ℓ₊'(z)), finite for finite z (float32 or float64) and differentiable.

        Args:
            z: logits, any shape.
        """

    def log_odds(
        self,
        z: Tensor,
        pos_weight: ArrayLike | float | None = None,
        neg_weight: ArrayLike | float | None = None,
    ) -> Tensor:
        """Return log η/(1−η) at logits z, given the mean weights w₊, w₋ (scalars or (L,)) that training applied.

        Args:
            z: logits (…, L).
            pos_weight, neg_weight: w₊ and w₋, the mean weights of present and absent labels in training, numbers or
                (L,); None for 1.
        """
        self.check_link()
        out = self.link(_as_float(z))
        if neg_weight is not None:
            out = out + _log_weight("neg_weight", neg_weight, out)
        if pos_weight is not None:
            out = out - _log_weight("pos_weight", pos_weight, out)
        return out

    def probability(
        self,
        z: Tensor,
        pos_weight: ArrayLike | float | None = None,
        neg_weight: ArrayLike | float | None = None,
    ) -> Tensor:
        """Return η at logits z: σ of `log_odds`.

        Args:
            z: logits (…, L).
            pos_weight, neg_weight: w₊ and w₋, the mean weights of present and absent labels in training, numbers or
                (L,); None for 1.
        """
        return torch.sigmoid(self.log_odds(z, pos_weight, neg_weight))

    def check_link(self) -> None:
        """Raise NoLink, once and for all logits, if the link is not monotone: then a logit does not tell η."""
        if self._link_checked or torch.compiler.is_compiling():
            return
        grid = torch.linspace(-30.0, 30.0, 601, dtype=torch.float64, device=self._device())
        labels = self.n_labels or 1
        rows = max(2, 1_000_000 // labels)  # a block at a time: a million labels must fit
        for start in range(0, len(grid) - 1, rows - 1):
            z = grid[start : start + rows]
            falls = self.link(z[:, None].expand(-1, labels)).diff(dim=0) < -1e-9
            if falls.any():
                bend = z[int(falls.any(dim=1).nonzero()[0])].item()
                raise NoLink(
                    f"{type(self).__name__} has no probability: its stationary log-odds fall as z grows beyond "
                    f"{bend:.1f}, so several η share a logit; fit a calibrator instead"
                )
        self._link_checked = True

    def _device(self) -> torch.device:
        return next((t.device for t in (*self.parameters(), *self.buffers())), torch.device("cpu"))

    def _plain(self, logits: Tensor, cells: Cells, divisor: Tensor | float) -> Tensor:
        """Return the reduced loss by automatic differentiation through ℓ₊ and ℓ₋."""
        z = logits.to(compute_dtype(logits))
        if cells.counted is not None:
            z = torch.where(cells.counted, z, 0)
        cost = cells.a * self.positive(z) + cells.b * self.negative(z)
        return cost if self.reduction == "none" else cost.sum() / divisor


_COMPUTING = {"sided", "positive", "negative", "cost_and_slope", "amount", "divisor"}
_COMPUTING |= {"forward", "evaluate", "evaluate_batch"}
"""The methods of a loss that a kernel stands for."""


class AnalyticLoss(PairLoss):
    """A pair that knows its derivatives: value and gradient come from one pass, one (B, L) tensor is kept.

    A pair that also tells the fused kernels what it is (`kernel`) goes through them on a GPU.

    Args:
        n_labels: L where the loss has class-wise constants, else None.
        reduction: "mean" (Σ w·ℓ over the number of known labels), "item" (sum over labels, mean over items), "sum" or
            "none" (B, L).
        validate: check target values on CUDA too.

    Examples:
        >>> loss, z = sy.losses.Focal(), torch.tensor(0.5, requires_grad=True)
        >>> value, slope = loss.sided(z, 1.0)
        >>> torch.allclose(slope, *torch.autograd.grad(loss.positive(z), z))  # its slope is the derivative of ℓ₊
        True
    """

    def __init_subclass__(cls) -> None:
        """Remove the inherited kernel from a class that changes the computation and has no kernel of its own."""
        super().__init_subclass__()
        if _COMPUTING & vars(cls).keys() and "kernel" not in vars(cls):
            cls.kernel = AnalyticLoss.kernel  # type: ignore[method-assign]

    def kernel(self) -> fused.KernelPair | None:
        """Return this pair as the fused kernels know it, None if they do not."""
        return None

    @abstractmethod
    def sided(self, z: Tensor, side: Tensor | float) -> tuple[Tensor, Tensor]:
        """Return the partial loss at z and its derivative as training sees it: ℓ₊, ℓ₊' where side is 1, else ℓ₋, ℓ₋'.

        z is float32 or float64, `side` 0 or 1 (a number, or a tensor like z). The value is differentiable too.

        Args:
            z: logits, float32 or float64.
            side: 1 or 0, a number or a tensor like z.
        """

    def positive(self, z: Tensor) -> Tensor:
        """Return ℓ₊(z), what a present label costs."""
        return self.sided(_as_float(z), 1.0)[0]

    def negative(self, z: Tensor) -> Tensor:
        """Return ℓ₋(z), what an absent label costs."""
        return self.sided(_as_float(z), 0.0)[0]

    def kernel_for(self, logits: Tensor) -> fused.KernelPair | None:
        """Return the pair for the fused kernels, None where they are not for this loss or these logits."""
        return self.kernel() if fuses(logits.device) and fused.takes(logits) else None

    def evaluate_batch(self, logits: Tensor, batch: LossBatch, divisor: Tensor | float | None = None) -> Tensor:
        """Return the reduced loss of `batch`, by one launch where the fused kernels know all that is in it."""
        pair = self.kernel_for(logits)
        if pair is None or batch.rule is None or (batch.weights is None) != (batch.rebalanced is None):
            return super().evaluate_batch(logits, batch, divisor)
        if divisor is None and self.reduction != "mean":  # the kernels count known labels
            divisor = self.divisor(logits.shape, Cells(logits, logits))
        return fused.value(
            logits,
            batch.targets.values,
            pair,
            lambda z: _plainly(self, z, batch, divisor),
            each=self.reduction == "none",
            divisor=divisor,
            rule=batch.rule,
            weight=None if batch.weight is None else batch.weight.expand(logits.shape),
            rebalanced=batch.rebalanced,
            mask=batch.mask,
        )

    def evaluate(self, logits: Tensor, cells: Cells, divisor: Tensor | float | None = None) -> Tensor:
        """Return the reduced loss of `cells`; `divisor` replaces the one that the reduction implies."""
        divisor = self.divisor(logits.shape, cells) if divisor is None else divisor
        pair = self.kernel_for(logits)
        if pair is not None:
            given = fused.KernelCells(cells.a, cells.b, cells.counted, cells.side is not None)
            each, known_divisor = self.reduction == "none", divisor
            return fused.value(
                logits, given, pair, lambda z: self._plain(z, cells, known_divisor), each=each, divisor=divisor
            )
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():  # they trace plain code
            return self._plain(logits, cells, divisor)
        out: Tensor = _OnePass.apply(logits, self, cells, divisor)  # type: ignore[no-untyped-call]
        return out

    def cost_and_slope(self, z: Tensor, cells: Cells, out: Tensor | None) -> Tensor:
        """Return a ℓ₊ + b ℓ₋ and write a ℓ₊' + b ℓ₋' to `out`, evaluating one side a cell where that is enough."""
        z = cells.inert(z)
        if cells.side is not None:
            value, slope = self.sided(z, cells.side)
            weight = cells.a + cells.b
            if out is not None:
                torch.mul(weight, slope, out=out)
            return weight.mul_(value)
        (up, rise), (down, fall) = self.sided(z, 1.0), self.sided(z, 0.0)
        if out is not None:
            torch.addcmul(cells.a * rise, cells.b, fall, out=out)
        return torch.addcmul(cells.a * up, cells.b, down)


class FormulaLoss(PairLoss):
    """A pair given by two formulas alone: subclass it, write `positive` and `negative` with torch, and that is all.

    Gradients and the link come from automatic differentiation (the link in float64, its log-slopes floored at the
    smallest normal number), and a pair whose link is not monotone is refused when probabilities are asked for. Where
    fused kernels are used, the formulas are compiled with torch.compile, at their first call.

    Args:
        n_labels: L where the loss has class-wise constants, else None.
        reduction: "mean" (Σ w·ℓ over the number of known labels), "item" (sum over labels, mean over items), "sum" or
            "none" (B, L).
        validate: check target values on CUDA too.

    Examples:
        >>> class Squared(sy.losses.FormulaLoss):
        ...     def positive(self, z):
        ...         return (1 - torch.sigmoid(z)) ** 2
        ...     def negative(self, z):
        ...         return torch.sigmoid(z) ** 2
        >>> loss = Squared()
        >>> loss(torch.zeros(1, 2), torch.tensor([[1, -1]]))
        tensor(0.2500)
        >>> loss.probability(torch.tensor([0.0, 2.0]))  # a proper loss of σ(z): its link is σ
        tensor([0.5000, 0.8808])
    """

    def link(self, z: Tensor) -> Tensor:
        """Return log ℓ₋'(z) − log(−ℓ₊'(z)) from the gradients of the two formulas."""
        keep = z.requires_grad and torch.is_grad_enabled()
        with torch.enable_grad():
            x = z.to(torch.float64) if keep else z.detach().to(torch.float64).requires_grad_()
            (up,) = torch.autograd.grad(self.negative(x).sum(), x, create_graph=keep)
            (down,) = torch.autograd.grad(self.positive(x).sum(), x, create_graph=keep)
        tiny = torch.finfo(torch.float64).tiny
        return (torch.log(up.clamp_min(tiny)) - torch.log((-down).clamp_min(tiny))).to(z.dtype)

    def evaluate_batch(self, logits: Tensor, batch: LossBatch, divisor: Tensor | float | None = None) -> Tensor:
        """Return the reduced loss of `batch`, compiled as a whole where it is targets and weights alone."""
        if compiles(logits.device) and batch.resolve is None and batch.weights is None:
            return compiled(_plainly, self, logits, batch, divisor)
        return super().evaluate_batch(logits, batch, divisor)

    def evaluate(self, logits: Tensor, cells: Cells, divisor: Tensor | float | None = None) -> Tensor:
        """Return the reduced loss of `cells`; `divisor` replaces the one that the reduction implies."""
        divisor = self.divisor(logits.shape, cells) if divisor is None else divisor
        if not compiles(logits.device):
            return self._plain(logits, cells, divisor)
        cost = compiled(type(self)._plain, self, logits, cells, 1.0)
        return cost if self.reduction == "none" else cost / divisor


def _plainly(loss: PairLoss, logits: Tensor, batch: LossBatch, divisor: Tensor | float | None) -> Tensor:
    """Return the loss of a batch without kernels, by automatic differentiation."""
    cells = batch.cells(compute_dtype(logits))
    return loss._plain(logits, cells, loss.divisor(logits.shape, cells) if divisor is None else divisor)


class _OnePass(torch.autograd.Function):
    """Σ (a ℓ₊ + b ℓ₋) / divisor, or the cells themselves, with its gradient computed on the way.

    On a CPU it goes through the batch in blocks of rows whose temporaries stay in the cache.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, loss: AnalyticLoss, cells: Cells, divisor: Tensor | float) -> Tensor:
        each, slope, parts = loss.reduction == "none", None, []
        dtype = compute_dtype(logits)
        cost = torch.empty(logits.shape if each else (), dtype=dtype, device=logits.device)
        if ctx.needs_input_grad[0]:
            slope = torch.empty(logits.shape, dtype=dtype, device=logits.device)
        for rows in _blocks(logits):
            out = None if slope is None else slope[rows]
            part = loss.cost_and_slope(logits[rows].to(dtype), cells.rows(rows), out)
            if each:
                cost[rows] = part
            else:
                parts.append(part.sum())
        ctx.save_for_backward(slope, logits)
        ctx.loss, ctx.cells, ctx.divisor = loss, cells, divisor
        return cost if each else torch.stack(parts).sum() / divisor if parts else cost.zero_()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        slope, logits = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives: by automatic differentiation
            value = ctx.loss._plain(logits, ctx.cells, ctx.divisor)
            (grad,) = torch.autograd.grad(value, logits, upstream, create_graph=True)
            return grad, None, None, None
        return (slope * (upstream / ctx.divisor)).to(logits.dtype), None, None, None


def _blocks(logits: Tensor) -> list[slice]:
    """Return the blocks of rows to go through: all at once on a device, some 64,000 cells per thread on a CPU."""
    n_rows, n_labels = logits.shape
    if logits.device.type != "cpu":
        return [slice(0, n_rows)]
    step = max(1, 65536 * torch.get_num_threads() // max(n_labels, 1))
    return [slice(start, start + step) for start in range(0, n_rows, step)]


def _as_float(z: Tensor) -> Tensor:
    if not isinstance(z, Tensor) or not z.is_floating_point():
        raise ValueError(f"z is {z.dtype if isinstance(z, Tensor) else type(z).__name__}: give a floating-point tensor")
    return z.to(compute_dtype(z))


def _log_weight(name: str, weight: ArrayLike | float, like: Tensor) -> Tensor | float:
    if isinstance(weight, int | float):
        if not 0 < weight < math.inf:
            raise ValueError(f"{name} is {weight}: a class weight is positive and finite")
        return math.log(weight)
    w = as_tensor(weight).to(like.device, torch.float64)
    if w.ndim > 1 or (w.ndim == 1 and w.shape[0] != like.shape[-1]):
        raise ValueError(f"{name} has shape {tuple(w.shape)}: give a number or one for each of {like.shape[-1]} labels")
    if w.device.type == "cpu" and not torch.compiler.is_compiling():
        refuse(~((w > 0) & (w < math.inf)), name, w, "a class weight is positive and finite")
    return torch.log(w).to(like.dtype)
