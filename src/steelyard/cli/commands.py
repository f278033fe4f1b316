"""The commands that make and measure a run; each imports what it needs when it is run."""

from __future__ import annotations

from json import dumps
from typing import Annotated, Any

import typer

from steelyard.cli.group import app, last_words
from steelyard.cli.options import reading_options

_DEPLOY_PRIOR = typer.Option(
    None, metavar="FILE|estimate", help="Labels' frequencies where the model is used: a file, or estimated."
)


@app.command()
def version() -> None:
    """Print the version.

    Example: steelyard version
    """
    from steelyard import __version__

    typer.echo(__version__)


@app.command()
def demo(
    seed: int = typer.Option(0, help="Seed of the data, of which labels are removed, and of the networks."),
    out: str = typer.Option("runs/demo", metavar="DIR", help="Folder for the runs, their comparison and the images."),
    scenes: str | None = typer.Option(
        None, metavar="DIR", help="Draw the images of the tutorial and their table of labels into DIR, and stop."
    ),
    items: int = typer.Option(900, help="With --scenes: number of images."),
    unknown: float = typer.Option(0.0, metavar="SHARE", help="With --scenes: share of labels left unknown."),
    json: bool = typer.Option(False, "--json", help="Print the scores as JSON."),
) -> None:
    """Compare six recipes on pairs of digits with missing labels, or draw images to try your own run on.

    Example: steelyard demo

    Example: steelyard demo --scenes photos --items 900 --unknown 0.3
    """
    if scenes is not None:
        from pathlib import Path

        from steelyard.demo.scenes import make

        typer.echo(make(Path(scenes), items, seed, unknown))
        return
    from steelyard.demo.digits import show

    show(seed, out, as_json=json)


@app.command()
@reading_options
def inspect(
    data: str = typer.Argument(
        metavar="DATA", help="A manifest (CSV, Parquet), .arff or .npz file, or the folder of a data set."
    ),
    split: str | None = typer.Option(None, help="The part to read: train, val, … By default the training part."),
    images: str | None = typer.Option(None, help="The folder of a manifest's images. Looked for if not given."),
    deep: bool = typer.Option(False, "--deep", help="Compare images by the content of their files."),
    html: str | None = typer.Option(None, metavar="FILE", help="Write a page with plots to FILE."),
    json: bool = typer.Option(False, "--json", help="Print everything as JSON."),
    *,
    reading: dict[str, Any],
) -> None:
    """Show what is in DATA: counts, imbalance, unknown labels, duplicates, and the recipe it calls for.

    Example: steelyard inspect photos/labels.csv --html labels.html
    """
    from rich.console import Console

    from steelyard.config import inspection
    from steelyard.config.sections import DataSettings
    from steelyard.report import inspection_page, terminal
    from steelyard.run.datasets import open_to_inspect

    if html is not None:
        inspection_page.check(html)
    with Console(stderr=True).status(f"reading {terminal.plain(data)} …"):
        settings = DataSettings(path=data, images=images or "", split=split or "", **reading)
        result = inspection.inspect(open_to_inspect(settings), deep)
        if html is not None:
            inspection_page.write(result, html, f"What is in {data}")
    if json:
        print(dumps(result.as_dict(), allow_nan=False))
        return
    console = terminal.console_of()
    terminal.show(result, console)
    if html is not None:
        console.print(f"\nA page with plots is in {terminal.plain(html)}.", markup=False)


