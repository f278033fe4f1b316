"""The sentences above the tables of a run: what is faster, equal and slower, made from its figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from steelyard_bench.record import Record
from steelyard_bench.row import Row, Way

EQUAL = 0.1
"""How far from 1 a multiple still counts as equal."""
TORCH, TIMM = "torch BCEWithLogitsLoss", "timm AsymmetricLossMultiLabel"
ALONE = "these bytes alone"
_PAIRS = (("BCE", TORCH, "torch's `BCEWithLogitsLoss`"), ("ASL", TIMM, "timm's `AsymmetricLossMultiLabel`"))
_WAYS: tuple[tuple[Way, str], ...] = (
    ("peer", "as it comes"),
    ("int8", "with int8 targets"),
    ("compiled", "by `torch.compile`"),
)
_LACKING: tuple[tuple[Way, str], ...] = (("compiled", "not compiled"), ("int8", "without int8 targets"))
_NAMED = 3  # slower losses that are named

Ratios = dict[str, float]
"""Our time as a multiple of a peer's, by size."""


def headlines(record: Record) -> list[str]:
    """Return the sentences of a run, none where nothing was compared."""
    losses = [row for row in record.rows if row.part == "losses" and row.over_peer is not None and row.name != ALONE]
    lines = [sentence for make in (_counts, _slower, _pairs, _lacking) for sentence in make(losses)]
    lines = lines if any(row.way == "peer" for row in losses) else []
    for row in record.rows:
        if row.part == "metrics" and row.way == "steelyard" and row.over_peer is not None:
            lines.append(f"**{row.name}**, compared with torchmetrics: {_phrase({row.size: row.over_peer})}.")
    return lines


def _ours(rows: Sequence[Row], way: Way = "steelyard") -> dict[str, Ratios]:
    """Return the time over torch's BCE of each of our losses, by size."""
    names = {row.name for row in rows if row.way == "steelyard"}
    result: dict[str, Ratios] = {}
    for row in rows:
        if row.way == way and row.name in names:
            result.setdefault(row.name, {})[row.size] = float(row.over_peer or 0)
    return result


def _counts(rows: Sequence[Row]) -> Iterator[str]:
    """Yield how many losses are faster than torch's BCE at each size, how many as fast, how many slower."""
    ours, by_size = _ours(rows), []
    for size in dict.fromkeys(row.size for row in rows):
        ratios = [by[size] for by in ours.values() if size in by]
        counts = {word: sum(_verdict(r) == word for r in ratios) for word in ("faster", "as fast", "slower")}
        by_size.append(f"{', '.join(f'{n} {word}' for word, n in counts.items() if n)} at {size}")
    if ours:
        yield f"**{len(ours)} losses**, compared with torch's `BCEWithLogitsLoss`: {'; '.join(by_size)}."


def _slower(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the losses that take longest compared with torch's BCE, and those that a compiler makes faster."""
    ours = _ours(rows)
    slow = {name: sorted(r for r in by.values() if _verdict(r) == "slower") for name, by in ours.items()}
    worst = sorted((name for name in slow if slow[name]), key=lambda name: -slow[name][-1])
    if worst:
        named = "; ".join(f"{name} ({_range(slow[name])} times as long)" for name in worst[:_NAMED])
        rest = [r for name in worst[_NAMED:] for r in slow[name]]
        more = f"; {len(worst) - _NAMED} more ({_range([min(rest), max(rest)])} times)" if rest else ""
        yield f"**Slower** than that at one size or more: {named}{more}."
    by_compiler = {
        name: {size: r / ours[name][size] for size, r in by.items() if _verdict(r / ours[name][size]) == "faster"}
        for name, by in _ours(rows, "compiled").items()
    }
    faster = [f"{name} at {_and(list(by))}" for name, by in by_compiler.items() if by]
    if faster:
        yield f"**`torch.compile`** of our plain code is faster than what runs by default: {'; '.join(faster)}."


def _pairs(rows: Sequence[Row]) -> Iterator[str]:
    """Yield how long a loss takes compared with the same loss of another library, in each way that was timed."""
    ours = _ours(rows)
    for name, peer, theirs in _PAIRS:
        phrases = []
        for way, words in _WAYS:
            by = {row.size: float(row.over_peer or 0) for row in rows if (row.name, row.way) == (peer, way)}
            ratios = {size: ours[name][size] / by[size] for size in by if size in ours.get(name, {}) and by[size]}
            if ratios:
                phrases.append(f"{words}, {_phrase(ratios)}")
        if phrases:
            yield f"**{name}**, compared with {theirs} {'; '.join(phrases)}."


def _lacking(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what the peers were not given in this run."""
    peers = {row.name for row in rows if row.way == "peer" and row.name != ALONE}
    lacking = [words for way, words in _LACKING if not any(row.name in peers and row.way == way for row in rows)]
    if peers and lacking:
        yield f"**Peers ran as they come** in this run: {' and '.join(lacking)}."


def _phrase(ratios: Mapping[str, float]) -> str:
    """Return multiples of a peer's time in words, those of equal speed together."""
    equal = [size for size, ratio in ratios.items() if _verdict(ratio) == "as fast"]
    parts = [f"as fast at {_and(equal)}"] if equal else []
    for size, ratio in ratios.items():
        if _verdict(ratio) == "faster":
            parts.append(f"{_plain(1 / ratio)} times as fast at {size}")
        elif _verdict(ratio) == "slower":
            parts.append(f"{_plain(ratio)} times as long at {size}")
    return ", ".join(parts)


def _verdict(ratio: float) -> str:
    return "slower" if ratio > 1 + EQUAL else "faster" if ratio < 1 - EQUAL else "as fast"


def _range(ratios: Sequence[float]) -> str:
    low, high = _plain(ratios[0]), _plain(ratios[-1])
    return low if low == high else f"{low} to {high}"


def _plain(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
