"""The commands train, evaluate, report and calibrate: from their arguments to what they print."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from json import dumps
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast, get_args

from rich.console import Console

from steelyard._files import check_place
from steelyard.calibrate.guarantees import Guarantee
from steelyard.config import recipes
from steelyard.config.recipes import METHODS, SETUPS
from steelyard.config.sections import DataSettings, EvaluateSettings
from steelyard.config.settings import Config, dump_config, load_config
from steelyard.data.columns.sentences import PREFIX, download
from steelyard.data.opening import layout_at
from steelyard.data.parts import ENDINGS, file_in
from steelyard.data.tables.manifest import Manifest
from steelyard.folder.run_folder import RunFolder, Trained
from steelyard.predict.inputs import inputs_at, side_of
from steelyard.report import scores
from steelyard.report.terminal import console_of, say
from steelyard.report.threshold_table import show_promise, show_thresholds
from steelyard.report.top_scores import show_top
from steelyard.run import evaluation, run_report
from steelyard.run.calibrate import GuaranteeArgs, recalibrate
from steelyard.run.datasets import GUESSED, open_datasets
from steelyard.run.deployment import ESTIMATE
from steelyard.run.evaluation import Evaluation, judge
from steelyard.run.locate import run_config
from steelyard.run.resume import differences
from steelyard.run.train import prepare
from steelyard.run.train import run as run_training
from steelyard.training import group
from steelyard.training.batches import n_workers
from steelyard.training.distributed import together
from steelyard.training.settings import LOOPS
from steelyard.training.step import pick_device

_OPTION = {"path_column": "path"}
_OF_FORM = ("form", "labels", "value", "separator", "absent")


class TrainArgs(NamedTuple):
    """The arguments of `steelyard train` that make its settings."""

    file: str | None
    recipe: str | None
    sets: tuple[str, ...]
    overrides: Mapping[str, Any]
    """Settings given by options, nested; None for an option that was not given."""

    def configure(self, recipe: str | None) -> Config:
        """Return the settings with this recipe."""
        if self.file and Path(self.file).exists() and (Path(self.file).is_dir() or _suffix(self.file) in ENDINGS):
            raise ValueError(f"{self.file} is data, not a TOML file of settings: write --data {shlex.quote(self.file)}")
        return load_config(self.file, recipe, self.sets, self.overrides)

    @property
    def chosen(self) -> str | None:
        """Return the given recipe, else None where a file decides, else "auto"."""
        return self.recipe or (None if self.file else "auto")

    def overridden(self) -> str:
        """Return which settings of the recipe the file or --set overrides, as a sentence; "" for none."""
        if self.recipe in (None, "auto") or not (self.file or self.sets):
            return ""
        config = self.configure(self.recipe)
        of_recipe = config.with_overrides(recipes.settings(str(self.recipe))).as_dict()
        changed = differences(config.as_dict(), of_recipe)
        return f"{self.file or '--set'} changes {', '.join(changed)} of recipe {self.recipe}" if changed else ""


def downloaded(sets: Sequence[str]) -> tuple[str, ...]:
    """Return what was typed after --set, with a folder in the place of a sentence encoder's name that is fetched.

    What a TOML file or a run's configuration names is never fetched.
    """
    start = f"model.backbone={PREFIX}"
    if not any(one.startswith(start) for one in sets):
        raise ValueError("--download fetches a sentence encoder: name it with --set model.backbone=hf:NAME")
    return tuple(
        f"model.backbone={download(one.removeprefix('model.backbone='))}" if one.startswith(start) else one
        for one in sets
    )


def printed(args: TrainArgs) -> str:
    """Return all settings as TOML; automatic ones are decided where data is given."""
    config = args.configure(None if args.chosen == "auto" else args.chosen)
    if config.data.path and (args.chosen == "auto" or Path(config.data.path).exists()):
        config = prepare(args.configure, args.chosen).config
    return dump_config(config)


def list_recipes() -> None:
    """Print the recipes, methods first."""
    console = Console(highlight=False)
    for title, listed in (("Methods, for any data and model; join them by +:", METHODS), ("Whole set-ups:", SETUPS)):
        console.print(title, markup=False)
        width = max(map(len, listed))
        for name, recipe in listed.items():
            console.print(f"  {name:<{width}}  {recipe.what}", markup=False, soft_wrap=True)
    console.print("auto lets models compete on features, and else chooses by the labels.", markup=False)


def train(args: TrainArgs, overwrite: bool, quiet: bool) -> dict[str, Any] | None:
    """Train and return the metrics; of several processes only the first returns any."""
    console = console_of(quiet)
    request = together(lambda: prepare(args.configure, args.chosen))
    if group.is_first() and (changed := args.overridden()):
        say(console, f"Beware: {changed}.", "yellow")
    source = Path(request.config.data.path)
    name = "-".join(part for part in (source.stem or source.name, request.recipe or "run") if part)
    out = Path(request.config.train.out or Path("runs") / name)
    run_training(request, out, overwrite, console)
    if not group.is_first():
        return None
    metrics = RunFolder(out).read_metrics()
    if not quiet:
        for name, part in metrics.items():
            console.print()
            (show_top if "bands" in part else scores.show)(part, console, name)
        if request.config.train.learner != "blocks":
            show_thresholds(metrics, console)
        page = ", with report.html" if (out / "report.html").exists() else ""
        serve = f" In the browser: {shlex.join(['steelyard', 'serve', str(out)])}" if (out / "index").exists() else ""
        say(console, f"\nThe run is in {out}{page}.{serve}")
        top = " --top 20" if request.config.train.learner == "blocks" else ""
        say(console, f"Next: {shlex.join(['steelyard', 'predict', str(out)])} NEW-ITEMS{top} --out predictions.csv")
    return metrics


class Other(NamedTuple):
    """Arguments that name items: other data, another split, or none for the run's own."""

    data: str | None
    split: str | None
    images: str | None
    reading: Mapping[str, Any] = MappingProxyType({})
    """Settings of [data] that tell how the data is read."""


