"""Partial label masking (PLM)."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from steelyard.balance.checks import check_choice, check_range
from steelyard.balance.epoch_cache import EpochCache
from steelyard.balance.philox import uniform
from steelyard.balance.processes import summed
from steelyard.kernels.choice import fuses
from steelyard.kernels.fused import Mask
from steelyard.labels.inputs import as_whole
from steelyard.labels.targets import ArrayLike, as_tensor, check_known, check_vector, check_within, known, refuse

Initial = Literal["dataset", "mean", "min", "max"]
Observed = Literal["training", "validation"]


class PartialLabelMasking(nn.Module):
    """Hide labels at random until each class has the ratio r̄_c of positives to negatives, and adapt that ratio.

    r_c is the ratio in the data. After every epoch r̄_c changes: D⁺_c compares the histogram of the epoch's outputs
    σ(z) of positives with all its mass in the last of τ bins, D⁻_c that of negatives with all mass in the first, and ~
    standardises over classes (population deviation). A class without an observed positive (or negative) is left out and
    keeps its ratio, as does one that has none in the data.

    Formula:
        P(positive kept) = min(1, r̄_c/r_c), P(negative kept) = min(1, r_c/r̄_c), r_c = n_c/(k_c − n_c)
        r̄_c ← exp(λ D_c) r̄_c, D_c = D̃⁺_c − D̃⁻_c, D⁺_c = KL(P̂⁺_c ‖ P⁺)

    The printed KL is infinite: P needs a floor ε, P[true bin] = 1 − (τ−1)ε, ε elsewhere. As ε → 0 the standardised
    scores tend to those of 1 − P̂[true bin]; `eps=0` takes that limit. Trained odds are the true odds times r̄_c/r_c:
    subtract `log_odds_shift`.

    Args:
        counts: positives n_c of each class (L,); 0 is allowed: such a class is not masked.
        n_known: known labels k_c, one number or (L,).
        rate: λ (.01; CIFAR-10: 1); 0 keeps the ratio fixed.
        bins: τ (10).
        eps: ε (1e-12); 0 for the limit form.
        clip: bounds (low, high) of r̄, e.g. (0, 1) on COCO.
        initial: r̄ of the first epoch: that of the data, or its mean, min or max over classes, or given (L,).
        seed: of the masks, which are a pure function of (seed, epoch, item, label).
        observes: whose outputs move the ratios: "training" (the paper), or "validation": those of items that training
            has not seen, of which it is not over-confident. The objective then leaves `observe` to the validation.

    Examples:
        >>> masking = sy.balance.PartialLabelMasking(torch.tensor([400.0, 20.0]), n_known=1000, initial="mean")
        >>> masking.keep_probabilities  # of positives and negatives: the second class is rare, so its negatives go
        (tensor([0.5153, 1.0000]), tensor([1.0000, 0.0594]))
        >>> masking.mask(torch.tensor([[0, 0], [0, 0], [0, -1]]))
        tensor([[ True, False],
                [ True, False],
                [ True,  True]])
        >>> torch.sigmoid(0 - masking.log_odds_shift)  # what a trained logit of 0 means, the masks undone
        tensor([0.6599, 0.0561], dtype=torch.float64)
    """

    maskable: Tensor
    data_ratio: Tensor
    ratio: Tensor
    histogram: Tensor

    def __init__(
        self,
        counts: ArrayLike,
        n_known: int | ArrayLike,
        rate: float = 0.01,
        bins: int = 10,
        eps: float = 1e-12,
        clip: tuple[float, float] | None = None,
        initial: Initial | Tensor = "dataset",
        seed: int = 0,
        observes: Observed = "training",
    ) -> None:
        super().__init__()
        check_choice(Observed, observes=observes)
        self.observes = observes
        n = check_vector("counts", counts)
        k = check_known(n_known, len(n))
        check_within(n, k)
        check_range("at least 0", rate=rate)
        bins, seed = as_whole(bins, "bins"), as_whole(seed, "seed")
        if bins < 2:
            raise ValueError(f"bins is {bins}: it must be at least 2")
        if not 0 <= eps < 1 / bins:
            raise ValueError(f"eps is {eps}: it must be in [0, 1/bins)")
        if clip is not None and not 0 <= clip[0] < clip[1]:
            raise ValueError(f"clip is {clip}: give (low, high) with 0 <= low < high")
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"seed is {seed}: it must be in [0, 2^64)")
        self.rate, self.bins, self.eps, self.clip, self.seed = float(rate), bins, float(eps), clip, seed
        self.n_labels = len(n)
        self.register_buffer("maskable", (n > 0) & (n < k), persistent=False)
        self.register_buffer("data_ratio", n / (k - n), persistent=False)
        self.register_buffer("ratio", self._clipped(self._initial(initial)))
        self.register_buffer("histogram", torch.zeros(2, self.n_labels, bins, dtype=torch.int64))
        self.epoch, self.n_drawn = 1, 0
        self.ahead = EpochCache()
        self._cached: tuple[tuple[object, ...], Tensor] = ((), torch.empty(0))

    @property
    def keep_probabilities(self) -> tuple[Tensor, Tensor]:
        """The chances (L,) that a positive and a negative are kept, float32: min(1, r̄/r) and min(1, r/r̄)."""
        gain = torch.exp(self.log_odds_shift).to(torch.float32)
        return gain.clamp_max(1), (1 / gain).clamp_max(1)

    @property
    def thresholds(self) -> Tensor:
        """⌈2²⁴ · keep-probability⌉ of positives and negatives, int32 (2, L): u < keep just where 2²⁴ u is below it."""
        return (torch.stack(self.keep_probabilities).double() * 2**24).ceil().to(torch.int32)

    @property
    def log_odds_shift(self) -> Tensor:
        """log(r̄_c/r_c), float64 (L,): what masking adds to the trained log-odds. 0 for a class that is not masked."""
        r, r_bar = (torch.where(self.maskable, x, 1) for x in (self.data_ratio, self.ratio))
        return torch.log(r_bar / r)

    def mask(self, targets: ArrayLike, index: ArrayLike | None = None) -> Tensor:
        """Return which labels (B, L) to keep, bool; a label of .5 or more is a positive, an unknown one is kept.

        `index` (B,) are the items' numbers in the data set: an item drawn twice in an epoch keeps its mask. Without it
        a running counter, kept in the state, takes their place.

        Args:
            targets: (B, L).
            index: (B,), whole numbers, or None.
        """
        t = as_tensor(targets)
        return self.kept(self.of_batch(t, index), t)

    def of_batch(self, targets: Tensor, index: ArrayLike | None) -> Mask:
        """Return what decides the mask of a batch, as `kept` and the fused kernels take it."""
        self._check_shape("targets", targets)
        n, first = len(targets), self.n_drawn
        if index is None:
            self.n_drawn += n
            return Mask(self.kept_below(), None, False, self.seed, self.epoch, first)
        items = as_tensor(index)
        if items.shape != (n,) or items.dtype.is_floating_point:
            raise ValueError(
                f"index is {tuple(items.shape)} of {items.dtype}: give a whole number for each item, ({n},)"
            )
        table = self.ahead.table(self.epoch)
        items = items.to(targets.device if table is None else table.device).contiguous()
        if table is not None:
            return Mask(table, items, stored=True)
        return Mask(self.kept_below(), items, False, self.seed, self.epoch)

    def kept(self, mask: Mask, targets: Tensor) -> Tensor:
        """Return which labels (B, L) of a batch are kept, bool."""
        items = mask.items
        if mask.stored:
            return mask.keep[items]
        if items is None:
            items = mask.first_item + torch.arange(len(targets), device=targets.device)
        u = uniform(mask.seed, mask.epoch, items, self.n_labels)
        positive, negative = mask.keep.to(targets.device) * 2.0**-24
        return (u < torch.where(targets >= 0.5, positive, negative)) | ~known(targets)

    def draw_ahead(self, targets: Tensor) -> None:
        """Draw the masks of this epoch for all items, whose targets are `targets` (N, L), at once.

        For the rest of the epoch `mask` looks up what it would draw for item `index`; its targets must be the same.
        """
        self._check_shape("targets", targets)

        def rows(some: slice) -> Tensor:
            items = torch.arange(some.start, some.stop, device=targets.device)
            return self.kept(Mask(self.kept_below(), items, False, self.seed, self.epoch), targets[some])

        self.ahead.draw(self.epoch, len(targets), self.n_labels, rows)

    def observe(self, probabilities: Tensor, targets: ArrayLike) -> None:
        """Count the raw outputs σ(z) (B, L), those of masked labels included, of every known label.

        Args:
            probabilities: σ(z), (B, L).
            targets: (B, L).
        """
        t, p = as_tensor(targets), probabilities.detach()
        self._check_shape("targets", t)
        self._check_shape("probabilities", p)
        is_known = known(t)
        if p.device.type == "cpu":
            refuse(is_known & ~((p >= 0) & (p <= 1)), "probabilities", p, "give σ(z), between 0 and 1")
        p = torch.where(is_known, p.to(torch.float64), 0)
        spot = (p * self.bins).to(torch.int64).clamp(0, self.bins - 1)
        row = torch.where(t >= 0.5, 0, self.n_labels) + torch.arange(self.n_labels, device=p.device)
        flat = (row * self.bins + spot).flatten()
        self.histogram.view(-1).scatter_add_(0, flat, is_known.flatten().to(torch.int64))

    def observe_logits(self, logits: Tensor, targets: ArrayLike) -> None:
        """Count σ(z) of logits z (B, L), as `observe` does; on a GPU in one pass."""
        t, z = as_tensor(targets), logits.detach()
        if not fuses(z.device) or z.dtype == torch.float64:
            self.observe(torch.sigmoid(z.to(torch.promote_types(z.dtype, torch.float32))), t)
            return
        from steelyard.kernels.histogram import add_outputs

        self._check_shape("targets", t)
        self._check_shape("logits", z)
        add_outputs(self.histogram, z, t)

    def merge(self, other: PartialLabelMasking) -> None:
        """Add the outputs another process observed in the same epoch.

        Args:
            other: masks of the same labels and bins, in the same epoch.
        """
        if other.histogram.shape != self.histogram.shape or other.epoch != self.epoch:
            raise ValueError(
                "other counts other labels, bins or another epoch: merge the same epoch of the same labels"
            )
        self.histogram += other.histogram.to(self.histogram.device)

    def divergence(self) -> Tensor:
        """Return D_c (L,) of the outputs observed so far, 0 where a class is left out."""
        seen = summed(self.histogram).to(torch.float64)
        positive, negative = seen
        included = (positive.sum(1) > 0) & (negative.sum(1) > 0) & self.maskable
        return _standardised(self._kl(positive, self.bins - 1), included) - _standardised(
            self._kl(negative, 0), included
        )

    def step(self) -> None:
        """End the epoch: move the ratios by what was observed (in all processes), and reset the counts."""
        if self.rate > 0:
            moved = self._clipped(self.ratio * torch.exp(self.rate * self.divergence()))
            self.ratio.copy_(torch.where(self.maskable, moved, self.ratio))
        self.histogram.zero_()
        self.epoch += 1
        self.ahead.forget()

    def get_extra_state(self) -> Tensor:
        """Return the epoch and the running counter, for the state_dict."""
        return torch.tensor([self.epoch, self.n_drawn])

    def set_extra_state(self, state: Tensor) -> None:
        """Restore what `get_extra_state` returned."""
        self.epoch, self.n_drawn = (int(v) for v in state)
        self.ahead.forget()

    def kept_below(self) -> Tensor:
        """Return `thresholds`, computed once for as long as the ratios stay the same."""
        if torch.compiler.is_compiling():
            return self.thresholds
        key = (self.ratio.data_ptr(), self.ratio.device, self.ratio._version)
        if self._cached[0] != key:
            self._cached = (key, self.thresholds)
        return self._cached[1]

    def _initial(self, initial: Initial | Tensor) -> Tensor:
        r = self.data_ratio
        if isinstance(initial, str):
            if initial not in get_args(Initial):
                raise ValueError(f"initial is {initial!r}: choose one of {', '.join(get_args(Initial))}, or give (L,)")
            usable = r[self.maskable]
            if initial == "dataset" or len(usable) == 0:
                return r.clone()
            pick = {"mean": usable.mean(), "min": usable.min(), "max": usable.max()}[initial]
            return torch.where(self.maskable, pick, r)
        given = as_tensor(initial).to(torch.float64).cpu()
        if given.shape != r.shape:
            raise ValueError(f"initial has shape {tuple(given.shape)}: give a ratio for each of {len(r)} classes")
        refuse(~(torch.isfinite(given) & (given > 0)), "initial", given, "a ratio is positive and finite")
        return torch.where(self.maskable, given, r)

    def _clipped(self, ratio: Tensor) -> Tensor:
        if self.clip is None:
            return ratio
        low, high = self.clip
        return torch.where(self.maskable, ratio.clamp(low, high), ratio)

    def _kl(self, counts: Tensor, true_bin: int) -> Tensor:
        """Return KL(P̂ ‖ P) of each class, or its limit form 1 − P̂[true bin]."""
        p = counts / counts.sum(dim=1, keepdim=True).clamp_min(1)
        if self.eps == 0:
            return 1 - p[:, true_bin]
        target = torch.full((self.bins,), self.eps, dtype=p.dtype, device=p.device)
        target[true_bin] = 1 - (self.bins - 1) * self.eps
        return (torch.xlogy(p, p) - p * torch.log(target)).sum(dim=1)

    def _check_shape(self, name: str, x: Tensor) -> None:
        if x.ndim != 2 or x.shape[1] != self.n_labels:
            raise ValueError(f"{name} has shape {tuple(x.shape)}: give (B, {self.n_labels})")


def _standardised(values: Tensor, included: Tensor) -> Tensor:
    """Return (x − mean)/std over the included classes, 0 elsewhere and where all are equal."""
    n = included.sum().clamp_min(1)
    centred = torch.where(included, values - torch.where(included, values, 0).sum() / n, 0)
    deviation = (centred.square().sum() / n).sqrt()
    return torch.where(deviation > 0, centred / torch.where(deviation > 0, deviation, 1), 0)
