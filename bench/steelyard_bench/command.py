"""The command `steelyard bench`: what is measured by default on which device, shown as it goes, and kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from steelyard.losses.table import TABLE
from steelyard_bench import losses, pairs, peers, training
from steelyard_bench.page import publish
from steelyard_bench.record import Record, begin
from steelyard_bench.row import Row
from steelyard_bench.tables import tables
from steelyard_bench.timing import Clock, bandwidth

PARTS = ("losses", "pairs", "metrics", "training")

_SIZES = ((256, 80), (1024, 600), (65536, 80), (4096, 9605))
_KINDS_AT = (1024, 600)  # where unknown and soft labels are measured too
_SECONDS = {"quick": 0.03, "cpu": 0.3, "cuda": 0.4}  # of each figure
_PICTURES = {"quick": 128, "cpu": 1024}
_COMPILED = {"all": tuple(row.name for row in TABLE), "some": ("BCE", "ASL", "DB-Focal"), "none": ()}


@dataclass(frozen=True)
class BenchRequest:
    """What a person asked for; None is what suits the device."""

    device: str = "auto"
    sizes: str | None = None
    """As 256x80,1024x600."""
    only: str | None = None
    """Parts, as losses,metrics."""
    compiled: str | None = None
    """Which losses: all, some or none."""
    peers: tuple[str, ...] = ()
    mnist: str | None = None
    images: str | None = None
    quick: bool = False


def bench(asked: BenchRequest, out: str, show: Callable[[str], Any] = print) -> Record:
    """Measure what is asked for, show each part when it is done, and write it to the folder `out`."""
    device = _device(asked.device)
    clock = Clock(device, _SECONDS["quick" if asked.quick else device.type])
    left_out: list[str] = []
    jobs = _jobs(asked, clock, left_out)
    started = time.perf_counter()
    record = begin(device, bandwidth(device, clock.seconds))
    record.left_out = left_out
    where = record.machine.get("gpu") or f"{record.machine['cpu']}, {record.machine['threads']} threads"
    show(f"{where}, torch {record.versions['torch']}: a copy moves {record.bandwidth / 1e9:,.1f} GB/s")
    for part, measure in jobs:
        try:
            record.rows += measure()
        except ImportError as error:
            left_out.append(f"{part} ({error})")
            continue
        record.seconds = time.perf_counter() - started
        publish(record, Path(out))
        show(f"\n{tables(record, part)[-1].text()}")
        torch.compiler.reset()
        if clock.is_gpu:
            torch.cuda.empty_cache()  # for the next part to be measured as the first was
    for each in left_out:
        show(f"left out: {each}")
    return record


def again(file: str, out: str) -> Record:
    """Write the page of a run that was measured before; nothing is measured."""
    record = Record.read(Path(file))
    publish(record, Path(out))
    return record


def _jobs(asked: BenchRequest, clock: Clock, left_out: list[str]) -> list[tuple[str, Callable[[], list[Row]]]]:
    """Return what is to be measured, by part; whatever is wrong with what was asked for is told before it begins."""
    quick, kind = asked.quick, clock.device.type
    whole = kind == "cuda" and not quick
    parts = _parts(asked.only)
    sizes = sizes_of(asked.sizes) if asked.sizes else _SIZES if whole else _SIZES[:2]
    compiled = _compiled(asked, kind)
    others = peers.installed(left_out)
    for file in asked.peers:
        others |= peers.of_file(file, clock.device)
    jobs: list[tuple[str, Callable[[], list[Row]]]] = []
    if "losses" in parts:
        for size in sizes:
            kinds = size == _KINDS_AT and not quick
            jobs.append(("losses", partial(losses.loss_rows, size, clock, others, compiled, left_out, kinds)))
    if "pairs" in parts:
        some = pairs.SIZES if whole else pairs.SIZES[: 1 if quick else 2]
        jobs.append(("pairs", lambda: pairs.pair_rows(some, clock)))
    if "metrics" in parts:
        jobs.append(("metrics", lambda: _metrics(clock, quick, left_out)))
    if "training" in parts and (asked.mnist or asked.images):
        data = training.pictures(asked.mnist, None if whole else _PICTURES["quick" if quick else "cpu"])
        paths = training.files(asked.images, quick)
        jobs.append(("training", lambda: training.rows_of(data, 90 if whole else 1, paths, clock.device)))
    return jobs


def _metrics(clock: Clock, quick: bool, left_out: list[str]) -> list[Row]:
    from steelyard_bench import metrics

    rows = metrics.metric_rows(4000 if quick else metrics.ITEMS, clock, left_out)
    return [*rows, metrics.retrieval_row(2 if quick else 5 if clock.is_gpu else 3, clock)]


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise ValueError(f"--device {name}: give auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no GPU here")
    return torch.device(name, 0) if name == "cuda" else torch.device(name)


def sizes_of(text: str) -> list[tuple[int, int]]:
    """Return the sizes (B, L) in a text such as 256x80,1024x600."""
    found = []
    for one in text.split(","):
        rows, cross, labels = one.strip().partition("x")
        if not (cross and rows.isdecimal() and labels.isdecimal() and int(rows) > 0 and int(labels) > 1):
            raise ValueError(f"--sizes {text}: give items x labels, with commas between, as 256x80,1024x600")
        found.append((int(rows), int(labels)))
    return found


def _compiled(asked: BenchRequest, kind: str) -> tuple[str, ...]:
    which = asked.compiled or ("none" if asked.quick else "all" if kind == "cuda" else "some")
    if which not in _COMPILED:
        raise ValueError(f"--compiled {which}: give {', '.join(_COMPILED)}")
    return _COMPILED[which]


def _parts(text: str | None) -> Sequence[str]:
    names = [name.strip() for name in text.split(",")] if text else PARTS
    for name in names:
        if name not in PARTS:
            raise ValueError(f"--only {text}: {name!r} is none of {', '.join(PARTS)}")
    return names
