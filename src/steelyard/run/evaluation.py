"""Metrics of a trained model on labelled items, with its own probabilities and thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from steelyard.calibrate.crossfit import folds_of, mark_of
from steelyard.calibrate.probability import ProbabilityModel
from steelyard.config.sections import EvaluateSettings
from steelyard.data.streams import Inputs
from steelyard.data.subset import Labelled, skipped_at, skipped_sentence
from steelyard.folder.run_folder import RunFolder, Trained
from steelyard.labels import UNKNOWN, Labels
from steelyard.labels.matching import Match, match_labels
from steelyard.labels.targets import as_tensor, known
from steelyard.metrics import Evaluator, label_groups, mean_average_precision, measures, rarest_labels
from steelyard.metrics.inputs import paired
from steelyard.predict.feature_cache import features_for, kept_for
from steelyard.predict.prediction import batch_logits
from steelyard.report.scores import better_by
from steelyard.report.threshold_table import threshold_rows
from steelyard.run.deployment import Deployment, deployment
from steelyard.training.batches import all_outputs
from steelyard.training.race.candidates import macro_log_loss
from steelyard.training.small_models import annotated_note

_ROWS = 4096


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Outputs of a model for some items, and their targets, in the order of its labels."""

    logits: Tensor
    """z, (N, L), float32."""
    targets: Tensor
    """(N, L), unknown where the data lacks a label."""
    probabilities: Tensor
    """η, (N, L), float32; numbers that rank like z where there are no probabilities."""
    ranks: Tensor
    """Numbers (N, L) by which the run ranks the items of a label: η by its own calibrator, not by those of folds.

    Calibrators rise with z, so the run ranks as z does. Those of several folds move items of one fold past those of
    another, which costs mean average precision that the run does not lose."""
    decisions: Tensor
    """Labels decided present, bool (N, L)."""
    probability_model: ProbabilityModel
    """Probability model that gave probabilities and decisions."""
    out_of_fold: bool
    match: Match
    deployment: Deployment | None
    n_unreadable: int = 0
    """Images that could not be read: their labels count as unknown."""
    unreadable: str = ""
    """Sentence about them."""
    by_folds: bool = False
    """True if these are the training items, each scored by models of folds that were not fitted to it."""

    def without(self, data: Any, positions: NDArray[np.int64]) -> Evaluation:
        """Return the evaluation with the images of `data` at these positions noted as unreadable."""
        return replace(self, n_unreadable=len(positions), unreadable=skipped_sentence(data, positions))


def evaluate(
    trained: Trained,
    data: Any,
    settings: EvaluateSettings | None = None,
    out_of_fold: bool = False,
    device: str | torch.device = "cpu",
    workers: int = 0,
    console: Console | None = None,
) -> dict[str, Any]:
    """Return every metric of a trained model on labelled items, as a nested dict of plain numbers, fit for JSON.

    Beyond `Evaluator.compute` at the run's thresholds it has `at_half`, scores of decisions at ½; `thresholds`, scores
    of decisions label by label (`threshold_rows`); `plain_sigmoid` and `by_link`, calibration and scores where logits
    are converted by σ, or by the loss's link alone; `single_label`, accuracy by argmax; `unreadable`, the number of
    images that were skipped (their labels count as unknown); `reading`, how probabilities are computed;
    `deploy_prior`; `labels_lacking` and `labels_besides`, the labels in which data and model differ; and `notes`,
    warnings in sentences.

    Args:
        trained: the model and how its probabilities are computed.
        data: labelled items, or (logits (N, L), targets (N, L) or `Labels`). Labels are matched by name where there
            are names: labels that the data lacks are unknown, labels that the model lacks are left out and named.
        settings: the section [evaluate]; its `calibration` and `thresholds` are not used here.
        out_of_fold: the items are the run's own validation items: each is scored by a calibrator and thresholds
            fitted without its fold, unless these were fitted to other items since.
        device, workers: the device of the model, and the number of processes that load items.
        console: shows the progress of computing frozen features; None shows nothing.
    """
    settings = settings or EvaluateSettings()
    judged = judge(trained, data, settings, out_of_fold, device, workers, console)
    return report(trained, judged, settings)


