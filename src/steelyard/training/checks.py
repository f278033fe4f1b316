"""Settings that cannot be are refused in one sentence, as soon as they are made."""

from __future__ import annotations

import math
from collections.abc import Sequence


def choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}: choose one of {', '.join(choices)}")


def least(name: str, value: float, low: float) -> None:
    """Raise unless `value` is finite and at least `low`."""
    if not low <= value < math.inf:
        raise ValueError(f"{name} is {value}: it must be at least {low} and finite")


def between(name: str, value: float, low: float, high: float) -> None:
    """Raise unless `value` lies between `low` and `high`, both allowed."""
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}: it must lie between {low} and {high}")