class JudgedOn(NamedTuple):
    """A run, what it gives for items, and their name."""

    trained: Trained
    judged: Evaluation
    settings: EvaluateSettings
    name: str


def judged_on(run: str, other: Other, deploy_prior: str | None, bootstrap: int = 0) -> JudgedOn:
    """Run a finished run on other data, or on its own test or validation items."""
    trained = RunFolder(run).load()
    config = run_config(run)
    changes = {"deploy_prior": deploy_prior, "bootstrap": bootstrap or None}
    settings = config.with_overrides({"evaluate": changes}).evaluate
    items, name = items_of(config, trained, other)
    own = other.data is None and name in ("validation", config.data.validation)
    if own and deploy_prior is not None:
        raise ValueError(
            "--deploy-prior is given, but the run's own validation items have the prior it was calibrated for: give "
            "items of deployment with --data"
        )
    device, workers = pick_device(config.train.device), n_workers(-1, items)
    judged = judge(trained, items, settings, own, device, workers, console_of(stderr=True))
    return JudgedOn(trained, replace(judged, by_folds=isinstance(items, tuple)), settings, name)


def evaluate(run: str, other: Other, deploy_prior: str | None, bootstrap: int, as_json: bool) -> None:
    """Measure a run, on other data or on its own test or validation items."""
    on = judged_on(run, other, deploy_prior, bootstrap)
    _show(_metrics(run, on, other), on.name, as_json)


def _metrics(run: str, on: JudgedOn, other: Other) -> dict[str, Any]:
    """Return metrics, on the run's own items with what training measured of baselines, which needs no second fit."""
    metrics = evaluation.report(on.trained, on.judged, on.settings)
    if other.data is not None:
        return metrics
    data = run_config(run).data
    part = {data.validation: "validation", data.test: "test"}.get(on.name, on.name)
    return metrics | evaluation.beside_stored(on.judged, RunFolder(run).read_metrics().get(part, {}))


