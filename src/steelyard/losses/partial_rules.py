"""Rules for unknown labels, 2021 to 2024, each a map to cells (a, b); sources in docs/reference/rules-for-unknown.md.

All but the last change cells by the outputs of the model that is being trained. Over BCE the gradient of each is that
of its paper; its value may differ by what no gradient depends on. The page says where the authors' code differs.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from steelyard.balance.checks import check_choice, check_range
from steelyard.balance.processes import n_processes
from steelyard.labels.targets import ArrayLike, Targets, as_tensor, check_known, known
from steelyard.losses.focused import LOG_ZERO
from steelyard.losses.loss import Cells, compute_dtype
from steelyard.losses.unknown import Changing, Resolver, assumed_negative, need_index

Mode = Literal["reject", "correct", "correct_for_good"]
Ends = tuple[float, float]


class LargeLoss(Changing):
    """Unknown labels are negatives, except those of the largest loss (Kim et al. 2022: LL-R, LL-Ct, LL-Cp).

    "reject" (LL-R) leaves out the ⌈(e−1)·δ·B·L⌉ unknown labels of a batch whose loss as negatives is largest in epoch
    e, so of the largest logits; "correct" (LL-Ct) takes them as positives in that step; "correct_for_good" (LL-Cp)
    takes ⌈δ·B·L⌉ in every step from epoch 2 on, and they stay positives. Ties go together.

    Formula:
        (a, b) = (0, 0) or (1, 0) for the ⌈(e − 1) δ B L⌉ largest z, else (0, 1)

    Args:
        mode: "reject", "correct" or "correct_for_good".
        delta: δ, the share of all labels by which each epoch picks more (the authors try .001 to .005).
        n_items, n_labels: of the training set, for "correct_for_good".

    Examples:
        >>> objective = sy.Objective(sy.losses.BCE(), unknown=sy.losses.LargeLoss("reject", delta=0.25))
        >>> objective.start_epoch(2, 3)
        >>> z = torch.tensor([[3.0, 3.0, -1.0, -2.0]], requires_grad=True)
        >>> objective(z, torch.tensor([[1, -1, -1, -1]])).total.backward()
        >>> z.grad  # of the unknown labels, the one of the largest loss as a negative (z = 3) is left out
        tensor([[-0.0119,  0.0000,  0.0672,  0.0298]])
    """

    assumes_negative = True

    def __init__(self, mode: Mode = "reject", delta: float = 0.002, n_items: int = 0, n_labels: int = 0) -> None:
        super().__init__()
        check_choice(Mode, mode=mode)
        check_range("between 0 and 1", delta=delta)
        self.mode, self.delta = mode, float(delta)
        self._register_now(0.0)
        kept = (n_items, n_labels) if mode == "correct_for_good" else (0, 0)
        self.register_buffer("corrected", torch.zeros(kept, dtype=torch.bool))
        self.corrected: Tensor

    def start_epoch(self, epoch: int, n_epochs: int) -> None:
        """Set how many labels are picked."""
        if self.mode == "correct_for_good":
            _refuse_processes("mode is 'correct_for_good'")
        self._set_now(self.delta * (min(epoch - 1, 1) if self.mode == "correct_for_good" else epoch - 1))

    def forward(self, targets: Targets, logits: Tensor, index: Tensor | None) -> Cells:
        """Return the cells of a batch."""
        cells, open_ = assumed_negative(targets, compute_dtype(logits)), ~known(targets.values)
        positive = torch.zeros_like(open_)
        if self.mode == "correct_for_good":
            positive = self.corrected[need_index(index)] & open_
        picked, n = open_ & ~positive, (self.now * logits.numel() - 1e-6).ceil()
        order = torch.where(picked, logits, -math.inf).flatten().sort(descending=True).values
        if len(order):
            picked &= (logits >= order[(n.long() - 1).clamp(0, len(order) - 1)]) & (n > 0)  # ties go together
        if self.mode == "correct_for_good" and self.training:
            self.corrected[need_index(index)] |= picked
        a = torch.where(positive | (picked & (self.mode != "reject")), 1.0, cells.a)
        return Cells(a, torch.where(positive | picked, 0.0, cells.b))


class SPLC(Changing):
    """Unknown labels are negatives, or positives where the model is sure (Zhang et al. 2021: SPLC).

    Labels are corrected from the second epoch on.

    Formula:
        (a, b) = (1, 0) where σ(z) > τ, else (0, 1)

    Args:
        tau: τ (the authors: .6).
        start: the epoch, from 1, in which correction begins (the authors: 2).

    Examples:
        >>> objective = sy.Objective(sy.losses.BCE(), unknown=sy.losses.SPLC())
        >>> objective.start_epoch(2, 10)
        >>> z = torch.tensor([[0.0, 3.0, -3.0]], requires_grad=True)
        >>> objective(z, torch.tensor([[1, -1, -1]])).total.backward()
        >>> z.grad  # σ(3) = .95 is above τ: that unknown label is now a positive, and pulled up
        tensor([[-0.1667, -0.0158,  0.0158]])
    """

    assumes_negative = True

    def __init__(self, tau: float = 0.6, start: int = 2) -> None:
        super().__init__()
        check_range("between 0 and 1", tau=tau)
        if start < 1:
            raise ValueError(f"start is {start}: epochs count from 1")
        self.tau, self.start = float(tau), int(start)
        self._register_now(math.inf)

    def start_epoch(self, epoch: int, n_epochs: int) -> None:
        """Set the logit above which an unknown label is positive."""
        self._set_now(math.log(self.tau / (1 - self.tau)) if epoch >= self.start else math.inf)

    def forward(self, targets: Targets, logits: Tensor, index: Tensor | None) -> Cells:
        """Return the cells of a batch."""
        cells = assumed_negative(targets, compute_dtype(logits))
        positive = ~known(targets.values) & (logits > self.now)
        return Cells(torch.where(positive, 1.0, cells.a), torch.where(positive, 0.0, cells.b))


class Selective(Changing):
    """Unknown labels are negatives, except likely positives, which are left out (CSL).

    Ben-Baruch et al. 2022: of a batch of B items the K·B unknown labels of the largest logits ("label
    likelihood"), and all unknown labels of a class whose prior n_c/k_c exceeds a bound ("label prior"). A class without
    a known negative has no prior.

    Args:
        top: K (the authors: 5).
        prior_above: the bound (the authors: .05); 1 for none.
        counts: positives n_c of each class (L,).
        n_known: known labels k_c, one number or (L,).

    Examples:
        >>> objective = sy.Objective(sy.losses.BCE(), unknown=sy.losses.Selective(top=1))
        >>> z = torch.tensor([[0.0, 3.0, -3.0]], requires_grad=True)
        >>> objective(z, torch.tensor([[1, -1, -1]])).total.backward()
        >>> z.grad  # the unknown label that is likeliest to be positive is left out
        tensor([[-0.1667,  0.0000,  0.0158]])
    """

    assumes_negative = True

    def __init__(
        self,
        top: int = 5,
        prior_above: float = 0.05,
        counts: ArrayLike | None = None,
        n_known: int | ArrayLike | None = None,
    ) -> None:
        super().__init__()
        if top < 0 or not 0 <= prior_above <= 1:
            raise ValueError(f"top is {top} and prior_above is {prior_above}: give at least 0, and a share in [0, 1]")
        self.top, self.prior_above = int(top), float(prior_above)
        frequent = torch.zeros(1, dtype=torch.bool)
        if counts is not None and n_known is not None:
            n = as_tensor(counts).double()
            k = check_known(n_known, len(n))
            frequent = (n > prior_above * k) & (n < k)
        self.register_buffer("frequent", frequent, persistent=False)
        self.frequent: Tensor

    def forward(self, targets: Targets, logits: Tensor, index: Tensor | None) -> Cells:
        """Return the cells of a batch."""
        cells, open_ = assumed_negative(targets, compute_dtype(logits)), ~known(targets.values)
        dropped = open_ & self.frequent
        ranked = torch.where(open_ & ~dropped, logits, -math.inf).flatten()
        likeliest = ranked.topk(min(self.top * len(logits), ranked.numel())).indices
        dropped |= open_ & torch.zeros_like(dropped).flatten().index_fill(0, likeliest, True).view_as(dropped)
        return Cells(cells.a, torch.where(dropped, 0.0, cells.b))


class EntropyMaximizing(Changing):
    """Unknown labels cost −α times the entropy of p = σ(z) (Zhou et al. 2022: EM).

    Where only positives are known, training rests at z > 0 with odds of being *annotated* of α z σ(z): see
    `annotated_log_odds`.

    Formula:
        cost(z) = −α H(p), H(p) = −p log p − (1 − p) log(1 − p)
        (∂ cost)/(∂ z) = α z p (1 − p), (a, b) = (α (−z)₊ p, α z₊ (1 − p))

    Args:
        alpha: α (the authors: .2 VOC, .1 COCO and NUS-WIDE, .01 CUB).

    Examples:
        >>> objective = sy.Objective(sy.losses.BCE(), unknown=sy.losses.EntropyMaximizing(alpha=0.1))
        >>> z = torch.tensor([[0.0, 2.0, -2.0]], requires_grad=True)
        >>> objective(z, torch.tensor([[1, -1, -1]])).total.backward()
        >>> z.grad  # unknown labels are pulled towards z = 0, where the entropy is largest
        tensor([[-0.1667,  0.0070, -0.0070]])
    """

    start_at_zero = True

    def __init__(self, alpha: float = 0.1) -> None:
        super().__init__()
        check_range("positive", alpha=alpha)
        self.alpha = float(alpha)

    def forward(self, targets: Targets, logits: Tensor, index: Tensor | None) -> Cells:
        """Return the cells of a batch."""
        cells, z = assumed_negative(targets, compute_dtype(logits)), logits.to(compute_dtype(logits))
        a, b = (self.alpha * side.clamp_min(0) * torch.sigmoid(-side) for side in (-z, z))
        open_ = ~known(targets.values)
        return Cells(torch.where(open_, a, cells.a), torch.where(open_, b, cells.b))

    def annotated_log_odds(self, logits: Tensor) -> Tensor:
        """Return log α z σ(z), floored at z ≤ 0: where only positives are known, log-odds of being annotated.

        Args:
            logits: (B, L).
        """
        z = logits.to(compute_dtype(logits))
        inside = torch.log(z.clamp_min(torch.finfo(z.dtype).tiny)) + logsigmoid(z) + math.log(self.alpha)
        return torch.where(z > 0, inside.clamp_min(LOG_ZERO), LOG_ZERO)


class SoftNegatives(EntropyMaximizing):
    """Entropy, and the surest unknown labels become soft negatives (Zhou et al. 2022: EM + APL).

    Of E epochs the first W have the entropy alone. Each further one labels the ⌊θ U_c/(E−W)⌋ of the U_c unknown labels
    of class c that have the lowest outputs of the epoch before, with those outputs p₀ as soft targets of weight β.

    Formula:
        (a, b) = (β p₀, β (1 − p₀)) for these

    Args:
        alpha: α (the authors: .2 VOC, .1 COCO and NUS-WIDE, .01 CUB).
        share: θ, the share of unknown labels to label in the end (the authors: .9).
        beta: β (the authors: .02 VOC, .9 COCO, .2 NUS-WIDE, .4 CUB).
        warm_up: W/E (the authors: 5 of 10, 3 or 4 on two sets).
        n_items, n_labels: of the training set.

    Examples:
        >>> rule = sy.losses.SoftNegatives(share=0.5, n_items=2, n_labels=1)
        >>> objective, index = sy.Objective(sy.losses.BCE(), unknown=rule), torch.tensor([0, 1])
        >>> for epoch in (1, 2):
        ...     objective.start_epoch(epoch, 2)
        ...     _ = objective(torch.tensor([[-3.0], [1.0]]), torch.tensor([[-1], [-1]]), index)
        >>> rule.soft  # from epoch 2 on, the surer negative of the two has its own output σ(−3) as a soft label
        tensor([[0.0474],
                [   nan]])
    """

    def __init__(
        self,
        alpha: float = 0.1,
        share: float = 0.9,
        beta: float = 0.2,
        warm_up: float = 0.5,
        n_items: int = 0,
        n_labels: int = 0,
    ) -> None:
        super().__init__(alpha)
        if not (0 < share <= 1 and 0 <= warm_up < 1 and 0 <= beta < math.inf):
            raise ValueError(f"share is {share}, warm_up {warm_up}, beta {beta}: give shares up to 1, and beta ≥ 0")
        self.share, self.beta, self.warm_up = float(share), float(beta), float(warm_up)
        self.register_buffer("outputs", torch.full((n_items, n_labels), math.nan))  # where unknown, in this epoch
        self.register_buffer("soft", torch.full((n_items, n_labels), math.nan))
        self.register_buffer("labelled_in", torch.zeros(1, dtype=torch.int64))
        self.outputs: Tensor
        self.soft: Tensor
        self.labelled_in: Tensor

    def start_epoch(self, epoch: int, n_epochs: int) -> None:
        """Label the surest negatives of the epoch before, once an epoch."""
        _refuse_processes("objective.unknown is entropy_apl")
        first = max(math.ceil(self.warm_up * n_epochs) + 1, 2)
        if epoch < first or epoch <= int(self.labelled_in):
            return
        unlabelled = self.outputs.isfinite()
        n = (unlabelled | self.soft.isfinite()).sum(0) * self.share / (n_epochs - first + 1)
        ranks = torch.where(unlabelled, self.outputs, math.inf).argsort(0).argsort(0)
        self.soft.copy_(torch.where(unlabelled & (ranks < n.floor()), self.outputs, self.soft))
        self.labelled_in.fill_(epoch)

    def forward(self, targets: Targets, logits: Tensor, index: Tensor | None) -> Cells:
        """Return the cells of a batch."""
        cells, items = super().forward(targets, logits, index), need_index(index)
        soft = self.soft[items].to(cells.a.dtype)
        open_, given = ~known(targets.values), soft.isfinite()
        if self.training:
            self.outputs[items] = torch.where(open_ & ~given, torch.sigmoid(logits).float(), math.nan)
        soft, given = torch.where(given, soft, 0.0), given & open_
        a, b = self.beta * soft, self.beta * (1 - soft)
        return Cells(torch.where(given, a, cells.a), torch.where(given, b, cells.b))


class GeneralizedRobust(Changing):
    """Unknown labels cost as much as the model makes them likely to be positive (Chen et al. 2024, GR loss).

    Formula:
        cost(p) = v k {1 − p^q₊}/q₊ + v (1 − k) {1 − (1 − p)^q₋}/q₋
        k = σ(w p + b), v = exp(−((p − μ)/s)²/2)
        (a, b) = (v k p^q₊, v (1 − k) (1 − p)^q₋)

    k is the chance that an unknown label of output p is positive, v its weight, both constants to the gradient. w and b
    move by (e−1)/E of the way in epoch e of E, μ and s by e/E, as in the authors' code.

    Args:
        slope: w at the start and at the end (the authors' code: 0, 2).
        offset: b at the start and at the end (−2, −2).
        centre: μ at the start and at the end (.5, .8).
        spread: s at the start and at the end (2, .5).
        q_pos, q_neg: q₊ and q₋ (.01, 1).

    Examples:
        >>> objective = sy.Objective(sy.losses.BCE(), unknown=sy.losses.GeneralizedRobust())
        >>> objective.start_epoch(10, 10)
        >>> z = torch.tensor([[0.0, 3.0, -3.0]], requires_grad=True)
        >>> objective(z, torch.tensor([[1, -1, -1]])).total.backward()
        >>> z.grad  # the unknown label with the large output is hardly pulled down: it may be positive
        tensor([[-0.1667,  0.0017, -0.0085]])
    """

    def __init__(
        self,
        slope: Ends = (0.0, 2.0),
        offset: Ends = (-2.0, -2.0),
        centre: Ends = (0.5, 0.8),
        spread: Ends = (2.0, 0.5),
        q_pos: float = 0.01,
        q_neg: float = 1.0,
    ) -> None:
        super().__init__()
        if not min(spread) > 0:
            raise ValueError(f"spread is {spread}: both ends must be positive")
        if not (0 < q_pos <= 1 and 0 < q_neg <= 1):
            raise ValueError(f"q_pos is {q_pos} and q_neg is {q_neg}: both must be above 0 and at most 1")
        self.ends = (slope, offset, centre, spread)
        self.q_pos, self.q_neg = float(q_pos), float(q_neg)
        self._register_now(*(first for first, _ in self.ends))

    def start_epoch(self, epoch: int, n_epochs: int) -> None:
        """Set w, b, μ and s."""
        done = ((epoch - 1) / n_epochs, (epoch - 1) / n_epochs, epoch / n_epochs, epoch / n_epochs)
        self._set_now(*(first + (last - first) * t for (first, last), t in zip(self.ends, done, strict=True)))

    def forward(self, targets: Targets, logits: Tensor, index: Tensor | None) -> Cells:
        """Return the cells of a batch."""
        dtype = compute_dtype(logits)
        cells, open_, p = assumed_negative(targets, dtype), ~known(targets.values), torch.sigmoid(logits.to(dtype))
        w, b, centre, spread = self.now.to(dtype)
        k, v = torch.sigmoid(w * p + b), torch.exp(-0.5 * ((p - centre) / spread) ** 2)
        up, down = v * k * p**self.q_pos, v * (1 - k) * torch.sigmoid(-logits.to(dtype)) ** self.q_neg
        return Cells(torch.where(open_, up, cells.a), torch.where(open_, down, cells.b))


class Teacher(Resolver):
    """Unknown labels take another model's calibrated probabilities t as soft targets.

    Formula:
        (a, b) = (w t, w (1 − t))

    With calibrated probabilities the mean target of a label is its probability, so nothing has to be undone.
    `steelyard.calibrate.teacher_probabilities` calibrates scores, such as a zero-shot model's.

    Args:
        probabilities: of every training item (N, L); NaN leaves an unknown label out.
        weight: w, what an unknown label counts beside a known one.

    Examples:
        >>> rule = sy.losses.Teacher(torch.tensor([[0.9, 0.2, float("nan")]]))
        >>> objective = sy.Objective(sy.losses.BCE(), unknown=rule)
        >>> z = torch.zeros(1, 3, requires_grad=True)
        >>> objective(z, torch.tensor([[1, -1, -1]]), torch.tensor([0])).total.backward()
        >>> z.grad  # the second label is pulled down to .2; the third, which the teacher does not know, is left out
        tensor([[-0.2500,  0.1500,  0.0000]])
    """

    def __init__(self, probabilities: ArrayLike, weight: float = 1.0) -> None:
        super().__init__()
        t = as_tensor(probabilities).float()
        if t.ndim != 2 or not bool(((t >= 0) & (t <= 1) | t.isnan()).all()):
            raise ValueError("probabilities: give (N, L) in [0, 1], one row for each training item, NaN for none")
        check_range("at least 0", weight=weight)
        self.weight = float(weight)
        self.register_buffer("probabilities", t, persistent=False)
        self.probabilities: Tensor

    def forward(self, targets: Targets, logits: Tensor, index: Tensor | None) -> Cells:
        """Return the cells of a batch."""
        cells = assumed_negative(targets, compute_dtype(logits))
        t = self.probabilities[need_index(index)].to(cells.a.dtype)
        open_, given = ~known(targets.values), ~t.isnan()
        t, w = torch.where(given, t, 0.0), self.weight * given
        return Cells(torch.where(open_, w * t, cells.a), torch.where(open_, w * (1 - t), cells.b), given | ~open_)


def _refuse_processes(subject: str) -> None:
    if n_processes() > 1:
        raise ValueError(f"{subject}, which keeps a table of all items in one process: train in one process")
