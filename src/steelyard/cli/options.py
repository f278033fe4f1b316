"""Options that several commands share: how labelled data is read, and the headings they stand under."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import typer

READING = "How the data is read (guessed where not given)"
DATA, OUTPUT, CALIBRATION, SETTINGS = "Data", "Output", "Calibration and thresholds", "Recipe and settings"
"""Headings of options."""


def option(metavar: str, help: str, heading: str | None = None, default: Any = None, *names: str) -> Any:
    """Return an option with a value; by default its name is that of the parameter."""
    return typer.Option(default, *names, metavar=metavar, help=help, rich_help_panel=heading)


def flag(name: str, help: str, heading: str | None = None) -> Any:
    """Return an option without a value."""
    return typer.Option(False, name, help=help, rich_help_panel=heading)


_TEXT, _TEXTS = str | None, list[str] | None
_OPTIONS: dict[str, tuple[Any, str, str]] = {
    "format": (
        _TEXT,
        "NAME",
        "Kind of data: table, arff, npz, svmlight, labels, voc, coco, mnist, multi_mnist, cifar10, cifar100, nus_wide, "
        "cub, open_images, wider_attribute, vispr, vqa, vqa_regions, voc_mlt or coco_mlt.",
    ),
    "year": (int | None, "YEAR", "Year of VOC or COCO. By default the latest."),
    "form": (_TEXT, "wide|list|long", "One column per label, a list of labels per row, or one row per item and label."),
    "id": (_TEXT, "COLUMN", "Column that names the items."),
    "path": (_TEXT, "COLUMN", "Column with the image files."),
    "labels": (_TEXTS, "COLUMN", "A column that holds labels; may be repeated."),
    "value": (_TEXT, "COLUMN", "Column with the value of the label, in the long form."),
    "features": (_TEXTS, "COLUMN", "A column of numbers or categories that is an input; may be repeated."),
    "text": (_TEXT, "COLUMN", "Column whose text is the input."),
    "separator": (_TEXT, "TEXT", "Separator between the labels of one cell; none for one label per cell."),
    "absent": (_TEXT, "negative|unknown", "What a label counts as where the table does not mention it."),
    "minus_one": (_TEXT, "unknown|negative", "What -1 stands for. By default unknown."),
    "names": (_TEXT, "FILE", "Names of labels that the data gives as ids: CSV (id,name) or JSON."),
    "split_column": (_TEXT, "COLUMN", "Column that says train, val or test."),
    "group": (_TEXT, "COLUMN", "Column of groups: items of one group stay together in every split."),
    "delimiter": (_TEXT, "CHARACTER", "Delimiter of a CSV file."),
    "encoding": (_TEXT, "NAME", "Encoding of a CSV file. By default utf-8."),
}
_SKIP = flag("--skip-missing", "Leave out items whose images are missing or cannot be read.", READING)


def reading_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add these options to a command; given ones are passed as `reading`, a dict of settings of [data]."""
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "reading"]
    options = {name: (option(metavar, help, READING), kind) for name, (kind, metavar, help) in _OPTIONS.items()}
    shared = [
        inspect.Parameter(name, own[0].kind, default=default, annotation=annotation)
        for name, (default, annotation) in {**options, "skip_missing": (_SKIP, bool)}.items()
    ]

    @functools.wraps(command)
    def with_reading(**typed: Any) -> None:
        given = {name: value for name in _OPTIONS if (value := typed.pop(name)) not in (None, [])}
        if "path" in given:
            given["path_column"] = given.pop("path")
        if typed.pop("skip_missing"):
            given["on_bad_image"] = "skip"
        command(**typed, reading=given)

    with_reading.__signature__ = signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
    with_reading.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *shared)}
    return with_reading
