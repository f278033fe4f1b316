"""Weightings: maps from targets (B, L) to weights that broadcast to (B, L)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from steelyard.balance.checks import check_choice, check_range
from steelyard.balance.processes import summed
from steelyard.kernels import fused
from steelyard.labels.inputs import as_whole
from steelyard.labels.targets import ArrayLike, as_tensor, check_counts

Mode = Literal["class", "mean_effective", "mean_weight", "mean_count"]


class Weighting(nn.Module, ABC):
    """Weights of the labels of a batch, from their targets alone. A soft label is a positive to that degree.

    Examples:
        >>> class Rarest(sy.balance.Weighting):
        ...     def __init__(self, n_labels, label):
        ...         super().__init__()
        ...         self.n_labels, self.label = n_labels, label
        ...     def weights(self, present):
        ...         return 1 + 9 * (torch.arange(self.n_labels) == self.label)
        >>> Rarest(3, label=2)(torch.tensor([[1, 0, -1]]))
        tensor([[ 1,  1, 10]])
    """

    n_labels: int

    @abstractmethod
    def weights(self, present: Tensor) -> Tensor:
        """Return weights that broadcast to (B, L), given `present` (B, L): the targets with unknown labels as 0."""

    def forward(self, targets: ArrayLike, dtype: torch.dtype | None = None) -> Tensor:
        """Return the weights of `targets` (B, L), in `dtype` (float64 for float64 targets, else float32)."""
        t = as_tensor(targets)
        if t.ndim != 2 or t.shape[1] != self.n_labels:
            raise ValueError(f"targets has shape {tuple(t.shape)}: this weighting was made for (B, {self.n_labels})")
        dtype = dtype or (torch.float64 if t.dtype == torch.float64 else torch.float32)
        present = t.clamp_min(0).to(dtype) if t.dtype != torch.bool else t.to(dtype)
        return self.weights(present).expand(t.shape)

    def kernel(self) -> fused.KernelRebalanced | None:
        """Return these weights as the fused kernels know them, None if they do not."""
        return None

    def marginal(self, row_sums: Callable[[Tensor | None], Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """Return weights by label (L,) and by item (B,) whose product the weights are; None stands for 1.

        `row_sums(w)` gives Σ_c present_c w_c of every item, float64 (B,), for w (L,), or None for 1: a table of
        millions of labels is never dense.
        """
        raise ValueError(f"{type(self).__name__} has no weights by label and by item: choose another weighting")

    def start_epoch(self, epoch: int, n_epochs: int) -> None:
        """Begin an epoch; most weightings do nothing.

        Args:
            epoch: its number, from 1.
            n_epochs: of the training.
        """


class InverseFrequency(Weighting):
    """Weights that fall with the positives of a class, at most 1, of both signs (RW).

    Formula:
        w_c = n_c^(−power)/max_j(n_j^(−power))

    The Distribution-Balanced paper's RW has power ½.

    Args:
        counts: positives n_c of each class (L,).
        power: of the inverse frequency (½).
        floor: stands in for a count of 0, which is refused otherwise.

    Examples:
        >>> weighting = sy.balance.InverseFrequency(torch.tensor([400.0, 100.0, 4.0]))
        >>> weighting(torch.tensor([[1, 0, -1]]))  # the rarest class has weight 1
        tensor([[0.1000, 0.2000, 1.0000]])
    """

    inverse: Tensor

    def __init__(self, counts: ArrayLike, power: float = 0.5, *, floor: int | None = None) -> None:
        super().__init__()
        check_range("at least 0", power=power)
        n = check_counts(counts, floor=floor)
        self.n_labels = len(n)
        self.register_buffer("inverse", (n / n.min()).pow(-power), persistent=False)

    def weights(self, present: Tensor) -> Tensor:
        """Return (n_c / n_min)^(−power), whatever is present."""
        return self.inverse.to(present.dtype)

    def marginal(self, row_sums: Callable[[Tensor | None], Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """Return the weights by label."""
        return self.inverse, None


class ClassBalanced(Weighting):
    """Inverse effective number of samples (Cui et al. 2019), in four variants.

    Formula:
        w_c = 1/E(n_c), E(n) = {1 − β^n}/(1 − β)

    Class weights 1/E(n_c) are normalised to mean 1. "class" gives each class its own. The others give an item one
    weight, from its positive classes: "mean_effective" 1/mean E(n_c) (the Distribution-Balanced paper's text),
    "mean_weight" the mean of 1/E(n_c), "mean_count" 1/E(mean n_c) (both in its released code), all by the same
    normaliser. An item without positives gets 1.

    Args:
        counts: positives n_c of each class (L,).
        beta: β ∈ [0, 1) (.9999; the Distribution-Balanced paper: .99 VOC-MLT, .9 COCO-MLT).
        mode: the variant.
        floor: stands in for a count of 0, which is refused otherwise.

    Examples:
        >>> counts, targets = torch.tensor([1000.0, 10.0]), torch.tensor([[1, 0], [0, 1]])
        >>> sy.balance.ClassBalanced(counts, beta=0.99)(targets)
        tensor([[0.1746, 1.8254],
                [0.1746, 1.8254]])
        >>> sy.balance.ClassBalanced(counts, beta=0.99, mode="mean_effective")(targets)  # one weight per item
        tensor([[0.1746, 0.1746],
                [1.8254, 1.8254]])
    """

    counts: Tensor
    effective: Tensor

    def __init__(
        self, counts: ArrayLike, beta: float = 0.9999, mode: Mode = "class", *, floor: int | None = None
    ) -> None:
        super().__init__()
        check_range("in [0, 1)", beta=beta)
        check_choice(Mode, mode=mode)
        n = check_counts(counts, floor=floor)
        self.n_labels, self.beta, self.mode = len(n), float(beta), mode
        self.register_buffer("counts", n, persistent=False)
        self.register_buffer("effective", self._effective(n), persistent=False)
        self.normaliser = float((1 / self.effective).mean())

    def weights(self, present: Tensor) -> Tensor:
        """Return the class weights (L,) or the item weights (B, 1)."""
        share = present.to(torch.float64)
        by_label, by_item = self.marginal(lambda w: share.sum(dim=1) if w is None else (share * w).sum(dim=1))
        if by_label is not None:
            return by_label.to(present.dtype)
        assert by_item is not None
        return by_item.unsqueeze(1).to(present.dtype)

    def marginal(self, row_sums: Callable[[Tensor | None], Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """Return the class weights (L,), or the item weights (B,)."""
        if self.mode == "class":
            return 1 / (self.effective * self.normaliser), None
        total = row_sums(None)
        per_class = {
            "mean_effective": self.effective,
            "mean_weight": 1 / self.effective,
            "mean_count": self.counts,
        }[self.mode]
        mean = row_sums(per_class) / torch.where(total > 0, total, 1)
        mean = torch.where(total > 0, mean, 1)
        if self.mode != "mean_weight":
            mean = 1 / (mean if self.mode == "mean_effective" else self._effective(mean))
        return None, torch.where(total > 0, mean / self.normaliser, 1)

    def _effective(self, n: Tensor) -> Tensor:
        return torch.ones_like(n) if self.beta == 0 else torch.expm1(n * math.log(self.beta)) / (self.beta - 1)


class Rebalanced(Weighting):
    """The Distribution-Balanced paper's re-balancing weights r̂, of both signs.

    Formula:
        r̂_i = α + σ(β(r_i − μ)), r_i = (1/n_i)/(Σ_{j positive} 1/n_j)

    r is the chance that an item would be drawn for its class i alone over the chance that it is drawn at all by
    class-aware sampling. An item without positives has r → ∞, so r̂ = 1 + α.

    Args:
        counts: positives n_c of each class (L,).
        alpha: α, the least weight (.1).
        beta: β, the steepness (10).
        mu: μ, the centre (.2 COCO-MLT, .3 VOC-MLT).
        floor: stands in for a count of 0, which is refused otherwise.

    Examples:
        >>> weighting = sy.balance.Rebalanced(torch.tensor([1000.0, 10.0]))
        >>> weighting(torch.tensor([[1, 1], [1, 0]]))  # beside the rare label, the frequent one weighs little
        tensor([[0.2300, 1.0996],
                [1.0997, 1.1000]])
    """

    inverse: Tensor

    def __init__(
        self,
        counts: ArrayLike,
        alpha: float = 0.1,
        beta: float = 10.0,
        mu: float = 0.2,
        *,
        floor: int | None = None,
    ) -> None:
        super().__init__()
        check_range("at least 0", alpha=alpha)
        check_range("positive", beta=beta)
        check_range("finite", mu=mu)
        n = check_counts(counts, floor=floor)
        self.n_labels, self.alpha, self.beta, self.mu = len(n), float(alpha), float(beta), float(mu)
        self.register_buffer("inverse", n.min() / n, persistent=False)
        self._copied: tuple[Tensor, int, fused.KernelRebalanced] | None = None

    def kernel(self) -> fused.KernelRebalanced | None:
        """Return these weights as the fused kernels know them; 1/n is copied once, to where the buffer is."""
        if type(self) is not Rebalanced or torch.compiler.is_compiling():
            return None
        numbers, of, copied = (self.alpha, self.beta, self.mu), self.inverse, self._copied
        if copied is None or copied[0] is not of or copied[1] != of._version or copied[2][1:] != numbers:
            self._copied = copied = of, of._version, fused.KernelRebalanced(of.to(torch.float32), *numbers)
        return copied[2]

    def weights(self, present: Tensor) -> Tensor:
        """Return r̂ (B, L)."""
        inverse = self.inverse.to(present.dtype)
        with torch.autocast(present.device.type, enabled=False):  # which would round the product
            drawn = torch.mv(present, inverse).unsqueeze(1)
        steep = self.beta / drawn  # ∞ for an item without positives, whose σ is then 1
        return torch.addcmul(inverse.new_full((), -self.beta * self.mu), steep, inverse).sigmoid_().add_(self.alpha)


class Deferred(Weighting):
    """Weights of 1 before epoch `start`, those of `weighting` from it on (deferred re-weighting, DRW).

    Args:
        weighting: what weighs in the end.
        start: the epoch, from 1, in which it begins (LDAM-DRW: 160 of 200).

    Examples:
        >>> weighting = sy.balance.Deferred(sy.balance.InverseFrequency(torch.tensor([400.0, 100.0])), start=5)
        >>> weighting(torch.tensor([[1, 0]]))
        tensor([[1., 1.]])
        >>> weighting.start_epoch(5, 10)
        >>> weighting(torch.tensor([[1, 0]]))
        tensor([[0.5000, 1.0000]])
    """

    def __init__(self, weighting: Weighting, start: int) -> None:
        super().__init__()
        if as_whole(start, "start") < 1:
            raise ValueError(f"start is {start}: epochs count from 1")
        self.weighting, self.start, self.epoch = weighting, start, 1
        self.n_labels = weighting.n_labels

    def weights(self, present: Tensor) -> Tensor:
        """Return 1, or the deferred weights."""
        return self.weighting.weights(present) if self.epoch >= self.start else present.new_ones(())

    def start_epoch(self, epoch: int, n_epochs: int) -> None:
        """Begin an epoch, counted from 1."""
        self.epoch = epoch
        self.weighting.start_epoch(epoch, n_epochs)


class ExpectedWeights(nn.Module):
    """Running means of the weights of positives and negatives of each class: w₊ and w₋ (L,).

    First-order class weights of a weighting that depends on the item: E[w | y_c = 1] and E[w | y_c = 0]. Where one of
    them was not seen it is taken to equal the other, and both are 1 where neither was: a link reads w₋/w₊ alone, which
    no unit of weight may change. The means are of the epoch under way, once it has begun.

    Args:
        n_labels: L.

    Examples:
        >>> means = sy.balance.ExpectedWeights(n_labels=1)
        >>> means.observe(torch.tensor([[3.0], [1.0]]), torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [1.0]]))
        >>> means.class_weights()
        (tensor([3.], dtype=torch.float64), tensor([1.], dtype=torch.float64))
    """

    sums: Tensor

    def __init__(self, n_labels: int) -> None:
        super().__init__()
        self.fresh = False
        self.register_buffer("sums", torch.zeros(4, n_labels, dtype=torch.float64))

    def observe(self, weights: Tensor, positive: Tensor, negative: Tensor) -> None:
        """Add the weights of a batch, with the degree to which each cell is a known positive or negative.

        In a process group it is the whole batch, so every process must call it.

        Args:
            weights: of the labels (B, L).
            positive, negative: the degree to which each is a known positive or negative, (B, L).
        """
        w, p, n = (x.detach().to(self.sums.dtype) for x in (weights, positive, negative))
        self.add(torch.stack([(w * p).sum(0), p.sum(0), (w * n).sum(0), n.sum(0)]))

    def add(self, sums: Tensor) -> None:
        """Add Σw p, Σp, Σw n and Σn of a batch, (4, L)."""
        if self.fresh:
            self.sums.zero_()
            self.fresh = False
        self.sums += summed(sums)

    def start_epoch(self) -> None:
        """Forget the last epoch's means as soon as the new one gives others."""
        self.fresh = True

    def class_weights(self) -> tuple[Tensor, Tensor]:
        """Return (w₊, w₋)."""
        weighed, amount = self.sums[::2], self.sums[1::2]
        mean, seen = weighed / torch.where(amount > 0, amount, 1), weighed > 0
        positive, negative = torch.where(seen, mean, torch.where(seen.flip(0), mean.flip(0), 1))
        return positive, negative


