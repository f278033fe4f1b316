"""What the commands train, evaluate, calibrate and predict do, from what was typed to what is shown."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import Progress

from steelyard.data.inputs import open_inputs
from steelyard.run import evaluation, fit, prediction, scores
from steelyard.run.api import side_of
from steelyard.run.config import Config, dump_config, load_config
from steelyard.run.datasets import open_datasets
from steelyard.run.folder import RunFolder
from steelyard.run.recalibration import recalibrate
from steelyard.run.recipes import METHODS, SETUPS, Recipe
from steelyard.training import group
from steelyard.training.batches import n_workers
from steelyard.training.step import pick_device


class Typed(NamedTuple):
    """What was typed after `steelyard train`."""

    file: str | None
    data: str | None
    recipe: str | None
    out: str | None
    sets: tuple[str, ...]

    def configure(self, recipe: str | None) -> Config:
        """Return the settings with this recipe."""
        said = {"data": {"path": self.data}, "train": {"out": self.out}}
        return load_config(self.file, recipe, self.sets, said)

    @property
    def chosen(self) -> str | None:
        """The recipe: as typed, else none where a file decides, else auto."""
        return self.recipe or (None if self.file else "auto")


def printed(typed: Typed) -> str:
    """Return all settings as TOML; "auto" is resolved where there is data to look at."""
    if typed.chosen == "auto" and typed.configure(None).data.path:
        return dump_config(fit.ask(typed.configure, "auto").config)
    return dump_config(typed.configure(None if typed.chosen == "auto" else typed.chosen))


def list_recipes() -> None:
    """Print the recipes, methods first."""
    console = Console(highlight=False)
    for title, recipes in (("Methods, for any data and model; join them by +:", METHODS), ("Whole set-ups:", SETUPS)):
        console.print(title, markup=False)
        _print_recipes(recipes, console)
    console.print("auto chooses among them by the labels: steelyard inspect DATA says which and why.", markup=False)


def _print_recipes(recipes: Mapping[str, Recipe], console: Console) -> None:
    width = max(map(len, recipes))
    for name, recipe in recipes.items():
        console.print(f"  {name:<{width}}  {recipe.what}", markup=False, soft_wrap=True)


def train(typed: Typed, overwrite: bool, quiet: bool) -> dict[str, Any] | None:
    """Train, and return the metrics; in several processes only the first has any."""
    with group.joined():
        console = Console(stderr=quiet)
        asked = fit.ask(typed.configure, typed.chosen)
        out = Path(asked.config.train.out or _default_out(asked))
        fit.run(asked, out, overwrite, console)
        if not group.is_first():
            return None
        metrics = RunFolder(out).read_metrics()
        if not quiet:
            for name, found in metrics.items():
                console.print()
                scores.show(found, console, name)
            _say_next(out, console)
        return metrics


def evaluate(
    run: str, data: str | None, split: str | None, deploy_prior: str | None, bootstrap: int, as_json: bool
) -> None:
    """Measure a run, on other data or on its own test or validation items."""
    trained = RunFolder(run).load()
    config = _config_of(run)
    changes = {"deploy_prior": deploy_prior, "bootstrap": bootstrap or None}
    settings = config.with_overrides({"evaluate": changes}).evaluate
    items, name = _items(config, data, split)
    device = pick_device(config.train.device)
    own = data is None and name == "validation"
    metrics = evaluation.evaluate(trained, items, settings, own, device, n_workers(-1, items))
    _show(metrics, name, as_json)


def calibrate(
    run: str,
    data: str | None,
    split: str | None,
    kind: str | None,
    thresholds: str | None,
    target: float | None,
    costs: tuple[float | None, float | None],
    deploy_prior: str | None,
    keep: bool,
    as_json: bool,
) -> None:
    """Fit a run's probabilities and thresholds anew."""
    config = _config_of(run)
    changes = {
        "calibration": kind,
        "thresholds": thresholds,
        "target": target,
        "false_positive_cost": costs[0],
        "false_negative_cost": costs[1],
        "deploy_prior": deploy_prior,
    }
    settings = config.with_overrides({"evaluate": changes}).evaluate
    items, name = _items(config, data, split, first=("validation", "test"))
    device = pick_device(config.train.device)
    metrics = recalibrate(run, items, settings, keep, device, n_workers(-1, items))
    _show(metrics, name, as_json)


def predict(
    run: str,
    data: str,
    out: str | None,
    images: str | None,
    form: str,
    top: int,
    batch_size: int,
    skip_bad: bool,
    device: str,
) -> None:
    """Write probabilities and decisions of new items to a file, or as CSV to the standard output."""
    trained, config = RunFolder(run).load(), _config_of(run)
    inputs = open_inputs(
        data,
        images,
        side_of(trained.model),
        "skip" if skip_bad else "error",
        "features" if trained.model.input.kind == "features" else "image",
        features=config.data.features or None,
        labels=trained.names,
    )
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder, Progress(console=console, transient=True) as bars:
        bar = bars.add_task("predicting", total=inputs.n_items)
        target = Path(out) if out is not None else Path(folder) / "predictions.csv"
        done = prediction.predict(
            trained,
            inputs,
            target,
            form=form,  # type: ignore[arg-type]
            top=top,
            batch_size=batch_size,
            workers=n_workers(-1, None)
            if inputs.kind == "image" and (inputs.n_items or batch_size + 1) > batch_size
            else 0,
            device=pick_device(device),
            progress=lambda n, total: bars.update(bar, completed=n, total=total),
        )
        if out is None:
            with target.open(encoding="utf-8") as lines:
                shutil.copyfileobj(lines, sys.stdout)
    for name, reason in done.bad[:10]:
        console.print(f"Left out {name}: {reason}", style="yellow", markup=False, highlight=False)
    if out is not None:
        left = f", {len(done.bad):,} of them unreadable" if done.bad else ""
        console.print(f"{done.n_items:,} items{left} in {out}.", markup=False, highlight=False)


def _config_of(run: str) -> Config:
    return load_config(Path(run) / "config.toml")


def _items(
    config: Config, data: str | None, split: str | None, first: Sequence[str] = ("test", "validation")
) -> tuple[Any, str]:
    """Return labelled items and what they are called: other data, another split, or the run's own."""
    if data is None and split is None:
        if not config.data.path:
            raise ValueError("the run was not trained from a path: give the items with --data")
        own = open_datasets(config.data, config.model, config.train.seed)
        for name in first:
            if getattr(own, name) is not None:
                return getattr(own, name), name
        raise ValueError("the run has neither test nor validation items: give some with --data")
    source = replace(config.data, path=data or config.data.path, split=split or "", validation=0.0, test="")
    return open_datasets(source, config.model, config.train.seed).train, split or str(data)


def _show(metrics: dict[str, Any], name: str, as_json: bool) -> None:
    if as_json:
        print(dumps(metrics, ensure_ascii=False))
    else:
        scores.show(metrics, Console(), name)


def _default_out(asked: fit.Asked) -> str:
    """runs/DATA-RECIPE."""
    source = Path(asked.config.data.path)
    return str(Path("runs") / "-".join(part for part in (source.stem or source.name, asked.recipe or "run") if part))


def _say_next(out: Path, console: Console) -> None:
    console.print(f"\nThe run is in {out}, with report.html.", markup=False, highlight=False)
    console.print(f"Next: steelyard predict {out} NEW-ITEMS --out predictions.csv", markup=False, highlight=False)
