"""Paper 3's rule over blocks of labels: unknown labels that an epoch picks are listed, all others are ignored."""

from __future__ import annotations

import torch
from torch import Tensor

from steelyard.balance.picked_labels import PickedLabels
from steelyard.balance.processes import summed
from steelyard.kernels.block_launch import Terms
from steelyard.kernels.fused import KernelRule
from steelyard.losses.partial_annotation import Annotation
from steelyard.losses.unknown import need_index
from steelyard.models.block.sparse import SparseTargets
from steelyard.models.block.terms import checked, of_labels, pair_of
from steelyard.objective import Objective

_CELLS = 1 << 22  # whose draws are in memory at a time


class BlockAnnotation:
    """`Annotation` of one batch: cells that this epoch picks are listed beside known ones, with weights of their own.

    Memory is that of the picked cells, q·L of an item: choose q so that they are a few hundred.

    Args:
        objective: whose rule is an `Annotation` with a store `PickedLabels`.
        targets: of the batch.
        items: their numbers in the data set (B,).
        share: the labels whose weights are here.
        bias: (L,).
    """

    def __init__(
        self, objective: Objective, targets: SparseTargets, items: Tensor | None, share: slice, bias: Tensor
    ) -> None:
        rule = objective.resolver
        assert isinstance(rule, Annotation)
        assert isinstance(rule.store, PickedLabels)
        self.objective, self.rule, self.store, self.bias = objective, rule, rule.store, bias
        self.items, n_items = need_index(items).to(bias.device), targets.shape[0]
        rows, labels = self._picked(targets, share, rule.epoch)
        counts = torch.bincount(rows, minlength=n_items)
        soft = self.store.read(self.items, counts)
        n_picked = summed(counts) if share != slice(0, targets.shape[1]) else counts
        self.positives = targets.values.clamp_min(0).sum(dtype=torch.float64)
        self.n_known = known_by_row(targets)
        left = ~torch.isin(_keys(targets.rows, targets.labels, targets), _keys(rows, labels, targets))
        self.targets = targets._replace(
            rows=torch.cat([targets.rows[left], rows.to(torch.int32)]),
            labels=torch.cat([targets.labels[left], labels.to(torch.int32)]),
            values=torch.cat([targets.values[left], soft]),
            n_unknown=targets.n_unknown - int((~left).sum()),
        )
        weight = (rule.d * self.n_known / n_picked.clamp_min(1)).to(bias.dtype)
        self.by_cell = torch.cat([weight.new_ones(int(left.sum())), weight[rows]])
        self.next = rows[:0], labels[:0]
        if objective.training and rule.epoch < rule.n_epochs:
            self.next = self._picked(targets, share, rule.epoch + 1)
        self.noted = bias.new_empty(len(self.next[0]))

    def _picked(self, targets: SparseTargets, share: slice, epoch: int) -> tuple[Tensor, Tensor]:
        """Return the unknown labels that an epoch picks, ordered by row and label."""
        rows, labels = targets.rows.long(), targets.labels.long()
        if targets.fill == 0:
            here = (targets.values < 0) & (labels >= share.start) & (labels < share.stop)
            rows, labels = rows[here], labels[here]
            keys = _keys(rows, labels, targets)[self.rule.draws_at(self.items[rows], labels, epoch)]
        else:
            parts, step = [rows[:0]], max(4, _CELLS // max(len(self.items), 1) // 4 * 4)
            for start in range(share.start, share.stop, step):
                drawn = self.rule.draws(self.items, min(step, share.stop - start), start, epoch)
                some_rows, some = drawn.nonzero(as_tuple=True)
                parts.append(_keys(some_rows, some + start, targets))
            keys = torch.cat(parts)
            keys = keys[~torch.isin(keys, _keys(rows, labels, targets))]  # what is listed is known
        keys = keys.sort().values
        return keys // targets.shape[1], keys % targets.shape[1]

    def terms(self, low: Tensor) -> Terms:
        """Return what slopes depend on; `low` (B,) says of which items all predictions are below .1."""
        n_items, n_labels = self.targets.shape
        alpha, beta = (float(x) for x in self.rule.balanced(self.positives, n_items * n_labels))
        negative = beta / alpha if alpha > 0 else 0.0  # α is 0 only where every label is present
        by_item = (alpha * (1 + low.double()) / self.n_known).to(self.bias.dtype)
        absent, rule = negative if self.targets.fill == 0 else 0.0, KernelRule(False, negative, 0.0)
        pair = pair_of(checked(self.objective))
        return Terms(pair, rule, absent, self.bias, by_item=by_item, by_cell=self.by_cell)

    def note(self, logits: Tensor, start: int) -> None:
        """Keep a block's logits, without bias, of the cells that the next epoch picks."""
        rows, labels = self.next
        here = (labels >= start) & (labels < start + logits.shape[1])
        labels = labels[here]
        z = logits[rows[here], labels - start].to(self.bias.dtype) + self.bias[labels]
        if self.store.feedback == "link":
            z = of_labels(checked(self.objective), labels).log_odds(z, *self.rule.class_weights())
        self.noted[here] = torch.sigmoid(z)

    def remember(self) -> None:
        """Write the noted outputs to the store."""
        if len(self.items):
            self.store.write(self.items, torch.bincount(self.next[0], minlength=len(self.items)), self.noted)


def known_by_row(targets: SparseTargets) -> Tensor:
    """Return how many labels of each row are known (B,), at least 1."""
    listed = targets.rows[targets.values >= 0 if targets.fill else targets.values < 0].long()
    counts = torch.bincount(listed, minlength=targets.shape[0])
    return (counts if targets.fill else targets.shape[1] - counts).clamp_min(1)


def first_sums(rule: Annotation, targets: SparseTargets) -> tuple[Tensor, Tensor]:
    """Return Σa and Σb of the first epoch by label, float64 (2, L), and of how many cells, both expected over draws.

    Pseudo-labels are ½ then, and an unknown label has on average its share of d in its item.
    """
    rows, labels, t = targets.rows.long(), targets.labels.long(), targets.values.double()
    (n_items, n_labels), is_known = targets.shape, targets.values >= 0
    alpha, beta = rule.balanced(t.clamp_min(0).sum(), n_items * n_labels)
    share = 1 / known_by_row(targets).double()
    n_unknown = torch.bincount(rows[~is_known], minlength=n_items)
    if targets.fill:
        n_unknown = n_labels - torch.bincount(rows, minlength=n_items)
    half = rule.d / 2 * (1 - (1 - rule.q) ** n_unknown) / n_unknown.clamp_min(1)
    weights, counts = [], []
    for factor, degree, absent in ((alpha, t, 0.0), (beta, 1 - t, 1.0)):
        rest = half if targets.fill else absent * share
        n_rest = torch.full_like(share, rule.q if targets.fill else absent)
        listed = torch.where(is_known, degree * share[rows], half[rows]) - rest[rows]
        n_listed = torch.where(is_known, (degree > 0).double(), rule.q) - n_rest[rows]
        weights.append(factor * listed.new_zeros(n_labels).index_add_(0, labels, listed).add_(rest.sum()))
        counts.append(listed.new_zeros(n_labels).index_add_(0, labels, n_listed).add_(n_rest.sum()))
    n = torch.stack(counts)
    return torch.where(n > 1e-6, torch.stack(weights), 0), n  # differences of equal sums are not quite 0


def _keys(rows: Tensor, labels: Tensor, targets: SparseTargets) -> Tensor:
    """Return a number for every cell, ordered by row and label."""
    return rows.long() * targets.shape[1] + labels.long()
