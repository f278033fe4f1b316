"""A head for millions of labels, which goes through them in blocks."""

from steelyard.models.block.head import BlockHead
from steelyard.models.block.sparse import SparseTargets
from steelyard.models.block.steps import BlockOptimizer

__all__ = ["BlockHead", "BlockOptimizer", "SparseTargets"]
