"""Estimate how many given labels are wrong, and rank them; rank unknown labels that are probably present."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard._arrays import Array, Floats, slices
from steelyard.annotation import noise
from steelyard.annotation.confusion import Confused, Confusion
from steelyard.annotation.near import Contradiction, contradictions
from steelyard.annotation.queue import Ranked, as_text, best, nothing
from steelyard.labels import UNKNOWN, Labels

LISTED = 10_000
"""Entries in a ranked list, by default."""
RESAMPLES = 100
"""Bootstrap resamples, by default."""
GROUPS = 50
"""Groups of items that the bootstrap draws."""
LEAST = 0.01
"""The lists leave out labels that are wrong (or present) with a lower probability than this."""
_CELLS = 1 << 20
_MOST_COUNTS = 4e7


class Interval(NamedTuple):
    """An estimate with its 95 % interval, by bootstrap over items."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class LabelAudit:
    """Counts one label's given values that are probably wrong; NaN where no positive or no negative is known.

    Examples:
        >>> eta = 1 / (1 + np.exp(-np.linspace(-6, 6, 200)))[:, None]
        >>> row = sy.audit((eta > 0.5).astype(int), eta, resamples=10).labels[0]
        >>> row.n_positive, row.n_negative, row.n_unknown
        (100, 100, 0)
        >>> row.wrong_negatives.low <= row.wrong_negatives.estimate <= row.wrong_negatives.high
        True
    """

    name: str
    """The name of the label."""
    n_positive: int
    """Items that are given the label."""
    n_negative: int
    """Items that are given as not having it."""
    n_unknown: int
    """Items for which it is unknown."""
    wrong_positives: Interval
    """Estimated number of items given as present that are truly absent."""
    wrong_negatives: Interval
    """Estimated number of items given as absent that are truly present."""
    probably_present: float
    """Expected number of positives among the unknown items."""


@dataclass(frozen=True, eq=False)
class Audit:
    """The result of `audit`: estimates by label, ranked lists, confused labels and near-duplicates.

    Examples:
        >>> eta = 1 / (1 + np.exp(-np.linspace(-6, 6, 200)))[:, None]
        >>> labels = (eta > 0.5).astype(int)
        >>> labels[199], labels[100] = 0, -1  # a mistake, and a label that nobody gave
        >>> audit = sy.audit(labels, eta, resamples=10)
        >>> int(audit.wrong.items[0]), audit.why(audit.wrong, 0)
        (199, 'given absent, but present with probability >.99')
        >>> audit.present.items.tolist()
        [100]
        >>> audit.wrong_probability().shape
        (200, 1)
    """

    labels: tuple[LabelAudit, ...]
    """One entry per label, in the order of the table."""
    wrong: Ranked
    """Known labels of items, ranked by the probability that they are wrong."""
    present: Ranked
    """Unknown labels of items, ranked by the probability that they are present."""
    confused: tuple[Confused, ...]
    """Pairs of labels of which one is given in place of the other, the clearest first."""
    contradictions: tuple[Contradiction, ...]
    """Near-duplicates with contradicting labels; empty without embeddings."""
    rates: noise.Rates
    """Estimated noise rates of each label."""
    _source: _Table = field(repr=False)

    def wrong_probability(self) -> NDArray[np.float32]:
        """Return the probability that each given label is wrong, (N, L); NaN where it is unknown."""
        return np.concatenate([block.wrong(self.rates).astype(np.float32) for block in self._source.blocks()])

    @property
    def table(self) -> Labels:
        """The labels that were audited."""
        return self._source.labels

    def why(self, ranked: Ranked, k: int) -> str:
        """Return the reason why entry `k` of `wrong` or `present` is listed."""
        eta, given, item = float(ranked.probability[k]), int(ranked.given[k]), int(ranked.items[k])
        if given == UNKNOWN:
            return f"not annotated; present with probability {as_text(eta)}"
        value = "present" if given else "absent"
        other = self._contradicted_by.get((item, int(ranked.labels[k])))
        beside = "" if other is None else f"; the near-duplicate {other} is given {'absent' if given else 'present'}"
        return f"given {value}, but present with probability {as_text(eta)}{beside}"

    @property
    def _contradicted_by(self) -> dict[tuple[int, int], str]:
        """Ids of near-duplicates with a contradicting label, by item and label."""
        ids = self.table.ids
        pairs = ((c.first, c.second, c.label) for c in self.contradictions)
        return {key: ids[other] for i, j, c in pairs for key, other in (((i, c), j), ((j, c), i))}


