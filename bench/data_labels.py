"""Measured speed and memory of the table of labels, samplers and builders at ten million items × 600 labels."""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from steelyard.balance.samplers import ClassAware, Undersample
from steelyard.balance.split import stratified_split
from steelyard.data.builders import keep_labels, keep_positives, keep_single_positive, pareto_long_tail
from steelyard.labels import UNKNOWN, Labels


def resident() -> float:
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def timed(what: str, work: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    result = work()
    print(f"{what:44s} {time.perf_counter() - start:8.2f} s", flush=True)
    return result


def cells(n_items: int, n_labels: int, known: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    frequency = 1 / np.arange(1, n_labels + 1)
    columns = rng.choice(n_labels, n_items * known, p=frequency / frequency.sum())
    key = np.sort(np.repeat(np.arange(n_items), known) * n_labels + columns)
    key = key[np.diff(key, append=-1) != 0]
    return (key // n_labels).astype(np.int32), (key % n_labels).astype(np.int16), rng.integers(0, 2, len(key), np.int8)


def table(n_items: int, n_labels: int) -> Labels:
    listed = cells(n_items, n_labels, known=5)
    before = resident()
    labels: Labels = timed("from_cells, sorted", lambda: Labels.from_cells(*listed, (n_items, n_labels), UNKNOWN))
    print(f"{'resident size of the table':44s} {resident() - before:8.0f} MB")
    order = np.random.default_rng(1).permutation(len(listed[0]))
    mixed = [part[order] for part in listed]
    timed("from_cells, any order", lambda: Labels.from_cells(*mixed, (n_items, n_labels), UNKNOWN))
    return labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=10_000_000)
    n_items, n_labels = parser.parse_args().items, 600
    labels = table(n_items, n_labels)
    timed("counts, n_known, unknown rate", lambda: (labels.counts, labels.n_known, labels.unknown_rate))
    timed("cooccurrence", labels.cooccurrence)
    timed("conditional", labels.conditional)
    timed("resampled_prior", labels.resampled_prior)
    batches = np.random.default_rng(2).integers(0, n_items, (1000, 256))
    timed("rows, 1000 batches of 256", lambda: [labels.rows(batch) for batch in batches])
    with TemporaryDirectory() as folder:
        timed("save", lambda: labels.save(Path(folder) / "labels.npz"))
        timed("load", lambda: Labels.load(Path(folder) / "labels.npz"))
    aware = timed("ClassAware, setup", lambda: ClassAware(labels))
    timed(f"ClassAware, 1 of {len(aware) / 1e6:.0f} million draws", lambda: list(islice(aware, 1_000_000)))
    ranked = ClassAware(labels, rank=3, num_replicas=64)
    timed("ClassAware, a million draws of one of 64", lambda: list(islice(ranked, 1_000_000)))
    under = timed("Undersample(1000), setup and first epoch", lambda: Undersample(labels, 1000))
    timed("Undersample, the next epoch's plan", lambda: under.set_epoch(1))
    timed("keep_labels(.5)", lambda: keep_labels(labels, 0.5))
    timed("keep_positives(.5)", lambda: keep_positives(labels, 0.5))
    timed("keep_single_positive", lambda: keep_single_positive(labels))
    timed("pareto_long_tail(5000)", lambda: pareto_long_tail(labels, 5000))
    timed("stratified_split(.1)", lambda: stratified_split(labels, 0.1))
    full = Labels((np.random.default_rng(3).random((100_000, 100)) < 0.5 / np.arange(1, 101)).astype(np.int8))
    timed("stratified_split(.1), 100,000 × 100", lambda: stratified_split(full, 0.1))
    timed("keep_labels(.5), 100,000 × 100 all known", lambda: keep_labels(full, 0.5))


if __name__ == "__main__":
    main()
