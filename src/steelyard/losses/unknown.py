"""Rules for unknown labels (resolvers): maps from targets to the coefficients of a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from steelyard.balance.checks import check_range
from steelyard.balance.pseudo_labels import PseudoLabels
from steelyard.kernels.fused import IGNORED, KernelRule
from steelyard.labels.targets import Targets, known
from steelyard.losses.loss import Cells, compute_dtype, known_cells


class Resolver(nn.Module, ABC):
    """A rule for unknown labels: (targets, logits.detach(), index) → cells.

    It may add terms of its own to the objective (`extra`), store the model's outputs (`remember`), and it knows the
    class weights w₊, w₋ that its rule puts on known labels (`class_weights`), so that they can be undone.

    Examples:
        >>> class Half(sy.losses.Resolver):
        ...     def forward(self, targets, logits, index):
        ...         half = torch.full_like(logits, 0.5)
        ...         present = torch.where(targets.values == -1, half, targets.values)
        ...         return sy.losses.Cells(present, 1 - present)
        >>> objective = sy.Objective(sy.losses.BCE(), unknown=Half())
        >>> objective(torch.tensor([[0.0, 3.0]]), torch.tensor([[1, -1]])).total
        tensor(1.1209)
    """

    reduction: str | None = None
    """The reduction this rule needs of its loss; None: any."""

    assumes_negative: bool = False
    """True if unknown labels are negatives under this rule, and so for PLM's masks."""

    no_link: str = ""
    """The reason why class weights cannot undo this rule; empty where they can."""

    start_at_zero: bool = False
    """True to start training at logits of 0, not where the first cells are stationary."""

    @abstractmethod
    def forward(self, targets: Targets, logits: Tensor, index: Tensor | None) -> Cells:
        """Return the cells of a batch.

        Args:
            targets: checked targets (B, L).
            logits: (B, L), without gradient.
            index: the items' numbers in the data set (B,), or None.
        """

    def start_epoch(self, epoch: int, n_epochs: int) -> None:
        """Begin an epoch, counted from 1.

        Args:
            epoch: its number, from 1.
            n_epochs: of the training.
        """

    def prepare(self, targets: Tensor, index: Tensor) -> None:
        """Compute what does not depend on the logits of a batch; the next call may be for this batch."""

    def rule(self, logits: Tensor) -> KernelRule | None:
        """Return this rule as the fused kernels know it, None if they do not; called in place of the rule itself."""
        return None

    def extra(self, targets: Targets, logits: Tensor, index: Tensor | None) -> dict[str, Tensor]:
        """Return the rule's own terms of the objective by name; logits carry gradient here.

        Args:
            targets: checked targets (B, L).
            logits: (B, L), with gradient.
            index: the items' numbers in the data set (B,), or None.
        """
        return {}

    def remember(self, index: Tensor | None, logits: Tensor, probability: Callable[[Tensor], Tensor]) -> None:
        """Store what the rule needs from the model's outputs on a training batch; `probability` gives their η.

        Args:
            index: the items' numbers in the data set (B,), or None.
            logits: (B, L), without gradient.
            probability: from logits to η, with the class weights of the objective.
        """

    def class_weights(self) -> tuple[Tensor | float, Tensor | float]:
        """Return the mean weights (w₊, w₋) of known positives and negatives under this rule."""
        return 1.0, 1.0

    def stored(self) -> PseudoLabels | None:
        """Return the pseudo-labels that this rule keeps on disk, if it does."""
        return None

    def needs_link(self) -> bool:
        """Return whether `remember` reads the objective's probability, which not every loss has."""
        return False


