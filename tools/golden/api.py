"""List the names of the public API with their call signatures."""

from __future__ import annotations

import inspect
import pkgutil
import re
from importlib import import_module
from types import ModuleType
from typing import Any

import steelyard as sy


def names_and_signatures() -> dict[str, str]:
    """Return one line of text per public name, and per public method of a class."""
    lines: dict[str, str] = {}
    for name in sy.__all__:
        thing = getattr(sy, name)
        if isinstance(thing, ModuleType):
            lines[name] = "module"
            _add_module(name, thing, lines)
        else:
            _add(name, thing, lines)
    for found in pkgutil.iter_modules(sy.integrations.__path__):
        try:
            _add_module(f"integrations.{found.name}", import_module(f"steelyard.integrations.{found.name}"), lines)
        except ImportError as error:  # its package is an extra of its own
            lines[f"integrations.{found.name}"] = str(error)
    return lines


def _add_module(prefix: str, module: ModuleType, lines: dict[str, str]) -> None:
    own = [name for name, thing in vars(module).items() if getattr(thing, "__module__", "") == module.__name__]
    for name in getattr(module, "__all__", own):
        if not name.startswith("_"):
            _add(f"{prefix}.{name}", getattr(module, name), lines)


def _add(name: str, thing: Any, lines: dict[str, str]) -> None:
    lines[name] = _described(thing)
    if not inspect.isclass(thing):
        return
    for home in thing.__mro__:
        if home.__module__.split(".")[0] == "steelyard":
            for member, value in vars(home).items():
                if not member.startswith("_"):
                    lines.setdefault(f"{name}.{member}", _described(value))


def _described(thing: Any) -> str:
    thing = thing.__func__ if isinstance(thing, classmethod | staticmethod) else thing
    if not callable(thing):
        return "property" if isinstance(thing, property) else "value"
    try:
        text = str(inspect.signature(thing))
    except (TypeError, ValueError):  # an exception class, a type alias
        return type(thing).__name__
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    return re.sub(r"\bsteelyard(\.\w+)+\.(?=\w)", "", text)  # a type keeps its name when its module moves
