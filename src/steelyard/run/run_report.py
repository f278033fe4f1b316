"""Write `report.html` and `card.md` of a run folder, after training, after recalibration and by `steelyard report`."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steelyard._files import write_atomic
from steelyard.config.sections import EvaluateSettings
from steelyard.folder.run_folder import RunFolder, Trained
from steelyard.report.canvas import has_matplotlib
from steelyard.report.card import model_card
from steelyard.report.evaluated import Evaluated
from steelyard.report.page import add_paragraph
from steelyard.report.run_page import write_run_page
from steelyard.run.evaluation import Evaluation
from steelyard.training.checkpoint import read_history

NAME, CARD = "report.html", "card.md"


def write_card(folder: RunFolder, facts: Mapping[str, Any]) -> None:
    """Write the model card of a run from its files; `facts` is the content of `run.json`."""
    config = tomllib.loads(folder.read_config())
    card = model_card(folder.path.name or "run", config, facts, folder.read_metrics(), folder.read_race())
    write_atomic(folder / CARD, card)


def evaluated_of(trained: Trained, judged: Evaluation, settings: EvaluateSettings) -> Evaluated:
    """Return a trained model's outputs as pages draw them, grouped and binned like the metrics."""
    has = judged.probability_model.has_probability
    return Evaluated(
        names=trained.names,
        counts=trained.counts,
        targets=judged.targets.numpy(),
        probabilities=judged.probabilities.numpy() if has else None,
        logits=judged.logits.numpy(),
        thresholds=judged.probability_model.thresholds if has else None,
        head=settings.head_at,
        tail=settings.tail_below,
        bins=settings.bins,
        ranks=judged.ranks.numpy() if has else None,
    )


def write_report(
    folder: RunFolder,
    trained: Trained,
    judged: Evaluation,
    metrics: dict[str, Any],
    settings: EvaluateSettings,
    split: str,
    path: Path | None = None,
) -> bool:
    """Write the page of an evaluation and return True; without matplotlib nothing is written.

    Args:
        folder: the run.
        trained: the model and its configuration.
        judged: its outputs, which `metrics` measure.
        settings: the section [evaluate].
        split: name of the items.
        path: file to write; None for report.html in the folder.
    """
    if not has_matplotlib():
        return False
    write_run_page(
        path or folder / NAME,
        folder.path.name or "run",
        trained.config,
        metrics,
        read_history(folder / "history.jsonl"),
        evaluated_of(trained, judged, settings),
        _again(folder, trained.config),
        split,
        folder.read_race(),
        card=CARD if path is None or path == folder / NAME else "",
    )
    return True


def mark_outdated(folder: RunFolder) -> None:
    """Add a note to the page of a run that it was recalibrated since."""
    add_paragraph(
        folder / NAME,
        "The run was recalibrated after this page was written, so probabilities, thresholds and scores below are the "
        "earlier ones. The current ones are in metrics.json, under recalibration.",
    )


def _again(folder: RunFolder, config: str) -> str:
    """Return the command that repeats the run."""
    file = folder / "config.toml"
    if tomllib.loads(config).get("data", {}).get("path"):
        return shlex.join(["steelyard", "train", str(file), "--out", f"{folder.path}-again"])
    return f"sy.fit(DATA, None, settings=tomllib.loads(Path({str(file)!r}).read_text()))  # in Python, with its data"