class Weighted(Resolver):
    """A rule that only weighs: known negatives by one number, unknown labels, taken as negatives, by another."""

    def weights(self, n_labels: int) -> KernelRule:
        """Return the weights in a table of so many labels; here unknown labels are left out.

        Args:
            n_labels: L.
        """
        return IGNORED

    def forward(self, targets: Targets, logits: Tensor, index: Tensor | None) -> Cells:
        """Return the cells of a batch."""
        rule, dtype = self.weights(logits.shape[1]), compute_dtype(logits)
        if rule.assumed and rule.negative != rule.unknown:
            cells, unknown = known_cells(targets, dtype), (~known(targets.values)).to(dtype)
            return cells._replace(b=cells.b * rule.negative + unknown * rule.unknown, counted=None)
        cells = (assumed_negative if rule.assumed else known_cells)(targets, dtype)
        return cells if rule.negative == 1 else cells._replace(b=cells.b * rule.negative)

    def rule(self, logits: Tensor) -> KernelRule | None:
        """Return the rule; a subclass that computes cells in its own way has none."""
        return self.weights(logits.shape[1]) if type(self).forward is Weighted.forward else None


class Ignore(Weighted):
    """Unknown labels cost nothing and are not counted.

    Formula:
        (a, b) = (0, 0)

    Examples:
        >>> logits, targets = torch.tensor([[2.0, 2.0]]), torch.tensor([[1, -1]])
        >>> objective = sy.Objective(sy.losses.BCE(), unknown=sy.losses.Ignore())  # as unknown="ignore"
        >>> objective(logits, targets).total  # the second label costs nothing, and is not counted
        tensor(0.1269)
    """


class Negative(Weighted):
    """Unknown labels are negatives (AN, "assume negative").

    Formula:
        (a, b) = (0, 1)

    Examples:
        >>> logits, targets = torch.tensor([[2.0, 2.0]]), torch.tensor([[1, -1]])
        >>> sy.Objective(sy.losses.BCE(), unknown=sy.losses.Negative())(logits, targets).total
        tensor(1.1269)
        >>> sy.losses.BCE()(logits, torch.tensor([[1, 0]]))  # the same
        tensor(1.1269)
    """

    assumes_negative = True

    def weights(self, n_labels: int) -> KernelRule:
        """Return the weights.

        Args:
            n_labels: L.
        """
        return KernelRule(True, 1.0, 1.0)


class WeakNegative(Weighted):
    """Unknown labels are negatives of a small weight.

    Formula:
        (a, b) = (0, 1/(L − 1))

    Examples:
        >>> objective = sy.Objective(sy.losses.BCE(reduction="sum"), unknown=sy.losses.WeakNegative())
        >>> objective(torch.zeros(1, 5), torch.tensor([[0, -1, -1, -1, -1]])).total / np.log(2)  # 1 + 4 · ¼
        tensor(2.)
    """

    assumes_negative = True

    def weights(self, n_labels: int) -> KernelRule:
        """Return the weights.

        Args:
            n_labels: L.
        """
        return KernelRule(True, 1.0, 1 / max(n_labels - 1, 1))


class WeakAssumedNegative(Weighted):
    """Every label that is not positive, known or not, is a negative of a small weight (WAN, as published).

    Formula:
        (a, b) = (0, 1/(L − 1))

    Examples:
        >>> objective = sy.Objective(sy.losses.BCE(reduction="sum"), unknown=sy.losses.WeakAssumedNegative())
        >>> objective(torch.zeros(1, 5), torch.tensor([[1, 0, -1, -1, -1]])).total / np.log(2)  # 1 + 4 · ¼
        tensor(2.)
        >>> objective.probability(torch.zeros(1, 1))  # negatives counted a quarter: the odds are divided by 4
        tensor([[0.2000]])
    """

    assumes_negative = True
    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(()))  # torch.compile drops what is written to a float64 scalar

    def weights(self, n_labels: int) -> KernelRule:
        """Return the weights, and note that of negatives.

        Args:
            n_labels: L.
        """
        share = 1 / max(n_labels - 1, 1)
        self.weight.fill_(share)
        return KernelRule(True, share, share)

    def class_weights(self) -> tuple[float, Tensor]:
        """Return (1, 1/(L−1)); (1, 1) before the first batch."""
        return 1.0, self.weight


