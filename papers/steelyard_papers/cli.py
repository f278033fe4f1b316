"""The command `steelyard reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def reproduce(
    name: str | None = typer.Argument(None, metavar="NAME", help="A table or figure, see --list; all for every one."),
    list_: bool = typer.Option(False, "--list", help="List the tables and figures, their data, and stop."),
    data: str = typer.Option("data", metavar="DIR", help="The folder that holds the data sets."),
    out: str | None = typer.Option(None, metavar="DIR", help="Folder of runs and results. By default runs/papers."),
    seeds: int = typer.Option(1, help="How many runs of every row."),
    rows: Annotated[
        list[str] | None, typer.Option(help='A row to run, or a pattern such as "*PLM"; may be repeated.')
    ] = None,
    set: Annotated[
        list[str] | None,
        typer.Option(metavar="SECTION.KEY=VALUE", help="Override a setting for every row (recorded in the result)."),
    ] = None,
    validation: float = typer.Option(0.0, help="Measure on this share of the training items, not on the test items."),
    ledger: str | None = typer.Option(
        None, metavar="FILE", help="Note what is measured here; runs that it notes are not trained again."
    ),
    note: str = typer.Option("", help="A note about this copy of the data, recorded in the result."),
    smoke: bool = typer.Option(False, "--smoke", help="Try it in seconds on generated data."),
    dashboard: str | None = typer.Option(None, metavar="DIR", help="Write the pages of the JSON results in DIR."),
    json: bool = typer.Option(False, "--json", help="Print the result, or the list, as JSON."),
) -> None:
    """Reproduce a table or figure of the papers on your data.

    The result stands beside what the paper prints. Typed again, the command does not train finished runs again, and
    resumes one that was interrupted.

    Example: steelyard reproduce plm-table1 --data ~/data --seeds 3
    """
    from steelyard_papers import command  # imports torch, which no other command of steelyard needs for its help

    if dashboard is not None:
        command.write_pages(Path(dashboard))
    elif list_ or name is None:
        command.show(name, Path(data), json)
    else:
        command.run(
            name,
            seeds,
            out,
            json,
            data_root=Path(data),
            rows=tuple(rows or ()),
            sets=tuple(set or ()),
            validation=validation,
            ledger=Path(ledger) if ledger else None,
            note=note,
            smoke=smoke,
        )
