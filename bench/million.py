"""A generated set of up to millions of labels whose probabilities are known: how well, how fast, in how much memory.

    python bench/million.py --labels 1000000 --items 100000 --device cuda --out bench/figures/million.json
    python bench/million.py --labels 1000000 --items 20000 --write million.npz      # for steelyard train
    python bench/million.py --curves --device cuda --out bench/figures/million_curves.json

Item i has features x_i ~ N(0, 1)^F, label c has η_ic = σ(u_c·x_i + b_c) with u_c ~ N(0, s²/F) and b_c such that labels
have the frequencies of a power law and an item has about 15 labels. A model is fitted by `BlockHead`; its first labels
are compared with those of the true η, and its probabilities with η, by frequency band.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import block_head
from steelyard.calibrate import HeldOutCells, bands_of, fit_bands
from steelyard.labels import Labels
from steelyard.losses import BCE
from steelyard.metrics.top import TopEvaluator
from steelyard.models.block import BlockHead, BlockOptimizer, SparseTargets, log_odds_of, prior_bias, top_labels
from steelyard.models.block.top import merged
from steelyard.objective import Objective

PER_ITEM = 15.0
SPREAD = 2.0  # deviation of u·x
BLOCK = 65_536


class World(NamedTuple):
    """The truth: directions (L, F) and biases (L,) of all labels."""

    directions: Tensor
    biases: Tensor

    def log_odds(self, x: Tensor, labels: slice) -> Tensor:
        return x @ self.directions[labels].T + self.biases[labels]


def make_world(n_labels: int, n_features: int, power: float, device: str, seed: int = 0) -> World:
    """Labels whose frequencies fall as rank^−power; biases solve E σ(b + s g) = frequency, g normal."""
    g = torch.Generator(device=device).manual_seed(seed)
    directions = torch.randn(n_labels, n_features, generator=g, device=device) * (SPREAD / n_features**0.5)
    frequency = torch.arange(1, n_labels + 1, device=device, dtype=torch.float64) ** -power
    frequency = (frequency * (PER_ITEM / frequency.sum())).clamp_max(0.3)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    grid = np.linspace(-30, 5, 4001)
    reached = (weights / weights.sum() / (1 + np.exp(-(grid[:, None] + SPREAD * nodes)))).sum(1)
    biases = np.interp(np.log(frequency.cpu().numpy()), np.log(reached), grid)
    return World(directions, torch.from_numpy(biases).float().to(device))


def draw(world: World, n_items: int, seed: int) -> tuple[Tensor, Labels]:
    """Features and labels of new items, one block of labels at a time."""
    device = world.biases.device
    g = torch.Generator(device=device).manual_seed(seed)
    n_labels, n_features = world.directions.shape
    x = torch.randn(n_items, n_features, generator=g, device=device)
    rows, columns = [], []
    for first in range(0, n_items, 1024):
        some = x[first : first + 1024]
        for start in range(0, n_labels, BLOCK):
            eta = torch.sigmoid(world.log_odds(some, slice(start, start + BLOCK)))
            i, j = (torch.rand(eta.shape, generator=g, device=device) < eta).nonzero(as_tuple=True)
            rows.append((i + first).cpu())
            columns.append((j + start).cpu())
    row, column = torch.cat(rows).numpy(), torch.cat(columns).numpy()
    return x, Labels.from_cells(row, column, np.ones(len(row), np.int8), (n_items, n_labels), 0)


def fit(x: Tensor, labels: Labels, epochs: int, lr: float, batch: int) -> tuple[BlockHead, Objective, dict[str, Any]]:
    """A head fitted to all items by Adam, and what it took."""
    device, objective = x.device, Objective(BCE(reduction="item"))
    begun = time.perf_counter()
    bias = prior_bias(objective, labels)
    prior_seconds = time.perf_counter() - begun
    cuda = device.type == "cuda"
    dtype, state = (torch.bfloat16, "bfloat16") if cuda else (torch.float32, "float32")
    rule = BlockOptimizer("adam", state=state)  # type: ignore[arg-type]
    head = BlockHead(x.shape[1], labels.n_labels, optimizer=rule, dtype=dtype, device=device)
    head.start_at(bias)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    begun, steps = time.perf_counter(), 0
    total = epochs * -(-len(labels) // batch)
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(labels))
        for start in range(0, len(order), batch):
            index = order[start : start + batch]
            targets = SparseTargets.from_labels(labels, index).to(device)
            head.step(x[torch.from_numpy(index).to(device)], targets, objective, lr * (1 - steps / total))
            steps += 1
    if cuda:
        torch.cuda.synchronize()
    took = {"prior_seconds": prior_seconds, "seconds": time.perf_counter() - begun, "steps": steps}
    took["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9 if cuda else None
    return head, objective, took


def judged(
    head: BlockHead, objective: Objective, world: World, counts: Any, n_train: int, n_items: int
) -> dict[str, Any]:
    """First labels beside the true ones, and probabilities beside η, by frequency band, of new items."""
    x, labels = draw(world, n_items, 12345)
    read, ks = log_odds_of(objective), (1, 5, 20)
    evaluators = {name: TopEvaluator(counts, n_train, ks) for name in ("model", "truth")}
    shared = dict.fromkeys(ks, 0.0)
    begun = time.perf_counter()
    for start in range(0, n_items, 1024):
        some = x[start : start + 1024]
        targets = SparseTargets.from_labels(labels, np.arange(start, min(start + 1024, n_items)))
        top, best = top_labels(head, some, max(ks), read), None
        for begin in range(0, head.n_labels, BLOCK):
            best = merged(best, world.log_odds(some, slice(begin, begin + BLOCK)), begin, max(ks))
        assert best is not None
        for name, first in (("model", top), ("truth", best)):
            evaluators[name].update(first.labels.cpu(), targets.rows, targets.labels)
        for k in ks:
            same = (top.labels[:, :k, None] == best.labels[:, None, :k]).any(2).float().mean(1).sum()
            shared[k] += float(same) / n_items
    seconds = time.perf_counter() - begun
    tops = {name: evaluator.compute() for name, evaluator in evaluators.items()}
    return {
        "top": tops,
        "recall_of_true_top": shared,
        "seconds": seconds,
        "bands": _by_band(head, read, world, x, counts),
    }


def _by_band(head: BlockHead, read: Any, world: World, x: Tensor, counts: Any) -> list[dict[str, Any]]:
    """Mean |η̂ − η| and ACE by frequency band on drawn cells, without and with lines by band fitted to half of them."""
    rng, band, rows = np.random.default_rng(0), bands_of(counts), []
    parts = []
    for b in np.unique(band):
        members = np.flatnonzero(band == b)
        label = torch.from_numpy(members[rng.integers(0, len(members), 50_000)]).to(x.device)
        row = torch.from_numpy(rng.integers(0, len(x), 50_000)).to(x.device)
        z = head.logits_at(x, row, label)
        truth = (x[row] * world.directions[label]).sum(1) + world.biases[label]
        y = (torch.rand(len(z), generator=torch.Generator().manual_seed(int(b))) < torch.sigmoid(truth).cpu()).double()
        weight = torch.full((len(z),), len(members) / 50_000)
        parts.append(
            (HeldOutCells(z.double().cpu(), y, label.cpu(), weight), torch.sigmoid(truth.double()).cpu(), members)
        )
    half = [HeldOutCells(*(part[::2] for part in cells)) for cells, _, _ in parts]
    lines = fit_bands(HeldOutCells(*(torch.cat([cells[i] for cells in half]) for i in range(4))), counts)
    for cells, eta, members in parts:
        z, label, true = cells.log_odds[1::2], cells.labels[1::2], eta[1::2]
        row_of = {"positives": [int(np.min(counts[members])), int(np.max(counts[members]))], "labels": len(members)}
        row_of["mean_eta"] = float(true.mean())
        for name, odds in (("plain", z), ("by_band", z * lines.slope[label] + lines.shift[label])):
            p = torch.sigmoid(odds)
            spot = (p * 15).long().clamp_max(14)
            n, off = (torch.bincount(spot, w, 15) for w in (torch.ones_like(p), p - true))
            row_of[f"ace_{name}"] = float((off[n >= 50] / n[n >= 50]).abs().mean())
            row_of[f"off_{name}"] = float((p - true).abs().mean())
        rows.append(row_of)
    return rows


def curves(repeats: int) -> list[dict[str, Any]]:
    """Milliseconds and gigabytes of a step against the number of labels, 1,024 items of 768 features."""
    rows = []
    for n_labels in (1000, 3000, 10_000, 20_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000):
        row: dict[str, Any] = {"labels": n_labels}
        x = torch.randn(1024, block_head.D, device="cuda", dtype=torch.bfloat16)
        targets = block_head.targets_of(1024, n_labels, min(20, n_labels // 20))
        row |= block_head.beside_plain(x, targets, repeats, plain=n_labels <= 1_000_000)
        rows.append(row)
        print(row, flush=True)
    return rows


def write(path: Path, world: World, n_items: int) -> None:
    """Features and sparse labels as `steelyard train` reads them."""
    arrays: dict[str, Any] = {}
    for ending, n, seed in (("train", n_items, 1), ("test", max(n_items // 10, 1), 2)):
        x, labels = draw(world, n, seed)
        rows, columns, _ = labels.listed(np.arange(n))
        arrays[f"X_{ending}"] = x.cpu().numpy()
        arrays[f"Y_{ending}_indptr"] = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n))])
        arrays[f"Y_{ending}_indices"], arrays[f"Y_{ending}_shape"] = columns, np.array([n, labels.n_labels])
        arrays[f"Y_{ending}_data"] = np.ones(len(columns), np.int8)
    np.savez(path, **arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, default=1_000_000)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--power", type=float, default=0.8)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--curves", action="store_true")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.curves:
        result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "rows": curves(10)}
    else:
        world = make_world(given.labels, given.features, given.power, given.device)
        if given.write is not None:
            write(given.write, world, given.items)
            return
        begun = time.perf_counter()
        x, labels = draw(world, given.items, 1)
        drawn = time.perf_counter() - begun
        head, objective, took = fit(x, labels, given.epochs, given.lr, given.batch)
        arguments = {name: value for name, value in vars(given).items() if isinstance(value, int | float | str)}
        result = {**arguments, "draw_seconds": drawn, "positives": int(labels.counts.sum()), "fit": took}
        result |= judged(head, objective, world, labels.counts, labels.n_items, 2048)
    text = json.dumps(result, indent=1)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
