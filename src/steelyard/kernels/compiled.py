"""Plain functions of a user's own by torch.compile, where the fused kernels would be used."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Concatenate, ParamSpec, TypeVar

import torch

from steelyard.kernels.choice import fuses

P = ParamSpec("P")
T = TypeVar("T")
Owner = TypeVar("Owner")

_log = logging.getLogger("steelyard")
_refused: set[type] = set()
"""The classes whose code the compiler did not take."""


def compiles(device: torch.device) -> bool:
    """Return whether functions of what is on `device` are compiled."""
    return device.type == "cuda" and fuses(device)


def compiled(function: Callable[Concatenate[Owner, P], T], owner: Owner, *args: P.args, **kwargs: P.kwargs) -> T:
    """Return function(owner, …), compiled at its first call; what the compiler does not take is called as it is.

    What was compiled is shared by all calls of `function`: `owner` is told apart by its class and its attributes.
    """
    if type(owner) in _refused:
        return function(owner, *args, **kwargs)
    try:
        fast: Callable[Concatenate[Owner, P], T] = _fast(function)
        return fast(owner, *args, **kwargs)
    except Exception as error:
        out = function(owner, *args, **kwargs)  # where the code itself is wrong, this says how
        _refused.add(type(owner))
        lines = str(error).strip().splitlines() or [type(error).__name__]
        _log.warning("%s is not compiled (%s): it works, more slowly", type(owner).__name__, lines[0])
        return out


@cache
def _fast(function: Callable[P, T]) -> Callable[P, T]:
    return torch.compile(function)
