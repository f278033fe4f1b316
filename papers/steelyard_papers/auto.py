"""`auto` beside the papers' rows: what it trains, and how well its probabilities are calibrated."""

from __future__ import annotations

from typing import Any

from steelyard.config.advice import resolve_auto
from steelyard.config.recipes import settings
from steelyard.labels import Labels
from steelyard.metrics import average_precision, calibration_error, error_by_chance, mean_average_precision
from steelyard_papers.study import Measured
from steelyard_papers.trial import Trial

ROW = "auto takes its objective from the recipe auto for these labels; its network and training are set for this page"
"""A note for tables with such a row."""


def chosen(labels: Labels) -> tuple[str, dict[str, Any]]:
    """Return the recipe that `auto` stands for with these training labels, and its settings."""
    name, _ = resolve_auto(labels)
    return name, settings(name)


def auto_scores(trial: Trial) -> Measured:
    """Return mAP by label (@y) and by item (@x), ACE (as found, by chance) and MCE of the run's probabilities, in %.

    The probabilities are those of the section [evaluate]: the link, then what was fitted to the validation items;
    "ACE by the link" leaves the latter out.
    """
    z, t = trial.logits, trial.targets
    values: dict[str, float | None] = {
        "mAP@y": 100 * mean_average_precision(z, t),
        "mAP@x": 100 * float(average_precision(z, t, per="item").nanmean()),
    }
    readings = {"": trial.reading}
    if trial.reading.link is not None:
        readings[" by the link"] = trial.reading.fit(z[:0], t[:0], "link")
    for how, reading in readings.items():
        if reading.has_probability:
            error = calibration_error(reading.probability(z), t)
            values |= {f"ACE{how}": 100 * float(error.ace), f"MCE{how}": 100 * float(error.mce)}
            if not how:
                values["ACE by chance"] = 100 * error_by_chance(error.bins).ace
    return Measured(values)
