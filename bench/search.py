"""Seconds and memory of a search: the best 20 of five million items with 80 labels, five terms a query.

    python bench/search.py FOLDER [--items 5000000] [--labels 80] [--queries 40] [--threads 2]

The index is made in FOLDER the first time (1.8 GB; it takes a minute) and used again after that. The search runs in a
process of its own, whose highest resident memory is that of all it imported too. The floor is what DuckDB takes for the
same scores with nothing but their maximum asked for.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from steelyard.labels.ids import Ids
from steelyard.search import Index
from steelyard.search import manifest as manifests
from steelyard.search.duckdb_engine import DuckDB
from steelyard.search.query import Query
from steelyard.search.sql import statement


def make(folder: Path, n: int, n_labels: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    spool = folder.parent / f"{folder.name}.spool"
    table = np.memmap(spool, np.float32, "w+", shape=(n, n_labels))
    g = np.random.default_rng(0)
    for start in range(0, n, 1 << 17):
        logits = g.standard_normal((min(1 << 17, n - start), n_labels), np.float32) * 2 - 4
        table[start : start + (1 << 17)] = 1 / (1 + np.exp(-logits))
    started = time.perf_counter()
    ids = Ids.numbered(np.arange(n) + 10**9)
    Index.build(folder, ids, table, [f"label {i}" for i in range(n_labels)]).close()
    print(f"built in {time.perf_counter() - started:.1f} s", flush=True)
    spool.unlink()


def queries(n: int, n_labels: int) -> list[str]:
    g = random.Random(0)
    return [" ".join(f'{g.choice(("", "", "-"))}"label {i}"' for i in g.sample(range(n_labels), 5)) for _ in range(n)]


def highest() -> float:
    """The most memory, in MB, that was ever resident, of this program alone: getrusage counts its parent's too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def measure(folder: Path, n: int, threads: int) -> None:
    imports = highest()
    started = time.perf_counter()
    index = Index.open(folder)
    asked = queries(n, len(index.names))
    engine = DuckDB(index, threads)
    first = index.search(asked[0], engine=engine)
    begin = time.perf_counter() - started
    seconds, floors = [], []
    for text in asked:
        started = time.perf_counter()
        hits = index.search(text, 20, engine=engine)
        seconds.append(time.perf_counter() - started)
        assert len(hits) == 20
    memory = highest()
    assert index.search(asked[0], engine=engine) == first
    for text in asked[:10]:
        sql = statement(Query.parse(text), index.names)
        started = time.perf_counter()
        engine.top(f"SELECT 0 AS id, max(score) AS score FROM ({sql.text.split(' ORDER BY ')[0]}) AS best", (), 1, 0)
        floors.append(time.perf_counter() - started)
    started = time.perf_counter()
    index.rows([hit.id for hit in hits])
    rows = time.perf_counter() - started
    print(
        json.dumps(
            {
                "items": index.n_items,
                "labels": len(index.names),
                "first, with opening": round(begin, 3),
                "median": round(statistics.median(seconds), 3),
                "worst": round(max(seconds), 3),
                "floor": round(statistics.median(floors), 3),
                "all labels of 20 items": round(rows, 4),
                "MB": round(memory),
                "MB of imports alone": round(imports),
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    for name, default in (("items", 5_000_000), ("labels", 80), ("queries", 40), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--measure", action="store_true", help="only the search, in this process")
    given = parser.parse_args()
    if given.measure:
        measure(given.folder, given.queries, given.threads)
        return
    if not manifests.exists(given.folder):
        make(given.folder, given.items, given.labels)
    subprocess.run([sys.executable, *sys.argv, "--measure"], check=True)


if __name__ == "__main__":
    main()
