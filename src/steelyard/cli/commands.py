"""The commands that make and measure a run; each imports what it needs when it is run."""

from __future__ import annotations

from json import dumps
from typing import Annotated, Any

import typer

from steelyard.cli.group import OTHER, TRAIN, command, last_words
from steelyard.cli.options import CALIBRATION, DATA, OUTPUT, SETTINGS, reading_options

_RUN = typer.Argument(metavar="RUN", help="Folder of a finished run.")
_DEPLOY_PRIOR = typer.Option(
    None,
    metavar="FILE|estimate",
    help="Frequency of each label where the model is used: a JSON or CSV file, or estimate it from these items.",
    rich_help_panel=CALIBRATION,
)


def _data(default: None, help: str, metavar: str) -> Any:
    """Return an option under the heading of the data."""
    return typer.Option(default, metavar=metavar, help=help, rich_help_panel=DATA)


def _output(help: str, metavar: str) -> Any:
    """Return an option under the heading of the output."""
    return typer.Option(None, metavar=metavar, help=help, rich_help_panel=OUTPUT)


def _json(help: str) -> Any:
    """Return the option --json."""
    return typer.Option(False, "--json", help=help, rich_help_panel=OUTPUT)


@command(OTHER)
def version() -> None:
    """Print the version.

    Example: steelyard version
    """
    from steelyard import __version__

    typer.echo(__version__)


@command(OTHER)
def demo(
    seed: int = typer.Option(0, metavar="N", help="Seed of the data, the removed labels and the networks."),
    out: str = typer.Option("runs/demo", metavar="DIR", help="Folder for the runs, their comparison and the images."),
    scenes: str | None = typer.Option(
        None, metavar="DIR", help="Draw the tutorial's images and their table of labels into DIR, and stop."
    ),
    items: int = typer.Option(900, metavar="N", help="Number of images, with --scenes."),
    unknown: float = typer.Option(0.0, metavar="SHARE", help="Share of labels left unknown, with --scenes."),
    json: bool = typer.Option(False, "--json", help="Print the scores as JSON."),
) -> None:
    """Compare six recipes on built-in data, or draw images.

    The data are pairs of handwritten digits: some digits are rare, and 40 % of the training labels are removed. With
    --scenes nothing is trained: images and a table of labels are drawn, to try a run of your own on.

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


@command(TRAIN)
@reading_options
def inspect(
    data: str = typer.Argument(
        metavar="DATA", help="A table (CSV, Parquet), an .arff, .npz or .svm file, or the folder of a data set."
    ),
    split: str | None = _data(None, "Part to read: train, val, … By default the training part.", "NAME"),
    images: str | None = _data(None, "Folder of the table's images. Looked for if not given.", "DIR"),
    deep: bool = typer.Option(
        False, "--deep", help="Compare images by the content of their files, to find duplicates.", rich_help_panel=DATA
    ),
    html: str | None = _output("Write a page with plots to FILE.", "FILE"),
    json: bool = _json("Print everything as JSON."),
    *,
    reading: dict[str, Any],
) -> None:
    """Show what is in a data set, and which recipe suits it.

    Counts, imbalance, unknown labels, duplicates, labels that come together, and a recommended recipe.

    Example: steelyard inspect photos/labels.csv

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


