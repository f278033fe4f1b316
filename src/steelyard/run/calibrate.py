"""Fit probabilities and thresholds to held-out items, at the end of training or later on other items."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from steelyard.calibrate.aim import Aim
from steelyard.calibrate.crossfit import label_sets, mark_of
from steelyard.calibrate.guarantees import Guarantee, guaranteed_thresholds
from steelyard.calibrate.probability import ProbabilityModel
from steelyard.config.sections import EvaluateSettings
from steelyard.data.subset import Labelled, skipped_at
from steelyard.folder.run_folder import RunFolder, Trained
from steelyard.labels.targets import known
from steelyard.report.threshold_table import promise_rows
from steelyard.run import run_report
from steelyard.run.deployment import ESTIMATE, Deployment, deployment
from steelyard.run.evaluation import are_of_folds, beside_stored, judged_by, outputs_of, own_folds, report


def calibrated(
    probability_model: ProbabilityModel,
    logits: Tensor,
    targets: Tensor,
    settings: EvaluateSettings,
    names: Sequence[str],
    folds: NDArray[np.int64] | None = None,
    refitted: bool = False,
) -> ProbabilityModel:
    """Return the probability model with calibrator, thresholds and deployment prior as [evaluate] sets them.

    Thresholds are chosen on out-of-fold probabilities, so that they suit what the calibrator does to new items. The
    prior "estimate" is ignored here: it is estimated from the items of deployment, when those are evaluated. Whether
    that estimate will be of whole label sets is decided here (`crossfit.label_sets`).

    Args:
        reading: the probability model of the trained objective.
        logits, targets: of items that training has not seen, (N, L); without items nothing is fitted.
        settings: the section [evaluate].
        names: of the labels, (L,).
        folds: (N,), the fold of each item, for instance to keep groups together; None draws folds.
        refitted: whether the logits come from models of folds, which one model fitted to all items replaced.
    """
    fitted, eta = probability_model, None
    if len(logits):
        fitted = probability_model.fit(logits, targets, settings.calibration, folds, refitted)
        eta = fitted.out_of_fold(logits, targets, folds) if fitted.has_probability and len(logits) > 1 else None
        if fitted.has_probability and fitted.kind != "none":
            fitted = replace(fitted, sets=label_sets(fitted.log_odds(logits.double()), targets))
    elif settings.calibration == "none":
        fitted = probability_model.fit(logits, targets, "none")
    if settings.deploy_prior not in ("", ESTIMATE) and fitted.has_probability:
        fitted = deployment(settings.deploy_prior, fitted, names).of(fitted)
    return fitted.with_thresholds(_aim(settings), eta, None if eta is None else targets)


def recalibrate(
    folder: RunFolder | str | os.PathLike[str],
    data: Any,
    settings: EvaluateSettings,
    keep: bool = False,
    device: str | torch.device = "cpu",
    workers: int = 0,
    console: Console | None = None,
    guarantee: GuaranteeArgs | None = None,
) -> dict[str, Any]:
    """Fit calibrator and thresholds of a finished run to other items, write them to the run, and return the metrics.

    `calibration.json` is replaced and `metrics.json` gets the part `recalibration`. A `report.html` is written again
    for these items, or marked as outdated where they have no labels or matplotlib is missing. With `keep` the
    calibrator stays, and only thresholds and the deployment prior change: that is how a model is adapted to items
    without labels, with the prior "estimate".

    Args:
        folder: the run.
        data: items like those of training that training has not seen, or (logits, targets), as for `evaluate`; with
            `keep` and the prior "estimate", items of deployment, labelled or as `Inputs`.
        settings: the section [evaluate].
        keep: whether the calibrator stays.
        device, workers: the device of the model, and the number of processes that load items.
        console: shows the progress of computing frozen features; None shows nothing.
        guarantee: the guarantee that thresholds are to give for precision or recall, None for no guarantee. With one,
            the metrics have a part `promise` and are those of the items it rests on.
    """
    run = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    trained = run.load()
    if settings.deploy_prior == ESTIMATE and not keep:
        raise ValueError(
            "--deploy-prior estimate cannot use the items that the calibrator is fitted to: add --keep, or give the "
            "prior in a file"
        )
    logits, targets, match = outputs_of(trained, data, settings.batch_size, device, workers, console)
    if len(logits) == 0:
        raise ValueError("the data holds no items: give some to calibrate on")
    folds = own_folds(trained, data, targets) if guarantee is None else None
    own = isinstance(data, tuple) and are_of_folds(run, targets)
    if guarantee is not None:
        probability_model, logits, targets, deployed = (
            *_promised(run, trained, logits, targets, data, settings, keep, guarantee),
            None,
        )
    elif keep:
        probability_model, deployed = _kept(trained, logits, targets, settings)
    else:
        probability_model, deployed = (
            calibrated(trained.probability_model, logits, targets, settings, trained.names, folds, own),
            None,
        )
        if own and trained.probability_model.annotated is not None:  # these items know no negatives still
            probability_model = probability_model.with_annotated(trained.probability_model.annotated)
    judged = judged_by(probability_model, logits, targets, match, guarantee is None, deployed, folds)
    judged = replace(judged, by_folds=own)
    if isinstance(data, Labelled):
        judged = judged.without(data, skipped_at(data))
    now = trained.read_by(probability_model)
    metrics = report(now, judged, settings)
    metrics |= beside_stored(judged, run.read_metrics().get("validation", {})) if own else {}
    if (promise := probability_model.aim.promise) is not None:
        metrics["promise"] = promise_rows(guaranteed_thresholds(judged.probabilities, targets, promise), trained.names)
    run.write_probability_model(probability_model)
    run.write_metrics({"recalibration": metrics})
    if (run / run_report.CARD).exists():
        run_report.write_card(run, run.read_facts())
    if (run / run_report.NAME).exists():
        labelled = bool(known(judged.targets).any())
        if not (labelled and run_report.write_report(run, now, judged, metrics, settings, "recalibration")):
            run_report.mark_outdated(run)
    return metrics


class GuaranteeArgs(NamedTuple):
    """Arguments of a guarantee for the precision or recall of thresholds."""

    kind: Guarantee
    confidence: float = 0.9
    joint: bool = False
    holdout: float = 0.5
    """Share of the items that the guarantee rests on; the calibrator is fitted to the others, unless it is kept."""


def _promised(
    run: RunFolder,
    trained: Trained,
    logits: Tensor,
    targets: Tensor,
    data: Any,
    settings: EvaluateSettings,
    keep: bool,
    guarantee: GuaranteeArgs,
) -> tuple[ProbabilityModel, Tensor, Tensor]:
    """Return the probability model with guaranteed thresholds, and the logits and targets the guarantee rests on."""
    if isinstance(data, tuple) and are_of_folds(run, targets):
        raise ValueError(
            "a guarantee needs items that no model has seen, but the run has only out-of-fold ones, each scored by "
            "another model than the one that is kept: train with --holdout SHARE, or give others with --data"
        )
    if settings.deploy_prior:
        raise ValueError("a guarantee holds for items like these, not for another prior: leave out --deploy-prior")
    if isinstance(data, Labelled) and data.labels.item_groups is not None:
        raise ValueError(
            "a guarantee needs items that are independent of one another, but these come in groups: give one of each "
            "group with --data"
        )
    aim = replace(_aim(settings), guarantee=guarantee.kind, confidence=guarantee.confidence, joint=guarantee.joint)
    if keep:
        if mark_of(targets) == trained.probability_model.fitted_to:
            raise ValueError("--keep is given, but the calibrator was fitted to these items: leave it out")
        probability_model = trained.probability_model.with_prior(None)
    else:
        if not 0 < guarantee.holdout < 1:
            raise ValueError(f"--holdout is {guarantee.holdout:g}: give a share above 0 and below 1")
        order = torch.randperm(len(logits), generator=torch.Generator().manual_seed(0))
        n = min(max(round(guarantee.holdout * len(order)), 1), len(order) - 1)
        held, rest = order[:n].sort().values, order[n:].sort().values
        if len(rest) == 0:
            raise ValueError("the data holds one item, but a guarantee needs two or more: give more")
        plain = replace(settings, thresholds="half")
        probability_model = calibrated(trained.probability_model, logits[rest], targets[rest], plain, trained.names)
        logits, targets = logits[held], targets[held]
    if not probability_model.has_probability:
        raise ValueError(
            f"a guarantee needs probabilities, but there are none, since {probability_model.why}: add --kind platt"
        )
    return probability_model.with_thresholds(aim, probability_model.probability(logits), targets), logits, targets


def _kept(
    trained: Trained, logits: Tensor, targets: Tensor, settings: EvaluateSettings
) -> tuple[ProbabilityModel, Deployment | None]:
    """Return the run's probability model with the same calibrator and new thresholds and deployment prior."""
    probability_model, aim, deployed = trained.probability_model.with_prior(None), _aim(settings), None
    eta = probability_model.probability(logits)
    if settings.deploy_prior:
        deployed = deployment(settings.deploy_prior, probability_model, trained.names, logits)
        probability_model = deployed.of(probability_model)
    if settings.deploy_prior != ESTIMATE:
        probability_model = probability_model.with_thresholds(aim, eta, targets)
    elif probability_model.to_prior is not None or aim != probability_model.aim:
        probability_model = replace(probability_model, aim=aim).with_thresholds_there(
            probability_model.probability(logits)
        )
    return probability_model, deployed


def _aim(settings: EvaluateSettings) -> Aim:
    """Return what thresholds are chosen for, from the section [evaluate]."""
    return Aim(settings.thresholds, settings.target, settings.false_positive_cost, settings.false_negative_cost)
