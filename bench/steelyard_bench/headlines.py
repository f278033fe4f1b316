"""The sentences above the tables of a run: what is faster, equal and slower, made from its figures."""

from __future__ import annotations

from steelyard_bench.record import Record
from steelyard_bench.row import Row

EQUAL = 0.1
"""How far from 1 a multiple still counts as equal."""
PEER, ASL, TIMM = "torch BCEWithLogitsLoss", "ASL", "timm AsymmetricLossMultiLabel"


def headlines(record: Record) -> list[str]:
    """Return the sentences of a run, none where nothing was compared."""
    losses = [row for row in record.rows if row.part == "losses"]
    sizes = list(dict.fromkeys(row.size for row in losses))
    lines = [line for size in sizes for line in _of_size(size, [row for row in losses if row.size == size])]
    for row in record.rows:
        if row.part == "metrics" and row.way == "steelyard" and row.over_peer is not None:
            lines.append(f"{row.name}, {row.size}: {_multiple(row.over_peer)} the time of torchmetrics'.")
    return lines


def _of_size(size: str, rows: list[Row]) -> list[str]:
    """Return the sentences about the losses at one size."""
    ours = {row.name: row for row in rows if row.way == "steelyard" and row.over_peer is not None and _is_loss(row)}
    if not ours or not any(row.way == "peer" for row in rows):
        return []
    ratio = {name: float(row.over_peer or 0) for name, row in ours.items()}
    slower = sorted((name for name in ratio if ratio[name] > 1 + EQUAL), key=lambda name: -ratio[name])
    faster = [name for name in ratio if ratio[name] < 1 - EQUAL]
    equal = len(ratio) - len(slower) - len(faster)
    line = (
        f"{size} labels: beside torch's `BCEWithLogitsLoss`, {len(faster)} of {len(ratio)} losses are faster, {equal} "
        f"equal within a tenth, {len(slower)} slower."
    )
    if slower:
        worst = "; ".join(f"{name} ({_multiple(ratio[name])})" for name in slower[:3])
        line += f" Slowest: {worst}."
    if "BCE" in ratio:
        line += f" BCE takes {_multiple(ratio['BCE'])} its time."
    lines = [line]
    timm = next((row for row in rows if row.name == TIMM and row.way == "peer"), None)
    if timm is not None and timm.over_peer and ASL in ratio:
        lines.append(f"{size} labels: ASL takes {_multiple(ratio[ASL] / timm.over_peer)} the time of timm's.")
    compiled = {row.name: row for row in rows if row.way == "compiled" and row.name in ours}
    behind = [name for name, row in compiled.items() if row.seconds < ours[name].seconds * (1 - EQUAL)]
    if behind:
        lines.append(
            f"{size} labels: compiled by torch from plain code, {', '.join(behind)} are faster than as called here."
        )
    return lines


def _is_loss(row: Row) -> bool:
    return row.name != "these bytes alone"


def _multiple(ratio: float) -> str:
    return f"{ratio:.2f} times" if ratio >= 0.1 else f"{ratio:.3f} times"
