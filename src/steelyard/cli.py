"""What a person types: `steelyard COMMAND`."""

from __future__ import annotations

import io
import sys
from json import dumps
from typing import Annotated, Any

import typer

try:
    from typer import TyperException as UsageProblem
except ImportError:  # typer before 0.26 rests on click
    from click import ClickException as UsageProblem  # type: ignore[import-not-found,no-redef]

app = typer.Typer(
    help="Multi-label learning on real data: long tails, missing labels, probabilities that mean what they say.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def options() -> None:
    """Steelyard trains multi-label classifiers whose probabilities can be used."""


@app.command()
def version() -> None:
    """Print the version.

    Example: steelyard version
    """
    from steelyard import __version__

    typer.echo(__version__)


@app.command()
def demo(
    seed: int = typer.Option(0, help="Of the data, the holes in its labels and the networks."),
    json: bool = typer.Option(False, "--json", help="Print the scores as JSON."),
) -> None:
    """Compare six objectives on pairs of digits with holes in their labels.

    Example: steelyard demo
    """
    from steelyard.demo import show

    show(seed, as_json=json)


@app.command()
def inspect(
    data: str = typer.Argument(help="A manifest (CSV, Parquet), .arff or .npz file, or the folder of a data set."),
    format: str | None = typer.Option(None, help="What DATA is: table, voc, multi_mnist, … Guessed if not given."),
    split: str | None = typer.Option(None, help="The part to read: train, val, … By default the training part."),
    year: int | None = typer.Option(None, help="Of VOC and COCO. By default the last one that is there."),
    images: str | None = typer.Option(None, help="The folder of a manifest's images. Looked for if not given."),
    form: str | None = typer.Option(None, help="Of a manifest: wide, list or long. Guessed if not given."),
    id: str | None = typer.Option(None, help="The column of a manifest that names the items. Guessed if not given."),
    path: str | None = typer.Option(None, help="The column of a manifest with the image files. Guessed if not given."),
    labels: Annotated[
        list[str] | None, typer.Option(help="A column of a manifest that holds labels; may be repeated. Guessed.")
    ] = None,
    value: str | None = typer.Option(None, help="The column of a manifest with the value of the label. Guessed."),
    features: Annotated[
        list[str] | None, typer.Option(help="A column of a manifest that is an input; may be repeated. Guessed.")
    ] = None,
    separator: str | None = typer.Option(None, help="What stands between labels in one cell of a manifest. Guessed."),
    absent: str | None = typer.Option(None, help="What a manifest does not mention is negative or unknown."),
    minus_one: str | None = typer.Option(None, help="What -1 stands for: unknown (the default) or negative."),
    delimiter: str | None = typer.Option(None, help="Of a CSV file. Guessed if not given."),
    encoding: str | None = typer.Option(None, help="Of a CSV file. By default utf-8."),
    deep: bool = typer.Option(False, "--deep", help="Compare images by the content of their files."),
    html: str | None = typer.Option(None, metavar="FILE", help="Write a page with plots to FILE."),
    json: bool = typer.Option(False, "--json", help="Print everything as JSON."),
) -> None:
    """Show what is in DATA: counts, imbalance, unknown labels, duplicates, and the recipe it calls for.

    Example: steelyard inspect photos/labels.csv --html labels.html
    """
    from rich.console import Console

    from steelyard.data.opening import open_data
    from steelyard.run import inspection, terminal, webpage

    if html is not None:
        webpage.check(html)
    said: dict[str, Any] = dict(
        year=year,
        form=form,
        id=id,
        path_column=path,
        labels=labels[0] if labels and len(labels) == 1 else labels or None,
        value=value,
        features=features or None,
        separator=separator,
        absent=absent,
        minus_one=minus_one,
        delimiter=delimiter,
        encoding=encoding,
    )
    with Console(stderr=True).status(f"reading {terminal.plain(data)} …"):
        opened = open_data(data, images, format, split, on_bad_image="skip", **said)
        found = inspection.inspect(opened, deep)
        if html is not None:
            webpage.write(found, html, f"What is in {data}")
    if json:
        print(dumps(found.as_dict(), allow_nan=False))
        return
    console = Console()
    terminal.show(found, console)
    if html is not None:
        console.print(f"\nA page with plots is in {terminal.plain(html)}.", markup=False)


def main() -> None:
    """Run the command line: exit 0 done, 2 the user's mistake (one line on stderr), 1 ours."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal or pipe that lacks a character shows another
    try:
        app(standalone_mode=False)
    except UsageProblem as problem:
        print(f"steelyard: {problem.format_message()} (see steelyard --help)", file=sys.stderr)
        sys.exit(2)
    except ValueError as mistake:
        print(f"steelyard: {mistake}", file=sys.stderr)
        sys.exit(2)
    except OSError as problem:
        what = f"{problem.filename}: {problem.strerror}" if problem.filename else problem
        print(f"steelyard: {what}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("steelyard: stopped", file=sys.stderr)
        sys.exit(130)
