"""Nested settings in layers: each layer is checked against the sections, and errors name it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast

from steelyard._schema import TypedText, checked, closest, fields_of
from steelyard.objective.parts import Part, Slot, check_argument, check_kind, default_kind

Settings = TypeVar("Settings")
SettingsLayer: TypeAlias = tuple[str, Mapping[str, Any]]
"""Name of the source for error messages ("" for none) and its nested settings, where None means not given."""


def layered(root: type[Settings], base: dict[str, Any], layers: Sequence[SettingsLayer]) -> Settings:
    """Return a `root`, a dataclass of sections, from the settings `base` changed by each layer in turn.

    A section or part that has a kind may be given as the name of its kind. A part whose kind is changed begins with
    the defaults of the new one.
    """
    for where, content in layers:
        try:
            _lay(root, base, content, "", root)
        except ValueError as error:
            raise _located(where, error) from None
    try:
        return _build(root, base)
    except ValueError as error:
        raise _located(_source(str(error), layers), error) from None


def planted(sets: Sequence[str]) -> dict[str, Any]:
    """Return texts "section.key=value" as nested settings; of two for the same key, the later one."""
    tree: dict[str, Any] = {}
    for text in sets:
        path, equals, value = text.partition("=")
        names = [name.strip() for name in path.split(".")]
        if not equals or not all(names):
            raise ValueError(f"--set {text!r:.200}: write section.key=value, such as train.epochs=10")
        typed = TypedText(value.strip() or value)  # a separator may be a space or a tab
        node = tree
        for name in names[:-1]:
            below = node.setdefault(name, {})
            node[name] = below = {"kind": below} if isinstance(below, TypedText) else below
            node = below
        if isinstance(node.get(names[-1]), dict):
            node[names[-1]]["kind"] = typed
        else:
            node[names[-1]] = typed
    return tree


def plain(settings: Any) -> dict[str, Any]:
    """Return a dataclass of settings as nested dicts, in the shape that `layered` takes."""
    if isinstance(settings, Part):
        return {"kind": settings.kind, **settings.arguments}
    values = {entry.name: getattr(settings, entry.name) for entry in dataclasses.fields(settings)}
    return {name: plain(value) if dataclasses.is_dataclass(value) else value for name, value in values.items()}


def tables(cls: type, prefix: str = "") -> Iterator[tuple[str, type]]:
    """Yield the dotted name and the dataclass of every section and section within it, parts left out."""
    for name, setting in fields_of(cls).items():
        if dataclasses.is_dataclass(setting.type) and setting.type is not Part:
            yield prefix + name, cast(type, setting.type)
            yield from tables(cast(type, setting.type), f"{prefix}{name}.")


def _lay(cls: type, tree: dict[str, Any], content: Mapping[str, Any], prefix: str, root: type) -> None:
    """Change `tree` by `content`, both settings of `cls`, whose dotted name is `prefix`."""
    known = fields_of(cls)
    for name, value in content.items():
        if name not in known:
            raise ValueError(_unknown(name, prefix, known, root))
        key, expected = f"{prefix}{name}", known[name].type
        if value is None:
            continue
        if expected is Part:
            tree[name] = _part(cast(Slot, name), tree.get(name), _table(key, value, expected))
        elif dataclasses.is_dataclass(expected):
            _lay(cast(type, expected), tree.setdefault(name, {}), _table(key, value, expected), f"{key}.", root)
        else:
            tree[name] = checked(key, value, expected)


def _table(key: str, value: Any, expected: Any) -> Mapping[str, Any]:
    """The content of a section, whichever way it is given."""
    if isinstance(value, TypedText) and isinstance(parsed := value.parsed(), dict):
        return parsed
    if isinstance(value, expected):
        return plain(value)
    if isinstance(value, str) and (expected is Part or "kind" in fields_of(expected)):
        return {"kind": value}
    if not isinstance(value, Mapping):
        first = next(iter(fields_of(expected)))
        raise ValueError(f"{key} is {value!r:.80}: it is a section of settings, such as {key}.{first}")
    return value


def _part(slot: Slot, before: dict[str, Any] | None, table: Mapping[str, Any]) -> dict[str, Any]:
    """A part changed by a table."""
    now = before or {"kind": default_kind(slot)}
    kind = check_kind(slot, table.get("kind") or now["kind"])
    now = dict(now) if kind == now["kind"] else {"kind": kind}
    for name, value in table.items():
        if name != "kind" and value is not None:
            now[name] = check_argument(slot, kind, name, value)
    return now


def _build(cls: type[Settings], tree: Mapping[str, Any]) -> Settings:
    made: dict[str, Any] = {}
    for name, value in tree.items():
        expected = fields_of(cast(type, cls))[name].type
        if expected is Part:
            made[name] = Part(value["kind"], {key: value[key] for key in value if key != "kind"})
        else:
            made[name] = _build(cast(type, expected), value) if dataclasses.is_dataclass(expected) else value
    return cls(**made)


def _unknown(name: str, prefix: str, known: Mapping[str, Any], root: type) -> str:
    """Return the error message for an unknown name."""
    elsewhere = [f"{table}.{name}" for table, cls in tables(root) if name in fields_of(cls)]
    near = closest(name, known)
    meant = f"{prefix}{near}" if near else next(iter(elsewhere), None)
    hint = f"did you mean {meant}?" if meant else f"choose one of {', '.join(known)}"
    shown = f"{prefix}{name}"
    return f"there is no setting {shown if shown.isprintable() else repr(shown):.200}: {hint}"


def _source(sentence: str, layers: Sequence[SettingsLayer]) -> str:
    """The last layer that holds the key with which a sentence begins, "" where none does."""
    names = sentence.split(" ", 1)[0].rstrip(":").split(".")
    for where, content in reversed(layers):
        node: object = content
        for name in names:
            node = node.get(name) if isinstance(node, Mapping) else None
        if node is not None:
            return where
    return ""


def _located(where: str, error: ValueError) -> ValueError:
    return ValueError(f"{where}: {error}" if where else str(error))