def report(run: str, other: Other, deploy_prior: str | None, out: str | None) -> None:
    """Measure a run as `evaluate` does and write its report page."""
    if out is not None:
        check_place(out)
        if Path(out).suffix.lower() not in (".html", ".pdf"):
            raise ValueError(f"--out is {out}: give a name that ends in .html or .pdf")
    path = RunFolder(run) / run_report.NAME if out is None else Path(out)
    on = judged_on(run, other, deploy_prior)
    metrics, name = _metrics(run, on, other), on.name
    if other.data is not None:
        name, metrics["notes"] = "", [f"the items are those of {name}", *metrics["notes"]]
    if not run_report.write_report(RunFolder(run), on.trained, on.judged, metrics, on.settings, name, path):
        raise ValueError("a report needs matplotlib, which is not installed: pip install 'steelyard[report]'")
    say(console_of(), f"Written: {path}")


def guarantee_args(
    kind: str | None, confidence: float | None, joint: bool, holdout: float | None, keep: bool
) -> GuaranteeArgs | None:
    """Return the arguments of a guarantee, None without --guarantee; its options alone are refused."""
    if kind is None:
        given = {"--confidence": confidence is not None, "--joint": joint, "--holdout": holdout is not None}
        if option := next((name for name, is_given in given.items() if is_given), None):
            raise ValueError(f"{option} belongs to a guarantee: add --guarantee expected or probability")
        return None
    if kind not in get_args(Guarantee):
        raise ValueError(f"--guarantee is {kind}: choose expected or probability")
    if kind == "expected" and (confidence is not None or joint):
        raise ValueError("--confidence and --joint belong to --guarantee probability: leave them out")
    if keep and holdout is not None:
        raise ValueError("--holdout is given, but --keep fits no calibrator, so all items count: leave one of them out")
    confidence = 0.9 if confidence is None else confidence
    return GuaranteeArgs(cast(Guarantee, kind), confidence, joint, 0.5 if holdout is None else holdout)


def calibrate(
    run: str,
    other: Other,
    changes: Mapping[str, Any],
    keep: bool,
    as_json: bool,
    guarantee: GuaranteeArgs | None = None,
) -> None:
    """Refit a run's probabilities and thresholds; with --keep --deploy-prior estimate, from items without labels too.

    A run trained with the prior "estimate" estimates it at every evaluation, so it is not part of the calibration.

    Args:
        run: folder of the run.
        other: items to fit to.
        changes: settings of [evaluate]; None for an option that was not given.
        keep: whether the calibrator stays.
        as_json: whether the metrics are printed as JSON.
        guarantee: arguments of a guarantee for the thresholds.
    """
    trained = RunFolder(run).load()
    config = run_config(run)
    if changes["deploy_prior"] is None and config.evaluate.deploy_prior == ESTIMATE:
        changes = {**changes, "deploy_prior": ""}
    settings = config.with_overrides({"evaluate": changes}).evaluate
    _check_used(changes, settings.thresholds, keep)
    without_labels = other.split is None and not other.reading.keys() - {"on_bad_image"}
    if keep and changes["deploy_prior"] == ESTIMATE and other.data is not None and without_labels:
        on_bad_image = other.reading.get("on_bad_image", "error")
        items, name = inputs_at(trained, other.data, other.images, on_bad_image), other.data
    else:
        items, name = items_of(config, trained, other, first=("validation", "test"))
    if guarantee is not None and not isinstance(items, tuple):  # out-of-fold items are refused in any case
        _check_unused(config, name, keep, other, settings.thresholds)
    device, progress = pick_device(config.train.device), console_of(stderr=True)
    with RunFolder(run).writing():
        metrics = recalibrate(run, items, settings, keep, device, n_workers(-1, items), progress, guarantee)
    _show(metrics, name, as_json)
    if not as_json:
        show_thresholds({name: metrics}, console_of())
        if "promise" in metrics:
            show_promise(metrics["promise"], console_of())


def _check_unused(config: Config, name: str, keep: bool, other: Other, goal: str) -> None:
    """Raise for a guarantee on items that training or calibration has used."""
    if goal not in ("precision", "recall"):
        raise ValueError(f"--guarantee is given, but thresholds are for {goal}: add --thresholds precision or recall")
    if other.data is not None or name not in ("validation", config.data.validation):
        return
    if config.train.learner in LOOPS and (config.train.keep == "best" or config.train.patience > 0):
        raise ValueError(
            "the run's validation items chose the epoch that is kept, so they give no guarantee: give others with "
            "--data, or its test items with --split"
        )
    if keep:
        raise ValueError(
            "--keep is given, but the calibrator was fitted to the run's validation items: leave it out, or give "
            "others with --data"
        )


