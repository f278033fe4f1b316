"""The objective of training: a loss with rules for unknown labels, masks, weights and regularisers."""

from steelyard.objective.expected_positives import ExpectedPositives
from steelyard.objective.objective import Objective, Value
from steelyard.objective.role import Role
from steelyard.objective.start import prior_logits

__all__ = ["ExpectedPositives", "Objective", "Role", "Value", "prior_logits"]
