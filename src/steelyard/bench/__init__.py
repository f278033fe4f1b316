"""How fast? Losses, metrics and training beside their peers, on this very machine, in one run: `steelyard bench`."""

from steelyard.bench.command import Asked, again, bench

__all__ = ["Asked", "again", "bench"]
