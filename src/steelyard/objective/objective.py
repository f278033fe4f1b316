"""The objective: unknown labels resolved → masked → weighted → loss → reduction, plus regularisers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from steelyard.balance.label_pair import LabelPair
from steelyard.balance.masking import PartialLabelMasking
from steelyard.balance.processes import n_processes, summed
from steelyard.balance.weighting import ExpectedWeights, Weighting
from steelyard.labels.targets import ArrayLike, Targets, as_targets, known
from steelyard.losses.distribution_balanced import WeightedLoss
from steelyard.losses.loss import Cells, Loss, LossBatch, NoLink, compute_dtype, or_one
from steelyard.losses.pair import AnalyticLoss, PairLoss
from steelyard.losses.unknown import Ignore, Negative, Resolver, WeakAssumedNegative, WeakNegative

RuleName = Literal["ignore", "negative", "weak_negative", "wan"]
RULES: dict[str, type[Resolver]] = {
    "ignore": Ignore,
    "negative": Negative,
    "weak_negative": WeakNegative,
    "wan": WeakAssumedNegative,
}


class Value(NamedTuple):
    """The value of an objective: the total to minimise, and its parts by name, which add up to it.

    Args:
        total: the sum of the parts, a scalar.
        parts: "loss", and what regularisers and rules for unknown labels add, by name.

    Examples:
        >>> value = sy.Objective(sy.losses.BCE())(torch.zeros(1, 2), torch.tensor([[1, 0]]))
        >>> value.total, value.parts
        (tensor(0.6931), {'loss': tensor(0.6931)})
    """

    total: Tensor
    parts: dict[str, Tensor]


class Objective(nn.Module):
    """A loss with everything that decides which labels enter it and how, and with the probability that follows.

    The order is written here and nowhere else: the rule for unknown labels gives the cells (a, b), PLM masks them,
    weights multiply them, the loss sums and divides; regularisers are added. `log_odds` and `probability` undo what
    masks, weights and the rule do on average to positives and negatives of each class (w₊, w₋).

    In a process group, denominators and batch-wide weights are those of the whole batch; gradients are to be averaged
    over processes, as DistributedDataParallel does.

    Args:
        loss: any of `steelyard.losses`; a `WeightedLoss` (DB) is taken apart, so that its weights can be undone.
        unknown: "ignore", "negative", "weak_negative" (unknown labels weigh 1/(L−1)), "wan" (all labels that are not
            positive do), or a `Resolver` (`Pseudo`, `Annotation`, `Role`).
        masking: `PartialLabelMasking`, or None.
        weighting: a `Weighting`, or None.
        regularizers: `LabelPair`s; each sees the log-odds of the loss's link, without PLM or prior correction.

    Examples:
        >>> regularizers = [sy.balance.LabelPair()]
        >>> objective = sy.Objective(sy.losses.Asymmetric(), unknown="negative", regularizers=regularizers)
        >>> logits = torch.tensor([[2.0, -1.0, 0.5]])
        >>> value = objective(logits, torch.tensor([[1, 0, -1]]))
        >>> value.total, sorted(value.parts)
        (tensor(0.0730), ['label_pair', 'loss'])
        >>> objective.probability(logits), torch.sigmoid(logits)
        (tensor([[0.7126, 0.0008, 0.1352]]), tensor([[0.8808, 0.2689, 0.6225]]))
    """

    def __init__(
        self,
        loss: Loss | WeightedLoss,
        unknown: RuleName | Resolver = "ignore",
        masking: PartialLabelMasking | None = None,
        weighting: Weighting | None = None,
        regularizers: Sequence[LabelPair] = (),
    ) -> None:
        super().__init__()
        weightings: list[Weighting] = [] if weighting is None else [weighting]
        if isinstance(loss, WeightedLoss):
            weightings = [loss.weighting, *weightings]
            loss = loss.loss
        if not isinstance(loss, Loss):
            raise ValueError(f"loss is {type(loss).__name__}: give one of steelyard.losses")
        if not isinstance(unknown, Resolver) and unknown not in RULES:
            raise ValueError(
                f"unknown is {unknown!r}: choose one of {', '.join(get_args(RuleName))}, or give a Resolver"
            )
        for name, parts, kind in (("weighting", weightings, Weighting), ("regularizers", regularizers, LabelPair)):
            for part in parts:
                if not isinstance(part, kind):
                    raise ValueError(f"{name} holds a {type(part).__name__}: give a {kind.__name__}")
        if loss.reduction == "none":
            raise ValueError("loss has reduction 'none': an objective is one number; choose mean, item or sum")
        self.loss = loss
        self.resolver = RULES[unknown]() if isinstance(unknown, str) else unknown
        if self.resolver.reduction not in (None, loss.reduction):
            rule = type(self.resolver).__name__
            raise ValueError(
                f"loss has reduction {loss.reduction!r}: {rule} needs reduction={self.resolver.reduction!r}"
            )
        self.masking = masking
        self.weightings = nn.ModuleList(weightings)
        self.regularizers = nn.ModuleList(regularizers)
        if any(r.link for r in self._regularizers()) and not isinstance(loss, PairLoss):
            raise NoLink(f"{type(loss).__name__} has no log-odds for LabelPair: use LabelPair(link=False)")
        if self.resolver.needs_link() and not isinstance(loss, PairLoss):
            raise NoLink(f"{type(loss).__name__} has no probability to feed back: use PseudoLabels(feedback='raw')")
        sizes = {type(part).__name__: part.n_labels for part in (loss, masking, *weightings) if part is not None}
        if len(set(sizes.values()) - {None}) > 1:
            listed = ", ".join(f"{name} for {n}" for name, n in sizes.items() if n is not None)
            raise ValueError(f"the parts were made for different numbers of labels ({listed}): make them equal")
        self.expected = ExpectedWeights(weightings[0].n_labels) if weightings else None
        self.epoch = 0
        self.overlap()

    def start_epoch(self, epoch: int, n_epochs: int) -> None:
        """Begin epoch `epoch` (from 1) of `n_epochs`: moves PLM's ratios, deferred weights, d and q.

        Beginning the epoch under way again, as after a restart, changes nothing.
        """
        if not 1 <= epoch <= n_epochs:
            raise ValueError(f"epoch is {epoch} of {n_epochs}: epochs count from 1")
        if self.epoch and epoch == self.epoch + 1:
            if self.masking is not None:
                self.masking.step()
            if self.expected is not None:
                self.expected.start_epoch()
        elif self.epoch and epoch != self.epoch:
            raise ValueError(f"epoch is {epoch}, but epoch {self.epoch} is under way: they come one after the other")
        self.epoch = epoch
        if self.masking is not None:
            self.masking.epoch = epoch
        self.resolver.start_epoch(epoch, n_epochs)
        for weighting in self._weightings():
            weighting.start_epoch(epoch, n_epochs)

    def forward(self, logits: Tensor, targets: ArrayLike, index: Tensor | None = None) -> Value:
        """Return the value of a batch; `index` (B,) are the items' numbers in the data set.

        In training mode labels are masked, and PLM, pseudo-labels and class weights are updated.

        Args:
            logits: (B, L), floating-point.
            targets: (B, L), 1 present, 0 absent, −1 unknown, between them soft.
            index: the items' numbers in the data set (B,); rules that keep something per item need it.
        """
        self._join()
        self.loss.check_logits(logits)
        checked = as_targets(targets, logits, self.loss.validate)
        seen = logits.detach()
        batch = self._batch(checked, seen, index)
        parts = {"loss": self.loss.evaluate_batch(logits, batch, self._divisor(logits, batch))}
        if self.masking is not None and self.masking.observes == "training" and self.training:
            with self._beside():
                self.masking.observe_logits(seen, self.masked(checked))
        means = self.resolver.extra(checked, logits, index) | self._penalties(logits, checked.values)
        share = self._share(logits) if means else 1.0
        parts |= {name: part * share for name, part in means.items()}
        if self.training:
            with self._beside():
                self.resolver.remember(index, seen, self.probability)
        return Value(torch.stack([part.to(parts["loss"].dtype) for part in parts.values()]).sum(), parts)

    def cells(self, targets: Targets, logits: Tensor, index: Tensor | None) -> Cells:
        """Return the coefficients of a batch: unknown labels resolved, then masked, then weighted.

        In training mode labels are masked, and the mean weights of each class are noted.
        """
        return self._batch(targets, logits, index).cells(compute_dtype(logits))

    def overlap(
        self,
        beside: Callable[[], AbstractContextManager[None]] = nullcontext,
        join: Callable[[], None] = lambda: None,
    ) -> None:
        """Do work that no gradient needs in the context `beside()`, and call `join` before a batch, as for streams."""
        self._beside, self._join = beside, join

    def class_weights(self) -> tuple[Tensor | float, Tensor | float]:
        """Return (w₊, w₋): the mean weights with which positives and negatives of each class enter training."""
        w_pos: Tensor | float
        w_neg: Tensor | float
        w_pos, w_neg = self.resolver.class_weights()
        if self.expected is not None:
            pos, neg = self.expected.class_weights()
            w_pos, w_neg = w_pos * pos, w_neg * neg
        if self.masking is not None:
            shift = self.masking.log_odds_shift.clamp(-700, 700)  # even a ratio that ran away has weights above 0
            w_pos, w_neg = w_pos * torch.exp(shift.clamp_max(0)), w_neg * torch.exp((-shift).clamp_max(0))
        return w_pos, w_neg

    def log_odds(self, logits: Tensor) -> Tensor:
        """Return log η/(1−η) of logits (B, L), with masks, weights and the rule for unknown labels undone.

        Args:
            logits: (B, L).
        """
        if not isinstance(self.loss, PairLoss):
            raise NoLink(f"{type(self.loss).__name__} has no probability per label: fit a calibrator instead")
        if self.resolver.no_link:
            raise NoLink(f"{self.resolver.no_link}: fit a calibrator instead")
        w_pos, w_neg = self.class_weights()
        return self.loss.log_odds(logits, w_pos, w_neg)

    def probability(self, logits: Tensor) -> Tensor:
        """Return η of logits (B, L): σ of `log_odds`.

        Args:
            logits: (B, L).
        """
        return torch.sigmoid(self.log_odds(logits))

    def get_extra_state(self) -> Tensor:
        """Return the epoch under way and whether its class weights are still to come, for the state_dict."""
        return torch.tensor([self.epoch, self.expected is not None and self.expected.fresh])

    def set_extra_state(self, state: Tensor) -> None:
        """Restore what `get_extra_state` returned."""
        self.epoch = int(state[0])
        if self.expected is not None:
            self.expected.fresh = bool(state[1])

    def _batch(self, targets: Targets, logits: Tensor, index: Tensor | None) -> LossBatch:
        """Return a batch with its rule, mask and weights; while training, note the weights of positives and negatives.

        A rule that the fused kernels do not know may have a state: it is called once.
        """
        dtype, rule = compute_dtype(logits), self.resolver.rule(logits)
        resolve: Callable[[], Cells] = lambda: self.resolver(targets, logits, index)  # noqa: E731
        if rule is None:
            cells = resolve()
            resolve = lambda: cells  # noqa: E731
        batch = LossBatch(targets, rule, resolve)
        if self.masking is not None and self.training:
            masking, shown = self.masking, self.masked(targets)
            mask = masking.of_batch(shown, index)
            batch = batch._replace(mask=mask, kept=lambda: masking.kept(mask, shown))
        if self.expected is not None:
            weights = torch.stack([weighting(targets.values, dtype) for weighting in self._weightings()]).prod(dim=0)
            if self.training:
                self.expected.observe(weights, *resolve()[:2])
            batch = batch._replace(weight=weights)
        return batch

    def masked(self, targets: Targets) -> Tensor:
        """Return the targets as PLM's masks see them."""
        return targets.values.clamp_min(0) if self.resolver.assumes_negative else targets.values

    def _divisor(self, logits: Tensor, batch: LossBatch) -> Tensor | float | None:
        """Return what the sum over cells is divided by, over the whole batch of all processes; None with one alone."""
        processes = n_processes()
        if processes == 1:
            return None
        if self.loss.reduction == "sum":
            return 1 / processes  # DDP takes the mean of what should be a sum
        if batch.rule is not None and isinstance(self.loss, AnalyticLoss):
            values, all_counted = batch.targets.values, batch.rule.assumed or batch.targets.all_known
            cells = Cells(values, values, None if all_counted else known(values))
        else:
            cells = batch.cells(compute_dtype(logits))
        amount = torch.as_tensor(self.loss.amount(logits.shape, cells), dtype=torch.float64, device=logits.device)
        return or_one(summed(amount)) / processes

    def _share(self, logits: Tensor) -> Tensor | float:
        """Return the weight of this process's mean over items in the mean over processes: 1 for equal batches."""
        if n_processes() == 1:
            return 1.0
        n_items = torch.tensor(float(len(logits)), device=logits.device)
        return n_items * n_processes() / summed(n_items).clamp_min(1)

    def _penalties(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return the regularisers' values by name; an unknown label's logit is not read."""
        parts: dict[str, Tensor] = {}
        if len(self.regularizers) == 0:
            return parts
        z = torch.where(known(targets), logits, 0)
        for i, regularizer in enumerate(self._regularizers()):
            scores = self.loss.log_odds(z) if regularizer.link and isinstance(self.loss, PairLoss) else z
            parts["label_pair" if i == 0 else f"label_pair_{i + 1}"] = regularizer(scores, targets)
        return parts

    def _regularizers(self) -> list[LabelPair]:
        return [r for r in self.regularizers if isinstance(r, LabelPair)]

    def _weightings(self) -> list[Weighting]:
        return [w for w in self.weightings if isinstance(w, Weighting)]
