"""The command line as a whole: its groups of commands and options, and one line on stderr for every mistake."""

from __future__ import annotations

import atexit
import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from inspect import cleandoc, signature
from typing import Any, TypeVar, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import OptionInfo

from steelyard._signals import Stop, stoppable

UsageProblem: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__base__ is Exception)
"""Root of what typer raises about a command line; its name and module differ between versions."""
_F = TypeVar("_F", bound=Callable[..., None])
_added: dict[str, typer.Typer] = {}
TRAIN, USE, LABELS, OTHER = "Train and measure", "Use a run", "Improve the labels", "Other commands"
"""Headings of the list of commands, in its order."""


def add_command(name: str, command: typer.Typer) -> None:
    """Add a command of another project that is run from its folder, not installed."""
    _added[name] = command


def _installed() -> dict[str, typer.Typer]:
    """Return the commands of other projects by name; only an unknown name and --help look for them."""
    from importlib.metadata import entry_points

    return {entry.name: entry.load() for entry in entry_points(group="steelyard.commands")} | _added


class Interrupted(Exception):
    """Raised for Ctrl-C: typer would turn a KeyboardInterrupt into an exit code and lose its message."""


ELSEWHERE = {"reproduce": "papers", "bench": "bench"}
"""Commands of other projects in the repository, with their folders."""


class Command(TyperCommand):
    """A command whose help has its options under headings and its examples in lines that can be copied."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write what the command does."""
        text = "\n\n".join(part for part in self._paragraphs() if not part.startswith(_EXAMPLE))
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options by heading; those without one come last."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        plain: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            heading = "Arguments" if param.param_type_name == "argument" else getattr(param, "rich_help_panel", None)
            if record is not None:
                (plain if heading is None else sections.setdefault(heading, [])).append(record)
        for heading, records in (*sections.items(), ("Options", plain)):
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, one per line however long it is."""
        with formatter.section("Examples"):
            for part in self._paragraphs():
                if part.startswith(_EXAMPLE):
                    formatter.write(f"  {part.removeprefix(_EXAMPLE)}\n")

    def _paragraphs(self) -> list[str]:
        return cleandoc(self.help or "").split("\n\n")


_EXAMPLE = "Example: "


class Commands(TyperGroup):
    """The commands of this package, and those that other installed projects add (entry points `steelyard.commands`)."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Remember what was typed: errors name settings as it does."""
        ctx.meta[_TYPED] = tuple(args)
        return list(super().parse_args(ctx, args))

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all names, those of other projects last."""
        return [*super().list_commands(ctx), *sorted(_installed())]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by heading."""
        sections: dict[str, list[Any]] = {heading: [] for heading in (TRAIN, USE, LABELS, OTHER)}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            sections[getattr(command, "rich_help_panel", None) or OTHER].append(command)
        width = max(len(command.name) for commands in sections.values() for command in commands)
        for heading, commands in sections.items():
            with formatter.section(heading):
                rows = [(c.name.ljust(width), c.get_short_help_str(formatter.width - width - 6)) for c in commands]
                formatter.write_dl(rows)

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
            command = None if ctx.invoked_subcommand is None else self.get_command(ctx, ctx.invoked_subcommand)
            if command is not None:
                options = [parameter for parameter in command.params if parameter.opts[0].startswith("-")]
                if (sentence := in_options(str(error), options, ctx.meta[_TYPED])) != str(error):
                    error.args = (sentence,)
            raise


