"""What --help says: grouped, complete, in sentences; and errors in the words of the command line."""

from __future__ import annotations

import re
from inspect import signature
from typing import Any, get_args

import pytest
import typer
from typer.main import get_command
from typer.models import OptionInfo

import errors
import steelyard
from steelyard.annotation import next_cells
from steelyard.calibrate.guarantees import Guarantee
from steelyard.cli import app
from steelyard.cli.group import SETTINGS, UsageProblem, in_options
from steelyard.config.sections import Calibration, Thresholds
from steelyard.config.settings import Config
from steelyard.data.opening import FORMATS
from steelyard.data.tables.guess import Form
from steelyard.predict import files
from steelyard.run.predict import ENGINES, RUNTIMES
from typed import done, typed

COMMANDS = dict(get_command(app).commands)  # type: ignore[attr-defined]
OPTIONS = {(name, p.name): p for name, command in COMMANDS.items() for p in command.params if p.name != "help"}
CHOICES = {
    ("inspect", "form"): get_args(Form),
    ("calibrate", "kind"): get_args(Calibration),
    ("calibrate", "thresholds"): get_args(Thresholds),
    ("calibrate", "guarantee"): get_args(Guarantee),
    ("predict", "form"): get_args(files.Form),
    ("predict", "runtime"): RUNTIMES,
    ("predict", "engine"): ENGINES,
    ("next", "by"): get_args(next_cells.By),
    ("next", "unit"): ("cell", "item"),
}


def test_no_option_with_a_value_leaves_its_name_to_typer() -> None:
    """Typer 0.27 made --DATA of the parameter `data` with the metavar DATA."""
    for registered in app.registered_commands:
        for name, parameter in signature(registered.callback).parameters.items():  # type: ignore[arg-type]
            info = parameter.default
            if isinstance(info, OptionInfo) and not isinstance(info.default, bool):
                assert info.param_decls, (registered.name, name)
    assert all(name == name.lower() for option in OPTIONS.values() for name in option.opts)


def test_every_mistake_of_typer_has_the_root_that_the_command_line_catches() -> None:
    """Typer 0.26 had its own copy of click's exceptions, and no public root for them."""
    assert issubclass(UsageProblem, Exception)
    assert issubclass(typer.BadParameter, UsageProblem)
    with pytest.raises(UsageProblem):
        app(["train", "--nonsense"], standalone_mode=False)


def test_the_list_of_commands_is_grouped_and_whole() -> None:
    said = done("--help").out
    headings = re.findall(r"^(\S.*):$", said, re.M)
    assert headings == ["Options", "Train and measure", "Use a run", "Improve the labels", "Other commands"]
    lines = [line for name in COMMANDS for line in said.splitlines() if line.startswith(f"  {name} ")]
    assert len(lines) == len(COMMANDS)
    assert [line for line in lines if not line.endswith(".")] == []
    assert [line for line in said.splitlines()[1:] if line.endswith("...")] == []  # of other projects too: none is cut
    assert done("-h").out == said == done().out


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_of_a_command(name: str) -> None:
    said = done(name, "--help").out
    assert done(name, "-h").out == said
    head, examples = said.split("\nExamples:\n")
    lines = examples.splitlines()
    assert lines
    assert [line for line in lines if "steelyard " not in line] == []  # each in one line, to be copied
    assert [line for line in head.splitlines() if len(line) > 80] == []
    for parameter in COMMANDS[name].params:
        if parameter.param_type_name == "option":
            assert parameter.opts[0] in head
    assert typed(name, "--no-such-option").line.endswith(f"(see steelyard {name} --help)")


@pytest.mark.parametrize(("name", "key"), sorted(OPTIONS))
def test_an_option_is_explained_in_a_sentence(name: str, key: str) -> None:
    option: Any = OPTIONS[name, key]
    assert re.fullmatch(r"[A-Z0-9][^\n]*[.…]", option.help), option.help
    assert option.is_flag if hasattr(option, "is_flag") and option.metavar is None else option.metavar


@pytest.mark.parametrize(("name", "key"), sorted(CHOICES))
def test_every_choice_is_listed(name: str, key: str) -> None:
    option: Any = OPTIONS[name, key]
    assert tuple(option.metavar.split("|")) == tuple(CHOICES[name, key])


def test_every_format_is_listed() -> None:
    listed = re.findall(r"\w+", OPTIONS["inspect", "format"].help.removeprefix("Kind of data: "))
    assert [word for word in listed if word != "or"] == list(FORMATS)


def test_the_version() -> None:
    assert done("--version").out == done("version").out == f"{steelyard.__version__}\n"


@pytest.mark.parametrize(
    ("name", "typed_words", "sentence", "expected"),
    [
        ("train", "--images x", "data.images, or data.features", "--images, or --features"),
        ("train", "", "see data.images.", "see --images."),
        ("train", "--set data.images=x", "data.images is 'x'", "data.images is 'x'"),
        ("train", "mine.toml", "data.images is 'x'", "data.images is 'x'"),
        ("train", "--holdout 0.9", "data.validation is 0.9", "--holdout is 0.9"),
        ("train", "", "data.validation is 0.1", "data.validation is 0.1"),
        ("train", "", "train.epochs is 0", "train.epochs is 0"),
        ("train", "", "data.images.zip is no folder", "data.images.zip is no folder"),
        ("calibrate", "", "evaluate.target is 2.0", "--target is 2.0"),
        ("evaluate", "", "evaluate.target is 2.0", "evaluate.target is 2.0"),
        ("predict", "", "batch_size is 0: give 1", "--batch-size is 0: give 1"),
        ("predict", "", "data is 0", "data is 0"),
        ("inspect", "", "or give form='long' or labels=, say", "or give --form long or --labels, say"),
    ],
)  # fmt: skip
def test_errors_name_what_was_typed(name: str, typed_words: str, sentence: str, expected: str) -> None:
    options = [p for p in COMMANDS[name].params if p.opts[0].startswith("-")]
    assert in_options(sentence, options, [name, *typed_words.split()]) == expected


def test_settings_that_options_set_exist() -> None:
    config, names = Config().as_dict(), {key for _, key in OPTIONS}
    for setting, key in SETTINGS.items():
        section, field = setting.split(".")
        assert field in config[section]
        assert key in names


def test_messages_of_errors_are_one_sentence_with_a_remedy() -> None:
    listed = list(errors.messages(errors.ROOT / "src" / "steelyard"))
    assert len(listed) > 800
    ours = [m for m in listed if m.place.split("/")[2] in ("run", "cli", "report", "demo")]
    assert [m.place for m in ours if m.broken()] == []
    assert errors.Message("a.py:1", "ValueError", "it is\nwrong.").broken() == ["period", "lines", "remedy"]
