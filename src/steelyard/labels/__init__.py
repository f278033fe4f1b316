"""Who has which label: the table of labels and the convention of a target."""

from steelyard.labels.table import Labels
from steelyard.labels.targets import UNKNOWN

__all__ = ["UNKNOWN", "Labels"]
