"""Label-pair regularisation over blocks of labels, without a table of items by labels or of labels by labels.

The slope of a positive's score is a sum over all labels, those of later blocks included. So the logits are gone through
once before the step to add up that sum for every positive; in the step itself a block's slopes are then complete.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from steelyard.balance.label_pair import LabelPair
from steelyard.losses.pair import PairLoss
from steelyard.models.block.sparse import SparseTargets
from steelyard.models.block.terms import of_labels

_CELLS = 1 << 22  # cells of a piece of a block, whose temporaries are float32


class BlockPairs:
    """One `LabelPair` of one batch: Σ y_t (1−y_t') softplus(s_t' − s_t) with s the link's log-odds, or the logits.

    Args:
        pair: the regulariser.
        loss: whose link gives log-odds.
        targets: of the batch.
        logits: of the positive cells, in the order of `targets`, those with a value above 0.
    """

    def __init__(self, pair: LabelPair, loss: PairLoss, targets: SparseTargets, logits: Tensor) -> None:
        n_items, n_labels = targets.shape
        self.pair, self.loss, self.targets = pair, loss, targets
        self.scale = pair.weight * 2 / max(n_labels * (n_labels - 1), 1) / max(n_items, 1)
        self.listed = (targets.values > 0).nonzero()[:, 0]
        rows = targets.rows[self.listed].long()
        order = torch.argsort(rows, stable=True)
        counts = torch.bincount(rows, minlength=n_items)
        place = torch.empty_like(rows)
        place[order] = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows[order]]
        self.at = rows, place
        shape = (n_items, int(counts.max()) if len(rows) else 0)
        self.share, self.score, self.sums = (logits.new_zeros(shape) for _ in range(3))
        self.label = torch.full(shape, -1, dtype=torch.int64, device=rows.device)
        self.share[self.at] = targets.values[self.listed].to(logits.dtype)
        self.label[self.at] = targets.labels[self.listed].long()
        self.score[self.at], self.rise = self._scored(logits, targets.labels[self.listed].long())

    def _scored(self, z: Tensor, labels: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Return the scores and their derivatives by logits."""
        if not self.pair.link:
            return z, torch.ones_like(z)
        with torch.enable_grad():
            x = z.detach().requires_grad_()
            s = of_labels(self.loss, labels).link(x)
            (rise,) = torch.autograd.grad(s.sum(), x)
        return s.detach(), rise

    def slopes(self, z: Tensor, labels: slice) -> tuple[Tensor, Tensor]:
        """Return the summed penalty of pairs whose negative is among `labels`, and slopes (B, n) of these as negatives.

        Adds the slopes of the positives in these pairs to their sums.
        """
        s, rise = self._scored(z, labels)
        t = self.targets.dense(labels.start, labels.stop).to(z.dtype)
        is_known = t != -1
        absent, s = torch.where(is_known, 1 - t, 0.0), torch.where(is_known, s, 0.0)
        number = torch.arange(labels.start, labels.stop, device=z.device)
        total, slope = z.new_zeros((), dtype=torch.float64), torch.zeros_like(s)
        for j in range(self.share.shape[1]):
            gap = s - self.score[:, j, None]
            pull = absent * self.share[:, j, None] * (number != self.label[:, j, None])  # no pair with itself
            total = total - (pull * F.logsigmoid(-gap)).sum().double()
            pull *= torch.sigmoid(gap)
            slope += pull
            self.sums[:, j] += pull.sum(1)
        return total, torch.where(is_known, slope * rise, 0.0)

    def pieces(self, labels: slice) -> list[slice]:
        """Return pieces of a block whose temporaries are small."""
        step = max(4, _CELLS // max(self.targets.shape[0], 1))
        return [slice(s, min(s + step, labels.stop)) for s in range(labels.start, labels.stop, step)]

    def extra(self, z: Tensor, bias: Tensor, labels: slice) -> Tensor:
        """Return slopes (B, n) of a block from its logits without bias: as negatives and, summed, as positives."""
        out = torch.empty_like(z)
        sums = self.sums.clone()
        for piece in self.pieces(labels):
            part = slice(piece.start - labels.start, piece.stop - labels.start)
            out[:, part] = self.slopes(z[:, part].to(bias.dtype) + bias[piece], piece)[1]
        self.sums = sums  # they were complete before
        columns = self.targets.labels[self.listed].long() - labels.start
        here = (columns >= 0) & (columns < z.shape[1])
        rows, place = self.at
        pulled = -(sums[rows, place] * self.rise)[here].to(z.dtype)
        return out.index_put_((rows[here], columns[here]), pulled, accumulate=True)
