"""Whole jobs: inspect data, choose a recipe, train, calibrate, evaluate, predict and search."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steelyard.config.advice import RECIPES, RULES, Advice, Evidence, advise, resolve_auto
    from steelyard.config.inspection import Inspection, inspect

__all__ = ["RECIPES", "RULES", "Advice", "Evidence", "Inspection", "advise", "inspect", "resolve_auto"]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: `steelyard search` needs none of them, nor torch."""
    if name in __all__:
        home = "inspection" if name in ("Inspection", "inspect") else "advice"
        return getattr(import_module(f"steelyard.config.{home}"), name)
    raise AttributeError(f"module 'steelyard.run' has no attribute {name!r}")