class _RowBlock(NamedTuple):
    """Consecutive rows of the table."""

    start: int
    log_odds: Floats
    given: Array

    def wrong(self, rates: noise.Rates, eta: Floats | None = None) -> Floats:
        """Return the probability that each given label is wrong; NaN where it is unknown."""
        eta = rates.present(self.log_odds) if eta is None else eta
        out = np.where(self.given >= 0.5, rates.wrong_if_present(eta), rates.wrong_if_absent(eta))
        out[self.given == UNKNOWN] = np.nan
        return out


class _Table(NamedTuple):
    """Labels and stored probabilities, read in blocks of rows."""

    labels: Labels
    probabilities: Array

    def blocks(self) -> Iterator[_RowBlock]:
        """Yield the rows in order, a million cells at a time."""
        for rows in slices((len(self.labels), self.labels.n_labels), _CELLS):
            p = np.asarray(self.probabilities[rows], np.float64)
            _check(p, rows.start)
            with np.errstate(divide="ignore"):
                odds = np.clip(np.log(p) - np.log1p(-p), -noise.LARGEST, noise.LARGEST)
            yield _RowBlock(rows.start, odds, self.labels.rows(np.arange(rows.start, rows.stop)))


def _check(p: Floats, start: int) -> None:
    bad = ~((p >= 0) & (p <= 1))
    if bad.any():
        i, j = np.argwhere(bad)[0]
        raise ValueError(f"probabilities[{i + start}, {j}] is {p[i, j]:g}: a probability lies between 0 and 1")