def judge(
    trained: Trained,
    data: Any,
    settings: EvaluateSettings,
    out_of_fold: bool = False,
    device: str | torch.device = "cpu",
    workers: int = 0,
    console: Console | None = None,
    folds: NDArray[np.int64] | None = None,
) -> Evaluation:
    """Run the model on items and return its outputs, which `report` measures; arguments as for `evaluate`.

    `folds` (N,) are those of the items, where items of one group are in one fold.
    """
    logits, targets, match = outputs_of(trained, data, settings.batch_size, device, workers, console)
    if folds is None and out_of_fold:
        folds = own_folds(trained, data, targets)
    probability_model, deployed = trained.probability_model, None
    if settings.deploy_prior and probability_model.has_probability and not out_of_fold:
        deployed = deployment(settings.deploy_prior, probability_model, trained.names, logits)
        probability_model = deployed.of(probability_model)
        if deployed.moves and len(logits):
            probability_model = probability_model.with_thresholds_there(probability_model.probability(logits))
    judged = judged_by(probability_model, logits, targets, match, out_of_fold, deployed, folds)
    return judged.without(data, skipped_at(data)) if isinstance(data, Labelled) else judged


def own_folds(trained: Trained, data: Any, targets: Tensor) -> NDArray[np.int64] | None:
    """Return folds (N,) that keep groups together: of labelled items, or those of `folds.npz`; None for any folds."""
    if not isinstance(data, tuple):
        return grouped_folds(data, targets)
    if trained.folder is None or not are_of_folds(RunFolder(trained.folder), targets):
        return None
    return RunFolder(trained.folder).read_group_folds()


def are_of_folds(run: RunFolder, targets: Tensor) -> bool:
    """Return whether these are the items of `folds.npz`, whose logits come from the models of folds."""
    folds = run.read_folds()
    return folds is not None and mark_of(torch.from_numpy(folds[1])) == mark_of(targets)


def grouped_folds(data: Any, targets: Tensor) -> NDArray[np.int64] | None:
    """Return folds (N,) of labelled items with a group in one fold; None where they have fewer than two groups."""
    groups = getattr(getattr(data, "labels", None), "item_groups", None)
    if groups is None or len(np.unique(groups)) < 2:
        return None
    return folds_of(targets, groups=groups)


def judged_by(
    probability_model: ProbabilityModel,
    logits: Tensor,
    targets: Tensor,
    match: Match,
    out_of_fold: bool = False,
    deployed: Deployment | None = None,
    folds: NDArray[np.int64] | None = None,
) -> Evaluation:
    """Return probabilities and decisions for logits, with the targets; for `out_of_fold` and `folds` see `judge`."""
    if not probability_model.has_probability:
        largest = float(logits.abs().max()) if len(logits) else 0.0
        eta = torch.sigmoid(logits * (8 / largest if largest > 8 else 1.0))  # ranks as z does, where σ(z) would be 1
        return Evaluation(logits, targets, eta, eta, eta >= 0.5, probability_model, out_of_fold, match, deployed)
    own = _fitted_to(probability_model, targets) if out_of_fold else (False, False)
    if any(own) and len(logits) > 1:
        ranks = probability_model.probability(logits)
        eta, decisions = _out_of_fold(probability_model, logits, targets, *own, folds)
    else:
        eta = ranks = probability_model.probability(logits)
        decisions = probability_model.decisions(eta)
    return Evaluation(logits, targets, eta, ranks, decisions, probability_model, any(own), match, deployed)


