"""Metrics of a large validation set beside torchmetrics, PLM's histograms, and search over all queries."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

import steelyard.metrics as m
from steelyard._compat import import_torchvision
from steelyard.balance import PartialLabelMasking
from steelyard_bench.row import Row, row
from steelyard_bench.timing import Candidate, Clock

ITEMS, LABELS = 40_137, 80
"""The size of COCO 2014's validation set."""
SEARCHED = (5823, 20)
"""The size of VOC 2012's validation set."""

_BINS = 15


def metric_rows(n_items: int, clock: Clock, left_out: list[str]) -> list[Row]:
    """Return the rows of metrics of n_items × 80 probabilities; each is timed in turns with its peer."""
    p, t = _scores(n_items, LABELS, clock.device)
    plm = PartialLabelMasking((t == 1).sum(0).cpu().clamp(1, n_items - 1), n_items).to(clock.device)
    ours: dict[str, Callable[[], object]] = {
        "mAP, exact": lambda: m.mean_average_precision(p, t),
        "mAP by item": lambda: m.mean_average_precision(p, t, per="item"),
        f"calibration error, {_BINS} bins": lambda: m.calibration_error(p, t, bins=_BINS),
        "Brier score": lambda: m.brier(p, t),
        "PLM's histograms": lambda: plm.observe(p, t),
    }
    theirs = _torchmetrics(p, t.long(), left_out)
    shown, rows = f"{n_items:,} × {LABELS}", []
    for name, call in ours.items():
        candidates = {"ours": Candidate([call])}
        if name in theirs:
            candidates["theirs"] = Candidate([theirs[name]])
        times = clock.times(candidates)
        peer = times.get("theirs")
        rows.append(row("metrics", shown, name, "steelyard", times["ours"], peer))
        if peer is not None:
            rows.append(row("metrics", shown, f"{name}: torchmetrics", "peer", peer, peer))
    return rows


def retrieval_row(max_terms: int, clock: Clock) -> Row:
    """Return the row of average precision over every query of up to `max_terms` labels."""
    p, t = _scores(*SEARCHED, clock.device)
    m.retrieval_map(p, t, max_terms=1)  # compiles and warms up
    start = time.perf_counter()
    found = m.retrieval_map(p, t, max_terms, progress=lambda done, total: None)
    seconds = time.perf_counter() - start
    note = f"{found.n_queries:,} queries that have an answer, {found.n_queries / seconds:,.0f} a second"
    name = f"retrieval, all queries of up to {max_terms} terms"
    return Row("metrics", f"{SEARCHED[0]:,} × {SEARCHED[1]}", name, "steelyard", seconds, note=note)


def _scores(n_items: int, n_labels: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return probabilities and int8 targets whose labels are as unequally frequent as COCO's."""
    g = torch.Generator().manual_seed(0)
    frequency = torch.exp(torch.randn(n_labels, generator=g) - 4).clamp(0.002, 0.5)
    frequency[0] = 0.45
    t = torch.rand(n_items, n_labels, generator=g) < frequency
    z = torch.randn(n_items, n_labels, generator=g) + 2 * t + torch.logit(frequency)
    return torch.sigmoid(z).to(device), t.to(torch.int8).to(device)


def _torchmetrics(p: Tensor, t: Tensor, left_out: list[str]) -> dict[str, Callable[[], object]]:
    try:
        import_torchvision()
        from torchmetrics.functional.classification import binary_calibration_error, multilabel_average_precision
    except ImportError as error:
        left_out.append(f"torchmetrics ({error})")
        return {}
    return {
        "mAP, exact": lambda: float(multilabel_average_precision(p, t, LABELS)),
        f"calibration error, {_BINS} bins": lambda: binary_calibration_error(p.ravel(), t.ravel(), _BINS),
    }
