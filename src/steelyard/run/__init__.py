"""The whole job: what is in the data, and which recipe it calls for."""

from steelyard.run.advice import RECIPES, RULES, Advice, Evidence, advise
from steelyard.run.inspection import Inspection, inspect

__all__ = ["RECIPES", "RULES", "Advice", "Evidence", "Inspection", "advise", "inspect"]
