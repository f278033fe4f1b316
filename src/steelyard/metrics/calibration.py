"""Calibration: error in bins and by chance, Brier score, log-loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from steelyard._arrays import slices
from steelyard.balance.checks import check_choice
from steelyard.labels.inputs import as_whole
from steelyard.labels.targets import ArrayLike
from steelyard.metrics.inputs import Pair, probable

Binning = Literal["width", "mass"]
Pooling = Literal["pooled", "label"]

_CELLS_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Bins:
    """The bins of a calibration error; (bins,), or (L, bins) per label.

    Attributes:
        edges: where bins begin and end, one number more than bins.
        counts: cells in each bin.
        confidence: their mean probability; NaN in an empty bin.
        frequency: their mean target; NaN in an empty bin.

    Examples:
        >>> bins = sy.metrics.calibration_error(torch.tensor([[0.1, 0.9]]), torch.tensor([[0, 1]]), bins=2).bins
        >>> bins.edges, bins.counts
        (tensor([0.0000, 0.5000, 1.0000], dtype=torch.float64), tensor([1, 1]))
        >>> bins.confidence, bins.frequency
        (tensor([0.1000, 0.9000], dtype=torch.float64), tensor([0., 1.], dtype=torch.float64))
    """

    edges: Any
    counts: Any
    confidence: Any
    frequency: Any


@dataclass(frozen=True)
class CalibrationErrors:
    """Average, maximum and expected calibration error, and the bins they come from.

    Attributes:
        ace: the mean gap over the bins that are not empty.
        mce: the largest gap.
        ece: the mean gap over cells.
        bins: the bins.

    Examples:
        >>> error = sy.metrics.calibration_error(torch.tensor([[0.1, 0.7]]), torch.tensor([[0, 1]]), bins=2)
        >>> round(error.ace, 3), round(error.mce, 3), round(error.ece, 3)
        (0.2, 0.3, 0.2)
    """

    ace: Any
    mce: Any
    ece: Any
    bins: Bins


def calibration_error(
    probabilities: ArrayLike,
    targets: ArrayLike,
    bins: int = 15,
    binning: Binning = "width",
    per: Pooling = "pooled",
) -> CalibrationErrors:
    """Return how far the mean probability of a bin is from the frequency of its labels.

    Formula:
        gap_b = |mean_b η − mean_b y|
        ACE = mean_b gap_b, MCE = max_b gap_b, ECE = (Σ_b n_b gap_b)/(Σ_b n_b)

    b is a bin that is not empty, n_b its cells. Floats, or (L,) with `per="label"`; NaN without a
    known label. A value on an inner edge belongs to the upper bin, 1 to the last. Edges are rounded to the dtype of
    `probabilities`, so that 0.2 as float16 lies on the edge 3/15 as it does as float64.

    Args:
        probabilities: η (N, L), in [0, 1].
        targets: (N, L), −1 unknown (not counted); a soft one counts its value.
        bins: how many (the paper names none: 15).
        binning: "width" for edges k/bins; "mass" for edges at the order statistics ⌊kn/bins⌋, so that bins hold equally
            many cells as far as ties allow.
        per: "pooled" puts the cells of all labels together, "label" bins each label by itself.

    Examples:
        >>> probabilities, targets = torch.full((10, 1), 0.8), torch.tensor([[1]] * 6 + [[0]] * 4)
        >>> error = sy.metrics.calibration_error(probabilities, targets)
        >>> round(error.ace, 3)  # a probability of .8, a frequency of .6
        0.2
    """
    bins = as_whole(bins, "bins")
    if bins < 1:
        raise ValueError(f"bins is {bins}: give at least one bin, 15 being the usual choice")
    check_choice(Binning, binning=binning)
    check_choice(Pooling, per=per)
    pair = probable(probabilities, targets)
    pooled = per == "pooled"
    if binning == "width":
        edges = width_edges(bins, pair.values)
    else:
        v, known = pair.values, pair.known
        if pooled:
            v, known = (v.reshape(-1) if known is None else v[known])[:, None], None
        edges = label_mass_edges(bins, v, known)
        edges = edges[0] if pooled else edges
    sums = bin_sums(pair, edges)
    if pooled:
        sums = sums.sum(1)
    elif edges.ndim == 1:
        edges = edges.repeat(sums.shape[1], 1)
    error = from_sums(sums, edges)
    number = float if pooled else pair.give
    b = error.bins
    given = Bins(*(pair.give(x) for x in (b.edges, b.counts, b.confidence, b.frequency)))
    return CalibrationErrors(number(error.ace), number(error.mce), number(error.ece), given)


def brier(probabilities: ArrayLike, targets: ArrayLike) -> float:
    """Return the Brier score over the known labels; soft targets count as they are.

    Formula:
        Brier = mean((η − y)²)

    Args:
        probabilities: η (N, L), in [0, 1].
        targets: (N, L), 1 present, 0 absent, −1 unknown (left out), between them soft.

    Examples:
        >>> round(sy.metrics.brier(torch.tensor([[0.9, 0.4, 0.7]]), torch.tensor([[1, 0, -1]])), 3)  # (.1² + .4²)/2
        0.085
    """
    n, total = label_sums(probable(probabilities, targets), squared_error).sum(1)
    return float(total / n)


def log_loss(probabilities: ArrayLike, targets: ArrayLike) -> float:
    """Return the log-loss over the known labels; soft targets count as they are.

    Formula:
        log loss = mean(−y log η − (1 − y) log(1 − η))

    Nothing is clipped: a probability of 0 for a label that is present, or of 1 for one that is absent, costs infinity.

    Args:
        probabilities: η (N, L), in [0, 1].
        targets: (N, L), 1 present, 0 absent, −1 unknown (left out), between them soft.

    Examples:
        >>> round(sy.metrics.log_loss(torch.tensor([[0.9, 0.4, 0.7]]), torch.tensor([[1, 0, -1]])), 3)
        0.308
        >>> sy.metrics.log_loss(torch.tensor([[0.0]]), torch.tensor([[1]]))  # sure, and wrong
        inf
    """
    n, total = label_sums(probable(probabilities, targets), cross_entropy).sum(1)
    return float(total / n)


def width_edges(bins: int, like: Tensor) -> Tensor:
    """Return k/bins for k = 0 … bins, rounded to the dtype of `like`."""
    return (torch.arange(bins + 1, dtype=torch.float64, device=like.device) / bins).to(like.dtype)


def label_mass_edges(bins: int, values: Tensor, known: Tensor | None) -> Tensor:
    """Return 0, the order statistics ⌊kn/bins⌋ of the n known probabilities of each label, 1: (L, bins + 1)."""
    n_items, n_labels = values.shape
    edges = width_edges(bins, values).repeat(n_labels, 1)
    for labels in slices((n_labels, n_items), 1 << 22) if n_items else ():
        v = _wide(values[:, labels].T)
        n = torch.full((len(v), 1), n_items, device=v.device)
        if known is not None:
            v, n = torch.where(known[:, labels].T, v, torch.inf), known[:, labels].sum(0)[:, None]
        ranks = torch.arange(1, bins, device=v.device) * n // bins
        ordered = torch.from_numpy(np.sort(v.contiguous().numpy())) if v.device.type == "cpu" else v.sort(1).values
        edges[labels, 1:-1] = ordered.gather(1, ranks).clamp_max(1).to(edges.dtype)  # inf: a label with nothing known
    return edges


def _wide(p: Tensor) -> Tensor:
    """Return float32 for half precision on a CPU, which is slow at it; the values are the same."""
    return p.float() if p.device.type == "cpu" and p.itemsize == 2 else p


def bin_sums(pair: Pair, edges: Tensor) -> Tensor:
    """Return cells, Σ probability and Σ target in each bin of each label: (3, L, bins), float64.

    `edges` are (bins + 1,) for all labels, or (L, bins + 1).
    """
    n_labels, bins = pair.values.shape[1], edges.shape[-1] - 1
    sums = torch.zeros(3, n_labels * bins, dtype=torch.float64, device=edges.device)
    offset = torch.arange(n_labels, device=edges.device) * bins
    for p, t, known in _chunks(pair):
        index = _bin_index(p, edges) + offset
        if known is not None:
            index, p, t = index[known], p[known], t[known]
        for k, value in enumerate((torch.ones_like(p), p, t)):
            sums[k].index_add_(0, index.reshape(-1), value.reshape(-1).double())
    return sums.view(3, n_labels, bins)


def _bin_index(p: Tensor, edges: Tensor) -> Tensor:
    """Return the bin of each probability (n, L), which is the number of inner edges not above it."""
    p, inner = _wide(p), _wide(edges[..., 1:-1])
    if p.device.type == "cpu" and inner.shape[-1] < 32:  # comparing with each is the faster way to count few
        count = torch.zeros(p.shape, dtype=torch.uint8)
        for edge in inner.unbind(-1):
            count.add_(p >= edge)
        return count
    rows = inner.expand(p.shape[1], -1).contiguous()
    index: Tensor = torch.searchsorted(rows, p.T.contiguous(), right=True)
    return index.T


def from_sums(sums: Tensor, edges: Tensor) -> CalibrationErrors:
    """Turn (3, …, bins) of `bin_sums` into errors, as tensors of the leading shape."""
    n, confidence, frequency = sums[0], sums[1] / sums[0], sums[2] / sums[0]
    gap = (confidence - frequency).abs()
    filled = n > 0
    gap_or_0 = torch.where(filled, gap, 0.0)
    some = filled.any(-1)
    ace = gap_or_0.sum(-1) / filled.sum(-1)
    mce = torch.where(some, gap_or_0.amax(-1), torch.nan)
    ece = (n * gap_or_0).sum(-1) / n.sum(-1)
    return CalibrationErrors(ace, mce, ece, Bins(edges.double(), n.long(), confidence, frequency))


def squared_error(p: Tensor, t: Tensor) -> Tensor:
    """Return (η − y)² of each cell."""
    return (p - t).square()


def cross_entropy(p: Tensor, t: Tensor) -> Tensor:
    """Return −y log η − (1 − y) log(1 − η) of each cell, with 0 log 0 = 0."""
    return -(torch.xlogy(t, p) + torch.xlogy(1 - t, 1 - p))


def label_sums(pair: Pair, cell: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return the number of known items of each label and the sum of `cell` over them: (2, L), float64."""
    sums = torch.zeros(2, pair.values.shape[1], dtype=torch.float64, device=pair.values.device)
    for p, t, known in _chunks(pair):
        value = cell(p.double(), t.double())
        if known is None:
            sums[0] += len(p)
        else:
            sums[0] += known.sum(0)
            value = torch.where(known, value, 0.0)
        sums[1] += value.sum(0)
    return sums


