"""The head by blocks beside the dense head on real tables: same seeds, batches and steps, on a CPU.

    python bench/block_evidence.py --data DATA --out bench/figures/block_evidence.json

DATA holds `mulan/` as for bench/defaults.py. Both heads start at the prior and take the same steps of AdamW or SGD with
momentum in float32; the head by blocks cuts the labels into blocks of 64.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from steelyard.balance import PartialLabelMasking
from steelyard.data import open_data
from steelyard.losses import BCE, Asymmetric, DistributionBalanced
from steelyard.metrics import mean_average_precision
from steelyard.models.block import BlockHead, BlockOptimizer, SparseTargets, prior_bias
from steelyard.objective import Objective

SETS = ("delicious", "bibtex", "corel5k")


def opened(folder: Path, name: str, split: str) -> tuple[Tensor, Any]:
    """Features, standardised later, and labels of one part."""
    files = sorted(folder.glob(f"{name}*"))
    place = next((f for f in files if f.suffix == ".npz"), folder)
    data: Any = open_data(place if place != folder else next(f for f in files if split in f.name), split=split).data
    return torch.as_tensor(data.inputs).float(), data.labels


def objectives(labels: Any) -> dict[str, Objective]:
    counts, n = labels.counts, labels.n_items
    masking = PartialLabelMasking(counts, n, rate=0, initial="mean", seed=0)
    return {
        "BCE": Objective(BCE()),
        "ASL": Objective(Asymmetric()),
        "DB": Objective(DistributionBalanced(counts, n, floor=1)),
        "PLM": Objective(BCE(), masking=masking),
        "wan": Objective(BCE(), "wan"),
    }


def compared(name: str, folder: Path, kind: str, epochs: int, items: int) -> list[dict[str, Any]]:
    """The largest difference of logits on test items, over the spread of the dense head's, and both mAPs."""
    (x, labels), (x_test, test) = (opened(folder, name, split) for split in ("train", "test"))
    x, labels = x[:items], labels.take(range(min(items, len(x))))
    mean, std = x.mean(0), x.std(0).clamp_min(1e-6)
    x, x_test, y = (x - mean) / std, (x_test - mean) / std, torch.from_numpy(labels.values)
    rows = []
    for loss in objectives(labels):
        ours, theirs = objectives(labels)[loss], objectives(labels)[loss]
        bias = prior_bias(ours, labels)
        rule = BlockOptimizer("adam" if kind == "adam" else "momentum", state="float32")
        head = BlockHead(x.shape[1], y.shape[1], optimizer=rule, block=64, dtype=torch.float32)
        dense = nn.Linear(x.shape[1], y.shape[1])
        head.start_at(bias)
        with torch.no_grad():
            dense.weight.zero_()
            dense.bias.copy_(bias)
        lr = 1e-3 if kind == "adam" else 1.0
        optimizer: Any = torch.optim.AdamW(dense.parameters(), lr=lr, weight_decay=0)
        if kind != "adam":
            optimizer = torch.optim.SGD(dense.parameters(), lr=lr, momentum=0.9)
        for epoch in range(epochs):
            for index in torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch)).split(128):
                head.step(x[index], SparseTargets.from_labels(labels, index), ours, lr, index)
                optimizer.zero_grad()
                theirs(dense(x[index]), y[index], index).total.backward()
                optimizer.step()
        with torch.no_grad():
            z, want = head(x_test), dense(x_test)
        off = float((z - want).abs().max() / want.std())
        maps = [mean_average_precision(scores, test.values) for scores in (z, want)]
        rows.append(
            {"set": name, "optimizer": kind, "objective": loss, "off": off, "mAP": maps[0], "dense_mAP": maps[1]}
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--items", type=int, default=1500, help="training items that are used")
    given = parser.parse_args()
    folder = given.data / "mulan"
    rows = []
    for name in SETS:
        for kind in ("adam", "momentum"):
            rows += compared(name, folder, kind, given.epochs, given.items)
    if given.out is not None:
        given.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
