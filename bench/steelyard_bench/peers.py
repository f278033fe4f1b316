"""Whose losses are timed beside ours: torch's own, timm's, and those of a file.

A peer takes (logits, targets), both (B, L) and of one floating-point dtype, targets 0 or 1, and returns a number.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from steelyard._compat import import_torchvision

Peer = Callable[[Tensor, Tensor], Tensor]

BCE = "torch BCEWithLogitsLoss"
"""The peer whose time is 1."""


def installed(left_out: list[str]) -> dict[str, Peer]:
    """Return torch's BCE and, where timm is installed, its asymmetric loss; else say so in `left_out`."""
    found: dict[str, Peer] = {BCE: nn.BCEWithLogitsLoss()}
    try:
        import_torchvision()
        theirs: Any = importlib.import_module("timm.loss")
    except ImportError as error:
        left_out.append(f"timm AsymmetricLossMultiLabel ({error})")
    else:
        found["timm AsymmetricLossMultiLabel"] = theirs.AsymmetricLossMultiLabel()
    return found


def of_file(file: str, device: torch.device) -> dict[str, Peer]:
    """Return the losses in a Python file, by name.

    They are its public functions of (logits, targets) and its public `nn.Module` classes that can be made without
    arguments, or with FILE.py:NAME that one alone; all are defined in the file itself. One that cannot be made, or
    whose first value is not a finite number, is refused.
    """
    path, _, wanted = file.partition(":") if not Path(file).is_file() else (file, "", "")
    module = _loaded(Path(path))
    own = {n: v for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__}
    public = {name: value for name, value in own.items() if not name.startswith("_") and _is_loss(value)}
    if wanted and wanted not in public:
        raise ValueError(f"--peer {file}: {path} has no loss {wanted}; {_there(public)}")
    if not public:
        raise ValueError(f"--peer {file}: no loss in it: define a function of (logits, targets) or an nn.Module class")
    chosen = {wanted: public[wanted]} if wanted else public
    return {f"{Path(path).stem}: {name}": _made(file, name, value, device) for name, value in chosen.items()}


def _loaded(path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"--peer {path}: no such file")
    spec = importlib.util.spec_from_file_location(f"steelyard_peer_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"--peer {path}: give a Python file, NAME.py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"--peer {path}: it cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _is_loss(value: object) -> bool:
    if inspect.isclass(value):
        return issubclass(value, nn.Module)
    if not inspect.isfunction(value):
        return False
    needed = [p for p in inspect.signature(value).parameters.values() if p.default is p.empty]
    return len(needed) == 2 and all(p.kind is p.POSITIONAL_OR_KEYWORD for p in needed)


def _there(public: dict[str, object]) -> str:
    return f"there is {', '.join(public)}" if public else "there is none"


def _made(file: str, name: str, value: Callable[..., Any], device: torch.device) -> Peer:
    """Return a peer that gives a number for a small batch."""
    try:
        loss: Any = value() if inspect.isclass(value) else value
        if isinstance(loss, nn.Module):
            loss = loss.to(device)
        logits = torch.zeros(3, 5, device=device, requires_grad=True)
        result = loss(logits, torch.eye(3, 5, device=device))
        result.backward()
    except Exception as error:
        raise ValueError(f"--peer {file}: {name} fails: {type(error).__name__}: {error}") from error
    if result.numel() != 1 or not torch.isfinite(result).all():
        raise ValueError(f"--peer {file}: {name} gives {tuple(result.shape)}: a peer returns one finite number")
    peer: Peer = loss
    return peer
