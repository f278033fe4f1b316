"""The commands audit and next; what they need is imported when they are run."""

from __future__ import annotations

from typing import Any

import typer

from steelyard.cli.group import LABELS, command
from steelyard.cli.options import DATA, OUTPUT, flag, option, reading_options

_COST = "Costs and choice"
_CELL_COST = option("N|LABEL=N", "Cost of a question, for all labels or one; may be repeated. By default 1.", _COST)
_QUOTA = option("N|LABEL=N", "Most questions about each label, or about one; may be repeated.", _COST)


@command(LABELS)
@reading_options
def audit(
    source: str = typer.Argument(metavar="RUN|DATA", help="Folder of a finished run, or labelled data."),
    scores: str | None = option(
        "FILE", "Out-of-fold probabilities for DATA by any model: .csv (id, labels) or .npz.", DATA
    ),
    split: str | None = option("NAME", "Part of DATA to read. By default the training part.", DATA),
    images: str | None = option("DIR", "Folder of the images of DATA.", DATA),
    out: str | None = option("FILE", "Write the labels that are probably wrong, as CSV.", OUTPUT),
    present: str | None = option("FILE", "Write the unknown labels that are probably present, as CSV.", OUTPUT),
    limit: int = option("N", "Most rows of each file.", OUTPUT, 10_000),
    json: bool = flag("--json", "Print everything as JSON.", OUTPUT),
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
    budget: float = option("NUMBER", "What may be spent: the number of labels, where each costs 1.", _COST, ...),
    by: str = option(
        "gain|uncertainty|random",
        "Choose by the expected gain, or for comparison by uncertainty or at random.",
        _COST,
        "gain",
    ),
    unit: str = option(
        "cell|item", "Ask for single labels, or for all unknown labels of an item at once.", _COST, "cell"
    ),
    item_cost: float = option("NUMBER", "Cost of opening an item.", _COST, 0.0),
    cell_cost: list[str] | None = _CELL_COST,
    quota: list[str] | None = _QUOTA,
    spread: bool = flag("--spread", "Spread the choice over different items, by their features.", _COST),
    corrections: str | None = option("FILE", "Answers so far, about DATA: what they settle is not asked again.", _COST),
    unlabelled: bool = flag("--unlabelled", "DATA has no labels: all are unknown.", DATA),
    split: str | None = option("NAME", "Part to read: train, val, …", DATA),
    images: str | None = option("DIR", "Folder of the table's images. By default as in training.", DATA),
    out: str | None = option("FILE", "Write the queue as CSV, for review and annotation.", OUTPUT),
    seed: int = option("N", "Seed of --by random and --spread.", _COST, 0),
    json: bool = flag("--json", "Print the queue as JSON.", OUTPUT),
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
