"""What mkdocs fills in when it builds the site, so that no page can grow old: every command's help, every public name.

`<!-- commands -->` becomes what `steelyard COMMAND --help` says, `<!-- names: losses -->` the reference of all public
classes and functions of `sy.losses`.
"""

from __future__ import annotations

import re
from importlib import import_module
from inspect import isclass, isfunction
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


def names(room: str) -> str:
    """Return what mkdocstrings is to document of a room."""
    module = import_module(f"steelyard.{room}")
    public = [getattr(module, name) for name in module.__all__]
    return "\n\n".join(f"::: {o.__module__}.{o.__qualname__}" for o in public if isclass(o) or isfunction(o))


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in a page."""
    if "<!-- commands -->" in markdown:
        markdown = markdown.replace("<!-- commands -->", commands())
    return re.sub(r"<!-- names: (\w+) -->", lambda found: names(found[1]), markdown)
