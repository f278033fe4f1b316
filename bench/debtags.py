"""Text: the tags of Debian's packages from their descriptions, and three public tables, beside logistic regression.

    python bench/debtags.py [--folder build/debtags] [--out bench/figures/text.json]
    python bench/debtags.py --sets delicious bibtex enron --data DATA --out bench/figures/text.json
    python bench/debtags.py --page --out bench/figures/text.json   # the table of docs/how-to/text.md

The first command lets apt fetch Debian's package index (Packages and Translation-en, about 16 MB) into FOLDER, with
folders of its own and no root, and writes FOLDER/packages.csv: package, description, tags, source, split. An item is a
package that has tags; a fifth of the source packages, those whose name has a SHA-256 of 3 modulo 5, are test items, so
that packages built from one source are never on both sides. Then `auto` on the text column is compared with logistic
regression with searched C, on the same folds, over TF-IDF of words (scikit-learn's defaults), over TF-IDF of words and
pairs of words, and over the features of `auto`; the gain is that over the best of the first two. On two quiet cores
that takes an hour, with `--share 0.2` (a fifth of the source packages) ten minutes. Data is fetched, never committed.
The second command fits `auto` and TF-IDF + logistic regression to public tables of words. With `--language de`
descriptions are German, of the packages that have one.

Items that lack a tag may merely have been tagged by nobody: scores here are of the tags that people gave. Packages of
one source are alike, and a few sources have a hundred: intervals are of resampled sources, and `ace_of_sources` is the
ACE of one package per source, the first by name.
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
from scipy.sparse import csr_array
from sklearn.feature_extraction.text import TfidfVectorizer

import steelyard as sy
from defaults import load, measured, resampled_map
from steelyard.calibrate.crossfit import folds_of
from steelyard.config.sections import DataSettings
from steelyard.data.columns.encoder import Encoder
from steelyard.data.columns.mixed import MixedDataset
from steelyard.data.dataset import ArrayDataset
from steelyard.data.part import open_part
from steelyard.losses import BCE
from steelyard.metrics import calibration_error, mean_average_precision, precision_recall_f1
from steelyard.models.race.members import MemberSpec
from steelyard.run.datasets import open_to_inspect
from steelyard.training import small_models
from steelyard.training.race.candidates import Items, Linear, View, macro_log_loss, n_folds_for
from steelyard.training.race.course import RATE

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 10_000
"""Characters of a description that are kept."""
TEST = 3
"""Remainder of the hash of test items; those of 0 and 1 were test items before, and those of 2 were held out while the
features of texts were chosen."""
PEERS: dict[str, dict[str, Any]] = {
    "lr_words": {},
    "lr_pairs": {"ngram_range": (1, 2), "sublinear_tf": True, "min_df": 2, "max_features": 20_000},
}
"""Settings of scikit-learn's TfidfVectorizer under logistic regression."""
TITLES = {
    "lr": "TF-IDF + LR",
    "lr_words": "TF-IDF of words + LR",
    "lr_pairs": "TF-IDF of words and pairs + LR",
    "lr_same_features": "LR on the features of `auto`",
    "auto": "`auto`",
}
"""Names of the methods on the page."""


def fetch(folder: Path, language: str) -> None:
    """Let apt fetch the package index, descriptions included, into folders of its own."""
    lists = folder.absolute() / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    options = {
        "Dir::State::Lists": lists,
        "Dir::Cache": folder.absolute() / "cache",
        "Acquire::Languages": language,
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


def packages(folder: Path, language: str) -> list[dict[str, str]]:
    """Return one row per package with tags, and a description in that language: the first version that apt lists."""
    lists = folder / "lists"
    longer = {
        fields["Description-md5"]: fields.get(f"Description-{language}", "")
        for path in sorted(lists.glob(f"*_Translation-{language}"))
        for fields in stanzas(path)
    }
    rows: dict[str, dict[str, str]] = {}
    for path in sorted(lists.glob("*_Packages")):
        for fields in stanzas(path):
            if "Tag" not in fields or fields["Package"] in rows:
                continue
            tags = sorted({tag.strip() for tag in fields["Tag"].replace("\n", " ").split(",") if tag.strip()})
            source = fields.get("Source", fields["Package"]).split()[0]
            text = longer.get(fields.get("Description-md5", ""), fields["Description"] if language == "en" else "")
            if not text:
                continue
            is_test = int(hashlib.sha256(source.encode()).hexdigest(), 16) % 5 == TEST
            rows[fields["Package"]] = {
                "package": fields["Package"],
                "description": " ".join(text.split())[:LIMIT],
                "tags": ";".join(tags),
                "source": source,
                "split": "test" if is_test else "train",
            }
    return [rows[name] for name in sorted(rows)]


def write(folder: Path, language: str) -> Path:
    """Write packages.csv, unless it is there."""
    path = folder / "packages.csv"
    if not path.exists():
        fetch(folder, language)
        rows = packages(folder, language)
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
        "log_loss": macro_log_loss(torch.logit(p), t),
        "f1": 100 * float(precision_recall_f1(torch.from_numpy(np.asarray(decided)), t).macro.f1),
        "ace": 100 * float(calibration_error(p, t).ace),
        "seconds": seconds,
    }


