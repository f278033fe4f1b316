"""The choice of the fused kernels: by default they are used on GPUs that Triton supports."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal, get_args

import torch

Choice = Literal["auto", "plain", "fused"]

_LEAST_CAPABILITY = (8, 0)
_log = logging.getLogger("steelyard")


def _checked(choice: str) -> str:
    if choice not in get_args(Choice):
        raise ValueError(f"STEELYARD_KERNELS is {choice!r}: choose one of {', '.join(get_args(Choice))}")
    return choice


_choice = _checked(os.environ.get("STEELYARD_KERNELS", "auto"))


@contextmanager
def using(choice: Choice) -> Iterator[None]:
    """Choose, for a while: "auto" (on a GPU), "plain" (nowhere), "fused" (everywhere: Triton's interpreter on a CPU).

    The environment variable STEELYARD_KERNELS holds the choice that a process starts with.
    """
    global _choice
    before, _choice = _choice, _checked(choice)
    try:
        yield
    finally:
        _choice = before


def fuses(device: torch.device) -> bool:
    """Return whether what is on `device` goes through the fused kernels."""
    if _choice == "plain" or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return _choice == "fused" or (device.type == "cuda" and _supported(device.index))


@cache
def _supported(index: int) -> bool:
    """Return whether Triton is here for this GPU; if not, say so once."""
    if torch.version.hip is not None:
        why = "they were made for NVIDIA GPUs"
    elif torch.cuda.get_device_capability(index) < _LEAST_CAPABILITY:
        name, (major, minor) = torch.cuda.get_device_name(index), _LEAST_CAPABILITY
        why = f"{name} is older than compute capability {major}.{minor}"
    else:
        try:
            import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: F401
        except ImportError:
            why = "Triton is not installed"
        else:
            return True
    _log.warning("fused kernels are not used on cuda:%d (%s): everything works, more slowly", index, why)
    return False
