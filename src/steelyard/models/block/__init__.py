"""A head for millions of labels, which processes them in blocks."""

from steelyard.models.block.head import BlockHead
from steelyard.models.block.sparse import SparseTargets
from steelyard.models.block.steps import BlockOptimizer
from steelyard.models.block.sums import prior_bias
from steelyard.models.block.top import Top, log_odds_of, top_labels

__all__ = ["BlockHead", "BlockOptimizer", "SparseTargets", "Top", "log_odds_of", "prior_bias", "top_labels"]
