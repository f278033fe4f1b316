"""What the SPA paper's tables train and measure: losses, how their logits are read, accuracy and calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steelyard.calibrate import Temperature
from steelyard.calibrate.crossfit import item_log_loss
from steelyard.labels.targets import known
from steelyard.metrics import average_precision, calibration_error, mean_average_precision, retrieval_map
from steelyard.objective.parts import Part
from steelyard_papers.findings import Claim, Difference
from steelyard_papers.result import RunResult, on
from steelyard_papers.spa_figures import best_items
from steelyard_papers.study import Measured, Row
from steelyard_papers.trial import Trial

WEIGHT = 1.0
"""Of LPR, on which the paper is silent."""
BY_SIGMA, BY_LINK, BY_TEMPERATURE = "σ", "φ", "T"
"""How logits are read: by σ, by the derived link of the loss, by σ after scaling with one temperature."""


def _objective(loss: Part, weight: float = 0.0, link: bool = True) -> dict[str, Any]:
    pairs = Part("on", {"weight": weight, "link": link}) if weight else Part("none")
    return {"objective": {"loss": loss, "label_pair": pairs}}


_BCE, _FOCAL, _ASY, _TWL, _SPA = (
    Part("bce"),
    Part("focal", {"gamma": 2.0}),
    Part("asymmetric"),
    Part("two_way"),
    Part("spa"),
)
_HELD_OUT = {"data": {"validation": 0.1}, "evaluate": {"calibration": "temperature"}, "train": {"keep": "last"}}
RUNS = {
    row.name: row
    for row in (
        Row("BCE", _objective(_BCE)),
        Row("focal", _objective(_FOCAL)),
        Row("ASY", _objective(_ASY)),
        Row("TWL", _objective(_TWL)),
        Row("TWL + TS", _objective(_TWL) | _HELD_OUT),
        Row("SPA", _objective(_SPA)),
        Row("SPA + LPR", _objective(_SPA, WEIGHT)),
        Row("BCE + LPR", _objective(_BCE, WEIGHT)),
        Row("focal + LPR", _objective(_FOCAL, WEIGHT, link=False)),
        Row("focal + LPR on φ", _objective(_FOCAL, WEIGHT)),
        Row("ASY + LPR", _objective(_ASY, WEIGHT, link=False)),
        Row("ASY + LPR on φ", _objective(_ASY, WEIGHT)),
    )
}
"""All trainings by name; rows of the tables are readings of them."""

TABLE3 = {
    "BCE": ("BCE", BY_SIGMA),
    "focal": ("focal", BY_SIGMA),
    "focal by φ": ("focal", BY_LINK),
    "ASY": ("ASY", BY_SIGMA),
    "ASY by φ": ("ASY", BY_LINK),
    "TWL": ("TWL", BY_SIGMA),
    "TWL + TS": ("TWL + TS", BY_TEMPERATURE),
    "SPA by σ": ("SPA", BY_SIGMA),
    "SPA": ("SPA", BY_LINK),
    "SPA + LPR": ("SPA + LPR", BY_LINK),
}
TABLE4 = {
    "BCE": ("BCE", BY_SIGMA),
    "BCE + LPR": ("BCE + LPR", BY_SIGMA),
    "focal": ("focal", BY_SIGMA),
    "focal + LPR": ("focal + LPR", BY_SIGMA),
    "focal by φ": ("focal", BY_LINK),
    "focal + LPR by φ": ("focal + LPR on φ", BY_LINK),
    "ASY": ("ASY", BY_SIGMA),
    "ASY + LPR": ("ASY + LPR", BY_SIGMA),
    "ASY by φ": ("ASY", BY_LINK),
    "ASY + LPR by φ": ("ASY + LPR on φ", BY_LINK),
    "SPA": ("SPA", BY_LINK),
    "SPA + LPR": ("SPA + LPR", BY_LINK),
}
"""By row of the table: the training, and how its logits are read."""
FINE_TUNED: dict[str, dict[str, Any]] = {"data": {"validation": 0.1}, "train": {"epochs": 12, "keep": "last"}}
"""Of trainings whose epoch is chosen afterwards: a tenth of the training items is held out in every row."""


def at_held_out(table: Mapping[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Return a table for trainings that all hold items out: TWL + TS is then a reading of TWL's own training."""
    return {name: ("TWL", how) if run == "TWL + TS" else (run, how) for name, (run, how) in table.items()}


