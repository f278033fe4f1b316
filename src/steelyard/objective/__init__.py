"""What is minimised."""

from steelyard.objective.expected_positives import ExpectedPositives
from steelyard.objective.objective import Objective, Value
from steelyard.objective.role import Role

__all__ = ["ExpectedPositives", "Objective", "Role", "Value"]
