"""What is minimised."""

from steelyard.objective.objective import Objective, Value
from steelyard.objective.role import Role

__all__ = ["Objective", "Role", "Value"]
