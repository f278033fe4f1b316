"""The options of the command line that say how data is read, the same in every command that opens labelled data."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

_TEXT = str | None
_TEXTS = list[str] | None

_OPTIONS: dict[str, Any] = {
    "format": Annotated[_TEXT, typer.Option(help="What the data is: table, voc, multi_mnist, … Guessed if not given.")],
    "year": Annotated[int | None, typer.Option(help="Of VOC and COCO. By default the last one that is there.")],
    "form": Annotated[_TEXT, typer.Option(help="Of a manifest: wide, list or long. Guessed if not given.")],
    "id": Annotated[_TEXT, typer.Option(help="The column of a manifest that names the items. Guessed if not given.")],
    "path": Annotated[_TEXT, typer.Option(help="The column of a manifest with the image files. Guessed if not given.")],
    "labels": Annotated[
        _TEXTS, typer.Option(help="A column of a manifest that holds labels; may be repeated. Guessed.")
    ],
    "value": Annotated[_TEXT, typer.Option(help="The column of a manifest with the value of the label. Guessed.")],
    "features": Annotated[
        _TEXTS, typer.Option(help="A column of a manifest that is an input; may be repeated. Guessed.")
    ],
    "separator": Annotated[
        _TEXT, typer.Option(help="What separates labels in one cell of a manifest, none for one label. Guessed.")
    ],
    "absent": Annotated[_TEXT, typer.Option(help="What a manifest does not mention is negative or unknown.")],
    "minus_one": Annotated[_TEXT, typer.Option(help="What -1 stands for: unknown (the default) or negative.")],
    "names": Annotated[
        _TEXT, typer.Option(metavar="FILE", help="Names of labels that the data gives as ids: CSV (id,name) or JSON.")
    ],
    "split_column": Annotated[
        _TEXT, typer.Option(help="The column of a manifest that says train, val, … Guessed if not given.")
    ],
    "group": Annotated[
        _TEXT, typer.Option(metavar="COLUMN", help="Items with the same value there stay together in every split.")
    ],
    "delimiter": Annotated[_TEXT, typer.Option(help="Of a CSV file. Guessed if not given.")],
    "encoding": Annotated[_TEXT, typer.Option(help="Of a CSV file. By default utf-8.")],
    "skip_missing": Annotated[
        bool, typer.Option("--skip-missing", help="Leave out items whose images are missing or cannot be read.")
    ],
}
_SETTING = {"path": "path_column"}


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
        given = {name: typed.pop(name) for name in _OPTIONS}
        command(**typed, reading=_settings(given))

    with_reading.__signature__ = signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
    with_reading.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *shared)}
    return with_reading


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    skips = given.pop("skip_missing")
    settings = {_SETTING.get(name, name): value for name, value in given.items() if value not in (None, [])}
    return settings | ({"on_bad_image": "skip"} if skips else {})
