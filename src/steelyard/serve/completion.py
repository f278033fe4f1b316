"""Which labels a person may mean by the letters typed so far."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher, get_close_matches
from typing import final


@final
class Completion:
    """Names, looked up by what was typed of them.

    names: of the labels.
    counts: of each, by which those that fit equally well are ordered, the largest first.
    """

    def __init__(self, names: Sequence[str], counts: Sequence[float]) -> None:
        self._folded = [(name.casefold(), name, -count) for name, count in zip(names, counts, strict=True)]

    def __call__(self, typed: str, k: int) -> list[str]:
        """Return at most `k` names: equal, beginning so, with a word that begins so, holding it; else alike."""
        text = typed.strip().casefold()
        ranked = sorted((_rank(text, folded), count, name) for folded, name, count in self._folded)
        found = [name for rank, _, name in ranked if rank < 4][:k]
        if found or len(text) < 3:
            return found
        near = set(get_close_matches(text, [folded for folded, _, _ in self._folded], n=k, cutoff=0.6))
        alike = [(-SequenceMatcher(None, text, f).ratio(), name) for f, name, _ in self._folded if f in near]
        return [name for _, name in sorted(alike)][:k]


def _rank(text: str, name: str) -> int:
    if name == text:
        return 0
    if name.startswith(text):
        return 1
    if any(word.startswith(text) for word in name.replace("-", " ").replace("_", " ").split()):
        return 2
    return 3 if text in name else 4