def regression(train: Any, test: Any, seed: int) -> tuple[small_models.Baseline, np.ndarray, float]:
    """Fit logistic regression with searched C; return it, its probabilities of the test items, and the seconds."""
    begun = time.perf_counter()
    model = small_models.baseline(train, torch.device("cpu"), seed)
    eta = torch.sigmoid(model.model.logits(small_models.features_of(test))).numpy()
    return model, eta, time.perf_counter() - begun


def compared(train: Any, test: Any, seed: int, budget: float) -> dict[str, Any]:
    """Fit auto to texts, and logistic regression to several kinds of TF-IDF; measure all on the test items."""
    truth, groups = np.asarray(test.labels.values), np.unique(test.labels.item_groups, return_inverse=True)[1]
    first = np.unique(groups, return_index=True)[1]
    lines, resampled = {}, {}

    def measure(name: str, eta: np.ndarray, decided: np.ndarray, seconds: float) -> None:
        of_sources = scores(eta[first], decided[first], truth[first], 0.0)["ace"]
        lines[name] = scores(eta, decided, truth, seconds) | {"ace_of_sources": of_sources}
        resampled[name] = resampled_map(eta, truth, groups)
        print(name, {key: round(value, 4) for key, value in lines[name].items()}, flush=True)

    texts, new = (data.columns["description"].texts() for data in (train, test))
    for name, how in PEERS.items():
        vectoriser = TfidfVectorizer(**how, dtype=np.float32)
        theirs = ArrayDataset(csr_array(vectoriser.fit_transform(texts)), train.labels)
        _, eta, seconds = regression(theirs, ArrayDataset(csr_array(vectoriser.transform(new)), test.labels), seed)
        measure(name, eta, eta >= 0.5, seconds)
    encoder = Encoder.fitted(train)
    ours, ours_test = map(encoder.encoded, (train, test))
    model, eta, seconds = regression(ours, ours_test, seed)
    measure("lr_same_features", eta, eta >= 0.5, seconds)
    begun = time.perf_counter()
    settings = {"train": {"seed": seed, "budget": budget * RATE}}
    with patch.object(small_models, "baseline", lambda *_: model):  # the run's report needs no second fit of it
        run = sy.fit(train, settings=settings)
    eta = run.probability(new)
    measure("auto", eta, run.trained.probability_model.decisions(eta), time.perf_counter() - begun)
    facts = {
        "items": len(train),
        "test_items": len(test),
        "test_sources": len(first),
        "labels": train.labels.n_labels,
        "positives_per_item": float(train.labels.counts.sum() / len(train)),
        "under_20": int((train.labels.counts < 20).sum()),
        "features": encoder.width,
    }
    lines["lr"] = max((lines[name] for name in PEERS), key=lambda line: line["map"])
    best = max(PEERS, key=lambda name: lines[name]["map"])
    return {**facts, **lines} | gained(resampled["auto"], resampled[best], lines)


def gained(ours: np.ndarray, theirs: np.ndarray, lines: dict[str, Any]) -> dict[str, float]:
    """Return the gain in mAP with its interval over the same resamples of test items."""
    low, high = np.percentile(ours - theirs, [2.5, 97.5])
    gain = lines["auto"]["map"] - lines["lr"]["map"]
    print(f"mAP {lines['auto']['map']:.2f} against {lines['lr']['map']:.2f} ({low:+.2f} to {high:+.2f})", flush=True)
    return {"gain": gain, "gain_low": float(low), "gain_high": float(high)}


def debtags(folder: Path, language: str, seed: int, share: float, budget: float) -> dict[str, Any]:
    """Compare on the tags of Debian's packages."""
    settings = DataSettings(
        path=str(write(folder, language)), text="description", group="source", test="test", validation=0.0
    )
    opened = open_to_inspect(settings)
    train, test = opened.data, open_part(opened, split="test").data
    if share < 1:
        groups = np.asarray(train.labels.item_groups)
        chosen = np.random.default_rng(seed).permutation(groups.max() + 1) < share * (groups.max() + 1)
        rows = np.flatnonzero(chosen[groups])
        columns = {name: column.take(rows) for name, column in train.columns.items()}
        train = MixedDataset(columns, train.labels.take(rows))
    return {"language": language, "share": share, "budget_seconds": budget, **compared(train, test, seed, budget)}