def expected_weights(weighting: Weighting, targets: ArrayLike) -> tuple[Tensor, Tensor]:
    """Return the class weights (w₊, w₋) that `weighting` gives over a table of targets (N, L), unknowns left out.

    They are computed on the device of `weighting`, and returned on that of the targets.

    Args:
        weighting: made for L labels.
        targets: a table of targets (N, L); unknown ones are left out.

    Examples:
        >>> weighting = sy.balance.Rebalanced(torch.tensor([2.0, 1.0]))
        >>> w_pos, w_neg = sy.balance.expected_weights(weighting, torch.tensor([[1, 1], [1, 0], [0, -1]]))
        >>> w_pos, w_neg  # what `loss.probability(z, w_pos, w_neg)` undoes
        (tensor([0.9955, 1.0907], dtype=torch.float64), tensor([1.1000, 1.1000], dtype=torch.float64))
    """
    given = as_tensor(targets)
    t = given.to(next((buffer.device for buffer in weighting.buffers()), given.device))
    means = ExpectedWeights(weighting.n_labels).to(t.device)
    present = t.to(torch.float64).clamp_min(0)
    means.observe(weighting(t), present, (t != -1).to(torch.float64) - present)
    positive, negative = means.class_weights()
    return positive.to(given.device), negative.to(given.device)