class Pseudo(Resolver):
    """Unknown labels take the pseudo-labels ỹ of a store as soft targets, with a weight w of their own.

    Formula:
        (a, b) = (w ỹ, w (1 − ỹ))

    Args:
        store: the pseudo-labels; predictions go back into it after every batch.
        weight: what an unknown label counts beside a known one.

    Examples:
        >>> store = sy.balance.PseudoLabels("pseudo", n_items=1, n_labels=2)
        >>> objective = sy.Objective(sy.losses.BCE(), unknown=sy.losses.Pseudo(store))
        >>> logits, targets, item = torch.tensor([[2.0, 2.0]]), torch.tensor([[1, -1]]), torch.tensor([0])
        >>> for epoch in (1, 2):
        ...     objective.start_epoch(epoch, 2)
        ...     print(objective(logits, targets, item).total)  # the target of the second label is ½, then σ(2)
        tensor(0.6269)
        tensor(0.2450)
    """

    def __init__(self, store: PseudoLabels, weight: float = 1.0) -> None:
        super().__init__()
        check_range("at least 0", weight=weight)
        self.store, self.weight = store, float(weight)

    def forward(self, targets: Targets, logits: Tensor, index: Tensor | None) -> Cells:
        """Return the cells of a batch."""
        cells = known_cells(targets, compute_dtype(logits))
        unknown = (~known(targets.values)).to(cells.a.dtype) * self.weight
        soft = read_for(self.store, need_index(index), targets.values).to(cells.a.dtype)
        return Cells(cells.a + unknown * soft, cells.b + unknown * (1 - soft))

    def start_epoch(self, epoch: int, n_epochs: int) -> None:
        """Begin an epoch: read what the epoch before wrote."""
        self.store.start_epoch(epoch)

    def stored(self) -> PseudoLabels | None:
        """Return the store."""
        return self.store

    def needs_link(self) -> bool:
        """Return whether the store keeps the corrected η."""
        return self.store.feedback == "link"

    def remember(self, index: Tensor | None, logits: Tensor, probability: Callable[[Tensor], Tensor]) -> None:
        """Write the predictions to the store."""
        write_back(self.store, need_index(index), logits, probability)


class Changing(Resolver):
    """A rule that changes cells by the model's own outputs: no class weight undoes that, so there is no link."""

    no_link = "unknown labels were changed by the model's own outputs, which no link undoes"

    def _register_now(self, *values: float) -> None:
        """Keep what depends on the epoch in a tensor, which a captured training step reads again."""
        self.register_buffer("now", torch.tensor(values, dtype=torch.float64), persistent=False)
        self.now: Tensor

    def _set_now(self, *values: float) -> None:
        self.now.copy_(torch.tensor(values, dtype=torch.float64))


def assumed_negative(targets: Targets, dtype: torch.dtype) -> Cells:
    """Return the cells of `targets` with unknown labels as negatives."""
    values = targets.values if targets.all_known else targets.values.clamp_min(0)
    return known_cells(Targets(values, True, targets.hard), dtype)


def read_for(store: PseudoLabels, index: Tensor, targets: Tensor) -> Tensor:
    """Return the pseudo-labels (B, L) of the items whose targets these are."""
    soft = store.read(index)
    if soft.shape != targets.shape:
        raise ValueError(
            f"the pseudo-labels at index have shape {tuple(soft.shape)}, but targets has {tuple(targets.shape)}: give "
            "one index per item, and PseudoLabels of as many labels"
        )
    return soft


def write_back(store: PseudoLabels, index: Tensor, logits: Tensor, probability: Callable[[Tensor], Tensor]) -> None:
    """Store σ(z) or the corrected η, as the store's `feedback` says."""
    store.write(index, torch.sigmoid(logits) if store.feedback == "raw" else probability(logits))


def need_index(index: Tensor | None) -> Tensor:
    """Return the items' numbers; raise if they are missing, for a rule that keeps a value per item."""
    if index is None:
        raise ValueError("index is missing: pseudo-labels belong to items, so give each item's number in the data set")
    return index
