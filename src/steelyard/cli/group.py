"""The command line as a whole: commands of other projects too, and whatever ends a command said in one line."""

from __future__ import annotations

import io
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, get_args, get_type_hints

import typer
from typer.core import TyperGroup

from steelyard._signals import stoppable

try:
    from typer import TyperException as UsageProblem
except ImportError:  # typer before 0.26 rests on click
    from click import ClickException as UsageProblem  # type: ignore[assignment,import-not-found,no-redef,unused-ignore]


_added: dict[str, typer.Typer] = {}


def add_command(name: str, command: typer.Typer) -> None:
    """Add a command of another project that is not installed but run from its folder."""
    _added[name] = command


def _installed() -> dict[str, typer.Typer]:
    """Return the commands of other projects by name; only an unknown name and --help look for them."""
    from importlib.metadata import entry_points

    return {entry.name: entry.load() for entry in entry_points(group="steelyard.commands")} | _added


class Interrupted(Exception):
    """Ctrl-C: typer would turn a KeyboardInterrupt into an exit code and lose its words."""


ELSEWHERE = {"reproduce": "papers", "bench": "bench"}
"""Commands of projects beside this package, with their folders in the repository."""


class Commands(TyperGroup):
    """The commands of this package, and those that other installed projects add (entry points `steelyard.commands`)."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all names, those of other projects last."""
        return [*super().list_commands(ctx), *sorted(_installed())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        if cmd_name in (others := _installed()):
            command = typer.main.get_command(others[cmd_name])
            command.name = cmd_name
            return command
        if cmd_name in ELSEWHERE:
            raise ValueError(
                f"{cmd_name} is not installed: run pip install ./{ELSEWHERE[cmd_name]} in a checkout of the repository"
            )
        return None

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            raise Interrupted(str(stop) or "stopped") from None
        except ValueError as error:
            files = sys.modules.get("steelyard.data.files")  # what is not imported has raised nothing
            if files is not None and isinstance(error, files.DataError):
                error.args = (_in_options(str(error), self.get_command(ctx, ctx.invoked_subcommand).params),)
            raise


app = typer.Typer(
    cls=Commands,
    help="Multi-label learning on real data: long tails, missing labels, probabilities that mean what they say.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def options(ctx: typer.Context) -> None:
    """Steelyard trains multi-label classifiers whose probabilities can be used."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def main() -> None:
    """Run the command line: exit 0 done, 2 the user's mistake, 130 Ctrl-C or SIGTERM (one line on stderr), 1 ours."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal or pipe that lacks a character shows another
    try:
        with stoppable() as stop:
            try:
                app(standalone_mode=False)
                return
            except BaseException as problem:
                stop.deafen()
                lost = stop.asked and not isinstance(problem, SystemExit | Interrupted)  # the library it came in hid it
                code = _said(Interrupted("stopped") if lost else problem)
    except KeyboardInterrupt:  # in the moment before it is listened for
        code = _said(Interrupted("stopped"))
    sys.exit(code)


def _said(problem: BaseException) -> int:
    """Say in one line on stderr what ended a command, and return the exit code; what is our own fault is raised."""
    if isinstance(problem, SystemExit):
        return int(problem.code or 0)
    code = 2
    if isinstance(problem, UsageProblem):
        context = getattr(problem, "ctx", None)  # of the command, where one was typed
        name = "" if context is None or context.parent is None else f"{context.info_name} "
        sentence = f"{_about_value(problem) or problem.format_message()} (see steelyard {name}--help)"
    elif isinstance(problem, OSError) and problem.filename:
        sentence = f"{problem.filename}: {problem.strerror}"
    elif isinstance(problem, ValueError | OSError):
        sentence = str(problem)
    elif isinstance(problem, Interrupted | KeyboardInterrupt):
        sentence, code = str(problem) or "stopped", 130
    elif isinstance(problem, RuntimeError) and str(problem).startswith("DataLoader worker (pid"):
        from steelyard.data.loading import WORKER_DIED as sentence  # torch raises it wherever the command is
    else:
        raise problem
    print(f"steelyard: {' '.join(sentence.splitlines())}", file=sys.stderr)
    return code


def _about_value(problem: UsageProblem) -> str:
    """Return that an option takes a number, where it was given none; typer says it in other words in every version."""
    option, context = getattr(problem, "param", None), getattr(problem, "ctx", None)
    if type(problem) is not typer.BadParameter or option is None or context is None:
        return ""
    hint = get_type_hints(context.command.callback).get(option.name)
    kind = next((words for one, words in _NUMBERS.items() if one in (hint, *get_args(hint))), "")
    return f"{option.opts[0]} takes {kind}: give one" if kind else ""


def _in_options(sentence: str, parameters: Iterable[Any]) -> str:
    """Return what a reader says of its arguments, such as labels= or form='long', with a command's options instead."""
    options = {parameter.name: parameter.opts[0] for parameter in parameters}

    def option(match: re.Match[str]) -> str:
        return f"{options[match[1]]} {match[2] or ''}".rstrip() if match[1] in options else match[0]

    return re.sub(r"(?<=\s)([a-z_]+)=(?:'([^']*)')?(?=[\s,.:;]|$)", option, sentence)


_NUMBERS = {int: "a whole number", float: "a number"}


@contextmanager
def last_words() -> Iterator[None]:
    """Of several processes, end one that fails at once: torch's farewell would wait for the others, maybe for ever."""
    try:
        yield
    except BaseException as problem:
        if os.environ.get("WORLD_SIZE", "1") == "1":
            raise
        code = 1
        try:
            code = _said(problem)
        except BaseException:
            traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
