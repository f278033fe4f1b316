"""Every method on one data set, with features of a frozen network: a table of mAP and calibration error.

    python examples/every_loss.py FOLDER-WITH-VOCdevkit --cache features/ --out runs/voc

FOLDER holds `VOCdevkit/VOC2012`; training is on its `train` part, a tenth of it held out for calibration, and the table
is measured on `val`. The features are computed once, each method then takes seconds. Any other data
will do: --format, --test.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from steelyard.config.recipes import METHODS
from steelyard.config.settings import Config, load_config
from steelyard.folder.run_folder import RunFolder
from steelyard.report.headline import get
from steelyard.report.scores import percent
from steelyard.run import train

METHODS_SHOWN = tuple(name for name in METHODS if name not in ("db-focal", "finetune", "scratch"))
"""All but one that is the same as db, and two that vary the images, of which only features are kept here."""


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("data")
    ask.add_argument("--format", default="voc")
    ask.add_argument("--test", default="val")
    ask.add_argument("--size", type=int, default=160)
    ask.add_argument("--epochs", type=int, default=30)
    ask.add_argument("--seed", type=int, default=0)
    ask.add_argument("--cache", default="features")
    ask.add_argument("--out", default="runs/every-loss")
    ask.add_argument("--methods", nargs="*", default=METHODS_SHOWN)
    given = ask.parse_args()
    console = Console(width=max(Console().width, 110))
    said = {
        "data": {
            "path": given.data,
            "format": given.format,
            "test": given.test,
            "size": given.size,
            "cache": given.cache,
        },
        "model": {"backbone": "lite0", "frozen": True},
        "train": {"epochs": given.epochs, "seed": given.seed},
    }

    def configure(recipe: str | None) -> Config:
        return load_config(None, recipe, (), said)

    request = train.prepare(configure, "bce")
    table = Table(title=f"{given.data}, tested on {given.test}; per cent")
    for title in ("method", "mAP", "mAP of items", "F1", "ACE by σ", "ACE by link", "ACE", "read by", "seconds"):
        table.add_column(title, justify="left" if title in ("method", "read by") else "right")
    for name in given.methods:
        out = Path(given.out) / name
        start = time.perf_counter()
        if not RunFolder(out).is_finished:
            train.run(request._replace(config=configure(name), recipe=name), out, draws=False)
        metrics = RunFolder(out).read_metrics()["test"]
        table.add_row(
            name,
            percent(get(metrics, "mAP", "label")),
            percent(get(metrics, "mAP", "item")),
            percent(get(metrics, "macro", "f1")),
            percent(get(metrics, "plain_sigmoid", "calibration", "pooled", "ace")),
            percent(get(metrics, "by_link", "calibration", "pooled", "ace")),
            percent(get(metrics, "calibration", "pooled", "width", "ace")),
            str(get(metrics, "reading", "kind")),
            f"{time.perf_counter() - start:.0f}",
        )
        console.print(f"{name}: mAP {percent(get(metrics, 'mAP', 'label'))}", highlight=False)
    console.print(table)


if __name__ == "__main__":
    main()
