"""Fill in the pages that are generated, so that none can go stale.

`<!-- commands -->` becomes the help of every command, `<!-- names: losses -->` the reference of all public classes and
functions of `sy.losses`, `<!-- settings -->` every key of a configuration, `<!-- recipes -->` every recipe,
`<!-- api -->` the addresses of `steelyard serve`, and `<!-- extras -->` what each extra installs.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import getsource, isclass, isfunction, signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from typer.main import get_command
from typer.testing import CliRunner

from steelyard._schema import Setting, choices, describe, fields_of
from steelyard.cli import app
from steelyard.config.recipes import METHODS
from steelyard.config.settings import Config
from steelyard.objective.parts import KINDS, Part, Slot, arguments

ROOT = Path(__file__).resolve().parent.parent


def commands() -> str:
    """Return the help of each command, one section per command."""
    runner, sections = CliRunner(), []
    group = get_command(app)
    for name in group.list_commands(None):  # type: ignore[attr-defined,arg-type]
        text = runner.invoke(app, [name, "--help"], prog_name="steelyard", terminal_width=100).output
        sections.append(f"## {name}\n\n```text\n{text.strip()}\n```\n")
    return "\n".join(sections)


FIRST = ("forward", "probability", "log_odds", "positive", "negative")
"""The methods that a reader looks for, before all others."""
INTERNAL = {
    *("get_extra_state", "set_extra_state", "kernel", "kernel_for", "evaluate_batch", "batch", "check_logits"),
    *("amount", "divisor", "cost_and_slope", "check_link", "inert", "times", "n_counted", "of_batch", "kept"),
    *("kept_below", "draw_ahead", "observe_logits", "marginal", "stored", "needs_link", "prepare", "balanced"),
    *("draws", "draws_at", "masked", "overlap", "hold_on", "let_go", "held", "check_continues", "restore"),
    *("Cells.rows", "Objective.cells", "Annotation.cells", "rule", "ExpectedWeights.add"),
}
"""Methods that other modules of the package call, and that a user has no use for."""


HOOKS = {"evaluate", "extra", "link", "remember", "sided", "weights"}
"""Methods that a subclass may write, shown where they are introduced."""


def methods(cls: type, public: list[Any]) -> dict[str, Any]:
    """Return the methods and properties that a class adds, those of bases without a reference of their own included."""
    added: dict[str, Any] = {}
    for base in cls.__mro__[::-1]:
        if base is cls or (base not in public and base.__module__.startswith("steelyard.")):
            added |= {name: value for name, value in vars(base).items() if not name.startswith("_")}
    return {
        name: value
        for name, value in added.items()
        if (isfunction(value) or isinstance(value, property | classmethod | staticmethod))
        and not INTERNAL & {name, f"{cls.__name__}.{name}"}
    }


def entry(thing: Any, public: list[Any]) -> str:
    """Return what mkdocstrings is to document of a class or function, with links to what a class inherits.

    A method that overrides one of the same parameters is not shown again.
    """
    path = f"::: {thing.__module__}.{thing.__qualname__}"
    if not isclass(thing):
        return path
    shown: dict[str, tuple[type, Any]] = {}
    for cls in (cls for cls in thing.__mro__[::-1] if cls in public):
        for name, value in methods(cls, public).items():
            if name not in shown or not same_call(value, shown[name][1]):
                shown[name] = cls, value
    order = sorted(shown, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    fields = re.findall(r'^    (\w+): .*\n    """', getsource(thing), flags=re.M)
    own = [*fields, *(name for name in order if shown[name][0] is thing)]
    links = [
        f"[`{name}`](#{cls.__module__}.{cls.__qualname__}.{name})"
        for name, (cls, _) in ((name, shown[name]) for name in order)
        if cls is not thing and name not in HOOKS
    ]
    members = f"[{', '.join(own)}]\n      inherited_members: true" if own else "false"
    options = f"\n    options:\n      members: {members}"
    return path + options + (f"\n\nInherited: {' · '.join(links)}" if links else "")


def same_call(method: Any, other: Any) -> bool:
    """Return whether two methods take the same parameters."""
    if not (isfunction(method) and isfunction(other)):
        return True
    return [*signature(method).parameters] == [*signature(other).parameters]


def names(module_name: str) -> str:
    """Return what mkdocstrings documents of a module."""
    module = import_module(f"steelyard.{module_name}")
    public = [getattr(module, name) for name in sorted(module.__all__, key=str.lower)]
    return "\n\n".join(entry(o, public) for o in public if isclass(o) or isfunction(o))