def held_out_loss(trial: Trial) -> float:
    """Return the log-loss, a known label, of the held-out items by the loss's own link.

    A loss without a link is read by σ after one temperature, fitted to the same items.
    """
    z, t = trial.outputs["validation"]
    if trial.reading.link is not None:
        odds = torch.as_tensor(trial.reading.fit(z[:0], t[:0], "link").log_odds(z.double()))
    else:
        odds = torch.logit(Temperature("pooled").fit(z, t)(z).double())
    return float(item_log_loss(odds, t).sum() / known(t).sum())


def at_chosen_epoch(trial: Trial) -> tuple[Trial, list[Trial], int]:
    """Return a run after the epoch of the lowest `held_out_loss`, the run after every epoch, and that epoch.

    One that was not followed is taken as it is in the end, and has no epochs.
    """
    if not trial.is_followed:
        return trial, [], 0
    each = trial.after_epochs()
    chosen = int(np.argmin([held_out_loss(one) for one in each]))
    return each[chosen], each, chosen + 1


def readings(trial: Trial) -> dict[str, Tensor]:
    """Return the probabilities (N, L) of the test items, by the ways in which the loss can be read."""
    found = {BY_SIGMA: torch.sigmoid(trial.logits)}
    if trial.reading.link is not None:
        nothing = (trial.logits[:0], trial.targets[:0])
        found[BY_LINK] = torch.as_tensor(trial.reading.fit(*nothing, "link").probability(trial.logits))
    if "validation" in trial.outputs:
        found[BY_TEMPERATURE] = Temperature("pooled").fit(*trial.outputs["validation"])(trial.logits)
    return found


def spa_scores(trial: Trial) -> Measured:
    """Return mAP by label (@y) and by item (@x), and ACE and MCE by every reading, in per cent; details: their bins.

    Of a run that was followed these are the numbers of its chosen epoch; details: those of all of them.
    """
    shown, each, epoch = at_chosen_epoch(trial)
    found = _scores(shown)
    if not each:
        return found
    along = [{"held-out log-loss": held_out_loss(one), **_scores(one).values} for one in each]
    return Measured(found.values, {**found.details, "epoch": epoch, "epochs": along})


def curve(run: RunResult, how: str) -> tuple[list[float], list[float]]:
    """Return mAP@y and ACE, by one reading, after each epoch of a run."""
    along = run.details["epochs"]
    return [one["mAP@y"] for one in along], [one[f"ACE by {how}"] for one in along]


def equal_accuracy(curves: Mapping[str, Sequence[tuple[Sequence[float], Sequence[float]]]]) -> float:
    """Return the most accuracy that every row has, in every seed, after some epoch; by row, (mAP, ACE) a seed."""
    return min(max(maps) for of_seeds in curves.values() for maps, _ in of_seeds)


def error_at(maps: Sequence[float], errors: Sequence[float], level: float) -> float:
    """Return the ACE where mAP first is `level`, on the straight line between the epochs around it.

    A run whose first epoch is above it already has the error of that epoch.
    """
    last = next(i for i, value in enumerate(maps) if value >= level)
    if last == 0:
        return errors[0]
    part = (level - maps[last - 1]) / (maps[last] - maps[last - 1])
    return errors[last - 1] + part * (errors[last] - errors[last - 1])


def _scores(trial: Trial) -> Measured:
    z, t = trial.logits, trial.targets
    values: dict[str, float | None] = {
        "mAP@y": 100 * mean_average_precision(z, t),
        "mAP@x": 100 * float(average_precision(z, t, per="item").nanmean()),
    }
    bins: dict[str, Any] = {}
    for how, eta in readings(trial).items():
        error = calibration_error(eta, t)
        values |= {f"ACE by {how}": 100 * float(error.ace), f"MCE by {how}": 100 * float(error.mce)}
        parts = {name: _plain(getattr(error.bins, name)) for name in ("edges", "counts", "confidence", "frequency")}
        bins[how] = {"ace": 100 * float(error.ace), **parts}
    return Measured(values, {"bins": bins})


def _plain(values: Tensor) -> list[float | None]:
    return [x if np.isfinite(x) else None for x in values.double().tolist()]


def _searched(trial: Trial, how: str) -> Measured:
    """The mAP of searching by one to five labels, in per cent; details: by their number."""
    trial = at_chosen_epoch(trial)[0]
    found = retrieval_map(readings(trial)[how], trial.targets, progress=lambda _done, _total: None)
    by_terms = {str(k): 100 * value for k, value in found.by_terms.items()}
    return Measured(
        {"retrieval mAP": 100 * found.overall}, {"by_terms": by_terms, "queries": found.n_queries, "exact": found.exact}
    )


