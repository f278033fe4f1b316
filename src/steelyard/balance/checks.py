"""Checks of numbers and choices that constructors take: one sentence names the argument, its value and the remedy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

Range = Literal["positive", "at least 0", "finite", "between 0 and 1", "in [0, 1)"]

_RANGES: dict[Range, tuple[str, Callable[[float], bool]]] = {
    "positive": ("positive and finite", lambda x: 0 < x < math.inf),
    "at least 0": ("at least 0 and finite", lambda x: 0 <= x < math.inf),
    "finite": ("finite", math.isfinite),
    "between 0 and 1": ("between 0 and 1", lambda x: 0 < x < 1),
    "in [0, 1)": ("in [0, 1)", lambda x: 0 <= x < 1),
}


def check_range(which: Range, **values: float) -> None:
    """Raise on the first of these numbers, by its name, that lies outside a range."""
    words, holds = _RANGES[which]
    for name, value in values.items():
        if not holds(value):
            raise ValueError(f"{name} is {value}: it must be {words}")


def check_choice(choices: Any, **values: object) -> None:
    """Raise on the first of these values, by its name, that the Literal `choices` does not hold."""
    for name, value in values.items():
        if value not in get_args(choices):
            raise ValueError(f"{name} is {value!r:.80}: choose one of {', '.join(get_args(choices))}")
