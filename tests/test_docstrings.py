"""Every public name has an example that runs, and says what each of its parameters is."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
import runpy
import textwrap
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import steelyard as sy

MODULES = ["steelyard"]
MODULES += [f"steelyard.{name}" for name in sy.__all__ if inspect.ismodule(getattr(sy, name))]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
SECTION = re.compile(r"^(?:Args|Attributes):\n((?:[ ]{4}.*\n|\n)+)", re.M)
ENTRY = re.compile(r"^[ ]{4}(\w+(?:, \w+)*): \S", re.M)


def public() -> Iterator[tuple[str, Any]]:
    """Yield every public class and function once, under the first name it has."""
    seen: set[int] = set()
    for module in map(import_module, MODULES):
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if (inspect.isclass(thing) or inspect.isroutine(thing)) and id(thing) not in seen:
                seen.add(id(thing))
                yield f"{module.__name__}.{name}".removeprefix("steelyard."), thing


PUBLIC = dict(public())


def described_fields(cls: type) -> set[str]:
    """Return the fields of a class that have a docstring of their own, below them in the source."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body  # type: ignore[attr-defined]
    except (OSError, TypeError):
        return set()
    return {
        field.target.id
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


def described(thing: Any) -> set[str]:
    """Return the parameters that a docstring describes, under "Args:" or as fields."""
    names: set[str] = set()
    for section in SECTION.findall((inspect.getdoc(thing) or "") + "\n"):
        for entry in ENTRY.findall(section):
            names |= set(entry.split(", "))
    return names | described_fields(thing) if inspect.isclass(thing) else names


def parameters(thing: Any) -> list[str]:
    """Return the parameters that a call of `thing` may name."""
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        return []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    every = inspect.signature(thing).parameters.values()
    return [p.name for p in every if p.kind in named and not p.name.startswith("_")]


def faults(name: str, thing: Any) -> list[str]:
    """Return what the docstring of a public name lacks."""
    found = [] if ">>> " in (inspect.getdoc(thing) or "") else ["an example"]
    return found + [f"the parameter {p}" for p in parameters(thing) if p not in described(thing)]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_an_example_and_describes_its_parameters(name: str) -> None:
    assert faults(name, PUBLIC[name]) == []


def undescribed(cls: type, methods: dict[str, Any]) -> list[str]:
    """Return the parameters of methods that neither the method nor its class describes or names in backticks."""
    lacking = []
    for name, method in methods.items():
        call = getattr(method, "__func__", method)
        if inspect.isfunction(call):
            text = inspect.getdoc(call) or ""
            known = described(call) | described(cls) | set(re.findall(r"`(\w+)`", text)) | {"self", "cls"}
            lacking += [f"{name}: {p}" for p in parameters(call) if p not in known]
    return lacking


@pytest.mark.parametrize("module", ["labels", "losses", "balance", "objective", "metrics", "calibrate"])
def test_methods_in_the_reference_describe_their_parameters(module: str) -> None:
    methods = runpy.run_path(str(Path(__file__).resolve().parent.parent / "docs" / "hooks.py"))["methods"]
    home = import_module(f"steelyard.{module}")
    public = [getattr(home, name) for name in home.__all__]
    for cls in filter(inspect.isclass, public):
        above = {name for base in cls.__mro__[1:] if base in public for name in vars(base)}
        own = {name: method for name, method in methods(cls, public).items() if name not in above}
        assert undescribed(cls, own) == [], cls.__name__


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_of_a_public_name_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert outcome(PUBLIC[name]).failed == 0


def outcome(thing: Any) -> doctest.TestResults:
    """Run the examples of `thing` as a person types them, after `import numpy as np, torch, steelyard as sy`."""
    runner, results = doctest.DocTestRunner(optionflags=FLAGS), doctest.TestResults(0, 0)
    for test in doctest.DocTestFinder().find(thing, globs={"np": np, "torch": torch, "sy": sy}):
        torch.manual_seed(0)
        result = runner.run(test)
        results = doctest.TestResults(results.failed + result.failed, results.attempted + result.attempted)
    return results


def complete(a: int, b: int = 0) -> int:
    """Return a + b.

    Args:
        a, b: two numbers.

    Examples:
        >>> 1 + 1
        2
    """
    return a + b


def undocumented(a: int, b: int = 0) -> int:
    """Return a + b.

    Args:
        a: the first number; b is the second one.

    Examples:
        >>> 1 + 1
        3
    """
    return a + b


def test_what_is_missing_is_found() -> None:
    assert faults("complete", complete) == []
    assert outcome(complete) == (0, 1)
    assert faults("undocumented", undocumented) == ["the parameter b"]
    assert outcome(undocumented).failed == 1
    assert undescribed(str, {"undocumented": undocumented, "complete": complete}) == ["undocumented: b"]
    assert faults("described", described) == ["an example", "the parameter thing"]
