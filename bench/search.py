"""The index beside that of another checkout: build, search, append, replace, memory; and how fast the command starts.

    python bench/search.py FOLDER [--against CHECKOUT] [--items 5000000] [--labels 80] [--out FILE]
    python bench/search.py FOLDER --start
    python bench/search.py FOLDER --worst

An index is made in FOLDER the first time (1.8 GB; it takes a minute). Both checkouts are measured by the same code in
one run, each in a process of its own, whose highest resident memory is that of all it imported too; queries are of five
terms, the best 20 are asked for. `--start` times `steelyard search` beside a process that asks DuckDB alone, taken in
turns. `--worst` times the most costly queries that are not refused on a million items.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BARE = """
import duckdb, json, sys
connection = duckdb.connect()
connection.execute("ATTACH '" + sys.argv[1] + "' AS f (READ_ONLY)")
print(connection.execute("SELECT id, CAST(p1 AS DOUBLE) * (1 - CAST(p2 AS DOUBLE)) AS score FROM f.items "
                         "ORDER BY score DESC, id LIMIT 20").fetchall())
"""


def make(folder: Path, n: int, n_labels: int) -> float:
    """Make the index of `n` random items and return the seconds that took."""
    import numpy as np

    from steelyard.labels.ids import Ids
    from steelyard.search import Index

    folder.mkdir(parents=True, exist_ok=True)
    spool = folder.parent / f"{folder.name}.spool"
    table = np.memmap(spool, np.float32, "w+", shape=(n, n_labels))
    g = np.random.default_rng(0)
    step = max(1, (1 << 24) // n_labels)
    for start in range(0, n, step):
        logits = g.standard_normal((min(step, n - start), n_labels), np.float32) * 2 - 4
        table[start : start + step] = 1 / (1 + np.exp(-logits))
    started = time.perf_counter()
    Index.build(folder, Ids.numbered(np.arange(n) + 10**9), table, [f"label {i}" for i in range(n_labels)]).close()
    seconds = time.perf_counter() - started
    spool.unlink()
    return seconds


def queries(n: int, n_labels: int) -> list[str]:
    g = random.Random(0)
    return [" ".join(f'{g.choice(("", "", "-"))}"label {i}"' for i in g.sample(range(n_labels), 5)) for _ in range(n)]


def highest() -> float:
    """The most memory, in MB, that was ever resident, of this program alone: getrusage counts its parent's too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure(folder: Path, items: int, n_labels: int, n_queries: int) -> dict[str, float]:
    """Return what is measured in this process, with whichever Steelyard it imports."""
    import numpy as np

    from steelyard.search import Index

    measured: dict[str, float] = {}
    import steelyard.labels.ids  # noqa: F401  (which writers import when they first write)

    if not folder.is_dir():
        measured["build s"] = make(folder, items, n_labels)
        (folder.parent / f"{folder.name}.seconds").write_text(str(measured["build s"]))
    measured["build s"] = float((folder.parent / f"{folder.name}.seconds").read_text())
    measured["disk MB"] = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    asked = queries(n_queries, n_labels)
    imports = highest()
    measured["first answer, with opening s"] = timed(lambda: Index.open(folder).search(asked[0]))
    index = Index.open(folder)
    first = index.search(asked[0])
    seconds = [timed(lambda text=text: index.search(text)) for text in asked[1:]]  # type: ignore[misc]
    measured |= {"median s": statistics.median(seconds), "worst s": max(seconds)}
    measured |= {"MB while searching": highest(), "MB of imports": imports}
    assert index.search(asked[0]) == first
    ids = [hit.id for hit in first]
    measured["all labels of 20 items s"] = timed(lambda: index.rows(ids))
    g = np.random.default_rng(1)
    more = max(1, min(10_000, (1 << 24) // n_labels))
    began = time.time_ns()
    added = [f"new {began} {i:06d}" for i in range(more)]
    measured[f"append {more:,} s"] = timed(lambda: index.append(added, g.random((more, n_labels), np.float32)))
    some = [str(10**9 + i) for i in range(0, items, max(1, items // 1000))][:1000]
    measured["replace 1,000 s"] = timed(lambda: index.replace(some, g.random((len(some), n_labels), np.float32)))
    others = queries(n_queries + 10, n_labels)[n_queries:]  # what was asked before is kept
    after = [timed(lambda text=text: index.search(text)) for text in others]  # type: ignore[misc]
    measured["median after both s"] = statistics.median(after)
    return measured


def start(index: Path, runs: int) -> dict[str, float]:
    """Return the seconds of `steelyard search` and of a process with DuckDB alone, taken in turns."""
    file = max(index.glob("*.duckdb"), key=lambda path: path.stat().st_size)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    commands = {
        "bare DuckDB s": [sys.executable, "-c", BARE, str(file)],
        "steelyard search s": [sys.executable, "-m", "steelyard", "search", str(index), '"label 1" & ~"label 2"'],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            run = lambda command=command: subprocess.run(command, check=True, capture_output=True, env=env)  # noqa: E731
            seconds[name].append(timed(run))  # type: ignore[arg-type]
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {**medians, "ratio": medians["steelyard search s"] / medians["bare DuckDB s"]}


def worst(index: Path) -> dict[str, Any]:
    """Return CPU seconds and memory of the most costly queries that are not refused, and how many were."""
    from steelyard.search import Index, QueryError

    g = random.Random(0)
    opened = Index.open(index)
    labels = [f'"{name}"' for name in opened.names]
    texts = [" ".join(labels * 2)[:9000].rsplit(" ", 1)[0], " | ".join(labels[:200])]
    for n_repeated in range(2, 13):
        for n_clauses in (4, 8, 16, 33, 66):
            clauses = (" & ".join(g.sample(labels[:n_repeated], min(n_repeated, 3))) for _ in range(n_clauses))
            texts.append(" | ".join(f"({clause})" for clause in clauses))
            clauses = (" | ".join(g.sample(labels[:n_repeated], 2) + g.sample(labels, 1)) for _ in range(n_clauses))
            texts.append(" & ".join(f"({clause})" for clause in clauses))
    cpu, refused = [0.0], 0
    for text in texts:
        began = time.process_time()
        try:
            opened.search(text, k=100, offset=10_000)
        except QueryError:
            refused += 1
        cpu.append(time.process_time() - began)
    return {"queries": len(texts), "refused": refused, "worst CPU s": max(cpu), "MB": highest()}


def show(results: dict[str, dict[str, float]]) -> None:
    names = list(results)
    print(f"{'':<32}" + "".join(f"{name:>16}" for name in names))
    for row in next(iter(results.values())):
        print(f"{row:<32}" + "".join(f"{results[name].get(row, float('nan')):>16.3f}" for name in names))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    for name, default in (("items", 5_000_000), ("labels", 80), ("queries", 40)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--against", type=Path, help="another checkout, measured beside this one")
    parser.add_argument("--out", type=Path, help="a JSON file in which the figures are kept")
    parser.add_argument("--start", action="store_true", help="how fast the command starts")
    parser.add_argument("--worst", action="store_true", help="the most costly queries")
    parser.add_argument("--measure", action="store_true", help="only this checkout, in this process")
    given = parser.parse_args()
    own = given.folder / f"{given.items}x{given.labels}"
    if given.measure:
        print(json.dumps(measure(given.folder, given.items, given.labels, given.queries)))
        return
    load = os.getloadavg()[0]
    results: dict[str, Any] = {}
    if given.start or given.worst:
        if not own.is_dir():
            make(own, given.items, given.labels)
        results = start(own, 15) if given.start else worst(own)
        print(json.dumps(results, indent=1))
    else:
        here: dict[str, Path] = {"here": ROOT} | ({"against": given.against.resolve()} if given.against else {})
        for name, checkout in here.items():
            place = given.folder / f"{name}-{given.items}x{given.labels}"
            command = [sys.executable, __file__, str(place), "--measure", "--items", str(given.items)]
            command += ["--labels", str(given.labels), "--queries", str(given.queries)]
            env = {**os.environ, "PYTHONPATH": str(checkout / "src")}
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
            results[name] = json.loads(done.stdout.splitlines()[-1])
        show(results)
    print(f"load average {load:.1f} before and {os.getloadavg()[0]:.1f} after, {os.cpu_count()} cores")
    if given.out is not None:
        kept = json.loads(given.out.read_text()) if given.out.exists() else {}
        kind = "start" if given.start else "worst" if given.worst else f"{given.items}x{given.labels}"
        kept[kind] = {**results, "load": load, "date": datetime.now(UTC).date().isoformat()}
        given.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
