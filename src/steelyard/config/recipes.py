"""Recipes: the settings of each method of the papers, and of each of their set-ups, read from recipes.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from steelyard._schema import closest
from steelyard.objective.parts import Part


class Recipe(NamedTuple):
    """Settings under a name."""

    what: str
    """A phrase about what it trains."""
    settings: Mapping[str, Any]
    """Nested, in the shape of the TOML file."""
    paper: str = ""
    """Its source, and choices made here where the source gives none."""
    items: str = ""
    """Of a whole set-up: what to train it on."""
    expected: str = ""
    """Of a whole set-up: the score to expect, where the paper gives one."""
    code: str = ""
    """The Python that makes its objective, given `sy` and `labels`; only recipes that may be advised have it."""


def _recipe(entry: dict[str, Any]) -> Recipe:
    about = {name: entry.pop(name) for name in Recipe._fields if name in entry}
    parts = entry.get("objective", {})
    for slot, part in parts.items():
        parts[slot] = Part(part.pop("kind"), part) if isinstance(part, dict) else part
    return Recipe(settings=entry, **about)


RECIPES = {
    name: _recipe(entry)
    for name, entry in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}
"""All recipes by name; "auto" is the one that `steelyard.config.advice` chooses."""
METHODS = {name: recipe for name, recipe in RECIPES.items() if not recipe.items}
"""The recipes that combine with any data and model, and by "+" with each other."""
SETUPS = {name: recipe for name, recipe in RECIPES.items() if recipe.items}
"""The recipes that set everything, for one data set of a paper, on top of `AS_PAPERS`."""

AS_PAPERS: dict[str, Any] = {
    "data": {"validation": 0.1},
    "model": {"bias": "zero", "frozen": False},
    "schedule": {"warmup_epochs": 0.0},
    "train": {"learner": "loop", "epochs": 30, "batch_size": 128, "monitor": "map", "patience": 0},
}
"""Base settings of every paper's setup, in place of the automatic ones for users' data."""


def settings(name: str) -> dict[str, Any]:
    """Return the settings of a recipe, or of several methods joined by "+" that set different parts."""
    if name in RECIPES:
        return deepcopy(dict(RECIPES[name].settings))
    joined: dict[str, Any] = {}
    setters: dict[tuple[str, str], str] = {}
    for method in name.split("+"):
        if method not in METHODS:
            raise ValueError(_refusal(method, name))
        for section, parts in METHODS[method].settings.items():
            for part, value in parts.items():
                if setters.setdefault((section, part), method) != method and joined[section][part] != value:
                    raise ValueError(
                        f"recipe {name}: {setters[section, part]} and {method} both set {section}.{part}: leave one out"
                    )
                joined.setdefault(section, {})[part] = value
    return joined


def _refusal(method: str, name: str) -> str:
    if method in SETUPS:
        return f"recipe {name}: {method} sets everything: use it alone, and change parts by --set"
    if method == "auto":
        return f"recipe {name}: auto stands for a whole objective: use it alone"
    meant = closest(method, [*RECIPES, "auto"])
    hint = f"did you mean {meant}?" if meant else f"choose one of auto, {', '.join(RECIPES)}"
    return f"there is no recipe {method!r}: {hint}"
