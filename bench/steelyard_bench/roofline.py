"""The roofline: bytes a second that each loss achieves, over the bytes that it must move."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from steelyard.report.canvas import FRAME, INK, MARKERS, SERIES, drawing, key
from steelyard_bench.losses import ALONE
from steelyard_bench.record import Record
from steelyard_bench.row import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WAYS = {"steelyard": "Steelyard, fused", "plain": "Steelyard, plain", "compiled": "Steelyard, torch.compile"}


def roofline(record: Record) -> Figure:
    """Draw the median of all losses of one way at each size, the range of them as a bar; peers one by one.

    Two panels on a GPU: calls as they are made, and on the device alone.
    """
    panels = ["as called, launches included", "on the device alone"] if record.is_gpu else ["as called"]
    with drawing(5.2 * len(panels) + 0.4, 4.6, ncols=len(panels), sharey=True, squeeze=False) as (figure, grid):
        for number, (axes, title) in enumerate(zip(grid[0], panels, strict=True)):
            _panel(axes, record, number == 1)
            axes.set_title(title, pad=8)
        grid[0][0].set_ylabel("bytes that must move / time, GB/s")
        key(figure, grid[0][0], 3 if record.is_gpu else 2)
    return figure


def _panel(axes: Any, record: Record, on_device: bool) -> None:
    roof = record.bandwidth / 1e9
    axes.axhline(roof, color=INK, lw=1.4)
    axes.axhline(roof / 2, color=FRAME, lw=1, ls="--")
    rows = [row for row in record.rows if row.part == "losses" and row.least_bytes]
    series = _series(rows, record.is_gpu)
    for i, (name, some) in enumerate(series.items()):
        reached: dict[int, list[float]] = defaultdict(list)
        for row in some:
            seconds = row.device_seconds if on_device and row.device_seconds else row.seconds
            reached[row.least_bytes or 0].append((row.least_bytes or 0) / seconds / 1e9)
        x = sorted(reached)
        middle = [statistics.median(reached[size]) for size in x]
        colour = SERIES[i % len(SERIES)]
        axes.plot(x, middle, color=colour, lw=1.5, marker=MARKERS[i % len(MARKERS)], ms=5, label=name, zorder=3)
        for size in x:
            if len(reached[size]) > 1:
                axes.plot([size, size], [min(reached[size]), max(reached[size])], color=colour, lw=4, alpha=0.25)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(True)
    axes.margins(x=0.1)
    axes.set_ylim(top=2.2 * roof)
    sizes = {row.least_bytes or 0: row.size for row in rows}
    axes.set_xticks(list(sizes), [f"{_bytes(x)}\n{size}" for x, size in sizes.items()], fontsize=8)
    axes.xaxis.set_minor_formatter("")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_minor_formatter("")
    axes.set_xlabel("bytes that must move: 9 a label")
    left = min(sizes)
    axes.text(left, 1.08 * roof, f"a copy in this run: {roof:,.0f} GB/s", va="bottom", fontsize=9, color=INK)
    axes.text(left, 0.93 * roof / 2, "half of it: twice the floor", va="top", fontsize=9, color=FRAME)


def _bytes(n: int) -> str:
    return f"{n / 1e6:,.0f} MB" if n >= 1e6 else f"{n / 1e3:.0f} kB"


def _series(rows: list[Row], is_gpu: bool) -> dict[str, list[Row]]:
    """Return what is drawn as one line: our losses by way, peers by name."""
    found: dict[str, list[Row]] = defaultdict(list)
    peers = {row.name for row in rows if row.way == "peer"} - {ALONE}
    for row in rows:
        if row.way in _WAYS and row.name not in {"Two-way", *peers}:
            found[_WAYS[row.way] if is_gpu or row.way != "steelyard" else "Steelyard"].append(row)
    for way, words in (("peer", ""), ("compiled", ", torch.compile")):
        for row in rows:
            if row.way == way and row.name in peers:
                found[row.name + words].append(row)
    return found
