"""A row of the bench: one thing, done one way, at one size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from steelyard_bench.timing import Times

Way = Literal["steelyard", "plain", "compiled", "unknown", "soft", "peer", "int8"]
"""As it is called; without the fused kernels; by torch.compile; with unknown or soft labels; someone else's, as it
comes and with int8 targets."""


@dataclass(frozen=True)
class Row:
    """What was measured."""

    part: str
    """losses, pairs, metrics or training."""
    size: str
    name: str
    way: Way
    seconds: float
    """Of a call, launches included."""
    device_seconds: float | None = None
    """Of a call on the device alone."""
    memory: int | None = None
    """Bytes at the peak, beyond the inputs."""
    least_bytes: int | None = None
    """Bytes that must move."""
    over_peer: float | None = None
    """Time as a multiple of the peer's, of the same rounds."""
    note: str = ""


def row(part: str, size: str, name: str, way: Way, times: Times, peer: Times | None, least: int | None = None) -> Row:
    """Return the row of what a clock has measured."""
    over = None if peer is None else times.over(peer)
    return Row(part, size, name, way, times.seconds, times.device_seconds, times.memory, least, over)
