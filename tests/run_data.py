"""Small data in every form that training takes, and what a run leaves, for the tests of whole runs."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from steelyard.search import Index

NAMES = ("cat", "dog", "rare bird")
QUICK: dict[str, Any] = {"train": {"epochs": 2, "batch_size": 32}, "evaluate": {"calibration": "link"}}
"""Settings of a training that takes a moment; to choose a calibrator takes as long as all else."""


def items(n: int = 160, seed: int = 0, unknown: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, 5) and labels (n, 3) of falling frequency that depend on them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 5)).astype(np.float32)
    y = (x[:, :3] + 0.5 * rng.normal(size=(n, 3)) > [0, 0.7, 1.2]).astype(np.int8)
    y[rng.random(y.shape) < unknown] = -1
    return x, y


def one_label_each(n: int = 160, n_labels: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features whose largest entry is, mostly, the item's one label; the later labels are rarer."""
    rng = np.random.default_rng(seed)
    truth = rng.choice(n_labels, n, p=np.array([0.5, 0.25, 0.15, 0.1])[:n_labels])
    y = np.eye(n_labels, dtype=np.int8)[truth]
    return (y + 0.4 * rng.normal(size=y.shape)).astype(np.float32), y


def write_table(path: Path, x: np.ndarray, y: np.ndarray, names: tuple[str, ...] = NAMES) -> Path:
    """A CSV file with a column for each feature and each label; every float32 comes back exactly."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["id", *(f"f{j}" for j in range(x.shape[1])), *names])
        for i, (features, labels) in enumerate(zip(x, y, strict=True)):
            rows.writerow([f"item{i}", *map(str, features), *("" if v < 0 else v for v in labels)])
    return path


def write_npz(path: Path, **parts: tuple[np.ndarray, np.ndarray]) -> Path:
    """An .npz file with X_part and Y_part for each part."""
    arrays = {
        f"{letter}_{part}": array for part, pair in parts.items() for letter, array in zip("XY", pair, strict=True)
    }
    np.savez(path, classes=np.array(NAMES), **arrays)
    return path


def write_arff(path: Path, x: np.ndarray, y: np.ndarray) -> Path:
    """An ARFF file in Mulan's form, with the XML that names the labels beside it."""
    lines = ["@relation birds", *(f"@attribute f{j} numeric" for j in range(x.shape[1]))]
    lines += [f"@attribute '{name}' {{0,1}}" for name in NAMES]
    rows = [",".join([*map(str, features), *map(str, labels)]) for features, labels in zip(x, y, strict=True)]
    path.write_text("\n".join([*lines, "@data", *rows]) + "\n")
    labels = "".join(f'<label name="{name}"></label>' for name in NAMES)
    xml = path.with_name(path.stem.removesuffix("-train").removesuffix("-test") + ".xml")
    xml.write_text(f'<?xml version="1.0"?><labels xmlns="http://mulan.sourceforge.net/labels">{labels}</labels>')
    return path


def write_photos(folder: Path, n: int = 40, seed: int = 0) -> Path:
    """A folder with `labels.csv`, labels of each file in one cell, and small pictures in `images`."""
    rng = np.random.default_rng(seed)
    colours = {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200)}
    (folder / "images").mkdir(parents=True)
    with (folder / "labels.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["file", "tags"])
        for i in range(n):
            has = rng.random(3) < [0.6, 0.4, 0.3]
            pixels = rng.integers(0, 50, (12, 18, 3))
            for c, colour in enumerate(colours.values()):
                pixels[:, 6 * c : 6 * c + 6] += np.array(colour) * has[c]
            name = f"photo{i:03}.png"
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / "images" / name)
            rows.writerow([name, "|".join(np.array(list(colours))[has])])
    return folder


def left_by(folder: Path, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """What a finished run leaves, bytes by file; timings, report, card, cache and files named in `without` aside."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or name in ("report.html", "card.md", *without) or name.startswith(("cache/", "index/")):
            continue
        found[name] = path.read_bytes()
    if (folder / "index").is_dir():
        with Index.open(folder / "index") as index:  # whose files have names of their own
            ids = sorted(hit.id for hit in index.search(f'"{index.names[0]}" | ~"{index.names[0]}"', k=100_000))
            notes = {name: value for name, value in index.notes.items() if name != "run"}  # where the run is
            found["index"] = index.names, notes, ids, index.rows(ids).tolist(), len(index)
    begun = json.loads(found["started.json"])
    found["started.json"] = {key: value for key, value in begun.items() if key not in ("config", "folder")}
    timed = ("seconds", "items_per_second")
    lines = [json.loads(line) for line in found.pop("history.jsonl").decode().splitlines()]
    found["history"] = [{key: value for key, value in line.items() if key not in timed} for line in lines]
    found["run.json"] = {k: v for k, v in json.loads(found["run.json"]).items() if k not in timed}
    return found