def spa_retrieval_by_sigma(trial: Trial) -> Measured:
    """Return the mAP of searching by several labels with σ(z)."""
    return _searched(trial, BY_SIGMA)


def spa_retrieval_by_link(trial: Trial) -> Measured:
    """Return the mAP of searching by several labels with the probability of the loss's link."""
    return _searched(trial, BY_LINK)


QUERIES = (
    (("dog", "person"), ("sofa", "car")),
    (("bicycle", "person"), ("car",)),
    (("chair", "diningtable"), ("person",)),
)
"""Desired and undesired labels of VOC, as Figure 4 shows some."""
SHOWN = 6
"""Images of a query."""


def spa_found(trial: Trial) -> Measured:
    """Return nothing to tabulate; details: by query and reading, the best items and which of them are right."""
    details: dict[str, Any] = {}
    trial = at_chosen_epoch(trial)[0]
    for i, (wanted, unwanted) in enumerate(QUERIES):
        at = [[trial.names.index(name) for name in names] for names in (wanted, unwanted)]
        right = ((trial.targets[:, at[0]] >= 0.5).all(1) & (trial.targets[:, at[1]] < 0.5).all(1)).tolist()
        for how, eta in readings(trial).items():
            best = best_items(eta.numpy(), at[0], at[1], SHOWN).tolist()
            details[f"{i} {how}"] = {"items": best, "right": [bool(right[k]) for k in best]}
    return Measured({}, details)


def spa_answers(trial: Trial) -> Measured:
    """Return VQA accuracy, the mean target of the answer with the largest logit, and ACE and MCE, in per cent."""
    z, t = trial.logits, trial.targets.float()
    values: dict[str, float | None] = {"accuracy": 100 * float(t.gather(1, z.argmax(1, keepdim=True)).mean())}
    for how, eta in readings(trial).items():
        error = calibration_error(eta, t)
        values |= {f"ACE by {how}": 100 * float(error.ace), f"MCE by {how}": 100 * float(error.mce)}
    return Measured(values)


_DATA = (("", "VOC 2012"), ("-features", "COCO 2014"))
"""What follows the name of a table, and the data it is on then."""
_EQUAL = "ACE at equal mAP"
AS_ACCURATE = 0.5
"""Points of mAP within which the paper's rows count as equally accurate: its own are .1 apart."""


def _calibrated(row: str, over: str, table: str = "spa-table3") -> tuple[Difference, ...]:
    return tuple(Difference(f"{table}{ending}", row, over, on("ACE", data)) for ending, data in _DATA)


CLAIMS = (
    Claim(
        "SPA is as accurate as the asymmetric loss",
        tuple(
            Difference(f"spa-table3{ending}", "SPA", "ASY", on("mAP@y", data), AS_ACCURATE) for ending, data in _DATA
        ),
    ),
    Claim("SPA is better calibrated than cross-entropy", _calibrated("SPA", "BCE")),
    Claim("and so at equal mAP", (Difference("spa-epochs", "SPA", "BCE", _EQUAL),)),
    Claim(
        "SPA is better calibrated than focal and asymmetric losses, however these are read",
        tuple(one for row in ("focal", "focal by φ", "ASY", "ASY by φ") for one in _calibrated("SPA", row)),
    ),
    Claim("Label pairs (LPR) calibrate SPA further", _calibrated("SPA + LPR", "SPA")),
    Claim("and so at equal mAP", (Difference("spa-epochs", "SPA + LPR", "SPA", _EQUAL),)),
    Claim(
        "The derived link φ mends much of the error of focal and asymmetric losses",
        (*_calibrated("focal by φ", "focal"), *_calibrated("ASY by φ", "ASY")),
    ),
    Claim(
        "Label pairs (LPR) lower the error of other losses too",
        tuple(one for row in ("BCE", "focal", "ASY") for one in _calibrated(f"{row} + LPR", row, "spa-table4")),
    ),
    Claim(
        "Better calibrated losses find images by several labels better",
        tuple(Difference("spa-fig3", "SPA + LPR", over, "retrieval mAP") for over in ("BCE", "ASY")),
    ),
)
"""The main claims of the paper; calibration is judged at the chosen epochs and at equal accuracy."""
