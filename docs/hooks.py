"""What mkdocs fills in when it builds the site, so that no page can grow old: every command's help, every public name.

`<!-- commands -->` becomes what `steelyard COMMAND --help` says, `<!-- names: losses -->` the reference of all public
classes and functions of `sy.losses`.
"""

from __future__ import annotations

import re
from importlib import import_module
from inspect import getsource, isclass, isfunction, signature
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from steelyard.cli import app


def commands() -> str:
    """Return the help of each command, a section each."""
    runner, sections = CliRunner(), []
    group = get_command(app)
    for name in group.list_commands(None):  # type: ignore[attr-defined,arg-type]
        said = runner.invoke(app, [name, "--help"], prog_name="steelyard", terminal_width=100).output
        sections.append(f"## {name}\n\n```text\n{said.strip()}\n```\n")
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


def names(room: str) -> str:
    """Return what mkdocstrings is to document of a module."""
    module = import_module(f"steelyard.{room}")
    public = [getattr(module, name) for name in module.__all__]
    return "\n\n".join(entry(o, public) for o in public if isclass(o) or isfunction(o))


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in a page."""
    if "<!-- commands -->" in markdown:
        markdown = markdown.replace("<!-- commands -->", commands())
    return re.sub(r"<!-- names: (\w+) -->", lambda found: names(found[1]), markdown)