def report(trained: Trained, judged: Evaluation, settings: EvaluateSettings) -> dict[str, Any]:
    """Return the metrics of an evaluation; see `evaluate`."""
    probability_model, counts, eta, targets = (
        judged.probability_model,
        trained.counts,
        judged.probabilities,
        judged.targets,
    )
    metrics = _measured(trained, judged, eta, settings)
    if judged.ranks is not eta:
        measures.rank(metrics, _measured(trained, judged, judged.ranks, settings))
    k = min(settings.tail, len(trained.names))
    rarest = {str(k): rarest_labels(counts, k)}
    notes = [judged.unreadable] if judged.unreadable else []
    notes += [*judged.match.notes, *(judged.deployment.notes if judged.deployment else ())]
    if probability_model.annotated is not None:
        notes.append(annotated_note(trained.names, probability_model.annotated, settings.positives_per_item))
    if not judged.out_of_fold and mark_of(targets) in (probability_model.fitted_to, probability_model.chosen_on):
        notes.append("these seem to be the items that calibrator or thresholds were fitted to: scores are too good")
    if not probability_model.has_probability:
        notes.append(f"there are no probabilities, so no decisions and no calibration error: {probability_model.why}")
        metrics = measures.without_probabilities(metrics)
    elif judged.out_of_fold and probability_model.aim.needs_items and len(targets):
        groups = {"groups": label_groups(counts, settings.head_at, settings.tail_below), "rarest": rarest}
        measures.redecide(metrics, judged.decisions, targets, groups, settings.bootstrap)
    has_eta = probability_model.has_probability
    one_each = settings.single_label == "yes" or (settings.single_label == "auto" and trained.single_label)
    return {
        **metrics,
        "unreadable": judged.n_unreadable,
        "at_half": measures.decision_scores(eta >= 0.5, targets) if has_eta else None,
        "thresholds": threshold_rows(probability_model, trained.names, judged.decisions, targets) if has_eta else None,
        "plain_sigmoid": measures.probability_scores(torch.sigmoid(judged.logits), targets, settings.bins),
        "by_link": _by_link(judged, settings.bins),
        "single_label": measures.single_label_scores(eta, judged.logits, targets, rarest) if one_each else None,
        "reading": {
            "kind": probability_model.kind if has_eta else None,
            "how": probability_model.how,
            "goal": probability_model.aim.goal,
            "out_of_fold": judged.out_of_fold,
            "by_folds": judged.by_folds,
            "log_loss_of_kinds": dict(probability_model.trials),
        },
        "deploy_prior": None if judged.deployment is None else judged.deployment.report,
        "labels_lacking": list(judged.match.lacking),
        "labels_besides": list(judged.match.besides),
        "notes": notes,
    }


def _measured(trained: Trained, judged: Evaluation, scores: Tensor, settings: EvaluateSettings) -> dict[str, Any]:
    """Return every metric of scores (N, L) in [0, 1]."""
    evaluator = Evaluator(len(trained.names), trained.names, trained.counts, settings.bins)
    for start in range(0, len(scores), _ROWS):
        evaluator.update(scores[start : start + _ROWS], judged.targets[start : start + _ROWS])
    return evaluator.compute(
        judged.probability_model.thresholds,
        [min(settings.tail, len(trained.names))],
        settings.head_at,
        settings.tail_below,
        bootstrap=settings.bootstrap,
        training_items=int(judged.probability_model.n_known.max(initial=0)),
    )


def _by_link(judged: Evaluation, bins: int) -> dict[str, Any] | None:
    """Return calibration and scores where the loss's link alone converts logits, nothing fitted."""
    probability_model = judged.probability_model
    if probability_model.link is None:
        return None
    plain = probability_model.fit(judged.logits[:0], judged.targets[:0], "link")
    return measures.probability_scores(plain.probability(judged.logits), judged.targets, bins)


def outputs_of(
    trained: Trained,
    data: Any,
    batch_size: int,
    device: str | torch.device,
    workers: int,
    console: Console | None = None,
) -> tuple[Tensor, Tensor, Match]:
    """Return logits and targets in the order of the model's labels, and how labels were matched.

    `data` is as for `evaluate`, or `Inputs`, whose labels are all unknown.
    """
    n_labels = len(trained.names)
    if isinstance(data, Inputs):
        rows = [logits for logits, _ in batch_logits(trained, data, batch_size, device, workers, console)]
        logits = torch.cat([torch.zeros(0, n_labels), *rows])
        return logits, torch.full_like(logits, UNKNOWN, dtype=torch.int8), match_labels(trained.names, trained.names)
    if not isinstance(data, tuple):
        match, model, items = match_labels(trained.names, data.labels.names), trained.model.to(device), data
        if (keeping := kept_for(trained, data, console)) is not None:
            model, items = features_for(model, data, keeping, batch_size, device, workers, console)
            workers = 0
        logits, targets = all_outputs(model, items, batch_size, device, workers)
        logits = logits if len(logits) else torch.zeros(0, n_labels)
        return _finite(logits, data.labels.ids), match.targets(targets), match
    logits, targets = as_tensor(data[0], "logits").cpu().float(), data[1]
    match = match_labels(trained.names, targets.names if isinstance(targets, Labels) else trained.names)
    values = match.targets(as_tensor(targets.values if isinstance(targets, Labels) else targets, "targets").cpu())
    if logits.ndim != 2 or logits.shape[1] != n_labels:
        raise ValueError(
            f"logits has shape {tuple(logits.shape)}: give (N, {n_labels}), one column per label of the model"
        )
    paired(logits, values, "logits")
    return _finite(logits, None), values, match


