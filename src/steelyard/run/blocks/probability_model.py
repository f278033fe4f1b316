"""Calibrated log-odds of some labels, and lines shared by frequency bands, of a model with a head by blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from steelyard.calibrate import HeldOutCells, Platt, bands_of, fit_bands
from steelyard.calibrate.probability import ProbabilityModel
from steelyard.models import Model
from steelyard.models.block import BlockHead, SparseTargets
from steelyard.predict.blocks import by_blocks
from steelyard.run.blocks.training import features_of

_ITEMS = 1024  # at a time
_MOST_ITEMS = 20_000  # that bands are fitted to, or measured on
_FEWEST_CELLS = 50  # minimum number of drawn cells in a bin, for its frequency to mean something
_PER_BAND = 16  # labels of a band that are drawn for each item


def cells_of(
    model: Model, data: Any, probability_model: ProbabilityModel, seed: int, device: torch.device
) -> HeldOutCells:
    """Return all positives of some items and, of every frequency band, a few negatives drawn for each, weighted.

    Log-odds are those before calibration. Unknown cells are left out.
    """
    head = model.head
    assert isinstance(head, BlockHead)
    plain = replace(probability_model, calibrator=None, kind="link", to_prior=None)
    parts = list(_sampled(model, head, data, plain, seed, device))
    return HeldOutCells(*(torch.cat([part[i] for part in parts]) for i in range(4)))


def _sampled(
    model: Model, head: BlockHead, data: Any, plain: ProbabilityModel, seed: int, device: torch.device
) -> Iterator[HeldOutCells]:
    rng, log_odds = np.random.default_rng(seed), by_blocks(plain)
    bands = bands_of(plain.counts)
    members = [np.flatnonzero(bands == b) for b in np.unique(bands)]
    index = np.sort(rng.permutation(len(data.labels))[:_MOST_ITEMS])
    for start in range(0, len(index), _ITEMS):
        some = index[start : start + _ITEMS]
        targets = SparseTargets.from_labels(data.labels, some)
        rows, labels, weights = [targets.rows.numpy()], [targets.labels.numpy()], [np.ones(len(targets.rows))]
        for band in members:
            n = min(_PER_BAND, len(band))
            rows.append(np.repeat(np.arange(len(some)), n))
            labels.append(band[rng.integers(0, len(band), len(some) * n)])
            weights.append(np.full(len(some) * n, len(band) / n))
        row, label, weight = (np.concatenate(x) for x in (rows, labels, weights))
        listed = row[: len(targets.rows)] * np.int64(head.n_labels) + label[: len(targets.rows)]
        keys = row * np.int64(head.n_labels) + label
        value = np.full(len(row), targets.fill, np.float32)
        value[: len(listed)] = targets.values.numpy()
        again = np.isin(keys, listed)
        again[: len(listed)] = False  # a drawn cell that is listed is there already
        kept = ~again & (value >= 0)
        r, c = (torch.from_numpy(x[kept]).to(device) for x in (row, label))
        z = head.logits_at(model.features(features_of(data, some).to(device)), r, c)
        odds = log_odds(z.cpu().double(), c.cpu())
        yield HeldOutCells(odds, torch.from_numpy(value[kept]), c.cpu(), torch.from_numpy(weight[kept]))


def calibrated_by_bands(
    model: Model, data: Any, probability_model: ProbabilityModel, seed: int, device: torch.device
) -> ProbabilityModel:
    """Return the probability model with one calibration line per frequency band, fitted to held-out items."""
    cells = cells_of(model, data, probability_model, seed, device)
    if float(cells.targets.sum()) == 0:
        return probability_model
    platt = fit_bands(cells, probability_model.counts)
    return replace(probability_model, kind="platt", calibrator=platt, n_fitted=len(data.labels))


def band_report(cells: HeldOutCells, probability_model: ProbabilityModel, bins: int = 15) -> list[dict[str, Any]]:
    """Return, for each frequency band, how far its probabilities are from frequencies: ACE over bins of equal width."""
    platt = probability_model.calibrator
    odds = cells.log_odds
    if isinstance(platt, Platt):
        odds = odds * platt.slope[cells.labels] + platt.shift[cells.labels]
    eta, y, w = torch.sigmoid(odds).numpy(), cells.targets.double().numpy(), cells.weights.double().numpy()
    bands, rows = bands_of(probability_model.counts), []
    of_cell = bands[cells.labels.numpy()]
    for band in np.unique(bands):
        in_band = of_cell == band
        if not in_band.any():
            continue
        bin_of = np.minimum((eta[in_band] * bins).astype(int), bins - 1)
        mass, off = (np.bincount(bin_of, x, bins) for x in (w[in_band], w[in_band] * (eta[in_band] - y[in_band])))
        n_drawn = np.bincount(bin_of, minlength=bins)
        seen = n_drawn >= min(_FEWEST_CELLS, n_drawn.max())
        counts = probability_model.counts[bands == band]
        rows.append(
            {
                "positives": [int(counts.min()), int(counts.max())],
                "labels": len(counts),
                "ace": float(np.mean(np.abs(off[seen]) / mass[seen])),
                "mean_probability": float((w[in_band] * eta[in_band]).sum() / mass.sum()),
                "frequency": float((w[in_band] * y[in_band]).sum() / mass.sum()),
            }
        )
    return rows