@command(TRAIN)
@reading_options
def train(
    config: str | None = typer.Argument(
        None, metavar="CONFIG", help="A TOML file of settings. Settings not in it have their defaults."
    ),
    data: str | None = _data(None, "What to train on: a table, file or folder, as for inspect.", "DATA"),
    split: str | None = _data(None, "Part to train on. By default the training part.", "NAME"),
    images: str | None = _data(None, "Folder of the table's images. Looked for if not given.", "DIR"),
    recipe: str | None = typer.Option(
        None,
        metavar="NAME",
        help="How to train: auto (the default), or a name of --recipes. auto lets models compete on features, and "
        "chooses by the labels otherwise.",
        rich_help_panel=SETTINGS,
    ),
    out: str | None = _output("Folder of the run. By default runs/DATA-RECIPE.", "DIR"),
    set: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SECTION.KEY=VALUE",
            help="Change a setting, such as train.epochs=20; may be repeated.",
            rich_help_panel=SETTINGS,
        ),
    ] = None,
    deploy_prior: str | None = typer.Option(
        None,
        metavar="FILE|estimate",
        help="Frequency of each label where the model is used: a JSON or CSV file, or estimate it from the test items.",
        rich_help_panel=CALIBRATION,
    ),
    budget: str | None = typer.Option(
        None,
        metavar="TIME",
        help="How long auto may search, such as 90s or 5m on two cores. By default 2m.",
        rich_help_panel=SETTINGS,
    ),
    single: bool = typer.Option(
        False, "--single", help="Make auto keep one model instead of a mean of several.", rich_help_panel=SETTINGS
    ),
    holdout: float | None = typer.Option(
        None,
        metavar="SHARE",
        help="Share of the items kept apart for calibration and scores, such as 0.2.",
        rich_help_panel=CALIBRATION,
    ),
    audit_sample: str | None = _data(
        None, "Fully labelled items by which auto chooses, where only positives are known.", "DATA"
    ),
    positives_per_item: float | None = typer.Option(
        None,
        metavar="NUMBER",
        help="Mean number of labels per item, where only positives are known: scales the probabilities.",
        rich_help_panel=CALIBRATION,
    ),
    corrections: str | None = _data(
        None, "Answers from the review page or Label Studio (JSON export), merged into the labels.", "FILE"
    ),
    overwrite: bool = typer.Option(
        False, "--overwrite", help="Replace the run that is in DIR.", rich_help_panel=OUTPUT
    ),
    download: bool = typer.Option(
        False,
        "--download",
        help="Fetch the encoder named by --set model.backbone=hf:NAME from the Hugging Face Hub.",
        rich_help_panel=SETTINGS,
    ),
    print_config: bool = typer.Option(
        False, "--print-config", help="Print all settings as TOML and exit.", rich_help_panel=SETTINGS
    ),
    recipes: bool = typer.Option(False, "--recipes", help="List the recipes and exit.", rich_help_panel=SETTINGS),
    json: bool = _json("Print the scores as JSON at the end."),
    *,
    reading: dict[str, Any],
) -> None:
    """Train a model and calibrate its probabilities.

    One run folder holds the result: model, calibration, thresholds, scores, a report and a search index.

    If training is interrupted, run the same command again: it resumes and gives the same result.

    Example: steelyard train --data photos/labels.csv --out runs/photos

    Example: steelyard train --data photos/labels.csv --recipe plm --set train.epochs=20 --out runs/plm

    Example: torchrun --nproc-per-node 2 -m steelyard train --data photos/labels.csv --out runs/photos
    """
    from steelyard.run import command as jobs
    from steelyard.training import group
    from steelyard.training.race import work_units

    if recipes:
        jobs.list_recipes()
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
    args = jobs.TrainArgs(config, recipe, jobs.downloaded(sets) if download else sets, overrides)
    if print_config:
        typer.echo(jobs.printed(args), nl=False)
        return
    with group.joined(), last_words():
        scores = jobs.train(args, overwrite, quiet=json)
    if json and scores is not None:
        typer.echo(dumps(scores))


@command(TRAIN)
@reading_options
def evaluate(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN", help="Folder of a finished run; several with --retrieval.")
    ],
    data: str | None = _data(None, "Labelled data to measure on. By default the run's own test or validation.", "DATA"),
    split: str | None = _data(None, "Part to read: test, val, …", "NAME"),
    images: str | None = _data(None, "Folder of the table's images. By default as in training.", "DIR"),
    deploy_prior: str | None = _DEPLOY_PRIOR,
    bootstrap: int = typer.Option(
        0,
        metavar="N",
        help="Resamples for 95 % confidence intervals, such as 1000; 0 for none.",
        rich_help_panel=OUTPUT,
    ),
    retrieval: bool = typer.Option(
        False,
        "--retrieval",
        help="Measure searching instead: mAP by the number of terms in a query. Compares several runs.",
        rich_help_panel=OUTPUT,
    ),
    html: str | None = _output("Write a page with the plot to FILE, with --retrieval.", "FILE"),
    json: bool = _json("Print everything as JSON."),
    *,
    reading: dict[str, Any],
) -> None:
    """Measure a run on labelled items.

    Ranking, decisions and probabilities, for all labels and by group of labels.

    Example: steelyard evaluate runs/photos --data new/labels.csv

    Example: steelyard evaluate runs/bce runs/plm --retrieval --html search.html
    """
    from steelyard.run import command as jobs
    from steelyard.run import retrieval as retrieval_command

    other = jobs.Other(data, split, images, reading)
    if retrieval:
        if bootstrap:
            raise ValueError("--bootstrap is given, but queries are not resampled: leave it out with --retrieval")
        retrieval_command.compare(runs, other, deploy_prior, html, as_json=json)
    elif len(runs) > 1:
        raise ValueError("several runs are given: compare them with --retrieval, or evaluate one at a time")
    elif html is not None:
        raise ValueError("--html is given, but only --retrieval draws a page: see report.html in the run folder")
    else:
        jobs.evaluate(runs[0], other, deploy_prior, bootstrap, as_json=json)


