"""Beyond PLM's paper on imbalanced MultiMNIST: what each part of two recipes adds. No test label is used.

    python examples/beyond_multi_mnist.py FOLDER-WITH-MNIST --out runs/beyond --seeds 0 1 2

Track "paper": the 14,694 pictures of the paper are fixed. Track "open": the same 14,694 digits, a tenth of each class
held out to calibrate on, paired and shifted anew at every step. The rows add one part after another, up to the recipes
`multimnist-beyond` (row "beyond") and `multimnist-open` (row "open"), and try some other choices. All are read three
ways: by σ at ½, as the paper does; for the label frequencies that training had; and for those of the test pictures,
estimated from the pictures alone.

Settings are chosen with --validate: 15 % of the digits of each class are not trained on, and what is measured are pairs
of these digits, not the test pictures. A finished row is read from its file, so that several processes may share the
rows (--rows) of one folder. OUT/beyond.json holds means and deviations over seeds.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from steelyard.data import multi_mnist, multi_mnist_digits, multi_mnist_held_out
from steelyard.metrics import calibration_error, exact_match, precision_recall_f1
from steelyard.run import fit
from steelyard.run.config import Config, load_config
from steelyard.run.datasets import Datasets, split_off
from steelyard.run.deployment import ESTIMATE, deployment
from steelyard.run.finish import outputs_of, reading_of, versions
from steelyard.run.folder import RunFolder

Settings = Mapping[str, Any]

HELD_OUT = 0.15
"""The share of each class that --validate measures on."""
TAIL = 3
WAYS = {"plain": "σ at ½", "as_trained": "as trained", "prior_estimated": "prior estimated"}
PAPER = {"BCE": (80.35, 65.73, 53.42), "best": (83.73, 75.10, 56.95)}
"""F1, F1 of the three rarest labels and exact match in PLM's Table 1."""


@dataclass(frozen=True)
class Row:
    """A training: a recipe, changed."""

    track: str
    what: str
    recipe: str
    changes: Settings = field(default_factory=dict)
    observes: float = 0.0
    """The share of the pictures that is held out for PLM to observe."""


def joined(*parts: Settings) -> dict[str, Any]:
    """Return nested settings as one; what comes later holds."""
    made: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            made[key] = joined(made.get(key, {}), value) if isinstance(value, Mapping) else value
    return made


_BCE = {"objective": {"masking": "none"}}
_DROPOUT = {"model": {"dropout": 0.5}}
_LIMIT = {"objective": {"masking": {"kind": "plm", "eps": 0.0}}}
_WARPS = {"rotate": 15.0, "scale": 0.15, "shear": 0.2, "elastic": 1.5}
_STILL = dict.fromkeys(_WARPS, 0.0)
_HALF = {"train": {"augment": {"pad_crop": 0, "warp": 0.5}}}
_NO_PAIRS = {"objective": {"label_pair": "none"}}
_SHORT = {"train": {"epochs": 72}}
_PLAIN = {"model": {"dropout": 0.0}, "train": {"ema": 0.0}}

ROWS = {
    "bce": Row("paper", "cross-entropy, the paper's recipe", "multimnist-plm", _BCE),
    "plm": Row("paper", "PLM, the paper's recipe", "multimnist-plm"),
    "bce-dropout": Row("paper", "cross-entropy, dropout ½", "multimnist-plm", joined(_BCE, _DROPOUT)),
    "plm-limit": Row("paper", "PLM, dropout ½, limit form", "multimnist-plm", joined(_LIMIT, _DROPOUT)),
    "plm-validation": Row(
        "paper",
        "the same, ratios moved by a tenth that is held out",
        "multimnist-plm",
        joined(_LIMIT, _DROPOUT, {"objective": {"masking": {"observes": "validation"}}}),
        0.1,
    ),
    "still": Row(
        "paper",
        "cross-entropy, dropout ½, averaged weights, cosine",
        "multimnist-beyond",
        joined(_NO_PAIRS, {"train": {"augment": {**_STILL, "pad_crop": 0}}}),
    ),
    "warped": Row("paper", "+ shifts and warps", "multimnist-beyond", _NO_PAIRS),
    "half-warped": Row("paper", "half of the pictures warped, none shifted + label pairs", "multimnist-beyond", _HALF),
    "more-pairs": Row(
        "paper",
        "+ shifts and warps + label pairs of weight 1",
        "multimnist-beyond",
        {"objective": {"label_pair": {"weight": 1.0}}},
    ),
    "beyond": Row("paper", "+ shifts and warps + label pairs", "multimnist-beyond"),
    "paired": Row(
        "open",
        "digits paired and shifted anew",
        "multimnist-open",
        joined(_SHORT, _PLAIN, {"train": {"sampler": {"kind": "shuffle"}, "augment": _STILL}}),
    ),
    "even": Row(
        "open", "+ drawn evenly by class", "multimnist-open", joined(_SHORT, _PLAIN, {"train": {"augment": _STILL}})
    ),
    "even-warped": Row("open", "+ warps", "multimnist-open", joined(_SHORT, _PLAIN)),
    "averaged": Row("open", "+ dropout ½, averaged weights", "multimnist-open", _SHORT),
    "milder": Row(
        "open",
        "half the warps, 160 epochs",
        "multimnist-open",
        {"train": {"augment": {k: v / 2 for k, v in _WARPS.items()}}},
    ),
    "open": Row("open", "+ 160 epochs for 72", "multimnist-open"),
}


