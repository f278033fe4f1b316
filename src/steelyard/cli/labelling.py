"""Commands that carry questions about labels to other programs."""

from __future__ import annotations

import typer

from steelyard.cli.group import app


@app.command()
def label_studio(
    queue: str = typer.Argument(metavar="QUEUE", help="A queue of questions, which audit and next write."),
    out: str = typer.Option(..., metavar="FILE", help="Where to write the tasks, a .json file."),
    prefix: str = typer.Option(
        "", metavar="TEXT", help="Goes before the path of each image, such as /data/local-files/?d= or an address."
    ),
    images: str | None = typer.Option(
        None, metavar="FOLDER", help="Write the paths of images relative to this folder. By default as in QUEUE."
    ),
    interface: bool = typer.Option(False, "--interface", help="Print the labelling interface that the tasks need."),
) -> None:
    """Write a queue of questions as tasks for Label Studio; its JSON export goes to train --corrections.

    Example: steelyard label-studio queue.csv --out tasks.json --images photos --prefix /data/local-files/?d=photos/
    """
    from json import dumps

    from steelyard._files import check_place, write_atomic
    from steelyard.data.label_studio import INTERFACE, tasks_of
    from steelyard.data.review import read_queue

    check_place(out)
    tasks = tasks_of(read_queue(queue), prefix, images)
    write_atomic(out, dumps(tasks, ensure_ascii=False, indent=1) + "\n")
    if interface:
        typer.echo(INTERFACE, nl=False)
    else:
        typer.echo(f"Written: {out} ({len(tasks):,} tasks)")
