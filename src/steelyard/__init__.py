"""Steelyard: multi-label learning on real data, with probabilities that mean what they say."""

from steelyard import balance, labels, losses, objective
from steelyard.labels import UNKNOWN, Labels
from steelyard.objective import Objective

__version__ = "0.1.0"
__all__ = ["UNKNOWN", "Labels", "Objective", "balance", "labels", "losses", "objective"]
