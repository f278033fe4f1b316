"""Settings: names, types, defaults and descriptions, read from dataclasses and constructors."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import math
import numbers
import os
import re
import textwrap
import tomllib
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

import numpy as np


class Setting(NamedTuple):
    """One thing that may be set."""

    type: Any
    default: Any
    """`dataclasses.MISSING` where there is none, or a factory makes it; None is stated as ()."""
    doc: str


class TypedText(str):
    """A value as it was typed at a command line."""

    __slots__ = ()

    def parsed(self) -> Any:
        """Return the value that the text is in TOML, or the text itself: bare words are strings; .1 and 1. will do."""
        if re.fullmatch(r"[+-]?(\d+\.|\.\d+)([eE][+-]?\d+)?", self):
            return float(self)
        try:
            alone = tomllib.loads(f"value = {self}")["value"]
            listed = tomllib.loads(f"value = [{self}]")["value"]  # fails if a comment or another key follows
            return alone if listed == [alone] else str(self)
        except (ValueError, RecursionError):
            return str(self)


@cache
def fields_of(cls: type) -> dict[str, Setting]:
    """Return the fields of a dataclass by name, each with the docstring below it."""
    hints, docs = get_type_hints(cls), _attribute_docs(cls)
    return {
        field.name: Setting(hints[field.name], field.default, docs.get(field.name, ""))
        for field in dataclasses.fields(cls)
    }


@cache
def arguments_of(maker: Callable[..., Any]) -> dict[str, Setting]:
    """Return the arguments of a constructor or function by name, each with its text under "Args:"."""
    hints = get_type_hints(maker.__init__ if inspect.isclass(maker) else maker)
    docs, settings = _argument_docs(maker), {}
    for name, parameter in inspect.signature(maker).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue  # torch's own constructor, of a rule that takes nothing
        default = dataclasses.MISSING if parameter.default is parameter.empty else parameter.default
        settings[name] = Setting(hints[name], () if default is None else default, docs.get(name, _summary(maker)))
    return settings


def checked(key: str, value: Any, expected: Any) -> Any:
    """Return `value` as the type `expected`; a ValueError names `key`, the value and what it may be.

    Whole numbers will do for numbers, lists for tuples. Text typed at a command line is taken as TOML where that fits,
    else as it stands. None, where it is allowed, is ().
    """
    for candidate in (value.parsed(), str(value)) if isinstance(value, TypedText) else (value,):
        for option in _options(expected):
            if (fitting := _fit(candidate, option)) is not None:
                return fitting
    shown = "a table" if isinstance(value, dict) else repr(str(value) if isinstance(value, TypedText) else value)
    sentence = f"{key} is {shown if len(shown) <= 80 else f'{shown[:77]}…'}"
    words = [word for word in choices(expected) if word]
    if not words or not isinstance(value, str):
        raise ValueError(f"{sentence}: it must be {describe(expected)}")
    meant = closest(value, words)
    raise ValueError(f"{sentence}: choose one of {', '.join(words)}" + (f"; did you mean {meant}?" if meant else ""))


def describe(expected: Any) -> str:
    """Return in words what `expected` is."""
    return " or ".join(_describe(option) for option in _options(expected))


def choices(expected: Any) -> tuple[str, ...]:
    """Return the words among which `expected` lets one choose, none where it does not."""
    return tuple(word for option in _options(expected) if get_origin(option) is Literal for word in get_args(option))


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the one of `known` that was probably meant."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)), None)


Bounds: TypeAlias = Mapping[tuple[float, float], Sequence[str]]
"""Names of settings by the lowest and the highest value that is allowed; infinity never is."""
AT_LEAST_0, AT_LEAST_1, SHARE = (0, math.inf), (1, math.inf), (0, 1)


def conform(section: str, settings: Any, bounds: Bounds = MappingProxyType({})) -> None:
    """Give every field of a dataclass the type it is declared with, or raise with the name of the section."""
    for name, setting in fields_of(settings.__class__).items():
        given = getattr(settings, name)
        if given is not setting.default and not dataclasses.is_dataclass(setting.type):  # which conforms by itself
            object.__setattr__(settings, name, checked(f"{section}.{name}", given, setting.type))
    for (low, high), names in bounds.items():
        for name in names:
            if not low <= (value := getattr(settings, name)) <= high or math.isinf(value):
                words = f"be at least {low} and finite" if math.isinf(high) else f"lie between {low} and {high}"
                raise ValueError(f"{section}.{name} is {value}: it must {words}")


def _options(expected: Any) -> tuple[Any, ...]:
    """The types that a union joins, without None and without what no text can state (tensors)."""
    members = get_args(expected) if get_origin(expected) in (Union, types.UnionType) else (expected,)
    plain = tuple(m for m in members if m in (bool, int, float, str) or get_origin(m) in (tuple, Literal))
    return (*plain, type(None)) if type(None) in members else plain


def _fit(value: Any, expected: Any) -> Any:
    """`value` as a plain type, None where it does not fit."""
    if expected is bool:
        return bool(value) if isinstance(value, bool | np.bool_) else None
    if expected is str:
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        return str(value) if isinstance(value, str) else None
    if get_origin(expected) is Literal:
        return str(value) if isinstance(value, str) and value in get_args(expected) else None
    if expected is type(None):
        return () if value is None or (isinstance(value, list | tuple) and len(value) == 0) else None
    if get_origin(expected) is tuple:
        return _fit_tuple(value, get_args(expected))
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        return None
    if expected is int:
        return int(value) if isinstance(value, numbers.Integral) else None
    try:
        return None if math.isnan(value) else float(value)
    except OverflowError:
        return None


def _fit_tuple(value: Any, members: tuple[Any, ...]) -> Any:
    if not isinstance(value, list | tuple):
        return None
    expected = members[:1] * len(value) if members[-1] is Ellipsis else members
    fitting = [_fit(item, member) for item, member in zip(value, expected, strict=False)]
    return None if len(value) != len(expected) or None in fitting else tuple(fitting)


def _describe(expected: Any) -> str:
    if get_origin(expected) is Literal:
        return f"one of {', '.join(get_args(expected))}"
    if get_origin(expected) is tuple:
        members = get_args(expected)
        number = "" if members[-1] is Ellipsis else f"{len(members)} "
        return f"a list of {number}{ {float: 'numbers', str: 'texts'}[members[0]] }".replace("  ", " ")
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "[] for none"}
    return words[expected]


def _attribute_docs(cls: type) -> dict[str, str]:
    """The string below each field in the source of a class."""
    try:
        source = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except OSError:  # installed without its source
        return {}
    return {
        ast.unparse(field.target): " ".join(str(ast.literal_eval(below.value)).split())
        for field, below in pairwise(cast(ast.ClassDef, source.body[0]).body)
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr)
    }


def _argument_docs(maker: Callable[..., Any]) -> dict[str, str]:
    """The entries under "Args:" in a docstring."""
    _, _, below = (inspect.getdoc(maker) or "").partition("Args:\n")
    docs: dict[str, str] = {}
    for names, text in re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n     .*)*)", below.split("\n\n")[0], re.MULTILINE):
        docs |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return docs


def _summary(maker: Callable[..., Any]) -> str:
    """The first sentence or formula of a docstring."""
    return " ".join((inspect.getdoc(maker) or "").split("\n\n")[0].split())