def _check_used(changes: Mapping[str, Any], goal: str, keep: bool) -> None:
    """Raise for an option that would have no effect."""
    kind, target = changes["calibration"], changes["target"]
    if keep and kind is not None:
        raise ValueError(f"--kind is {kind}, but --keep keeps the calibrator: leave one of them out")
    if target is not None and goal not in ("precision", "recall"):
        raise ValueError(f"--target is {target}, but thresholds are for {goal}: add --thresholds precision or recall")
    costs = (changes["false_positive_cost"], changes["false_negative_cost"])
    if costs != (None, None) and goal != "cost":
        raise ValueError(f"a cost is given, but thresholds are for {goal}: add --thresholds cost")


def items_of(
    config: Config, trained: Trained, other: Other, first: Sequence[str] = ("test", "validation")
) -> tuple[Any, str]:
    """Return labelled items and their name: other data, another split, or the run's own."""
    if other.data is not None:
        elsewhere = _elsewhere(config.data, trained, other.data, other)
        opened = open_datasets(elsewhere, config.model, config.train.seed, trained.encoder)
        return opened.train, f"{other.data} {other.split}" if other.split else other.data
    if not config.data.path:
        raise ValueError("the run was not trained from a path: give the items with --data")
    if not Path(config.data.path).exists():
        raise ValueError(
            f"the data of the run, {config.data.path}, does not exist: put it back, or give labelled items with --data"
        )
    if given := [name for name in other.reading if name != "on_bad_image"]:
        option = _OPTION.get(given[0], given[0].replace("_", "-"))
        raise ValueError(f"--{option} tells how other data is read, but no other data is given: add --data")
    data = replace(config.data, images=other.images or config.data.images, **other.reading)
    if other.split is not None:
        source = replace(data, validation=0.0, test=other.split)
        return open_datasets(source, config.model, config.train.seed, trained.encoder).test, other.split
    own = open_datasets(data, config.model, config.train.seed, trained.encoder)
    if trained.folder is not None and own.validation is None and (folds := RunFolder(trained.folder).read_folds()):
        own = own._replace(validation=folds)  # the model has seen all items, but not the models of the folds
    for name in first:
        if getattr(own, name) is not None:
            return getattr(own, name), name
    raise ValueError("the run has neither test nor validation items: give some with --data")


def _elsewhere(settings: DataSettings, trained: Trained, data: str, other: Other) -> DataSettings:
    """Return [data] for other data, with the settings for the training table as far as its columns are there."""
    side, plain = side_of(trained.model), DataSettings()
    changes: dict[str, Any] = {
        "path": data,
        "images": other.images or settings.images,
        "split": other.split or "",
        "validation": 0.0,
        "test": "",
        "corrections": "",
        "size": side[0] if side is not None and side[0] == side[1] else settings.size,
    }
    file = Path(data)
    if file.is_dir() and layout_at(file, settings.format or None) is None:
        file = file_in(file, settings.format or None, other.split)[0]
    if ENDINGS.get(_suffix(str(file))) != "table" or not file.is_file():
        gone: Sequence[str] = ("images", "embeddings", *GUESSED)
    else:
        source = Manifest(
            file,
            other.reading.get("delimiter") or settings.delimiter or None,
            other.reading.get("encoding") or settings.encoding or "utf-8",
        )
        columns = ("id", "path_column", "value", "split_column", "group")
        gone = [name for name in columns if getattr(settings, name) not in source.columns]
        changes["labels"] = tuple(name for name in settings.labels if name in source.columns)
        if {"form", "labels"} & other.reading.keys():  # then guesses about the other form do not hold
            gone += [name for name in _OF_FORM if name not in gone]
    return replace(settings, **changes | {name: getattr(plain, name) for name in gone} | dict(other.reading))


def _show(metrics: dict[str, Any], name: str, as_json: bool) -> None:
    if as_json:
        print(dumps(metrics, ensure_ascii=False))
    else:
        scores.show(metrics, console_of(), name)


def _suffix(file: str) -> str:
    return Path(file).suffix.lower()
