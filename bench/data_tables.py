"""Seconds and peak memory from ten million rows of labels to `Labels`: a long-form CSV and Open Images' own layout.

    python bench/data_tables.py [ROWS]

Each case runs in a process of its own; the file is generated first, which is not timed.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

LABELS = 600


def write_long(folder: Path, rows: int, items: int) -> Path:
    rng = np.random.default_rng(0)
    item, label = np.sort(rng.integers(0, items, rows)), rng.integers(0, LABELS, rows)
    if items >= rows:
        item = np.arange(rows)
    key = np.unique(item * LABELS + label)
    table = pa.table(
        {
            "item": pa.array([f"{i:016x}" for i in key // LABELS]),
            "label": pa.array([f"/m/{c:05d}" for c in key % LABELS]),
            "value": pa.array(rng.integers(0, 2, len(key))),
        }
    )
    path = folder / "long.csv"
    csv.write_csv(table, path)
    return path


def write_open_images(folder: Path, rows: int, items: int) -> Path:
    """Turn the long table into Open Images' human-verified labels and its list of 600 boxable classes."""
    table = csv.read_csv(write_long(folder, rows, items))
    renamed = pa.table(
        {
            "ImageID": table["item"],
            "Source": pa.array(["verification"] * len(table)),
            "LabelName": table["label"],
            "Confidence": table["value"],
        }
    )
    csv.write_csv(renamed, folder / "train-annotations-human-imagelabels-boxable.csv")
    names = "".join(f"/m/{c:05d},Label {c}\n" for c in range(LABELS))
    (folder / "class-descriptions-boxable.csv").write_text(names)
    return folder


def read(path: Path, results: multiprocessing.Queue[tuple[float, float, str]]) -> None:
    from steelyard.data import open_images, table

    start = time.perf_counter()
    labels = (open_images(path, "train") if path.is_dir() else table(path)).labels
    seconds = time.perf_counter() - start
    results.put((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, repr(labels)))


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    context = multiprocessing.get_context("spawn")
    for title, write, items in (
        ("long CSV, five rows an item", write_long, rows // 5),
        ("long CSV, every row another item", write_long, rows),
        ("Open Images, five rows an image", write_open_images, rows // 5),
        ("Open Images, every row another image", write_open_images, rows),
    ):
        with tempfile.TemporaryDirectory() as folder:
            path = write(Path(folder), rows, items)
            results = context.Queue()
            process = context.Process(target=read, args=(path, results))
            process.start()
            seconds, peak, labels = results.get()
            process.join()
            print(f"{title}: {seconds:.1f} s, {peak:.2f} GB at most, {labels}", flush=True)


if __name__ == "__main__":
    main()
