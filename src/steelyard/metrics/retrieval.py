"""Search as a metric: mean average precision over all queries of desired and undesired labels (paper 4).

A query of k terms is a row of k numbers below 2L: c asks that label c be present, L + c that it be absent.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations, islice
from math import comb, sqrt
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from steelyard._arrays import Array
from steelyard.labels.inputs import as_whole
from steelyard.labels.targets import ArrayLike
from steelyard.metrics.inputs import positive, probable
from steelyard.metrics.ranking import average_precision_rows


def n_combinations(n_labels: int, n_terms: int) -> int:
    """Return C(L, k)(2^k − 1): the sets of k labels, each desired or undesired, at least one desired."""
    return comb(n_labels, n_terms) * ((1 << n_terms) - 1)


def every_query(n_labels: int, n_terms: int, labels_at_once: int = 4096) -> Iterator[Array]:
    """Yield all queries of `n_terms` terms as arrays (q, n_terms)."""
    signs = _signs(np.arange(1, 2**n_terms), n_terms)
    sets = combinations(range(n_labels), n_terms)
    while chunk := list(islice(sets, labels_at_once)):
        labels = np.asarray(chunk)
        yield (labels[:, None] + n_labels * ~signs[None]).reshape(-1, n_terms)


def draw_queries(n_labels: int, n_terms: int, n: int, generator: np.random.Generator) -> Array:
    """Return `n` queries (n, n_terms) drawn uniformly, with replacement, from all of `n_terms` terms."""
    # Floyd's sample of k of L labels, all rows at once: each step adds a label, or its bound if it is there already
    labels = np.empty((n, n_terms), dtype=np.int64)
    for i, bound in enumerate(range(n_labels - n_terms, n_labels)):
        drawn = generator.integers(0, bound + 1, size=n)
        taken = (labels[:, :i] == drawn[:, None]).any(1)
        labels[:, i] = np.where(taken, bound, drawn)
    labels.sort(axis=1)
    labels += n_labels * ~_signs(generator.integers(1, 2**n_terms, size=n), n_terms)
    return labels


def _signs(codes: Array, n_terms: int) -> Array:
    """Return (len(codes), n_terms): whether term i is desired, bit i of the code."""
    return (codes[:, None] >> np.arange(n_terms) & 1).astype(bool)


class Answers:
    """The queries that have an answer, from the columns of the label table, one bit per distinct row."""

    def __init__(self, present: Array, absent: Array) -> None:
        rows = np.unique(np.concatenate([np.packbits(present, axis=1), np.packbits(absent, axis=1)], axis=1), axis=0)
        half, n_labels = rows.shape[1] // 2, present.shape[1]
        columns = [np.unpackbits(part, axis=1, count=n_labels).T for part in (rows[:, :half], rows[:, half:])]
        bits = np.packbits(np.concatenate(columns), axis=1)
        padded = np.pad(bits, ((0, 0), (0, -bits.shape[1] % 8)))
        self._bits = np.ascontiguousarray(padded).view(np.uint64)

    def exist(self, queries: Array) -> Array:
        """Return whether at least one item answers each query, (q,)."""
        alive = self._bits[queries[:, 0]]
        for term in queries.T[1:]:
            alive &= self._bits[term]
        return np.asarray(alive.any(axis=1))


Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class RetrievalMap:
    """Mean average precision over queries, and by their number of terms.

    Attributes:
        overall: the mean over all queries that have an answer.
        by_terms: the same by number of terms.
        n_queries: queries that have an answer; an estimate where they were sampled.
        n_queries_by_terms: the same by number of terms.
        n_combinations: queries that there are, with or without an answer.
        n_scored: queries that were scored.
        exact: False where a number of terms has so many combinations that its queries were sampled.
        interval: the normal interval of `overall` at the asked confidence; an exact value is its own interval.
        interval_by_terms: the same by number of terms.

    Examples:
        >>> eta, targets = torch.tensor([[0.9, 0.8], [0.7, 0.9], [0.2, 0.6]]), torch.tensor([[1, 1], [1, 0], [0, 1]])
        >>> result = sy.metrics.retrieval_map(eta, targets, max_terms=2)
        >>> {terms: round(value, 3) for terms, value in result.by_terms.items()}, result.n_queries_by_terms
        ({1: 0.792, 2: 0.778}, {1: 2, 2: 3})
    """

    overall: float
    by_terms: dict[int, float]
    n_queries: int
    n_queries_by_terms: dict[int, int]
    n_combinations: int
    n_scored: int
    exact: bool
    interval: tuple[float, float]
    interval_by_terms: dict[int, tuple[float, float]]


@dataclass(frozen=True)
class _Stratum:
    """The queries of one length: how many have an answer, their mean AP, and the variance of both estimates."""

    size: float
    size_variance: float
    mean: float
    mean_variance: float
    n_scored: int
    exact: bool


def retrieval_map(
    probabilities: ArrayLike,
    targets: ArrayLike,
    max_terms: int = 5,
    exact_up_to: int = 500_000,
    samples: int = 20_000,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Progress | None = None,
) -> RetrievalMap:
    """Return the mean average precision of searching with label queries, over all that have an answer.

    A query desires the labels P and not the labels N, |P| ≥ 1, |P| + |N| ≤ `max_terms`. Items are ranked by their
    score, computed in float64; relevant are those with every label of P and none of N. A query without a
    relevant item is left out; an item with an unknown label among the query's is left out of that query.

    Formula:
        score = Π_{c ∈ P} η_c Π_{c ∈ N} (1 − η_c)

    Args:
        probabilities: η (N, L), in [0, 1]; the work is done on the device they are on.
        targets: (N, L), 1 present, 0 absent, −1 unknown; a soft target is present from .5 on.
        max_terms: the most terms of a query (the paper: 5).
        exact_up_to: all queries of k terms are scored where their combinations, C(L, k)(2^k − 1), are at most this many
            (all, for 20 labels and 5 terms); otherwise some are drawn.
        samples: queries with an answer that are then drawn uniformly, of each number of terms.
        confidence: of the intervals that sampling gives.
        seed: of the draws.
        progress: `progress(done, total)` is called as queries are scored; without one, a terminal shows a progress bar.

    Examples:
        >>> eta, targets = torch.tensor([[0.9, 0.8], [0.7, 0.1], [0.2, 0.6]]), torch.tensor([[1, 1], [1, 0], [0, 1]])
        >>> result = sy.metrics.retrieval_map(eta, targets, max_terms=2)
        >>> result.overall, result.n_queries, result.exact  # "a", "b", "a & b", "a & ~b" and "b & ~a"
        (1.0, 5, True)
    """
    pair = probable(probabilities, targets)
    n_labels = pair.values.shape[1]
    max_terms, samples, seed = as_whole(max_terms, "max_terms"), as_whole(samples, "samples"), as_whole(seed, "seed")
    if max_terms < 1:
        raise ValueError(f"max_terms is {max_terms}: a query has at least one term")
    if samples < 2:
        raise ValueError(f"samples is {samples}: draw at least 2 queries of each length to have an interval")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}: give a fraction between 0 and 1, say .95")
    scorer = _Scorer(pair.values, positive(pair.targets), pair.known)
    answers = scorer.answers()
    lengths = [k for k in range(1, max_terms + 1) if k <= n_labels]
    generator = np.random.default_rng(seed)
    plans: dict[int, tuple[Array, tuple[float, float] | None]] = {}
    for k in lengths:
        if n_combinations(n_labels, k) <= exact_up_to:
            plans[k] = _all_answered(answers, n_labels, k)
        else:
            plans[k] = _draw_answered(answers, n_labels, k, samples, generator)
    with _shown(progress, sum(len(queries) for queries, _ in plans.values())) as report:
        strata = {k: _stratum(scorer(queries, report), share, n_labels, k) for k, (queries, share) in plans.items()}
    return _combine(strata, n_labels, NormalDist().inv_cdf((1 + confidence) / 2))


class _Scorer:
    """Average precision of given queries, in batches on the device of the probabilities."""

    def __init__(self, probabilities: Tensor, present: Tensor, known: Tensor | None) -> None:
        eta = probabilities.T.double()
        absent = ~present if known is None else ~present & known
        self.factor = torch.cat([eta, 1 - eta])
        self.present = torch.cat([present.T, absent.T])
        self.known = None if known is None else torch.cat([known.T, known.T])
        cells = 1 << 21 if eta.device.type == "cpu" else 1 << 26
        self.at_once = max(1, cells // max(1, eta.shape[1]))

    def answers(self) -> Answers:
        """Return the queries that have an answer."""
        present, absent = self.present.T.cpu().tensor_split(2, dim=1)
        return Answers(present.numpy(), absent.numpy())

    def __call__(self, queries: Array, report: Callable[[int], None]) -> Array:
        """Return the average precision of each query, (q,)."""
        out = np.empty(len(queries))
        for start in range(0, len(queries), self.at_once):
            batch = torch.from_numpy(queries[start : start + self.at_once]).to(self.factor.device)
            score, relevant = self.factor[batch[:, 0]], self.present[batch[:, 0]]
            known = None if self.known is None else self.known[batch[:, 0]]
            for term in batch.T[1:]:
                score *= self.factor[term]
                relevant &= self.present[term]
                if known is not None and self.known is not None:
                    known &= self.known[term]
            out[start : start + len(batch)] = average_precision_rows(score, relevant, known).cpu().numpy()
            report(len(batch))
        return out


def _all_answered(answers: Answers, n_labels: int, n_terms: int) -> tuple[Array, None]:
    """Return all queries that have an answer."""
    answered = [q[answers.exist(q)] for q in every_query(n_labels, n_terms)]
    return np.concatenate(answered), None


def _draw_answered(
    answers: Answers, n_labels: int, n_terms: int, samples: int, generator: np.random.Generator
) -> tuple[Array, tuple[float, float]]:
    """Return queries drawn until `samples` have an answer, and the share that does, with its variance.

    Drawing until the n-th success, (n − 1) / (draws − 1) is the unbiased estimate of the share. The search gives up
    after 1000 draws a sample; then the share is successes / draws.
    """
    answered: list[Array] = []
    draws, have, batch = 0, 0, min(8 * samples, 1 << 16)
    while have < samples and draws < 1000 * samples:
        queries = draw_queries(n_labels, n_terms, batch, generator)
        hits = np.flatnonzero(answers.exist(queries))[: samples - have]
        answered.append(queries[hits])
        have += len(hits)
        draws += int(hits[-1]) + 1 if have == samples else batch
    share = (have - 1) / (draws - 1) if have == samples else have / draws
    return np.concatenate(answered), (share, share * share * (1 - share) / max(have, 1))


def _stratum(ap: Array, share: tuple[float, float] | None, n_labels: int, n_terms: int) -> _Stratum:
    """Turn the scored queries of one length into an estimate."""
    mean = float(np.mean(ap)) if len(ap) else float("nan")
    if share is None:
        return _Stratum(len(ap), 0.0, mean, 0.0, len(ap), exact=True)
    total = n_combinations(n_labels, n_terms)
    variance = float(np.var(ap, ddof=1)) / len(ap) if len(ap) > 1 else float("nan")
    return _Stratum(share[0] * total, share[1] * total**2, mean, variance, len(ap), exact=False)


def _combine(strata: dict[int, _Stratum], n_labels: int, z: float) -> RetrievalMap:
    """Weigh the lengths by their queries; the variance of the ratio by the delta method."""
    filled = [s for s in strata.values() if s.n_scored]
    total = sum(s.size for s in filled)
    overall = sum(s.size * s.mean for s in filled) / total if filled else float("nan")
    variance = sum(
        (s.size / total) ** 2 * s.mean_variance + ((s.mean - overall) / total) ** 2 * s.size_variance for s in filled
    )
    half = z * sqrt(variance)
    halves = {k: z * sqrt(s.mean_variance) for k, s in strata.items()}
    return RetrievalMap(
        overall=overall,
        by_terms={k: s.mean for k, s in strata.items()},
        n_queries=round(total),
        n_queries_by_terms={k: round(s.size) for k, s in strata.items()},
        n_combinations=sum(n_combinations(n_labels, k) for k in strata),
        n_scored=sum(s.n_scored for s in strata.values()),
        exact=all(s.exact for s in strata.values()),
        interval=(overall - half, overall + half),
        interval_by_terms={k: (s.mean - halves[k], s.mean + halves[k]) for k, s in strata.items()},
    )


@contextmanager
def _shown(progress: Progress | None, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the number of queries just scored, and shows progress."""
    done = 0

    def tell(n: int) -> None:
        nonlocal done
        done += n
        if progress is not None:
            progress(done, total)

    if progress is not None or not sys.stderr.isatty():
        yield tell
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("queries", total=total)
        yield lambda n: bar.advance(task, n)