@app.command()
@reading_options
def train(
    config: str | None = typer.Argument(
        None, metavar="CONFIG", help="A TOML file of settings; those not in it have their defaults."
    ),
    data: str | None = typer.Option(None, help="What to train on: a manifest, file or folder, as for inspect."),
    split: str | None = typer.Option(None, help="The part to train on. By default the training part."),
    images: str | None = typer.Option(None, help="The folder of a manifest's images. Looked for if not given."),
    recipe: str | None = typer.Option(
        None, help="A method or a whole set-up, see --recipes; auto lets models compete on your items."
    ),
    out: str | None = typer.Option(None, metavar="DIR", help="The run folder. By default under runs/."),
    set: Annotated[
        list[str] | None, typer.Option(metavar="SECTION.KEY=VALUE", help="Change a setting; may be repeated.")
    ] = None,
    deploy_prior: str | None = typer.Option(
        None, metavar="FILE|estimate", help="Labels' frequencies where the model is used: a file, or from test items."
    ),
    budget: str | None = typer.Option(
        None, metavar="TIME", help="How long recipe auto may search, such as 90s or 5m on two cores. By default 2m."
    ),
    single: bool = typer.Option(False, "--single", help="End recipe auto with one model, not with a mean of several."),
    holdout: float | None = typer.Option(
        None, metavar="SHARE", help="Keep this share of the items apart for calibration and scores."
    ),
    audit_sample: str | None = typer.Option(
        None, metavar="DATA", help="Fully labelled items that decide in recipe auto where only positives are known."
    ),
    positives_per_item: float | None = typer.Option(
        None,
        metavar="NUMBER",
        help="Labels of an item on average, where only positives are known: scales probabilities.",
    ),
    corrections: str | None = typer.Option(
        None, metavar="FILE", help="Answers of the review page, or a JSON export of Label Studio, to merge into labels."
    ),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace a run that is in DIR already."),
    download: bool = typer.Option(
        False,
        "--download",
        help="Fetch what --set model.backbone=hf:NAME names from the Hugging Face Hub.",
    ),
    print_config: bool = typer.Option(False, "--print-config", help="Print all settings as TOML and stop."),
    recipes: bool = typer.Option(False, "--recipes", help="List the recipes and stop."),
    json: bool = typer.Option(False, "--json", help="Print the scores as JSON in the end."),
    *,
    reading: dict[str, Any],
) -> None:
    """Train a model: from a table of labels to probabilities that can be used, in one run folder.

    Typed again, an unfinished run goes on where it was. Several processes: torchrun --nproc-per-node 2 -m steelyard
    train ...

    Example: steelyard train --data photos/labels.csv --recipe auto --out runs/photos
    """
    from steelyard.run import command
    from steelyard.training import group
    from steelyard.training.race import work_units

    if recipes:
        command.list_recipes()
        return
    if holdout is not None and not 0 < holdout < 1:
        raise ValueError(f"--holdout is {holdout:g}: give a share above 0 and below 1")
    if positives_per_item is not None and not 0 < positives_per_item < float("inf"):
        raise ValueError(f"--positives-per-item is {positives_per_item:g}: give a number above 0, such as 2.5")
    named = {"path": data, "split": split, "images": images, "validation": holdout, "audit": audit_sample}
    overrides = {
        "data": {**named, "corrections": corrections, **reading},
        "train": {"out": out, "budget": None if budget is None else work_units(budget), "single": single or None},
        "evaluate": {"deploy_prior": deploy_prior, "positives_per_item": positives_per_item},
    }
    sets = tuple(set or ())
    args = command.TrainArgs(config, recipe, command.downloaded(sets) if download else sets, overrides)
    if print_config:
        typer.echo(command.printed(args), nl=False)
        return
    with group.joined(), last_words():
        scores = command.train(args, overwrite, quiet=json)
    if json and scores is not None:
        typer.echo(dumps(scores))


@app.command()
@reading_options
def evaluate(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="A finished run; several with --retrieval.")],
    data: str | None = typer.Option(None, help="Other data with labels. By default the run's own test or validation."),
    split: str | None = typer.Option(None, help="The part to read: test, val, …"),
    images: str | None = typer.Option(None, help="The folder of a manifest's images. By default as in training."),
    deploy_prior: str | None = _DEPLOY_PRIOR,
    bootstrap: int = typer.Option(0, help="Resamples for 95 % confidence intervals; 0 for none."),
    retrieval: bool = typer.Option(
        False, "--retrieval", help="Search with the runs instead: mAP by the number of terms of a query."
    ),
    html: str | None = typer.Option(None, metavar="FILE", help="Of --retrieval: write a page with the plot to FILE."),
    json: bool = typer.Option(False, "--json", help="Print everything as JSON."),
    *,
    reading: dict[str, Any],
) -> None:
    """Measure a run on labelled items: ranking, decisions and probabilities, by group of labels.

    Example: steelyard evaluate runs/photos --data new/labels.csv

    Example: steelyard evaluate runs/bce runs/plm --retrieval --html search.html
    """
    from steelyard.run import command
    from steelyard.run import retrieval as retrieval_command

    other = command.Other(data, split, images, reading)
    if retrieval:
        if bootstrap:
            raise ValueError("--bootstrap is given, but queries are not resampled: leave it out with --retrieval")
        retrieval_command.compare(runs, other, deploy_prior, html, as_json=json)
    elif len(runs) > 1:
        raise ValueError("several runs are given: compare them with --retrieval, or evaluate one at a time")
    elif html is not None:
        raise ValueError("--html is given, but only --retrieval draws a page: see report.html in the run folder")
    else:
        command.evaluate(runs[0], other, deploy_prior, bootstrap, as_json=json)


