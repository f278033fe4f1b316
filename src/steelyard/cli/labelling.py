"""Commands that carry questions about labels to other programs."""

from __future__ import annotations

import typer

from steelyard.cli.group import LABELS, command
from steelyard.cli.options import flag, option


@command(LABELS)
def label_studio(
    queue: str = typer.Argument(metavar="QUEUE", help="A queue of questions, which audit or next wrote."),
    out: str = option("FILE", "A .json file for the tasks.", None, ...),
    prefix: str = option(
        "TEXT", "Text before the path of each image, such as /data/local-files/?d= or an address.", None, ""
    ),
    images: str | None = option("DIR", "Write the paths of images relative to this folder. By default as in QUEUE."),
    interface: bool = flag("--interface", "Print the labelling interface for the tasks."),
) -> None:
    """Write questions about labels as Label Studio tasks.

    Label Studio's JSON export of the answers goes to train --corrections.

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
