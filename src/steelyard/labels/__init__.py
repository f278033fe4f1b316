"""The table of labels, and the values a target may have."""

from steelyard.labels.table import Labels
from steelyard.labels.targets import UNKNOWN

__all__ = ["UNKNOWN", "Labels"]
