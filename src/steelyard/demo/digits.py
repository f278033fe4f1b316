"""Compare six recipes on pairs of scikit-learn's digits: long-tailed, with labels removed."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits

from steelyard.config.sections import EvaluateSettings
from steelyard.data.builders import exponential_counts, keep_labels
from steelyard.data.dataset import ArrayDataset
from steelyard.labels import Labels
from steelyard.report.canvas import has_matplotlib
from steelyard.report.comparison import ComparedRun, write_comparison_page
from steelyard.report.headline import get
from steelyard.run.api import fit
from steelyard.run.datasets import Datasets
from steelyard.run.evaluation import judge
from steelyard.run.index import index_of
from steelyard.run.run_report import evaluated_of
from steelyard.run.search import INDEX

CANVAS = 12
MARGINS, SCALE = ((0, 0), (1, 2), (4, 4)), 12
"""Margins around the canvas and scale of an image file, which make it 4 to 3, as the search page shows images."""
RECIPES = {
    "BCE, unknown = absent": "an",
    "BCE": "bce",
    "PLM": "plm",
    "DB-Focal": "db",
    "SPA + LPR": "spa-lpr",
    "partial labels": "pal",
}
"""Recipes to compare, by the name shown."""

SETTINGS: dict[str, Any] = {
    "data": {"validation": 0.15},
    "model": {"backbone": "small", "dropout": 0.3},
    "optimizer": {"kind": "adamw", "lr": 3e-3, "weight_decay": 0.05},
    "schedule": {"kind": "cosine", "warmup_epochs": 2},
    "train": {"epochs": 16, "batch_size": 128, "device": "cpu", "validate_every": 4},
}


class Score(NamedTuple):
    """One row of the demo's table, in per cent."""

    name: str
    map: float
    f1: float
    tail_f1: float
    ace_by_sigmoid: float
    ace: float
    seconds: float


def digit_pairs(n: int, train: bool, rho: float = 20.0, seed: int = 0) -> ArrayDataset:
    """Return `n` superimposed pairs of scikit-learn's digits, digit d drawn ρ^(−d/9) times as often as digit 0."""
    rng = np.random.default_rng([seed, train])
    digits = load_digits()
    side = np.random.default_rng(seed).random(len(digits.target)) < 0.6  # which digits are for training
    images, classes = digits.images[side == train], digits.target[side == train]
    weights = exponential_counts(1000, 10, rho)[classes] / np.bincount(classes)[classes]
    drawn = rng.choice(len(classes), size=(2, n), p=weights / weights.sum())
    canvas = np.zeros((n, CANVAS, CANVAS), np.uint8)
    grey = np.round(images * (255 / 16)).astype(np.uint8)
    for half in drawn:
        shift = rng.integers(0, CANVAS - 8 + 1, size=(n, 2))
        for i, (item, (top, left)) in enumerate(zip(half, shift, strict=True)):
            patch = canvas[i, top : top + 8, left : left + 8]
            np.maximum(patch, grey[item], out=patch)
    values = np.zeros((n, 10), np.int8)
    for half in drawn:
        values[np.arange(n), classes[half]] = 1
    ids = [f"{i:04d}-{'-'.join(map(str, sorted(classes[pair])))}" for i, pair in enumerate(drawn.T)]
    return ArrayDataset(canvas[:, None], Labels(values, names=[str(d) for d in range(10)], ids=ids))


