"""A user's module as the backbone of a model."""

from __future__ import annotations

import copy
from typing import Any, final

import torch
from torch import Tensor, nn

from steelyard.models.backbone import Backbone
from steelyard.models.inputs import Input

OWN = "own"
"""Value of `model.backbone` for a module passed in Python."""


@final
class OwnModule(Backbone):
    """A copy of a module that takes features (B, F), images (B, C, H, W) of floats in 0..1, or regions and words.

    Inputs are passed as they are, not normalised, so that a trained module sees what it is used to. The shape of its
    outputs, (B, K), is found once with an item of zeros in evaluation mode.
    """

    def __init__(self, module: nn.Module, input: Input) -> None:
        super().__init__()
        self.module = copy.deepcopy(module)
        self.channels = input.shape[0] if input.kind == "image" else 0
        n = input.shape[1 if input.kind == "pair" else 0]
        self.statistics = ((0.0,) * n, (1.0,) * n)
        self.n_features = _n_outputs(self.module, input)

    def forward(self, x: Any) -> Tensor:
        """Return the outputs of the module for `x`, (B, K)."""
        outputs: Tensor = self.module(x)
        return outputs


@final
class NoHead(nn.Module):
    """Logits as they come."""

    def forward(self, features: Tensor) -> Tensor:
        """Return `features`."""
        return features


def own_module(module: Any, input: Input) -> OwnModule:
    """Return the backbone made from a user's module, or raise if none was given."""
    if module is None:
        raise ValueError(
            "the model is your own module, whose weights are saved but not its code: pass it in Python, "
            "sy.fit(data, model=module) or Run.load(folder, model=module)"
        )
    if not isinstance(module, nn.Module):
        raise ValueError(f"model is a {type(module).__name__}: give an nn.Module, which takes a batch of inputs")
    return OwnModule(module, input)


def _n_outputs(module: nn.Module, input: Input) -> int:
    """K of the outputs (B, K) of a module."""
    if input.kind == "pair":
        n_regions, n_features, n_words, _ = input.shape
        x: Any = (torch.zeros(1, n_regions, n_features), torch.zeros(1, n_words, dtype=torch.int64))
    else:
        x = torch.zeros(1, *input.shape)
    what = f"{input.kind} of {' × '.join(map(str, input.shape))}"
    was_training = module.training
    try:
        with torch.no_grad():
            outputs = module.cpu().eval()(x)
    except Exception as error:  # of code that is not ours
        message = " ".join(str(error).split())
        raise ValueError(
            f"model does not take {what} ({type(error).__name__}: {message:.200}): fix its first layer, or the inputs"
        ) from None
    finally:
        module.train(was_training)
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != 1 or outputs.shape[1] == 0:
        shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(f"model returns {shape} for one item: return logits (B, L), or features (B, K), as one tensor")
    return outputs.shape[1]