_TYPED = "steelyard.typed"
app = typer.Typer(
    cls=Commands,
    help="Multi-label learning on real data: long tails, missing labels, probabilities that mean what they say.\n\n"
    "Start with: steelyard inspect DATA, then steelyard train --data DATA. Every command has --help.",
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def command(heading: str, name: str | None = None) -> Callable[[_F], _F]:
    """Return the decorator of a command, listed under `heading`."""
    register = app.command(name, cls=Command, rich_help_panel=heading)
    return lambda function: register(_named(function))


def _named(function: _F) -> _F:
    """Name every option with a value after its parameter: typer 0.27 derives --DATA from the metavar DATA."""
    for name, parameter in signature(function).parameters.items():
        info = parameter.default
        if isinstance(info, OptionInfo) and not info.param_decls and not isinstance(info.default, bool):
            info.param_decls = (f"--{name.replace('_', '-')}",)
    return function


@app.callback()
def options(
    ctx: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version and exit.")
) -> None:
    """Steelyard trains multi-label classifiers whose probabilities can be used."""
    if version:
        from steelyard import __version__

        typer.echo(__version__)
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def main() -> None:
    """Run the command line: exit 0 done, 2 the user's mistake, 130 Ctrl-C or SIGTERM (one line on stderr), 1 ours."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal or pipe that lacks a character shows another one
    try:
        with stoppable() as stop:
            try:
                app(standalone_mode=False)
                return
            except BaseException as problem:
                stop.deafen()
                lost = stop.asked and not isinstance(problem, SystemExit | Interrupted)  # an imported library hid it
                code = _report_problem(Interrupted("stopped") if lost else problem)
    except KeyboardInterrupt:  # in the moment before it is listened for
        code = _report_problem(Interrupted("stopped"))
    finally:
        atexit.register(Stop().deafen)  # the outcome is printed: a signal while Python shuts down does not change it
    sys.exit(code)


def _report_problem(problem: BaseException) -> int:
    """Print in one line on stderr why a command ended, and return the exit code; an error of ours is raised."""
    if isinstance(problem, SystemExit):
        return int(problem.code or 0)
    code = 2
    if isinstance(problem, UsageProblem):
        context = getattr(problem, "ctx", None)  # of the command, where one was typed
        name = "" if context is None or context.parent is None else f"{context.info_name} "
        words = _about_value(problem) or _as_setting(problem) or problem.format_message()
        sentence = f"{words} (see steelyard {name}--help)"
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


def _about_value(problem: Any) -> str:
    """Return a sentence where an option takes a number and got none; typer words it differently in every version."""
    option, context = getattr(problem, "param", None), getattr(problem, "ctx", None)
    if type(problem) is not typer.BadParameter or option is None or context is None:
        return ""
    hint = get_type_hints(context.command.callback).get(option.name)
    kind = next((words for one, words in _NUMBERS.items() if one in (hint, *get_args(hint))), "")
    return f"{option.opts[0]} takes {kind}: give one" if kind else ""


def _as_setting(problem: Any) -> str:
    """Return a sentence where a setting of `train` was typed as an option, such as --epochs."""
    option, context = str(getattr(problem, "option_name", "")), getattr(problem, "ctx", None)
    if not option or context is None or context.info_name != "train":
        return ""
    from steelyard.config.settings import Config

    key = option.lstrip("-").replace("-", "_")
    names = [f"{section}.{key}" for section, settings in vars(Config()).items() if hasattr(settings, key)]
    return f"there is no option {option}: write --set {names[0]}=VALUE" if names else ""


def in_options(sentence: str, parameters: Iterable[Any], typed: Sequence[str]) -> str:
    """Return an error in the words of the command line: options instead of settings and of a function's arguments.

    `data.images`, `batch_size is 0` and `form='long'` become --images, --batch-size is 0 and --form long, where the
    command has such an option. A setting that was typed as one stays, and so do all where a TOML file was given.

    Args:
        sentence: the error.
        parameters: the options of the command.
        typed: the words after `steelyard`.
    """
    options: dict[str | None, str] = {parameter.name: parameter.opts[0] for parameter in parameters}

    def setting(match: re.Match[str]) -> str:
        section, key = match.groups()
        option = options.get(SETTINGS.get(match[0], key if section == "data" else ""))
        as_setting = match[0] == "data.validation" and "--holdout" not in typed  # the default is not --holdout
        if option is None or as_setting or any(match[0] in word or word.endswith(".toml") for word in typed):
            return match[0]
        return str(option)

    def argument(match: re.Match[str]) -> str:
        return f"{options[match[1]]} {match[2] or ''}".rstrip() if match[1] in options else match[0]

    sentence = re.sub(r"\b(data|train|evaluate)\.([a-z_]+)(?![/\w]|\.\w)", setting, sentence)
    sentence = re.sub(r"^([a-z_]+)(?= is )", lambda match: options.get(match[1], match[0]), sentence)
    return re.sub(r"(?<=\s)([a-z_]+)=(?:'([^']*)')?(?=[\s,.:;]|$)", argument, sentence)


SETTINGS = {
    "data.path": "data",
    "data.path_column": "path",
    "data.validation": "holdout",
    "data.audit": "audit_sample",
    "train.out": "out",
    "train.budget": "budget",
    "train.single": "single",
    "evaluate.calibration": "kind",
    "evaluate.thresholds": "thresholds",
    "evaluate.target": "target",
    "evaluate.false_positive_cost": "false_positive_cost",
    "evaluate.false_negative_cost": "false_negative_cost",
    "evaluate.deploy_prior": "deploy_prior",
    "evaluate.positives_per_item": "positives_per_item",
}
"""Settings that options set, by the parameter of the option; others of [data] have the name of theirs."""
_NUMBERS = {int: "a whole number", float: "a number"}


@contextmanager
def last_words() -> Iterator[None]:
    """End a failing process of several at once: torch would wait for the others at exit, perhaps forever."""
    try:
        yield
    except BaseException as problem:
        if os.environ.get("WORLD_SIZE", "1") == "1":
            raise
        code = 1
        try:
            code = _report_problem(problem)
        except BaseException:
            traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