def _of_calibration(metavar: str, help: str) -> Any:
    """Return an option under the heading of calibration."""
    return typer.Option(None, metavar=metavar, help=help, rich_help_panel=CALIBRATION)


_GUARANTEE = "Guarantee"


@command(TRAIN)
@reading_options
def calibrate(
    run: str = _RUN,
    data: str | None = _data(
        None, "Labelled items that training has not seen. By default the validation items.", "DATA"
    ),
    split: str | None = _data(None, "Part to read: val, test, …", "NAME"),
    images: str | None = _data(None, "Folder of the table's images. By default as in training.", "DIR"),
    kind: str | None = _of_calibration("auto|none|link|temperature|platt|isotonic", "How probabilities are fitted."),
    thresholds: str | None = _of_calibration("f1|half|precision|recall|cost", "What thresholds are chosen for."),
    target: float | None = _of_calibration("SHARE", "Precision or recall to reach, such as 0.95."),
    false_positive_cost: float | None = _of_calibration("NUMBER", "Cost of a false positive, with --thresholds cost."),
    false_negative_cost: float | None = _of_calibration("NUMBER", "Cost of a miss, with --thresholds cost."),
    deploy_prior: str | None = _DEPLOY_PRIOR,
    keep: bool = typer.Option(
        False, "--keep", help="Keep the calibrator; refit thresholds and prior only.", rich_help_panel=CALIBRATION
    ),
    guarantee: str | None = typer.Option(
        None,
        metavar="expected|probability",
        help="Guarantee the target for future items, on average or with --confidence; a label with too few items gets "
        "none.",
        rich_help_panel=_GUARANTEE,
    ),
    confidence: float | None = typer.Option(
        None,
        metavar="SHARE",
        help="Confidence of --guarantee probability. By default 0.9.",
        rich_help_panel=_GUARANTEE,
    ),
    joint: bool = typer.Option(
        False, "--joint", help="Let --guarantee probability hold for all labels at once.", rich_help_panel=_GUARANTEE
    ),
    holdout: float | None = typer.Option(
        None,
        metavar="SHARE",
        help="Share of the items that the guarantee rests on; the others calibrate. By default 0.5.",
        rich_help_panel=_GUARANTEE,
    ),
    json: bool = _json("Print everything as JSON."),
    *,
    reading: dict[str, Any],
) -> None:
    """Refit probabilities and thresholds without training.

    Example: steelyard calibrate runs/photos --thresholds precision --target 0.95

    Example: steelyard calibrate runs/photos --thresholds recall --target 0.95 --guarantee probability
    """
    from steelyard.run import command as jobs

    changes = dict(calibration=kind, thresholds=thresholds, target=target, deploy_prior=deploy_prior)
    costs = dict(false_positive_cost=false_positive_cost, false_negative_cost=false_negative_cost)
    promise = jobs.guarantee_args(guarantee, confidence, joint, holdout, keep)
    other = jobs.Other(data, split, images, reading)
    jobs.calibrate(run, other, changes | costs, keep, as_json=json, guarantee=promise)


@command(TRAIN)
@reading_options
def report(
    run: str = _RUN,
    data: str | None = _data(None, "Labelled data to measure on. By default the run's own test or validation.", "DATA"),
    split: str | None = _data(None, "Part to read: test, val, …", "NAME"),
    images: str | None = _data(None, "Folder of the table's images. By default as in training.", "DIR"),
    deploy_prior: str | None = _DEPLOY_PRIOR,
    out: str | None = _output("Where to write the page. By default RUN/report.html.", "FILE"),
    *,
    reading: dict[str, Any],
) -> None:
    """Write a run's report page again, or for other data.

    Example: steelyard report runs/photos --data new/labels.csv --out new.html
    """
    from steelyard.run import command as jobs

    jobs.report(run, jobs.Other(data, split, images, reading), deploy_prior, out)
