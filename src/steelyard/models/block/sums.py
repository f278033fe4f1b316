"""The weights with which positives and negatives of each label enter training, from the listed cells only.

The start at the prior and the link's class weights need Σa and Σb of every label. A cell that is not listed has a
weight that depends on its item only through a few numbers, so its sum over items is a function of the label's count: it
is evaluated once per distinct count, and no table (B, L) is made.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from steelyard.kernels.block_launch import Terms
from steelyard.labels import Labels
from steelyard.losses.partial_annotation import Annotation
from steelyard.models.block.annotation import first_sums
from steelyard.models.block.sparse import SparseTargets
from steelyard.models.block.terms import checked, terms_of
from steelyard.objective import Objective
from steelyard.objective.start import CellSums, floored, start_at

_CELLS = 1 << 24  # items times distinct counts at a time
_MOST_NODES = 2048  # distinct counts: with more, values between nodes are interpolated
_MOST = 1 << 30  # and in all: beyond, every so many-th item stands for its neighbours


class Sums(NamedTuple):
    """Σ over items, by label, float64 (L,): of the degree to which cells are positive or negative, and weighted."""

    positive: Tensor
    negative: Tensor
    weighted_positive: Tensor
    weighted_negative: Tensor
    n_positive: Tensor
    n_negative: Tensor


def cell_sums(terms: Terms, targets: SparseTargets, keep: tuple[Tensor, Tensor] | None = None) -> Sums:
    """Return the sums over a batch; `keep` are chances by label, of positives and of others, that PLM keeps a cell."""
    rows, labels = targets.rows.long(), targets.labels.long()
    t, rule, n_labels = targets.values.double(), terms.rule, targets.shape[1]
    is_known = t >= 0
    a = t.clamp_min(0)
    b = torch.where(is_known, (1 - a) * rule.negative, rule.unknown if rule.assumed else 0.0)
    w = _weights(terms, rows, labels)
    kept = torch.ones_like(w) if keep is None else torch.where(t >= 0.5, keep[0][labels], keep[1][labels])

    def by_label(x: Tensor) -> Tensor:
        return x.new_zeros(n_labels, dtype=torch.float64).index_add_(0, labels, x.double())

    rest, weighted_rest = torch.zeros(2, n_labels, dtype=torch.float64, device=t.device)
    if terms.absent:
        rest = terms.absent * (targets.shape[0] - by_label(torch.ones_like(t)))
        weighted_rest = terms.absent * (_over_items(terms, targets.shape) - by_label(w))
        weighted_rest = weighted_rest if keep is None else weighted_rest * keep[1]
    n_rest = rest / terms.absent if terms.absent else rest
    return Sums(
        by_label(a), by_label(b) + rest, by_label(kept * w * a), by_label(kept * w * b) + weighted_rest,
        by_label(a > 0), by_label(b > 0) + n_rest,
    )  # fmt: skip


def _weights(terms: Terms, rows: Tensor, labels: Tensor) -> Tensor:
    """Return the weights of listed cells, float64."""
    w = torch.ones(len(rows), dtype=torch.float64, device=rows.device)
    if terms.by_label is not None:
        w = w * terms.by_label[labels]
    if terms.by_item is not None:
        w = w * terms.by_item[rows]
    if terms.rebalanced is not None:
        assert terms.drawn is not None
        w = w * _rebalanced(terms, terms.rebalanced.inverse[labels].double(), terms.drawn[rows].double())
    return w


def _rebalanced(terms: Terms, inverse: Tensor, drawn: Tensor) -> Tensor:
    assert terms.rebalanced is not None
    _, alpha, beta, mu = terms.rebalanced
    return alpha + torch.sigmoid(beta / drawn * inverse - beta * mu)


def _over_items(terms: Terms, shape: tuple[int, int]) -> Tensor:
    """Return the weight of each label summed over all items, (L,)."""
    n_items, n_labels = shape
    device = terms.bias.device
    by_item = (
        torch.ones(n_items, dtype=torch.float64, device=device) if terms.by_item is None else terms.by_item.double()
    )
    if terms.rebalanced is None:
        total = by_item.sum().expand(n_labels)
    else:
        assert terms.drawn is not None
        nodes = _nodes(terms.rebalanced.inverse)
        stride = max(1, n_items * len(nodes.inverse) // _MOST)
        drawn, by_item = terms.drawn[::stride].double(), by_item[::stride]
        step = max(1, _CELLS // len(nodes.inverse))
        sums = torch.zeros(len(nodes.inverse), dtype=torch.float64, device=device)
        for start in range(0, len(drawn), step):
            some = slice(start, start + step)
            sums += by_item[some] @ _rebalanced(terms, nodes.inverse, drawn[some, None])
        sums *= n_items / len(drawn)
        total = torch.lerp(sums[nodes.below], sums[nodes.above], nodes.share)
    return total if terms.by_label is None else total * terms.by_label


class _Nodes(NamedTuple):
    """Nodes at which a function of 1/n is evaluated, and the interval of each label among them."""

    inverse: Tensor
    below: Tensor
    above: Tensor
    share: Tensor


_known_nodes = WeakIdKeyDictionary()


def _nodes(inverse: Tensor) -> _Nodes:
    """Return all distinct values, or nodes evenly spaced in log 1/n where there are many; looked for once."""
    nodes: _Nodes | None = _known_nodes.get(inverse)
    if nodes is None:
        distinct, place = torch.unique(inverse.double(), return_inverse=True)
        share = torch.zeros_like(inverse, dtype=torch.float64)
        nodes = _Nodes(distinct, place, place, share)
        if len(distinct) > _MOST_NODES:
            logs, ends = inverse.double().log(), distinct[[0, -1]].log()
            spot = (logs - ends[0]) / (ends[1] - ends[0]) * (_MOST_NODES - 1)
            below = spot.floor().long().clamp(0, _MOST_NODES - 2)
            grid = torch.linspace(ends[0].item(), ends[1].item(), _MOST_NODES, dtype=torch.float64).exp()
            nodes = _Nodes(grid.to(inverse.device), below, below + 1, spot - below)
        _known_nodes[inverse] = nodes
    return nodes


def prior_bias(objective: Objective, labels: Labels, n_epochs: int = 1) -> Tensor:
    """Return the bias (L,), float64, at which the objective is stationary before anything is learned.

    It equals `objective.prior_logits` for what a BlockHead takes, from the listed cells alone: ten million positives of
    a million labels take seconds.
    """
    loss = checked(objective)
    loss.check_link()
    was_training = objective.training
    objective.eval()
    objective.resolver.start_epoch(1, n_epochs)
    for weighting in objective.weightings:
        weighting.start_epoch(1, n_epochs)  # type: ignore[operator]
    targets = SparseTargets.from_labels(labels, np.arange(labels.n_items))
    if isinstance(objective.resolver, Annotation):
        weighted, counts = first_sums(objective.resolver, targets)
        objective.train(was_training)
        return start_at(loss, CellSums(*floored(weighted, counts)).log_odds)
    terms = terms_of(objective, targets, torch.zeros(labels.n_labels), None)
    objective.train(was_training)
    keep = None
    if objective.masking is not None:
        positive, negative = objective.masking.keep_probabilities
        keep = positive.double(), negative.double()
    sums = cell_sums(terms, targets, keep)
    weighted = torch.stack([sums.weighted_positive, sums.weighted_negative])
    a, b = floored(weighted, torch.stack([sums.n_positive, sums.n_negative]))
    return start_at(loss, CellSums(a, b).log_odds)


def note_weights(objective: Objective, terms: Terms, targets: SparseTargets) -> None:
    """Pass the class weights of a batch to the objective, as dense targets would."""
    if objective.expected is not None:
        sums = cell_sums(terms, targets)
        parts = (sums.weighted_positive, sums.positive, sums.weighted_negative, sums.negative)
        objective.expected.add(torch.stack(parts))
