"""Options that several commands share: how labelled data is read, and the headings they stand under."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

READING = "How the data is read (guessed where not given)"
DATA, OUTPUT, CALIBRATION, SETTINGS = "Data", "Output", "Calibration and thresholds", "Recipe and settings"
"""Headings of options."""


def _text(metavar: str, help: str) -> Any:
    return Annotated[str | None, typer.Option(help=help, metavar=metavar, rich_help_panel=READING)]


def _texts(metavar: str, help: str) -> Any:
    return Annotated[list[str] | None, typer.Option(help=help, metavar=metavar, rich_help_panel=READING)]


_OPTIONS: dict[str, Any] = {
    "format": _text(
        "NAME",
        "Kind of data: table, arff, npz, svmlight, labels, voc, coco, mnist, multi_mnist, cifar10, cifar100, nus_wide, "
        "cub, open_images, wider_attribute, vispr, vqa, vqa_regions, voc_mlt or coco_mlt.",
    ),
    "year": Annotated[
        int | None,
        typer.Option(metavar="YEAR", help="Year of VOC or COCO. By default the latest.", rich_help_panel=READING),
    ],
    "form": _text("wide|list|long", "One column per label, a list of labels per row, or one row per item and label."),
    "id": _text("COLUMN", "Column that names the items."),
    "path": _text("COLUMN", "Column with the image files."),
    "labels": _texts("COLUMN", "A column that holds labels; may be repeated."),
    "value": _text("COLUMN", "Column with the value of the label, in the long form."),
    "features": _texts("COLUMN", "A column of numbers or categories that is an input; may be repeated."),
    "text": _text("COLUMN", "Column whose text is the input."),
    "separator": _text("TEXT", "Separator between the labels of one cell; none for one label per cell."),
    "absent": _text("negative|unknown", "What a label counts as where the table does not mention it."),
    "minus_one": _text("unknown|negative", "What -1 stands for. By default unknown."),
    "names": _text("FILE", "Names of labels that the data gives as ids: CSV (id,name) or JSON."),
    "split_column": _text("COLUMN", "Column that says train, val or test."),
    "group": _text("COLUMN", "Column of groups: items of one group stay together in every split."),
    "delimiter": _text("CHARACTER", "Delimiter of a CSV file."),
    "encoding": _text("NAME", "Encoding of a CSV file. By default utf-8."),
    "skip_missing": Annotated[
        bool,
        typer.Option(
            "--skip-missing",
            help="Leave out items whose images are missing or cannot be read.",
            rich_help_panel=READING,
        ),
    ],
}


def reading_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add these options to a command; those that are given arrive as `reading`, a dict of settings of [data]."""
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "reading"]
    shared = [
        inspect.Parameter(name, own[0].kind, default=False if name == "skip_missing" else None, annotation=annotation)
        for name, annotation in _OPTIONS.items()
    ]

    @functools.wraps(command)
    def with_reading(**typed: Any) -> None:
        given = {name: value for name in _OPTIONS if (value := typed.pop(name)) not in (None, [])}
        if "path" in given:
            given["path_column"] = given.pop("path")
        if given.pop("skip_missing"):
            given["on_bad_image"] = "skip"
        command(**typed, reading=given)

    with_reading.__signature__ = signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
    with_reading.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *shared)}
    return with_reading