@cache
def opened(track: str, root: str, validates: bool) -> Datasets:
    """Return what a track trains on, calibrates on (the open one, unless it is validated) and is measured on."""
    if validates:
        make = multi_mnist_held_out if track == "paper" else multi_mnist_digits
        train, pairs = make(root, held_out=HELD_OUT)
        return Datasets(train, None, pairs)
    test = multi_mnist(root, train=False)
    return Datasets(multi_mnist(root), None, test) if track == "paper" else Datasets(*multi_mnist_digits(root), test)


def config_of(row: Row, seed: int, epochs: int | None) -> Config:
    """Return the settings of a row."""
    run: dict[str, Any] = {"seed": seed, "keep": "last", "checkpoint_seconds": 1e9}
    config = load_config(None, row.recipe, (), joined(row.changes, {"train": run}))
    changes: dict[str, Any] = {"epochs": epochs} if epochs else {}
    if not row.observes:
        changes["validate_every"] = epochs or config.train.epochs
    return config.with_overrides({"train": changes})


def scores(eta: Tensor, targets: Tensor, counts: Any) -> dict[str, float]:
    """Return F1, that of the rarest labels, exact match and calibration error, in per cent, at ½."""
    said = eta >= 0.5
    f1 = precision_recall_f1(said, targets).f1
    rarest = torch.from_numpy(np.argsort(counts)[:TAIL])
    return {
        "f1": 100 * float(f1.mean()),
        "rarest_f1": 100 * float(f1[rarest].mean()),
        "exact_match": 100 * float(exact_match(said, targets)),
        "ace": 100 * float(calibration_error(eta, targets).ace),
    }


def trained(row: Row, data: Datasets, seed: int, folder: Path, epochs: int | None = None) -> dict[str, Any]:
    """Train a row and return what was measured, read each way."""
    config, started = config_of(row, seed, epochs), time.monotonic()
    asked = fit.Asked(config, row.recipe, "", data)
    learned = fit.learn(asked, RunFolder(folder), True, Console(quiet=True))
    validation, test = (
        outputs_of(learned.learner, part, config, learned.device) for part in (data.validation, data.test)
    )
    assert test is not None
    logits, targets = test
    labels = data.train.labels
    reading = reading_of(config, learned.objective, labels, validation)
    there = deployment(ESTIMATE, reading, labels.names, logits)
    etas = {
        "plain": torch.sigmoid(logits),
        "as_trained": reading.probability(logits),
        "prior_estimated": there.of(reading).probability(logits),
    }
    return {
        "track": row.track,
        "what": row.what,
        "recipe": row.recipe,
        "changes": row.changes,
        "seed": seed,
        "epochs": config.train.epochs,
        "seconds": round(learned.outcome.seconds, 2),
        "seconds_in_all": round(time.monotonic() - started, 2),
        "reading": reading.how,
        "scores": {way: scores(eta, targets, labels.counts) for way, eta in etas.items()},
        "estimate": there.report,
        "versions": versions(learned.device),
    }


def summed_up(out: Path) -> dict[str, Any]:
    """Return mean and deviation of every row's scores over the seeds that are there."""
    rows: dict[str, Any] = {}
    for name in ROWS:
        found = [json.loads(file.read_text()) for file in sorted(out.glob(f"{name}.[0-9]*.json"))]
        if not found:
            continue
        rows[name] = {key: found[0][key] for key in ("track", "what", "recipe", "changes", "epochs", "reading")}
        rows[name] |= {"seeds": [one["seed"] for one in found], "versions": found[0]["versions"]}
        rows[name]["seconds"] = float(np.mean([one["seconds"] for one in found]))
        rows[name]["scores"] = {
            way: {
                score: {"mean": float(np.mean(values)), "std": float(np.std(values))}
                for score in ("f1", "rarest_f1", "exact_match", "ace")
                if (values := [one["scores"][way][score] for one in found])
            }
            for way in WAYS
        }
    return {"command": shlex.join(["python", *sys.argv]), "paper": PAPER, "rows": rows}


def show(summary: Settings, console: Console) -> None:
    """Print a line a row and way of reading it."""
    table = Table(title="Imbalanced MultiMNIST, per cent")
    for title in ("row", "what", "read", "F1", "3 rarest", "all right", "ACE", "seeds", "s"):
        table.add_column(title, justify="left" if title in ("row", "what", "read") else "right")
    for name, row in summary["rows"].items():
        for i, (way, words) in enumerate(WAYS.items()):
            values = [f"{v['mean']:.1f} ± {v['std']:.1f}" for v in row["scores"][way].values()]
            who = (name, row["what"]) if i == 0 else ("", "")
            table.add_row(*who, words, *values, str(len(row["seeds"])), f"{row['seconds']:.0f}")
    console.print(table)


def main() -> None:
    """Train what is asked for and not yet there, then show all that is."""
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("data")
    ask.add_argument("--out", type=Path, default=Path("runs/beyond"))
    ask.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS))
    ask.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    ask.add_argument("--validate", action="store_true", help="measure on held-out training digits")
    ask.add_argument("--epochs", type=int, help="fewer, to try it out")
    given = ask.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for seed in given.seeds:
        for name in given.rows:
            file = given.out / f"{name}.{seed}.json"
            if not file.exists():
                row = ROWS[name]
                data = split_off(opened(row.track, given.data, given.validate), row.observes, seed)
                found = trained(row, data, seed, given.out / f"{name}.{seed}", given.epochs)
                file.write_text(json.dumps(found, indent=1) + "\n")
    summary = summed_up(given.out)
    (given.out / "beyond.json").write_text(json.dumps(summary, indent=1) + "\n")
    show(summary, Console(width=max(120, Console().width)))


if __name__ == "__main__":
    main()