def write_images(items: ArrayDataset, folder: Path) -> list[Path]:
    """Write every pair as a JPEG file named after its id, and return the files in the order of the items."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.jpg" for name in items.labels.ids]
    framed = np.pad(items.inputs[:, 0], MARGINS)
    for file, pixels in zip(files, framed, strict=True):
        size = (pixels.shape[1] * SCALE, pixels.shape[0] * SCALE)
        Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).save(file, quality=85)
    return files


def datasets(n_train: int = 8000, n_test: int = 8000, seed: int = 0) -> Datasets:
    """Return training items with 40 % of their labels removed, and test items with complete labels."""
    complete = digit_pairs(n_train, train=True, seed=seed)
    train = ArrayDataset(complete.inputs, keep_labels(complete.labels, 0.6, seed=seed))
    return Datasets(train, None, digit_pairs(n_test, train=False, seed=seed))


def compare(items: Datasets, out: Path, console: Console, seed: int = 0, epochs: int = 16) -> list[Score]:
    """Train each recipe into its own folder under `out`, index the test images, and write the comparison page."""
    files = write_images(items.test, out / "images")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the network is so small that more would only wait for each other
    try:
        results = [_run(name, recipe, items, files, out, console, seed, epochs) for name, recipe in RECIPES.items()]
    finally:
        torch.set_num_threads(threads)
    if has_matplotlib():
        about = (
            "Pairs of digits, the most frequent about 20 times as common as the rarest; 40 % of the training labels "
            "removed; measured on complete labels."
        )
        write_comparison_page(out / "report.html", "Steelyard's demo", [run for run, _ in results], about)
    return [score for _, score in results]


def show(seed: int, out: str, as_json: bool) -> None:
    """Run the demo and print the scores, as a table or as JSON."""
    console = Console(stderr=as_json, highlight=False)
    console.print(
        "Pairs of handwritten digits; digit 0 is twenty times as frequent as digit 9,\n"
        "and 40 % of the training labels are removed. Six recipes train the same small\n"
        "network, calibrate it on 15 % of those items, and are tested on complete labels.\n"
    )
    scores = compare(datasets(seed=seed), Path(out), console, seed)
    if as_json:
        print(json.dumps([score._asdict() for score in scores]))
        return
    table = Table()
    table.add_column("recipe")
    for title in ("mAP", "F1", "F1 of rarest 3", "ACE by σ", "ACE"):
        table.add_column(title, justify="right")
    columns = list(zip(*(score[1:6] for score in scores), strict=True))
    best = [max(c) for c in columns[:3]] + [min(c) for c in columns[3:]]
    for score in scores:
        cells = [f"{v:.1f}{'*' if v == b else ' '}" for v, b in zip(score[1:6], best, strict=True)]
        table.add_row(score.name, *cells)
    console.print(table)
    console.print(
        "In per cent; * marks the best. mAP: how well items are ranked. F1: decisions at one threshold\n"
        "per label. ACE: calibration error, lower is better. 'By σ' takes the sigmoid of the network's\n"
        "output for a probability; the last column is of Steelyard's own probabilities.\n\n"
        f"{_next_steps(Path(out), max(scores, key=lambda score: score.map))}",
        soft_wrap=True,
        markup=False,
    )


def _next_steps(out: Path, best: Score) -> str:
    """Return the next steps after the demo, with their commands."""
    lines = []
    if has_matplotlib():
        lines.append(f"Comparison with reliability diagrams: {out / 'report.html'}")
    path = Path(sys.argv[0])  # `make demo` runs .venv/bin/steelyard, which may not be on the PATH
    program = str(path) if path.name == "steelyard" and shutil.which("steelyard") is None else "steelyard"
    lines += [f"Next, on your own data: {program} inspect DATA", f"{'':24}{program} train --data DATA"]
    if find_spec("duckdb") is not None:
        serve = shlex.join([program, "serve", str(out / RECIPES[best.name]), "--images", str(out / "images")])
        lines += ["Search the test images in a browser, such as for 4 and 7 but not 3:", f"  {serve}"]
    return "\n".join(lines)


def _run(
    name: str, recipe: str, items: Datasets, files: list[Path], out: Path, console: Console, seed: int, epochs: int
) -> tuple[ComparedRun, Score]:
    """Train one recipe and return its entries in the comparison page and in the table."""
    settings = SETTINGS | {"train": SETTINGS["train"] | {"seed": seed, "epochs": epochs}}
    start = time.perf_counter()
    run = fit(items.train, recipe, test=items.test, out=out / recipe, settings=settings, overwrite=True, verbose=False)
    score = _score(name, run.metrics["test"], time.perf_counter() - start)
    console.print(f"  {name}: mAP {score.map:.1f} in {score.seconds:.0f} s")
    judged = judge(run.trained, items.test, EvaluateSettings())
    if find_spec("duckdb") is not None:  # the items are arrays: only the demo knows which files show them
        index_of(run.trained, list(items.test.labels.ids), judged.probabilities, files, out / recipe / INDEX).close()
    evaluated = evaluated_of(run.trained, judged, EvaluateSettings())
    return ComparedRun(name, run.metrics["test"], evaluated, run.history, f"{recipe}/report.html"), score


def _score(name: str, metrics: Any, seconds: float) -> Score:
    return Score(
        name,
        100 * metrics["mAP"]["label"],
        100 * metrics["macro"]["f1"],
        100 * get(metrics, "rarest", "3", "macro", "f1"),
        100 * get(metrics, "plain_sigmoid", "calibration", "pooled", "ace"),
        100 * get(metrics, "calibration", "pooled", "width", "ace"),
        seconds,
    )
