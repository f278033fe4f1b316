"""The commands that make and measure a run; each imports what it needs when it is run."""

from __future__ import annotations

from json import dumps
from typing import Annotated, Any

import typer

from steelyard.cli.group import OTHER, TRAIN, command, last_words
from steelyard.cli.options import CALIBRATION, DATA, OUTPUT, SETTINGS, flag, option, reading_options

_SET = option("SECTION.KEY=VALUE", "Change a setting, such as train.epochs=20; may be repeated.", SETTINGS)
_RUN = typer.Argument(metavar="RUN", help="Folder of a finished run.")
_DEPLOY_PRIOR = option(
    "FILE|estimate",
    "Frequency of each label where the model is used: a JSON or CSV file, or estimate it from these items.",
    CALIBRATION,
)


@command(OTHER)
def version() -> None:
    """Print the version.

    Example: steelyard version
    """
    from steelyard import __version__

    typer.echo(__version__)


@command(OTHER)
def demo(
    seed: int = option("N", "Seed of the data, the removed labels and the networks.", None, 0),
    out: str = option("DIR", "Folder for the runs, their comparison and the images.", None, "runs/demo"),
    scenes: str | None = option("DIR", "Draw the tutorial's images and their table of labels into DIR, and stop."),
    items: int = option("N", "Number of images, with --scenes.", None, 900),
    unknown: float = option("SHARE", "Share of labels left unknown, with --scenes.", None, 0.0),
    json: bool = flag("--json", "Print the scores as JSON."),
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
    split: str | None = option("NAME", "Part to read: train, val, … By default the training part.", DATA),
    images: str | None = option("DIR", "Folder of the table's images. Looked for if not given.", DATA),
    deep: bool = flag("--deep", "Compare images by the content of their files, to find duplicates.", DATA),
    html: str | None = option("FILE", "Write a page with plots to FILE, or its plots to NAME.pdf.", OUTPUT),
    json: bool = flag("--json", "Print everything as JSON.", OUTPUT),
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
    data: str | None = option("DATA", "What to train on: a table, file or folder, as for inspect.", DATA),
    split: str | None = option("NAME", "Part to train on. By default the training part.", DATA),
    images: str | None = option("DIR", "Folder of the table's images. Looked for if not given.", DATA),
    recipe: str | None = option(
        "NAME",
        "How to train: auto (the default), or a name of --recipes. auto lets models compete on features, and "
        "chooses by the labels otherwise.",
        SETTINGS,
    ),
    out: str | None = option("DIR", "Folder of the run. By default runs/DATA-RECIPE.", OUTPUT),
    set: list[str] | None = _SET,
    deploy_prior: str | None = option(
        "FILE|estimate",
        "Frequency of each label where the model is used: a JSON or CSV file, or estimate it from the test items.",
        CALIBRATION,
    ),
    budget: str | None = option(
        "TIME", "How long auto may search, such as 90s or 5m on two cores. By default 2m.", SETTINGS
    ),
    single: bool = flag("--single", "Make auto keep one model instead of a mean of several.", SETTINGS),
    holdout: float | None = option(
        "SHARE", "Share of the items kept apart for calibration and scores, such as 0.2.", CALIBRATION
    ),
    audit_sample: str | None = option(
        "DATA", "Fully labelled items by which auto chooses, where only positives are known.", DATA
    ),
    positives_per_item: float | None = option(
        "NUMBER",
        "Mean number of labels per item, where only positives are known: scales the probabilities.",
        CALIBRATION,
    ),
    corrections: str | None = option(
        "FILE", "Answers from the review page or Label Studio (JSON export), merged into the labels.", DATA
    ),
    overwrite: bool = flag("--overwrite", "Replace the run that is in DIR.", OUTPUT),
    download: bool = flag(
        "--download", "Fetch the encoder named by --set model.backbone=hf:NAME from the Hugging Face Hub.", SETTINGS
    ),
    print_config: bool = flag("--print-config", "Print all settings as TOML and exit.", SETTINGS),
    recipes: bool = flag("--recipes", "List the recipes and exit.", SETTINGS),
    json: bool = flag("--json", "Print the scores as JSON at the end.", OUTPUT),
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
    # kept whole: most of it is its options, and what is left only passes each of them on
    from steelyard.run import command as jobs
    from steelyard.training import group
    from steelyard.training.race.course import work_units

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
    data: str | None = option(
        "DATA", "Labelled data to measure on. By default the run's own test or validation.", DATA
    ),
    split: str | None = option("NAME", "Part to read: test, val, …", DATA),
    images: str | None = option("DIR", "Folder of the table's images. By default as in training.", DATA),
    deploy_prior: str | None = _DEPLOY_PRIOR,
    bootstrap: int = option("N", "Resamples for 95 % confidence intervals, such as 1000; 0 for none.", OUTPUT, 0),
    retrieval: bool = flag(
        "--retrieval",
        "Measure searching instead: mAP by the number of terms in a query. Compares several runs.",
        OUTPUT,
    ),
    html: str | None = option("FILE", "Write a page with the plot to FILE, with --retrieval.", OUTPUT),
    json: bool = flag("--json", "Print everything as JSON.", OUTPUT),
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


_GUARANTEE = "Guarantee"


@command(TRAIN)
@reading_options
def calibrate(
    run: str = _RUN,
    data: str | None = option(
        "DATA", "Labelled items that training has not seen. By default the validation items.", DATA
    ),
    split: str | None = option("NAME", "Part to read: val, test, …", DATA),
    images: str | None = option("DIR", "Folder of the table's images. By default as in training.", DATA),
    kind: str | None = option(
        "auto|none|link|temperature|platt|isotonic", "How probabilities are fitted.", CALIBRATION
    ),
    thresholds: str | None = option("f1|half|precision|recall|cost", "What thresholds are chosen for.", CALIBRATION),
    target: float | None = option("SHARE", "Precision or recall to reach, such as 0.95.", CALIBRATION),
    false_positive_cost: float | None = option(
        "NUMBER", "Cost of a false positive, with --thresholds cost.", CALIBRATION
    ),
    false_negative_cost: float | None = option("NUMBER", "Cost of a miss, with --thresholds cost.", CALIBRATION),
    deploy_prior: str | None = _DEPLOY_PRIOR,
    keep: bool = flag("--keep", "Keep the calibrator; refit thresholds and prior only.", CALIBRATION),
    guarantee: str | None = option(
        "expected|probability",
        "Guarantee the target for future items, on average or with --confidence; a label with too few items gets none.",
        _GUARANTEE,
    ),
    confidence: float | None = option("SHARE", "Confidence of --guarantee probability. By default 0.9.", _GUARANTEE),
    joint: bool = flag("--joint", "Let --guarantee probability hold for all labels at once.", _GUARANTEE),
    holdout: float | None = option(
        "SHARE", "Share of the items that the guarantee rests on; the others calibrate. By default 0.5.", _GUARANTEE
    ),
    json: bool = flag("--json", "Print everything as JSON.", OUTPUT),
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
    data: str | None = option(
        "DATA", "Labelled data to measure on. By default the run's own test or validation.", DATA
    ),
    split: str | None = option("NAME", "Part to read: test, val, …", DATA),
    images: str | None = option("DIR", "Folder of the table's images. By default as in training.", DATA),
    deploy_prior: str | None = _DEPLOY_PRIOR,
    out: str | None = option("FILE", "The page, or NAME.pdf for its plots. By default RUN/report.html.", OUTPUT),
    *,
    reading: dict[str, Any],
) -> None:
    """Write a run's report page again, or for other data.

    Example: steelyard report runs/photos --data new/labels.csv --out new.html
    """
    from steelyard.run import command as jobs

    jobs.report(run, jobs.Other(data, split, images, reading), deploy_prior, out)