def cell(text: str) -> str:
    """Return text as one cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def setting_row(key: str, setting: Setting, default: Any) -> str:
    """Return the row of one setting."""
    words = choices(setting.type)
    kind = " ".join(f"`{word or chr(34) * 2}`" for word in words) if words else describe(setting.type)
    shown = json.dumps(list(default) if isinstance(default, tuple) else default, ensure_ascii=False)
    name = re.sub(r"([._])", r"\1<wbr>", key)  # a phone breaks a long key there
    return f"| <code>{name}</code> | {cell(kind)} | `{cell(shown)}` | {cell(setting.doc)} |"


HEAD = "| key | type | default | |\n|---|---|---|---|"


def section_rows(name: str, section: Any) -> Iterator[str]:
    """Yield the rows of a section, those of its tables included."""
    for key, setting in fields_of(section.__class__).items():
        value = getattr(section, key)
        if isinstance(value, Part):
            yield setting_row(f"{name}.{key}.kind", setting._replace(type=str), value.kind)
        elif dataclasses.is_dataclass(value):
            yield from section_rows(f"{name}.{key}", value)
        else:
            yield setting_row(f"{name}.{key}", setting, value)


def settings() -> str:
    """Return a table of the settings of each section, and of the arguments of each part of the objective."""
    config, lines = Config(), []
    for name in fields_of(Config):
        lines += [f"## [{name}]", "", HEAD, *section_rows(name, getattr(config, name)), ""]
        if name == "objective":
            lines += parts()
    return "\n".join(lines)


def parts() -> Iterator[str]:
    """Yield the kinds of each part of the objective with their arguments."""
    for slot, kinds in KINDS.items():
        yield from (f"### objective.{slot}.kind", "", "| kind | argument | type | default | |", "|---|---|---|---|---|")
        for kind in kinds:
            taken = arguments(cast(Slot, slot), kind)
            if not taken:
                yield f"| `{kind}` | | | | no arguments |"
            for key, setting in taken.items():
                yield f"| `{kind}` {setting_row(f'objective.{slot}.{key}', setting, setting.default)}"
        yield ""


def recipes() -> str:
    """Return a table of the recipes that combine with any data."""
    rows = (f"| `{name}` | {cell(recipe.what)} | {cell(recipe.paper)} |" for name, recipe in METHODS.items())
    return "\n".join(["| recipe | what it trains | source |", "|---|---|---|", *rows])


def api() -> str:
    """Return the addresses of the server, with what each takes and gives, from its OpenAPI description."""
    from steelyard.serve.app import build

    schema = build(cast(Any, None), None, cast(Any, SimpleNamespace(token=""))).openapi()
    shapes, lines = schema["components"]["schemas"], []
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            lines += [f"## {method.upper()} {path}", "", about.get("description", about.get("summary", "")), ""]
            if about.get("parameters"):
                lines += ["| parameter | type | default | |", "|---|---|---|---|"]
                lines += [parameter_row(parameter) for parameter in about["parameters"]] + [""]
            lines += [answer(about["responses"]["200"], shapes), ""]
    lines += ["## Shapes", ""]
    for name, shape in shapes.items():
        if "properties" in shape:
            lines += [f"### {name}", "", shape.get("description", ""), "", "| field | type |", "|---|---|"]
            lines += [f"| `{key}` | {cell(type_of(value))} |" for key, value in shape["properties"].items()] + [""]
    return "\n".join(lines)


def parameter_row(parameter: dict[str, Any]) -> str:
    """Return the row of a parameter of the API."""
    schema = parameter["schema"]
    default = "required" if parameter.get("required") else f"`{json.dumps(schema.get('default'))}`"
    limits = [f"{word} {schema[key]:,}" for key, word in LIMITS.items() if key in schema]
    return f"| `{parameter['name']}` | {cell(type_of(schema))} | {default} | {', '.join(limits)} |"


LIMITS = {"minimum": "at least", "maximum": "at most", "maxLength": "length at most", "maxItems": "items at most"}


def type_of(schema: dict[str, Any]) -> str:
    """Return the type of a JSON schema in words."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(type_of(option) for option in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {type_of(schema.get('items', {}))}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {type_of(schema['additionalProperties'])}"
    return str(schema.get("type", "any"))


def answer(response: dict[str, Any], shapes: dict[str, Any]) -> str:
    """Return what an address replies with."""
    (kind, content), *_ = response["content"].items()
    return f"Replies with `{kind}`" + (f": {type_of(content['schema'])}." if content.get("schema") else ".")


def extras() -> str:
    """Return a table of the extras and the packages that each installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = [f"| (none) | {cell(', '.join(map(package, project['dependencies'])))} |"]
    for name, needs in project["optional-dependencies"].items():
        if name not in ("dev", "docs"):
            rows.append(f"| `{name}` | {cell(', '.join(dict.fromkeys(map(package, needs))))} |")
    return "\n".join(["| extra | installs |", "|---|---|", *rows])


def package(requirement: str) -> str:
    """Return a requirement without the marker of its platform."""
    return requirement.split(";")[0].strip()


FILLED: dict[str, Callable[[], str]] = {
    "commands": commands,
    "settings": settings,
    "recipes": recipes,
    "api": api,
    "extras": extras,
}
"""The function that fills in each comment."""


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in a page; the first one of a tab leads to the others."""
    if page.is_index and "hide" in page.meta:
        page.meta["hide"] = [part for part in page.meta["hide"] if part != "navigation"]
    for name, make in FILLED.items():
        if f"<!-- {name} -->" in markdown:
            markdown = markdown.replace(f"<!-- {name} -->", make())
    return re.sub(r"<!-- names: (\w+) -->", lambda match: names(match[1]), markdown)