def audit_labels(
    labels: Labels | Array,
    probabilities: Array,
    *,
    embeddings: Array | None = None,
    limit: int = LISTED,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Audit:
    """Find labels that are probably wrong.

    The probabilities must be out of fold: they come from models that have not seen the labels of that item.

    Args:
        labels: `Labels`, or an array (N, L) of 1 (present), 0 (absent) and −1 (unknown).
        probabilities: out-of-fold probabilities (N, L); a memory-mapped array is read in blocks of rows.
        embeddings: array (N, D); if given, near-duplicates with contradicting labels are searched by it.
        limit: maximum number of entries in each ranked list.
        resamples: number of bootstrap resamples for the intervals.
        seed: seed of the bootstrap.

    Examples:
        >>> eta = 1 / (1 + np.exp(-np.linspace(-6, 6, 200)))[:, None]
        >>> labels = (eta > 0.5).astype(int)
        >>> labels[199] = 0  # a mistake
        >>> audit = sy.annotation.audit_labels(labels, eta, resamples=10)
        >>> int(audit.wrong.items[0])
        199
    """
    table = labels if isinstance(labels, Labels) else Labels(labels)
    if np.shape(probabilities) != (len(table), table.n_labels):
        raise ValueError(
            f"probabilities has shape {np.shape(probabilities)}, but the labels have {(len(table), table.n_labels)}: "
            "give one probability per item and label"
        )
    if limit < 1 or resamples < 2:
        raise ValueError(f"limit is {limit}, resamples {resamples}: give at least 1 and 2")
    source = _Table(table, probabilities)
    counts, unknown = _counted(source, seed)
    drawn = _resampled(counts, resamples, seed)
    rates, *others = noise.fit_rates(counts.sum(0), drawn)
    wrong, present, confused = _ranked(source, rates, limit)
    near_duplicates = contradictions(table, embeddings, seed) if embeddings is not None else ()
    here = _totals(counts.sum(0), rates)
    ends = np.quantile([_totals(*pair) for pair in zip(drawn, others, strict=True)], (0.025, 0.975), axis=0)
    hidden = (unknown * rates.present(noise.centres()[:, None]).T).sum(1)
    return Audit(_by_label(table, here, ends, hidden), wrong, present, confused, near_duplicates, rates, source)


def _counted(source: _Table, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count known labels by group of items, label, bin and given value, and unknown ones by label and bin."""
    n_labels, bins = source.labels.n_labels, noise.N_BINS
    n_groups = int(np.clip(_MOST_COUNTS // (2 * n_labels * bins), 10, GROUPS))
    group = _groups_of(source.labels, n_groups, seed)
    counts = np.zeros(n_groups * n_labels * bins * 2, np.int64)
    unknown = np.zeros(n_labels * bins, np.int64)
    for block in source.blocks():
        cell_bin = np.arange(n_labels) * bins + noise.bin_of(block.log_odds)
        hidden = block.given == UNKNOWN
        unknown += np.bincount(cell_bin[hidden], minlength=len(unknown))
        rows = group[block.start : block.start + len(cell_bin), None] * (n_labels * bins)
        both = 2 * (rows + cell_bin) + (block.given >= 0.5)
        counts += np.bincount(both[~hidden], minlength=len(counts))
    return counts.reshape(n_groups, n_labels, bins, 2), unknown.reshape(n_labels, bins)


def _groups_of(labels: Labels, n_groups: int, seed: int) -> NDArray[np.int64]:
    """Assign items to groups at random; items that belong together stay in one group."""
    rng = np.random.default_rng(seed)
    if labels.item_groups is None:
        return rng.permutation(len(labels)) % n_groups
    _, own = np.unique(labels.item_groups, return_inverse=True)
    return np.asarray(rng.permutation(own.max() + 1) % n_groups)[own]


def _ranked(source: _Table, rates: noise.Rates, limit: int) -> tuple[Ranked, Ranked, tuple[Confused, ...]]:
    """Return both ranked lists and the confused pairs, in one pass over the table."""
    wrong, present, confusion = nothing(), nothing(), Confusion(source.labels)
    for block in source.blocks():
        eta = rates.present(block.log_odds)
        score = block.wrong(rates, eta)
        confusion.add(score, block.given)
        wrong = best([wrong, _cells(block, eta, score, wrong, limit)], limit)
        hidden = np.where(block.given == UNKNOWN, eta, np.nan)
        present = best([present, _cells(block, eta, hidden, present, limit)], limit)
    return wrong, present, confusion.pairs()


def _cells(block: _RowBlock, eta: Floats, score: Floats, so_far: Ranked, limit: int) -> Ranked:
    """Return the entries of a block that may be among the best `limit`."""
    least = max(LEAST, float(so_far.score[-1]) if so_far.n >= limit else 0.0)
    with np.errstate(invalid="ignore"):
        row, label = np.nonzero(score >= least)
    given = block.given[row, label]
    kept = np.where(given == UNKNOWN, UNKNOWN, given >= 0.5).astype(np.int8)
    return Ranked(row + block.start, label, kept, eta[row, label], score[row, label])


def _resampled(counts: NDArray[np.int64], resamples: int, seed: int) -> list[NDArray[np.int64]]:
    """Return bootstrap resamples of the counts, drawing groups of items with replacement."""
    rng = np.random.default_rng(seed)
    often = rng.multinomial(len(counts), np.full(len(counts), 1 / len(counts)), size=resamples)
    return [np.tensordot(times, counts, 1) for times in often]


def _by_label(table: Labels, here: Floats, ends: Floats, hidden: Floats) -> tuple[LabelAudit, ...]:
    """Return the estimates of each label, with intervals."""
    rows = []
    for c, name in enumerate(table.names):
        absent, present = (Interval(*(float(part[k, c]) for part in (here, *ends))) for k in (0, 1))
        n, k = int(table.counts[c]), int(table.n_known[c])
        rows.append(LabelAudit(name, n, k - n, len(table) - k, present, absent, float(hidden[c])))
    return tuple(rows)


def _totals(counts: NDArray[np.int64], rates: noise.Rates) -> Floats:
    """Return the expected number of wrong labels among those given absent and present, (2, L)."""
    eta = rates.present(noise.centres()[:, None])
    absent, present = counts[:, :, 0].T * rates.wrong_if_absent(eta), counts[:, :, 1].T * rates.wrong_if_present(eta)
    return np.stack([absent.sum(0), present.sum(0)])