def table(name: str, data: Path, seed: int) -> dict[str, Any]:
    """Compare auto, as bench/defaults.py measures it, with TF-IDF + logistic regression on a public table."""
    x, y, test_x, truth = load(name, data)
    begun = time.perf_counter()
    targets = torch.from_numpy(y)
    items = Items(torch.from_numpy(x), targets, folds_of(targets, n_folds_for(len(x)), seed))
    view = View(items, MemberSpec("tfidf"), seed)
    model = Linear.of(view, BCE())
    fit = model.refit(model.path(items.screening).strength)
    theirs = torch.sigmoid(fit.logits(view.transform(torch.from_numpy(test_x)))).numpy()
    lines = {"lr": scores(theirs, theirs >= 0.5, truth, time.perf_counter() - begun)}
    ours = measured(name, "full", "auto", seed, data)
    lines["auto"] = {key: ours[key] for key in ("map", "log_loss", "f1", "ace", "seconds")}
    return lines | gained(np.array(ours["resampled"]), resampled_map(theirs, truth), lines)


def summed_up(results: dict[str, Any]) -> dict[str, float]:
    """Return what `auto` gains on the sets in English together; the errors of the sets are independent."""
    sets = [one for one in results.values() if isinstance(one, dict) and one.get("language", "en") == "en"]
    gains = np.array([one["gain"] for one in sets])
    errors = np.array([one["gain_high"] - one["gain_low"] for one in sets]) / 3.92  # of a normal 95 % interval
    ratios = [one["auto"]["log_loss"] / one["lr"]["log_loss"] for one in sets]
    return {
        "least_gain": float(gains.min()),
        "mean_gain": float(gains.mean()),
        "mean_gain_low": float(gains.mean() - 1.96 * np.sqrt((errors**2).sum()) / len(sets)),
        "log_loss_ratio": float(np.mean(ratios)),
        "worst_log_loss_ratio": float(max(ratios)),
        "worst_ace_over_lr": float(max(one["auto"]["ace"] - one["lr"]["ace"] for one in sets)),
    }


def write_page(results: dict[str, Any]) -> None:
    """Write the table of what was measured between its marks on the page about text."""
    page = ROOT / "docs" / "how-to" / "text.md"
    opening, closing = "<!-- text-sets: bench/debtags.py --page -->", "<!-- /text-sets -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(opening)
    rows = ["| set | method | mAP, % | gain of `auto` | log-loss | ACE, % |", "|---|---|---|---|---|---|"]
    for name, one in results.items():
        for key, title in TITLES.items():
            if not isinstance(one, dict) or key not in one or (key == "lr" and "lr_words" in one):
                continue
            line = one[key]
            gain = f"{one['gain']:+.2f} ({one['gain_low']:+.2f} to {one['gain_high']:+.2f})" if key == "auto" else ""
            ace = f"{line['ace']:.1f}" + (f"; {line['ace_of_sources']:.1f}" if "ace_of_sources" in line else "")
            rows.append(f"| {name} | {title} | {line['map']:.2f} | {gain} | {line['log_loss']:.4f} | {ace} |")
    middle = "\n".join([opening, "", *rows, "", closing])
    page.write_text(before + middle + rest.partition(closing)[2], encoding="utf-8")


def main() -> None:
    """Measure the sets that are asked for, and keep what was measured of others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=["debtags"])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "debtags")
    parser.add_argument("--data", type=Path, help="holds mulan/, as for bench/defaults.py")
    parser.add_argument("--language", default="en", help="of the descriptions, such as de; each needs a --folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="of the source packages to train on")
    parser.add_argument("--budget", type=float, default=120.0, help="of auto, in seconds on two cores")
    parser.add_argument("--only-write", action="store_true", help="write packages.csv and measure nothing")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", action="store_true", help="write the table of --out into docs/how-to/text.md")
    given = parser.parse_args()
    if given.only_write:
        print(write(given.folder, given.language))
        return
    results = json.loads(given.out.read_text()) if given.out and given.out.exists() else {}
    for name in () if given.page else given.sets:
        if name == "debtags":  # a part of it is kept under a name of its own
            key = name if given.language == "en" else f"{name}_{given.language}"
            key += "" if given.share == 1 else f"_{100 * given.share:g}_percent"
            results[key] = debtags(given.folder, given.language, given.seed, given.share, given.budget)
        else:
            results[name] = table(name, given.data, given.seed)
        keep(results, given.out)
    if given.page:
        keep(results, given.out)
        write_page(results)


def keep(results: dict[str, Any], out: Path | None) -> None:
    """Write what was measured, and its sums over the sets."""
    sets = {name: one for name, one in results.items() if isinstance(one, dict)}
    if out:
        out.write_text(json.dumps({**sets, **summed_up(sets)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
