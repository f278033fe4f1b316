"""Scores of runs with very many labels, in a terminal: likeliest labels, and calibration by frequency band."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from steelyard.report.headline import per_cent as percent
from steelyard.report.scores import right_aligned
from steelyard.report.terminal import plain

_NAMES = {"precision": "P@k", "ndcg": "nDCG@k", "recall": "recall@k", "psp": "PSP@k"}


def show_top(metrics: Mapping[str, Any], console: Console, title: str = "") -> None:
    """Print the measures of some items, in per cent."""
    top = metrics["top"]
    console.print(Text(plain(f"{title}: {top['items']:,} items, {metrics['labels']:,} labels"), "bold"))
    ks = list(top["precision"])
    table = right_aligned("", *(f"k = {k}" for k in ks))
    for name, shown in _NAMES.items():
        table.add_row(shown, *(percent(top[name][k]) for k in ks))
    console.print(table)
    bands = right_aligned("training positives", "labels", "ACE", "mean η", "frequency")
    for band in metrics["bands"]:
        low, high = band["positives"]
        values = (band["ace"], band["mean_probability"], band["frequency"])
        positives = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        bands.add_row(positives, f"{band['labels']:,}", *map(percent, values))
    console.print(bands)