def _chunks(pair: Pair) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Yield probabilities, targets and mask, so many rows at a time that float64 copies stay small."""
    for rows in slices(pair.values.shape, _CELLS_AT_ONCE):
        yield pair.values[rows], pair.targets[rows], None if pair.known is None else pair.known[rows]


class ByChance(NamedTuple):
    """The average and the expected calibration error that are there by chance.

    Attributes:
        ace: the average calibration error.
        ece: the expected calibration error.

    Examples:
        >>> bins = sy.metrics.calibration_error(torch.full((4, 1), 0.5), torch.tensor([[1], [1], [0], [0]])).bins
        >>> by_chance = sy.metrics.error_by_chance(bins)
        >>> round(by_chance.ace, 4), round(by_chance.ece, 4)  # four coins
        (0.1875, 0.1875)
    """

    ace: Any
    ece: Any


def error_by_chance(bins: Bins) -> ByChance:
    """Return the ACE and ECE to be expected, with these bins, of probabilities that are right.

    Of n_b labels that are each present with probability p_b the share that is present differs from p_b, on average by
    E|K/n − p| with K ~ Binomial(n, p). ACE by chance is its mean over the bins that are not empty, ECE Σ n_b (·) / Σ
    n_b: a model whose errors are about as large cannot be distinguished from one that is right. Labels count as
    independent, and as hard: soft ones vary less. So do those of a wide bin whose probabilities differ.

    Formula:
        E|K/n − p| = 2/n (1 − p) m C(n, m) p^m (1 − p)^(n − m), m = ⌊n p⌋ + 1

    Args:
        bins: of `calibration_error`, pooled, which gives floats, or by label, which gives (L,), a tensor or an array as
            they are; NaN without a known label.

    Examples:
        >>> bins = sy.metrics.calibration_error(torch.full((10, 1), 0.8), torch.tensor([[1]] * 6 + [[0]] * 4)).bins
        >>> round(sy.metrics.error_by_chance(bins).ace, 3)  # ten labels of probability .8 are that far off by chance
        0.097
    """
    n, p = (torch.as_tensor(x).double().cpu() for x in (bins.counts, bins.confidence))
    filled = n > 0
    gap = torch.where(filled, _mean_deviation(n, p), 0.0)
    ace, ece = gap.sum(-1) / filled.sum(-1), (n * gap).sum(-1) / n.sum(-1)
    if n.ndim == 1:
        return ByChance(float(ace), float(ece))
    return ByChance(ace, ece) if isinstance(bins.counts, Tensor) else ByChance(ace.numpy(), ece.numpy())


def _mean_deviation(n: Tensor, p: Tensor) -> Tensor:
    """Return E|K/n − p| of K ~ Binomial(n, p), by de Moivre's sum."""
    m = torch.floor(n * p) + 1
    choose = torch.lgamma(n + 1) - torch.lgamma(m + 1) - torch.lgamma(n - m + 1)  # m = n + 1 where p is 1: C is 0
    mass = choose + torch.xlogy(m, p) + torch.xlogy(n - m + 1, 1 - p)
    return torch.where(m > n, 0.0, 2 * m * mass.exp() / n)
