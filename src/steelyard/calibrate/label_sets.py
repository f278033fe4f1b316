"""How many labels an item has: probabilities that know it, and that follow it to items without labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from steelyard.calibrate.calibrator import as_vector, given_back, read_logits
from steelyard.labels.targets import ArrayLike

_ITEMS_AT_ONCE = 1 << 14
_MOST_ITEMS = 8192
"""Items, evenly spread, that an estimate is made from at most."""
_SURE = 30.0
"""Log-odds beyond which an item's label counts as known: η differs from 0 or 1 by 1e-13."""
_STEPS = 30
_DAMPING = 0.7
_SWEEPS = 200
_CLOSE = 1e-6
"""A difference of frequencies at which an estimate is done."""


@final
@dataclass(frozen=True, eq=False)
class LabelSets:
    """Label sets S of items: p(S) ∝ exp(Σ_{c∈S} a_c + b_{|S|}), the most even distribution with given frequencies.

    Given are the frequency of every label, and how often an item has 0, 1, 2 … labels. An item x whose probabilities
    are η_c has p(S|x) ∝ exp(Σ_{c∈S} u_c + b_{|S|}), with u such that label c has probability η_c. Where sets are
    distributed by (a', b') and items with the same labels look the same, it is ∝ exp(Σ_{c∈S} (u_c + a'_c − a_c) +
    b'_{|S|}): a shift of the prior, of labels and of their number. Both distributions have L + K + 1 numbers for the
    2^L sets; sums over sets are elementary symmetric polynomials, K L additions.

    Made by `of`, from labels; `estimate` gives that of unlabelled items.
    """

    labels: Tensor
    """a, float64 (L,)."""
    sizes: Tensor
    """b, float64 (K + 1,); −inf for a number of labels that no item has."""

    @classmethod
    def of(cls, targets: ArrayLike) -> LabelSets:
        """Return the distribution of the label sets of `targets` (N, L), all known; a value of ½ or more is present."""
        values = torch.as_tensor(targets).cpu()
        if values.ndim != 2 or len(values) == 0:
            raise ValueError(f"targets has shape {tuple(values.shape)}: give (N, L), at least one item")
        if bool((values < 0).any()):
            raise ValueError("targets has unknown labels: how many labels those items have cannot be told; drop them")
        present = (values >= 0.5).double()
        n = len(present)
        counts = torch.bincount(present.sum(1).long()).double()
        positives = present.sum(0)
        one_sided = (positives == 0) | (positives == n)  # never or always present: the other stays possible
        frequency = torch.where(one_sided, (positives + 0.5) / (n + 1), positives / n)
        return cls.with_frequencies(frequency, counts / n)

    @classmethod
    def with_frequencies(cls, labels: ArrayLike, sizes: ArrayLike) -> LabelSets:
        """Return the most even distribution with these frequencies.

        Args:
            labels: the frequency of each label, (L,), inside (0, 1).
            sizes: the frequency of items with 0, 1, … K labels, (K + 1,), of sum 1; their mean is the sum of `labels`.
        """
        frequency, share = as_vector(labels).cpu(), as_vector(sizes).cpu()
        if not bool(((frequency > 0) & (frequency < 1)).all()):
            raise ValueError("labels has a frequency outside (0, 1): leave out labels that are never or always present")
        if bool((share < 0).any()) or abs(float(share.sum()) - 1) > 1e-6 or len(share) > len(frequency) + 1:
            raise ValueError(
                f"sizes is {share.tolist()}: give shares of sum 1, of 0 to at most {len(frequency)} labels"
            )
        made = cls(torch.logit(frequency), torch.where(share > 0, 0.0, -torch.inf).double())
        for _ in range(_SWEEPS):
            made, gap = made._towards(frequency, share)
            if gap < _CLOSE:
                break
        return made

    def potentials(self, log_odds: ArrayLike) -> Tensor:
        """Return u (N, L), float64, of items with these log-odds of η.

        η that no distribution over sets of these sizes has (their sum is above the most labels of an item, say) is met
        as nearly as thirty steps of u ← u + 0.7 (logit η − logit η(u)) come.
        """
        z = self._read(log_odds)
        return torch.cat([self._inverted(part) for part in z.split(_ITEMS_AT_ONCE)]) if len(z) else z

    def estimate(self, log_odds: ArrayLike) -> LabelSets:
        """Return the distribution of the label sets of unlabelled items, by maximum likelihood (EM).

        Repeats: the mean probabilities of labels and of their number, of all items, under (a', b'); then (a', b') a
        step of iterative scaling towards these. Log-odds must be calibrated for the distribution `self`.

        Args:
            log_odds: of η (N, L), at least one item; 8192 of more, evenly spread, are used.
        """
        z = self._read(log_odds)
        if len(z) == 0:
            raise ValueError("log_odds has no items: give at least one to estimate from")
        u = self.potentials(z[:: -(-len(z) // _MOST_ITEMS)])
        there = self
        for _ in range(_SWEEPS):
            eta, sizes = there._expected(u + there.labels - self.labels)
            there, gap = there._towards(eta.mean(0), sizes.mean(0))
            if gap < _CLOSE:
                break
        return there

    def probability(self, log_odds: ArrayLike, there: LabelSets | None = None) -> Any:
        """Return η (N, L) among sets distributed as `there` (by default `self`) of items with these log-odds."""
        _, dtype, from_numpy = read_logits(log_odds)
        where = there or self
        u = self.potentials(log_odds) + where.labels - self.labels
        parts = [where._expected(part)[0] for part in u.split(_ITEMS_AT_ONCE)]
        eta = torch.cat(parts) if parts else u
        return given_back(eta.to(dtype), from_numpy)

    def most_probable(self, log_odds: ArrayLike, there: LabelSets | None = None) -> Any:
        """Return the most probable set of each item, bool (N, L): of each size the largest u, then the best size."""
        _, _, from_numpy = read_logits(log_odds)
        where = there or self
        u = self.potentials(log_odds) + where.labels - self.labels
        ordered, place = u.sort(1, descending=True)
        sums = torch.cat([u.new_zeros(len(u), 1), ordered.cumsum(1)], 1)[:, : len(where.sizes)]
        size = (sums + where.sizes).argmax(1)
        among = torch.arange(u.shape[1]) < size[:, None]
        return given_back(torch.zeros_like(among).scatter(1, place, among), from_numpy)

    @property
    def frequencies(self) -> tuple[Tensor, Tensor]:
        """The frequency of each label, (L,), and of each number of labels, (K + 1,)."""
        eta, sizes = self._expected(self.labels[None])
        return eta[0], sizes[0]

    def _read(self, log_odds: ArrayLike) -> Tensor:
        z, _, _ = read_logits(log_odds)
        if z.shape[1] != len(self.labels):
            raise ValueError(f"log_odds has {z.shape[1]} labels, but the label sets have {len(self.labels)}")
        return z.detach().cpu().clamp(-_SURE, _SURE)

    def _expected(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probabilities of labels (N, L) and of their number (N, K + 1): the gradient of log Z."""
        with torch.enable_grad():
            u = u.detach().requires_grad_()
            sizes = self.sizes.expand(len(u), -1).detach().requires_grad_()
            eta, found = torch.autograd.grad(self._log_z(u, sizes).sum(), (u, sizes))
        return eta, found

    @staticmethod
    def _log_z(u: Tensor, sizes: Tensor) -> Tensor:
        """Return log Σ_S exp(Σ_{c∈S} u_c + b_{|S|}), (N,)."""
        most = sizes.shape[1] - 1
        sums = [torch.zeros_like(u[:, 0])]  # log of the elementary symmetric polynomials of exp u
        for c in range(u.shape[1]):
            grown = [*sums, sums[-1] + u[:, c]] if len(sums) <= most else list(sums)
            for k in range(1, len(sums)):
                grown[k] = torch.logaddexp(sums[k], sums[k - 1] + u[:, c])
            sums = grown
        return torch.logsumexp(torch.stack(sums, 1) + sizes, 1)

    def _inverted(self, log_odds: Tensor) -> Tensor:
        u = log_odds
        for _ in range(_STEPS):
            eta = self._expected(u)[0]
            u = (u + _DAMPING * (log_odds - _logit(eta)).clamp(-2, 2)).clamp(-2 * _SURE, 2 * _SURE)
        return u

    def _towards(self, frequency: Tensor, sizes: Tensor) -> tuple[LabelSets, float]:
        """Return the distribution after a step of iterative scaling, and how far from these frequencies it was."""
        eta, found = self.frequencies
        labels = self.labels + _logit(frequency) - _logit(eta)
        weights = self.sizes + torch.where(sizes > 0, sizes / found, 0.0).log()
        gap = max(float((eta - frequency).abs().max()), float((found - sizes).abs().max()))
        return LabelSets(labels, weights - weights.max()), gap


def _logit(p: Tensor) -> Tensor:
    """The log-odds of p, of what float64 can tell from 0 and 1 where p is either."""
    return torch.logit(p.clamp(1e-15, 1 - 1e-15))
