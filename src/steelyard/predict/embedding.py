"""Embeddings of items: the inputs of a model's head, as short vectors for similarity."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard.models import Model
from steelyard.models.inputs import in_pieces

MOST = 512
"""Length of an embedding; longer ones are projected to it by fixed random directions, which roughly preserve angles."""


@torch.inference_mode()
def embeddings_of(model: Model, inputs: Any) -> NDArray[np.float32]:
    """Return the embeddings (B, D) of inputs: the features that enter the model's head, D at most 512."""
    features: Tensor = in_pieces(model.features, inputs)
    features = features.to_dense() if features.layout != torch.strided else features
    features = features.float().cpu()
    if features.shape[1] > MOST:
        features = features @ _directions(features.shape[1])
    embeddings: NDArray[np.float32] = features.numpy()
    return embeddings


@cache
def _directions(width: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=(width, MOST)).astype(np.float32))