def _finite(logits: Tensor, ids: Sequence[str] | None) -> Tensor:
    bad = ~torch.isfinite(logits).all(1)
    if bool(bad.any()):
        i = int(bad.nonzero()[0])
        who = f"item {i}" if ids is None else f"item {ids[i]!r}"
        raise ValueError(f"the model's output for {who} is not finite: check that item, or train again")
    return logits


def beside_baselines(judged: Evaluation, labels: Labels, regression: Tensor | None) -> dict[str, Any] | None:
    """Return the scores of a run and of the simplest baselines on the same items, None without probabilities.

    Args:
        judged: outputs of the run.
        labels: training labels, whose frequencies are the first baseline.
        regression: log-odds (N, L) by logistic regression, or None.
    """
    if not judged.probability_model.has_probability:
        return None
    n, k = (torch.tensor(part, dtype=torch.float64) for part in (labels.counts, labels.n_known))
    rows = {
        "this run": judged.ranks,
        "label frequency": torch.logit((n + 0.5) / (k + 1)).expand(judged.targets.shape),
    }
    if regression is not None:
        rows["logistic regression"] = regression
    return _beside(judged, {name: _scores(log_odds, judged.targets) for name, log_odds in rows.items()})


def beside_stored(judged: Evaluation, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part "baselines" of metrics: the scores that training stored, beside those of the run as it is now.

    Args:
        judged: outputs of the run for its own test or validation items.
        stored: what `metrics.json` has of the same items.
    """
    rows = stored.get("baselines")
    if not rows or not judged.probability_model.has_probability:
        return {}
    return {
        "baselines": _beside(judged, {name: {k: row[k] for k in ("map", "log_loss")} for name, row in rows.items()})
    }


def _beside(judged: Evaluation, scores: dict[str, dict[str, float | None]]) -> dict[str, Any]:
    """Return scores by name with those of the run for "this run", and by how much it is better than each other."""
    ranked, likely = (_scores(s, judged.targets) for s in (judged.ranks, torch.logit(judged.probabilities.double())))
    ours = scores["this run"] = likely | {"map": ranked["map"]}
    return {name: row if row is ours else row | {"better_by": better_by(ours, row)} for name, row in scores.items()}


def _scores(log_odds: Tensor, targets: Tensor) -> dict[str, float | None]:
    """Return mAP and the log-loss of known labels, the mean over labels."""
    if not bool(known(targets).any()):
        return {"map": None, "log_loss": None}
    loss = macro_log_loss(log_odds.double(), targets)
    return {"map": measures.number(mean_average_precision(log_odds, targets)), "log_loss": measures.number(loss)}


def _fitted_to(probability_model: ProbabilityModel, targets: Tensor) -> tuple[bool, bool]:
    """Return whether the calibrator, and whether the thresholds, were fitted to items with these targets.

    True if the items were not noted; if one was not fitted at all, it counts like the other.
    """
    mark = mark_of(targets)
    fitted, chosen = (noted in (None, mark) for noted in (probability_model.fitted_to, probability_model.chosen_on))
    if probability_model.calibrator is None and probability_model.chosen_thresholds is not None:
        fitted = chosen  # the link was fitted to no items
    return fitted, chosen if probability_model.chosen_thresholds is not None else fitted


def _out_of_fold(
    probability_model: ProbabilityModel,
    logits: Tensor,
    targets: Tensor,
    calibrator: bool,
    thresholds: bool,
    folds: NDArray[np.int64] | None,
) -> tuple[Tensor, Tensor]:
    """Return η and decisions of every item; calibrator and thresholds, where set, are fitted without its fold."""
    folds = folds_of(targets) if folds is None else folds

    def read(by: ProbabilityModel) -> Tensor:
        eta: Tensor = by.out_of_fold(logits, targets, folds) if calibrator else by.probability(logits)
        return eta

    before = read(probability_model.with_prior(None))
    eta = before if probability_model.to_prior is None else read(probability_model)
    decisions: Tensor = probability_model.decisions(eta)
    choosing = thresholds and probability_model.chosen_thresholds is not None
    for fold in np.unique(folds).tolist() if choosing else ():
        inside, others = (
            torch.from_numpy(np.flatnonzero(chosen_items)) for chosen_items in (folds == fold, folds != fold)
        )
        chosen = probability_model.with_thresholds(probability_model.aim, before[others], targets[others])
        decisions[inside] = chosen.decisions(eta[inside])
    return eta, decisions
