"""The dynamic loss of the partial-annotation paper, as a rule for unknown labels and as a loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from steelyard.balance.checks import check_choice, check_range
from steelyard.balance.epoch_cache import EpochCache
from steelyard.balance.philox import uniform, uniform_at
from steelyard.balance.picked_labels import PickedLabels
from steelyard.balance.processes import n_processes, summed
from steelyard.balance.pseudo_labels import PseudoLabels
from steelyard.labels.targets import ArrayLike, Targets, as_targets, as_tensor, known, refuse
from steelyard.losses.bce import BCE
from steelyard.losses.loss import Cells, compute_dtype
from steelyard.losses.unknown import Resolver, need_index, read_for, write_back

Schedule = Literal["exp", "linear"]
Count = Literal["known", "pseudo"]
LOW = math.log(0.1 / 0.9)
"""The logit of .1, below which all of an item's predictions double its cost (p)."""
PICK_STREAM = 0x5041  # keeps the draws of picked labels apart from those of masks under one seed


class Annotation(Resolver):
    """Paper 3's whole rule, over BCE and with reduction "item".

    Formula:
        ℓ = p (α (A(y) + d A(ỹ)) + β (B(y) + d B(ỹ))), β = max(P/T, γ), α = 1 − β
        A(y) = mean(−y log ŷ), B(y) = mean(−(1 − y) log(1 − ŷ))
        d = exp((e + m)/E − 1) or d = (e + m)/E

    Means of y are over the known labels of an item, of ỹ over its picked ones. P positives among T label slots (B·L,
    unknown ones included) of the batch. The paper does not say what P counts; with "pseudo" it is Σy + Σỹ: predictions
    that all rise lower α, and do not run away. d is the weight of pseudo-labels in epoch e of E; it is not capped. p =
    2 for an item all of whose predictions are below .1, else 1. Each unknown label is picked, that is, counted, with
    probability q, drawn again in every epoch.

    Args:
        store: the pseudo-labels ỹ, or None where the caller passes them (`cells`). PickedLabels are for a BlockHead.
        gamma: γ, the least β (.05).
        m: the head start of d (3 epochs).
        q: a number, or (first, last) to rise linearly over the epochs (.3: the paper gives none).
        schedule: of d, "exp" or "linear".
        use_alpha_beta, use_d, use_p: False leaves the factor out (its ablation): then it is 1.
        seed: of the picked labels.
        count: what P counts: "known" positives, or the "pseudo"-labels of unknown labels too.

    Examples:
        >>> store = sy.balance.PseudoLabels("pseudo", n_items=1, n_labels=3)
        >>> objective = sy.Objective(sy.losses.BCE(reduction="item"), unknown=sy.losses.Annotation(store, q=1.0))
        >>> objective.start_epoch(1, 5)
        >>> objective(torch.tensor([[2.0, -1.0, 1.0]]), torch.tensor([[1, -1, -1]]), torch.tensor([0])).total
        tensor(0.4175)
        >>> objective.start_epoch(2, 5)
        >>> store.read(torch.tensor([0]))  # the second epoch reads the outputs of the first
        tensor([[0.8819, 0.2677, 0.7323]])
    """

    reduction = "item"

    def __init__(
        self,
        store: PseudoLabels | PickedLabels | None = None,
        gamma: float = 0.05,
        m: float = 3.0,
        q: float | tuple[float, float] = 0.3,
        schedule: Schedule = "exp",
        use_alpha_beta: bool = True,
        use_d: bool = True,
        use_p: bool = True,
        seed: int = 0,
        count: Count = "known",
    ) -> None:
        super().__init__()
        check_choice(Count, count=count)
        check_choice(Schedule, schedule=schedule)
        check_range("between 0 and 1", gamma=gamma)
        check_range("finite", m=m)
        first, last = (q, q) if isinstance(q, int | float) else q
        if not (0 <= first <= 1 and 0 <= last <= 1):
            raise ValueError(f"q is {q}: it must be in [0, 1]")
        self.store, self.gamma, self.m, self.seed = store, float(gamma), float(m), int(seed)
        self.q_first, self.q_last, self.schedule = float(first), float(last), schedule
        self.use_alpha_beta, self.use_d, self.use_p, self.count = use_alpha_beta, use_d, use_p, count
        self.epoch, self.n_epochs = 1, 1
        self.register_buffer("weight_sums", torch.zeros(3, dtype=torch.float64))  # Σα, Σβ, batches
        self.weight_sums: Tensor
        d = torch.tensor([self.d], dtype=torch.float64)  # torch.compile drops what is written to a float64 scalar
        self.register_buffer("trust", d, persistent=False)
        self.trust: Tensor
        self.ahead = EpochCache()
        self._prepared: tuple[Tensor, Cells] | None = None

    @property
    def q(self) -> float:
        """The chance that an unknown label is picked in this epoch."""
        return self._chance(self.epoch)

    def _chance(self, epoch: int) -> float:
        done = (epoch - 1) / max(self.n_epochs - 1, 1)
        return self.q_first + (self.q_last - self.q_first) * done

    @property
    def d(self) -> float:
        """The weight of pseudo-labels in this epoch."""
        if not self.use_d:
            return 1.0
        progress = (self.epoch + self.m) / self.n_epochs
        return math.exp(progress - 1) if self.schedule == "exp" else progress

    def start_epoch(self, epoch: int, n_epochs: int) -> None:
        """Set d and q, and read what the epoch before wrote."""
        if not epoch >= 1 or n_epochs < 1:
            raise ValueError(f"epoch is {epoch} of {n_epochs}: epochs count from 1")
        self.epoch, self.n_epochs = epoch, n_epochs
        self.trust.fill_(self.d)
        self.ahead.forget()
        if self.store is not None:
            self.store.start_epoch(epoch)

    def forward(self, targets: Targets, logits: Tensor, index: Tensor | None) -> Cells:
        """Return the cells of a batch, with pseudo-labels from the store and picks drawn by (seed, epoch, item)."""
        items, (prepared, self._prepared) = need_index(index), (self._prepared, None)
        if prepared is None or prepared[0] is not index or prepared[1].a.dtype != compute_dtype(logits):
            return self._doubted(self._looked_up(targets.values, items, compute_dtype(logits)), logits)
        return self._doubted(prepared[1], logits)

    def prepare(self, targets: Tensor, index: Tensor) -> None:
        """Look up the values that follow from targets and pseudo-labels, for float32 logits."""
        self._prepared = index, self._looked_up(targets, index, torch.float32)

    def draw_ahead(self, targets: Tensor) -> None:
        """Draw this epoch's picks for all items, whose targets are `targets` (N, L), at once.

        For the rest of the epoch what follows from them is looked up; the targets of item `index` must be the same.
        """

        def rows(some: slice) -> Tensor:
            items = torch.arange(some.start, some.stop, device=targets.device)
            return self._shares(targets[some], self._picked(items, targets.shape[1]), torch.float32)

        self.ahead.draw(self.epoch, len(targets), targets.shape[1], rows)

    def cells(self, targets: Targets, logits: Tensor, pseudo: Tensor, picked: Tensor) -> Cells:
        """Return the cells of a batch given pseudo-labels ỹ and which unknown labels are picked, both (B, L)."""
        shares = self._shares(targets.values, picked, compute_dtype(logits))
        return self._doubted(self._weighed(targets.values, pseudo, shares), logits)

    def _looked_up(self, targets: Tensor, items: Tensor, dtype: torch.dtype) -> Cells:
        """Return the cells without the factor p, with pseudo-labels from the store."""
        store = self.stored()
        if store is None:
            raise ValueError("store is missing: Annotation needs PseudoLabels to read from")
        table = self.ahead.table(self.epoch) if dtype == torch.float32 else None
        if table is not None:
            shares = table[items]
        else:
            shares = self._shares(targets, self._picked(items, targets.shape[1]), dtype)
        return self._weighed(targets, read_for(store, items, targets), shares)

    def _shares(self, targets: Tensor, picked: Tensor, dtype: torch.dtype) -> Tensor:
        """Return what each label counts in its item: 1/(known ones), or d/(picked ones), or 0."""
        is_known = known(targets)
        picked = picked & ~is_known
        return is_known.to(dtype) / _at_least_one(is_known) + self.trust.to(dtype) * picked / _at_least_one(picked)

    def _weighed(self, targets: Tensor, pseudo: Tensor, shares: Tensor) -> Cells:
        """Return the cells without the factor p, given each label's share in its item."""
        dtype = shares.dtype
        y = torch.where(known(targets), targets.to(dtype), pseudo.to(dtype))
        alpha, beta = (weight.to(dtype) for weight in self.alpha_beta(y if self.count == "pseudo" else targets))
        return Cells(shares * alpha * y, shares * beta * (1 - y), shares != 0)

    def _doubted(self, cells: Cells, logits: Tensor) -> Cells:
        """Return the cells times p."""
        if not self.use_p:
            return cells
        p = 1 + (logits.amax(dim=1, keepdim=True) < LOW).to(cells.a.dtype)
        return cells._replace(a=cells.a * p, b=cells.b * p)

    def alpha_beta(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return (α, β) of a batch (over several processes, of the whole batch), and note them for the link.

        Args:
            targets: (B, L), 1, 0, −1 (unknown), or in [0, 1] with pseudo-labels for unknown labels.
        """
        return self.balanced(targets.clamp_min(0).sum(dtype=torch.float64), targets.numel())

    def balanced(self, positives: Tensor, n_slots: int) -> tuple[Tensor, Tensor]:
        """Return (α, β) of a batch that has so many positives, float64, among its label slots; see `alpha_beta`."""
        if self.use_alpha_beta:
            slots: Tensor | int = max(n_slots, 1)
            if n_processes() > 1:
                both = summed(torch.stack([positives, torch.full_like(positives, n_slots)]))
                positives, slots = both[0], both[1].clamp_min(1)
            beta = (positives / slots).clamp_min(self.gamma)
            alpha = 1 - beta
        else:
            alpha = beta = torch.ones_like(positives)
        if self.training:
            self.weight_sums += torch.stack([alpha, beta, torch.ones_like(beta)]).to(self.weight_sums.device)
        return alpha, beta

    def stored(self) -> PseudoLabels | None:
        """Return the store of all cells."""
        return None if isinstance(self.store, PickedLabels) else self.store

    def needs_link(self) -> bool:
        """Return whether the store keeps the corrected η."""
        return self.store is not None and self.store.feedback == "link"

    def remember(self, index: Tensor | None, logits: Tensor, probability: Callable[[Tensor], Tensor]) -> None:
        """Write the predictions to the store."""
        if (store := self.stored()) is not None:
            write_back(store, need_index(index), logits, probability)

    def class_weights(self) -> tuple[Tensor, Tensor]:
        """Return the running means of α and β, scalars; 1 before the first batch."""
        alpha, beta, n = self.weight_sums
        return torch.where(n > 0, alpha / n, 1), torch.where(n > 0, beta / n, 1)

    def _picked(self, items: Tensor, n_labels: int) -> Tensor:
        return self.draws(items, n_labels, 0, self.epoch)

    def draws(self, items: Tensor, n_labels: int, first: int, epoch: int) -> Tensor:
        """Return which labels (B, n), from `first` on, a multiple of 4, an epoch picks if they are unknown."""
        return uniform(self.seed ^ (PICK_STREAM << 32), epoch, items, n_labels, first) < self._chance(epoch)

    def draws_at(self, items: Tensor, labels: Tensor, epoch: int) -> Tensor:
        """Return whether an epoch picks each of some cells (n,), given by item and label, if they are unknown."""
        return uniform_at(self.seed ^ (PICK_STREAM << 32), epoch, items, labels) < self._chance(epoch)


class PartialAnnotation(BCE):
    """Paper 3's loss in full, for a caller who keeps the pseudo-labels: see `Annotation` for the formula.

    Its stationary odds are α/β times the true odds, so its link has the running means of α and β as w₊ and w₋.

    Args:
        gamma: γ, the least β (.05).
        m: the head start of d (3 epochs).
        q: the chance that an unknown label is picked; a number, or (first, last) (.3).
        schedule: of d, "exp" or "linear".
        use_alpha_beta, use_d, use_p: False leaves the factor out (the paper's ablation): then it is 1.
        count: what P counts: "known" positives, or the "pseudo"-labels of unknown labels too.
        validate: check target values on CUDA too.

    Examples:
        >>> loss, z = sy.losses.PartialAnnotation(), torch.zeros(1, 3)
        >>> targets, pseudo = torch.tensor([[1, 0, -1]]), torch.tensor([[0.5, 0.5, 0.9]])
        >>> loss(z, targets, pseudo, epoch=1, n_epochs=10, pick=targets == -1)
        tensor(0.5875)
        >>> loss(z, targets, pseudo, epoch=9, n_epochs=10, pick=targets == -1)  # pseudo-labels weigh more
        tensor(0.8828)
    """

    def __init__(
        self,
        gamma: float = 0.05,
        m: float = 3.0,
        q: float | tuple[float, float] = 0.3,
        schedule: Schedule = "exp",
        use_alpha_beta: bool = True,
        use_d: bool = True,
        use_p: bool = True,
        count: Count = "known",
        *,
        validate: bool = False,
    ) -> None:
        super().__init__(reduction="item", validate=validate)
        self.rule = Annotation(None, gamma, m, q, schedule, use_alpha_beta, use_d, use_p, count=count)

    def forward(  # type: ignore[override]
        self,
        logits: Tensor,
        targets: ArrayLike,
        pseudo: ArrayLike,
        epoch: int,
        n_epochs: int,
        pick: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the mean over items in epoch `epoch` (from 1) of `n_epochs`.

        `pseudo` (B, L) are the pseudo-labels ỹ, read at unknown labels only; `pick` (bool (B, L)) says which of those
        are picked; without it, each is picked with probability q.
        """
        self.check_logits(logits)
        checked = as_targets(targets, logits, self.validate)
        soft = as_tensor(pseudo)
        for name, x in (("pseudo", soft), ("pick", pick)):
            if x is not None and x.shape != logits.shape:
                raise ValueError(
                    f"{name} has shape {tuple(x.shape)}, but logits has {tuple(logits.shape)}: make them equal"
                )
        if pick is not None and pick.dtype != torch.bool:
            raise ValueError(f"pick has dtype {pick.dtype}: give bool, True where an unknown label is picked")
        self._check_pseudo(soft, checked)
        self.rule.start_epoch(epoch, n_epochs)
        if pick is None:
            pick = torch.rand(logits.shape, generator=generator, device=logits.device) < self.rule.q
        return self.evaluate(logits, self.rule.cells(checked, logits, soft, pick))

    def _check_pseudo(self, soft: Tensor, targets: Targets) -> None:
        """Raise on a pseudo-label outside [0, 1] where it is read; values are looked at as those of targets are."""
        if torch.compiler.is_compiling() or not (self.validate or soft.device.type == "cpu"):
            return
        bad = ~known(targets.values) & ~((soft >= 0) & (soft <= 1))
        refuse(bad, "pseudo", soft, "a pseudo-label is in [0, 1]")

    def log_odds(
        self,
        z: Tensor,
        pos_weight: ArrayLike | float | None = None,
        neg_weight: ArrayLike | float | None = None,
    ) -> Tensor:
        """Return log η/(1−η): that of BCE with the running means of α and β, times any weights given, undone."""
        alpha, beta = self.rule.class_weights()
        out = super().log_odds(z, pos_weight, neg_weight)
        return out + torch.log(beta / alpha).to(out.device, out.dtype)


def _at_least_one(mask: Tensor) -> Tensor:
    return mask.sum(dim=1, keepdim=True).clamp_min(1)
