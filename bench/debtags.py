"""Text: the tags of Debian's packages from their descriptions, and three public tables, beside logistic regression.

    python bench/debtags.py [--folder build/debtags] [--out bench/figures/text.json]
    python bench/debtags.py --sets delicious bibtex enron --data DATA --out bench/figures/text.json

The first command lets apt fetch Debian's package index (Packages and Translation-en, about 16 MB) into FOLDER, with
folders of its own and no root, and writes FOLDER/packages.csv: package, description, tags, source, split. An item is a
package that has tags; a fifth of the source packages, by a hash of their names, are test items, so that packages built
from one source are never on both sides. Then `auto` is compared with TF-IDF + logistic regression with searched C: the
same features, the same folds; on two quiet cores that takes some half an hour, with `--share 0.2 --budget 20` (a fifth
of the source packages) a few minutes. Data is fetched, never committed. The second command compares what
bench/defaults.py measured of `auto` with TF-IDF + logistic regression on public tables of words.

Items that lack a tag may merely have been tagged by nobody: scores here are of the tags that people gave.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import steelyard as sy
from defaults import HERE, load, resampled_map
from steelyard.calibrate.crossfit import folds_of
from steelyard.config.sections import DataSettings
from steelyard.data.columns.encoder import Encoder
from steelyard.data.columns.mixed import MixedDataset
from steelyard.data.part import open_part
from steelyard.losses import BCE
from steelyard.metrics import calibration_error, mean_average_precision, precision_recall_f1
from steelyard.models.members import MemberSpec
from steelyard.run.datasets import open_to_inspect
from steelyard.training import small_models
from steelyard.training.candidates import Items, Linear, View, n_folds_for
from steelyard.training.race import RATE

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 10_000
"""Characters of a description that are kept."""


def fetch(folder: Path) -> None:
    """Let apt fetch the package index, descriptions included, into folders of its own."""
    lists = folder.absolute() / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    options = {
        "Dir::State::Lists": lists,
        "Dir::Cache": folder.absolute() / "cache",
        "Acquire::Languages": "en",
        "Acquire::GzipIndexes": "false",
        "APT::Sandbox::User": "",
    }
    command = ["apt-get", "update", *(part for key, value in options.items() for part in ("-o", f"{key}={value}"))]
    subprocess.run(command, check=True)


def stanzas(path: Path) -> Iterator[dict[str, str]]:
    """Yield the paragraphs of a file of apt: fields by name, continued lines joined."""
    fields: dict[str, str] = {}
    name = ""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.strip():
                if fields:
                    yield fields
                fields = {}
            elif line[0] == " ":
                fields[name] += "\n" + line.strip()
            else:
                name, _, value = line.partition(":")
                fields[name] = value.strip()
    if fields:
        yield fields


def packages(folder: Path) -> list[dict[str, str]]:
    """Return one row per package with tags: the first version of it that apt lists."""
    lists = folder / "lists"
    longer = {
        fields["Description-md5"]: fields.get("Description-en", "")
        for path in sorted(lists.glob("*_Translation-en"))
        for fields in stanzas(path)
    }
    rows: dict[str, dict[str, str]] = {}
    for path in sorted(lists.glob("*_Packages")):
        for fields in stanzas(path):
            if "Tag" not in fields or fields["Package"] in rows:
                continue
            tags = sorted({tag.strip() for tag in fields["Tag"].replace("\n", " ").split(",") if tag.strip()})
            source = fields.get("Source", fields["Package"]).split()[0]
            text = longer.get(fields.get("Description-md5", ""), fields["Description"])
            is_test = int(hashlib.sha256(source.encode()).hexdigest(), 16) % 5 == 0
            rows[fields["Package"]] = {
                "package": fields["Package"],
                "description": " ".join(text.split())[:LIMIT],
                "tags": ";".join(tags),
                "source": source,
                "split": "test" if is_test else "train",
            }
    return [rows[name] for name in sorted(rows)]


def write(folder: Path) -> Path:
    """Write packages.csv, unless it is there."""
    path = folder / "packages.csv"
    if not path.exists():
        fetch(folder)
        rows = packages(folder)
        with path.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    return path


def scores(eta: np.ndarray, decided: np.ndarray, truth: np.ndarray, seconds: float) -> dict[str, Any]:
    """Return what is measured of a method."""
    p, t = torch.from_numpy(np.asarray(eta, np.float64)).clamp(1e-6, 1 - 1e-6), torch.from_numpy(truth)
    return {
        "map": 100 * mean_average_precision(p, t),
        "f1": 100 * float(precision_recall_f1(torch.from_numpy(np.asarray(decided)), t).macro.f1),
        "ace": 100 * float(calibration_error(p, t).ace),
        "seconds": seconds,
    }


def compared(train: Any, test: Any, seed: int, budget: float) -> dict[str, Any]:
    """Fit logistic regression and auto to the same features and folds, and measure both on the test items."""
    truth = np.asarray(test.labels.values)
    begun = time.perf_counter()
    regression = small_models.baseline(train, torch.device("cpu"), seed)
    theirs = torch.sigmoid(regression.model.logits(small_models.features_of(test))).numpy()
    lines = {"lr": scores(theirs, theirs >= 0.5, truth, time.perf_counter() - begun)}
    print(f"TF-IDF + logistic regression: mAP {lines['lr']['map']:.2f}", flush=True)
    begun = time.perf_counter()
    settings = {"train": {"seed": seed, "budget": budget * RATE}}
    with patch.object(small_models, "baseline", lambda *_: regression):  # the run's report needs no second fit of it
        run = sy.fit(train, settings=settings)
    eta = run.probability(test)
    lines["auto"] = scores(eta, run.trained.reading.decisions(eta), truth, time.perf_counter() - begun)
    facts = {
        "items": len(train),
        "test_items": len(test),
        "labels": train.labels.n_labels,
        "positives_per_item": float(train.labels.counts.sum() / len(train)),
        "under_20": int((train.labels.counts < 20).sum()),
        "features": int(train.inputs.shape[1]),
    }
    return {**facts, **lines} | gained(resampled_map(eta, truth), resampled_map(theirs, truth), lines)


def gained(ours: np.ndarray, theirs: np.ndarray, lines: dict[str, Any]) -> dict[str, float]:
    """Return the gain in mAP with its interval over the same resamples of test items."""
    low, high = np.percentile(ours - theirs, [2.5, 97.5])
    gain = lines["auto"]["map"] - lines["lr"]["map"]
    print(f"mAP {lines['auto']['map']:.2f} against {lines['lr']['map']:.2f} ({low:+.2f} to {high:+.2f})", flush=True)
    return {"gain": gain, "gain_low": float(low), "gain_high": float(high)}


def debtags(folder: Path, seed: int, share: float, budget: float) -> dict[str, Any]:
    """Compare on the tags of Debian's packages."""
    settings = DataSettings(path=str(write(folder)), text="description", group="source", test="test", validation=0.0)
    opened = open_to_inspect(settings)
    train, test = opened.data, open_part(opened, split="test").data
    if share < 1:
        groups = np.asarray(train.labels.item_groups)
        chosen = np.random.default_rng(seed).permutation(groups.max() + 1) < share * (groups.max() + 1)
        rows = np.flatnonzero(chosen[groups])
        columns = {name: column.take(rows) for name, column in train.columns.items()}
        train = MixedDataset(columns, train.labels.take(rows))
    encoder = Encoder.fitted(train)
    return {"share": share, "budget_seconds": budget, **compared(*map(encoder.encoded, (train, test)), seed, budget)}


