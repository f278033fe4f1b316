"""Text: the tags of Debian's packages from their descriptions, and three public tables, beside logistic regression.

    python bench/debtags.py [--folder build/debtags] [--out bench/figures/text.json]
    python bench/debtags.py --sets delicious bibtex enron --data DATA --out bench/figures/text.json

The first command lets apt fetch Debian's package index (Packages and Translation-en, about 16 MB) into FOLDER, with
folders of its own and no root, and writes FOLDER/packages.csv: package, description, tags, source, split. An item is a
package that has tags; a fifth of the source packages, by a hash of their names, are test items, so that packages built
from one source are never on both sides. Then `auto` is compared with TF-IDF + logistic regression with searched C: the
same features, the same folds. Data is fetched, never committed.

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

import numpy as np
import torch

import steelyard as sy
from steelyard.metrics import calibration_error, mean_average_precision, precision_recall_f1
from steelyard.training.small_models import baseline, features_of

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


def compared(train: Any, test: Any, name: str, seed: int) -> dict[str, Any]:
    """Fit auto and logistic regression to the same features and folds, and measure both on the test items."""
    from defaults import resampled_map

    truth = np.asarray(test.labels.values)
    begun = time.perf_counter()
    run = sy.fit(train, settings={"train": {"seed": seed}}, verbose=True)
    seconds = time.perf_counter() - begun
    eta = run.probability(test)
    lines = {"auto": scores(eta, run.trained.reading.decisions(eta), truth, seconds)}
    begun = time.perf_counter()
    fit = baseline(train, torch.device("cpu"), seed).model
    seconds = time.perf_counter() - begun
    other = torch.sigmoid(fit.logits(features_of(test))).numpy()
    lines["lr"] = scores(other, other >= 0.5, truth, seconds)
    gains = resampled_map(eta, truth) - resampled_map(other, truth)
    low, high = np.percentile(gains, [2.5, 97.5])
    gain = lines["auto"]["map"] - lines["lr"]["map"]
    facts = {
        "items": len(train),
        "test_items": len(test),
        "labels": train.labels.n_labels,
        "positives_per_item": float(train.labels.counts.sum() / len(train)),
        "under_20": int((train.labels.counts < 20).sum()),
        "features": int(train.inputs.shape[1]),
    }
    print(f"{name}: mAP {lines['auto']['map']:.2f} against {lines['lr']['map']:.2f} ({low:+.2f} to {high:+.2f})")
    return {**facts, **lines, "gain": gain, "gain_low": float(low), "gain_high": float(high)}


def debtags(folder: Path, seed: int) -> dict[str, Any]:
    """Compare on the tags of Debian's packages."""
    from steelyard.config.sections import DataSettings
    from steelyard.models import ModelSettings
    from steelyard.run.datasets import open_datasets

    settings = DataSettings(path=str(write(folder)), text="description", group="source", test="test", validation=0.0)
    parts = open_datasets(settings, ModelSettings(), seed)
    return compared(parts.train, parts.test, "debtags", seed)


def main() -> None:
    """Measure the sets that are asked for, and keep what was measured of others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=["debtags"])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "debtags")
    parser.add_argument("--data", type=Path, help="holds mulan/, as for bench/defaults.py")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only-write", action="store_true", help="write packages.csv and measure nothing")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.only_write:
        print(write(asked.folder))
        return
    found = json.loads(asked.out.read_text()) if asked.out and asked.out.exists() else {}
    for name in asked.sets:
        if name == "debtags":
            found[name] = debtags(asked.folder, asked.seed)
            continue
        from defaults import load

        x, y, test_x, test_y = load(name, asked.data)
        train, test = (sy.data.ArrayDataset(a, sy.Labels(b)) for a, b in ((x, y), (test_x, test_y)))
        found[name] = compared(train, test, name, asked.seed)
    found["least_gain"] = min(one["gain"] for one in found.values() if isinstance(one, dict))
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
