"""The options of the command line that say how data is read, the same in every command that opens labelled data."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer


def _text(help: str, metavar: str | None = None) -> Any:
    return Annotated[str | None, typer.Option(help=help, metavar=metavar)]


def _texts(help: str) -> Any:
    return Annotated[list[str] | None, typer.Option(help=help)]


_OPTIONS: dict[str, Any] = {
    "format": _text("What the data is: table, voc, multi_mnist, … Guessed if not given."),
    "year": Annotated[int | None, typer.Option(help="Of VOC and COCO. By default the last one that is there.")],
    "form": _text("Of a manifest: wide, list or long. Guessed if not given."),
    "id": _text("The column of a manifest that names the items. Guessed if not given."),
    "path": _text("The column of a manifest with the image files. Guessed if not given."),
    "labels": _texts("A column of a manifest that holds labels; may be repeated. Guessed."),
    "value": _text("The column of a manifest with the value of the label. Guessed."),
    "features": _texts("A column of a manifest that is an input, texts as categories; may be repeated. Guessed."),
    "text": _text("The column of a manifest whose text is the input. Guessed if not given.", "COLUMN"),
    "separator": _text("What separates labels in one cell of a manifest, none for one label. Guessed."),
    "absent": _text("What a manifest does not mention is negative or unknown."),
    "minus_one": _text("What -1 stands for: unknown (the default) or negative."),
    "names": _text("Names of labels that the data gives as ids: CSV (id,name) or JSON.", "FILE"),
    "split_column": _text("The column of a manifest that says train, val, … Guessed if not given."),
    "group": _text("Items with the same value there stay together in every split.", "COLUMN"),
    "delimiter": _text("Of a CSV file. Guessed if not given."),
    "encoding": _text("Of a CSV file. By default utf-8."),
    "skip_missing": Annotated[
        bool, typer.Option("--skip-missing", help="Leave out items whose images are missing or cannot be read.")
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
