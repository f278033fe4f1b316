"""The command `steelyard bench`."""

from __future__ import annotations

from json import dumps
from typing import Annotated

import typer

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def bench(
    device: str = typer.Option("auto", metavar="auto|cpu|cuda", help="Where to measure."),
    sizes: str | None = typer.Option(
        None, metavar="BxL,…", help="Sizes of the losses (items x labels). By default what suits the device."
    ),
    only: str | None = typer.Option(
        None, metavar="PARTS", help="What to time: some of losses, pairs, metrics, training."
    ),
    compiled: str | None = typer.Option(
        None, metavar="all|some|none", help="Which losses to time by torch.compile as well."
    ),
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.py",
            help="Losses of your own to time too: functions of (logits, targets) and nn.Module classes without "
            "arguments; FILE.py:NAME for one of them. May be repeated.",
        ),
    ] = None,
    mnist: str | None = typer.Option(None, metavar="ROOT", help="Train on MultiMNIST; ROOT holds MNIST/raw."),
    images: str | None = typer.Option(None, metavar="FOLDER", help="Read and train on the images of a folder."),
    quick: bool = typer.Option(False, "--quick", help="A small table in seconds."),
    out: str = typer.Option(
        "runs/bench", metavar="DIR", help="Folder for the figures (JSON), the roofline plot and the page."
    ),
    json: bool = typer.Option(False, "--json", help="Print the figures as JSON."),
    source: str | None = typer.Option(
        None, "--from", metavar="FILE", help="Measure nothing: write the page from these figures."
    ),
) -> None:
    """Time losses, metrics and training against other libraries.

    All are timed on this machine in one run: ours and those of torch, timm and torchmetrics.

    Example: steelyard bench --peer my_loss.py --out runs/bench
    """
    from dataclasses import asdict

    from steelyard_bench.command import BenchRequest, again
    from steelyard_bench.command import bench as measure

    if source is not None:
        record = again(source, out)
    else:
        asked = BenchRequest(device, sizes, only, compiled, tuple(peer or ()), mnist, images, quick)
        record = measure(asked, out, show=lambda text: typer.echo(text, err=json))
    typer.echo(dumps(asdict(record)) if json else f"Written: {out}")
