"""torchvision beside a torch it was not built for."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

import torch

_libraries: list[torch.library.Library] = []  # a library's operators live as long as it does


def import_torchvision() -> ModuleType:
    """Return torchvision, also where its compiled operators do not fit torch, as beside a CPU-only torch.

    There its import fails with «operator torchvision::nms does not exist», and everything that rests on it, timm and
    torchmetrics among them, fails with it. Nothing here uses those operators: it is enough that the two which
    torchvision registers gradients and shapes for are declared. Any other failure is passed on.
    """
    try:
        return import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
    for name in [name for name in sys.modules if name == "torchvision" or name.startswith("torchvision.")]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _libraries.append(library)
    return import_module("torchvision")
