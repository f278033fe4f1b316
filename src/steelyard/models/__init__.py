"""Networks: backbones, heads, and features computed once."""

from steelyard.models.block import BlockHead, BlockOptimizer, SparseTargets
from steelyard.models.build import build_model, fine_tunes, image_size, load_model, with_members
from steelyard.models.frozen import frozen_data, over_features
from steelyard.models.inputs import Input, input_of
from steelyard.models.model import Model
from steelyard.models.settings import ModelSettings

__all__ = [
    "BlockHead",
    "BlockOptimizer",
    "Input",
    "Model",
    "ModelSettings",
    "SparseTargets",
    "build_model",
    "fine_tunes",
    "frozen_data",
    "image_size",
    "input_of",
    "load_model",
    "over_features",
    "with_members",
]
