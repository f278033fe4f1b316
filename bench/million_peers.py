"""A generated set with known probabilities on a CPU: the head by blocks, a dense layer, and napkinXC's label tree.

    pip install --target FOLDER napkinxc
    python bench/million_peers.py --napkinxc FOLDER --out bench/figures/million_peers.json

Every method gets the same items, in a process of its own with one thread. Seconds are those of the processor, which
other work on the machine changes little; memory is the peak of the process beyond what it held before fitting. New
items are then given the first 20 labels of each method, which are compared with the first of the true η.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

import million
from evaluator import resident
from steelyard.labels import Labels
from steelyard.losses import BCE
from steelyard.metrics.top import TopEvaluator
from steelyard.models.block import SparseTargets, log_odds_of, prior_bias, top_labels
from steelyard.models.block.top import merged
from steelyard.objective import Objective

K, LR = 20, 0.02
Tops = tuple[Any, Any]
"""Numbers and probabilities (N, K) of the first labels of each item."""


def blocks(x: Tensor, labels: Labels, given: argparse.Namespace) -> Callable[[Tensor], Tops]:
    head, objective, _ = million.fit(x, labels, given.epochs, LR, given.batch)

    def first(some: Tensor) -> Tops:
        top = top_labels(head, some, K, log_odds_of(objective))
        return top.labels.numpy(), torch.sigmoid(top.scores).numpy()

    return first


def dense(x: Tensor, labels: Labels, given: argparse.Namespace) -> Callable[[Tensor], Tops]:
    """What one writes in torch: a linear layer from the same start, dense targets, BCE, Adam, the same steps."""
    layer = torch.nn.Linear(x.shape[1], labels.n_labels)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.copy_(prior_bias(Objective(BCE(reduction="item")), labels))
    optimizer, steps = torch.optim.Adam(layer.parameters()), 0
    total = given.epochs * -(-len(labels) // given.batch)
    for epoch in range(given.epochs):
        order = np.random.default_rng(epoch).permutation(len(labels))
        for start in range(0, len(order), given.batch):
            index = order[start : start + given.batch]
            optimizer.param_groups[0]["lr"] = LR * (1 - steps / total)
            optimizer.zero_grad()
            z, t = layer(x[torch.from_numpy(index)]), SparseTargets.from_labels(labels, index).dense()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(z, t, reduction="sum") / len(index)
            loss.backward()
            optimizer.step()
            steps += 1

    def first(some: Tensor) -> Tops:
        with torch.no_grad():
            values, at = torch.topk(layer(some), K)
        return at.numpy(), torch.sigmoid(values).numpy()

    return first


def napkinxc(x: Tensor, labels: Labels, given: argparse.Namespace) -> Callable[[Tensor], Tops]:
    """A probabilistic label tree, as it comes: it divides features by their length (with norm=False 0.7.2 crashed)."""
    sys.path.append(str(given.napkinxc))
    from napkinxc.models import PLT  # type: ignore[import-not-found]

    tree = PLT(tempfile.mkdtemp(dir=given.folder), threads=1, seed=0)
    rows, columns, _ = labels.listed(np.arange(len(labels)))
    y = csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), (len(labels), labels.n_labels))
    tree.fit(csr_matrix(x.numpy()), y)

    def first(some: Tensor) -> Tops:
        pairs = tree.predict_proba(csr_matrix(some.numpy()), top_k=K)
        filled = [(*row, *[(0, 0.0)] * (K - len(row))) for row in pairs]
        table = np.array(filled, np.float64)
        return table[..., 0].astype(np.int64), table[..., 1]

    return first


METHODS: dict[str, Callable[..., Callable[[Tensor], Tops]]] = {
    "BlockHead": blocks,
    "torch, dense": dense,
    "napkinXC": napkinxc,
}


def child(given: argparse.Namespace) -> None:
    """Fit one method, and keep its first labels of the test items."""
    torch.set_num_threads(1)
    data = np.load(given.folder / "set.npz")
    shape = data["Y_train_shape"]
    rows = np.repeat(np.arange(shape[0]), np.diff(data["Y_train_indptr"]))
    labels = Labels.from_cells(rows, data["Y_train_indices"], data["Y_train_data"], tuple(shape), 0)
    x, test = (torch.from_numpy(data[name]) for name in ("X_train", "X_test"))
    before, began, busy = resident("VmRSS"), time.perf_counter(), time.process_time()
    first = METHODS[given.method](x, labels, given)
    fitted, fitted_busy = time.perf_counter(), time.process_time()
    parts = [first(some) for some in test.split(256)]
    top, probability = (np.concatenate(part) for part in zip(*parts, strict=True))
    row = {"fit_seconds": fitted_busy - busy, "fit_wall_seconds": fitted - began}
    row |= {"predict_seconds": time.process_time() - fitted_busy, "gb": (resident("VmHWM") - before) / 1e9}
    np.savez(given.folder / "top.npz", top=top, probability=probability, row=json.dumps(row))


def judged(top: Any, probability: Any, world: million.World, data: Any, counts: Any, n_train: int) -> dict[str, float]:
    """P@k, share of the true first labels, and how far the probabilities given are from η."""
    x = torch.from_numpy(data["X_test"])
    rows = np.repeat(np.arange(len(x)), np.diff(data["Y_test_indptr"]))
    evaluator = TopEvaluator(counts, n_train, (1, 5, K))
    evaluator.update(top, rows, data["Y_test_indices"])
    best = None
    for start in range(0, len(counts), million.BLOCK):
        best = merged(best, world.log_odds(x, slice(start, start + million.BLOCK)), start, K)
    assert best is not None
    at = torch.from_numpy(top)
    eta = torch.sigmoid((x[:, None] * world.directions[at]).sum(2) + world.biases[at]).numpy()
    spot = np.minimum((probability * 15).astype(int), 14).ravel()
    n, off = (np.bincount(spot, w.ravel(), 15) for w in (np.ones_like(eta), probability - eta))
    out = {f"P@{k}": value for k, value in evaluator.compute()["precision"].items()}
    for k in (1, 5, K):
        out[f"true@{k}"] = float((at[:, :k, None] == best.labels[:, None, :k]).any(2).float().mean())
    return out | {"off": float(np.abs(probability - eta).mean()), "ace": float(np.abs(off[n > 49] / n[n > 49]).mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, default=20_000)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument(
        "--napkinxc", type=Path, help="folder that napkinxc was installed into; without it, it is left out"
    )
    parser.add_argument("--method", choices=METHODS, help="fit this one, in --folder (called by this script)")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.method:
        child(given)
        return
    world = million.make_world(given.labels, given.features, 0.8, "cpu")
    result: dict[str, Any] = {name: getattr(given, name) for name in ("labels", "items", "features", "epochs", "batch")}
    result["rows"] = rows = {}
    with tempfile.TemporaryDirectory() as folder:
        million.write(Path(folder) / "set.npz", world, given.items)
        data = np.load(Path(folder) / "set.npz")
        counts = np.bincount(data["Y_train_indices"], minlength=given.labels)
        for method in METHODS:
            if method == "napkinXC" and given.napkinxc is None:
                continue
            subprocess.run(
                [sys.executable, __file__, *sys.argv[1:], "--method", method, "--folder", folder], check=True
            )
            kept = np.load(Path(folder) / "top.npz")
            quality = judged(kept["top"], kept["probability"], world, data, counts, given.items)
            rows[method] = json.loads(str(kept["row"])) | quality
            print(method, {name: round(value, 3) for name, value in rows[method].items()}, flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
