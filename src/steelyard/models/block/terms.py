"""From an objective to slopes: its terms for a block of labels, and the slopes by plain torch."""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor

from steelyard.balance.philox import uniform
from steelyard.balance.picked_labels import PickedLabels
from steelyard.balance.weighting import Deferred, Rebalanced, Weighting
from steelyard.kernels import fused
from steelyard.kernels.block_launch import Terms
from steelyard.labels.targets import Targets, known
from steelyard.losses.loss import Cells, compute_dtype
from steelyard.losses.pair import AnalyticLoss, PairLoss
from steelyard.losses.partial_annotation import Annotation
from steelyard.losses.unknown import Weighted
from steelyard.models.block.sparse import SparseTargets
from steelyard.objective import Objective


class _Fixed(Weighted):
    """A rule whose weights were decided for all labels, so that every block uses the same."""

    def __init__(self, fixed: fused.KernelRule) -> None:
        super().__init__()
        self.fixed = fixed

    def weights(self, n_labels: int) -> fused.KernelRule:
        """Return the weights."""
        return self.fixed


def checked(objective: Objective) -> PairLoss:
    """Return the objective's loss; raise if blocks of labels cannot be processed separately."""
    loss, rule, masking = objective.loss, objective.resolver, objective.masking
    if not isinstance(loss, PairLoss):
        raise ValueError(
            f"{type(loss).__name__} compares labels with each other, so a BlockHead cannot go through them in blocks: "
            "choose a loss per label, such as BCE"
        )
    if isinstance(rule, Annotation):
        _check_annotation(objective, rule)
    elif not isinstance(rule, Weighted):
        raise ValueError(
            f"{type(rule).__name__} keeps a value for every item and label: with a BlockHead use ignore, negative, wan "
            "or annotation"
        )
    if masking is not None and masking.observes == "training" and masking.rate > 0:
        raise ValueError(
            "PartialLabelMasking moves its ratios by all training outputs, which a BlockHead does not keep: "
            "set rate=0, or observes='validation'"
        )
    return loss


def _check_annotation(objective: Objective, rule: Annotation) -> None:
    if not isinstance(rule.store, PickedLabels):
        raise ValueError("Annotation has no PickedLabels, the store that a BlockHead writes to: give it as store")
    if rule.count != "known":
        raise ValueError("count is 'pseudo', which sums over all unknown labels: with a BlockHead set it to 'known'")
    if objective.masking is not None or len(objective.weightings):
        raise ValueError("Annotation weighs labels itself: with a BlockHead leave masks and weightings out")


def pair_of(loss: PairLoss) -> fused.KernelPair | None:
    """Return the loss as the kernels know it, None where they do not."""
    return loss.kernel() if isinstance(loss, AnalyticLoss) else None


def terms_of(objective: Objective, targets: SparseTargets, bias: Tensor, index: Tensor | None) -> Terms:
    """Return what slopes depend on besides logits: rule, mask and weights of a batch, for a `checked` objective."""
    n_items, n_labels = targets.shape
    rule = cast(Weighted, objective.resolver).weights(n_labels)
    absent = rule.unknown if targets.fill == -1 else rule.negative if rule.assumed else 1.0
    pair = pair_of(cast(PairLoss, objective.loss))
    terms = Terms(pair, rule, absent if rule.assumed or targets.fill == 0 else 0.0, bias)
    masking = objective.masking
    if masking is not None and objective.training:
        device = bias.device
        first, items = masking.n_drawn, None if index is None else index.to(device).contiguous()
        masking.n_drawn += n_items if index is None else 0
        keep = masking.kept_below().to(device)
        terms = terms._replace(mask=fused.Mask(keep, items, False, masking.seed, masking.epoch, first))
    for weighting in objective.weightings:
        assert isinstance(weighting, Weighting)
        terms = _weighted(terms, weighting, targets)
    return terms


