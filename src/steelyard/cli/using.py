"""The commands that use a finished run: predict, search, serve, export."""

from __future__ import annotations

from typing import Any

import typer

from steelyard.cli.group import app


@app.command()
def predict(
    run: str = typer.Argument(metavar="RUN", help="The folder of a finished run."),
    data: str = typer.Argument(
        metavar="DATA", help="Images or features: a folder, a file, a manifest, or - for paths on stdin."
    ),
    out: str | None = typer.Option(
        None, metavar="FILE", help="A .csv, .parquet or .jsonl file. By default CSV to stdout."
    ),
    index: str | None = typer.Option(
        None, metavar="DIR", help="Keep the items for search in this index, such as RUN/index; same ids are replaced."
    ),
    overwrite: bool = typer.Option(False, "--overwrite", help="Drop what is in the index first."),
    images: str | None = typer.Option(None, help="The folder of a manifest's images. Looked for if not given."),
    form: str = typer.Option("wide", help="wide: a column for each label; long: a row for each label that is present."),
    top: int = typer.Option(0, help="Of the long form, or with very many labels: the K likeliest labels instead."),
    raw_ids: bool = typer.Option(
        False, "--raw-ids", help="In CSV, do not put a ' before ids that begin with =, +, - or @ (formulas)."
    ),
    batch_size: int = typer.Option(256, help="Items at a time."),
    skip_bad: bool = typer.Option(False, "--skip-bad", help="Leave out images that cannot be read, and list them."),
    device: str = typer.Option("auto", help="auto, cpu, cuda or cuda:N."),
    runtime: str = typer.Option("torch", help="torch, or onnx: the run's model.onnx, which steelyard export writes."),
    engine: str = typer.Option("local", help="local, or spark: Parquet in, a folder of Parquet out."),
    embeddings: bool = typer.Option(
        False, "--embeddings", help="Keep what the model sees of each item in the index, for search --like."
    ),
) -> None:
    """Give probabilities and decisions for new items.

    Example: steelyard predict runs/photos new-photos/ --out predictions.csv

    Example: steelyard predict runs/photos new-photos/ --index runs/photos/index

    Example: steelyard predict runs/photos new-photos/ --runtime onnx --out predictions.csv

    Example: steelyard predict runs/photos items.parquet --engine spark --out predictions
    """
    from steelyard.run import predict

    given: list[Any] = [run, data, out, index, overwrite, images, form, top, raw_ids, batch_size]
    given += [skip_bad, device, runtime, engine, embeddings]
    predict.predict(predict.PredictRequest(*given))


@app.command()
def search(
    run: str = typer.Argument(metavar="RUN", help="The folder of a run, or of an index."),
    query: str = typer.Argument(
        "", metavar="QUERY", help='What to look for: "dog & person & ~car", "dog person -car", "dog > 0.8".'
    ),
    like: str | None = typer.Option(None, "--like", metavar="ID", help="Items like this one, of those that fit."),
    k: int = typer.Option(20, "-k", help="How many items."),
    open: str | None = typer.Option(
        None, "--open", metavar="FILE", help="Write a contact sheet of the first 500, .png or .html."
    ),
    explain: bool = typer.Option(False, "--explain", help="Say where each score came from."),
    engine: str = typer.Option("duckdb", help="duckdb, or spark for what outgrows a machine."),
    json: bool = typer.Option(False, "--json", help="Print the hits as JSON."),
) -> None:
    """Find items by wanted and unwanted labels, the likeliest first.

    Example: steelyard search runs/photos "dog & person & ~car" -k 10 --open dogs.html

    Example: steelyard search runs/photos "dog & ~car" --like 000123.jpg
    """
    from steelyard.run.search import find
    from steelyard.search import QueryError

    try:
        find(run, query, k, json, open, explain, engine, like)
    except QueryError as error:  # its caret needs three lines, and there is one
        marked = f"{error.text[: error.at]}⟨here⟩{error.text[error.at :]}"
        raise ValueError(f"{error.what}; in the query: {marked}") from None


@app.command()
def serve(
    run: str = typer.Argument(metavar="RUN", help="The folder of a finished run."),
    host: str = typer.Option("127.0.0.1", help="The address to listen on; others than loopback show it to everyone."),
    port: int = typer.Option(8000, help="0 takes a free one."),
    index: str | None = typer.Option(None, metavar="DIR", help="Another index than the run's own."),
    images: str | None = typer.Option(
        None, metavar="DIR", help="Only show images inside this folder. By default the one named in training."
    ),
    review: str | None = typer.Option(None, metavar="FILE", help="A queue of audit or next: ask people its questions."),
    answers: str | None = typer.Option(
        None, metavar="FILE", help="Of --review: the CSV that answers are appended to. By default beside the queue."
    ),
) -> None:
    """Show a run in a browser: search by labels, a page for every label, the data set, questions to answer.

    Example: steelyard serve runs/photos

    Example: steelyard serve runs/photos --review queue.csv --answers answers.csv
    """
    from steelyard.serve import serve as show

    show(run, host, port, index=index, images=images, review=review, answers=answers)


@app.command()
def export(
    run: str = typer.Argument(metavar="RUN", help="The folder of a finished run."),
    out: str | None = typer.Option(None, metavar="FILE", help="By default model.onnx in the run folder."),
    check: bool = typer.Option(True, help="Compare the file with the model through onnxruntime before it is kept."),
) -> None:
    """Write a run as ONNX whose outputs are calibrated probabilities.

    Example: steelyard export runs/photos --out photos.onnx
    """
    from steelyard.export.onnx import export_run

    written = export_run(run, out, check)
    typer.echo(f"Written: {written.path} ({written.bytes / 1e6:.1f} MB)")
    if written.checked is not None:
        typer.echo(f"Through onnxruntime its probabilities differ by {written.checked.probability:.2g} at most.")
