"""The commands audit and next; what they need is imported when they are run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from steelyard.cli.group import app
from steelyard.cli.options import reading_options


@app.command()
@reading_options
def audit(
    source: str = typer.Argument(metavar="RUN|DATA", help="The folder of a finished run, or labelled data."),
    scores: str | None = typer.Option(
        None, metavar="FILE", help="Of DATA: out-of-fold probabilities of any model, .csv (id, labels) or .npz."
    ),
    split: str | None = typer.Option(None, help="Of DATA: the part to read. By default the training part."),
    images: str | None = typer.Option(None, help="Of DATA: the folder of a manifest's images."),
    out: str | None = typer.Option(None, metavar="FILE", help="Write the given labels that may be wrong, as CSV."),
    present: str | None = typer.Option(
        None, metavar="FILE", help="Write the unknown labels that are probably present, as CSV."
    ),
    limit: int = typer.Option(10_000, help="Cells of each file, at most."),
    json: bool = typer.Option(False, "--json", help="Print everything as JSON."),
    *,
    reading: dict[str, Any],
) -> None:
    """Find labels that are probably wrong, and unknown ones that are probably present.

    Example: steelyard audit runs/photos --out wrong.csv

    Example: steelyard audit photos/labels.csv --scores out-of-fold.csv
    """
    from steelyard.annotation.command import show_audit

    where = {name: value for name, value in (("split", split), ("images", images)) if value is not None}
    show_audit(source, scores, {**where, **reading}, out, present, limit, as_json=json)


@app.command()
@reading_options
def next(
    run: str = typer.Argument(metavar="RUN", help="The folder of a finished run."),
    data: str = typer.Argument(metavar="DATA", help="Items with unknown labels, such as the training data."),
    budget: float = typer.Option(help="What may be spent: the number of labels, where each costs 1."),
    by: str = typer.Option("gain", help="gain; or for comparison uncertainty or random."),
    unit: str = typer.Option("cell", help="cell, or item: all unknown labels of an item at once."),
    item_cost: float = typer.Option(0.0, help="Of opening an item, once."),
    cell_cost: Annotated[
        list[str] | None,
        typer.Option(metavar="N|LABEL=N", help="Of a question, for all labels or one; may be repeated. By default 1."),
    ] = None,
    quota: Annotated[
        list[str] | None,
        typer.Option(metavar="N|LABEL=N", help="Questions about each label, or about one, at most; may be repeated."),
    ] = None,
    spread: bool = typer.Option(False, "--spread", help="Spread the choice over different items, by their features."),
    corrections: str | None = typer.Option(
        None, metavar="FILE", help="Answers so far, about DATA: what they settle is not asked again."
    ),
    unlabelled: bool = typer.Option(False, "--unlabelled", help="DATA has no labels: all are unknown."),
    split: str | None = typer.Option(None, help="The part to read: train, val, …"),
    images: str | None = typer.Option(None, help="The folder of a manifest's images. By default as in training."),
    out: str | None = typer.Option(None, metavar="FILE", help="Write the queue as CSV, for review and annotation."),
    seed: int = typer.Option(0, help="Of random and --spread."),
    json: bool = typer.Option(False, "--json", help="Print the queue as JSON."),
    *,
    reading: dict[str, Any],
) -> None:
    """Choose which unknown labels to annotate next.

    Example: steelyard next runs/photos photos/labels.csv --budget 500 --out queue.csv
    """
    from steelyard.annotation.command import show_next
    from steelyard.run.command import Other

    options = dict(budget=budget, by=by, unit=unit, item_cost=item_cost, seed=seed)
    options |= dict(cell_cost=cell_cost or [], quota=quota or [])
    show_next(run, Other(data, split, images, reading), options, corrections, unlabelled, spread, out, as_json=json)
