"""Drawings with known labels: something to train on without a download.

`make(folder, 900, unknown=0.3)` writes folder/images/*.jpg and folder/labels.csv, one column per label. A few labels
are frequent, the others rare. A share of the labels may be left empty, which means unknown.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

WIDTH, HEIGHT, FINER = 320, 240, 2
"""Pixels of a picture; it is drawn `FINER` times as large and scaled down, for smooth edges."""

Draw = ImageDraw.ImageDraw
Rng = np.random.Generator

FREQUENCY = {
    "tree": 0.55,
    "house": 0.42,
    "cloud": 0.38,
    "night": 0.25,
    "star": 0.25,
    "boat": 0.16,
    "bird": 0.12,
    "snow": 0.09,
    "balloon": 0.06,
    "rainbow": 0.035,
    "lighthouse": 0.02,
}
"""Probability of each label; a star needs a night, a boat and a lighthouse need the sea."""


def box(x: float, y: float, width: float, height: float) -> tuple[float, float, float, float]:
    """Return the corners of a box around (x, y) for PIL; sizes are fractions of the picture's height."""
    s = HEIGHT * FINER
    return (x - width / 2) * s, (y - height / 2) * s, (x + width / 2) * s, (y + height / 2) * s


def shape(draw: Draw, points: list[tuple[float, float]], colour: str) -> None:
    """Fill a polygon whose corners are fractions of the picture's height."""
    draw.polygon([(x * HEIGHT * FINER, y * HEIGHT * FINER) for x, y in points], fill=colour)


def somewhere(g: Rng, low: float, high: float) -> tuple[float, float]:
    """Return a random position between two heights; 0 is the top."""
    return float(g.uniform(0.12, WIDTH / HEIGHT - 0.12)), float(g.uniform(low, high))


def tree(draw: Draw, g: Rng) -> None:
    """Draw one to three trees, round or pointed."""
    for _ in range(int(g.integers(1, 4))):
        x, y = somewhere(g, 0.72, 0.9)
        size, green = float(g.uniform(0.1, 0.17)), str(g.choice(["#2f7d4f", "#3f9660", "#27684a"]))
        draw.rectangle(box(x, y, size / 5, size), fill="#7a5236")
        if g.random() < 0.5:
            draw.ellipse(box(x, y - size, size * 1.3, size * 1.5), fill=green)
        else:
            shape(draw, [(x - size * 0.7, y - size / 3), (x + size * 0.7, y - size / 3), (x, y - size * 2)], green)


def house(draw: Draw, g: Rng) -> None:
    """Draw a house with a roof, a door and a lit window."""
    x, y = somewhere(g, 0.74, 0.84)
    size = float(g.uniform(0.16, 0.24))
    wall, roof = (str(g.choice(colours)) for colours in (["#f3e3c7", "#e8c9a0", "#dfe6ee"], ["#b5483a", "#8c3b4a"]))
    draw.rectangle(box(x, y, size, size * 0.8), fill=wall)
    shape(draw, [(x - size * 0.62, y - size * 0.4), (x + size * 0.62, y - size * 0.4), (x, y - size * 0.9)], roof)
    draw.rectangle(box(x - size / 5, y + size * 0.15, size / 5, size / 2), fill="#6b4a35")
    draw.rectangle(box(x + size / 5, y, size / 5, size / 5), fill="#ffd873")


def cloud(draw: Draw, g: Rng) -> None:
    """Draw one or two clouds."""
    for _ in range(int(g.integers(1, 3))):
        x, y = somewhere(g, 0.1, 0.3)
        size = float(g.uniform(0.1, 0.16))
        for dx, scale in ((-0.7, 0.7), (0, 1.0), (0.7, 0.75)):
            draw.ellipse(box(x + dx * size, y, size * 1.5 * scale, size * scale), fill="#f2f5f8")


def star(draw: Draw, g: Rng) -> None:
    """Draw some small stars."""
    for _ in range(int(g.integers(4, 10))):
        x, y = somewhere(g, 0.05, 0.4)
        size = float(g.uniform(0.012, 0.03))
        angles = np.arange(10) * np.pi / 5 + g.uniform(0, 1)
        reach = np.where(np.arange(10) % 2, 0.45, 1.0) * size
        corners = np.stack([x + reach * np.sin(angles), y - reach * np.cos(angles)], 1).tolist()
        shape(draw, [(cx, cy) for cx, cy in corners], "#ffe9a8")


def boat(draw: Draw, g: Rng) -> None:
    """Draw a boat with a sail."""
    x, y = somewhere(g, 0.8, 0.9)
    size, hull = float(g.uniform(0.12, 0.18)), str(g.choice(["#a8432f", "#34495e", "#7d3c5d"]))
    keel, below = size * 0.6, y + size * 0.4
    shape(draw, [(x - size, y), (x + size, y), (x + keel, below), (x - keel, below)], hull)
    shape(draw, [(x, y - size * 0.1), (x, y - size * 1.5), (x + size * 0.9, y - size * 0.1)], "#fdfdf8")


def bird(draw: Draw, g: Rng) -> None:
    """Draw a few birds, far away."""
    s = HEIGHT * FINER
    for _ in range(int(g.integers(2, 5))):
        x, y = somewhere(g, 0.15, 0.45)
        size = float(g.uniform(0.025, 0.045))
        points = [(x - size, y - size / 2), (x - size / 3, y - size / 3), (x, y), (x + size / 3, y - size / 3)]
        line = [(px * s, py * s) for px, py in [*points, (x + size, y - size / 2)]]
        draw.line(line, fill="#1f2730", width=3 * FINER, joint="curve")