def _weighted(terms: Terms, weighting: Weighting, targets: SparseTargets) -> Terms:
    """Return the terms with one more weighting: by label, by item, or re-balanced."""
    device = terms.bias.device
    if isinstance(weighting, Deferred):
        return _weighted(terms, weighting.weighting, targets) if weighting.epoch >= weighting.start else terms
    rebalanced = weighting.kernel()
    if rebalanced is not None and terms.rebalanced is None:
        inverse = rebalanced.inverse.to(device)
        drawn = targets.row_sums(inverse).to(torch.float32)
        return terms._replace(rebalanced=rebalanced._replace(inverse=inverse), drawn=drawn)
    if isinstance(weighting, Rebalanced):
        raise ValueError("two re-balanced weightings at once are not known to a BlockHead: give one")
    by_label, by_item = weighting.marginal(targets.row_sums)
    if by_label is not None:
        by_label = by_label.to(device, torch.float32)
        terms = terms._replace(by_label=by_label if terms.by_label is None else terms.by_label * by_label)
    if by_item is not None:
        by_item = by_item.to(device, torch.float32)
        terms = terms._replace(by_item=by_item if terms.by_item is None else terms.by_item * by_item)
    return terms


def plain_slopes_(
    logits: Tensor, start: int, terms: Terms, targets: SparseTargets, loss: PairLoss
) -> tuple[Tensor, Tensor]:
    """Do what `kernels.block_launch.slopes_` does by plain torch, for any pair loss, in float64 for float64 logits."""
    stop, dtype = start + logits.shape[1], compute_dtype(logits)
    z = logits.to(dtype) + terms.bias[start:stop].to(dtype)
    cells = _cells(z, start, terms, targets)
    cost, slope = _slope(of_labels(loss, slice(start, stop)), z, cells)
    logits.copy_(slope)
    return slope.sum(0, keepdim=True, dtype=torch.float64), cost.double().reshape(1)


def _cells(z: Tensor, start: int, terms: Terms, targets: SparseTargets) -> Cells:
    """Return the coefficients of a block: unknown labels resolved, then masked, then weighted."""
    stop, mask, rebalanced = start + z.shape[1], terms.mask, terms.rebalanced
    dense, values = targets.dense(start, stop), targets.values
    hard = values.device.type == "cpu" and bool((values == values.round()).all())  # then cells have one side each
    cells: Cells = _Fixed(terms.rule)(Targets(dense, targets.fill == 0 == targets.n_unknown, hard), z, None)
    if mask is not None:
        t = dense.clamp_min(0) if terms.rule.assumed else dense
        items = mask.items
        if items is None:
            items = mask.first_item + torch.arange(len(t), device=t.device)
        u = uniform(mask.seed, mask.epoch, items, stop - start, start)
        keep = mask.keep[:, start:stop] * 2.0**-24
        cells = cells.times(((u < torch.where(t >= 0.5, keep[0], keep[1])) | ~known(t)).to(z.dtype))
    if terms.by_label is not None:
        cells = cells.times(terms.by_label[start:stop].to(z.dtype))
    if terms.by_item is not None:
        cells = cells.times(terms.by_item.to(z.dtype)[:, None])
    if terms.by_cell is not None:
        cells = cells.times(targets._replace(values=terms.by_cell, fill=1).dense(start, stop).to(z.dtype))
    if rebalanced is not None:
        assert terms.drawn is not None
        steep = rebalanced.beta / terms.drawn.to(z.dtype)[:, None]
        ratio = steep * rebalanced.inverse[start:stop].to(z.dtype) - rebalanced.beta * rebalanced.mu
        cells = cells.times(rebalanced.alpha + torch.sigmoid(ratio))
    return cells


def _slope(loss: PairLoss, z: Tensor, cells: Cells) -> tuple[Tensor, Tensor]:
    """Return the summed cost and the slope of every cell."""
    if isinstance(loss, AnalyticLoss):
        slope = torch.empty_like(z)
        return loss.cost_and_slope(z, cells, slope).sum(), slope
    with torch.enable_grad():
        x = (z if cells.counted is None else torch.where(cells.counted, z, 0)).detach().requires_grad_()
        cost = (cells.a * loss.positive(x) + cells.b * loss.negative(x)).sum()
        (slope,) = torch.autograd.grad(cost, x)
    return cost.detach(), slope


def of_labels(loss: PairLoss, labels: slice | Tensor) -> PairLoss:
    """Return the loss of some labels, or of single cells by their labels: buffers by label are cut."""
    n = loss.n_labels
    if n is None:
        return loss
    part = copy.copy(loss)
    part._buffers = {
        name: b[..., labels] if b is not None and b.ndim and b.shape[-1] == n else b
        for name, b in loss._buffers.items()
    }
    part.n_labels = len(range(n)[labels]) if isinstance(labels, slice) else len(labels)
    return part
