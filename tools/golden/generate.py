"""Generate small data in every form that the commands of commands.txt and the runs of record.py read."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from PIL import Image

NAMES = ("cat", "dog", "owl", "rare bird")
COLOURS = {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200), "grey": (90, 90, 90)}


def items(n: int, seed: int, unknown: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Return features (n, 6) and labels (n, 4) that depend on them; later labels are rarer."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    y = (x[:, :4] + 0.5 * rng.normal(size=(n, 4)) > [0, 0.5, 0.9, 1.3]).astype(np.int8)
    y[rng.random(y.shape) < unknown] = -1
    return x, y


def write_table(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    """Write one column per feature and per label; an unknown label is an empty cell."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["id", *(f"f{j}" for j in range(x.shape[1])), *NAMES])
        for i, (features, labels) in enumerate(zip(x, y, strict=True)):
            rows.writerow([f"item{i}", *map(str, features), *("" if v < 0 else v for v in labels)])


def write_photos(folder: Path, n: int, seed: int) -> None:
    """Write images of coloured stripes, and labels.csv with the colours of each."""
    rng = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True)
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["file", "tags"])
        for i in range(n):
            has = rng.random(4) < [0.6, 0.5, 0.35, 0.25]
            pixels = rng.integers(0, 50, (12, 16, 3))
            for c, colour in enumerate(COLOURS.values()):
                pixels[:, 4 * c : 4 * c + 4] += np.array(colour) * has[c]
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / "images" / f"photo{i:03}.png")
            rows.writerow([f"photo{i:03}.png", "|".join(np.array(list(COLOURS))[has])])


def write_all(folder: Path) -> None:
    """Write every file that is read later, those with mistakes in them included."""
    x, y = items(160, 0, unknown=0.1)
    write_table(folder / "items.csv", x, y)
    write_table(folder / "full.csv", *items(160, 0))
    write_table(folder / "new.csv", *items(70, 1))
    parts = {"train": (x, y), "val": items(60, 2), "test": items(50, 3)}
    arrays = {
        f"{letter}_{part}": array for part, pair in parts.items() for letter, array in zip("XY", pair, strict=True)
    }
    np.savez(folder / "parts.npz", classes=np.array(NAMES), **arrays)
    write_photos(folder / "photos", 48, 4)
    write_photos(folder / "torn", 12, 5)
    (folder / "torn" / "images" / "photo005.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    write_photos(folder / "lost", 12, 6)
    (folder / "lost" / "images" / "photo009.png").unlink()
    (folder / "empty").mkdir()
    (folder / "settings").mkdir()
    lines = (folder / "items.csv").read_text().splitlines()
    texts = {
        "settings/config.toml": "[tool]\n",
        "mine.toml": '[objective]\nmasking = "none"\n[train]\nepochs = 2\n',
        "torn.toml": "[train\nepochs = 3\n",
        "prior.csv": "label,prior\ncat,0.9\n",
        "names.txt": "photo003.png\nphoto001.png\n",
        "blank.csv": "",
        "header.csv": "id,f0,cat\n",
        "twice.csv": "\n".join([*lines, lines[1]]) + "\n",
        "nan.csv": "\n".join([*lines[:7], lines[7].replace(",", ",nan,", 1).rpartition(",")[0], *lines[8:]]) + "\n",
        "ragged.csv": "\n".join([*lines[:5], lines[5] + ",1,2", *lines[6:]]) + "\n",
        "words.csv": "id,f0,f1,labels\n"
        + "".join(f"{i},{i % 7},{i % 3},{('a|b', 'b', 'a')[i % 3]}\n" for i in range(30)),
        "bare.csv": "id,cat,dog\na,1,0\nb,0,1\nc,1,1\nd,0,0\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
