"""The whole job: what is in the data, which recipe it calls for, and the run from data to probabilities."""

from steelyard.run.advice import RECIPES, RULES, Advice, Evidence, advise, resolve_auto
from steelyard.run.inspection import Inspection, inspect

__all__ = ["RECIPES", "RULES", "Advice", "Evidence", "Inspection", "advise", "inspect", "resolve_auto"]
