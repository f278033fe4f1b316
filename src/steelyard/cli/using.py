"""The commands that use a finished run: predict, search, serve, export."""

from __future__ import annotations

from typing import Any

import typer

from steelyard.cli.group import USE, command
from steelyard.cli.options import DATA, OUTPUT

_RUN = typer.Argument(metavar="RUN", help="Folder of a finished run.")
_INDEX, _MODEL = "Search index", "How the model runs"


@command(USE)
def predict(
    run: str = _RUN,
    data: str = typer.Argument(
        metavar="DATA", help="Images or features: a folder, a file, a table, or - for paths on the standard input."
    ),
    out: str | None = typer.Option(
        None,
        metavar="FILE",
        help="A .csv, .parquet or .jsonl file. By default CSV on the standard output.",
        rich_help_panel=OUTPUT,
    ),
    index: str | None = typer.Option(
        None,
        metavar="DIR",
        help="Add the items to this search index, such as RUN/index; items with the same id are replaced.",
        rich_help_panel=_INDEX,
    ),
    overwrite: bool = typer.Option(False, "--overwrite", help="Empty the index first.", rich_help_panel=_INDEX),
    images: str | None = typer.Option(
        None, metavar="DIR", help="Folder of the table's images. Looked for if not given.", rich_help_panel=DATA
    ),
    form: str = typer.Option(
        "wide",
        metavar="wide|long",
        help="One column per label, or one row per label that is present.",
        rich_help_panel=OUTPUT,
    ),
    top: int = typer.Option(
        0,
        metavar="K",
        help="Write the K likeliest labels of each item, with --form long or very many labels.",
        rich_help_panel=OUTPUT,
    ),
    raw_ids: bool = typer.Option(
        False,
        "--raw-ids",
        help="Do not put a ' before ids that begin with =, +, - or @, which spreadsheets take for formulas.",
        rich_help_panel=OUTPUT,
    ),
    batch_size: int = typer.Option(256, metavar="N", help="Items per batch.", rich_help_panel=_MODEL),
    skip_bad: bool = typer.Option(
        False, "--skip-bad", help="Leave out images that cannot be read, and list them.", rich_help_panel=DATA
    ),
    device: str = typer.Option(
        "auto", metavar="auto|cpu|cuda|cuda:N", help="Where the model runs.", rich_help_panel=_MODEL
    ),
    runtime: str = typer.Option(
        "torch",
        metavar="torch|onnx",
        help="PyTorch, or the run's model.onnx, which steelyard export writes.",
        rich_help_panel=_MODEL,
    ),
    engine: str = typer.Option(
        "local",
        metavar="local|spark",
        help="This machine, or a Spark cluster: Parquet in, a folder of Parquet out.",
        rich_help_panel=_MODEL,
    ),
    embeddings: bool = typer.Option(
        False,
        "--embeddings",
        help="Keep an embedding of each item in the index, for search --like.",
        rich_help_panel=_INDEX,
    ),
) -> None:
    """Write probabilities and decisions for new items.

    Example: steelyard predict runs/photos new-photos/ --out predictions.csv

    Example: steelyard predict runs/photos new-photos/ --index runs/photos/index

    Example: steelyard predict runs/photos new-photos/ --runtime onnx --out predictions.csv

    Example: steelyard predict runs/photos items.parquet --engine spark --out predictions
    """
    from steelyard.run import predict

    given: list[Any] = [run, data, out, index, overwrite, images, form, top, raw_ids, batch_size]
    given += [skip_bad, device, runtime, engine, embeddings]
    predict.predict(predict.PredictRequest(*given))


@command(USE)
def search(
    run: str = typer.Argument(metavar="RUN", help="Folder of a run or of an index."),
    query: str = typer.Argument(
        "", metavar="QUERY", help='Labels to look for: "dog & person & ~car", "dog person -car", "dog > 0.8".'
    ),
    like: str | None = typer.Option(
        None, "--like", metavar="ID", help="Order the items that fit by their likeness to this one."
    ),
    k: int = typer.Option(20, "-k", metavar="N", help="Number of items."),
    open: str | None = typer.Option(
        None,
        "--open",
        metavar="FILE",
        help="Write the images of the first 500 to one .png or .html file.",
        rich_help_panel=OUTPUT,
    ),
    explain: bool = typer.Option(False, "--explain", help="Show how each score was computed.", rich_help_panel=OUTPUT),
    engine: str = typer.Option(
        "duckdb", metavar="duckdb|spark", help="DuckDB on this machine, or a Spark cluster for very large indexes."
    ),
    json: bool = typer.Option(False, "--json", help="Print the hits as JSON.", rich_help_panel=OUTPUT),
) -> None:
    """Find items by the labels they should and should not have.

    Items are sorted by the probability that they fit the query.

    Example: steelyard search runs/photos "dog & person & ~car" -k 10 --open dogs.html

    Example: steelyard search runs/photos "dog & ~car" --like 000123.jpg

    Example: steelyard search runs/photos "dog > 0.8" --explain
    """
    from steelyard.run.search import find
    from steelyard.search import QueryError

    try:
        find(run, query, k, json, open, explain, engine, like)
    except QueryError as error:  # its caret needs three lines, and there is one
        marked = f"{error.text[: error.at]}⟨here⟩{error.text[error.at :]}"
        raise ValueError(f"{error.what}; in the query: {marked}") from None


@command(USE)
def serve(
    run: str = _RUN,
    host: str = typer.Option(
        "127.0.0.1",
        metavar="ADDRESS",
        help="Address to listen on; other than loopback, everyone in the network sees it.",
    ),
    port: int = typer.Option(8000, metavar="N", help="Port to listen on; 0 takes a free one."),
    index: str | None = typer.Option(None, metavar="DIR", help="Search index. By default the run's own."),
    images: str | None = typer.Option(
        None, metavar="DIR", help="Only serve images inside this folder. By default the one named in training."
    ),
    review: str | None = typer.Option(
        None, metavar="FILE", help="Ask people the questions of this queue, which audit or next wrote."
    ),
    answers: str | None = typer.Option(
        None, metavar="FILE", help="Append their answers to this CSV file. By default beside the queue."
    ),
) -> None:
    """Open a run in the browser: search, labels, review.

    Example: steelyard serve runs/photos

    Example: steelyard serve runs/photos --review queue.csv --answers answers.csv
    """
    from steelyard.serve import serve as show

    show(run, host, port, index=index, images=images, review=review, answers=answers)


@command(USE)
def export(
    run: str = _RUN,
    out: str | None = typer.Option(None, metavar="FILE", help="File to write. By default RUN/model.onnx."),
    check: bool = typer.Option(
        True, help="Compare the file's probabilities with the model's through onnxruntime before it is kept."
    ),
) -> None:
    """Write a run as ONNX whose outputs are probabilities.

    Example: steelyard export runs/photos --out photos.onnx
    """
    from steelyard.export.onnx import export_run

    written = export_run(run, out, check)
    typer.echo(f"Written: {written.path} ({written.bytes / 1e6:.1f} MB)")
    if written.checked is not None:
        typer.echo(f"Through onnxruntime its probabilities differ by {written.checked.probability:.2g} at most.")
