"""Import torchvision beside a torch that it was not built for."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

import torch

_libraries: list[torch.library.Library] = []  # a library's operators live as long as it does


def import_torchvision() -> ModuleType:
    """Return torchvision, even if its compiled operators do not fit torch, as beside a CPU-only torch.

    Then its import fails with "operator torchvision::nms does not exist", and so do timm and torchmetrics, which import
    it. Steelyard uses neither operator, so it is enough to declare the two for which torchvision registers gradients
    and shapes. Any other failure is passed on.
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
