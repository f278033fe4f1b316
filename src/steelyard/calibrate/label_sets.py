"""Distributions of label sets: probabilities that account for the number of labels of an item."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from steelyard.calibrate.calibrator import as_vector, given_back, read_logits
from steelyard.labels.targets import UNKNOWN, ArrayLike, as_tensor, refuse

_ITEMS_AT_ONCE = 1 << 14
_MOST_ITEMS = 8192
"""Items, evenly spread, that an estimate is made from at most."""
_SURE = 30.0
"""Log-odds beyond which an item's label counts as known: η differs from 0 or 1 by 1e-13."""
_STEPS = 30
_DAMPING = 0.7
_SWEEPS = 100
_CLOSE = 1e-6
"""A difference of frequencies at which an estimate is done."""
_NEVER = -1e30
"""The log of 0, near enough, and with a slope."""


@final
@dataclass(frozen=True, eq=False)
class LabelSets:
    """Label sets S of items: the most even distribution with given frequencies.

    Formula:
        p(S) ∝ exp(Σ_{c ∈ S} a_c + b_{|S|})
        p(S|x) ∝ exp(Σ_{c ∈ S} u_c + b_{|S|})

    Given are the frequency of every label, and how often an item has 0, 1, 2 … labels. An item x whose probabilities
    are η_c has p(S|x) ∝ exp(Σ_{c∈S} u_c + b_{|S|}), with u such that label c has probability η_c. Where sets are
    distributed by (a', b') and items with the same labels look the same, it is ∝ exp(Σ_{c∈S} (u_c + a'_c − a_c) +
    b'_{|S|}): a shift of the prior, of labels and of their number. Both distributions have L + K + 1 numbers for the
    2^L sets; sums over sets are elementary symmetric polynomials, K L additions.

    Made by `of`, from labels; `estimate` gives that of unlabelled items.

    Examples:
        >>> sets = sy.calibrate.LabelSets.of(torch.eye(3))  # every item has exactly one of three labels
        >>> log_odds = torch.tensor([[0.0, 0.0, -4.0]])
        >>> sets.probability(log_odds).sum(1)  # so their probabilities sum to 1
        tensor([1.])
    """

    labels: Tensor
    """a, float64 (L,)."""
    sizes: Tensor
    """b, float64 (K + 1,); −inf for a number of labels that no item has."""

    @classmethod
    def of(cls, targets: ArrayLike) -> LabelSets:
        """Return the distribution of the label sets of `targets` (N, L), all known; a value of ½ or more is present."""
        values = as_tensor(targets, "targets").cpu()
        if values.ndim != 2 or len(values) == 0:
            raise ValueError(f"targets has shape {tuple(values.shape)}: give (N, L), at least one item")
        _check_known(values)
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

        Args:
            log_odds: of η, (N, L).
        """
        z = self._read(log_odds)
        return torch.cat([self._inverted(part) for part in z.split(_ITEMS_AT_ONCE)]) if len(z) else z

    def implied(self, log_odds: ArrayLike) -> LabelSets:
        """Return the distribution that the η of items, distributed as `self`, have themselves: their means.

        An estimate compares items with those that η is calibrated for, and is the surer for it: that of the same items
        is this distribution, whatever their labels happen to be.

        Args:
            log_odds: of η (N, L), at least one item.
        """
        z = self._read_some(log_odds)
        eta, sizes = self._expected(self.potentials(z))
        return self.with_frequencies(eta.mean(0), sizes.mean(0))

    def estimate(self, log_odds: ArrayLike) -> LabelSets:
        """Return the distribution of the label sets of unlabelled items, by maximum likelihood (EM).

        Repeats: the mean probabilities of labels and of their number, of all items, under (a', b'); then (a', b') a
        step of iterative scaling towards these. Log-odds must be calibrated for the distribution `self`.

        Args:
            log_odds: of η (N, L), at least one item; 8192 of more, evenly spread, are used.
        """
        z = self._read_some(log_odds)
        u = self.potentials(z[:: -(-len(z) // _MOST_ITEMS)])
        there = self
        for _ in range(_SWEEPS):
            eta, sizes = there._expected(u + there.labels - self.labels)
            there, gap = there._towards(eta.mean(0), sizes.mean(0))
            if gap < _CLOSE:
                break
        return there

    def probability(self, log_odds: ArrayLike, there: LabelSets | None = None) -> Any:
        """Return η (N, L) among sets distributed as `there` (by default `self`) of items with these log-odds.

        Args:
            log_odds: of η, (N, L), calibrated for `self`.
            there: the distribution to shift to.
        """
        _, dtype, from_numpy = read_logits(log_odds)
        where = there or self
        return given_back(where.marginals(self.potentials(log_odds) + where.labels - self.labels).to(dtype), from_numpy)

    def marginals(self, potentials: Tensor) -> Tensor:
        """Return η (N, L) of items with potentials u (N, L), float64, whose sets have the sizes of `self`.

        Args:
            potentials: u (N, L), as `potentials` returns them.
        """
        parts = [self._expected(part)[0] for part in potentials.split(_ITEMS_AT_ONCE)]
        return torch.cat(parts) if parts else potentials

    def log_likelihood(self, potentials: Tensor, targets: ArrayLike) -> Tensor:
        """Return log p(S|x), float64 (N,), of the label sets S of `targets` (N, L), of items with potentials u (N, L).

        It is −inf where an item has as many labels as none should have.

        Args:
            potentials: u (N, L), as `potentials` returns them.
            targets: (N, L), all known.
        """
        u, values = potentials, as_tensor(targets, "targets").cpu()
        if values.shape != u.shape:
            raise ValueError(f"targets has shape {tuple(values.shape)}: give {tuple(u.shape)}, that of potentials")
        _check_known(values)
        present = values >= 0.5
        b = torch.cat([self.sizes, self.sizes.new_full((u.shape[1],), -torch.inf)])[present.sum(1)]
        return (u * present).sum(1) + b - self._log_z(u, self.sizes.expand(len(u), -1))

    def most_probable(self, log_odds: ArrayLike, there: LabelSets | None = None) -> Any:
        """Return the most probable set of each item, bool (N, L), among sets distributed as `there`.

        Args:
            log_odds: of η, (N, L), calibrated for `self`.
            there: the distribution to shift to; by default `self`.
        """
        where = there or self
        best = where.best(self.potentials(log_odds) + where.labels - self.labels)
        return given_back(best, not isinstance(log_odds, Tensor))

    def best(self, potentials: Tensor) -> Tensor:
        """Return the most probable set, bool (N, L), of items with potentials u: of each size the largest u, then the
        best size.

        Args:
            potentials: u (N, L), as `potentials` returns them.
        """
        ordered, order = potentials.sort(1, descending=True)
        sums = torch.cat([ordered.new_zeros(len(ordered), 1), ordered.cumsum(1)], 1)[:, : len(self.sizes)]
        size = (sums + self.sizes).argmax(1)
        among = torch.arange(potentials.shape[1]) < size[:, None]
        return torch.zeros_like(among).scatter(1, order, among)

    @property
    def frequencies(self) -> tuple[Tensor, Tensor]:
        """The frequency of each label, (L,), and of each number of labels, (K + 1,)."""
        eta, sizes = self._expected(self.labels[None])
        return eta[0], sizes[0]

    def _read(self, log_odds: ArrayLike) -> Tensor:
        z, _, _ = read_logits(log_odds)
        if z.shape[1] != len(self.labels):
            raise ValueError(
                f"log_odds has {z.shape[1]} labels, but the label sets have {len(self.labels)}: make them equal"
            )
        return z.detach().cpu().clamp(-_SURE, _SURE)

    def _read_some(self, log_odds: ArrayLike) -> Tensor:
        z = self._read(log_odds)
        if len(z) == 0:
            raise ValueError("log_odds has no items: give at least one to estimate from")
        return z

    def _expected(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probabilities of labels (N, L) and of their number (N, K + 1): the gradient of log Z."""
        with torch.enable_grad():
            u = u.detach().requires_grad_()
            sizes = self.sizes.expand(len(u), -1).detach().requires_grad_()
            eta, size_shares = torch.autograd.grad(self._log_z(u, sizes).sum(), (u, sizes))
        return eta, size_shares

    @staticmethod
    def _log_z(u: Tensor, sizes: Tensor) -> Tensor:
        """Return log Σ_S exp(Σ_{c∈S} u_c + b_{|S|}), (N,)."""
        sums = torch.full_like(sizes, _NEVER)  # log of the elementary symmetric polynomials of exp u
        sums[:, 0] = 0
        for c in range(u.shape[1]):
            sums = torch.cat([sums[:, :1], torch.logaddexp(sums[:, 1:], sums[:, :-1] + u[:, c : c + 1])], 1)
        return torch.logsumexp(sums + sizes, 1)

    def _inverted(self, log_odds: Tensor) -> Tensor:
        u = log_odds
        for _ in range(_STEPS):
            eta = self._expected(u)[0]
            u = (u + _DAMPING * (log_odds - _logit(eta)).clamp(-2, 2)).clamp(-2 * _SURE, 2 * _SURE)
        return u

    def _towards(self, frequency: Tensor, sizes: Tensor) -> tuple[LabelSets, float]:
        """Return the distribution after a step of iterative scaling, and how far from these frequencies it was."""
        eta, size_shares = self.frequencies
        labels = self.labels + _logit(frequency) - _logit(eta)
        weights = self.sizes + torch.where(sizes > 0, sizes / size_shares, 0.0).log()
        gap = max(float((eta - frequency).abs().max()), float((size_shares - sizes).abs().max()))
        return LabelSets(labels, weights - weights.max()), gap


def _check_known(targets: Tensor) -> None:
    """Refuse an unknown label, −1, and what is no label, NaN among it."""
    remedy = "an item with unknown labels has an unknown number of labels, so leave it out"
    refuse(targets == UNKNOWN, "targets", targets, remedy)
    bad = ~((targets >= 0) & (targets <= 1))
    refuse(bad, "targets", targets, "a label is 1 present, 0 absent, or between them soft")


def _logit(p: Tensor) -> Tensor:
    """Return the log-odds of p, clipped to what float64 distinguishes from 0 and 1."""
    return torch.logit(p.clamp(1e-15, 1 - 1e-15))