def table(name: str, data: Path, seed: int) -> dict[str, Any]:
    """Compare the ledger's auto (bench/defaults.py) with TF-IDF + logistic regression on a public table."""
    x, y, test_x, truth = load(name, data)
    begun = time.perf_counter()
    targets = torch.from_numpy(y)
    items = Items(torch.from_numpy(x), targets, folds_of(targets, n_folds_for(len(x)), seed))
    view = View(items, MemberSpec("tfidf"), seed)
    model = Linear.of(view, BCE())
    fit = model.refit(model.path(items.screening).strength)
    theirs = torch.sigmoid(fit.logits(view.transform(torch.from_numpy(test_x)))).numpy()
    lines = {"lr": scores(theirs, theirs >= 0.5, truth, time.perf_counter() - begun)}
    ledger = [json.loads(line) for line in (HERE / "ledger.jsonl").read_text(encoding="utf-8").splitlines()]
    wanted = {"set": name, "setting": "full", "method": "auto", "seed": seed}
    ours = next(line for line in ledger if wanted.items() <= line.items())
    lines["auto"] = {key: ours[key] for key in ("map", "f1", "ace", "seconds")}
    return lines | gained(np.array(ours["resampled"]), resampled_map(theirs, truth), lines)


def main() -> None:
    """Measure the sets that are asked for, and keep what was measured of others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=["debtags"])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "debtags")
    parser.add_argument("--data", type=Path, help="holds mulan/, as for bench/defaults.py")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="of the source packages to train on")
    parser.add_argument("--budget", type=float, default=120.0, help="of auto, in seconds on two cores")
    parser.add_argument("--only-write", action="store_true", help="write packages.csv and measure nothing")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.only_write:
        print(write(asked.folder))
        return
    found = json.loads(asked.out.read_text()) if asked.out and asked.out.exists() else {}
    for name in asked.sets:
        if name == "debtags":  # a part of it is kept under a name of its own
            key = name if asked.share == 1 else f"{name}_{100 * asked.share:g}_percent"
            found[key] = debtags(asked.folder, asked.seed, asked.share, asked.budget)
        else:
            found[name] = table(name, asked.data, asked.seed)
        found["least_gain"] = min(one["gain"] for one in found.values() if isinstance(one, dict))
        if asked.out:
            asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
