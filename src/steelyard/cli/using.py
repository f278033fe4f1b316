"""The commands that use a finished run: predict, search, serve, export."""

from __future__ import annotations

from typing import Any

import typer

from steelyard.cli.group import USE, command
from steelyard.cli.options import DATA, OUTPUT, flag, option

_RUN = typer.Argument(metavar="RUN", help="Folder of a finished run.")
_INDEX, _MODEL = "Search index", "How the model runs"


@command(USE)
def predict(
    run: str = _RUN,
    data: str = typer.Argument(
        metavar="DATA", help="Images or features: a folder, a file, a table, or - for paths on the standard input."
    ),
    out: str | None = option("FILE", "A .csv, .parquet or .jsonl file. By default CSV on the standard output.", OUTPUT),
    index: str | None = option(
        "DIR", "Add the items to this search index, such as RUN/index; items with the same id are replaced.", _INDEX
    ),
    overwrite: bool = flag("--overwrite", "Empty the index first.", _INDEX),
    images: str | None = option("DIR", "Folder of the table's images. Looked for if not given.", DATA),
    form: str = option("wide|long", "One column per label, or one row per label that is present.", OUTPUT, "wide"),
    top: int = option(
        "K", "Write the K likeliest labels of each item, with --form long or very many labels.", OUTPUT, 0
    ),
    raw_ids: bool = flag(
        "--raw-ids",
        "Do not put a ' before ids that begin with =, +, - or @, which spreadsheets take for formulas.",
        OUTPUT,
    ),
    batch_size: int = option("N", "Items per batch.", _MODEL, 256),
    skip_bad: bool = flag("--skip-bad", "Leave out images that cannot be read, and list them.", DATA),
    device: str = option("auto|cpu|cuda|cuda:N", "Where the model runs.", _MODEL, "auto"),
    runtime: str = option(
        "torch|onnx", "PyTorch, or the run's model.onnx, which steelyard export writes.", _MODEL, "torch"
    ),
    engine: str = option(
        "local|spark", "This machine, or a Spark cluster: Parquet in, a folder of Parquet out.", _MODEL, "local"
    ),
    embeddings: bool = flag("--embeddings", "Keep an embedding of each item in the index, for search --like.", _INDEX),
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
    like: str | None = option("ID", "Order the items that fit by their likeness to this one.", None, None, "--like"),
    k: int = option("N", "Number of items.", None, 20, "-k"),
    open: str | None = option(
        "FILE", "Write the images of the first 500 to one .png or .html file.", OUTPUT, None, "--open"
    ),
    explain: bool = flag("--explain", "Show how each score was computed.", OUTPUT),
    engine: str = option(
        "duckdb|spark", "DuckDB on this machine, or a Spark cluster for very large indexes.", None, "duckdb"
    ),
    json: bool = flag("--json", "Print the hits as JSON.", OUTPUT),
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
    host: str = option(
        "ADDRESS", "Address to listen on; other than loopback, everyone in the network sees it.", None, "127.0.0.1"
    ),
    port: int = option("N", "Port to listen on; 0 takes a free one.", None, 8000),
    index: str | None = option("DIR", "Search index. By default the run's own."),
    images: str | None = option("DIR", "Only serve images inside this folder. By default the one named in training."),
    review: str | None = option("FILE", "Ask people the questions of this queue, which audit or next wrote."),
    answers: str | None = option("FILE", "Append their answers to this CSV file. By default beside the queue."),
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
    out: str | None = option("FILE", "File to write. By default RUN/model.onnx."),
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
