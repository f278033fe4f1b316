"""A linear head for millions of labels: logits exist one block of labels at a time, and weights move on the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from steelyard.balance.label_pair import LabelPair
from steelyard.balance.processes import summed
from steelyard.kernels.block_launch import DTYPES, Listed, slopes_
from steelyard.kernels.choice import fuses
from steelyard.losses.pair import PairLoss
from steelyard.losses.partial_annotation import LOW, Annotation
from steelyard.models.block import parallel
from steelyard.models.block.annotation import BlockAnnotation
from steelyard.models.block.pairs import BlockPairs
from steelyard.models.block.parallel import share_of_labels
from steelyard.models.block.sparse import SparseTargets
from steelyard.models.block.steps import BlockOptimizer, Moments
from steelyard.models.block.sums import note_weights
from steelyard.models.block.terms import checked, plain_slopes_, terms_of
from steelyard.objective import Objective
from steelyard.objective.objective import Value

BLOCK = 262_144
"""Labels per block: fewer make its products slower, more take more memory."""
_CPU_CELLS = 1 << 18  # of a block on a CPU, where what does not fit its cache takes twice as long
_BLOCK_OF_MOST = 65_536  # labels at a time where only the largest logit is looked for, in float32
_NOTE_EVERY = 32  # steps from one batch whose class weights are noted to the next: they are means over an epoch


class BlockHead(nn.Module):
    """z = W f + b over blocks of labels: the logits of all labels are never in memory at once.

    `step` goes through the blocks once. It replaces each block's logits by the slopes of the objective, computes the
    gradients of features and weights from them, and lets the optimizer update these weights before the next block. The
    result equals a plain linear layer and its optimizer up to rounding. Peak memory beyond weights and optimizer states
    is about B × `block` numbers.

    The weights do not belong to a torch optimizer. A bottleneck V, if there is one, is an ordinary layer that does.

    Args:
        n_features: F.
        n_labels: L.
        bottleneck: width of a linear layer between features and weights; None for none.
        optimizer: how weights are updated.
        block: labels per block, a multiple of 4.
        split: in a process group, keep only this process's share of the labels (see `parallel`). Each process passes
            its own items and gets the objective of all; gradients of features must be averaged over processes, as
            DistributedDataParallel does.
        dtype: dtype of weights, logits and slopes; sums and the bias are float32.
        device: device of the weights.
    Examples:
        >>> head = sy.models.BlockHead(n_features=2, n_labels=3, dtype=torch.float32)
        >>> head.start_at(torch.tensor([0.0, -1.0, -2.0]))
        >>> head.logits(torch.ones(1, 2), slice(0, 3)).tolist()
        [[0.0, -1.0, -2.0]]
    """

    def __init__(
        self,
        n_features: int,
        n_labels: int,
        *,
        bottleneck: int | None = None,
        optimizer: BlockOptimizer | None = None,
        block: int = BLOCK,
        split: bool = False,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("n_features", n_features), ("n_labels", n_labels), ("bottleneck", bottleneck or 1)):
            if size < 1:
                raise ValueError(f"{name} is {size}: it must be at least 1")
        if block < 4 or block % 4:
            raise ValueError(f"block is {block}: give a multiple of 4")
        if dtype not in (torch.float64, *DTYPES):
            raise ValueError(f"dtype is {dtype}: choose torch.bfloat16, torch.float32 or torch.float64")
        self.n_features, self.n_labels, self.block = n_features, n_labels, block
        self.share = share_of_labels(n_labels) if split else slice(0, n_labels)
        """The labels whose weights are here; the bias has room for all."""
        width = n_features if bottleneck is None else bottleneck
        self.first = nn.Identity() if bottleneck is None else nn.Linear(n_features, bottleneck, device=device)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        n_here = self.share.stop - self.share.start
        self.weight = nn.Parameter(torch.empty(n_here, width, dtype=dtype, device=device), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(n_labels, dtype=wide, device=device), requires_grad=False)
        nn.init.normal_(self.weight, std=0.01)
        self.moments = Moments(self.weight, self.bias, optimizer or BlockOptimizer(), self.share.start)

    @torch.no_grad()
    def start_at(self, bias: Tensor) -> None:
        """Start with the logits `bias` (L,) for every item: the weights become 0."""
        self.weight.zero_()
        self.bias.copy_(bias)

    def blocks(self, size: int | None = None) -> Iterator[slice]:
        """Yield the blocks of this process's labels in order."""
        size = size or self.block
        for start in range(self.share.start, self.share.stop, size):
            yield slice(start, min(start + size, self.share.stop))

    def weights_of(self, labels: slice) -> Tensor:
        """Return the weights (n, D) of some labels of the share."""
        return self.weight[labels.start - self.share.start : labels.stop - self.share.start]

    def logits(self, features: Tensor, labels: slice) -> Tensor:
        """Return the logits (B, n) of some labels, without gradient, float32 (float64 for float64 weights)."""
        with torch.no_grad():
            x = self.first(features).to(self.weight.dtype)
            z = torch.mm(x, self.weights_of(labels).t())
            return z.to(self.bias.dtype) + self.bias[labels]

    def logits_at(self, features: Tensor, rows: Tensor, labels: Tensor, cells: int = 1 << 16) -> Tensor:
        """Return the logits (n,) of single cells, given by row of `features` and label; `cells` of them at a time."""
        with torch.no_grad():
            return self._logits_at(self.first(features).to(self.weight.dtype), rows, labels, cells)

    def _logits_at(self, x: Tensor, rows: Tensor, labels: Tensor, cells: int = 1 << 16) -> Tensor:
        weight, wide = self.weight, self.bias.dtype
        parts = [
            (x[r.long()].to(wide) * weight[c.long() - self.share.start].to(wide)).sum(1)
            for r, c in zip(rows.split(cells), labels.split(cells), strict=True)
        ]
        return torch.cat([self.bias.new_zeros(0), *parts]) + self.bias[labels.long()]

    def optimize_by(self, optimizer: BlockOptimizer) -> None:
        """Switch to another optimizer; states of the previous one are dropped."""
        self.moments = Moments(self.weight, self.bias, optimizer, self.share.start)

    def narrow(self, dtype: torch.dtype) -> None:
        """Keep the weights in another dtype; see the constructor."""
        self.weight.data = self.weight.data.to(dtype)
        self.optimize_by(self.moments.rule)

    def split(self) -> None:
        """Keep only this process's share of the labels, as `split=True` does; states of the optimizer are dropped."""
        self.share = share = share_of_labels(self.n_labels)
        self.weight.data = self.weight.data[share].clone()
        self.optimize_by(self.moments.rule)

    def join(self) -> None:
        """Restore all labels in every process, after `split`; states of the optimizer are dropped."""
        if self.share != slice(0, self.n_labels):
            self.weight.data = parallel.of_all_shares(self.weight.data, self.n_labels)
            self.bias.data = parallel.of_all_shares(self.bias.data[self.share], self.n_labels)
            self.share = slice(0, self.n_labels)
            self.optimize_by(self.moments.rule)

    def whole_state(self) -> dict[str, Tensor]:
        """Return the state_dict of a head that has all labels; every process must call it, and the first gets it."""
        state: dict[str, Tensor] = dict(self.state_dict())
        if self.share == slice(0, self.n_labels):
            return state
        for name, x in state.items():
            if x.ndim and not name.startswith("first."):
                own = x[self.share] if len(x) == self.n_labels else x
                whole = parallel.of_all_shares(own, self.n_labels)
                state[name] = whole.cpu() if self.share.start == 0 else x
        return state

    def load_whole_state(self, state: dict[str, Tensor]) -> None:
        """Load the state that `whole_state` returned, with any number of processes."""
        here = {name: x.shape for name, x in self.state_dict().items()}
        self.load_state_dict({name: x if x.shape == here[name] else x[self.share] for name, x in state.items()})

    def forward(self, features: Tensor) -> Tensor:
        """Return all logits (B, L), of a split head those of its share, without gradient: for as many as fit."""
        return self.logits(features, self.share)

    def value(
        self, features: Tensor, targets: SparseTargets, objective: Objective, index: Tensor | None = None
    ) -> Value:
        """Return the objective of a batch; its gradient flows to the features, and the weights stay."""
        return self._value(features, targets, objective, None, index)

    def step(
        self,
        features: Tensor,
        targets: SparseTargets,
        objective: Objective,
        lr: float,
        index: Tensor | None = None,
    ) -> Value:
        """Return the objective of a batch and move the weights by one step of its gradient.

        `total.backward()` then gives the gradient of the features, to which the step of the weights does not wait.

        Args:
            features: (B, F).
            targets: (B, L), on the same device.
            objective: a loss per label with a rule for unknown labels, masks and weights.
            lr: learning rate.
            index: the items' numbers in the data set (B,), for masks.
        """
        return self._value(features, targets, objective, lr, index)

    def _value(
        self, features: Tensor, targets: SparseTargets, objective: Objective, lr: float | None, index: Tensor | None
    ) -> Value:
        n_items = features.shape[0]
        if targets.shape != (n_items, self.n_labels):
            raise ValueError(
                f"targets has shape {targets.shape}, but {n_items} items and {self.n_labels} labels are here: "
                "give one row per item and one column per label"
            )
        job = _BlockPass(self, targets, objective, checked(objective), lr, index)
        total: Tensor = _Pass.apply(self.first(features), job)  # type: ignore[no-untyped-call]
        return Value(total, {"loss": total})

    def go_through(self, x: Tensor, job: _BlockPass, needs_gradient: bool) -> tuple[Tensor, Tensor | None]:
        """Return the objective and, where features want it, their gradient; see `step`."""
        objective, targets, loss, items, own = job.objective, job.targets, job.loss, job.items, slice(0, x.shape[0])
        whole, bias, moments, share = self.weight, self.bias, self.moments, self.share
        is_split = share != slice(0, self.n_labels)
        if is_split:
            x, targets, items, own = parallel.gathered(x, targets, items)
        x = x.to(whole.dtype)
        pairs = self._pairs(x, targets, job) if objective.regularizers else []
        picks, rule = None, objective.resolver
        if isinstance(rule, Annotation):
            picks = BlockAnnotation(objective, targets, items, share, bias)
            targets, terms = picks.targets, picks.terms(self._all_low(x, rule))
        else:
            terms = terms_of(objective, targets, bias, items)
        scale = 1 / _divisor(loss.reduction, targets, terms.rule.assumed)
        listed = Listed(targets.rows, targets.labels, targets.values)
        kernel = terms.pair is not None and x.dtype != torch.float64 and fuses(x.device)
        gradient, values = None, list[Tensor]()
        penalty = self._penalty(x, pairs)
        if objective.training and moments.n_steps % _NOTE_EVERY == 0:
            note_weights(objective, terms, targets)
        if job.lr is not None:
            moments.begin()
        room = max(4, _CPU_CELLS // max(x.shape[0], 1) // 4 * 4) if x.device.type == "cpu" else self.block
        for labels in self.blocks(min(room, self.block)):
            weight = whole[labels.start - share.start : labels.stop - share.start]
            z = torch.mm(x, weight.t())
            if picks is not None:
                picks.note(z, labels.start)
            extra = [pair.extra(z, bias, labels).mul_(pair.scale / scale) for pair in pairs]
            if kernel:
                sums, costs = slopes_(z, labels.start, terms, listed)
            else:
                sums, costs = plain_slopes_(z, labels.start, terms, targets, loss)
            for part in extra:
                z += part
                sums = torch.cat([sums, part.sum(0, keepdim=True, dtype=sums.dtype)])
            if needs_gradient:
                gradient = _add_product(gradient, z, weight, scale)
            if job.lr is not None:
                moments.step(weight, z, x, labels.start, job.lr, scale)
            values.append(moments.settle(costs, bias[labels], sums, labels.start, job.lr, scale))
            del z  # before there are logits of the next block
        if picks is not None and objective.training:
            picks.remember()
        if not values:  # this process has no labels
            values = [bias.new_zeros(())]
            gradient = torch.zeros(x.shape, dtype=bias.dtype, device=x.device) if needs_gradient else None
        total = values[0] if len(values) == 1 else torch.stack(values).sum()
        if is_split:
            total, gradient = parallel.of_all_labels(total, gradient, own)
        if pairs:
            total = (total + penalty).to(bias.dtype)
        return total, gradient

    def _all_low(self, x: Tensor, rule: Annotation) -> Tensor:
        """Return for which items (B,) all predictions are below .1, if the rule needs that; else for none."""
        if not rule.use_p:
            return torch.zeros(len(x), dtype=torch.bool, device=x.device)
        n_high = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        for labels in self.blocks(_BLOCK_OF_MOST):
            z = torch.mm(x, self.weights_of(labels).t()).to(self.bias.dtype) + self.bias[labels]
            n_high += ~(z.amax(1) < LOW)
        return (summed(n_high) if self.share != slice(0, self.n_labels) else n_high) == 0

    def _pairs(self, x: Tensor, targets: SparseTargets, job: _BlockPass) -> list[BlockPairs]:
        """Return the label-pair regularisers of a batch."""
        parts = [part for part in job.objective.regularizers if isinstance(part, LabelPair)]
        if self.share != slice(0, self.n_labels):
            raise ValueError("label pairs need all labels, but they are split over processes: leave LabelPair out")
        if self.n_labels < 2:
            return []
        present = targets.values > 0
        logits = self._logits_at(x, targets.rows[present], targets.labels[present])
        return [BlockPairs(part, job.loss, targets, logits) for part in parts]

    def _penalty(self, x: Tensor, pairs: list[BlockPairs]) -> Tensor | float:
        """Go through the labels to add up the cost of pairs, and their slopes for each positive."""
        penalty: Tensor | float = 0.0
        for pair in pairs:
            for labels in self.blocks():
                for piece in pair.pieces(labels):
                    z = torch.mm(x, self.weights_of(piece).t()).to(self.bias.dtype) + self.bias[piece]
                    penalty = penalty + pair.slopes(z, piece)[0] * pair.scale
        return penalty


class _BlockPass(NamedTuple):
    """One pass over the blocks: with a learning rate the weights move."""

    head: BlockHead
    targets: SparseTargets
    objective: Objective
    loss: PairLoss
    lr: float | None
    items: Tensor | None


class _Pass(torch.autograd.Function):
    """The objective as a function of features; its gradient comes out of the same pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, job: _BlockPass) -> Tensor:
        total, gradient = job.head.go_through(x, job, ctx.needs_input_grad[0])
        ctx.save_for_backward(gradient)
        ctx.dtype = x.dtype
        return total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return torch.mul(gradient, upstream, out=torch.empty_like(gradient, dtype=ctx.dtype)), None


def _divisor(reduction: str, targets: SparseTargets, assumed: bool) -> float:
    """Return the divisor of the sum over cells: counted cells ("mean"), items ("item"), else 1."""
    n_items, n_labels = targets.shape
    if reduction == "mean":
        return float(n_items * n_labels if assumed else targets.n_known) or 1.0
    return float(n_items) or 1.0 if reduction == "item" else 1.0


def _add_product(total: Tensor | None, slopes: Tensor, weight: Tensor, scale: float) -> Tensor:
    """Return total + scale · slopes @ weight, summed and kept in float32 where both are narrower."""
    narrow = weight.dtype == torch.bfloat16
    beta = 0 if total is None else 1  # at 0 what `total` holds is ignored
    if total is None:
        shape = slopes.shape[0], weight.shape[1]
        total = torch.empty(shape, dtype=torch.float32 if narrow else weight.dtype, device=weight.device)
    if not narrow:
        return torch.addmm(total, slopes, weight, beta=beta, alpha=scale, out=total)
    if weight.is_cuda:
        return torch.addmm(total, slopes, weight, out_dtype=torch.float32, beta=beta, alpha=scale, out=total)
    product = torch.mm(slopes, weight).to(torch.float32).mul_(scale)
    return product if beta == 0 else total.add_(product)
