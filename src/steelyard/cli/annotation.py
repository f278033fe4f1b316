"""The commands audit and next; what they need is imported when they are run."""

from __future__ import annotations

from typing import Any

import typer

from steelyard.cli.group import LABELS, command
from steelyard.cli.options import DATA, OUTPUT, reading_options

_COST = "Costs and choice"


@command(LABELS)
@reading_options
def audit(
    source: str = typer.Argument(metavar="RUN|DATA", help="Folder of a finished run, or labelled data."),
    scores: str | None = typer.Option(
        None,
        metavar="FILE",
        help="Out-of-fold probabilities for DATA by any model: .csv (id, labels) or .npz.",
        rich_help_panel=DATA,
    ),
    split: str | None = typer.Option(
        None, metavar="NAME", help="Part of DATA to read. By default the training part.", rich_help_panel=DATA
    ),
    images: str | None = typer.Option(None, metavar="DIR", help="Folder of the images of DATA.", rich_help_panel=DATA),
    out: str | None = typer.Option(
        None, metavar="FILE", help="Write the labels that are probably wrong, as CSV.", rich_help_panel=OUTPUT
    ),
    present: str | None = typer.Option(
        None,
        metavar="FILE",
        help="Write the unknown labels that are probably present, as CSV.",
        rich_help_panel=OUTPUT,
    ),
    limit: int = typer.Option(10_000, metavar="N", help="Most rows of each file.", rich_help_panel=OUTPUT),
    json: bool = typer.Option(False, "--json", help="Print everything as JSON.", rich_help_panel=OUTPUT),
    *,
    reading: dict[str, Any],
) -> None:
    """Find labels that are probably wrong or missing.

    Example: steelyard audit runs/photos --out wrong.csv

    Example: steelyard audit photos/labels.csv --scores out-of-fold.csv
    """
    from steelyard.annotation.command import show_audit

    where = {name: value for name, value in (("split", split), ("images", images)) if value is not None}
    show_audit(source, scores, {**where, **reading}, out, present, limit, as_json=json)


@command(LABELS)
@reading_options
def next(
    run: str = typer.Argument(metavar="RUN", help="Folder of a finished run."),
    data: str = typer.Argument(metavar="DATA", help="Items with unknown labels, such as the training data."),
    budget: float = typer.Option(
        metavar="NUMBER", help="What may be spent: the number of labels, where each costs 1.", rich_help_panel=_COST
    ),
    by: str = typer.Option(
        "gain",
        metavar="gain|uncertainty|random",
        help="Choose by the expected gain, or for comparison by uncertainty or at random.",
        rich_help_panel=_COST,
    ),
    unit: str = typer.Option(
        "cell",
        metavar="cell|item",
        help="Ask for single labels, or for all unknown labels of an item at once.",
        rich_help_panel=_COST,
    ),
    item_cost: float = typer.Option(0.0, metavar="NUMBER", help="Cost of opening an item.", rich_help_panel=_COST),
    cell_cost: float = typer.Option(1.0, metavar="NUMBER", help="Cost of one label of an item.", rich_help_panel=_COST),
    quota: int | None = typer.Option(
        None, metavar="N", help="Most questions about any one label.", rich_help_panel=_COST
    ),
    spread: bool = typer.Option(
        False, "--spread", help="Spread the choice over different items, by their features.", rich_help_panel=_COST
    ),
    unlabelled: bool = typer.Option(
        False, "--unlabelled", help="DATA has no labels: all are unknown.", rich_help_panel=DATA
    ),
    split: str | None = typer.Option(None, metavar="NAME", help="Part to read: train, val, …", rich_help_panel=DATA),
    images: str | None = typer.Option(
        None, metavar="DIR", help="Folder of the table's images. By default as in training.", rich_help_panel=DATA
    ),
    out: str | None = typer.Option(
        None, metavar="FILE", help="Write the queue as CSV, for review and annotation.", rich_help_panel=OUTPUT
    ),
    seed: int = typer.Option(0, metavar="N", help="Seed of --by random and --spread.", rich_help_panel=_COST),
    json: bool = typer.Option(False, "--json", help="Print the queue as JSON.", rich_help_panel=OUTPUT),
    *,
    reading: dict[str, Any],
) -> None:
    """Choose which unknown labels to annotate next.

    Example: steelyard next runs/photos photos/labels.csv --budget 500 --out queue.csv
    """
    from steelyard.annotation.command import show_next
    from steelyard.run.command import Other

    options = dict(budget=budget, by=by, unit=unit, item_cost=item_cost, cell_cost=cell_cost, quota=quota, seed=seed)
    show_next(run, Other(data, split, images, reading), options, unlabelled, spread, out, as_json=json)