@app.command()
@reading_options
def calibrate(
    run: str = typer.Argument(metavar="RUN", help="The folder of a finished run."),
    data: str | None = typer.Option(None, help="Labelled items that training has not seen. By default validation's."),
    split: str | None = typer.Option(None, help="The part to read: val, test, …"),
    images: str | None = typer.Option(None, help="The folder of a manifest's images. By default as in training."),
    kind: str | None = typer.Option(None, help="auto, none, link, temperature, platt or isotonic."),
    thresholds: str | None = typer.Option(None, help="What thresholds are for: f1, half, precision, recall or cost."),
    target: float | None = typer.Option(None, help="The precision or recall to reach."),
    false_positive_cost: float | None = typer.Option(None, help="Of thresholds by cost."),
    false_negative_cost: float | None = typer.Option(None, help="Of thresholds by cost."),
    deploy_prior: str | None = _DEPLOY_PRIOR,
    keep: bool = typer.Option(False, "--keep", help="Keep the calibrator: set thresholds and the prior only."),
    guarantee: str | None = typer.Option(
        None,
        metavar="expected|probability",
        help="Promise the precision or recall for future items; no promise where items are too few.",
    ),
    confidence: float | None = typer.Option(None, help="Of the guarantee probability. By default 0.9."),
    joint: bool = typer.Option(False, "--joint", help="Of the guarantee probability: for all labels at once."),
    holdout: float | None = typer.Option(
        None, metavar="SHARE", help="Of the items: what a guarantee rests on; the rest calibrates. By default 0.5."
    ),
    json: bool = typer.Option(False, "--json", help="Print everything as JSON."),
    *,
    reading: dict[str, Any],
) -> None:
    """Fit a run's probabilities and thresholds anew, without training.

    Example: steelyard calibrate runs/photos --thresholds precision --target 0.95

    Example: steelyard calibrate runs/photos --thresholds recall --target 0.95 --guarantee probability
    """
    from steelyard.run import command

    changes = dict(calibration=kind, thresholds=thresholds, target=target, deploy_prior=deploy_prior)
    costs = dict(false_positive_cost=false_positive_cost, false_negative_cost=false_negative_cost)
    promise = command.guarantee_args(guarantee, confidence, joint, holdout, keep)
    other = command.Other(data, split, images, reading)
    command.calibrate(run, other, changes | costs, keep, as_json=json, guarantee=promise)


@app.command()
@reading_options
def report(
    run: str = typer.Argument(metavar="RUN", help="The folder of a finished run."),
    data: str | None = typer.Option(None, help="Other data with labels. By default the run's own test or validation."),
    split: str | None = typer.Option(None, help="The part to read: test, val, …"),
    images: str | None = typer.Option(None, help="The folder of a manifest's images. By default as in training."),
    deploy_prior: str | None = _DEPLOY_PRIOR,
    out: str | None = typer.Option(None, metavar="FILE", help="Where to write the page. By default RUN/report.html."),
    *,
    reading: dict[str, Any],
) -> None:
    """Draw a run's page anew: scores, reliability, every label, training.

    Example: steelyard report runs/photos --data new/labels.csv --out new.html
    """
    from steelyard.run import command

    command.report(run, command.Other(data, split, images, reading), deploy_prior, out)