def snow(draw: Draw, g: Rng) -> None:
    """Draw falling snow; `picture` makes the ground white."""
    for x, y in g.random((70, 2)).tolist():
        draw.ellipse(box(x * WIDTH / HEIGHT, y, 0.018, 0.018), fill="#ffffff")


def balloon(draw: Draw, g: Rng) -> None:
    """Draw a hot-air balloon."""
    x, y = somewhere(g, 0.2, 0.42)
    size, colour = float(g.uniform(0.1, 0.15)), str(g.choice(["#d8453f", "#e39b2d", "#7a4fa3"]))
    shape(draw, [(x - size * 0.55, y + size / 4), (x + size * 0.55, y + size / 4), (x, y + size * 1.2)], colour)
    draw.ellipse(box(x, y, size * 1.3, size * 1.3), fill=colour)
    draw.ellipse(box(x, y, size * 0.5, size * 1.3), fill="#f6e7c4")
    draw.rectangle(box(x, y + size * 1.2, size / 3, size / 4), fill="#6b4a35")


def rainbow(draw: Draw, g: Rng) -> None:
    """Draw a rainbow."""
    x, size = float(g.uniform(0.4, 0.9)), float(g.uniform(0.7, 0.9))
    for i, colour in enumerate(["#d8453f", "#e39b2d", "#efd64a", "#57a65a", "#3f7fc4", "#7a4fa3"]):
        wide = size - i * 0.045
        draw.arc(box(x, 0.62, wide, wide), 180, 360, fill=colour, width=round(0.024 * HEIGHT * FINER))


def lighthouse(draw: Draw, g: Rng) -> None:
    """Draw a red and white lighthouse."""
    x, y = somewhere(g, 0.55, 0.6)
    for i in range(5):
        top, low = 0.05 + 0.007 * i, 0.05 + 0.007 * (i + 1)
        at = y - 0.2 + 0.08 * i
        corners = [(x - top, at), (x + top, at), (x + low, at + 0.08), (x - low, at + 0.08)]
        shape(draw, corners, ("#c73c35", "#f7f4ee")[i % 2])
    draw.rectangle(box(x, y - 0.225, 0.07, 0.05), fill="#ffd873")
    shape(draw, [(x - 0.05, y - 0.25), (x + 0.05, y - 0.25), (x, y - 0.31)], "#38444f")


PAINTERS: dict[str, Callable[[Draw, Rng], None]] = {
    "rainbow": rainbow,
    "star": star,
    "cloud": cloud,
    "balloon": balloon,
    "bird": bird,
    "house": house,
    "lighthouse": lighthouse,
    "tree": tree,
    "boat": boat,
    "snow": snow,
}
"""Function that draws each label, from back to front; "night" is a background."""


GROUND_COLOURS = {"sea": ("#2f6f9f", "#1d4468"), "snow": ("#e9eef3", "#b9c4d3"), "grass": ("#86b56b", "#3f6045")}
"""Colours of the ground by day and by night."""


def labels_of(g: Rng) -> set[str]:
    """Draw the labels of one picture, at least one."""
    while True:
        labels = {name for name, share in FREQUENCY.items() if g.random() < share}
        if "night" not in labels:
            labels.discard("star")
        if labels & {"boat", "lighthouse"}:
            labels -= {"house", "tree"}
        if "rainbow" in labels:
            labels -= {"night", "star", "snow"}
        if labels:
            return labels


def picture(labels: set[str], g: Rng) -> Image.Image:
    """Return a scene with these labels and no others."""
    size = (WIDTH * FINER, HEIGHT * FINER)
    top, low = ((20, 28, 58), (66, 72, 116)) if "night" in labels else ((118, 178, 226), (222, 236, 244))
    blend = np.linspace(0, 1, size[1])[:, None, None]
    sky = (np.array(top) * (1 - blend) + np.array(low) * blend) * np.ones((1, size[0], 1))
    image = Image.fromarray(sky.astype(np.uint8))
    draw = ImageDraw.Draw(image)
    kind = "sea" if labels & {"boat", "lighthouse"} else "snow" if "snow" in labels else "grass"
    draw.rectangle((0, size[1] * g.uniform(0.68, 0.76), *size), fill=GROUND_COLOURS[kind]["night" in labels])
    for name, paint in PAINTERS.items():
        if name in labels:
            paint(draw, g)
    return image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)


def make(folder: Path, n: int, seed: int = 0, unknown: float = 0.0) -> Path:
    """Write `n` pictures and the table of their labels, and return the path of the table.

    Args:
        folder: must not hold pictures yet.
        n: number of pictures.
        seed: seed of the pictures, and of which labels are left empty.
        unknown: share of the labels left empty.
    """
    if n < 1:
        raise ValueError(f"--items is {n}: give at least 1")
    if not 0 <= unknown < 1:
        raise ValueError(f"--unknown is {unknown:g}: give a share from 0 to below 1")
    if (folder / "images").exists():
        raise ValueError(f"{folder / 'images'} exists already: give another folder to --scenes, or remove it")
    g, unknown_cells = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    (folder / "images").mkdir(parents=True)
    table = folder / "labels.csv"
    with table.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", *FREQUENCY])
        for i in range(n):
            labels, name = labels_of(g), f"scene-{i:04d}.jpg"
            picture(labels, g).save(folder / "images" / name, quality=90)
            empty = [unknown_cells.random() < unknown for _ in FREQUENCY]
            rows.writerow(
                [
                    name,
                    *("" if hidden else int(label in labels) for label, hidden in zip(FREQUENCY, empty, strict=True)),
                ]
            )
    return table
