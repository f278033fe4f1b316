"""A training run, or several side by side, as one HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.metrics import CalibrationError, average_precision
from steelyard.report import page
from steelyard.report.comparison import ComparedRun, write_comparison_page
from steelyard.report.evaluated import Evaluated
from steelyard.report.headline import Metrics, column, get, headline, percent, plural
from steelyard.report.histograms import score_counts, score_histogram
from steelyard.report.history import drawable, history_curves, ratio_curves, series
from steelyard.report.label_scores import fits, label_bars, label_trend
from steelyard.report.precision_recall import precision_recall_curve, precision_recall_plot
from steelyard.report.race_table import outcome_sentence
from steelyard.report.reliability import reliability_diagram

if TYPE_CHECKING:
    from steelyard.config.sections import EvaluateSettings
    from steelyard.folder.run_folder import Trained
    from steelyard.run.evaluation import Judged

__all__ = ["ComparedRun", "Evaluated", "evaluated_of", "write_comparison_page", "write_run_page"]

_MOST_OPEN = 40  # a longer table is folded
_NAMES = {"map": "mAP", "f1": "F1"}
_FALLING = {"loss": "log-loss", "ace": "calibration error (ACE)", "error": "error rate"}
_SCORES = ("f1", "precision", "recall")


def evaluated_of(trained: Trained, judged: Judged, settings: EvaluateSettings) -> Evaluated:
    """Return what a page draws of a trained model's outputs, grouped and binned as the metrics are."""
    has = judged.reading.has_probability
    return Evaluated(
        names=trained.names,
        counts=trained.counts,
        targets=judged.targets.numpy(),
        probabilities=judged.probabilities.numpy() if has else None,
        logits=judged.logits.numpy(),
        thresholds=judged.reading.thresholds if has else None,
        head=settings.head_at,
        tail=settings.tail_below,
        bins=settings.bins,
    )


def write_run_page(
    path: str | Path,
    title: str,
    config_text: str,
    metrics: Metrics,
    history: Sequence[Mapping[str, Any]],
    evaluated: Evaluated,
    command: str = "steelyard train config.toml",
    split: str = "",
    race: Metrics | None = None,
) -> None:
    """Write the page of one run to `path`, whole or not at all.

    - `title`, plain text; `config_text`, the configuration as TOML; `command`, what repeats the run.
    - `metrics`: what `evaluate` gives, or `Evaluator.compute`; a part that is missing is left out of the page.
    - `history`: a dict an epoch, as in `history.jsonl`.
    - `evaluated`: the outputs that `metrics` judges; `split`, what these items are called, such as "validation".
    - `race`: what `race.json` holds, where the run has one.
    """
    error, raw = evaluated.calibration(), evaluated.raw_calibration()
    parts = [page.paragraph(f"{_about(evaluated, history, split)}{_read(metrics)}")]
    if notes := get(metrics, "notes"):
        parts.append(page.remarks(f"{_sentence(note).removesuffix('.')}." for note in notes))
    if evaluated.n_items:
        parts.append(page.numbers(headline(metrics, None if raw is None else float(raw.ace))))
    if rows := get(metrics, "baselines"):
        parts += [page.heading("Is it better than the simplest alternative?"), _beside(rows)]
    if race is not None:
        parts += [page.heading("Which models competed"), page.paragraph(outcome_sentence(race)), _candidates(race)]
    if error or raw:
        parts += [page.heading("Can the probabilities be trusted?"), page.panels(_trust(evaluated, error, raw))]
    if len(history) > 1:
        parts += [page.heading("How training went"), page.panels(_training(history, evaluated))]
    if evaluated.n_items:
        parts += _labels(metrics, evaluated)
    parts += [page.heading("To run it again"), page.code(command)]
    parts.append(page.folded("The configuration, every default written out", page.code(config_text)))
    page.write_page(path, title, parts)


def _beside(rows: Metrics) -> str:
    """The run's scores beside those of baselines on the same items."""
    shown = [(name, _per_cent(row["map"]), row["log_loss"]) for name, row in rows.items()]
    return page.table(("", "mAP, %", "log-loss per label"), shown)


def _per_cent(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 1)


def _candidates(race: Metrics) -> str:
    """The candidates of a race, the best first."""
    shown = [
        (
            row["candidate"],
            row["screened_log_loss"],
            row["log_loss"],
            _per_cent(row["map"]),
            round(row["weight"], 2) or None,
            row["note"] or "",
        )
        for row in race["candidates"]
    ]
    header = ("candidate", "log-loss, screened", "log-loss, out of fold", "mAP, %", "weight", "")
    return page.table(header, shown)


def _about(evaluated: Evaluated, history: Sequence[Mapping[str, Any]], split: str) -> str:
    n, labels = evaluated.n_items, plural(len(evaluated.names), "label")
    known = int(np.count_nonzero(np.asarray(evaluated.targets) >= 0))
    unknown = n * len(evaluated.names) - known
    text = f"Judged on {plural(n, f'{split} item' if split else 'item')} with {labels}"
    text += f": {plural(known, 'known cell')}, {unknown:,} unknown and left out." if unknown else "; all are known."
    if not n:
        text = f"Of {labels}; no item to judge by."
    if history:
        seconds = sum(series(history, "seconds")[1])
        text += f" Trained for {plural(len(history), 'epoch')}"
        text += f" in {_duration(seconds)}." if seconds else "."
    return text


def _read(metrics: Metrics) -> str:
    """How probabilities came about, and whether by what these items taught."""
    text = f" Probabilities by {get(metrics, 'reading', 'how')}." if get(metrics, "reading", "kind") else ""
    if get(metrics, "reading", "out_of_fold"):
        text += " Calibrator and thresholds were fitted on these items, so each is judged by ones fitted without it."
    return text


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def _trust(evaluated: Evaluated, error: CalibrationError | None, raw: CalibrationError | None) -> Iterator[str]:
    found = {"σ(z)": raw, "probability" if raw is None else "η": error}
    readings = [(f"{name}: ACE {percent(float(e.ace))}", e.bins) for name, e in found.items() if e is not None]
    if error is None:
        beside = "This run has no probabilities: σ(z) is not one, however near the line it may come. "
    else:
        beside = "" if raw is None else "σ(z) is what the net gives, η what this run reports. "
    yield page.plot(
        reliability_diagram(readings),
        "Of the cells (an item and a label) that got about this probability, the share in which the label is present; "
        f"on the dashed line a probability says the truth. {beside}Bars: 95 % intervals, as if cells were "
        "independent. Below: cells in each bin, on a log scale.",
    )
    if evaluated.probabilities is None:
        return
    said = (
        "Where the probabilities of present and of absent cells lie, on a log scale; the less they overlap, the better."
    )
    for name, members in evaluated.ends().items():
        present, absent = score_counts(evaluated.probabilities[:, members], evaluated.targets[:, members])
        yield page.plot(score_histogram(present, absent, name), said)
        said = "The same for other labels."


def _training(history: Sequence[Mapping[str, Any]], evaluated: Evaluated) -> Iterator[str]:
    parts = dict.fromkeys(name for line in history for name in get(line, "parts") or {})
    losses = {"training": series(history, "loss")}
    if len(parts) > 1:
        losses |= {f"of it, {name.replace('_', ' ')}": series(history, "parts", name) for name in parts}
    if curves := drawable(losses):
        yield page.plot(history_curves(curves, "loss"), "What training minimises, the mean over each epoch.")
    keys = dict.fromkeys(key for line in history for key in get(line, "validation") or {})
    scores = {_NAMES.get(key, key): series(history, "validation", key) for key in keys if key not in _FALLING}
    if curves := drawable(scores):
        yield page.plot(history_curves(curves, "score", "highest"), "Scores on validation items; the best is circled.")
    for key, name in _FALLING.items():
        if curves := drawable({name: series(history, "validation", key)}):
            drawn = history_curves(curves, name, "lowest")
            yield page.plot(drawn, f"{_sentence(name)} on validation items; the best is circled.")
    if curves := drawable({"learning rate": series(history, "lr")}):
        yield page.plot(history_curves(curves, "learning rate", linear=True), "The learning rate of each epoch.")
    ratios = [(line["epoch"], line["plm_ratio"]) for line in history if line.get("plm_ratio")]
    if ratios:
        epochs, values = zip(*ratios, strict=True)
        shown = np.array(values, dtype=np.float64)
        drawn = ratio_curves(epochs, shown, evaluated.names, evaluated.counts, evaluated.head, evaluated.tail)
        yield page.plot(
            drawn,
            "The ratio of positives to negatives that partial label masking trains each label with; it falls for "
            "labels that are found too readily and rises for those that are missed.",
        )


def _labels(metrics: Metrics, evaluated: Evaluated) -> Iterator[str]:
    rows = get(metrics, "per_label") or []
    if len(rows) != len(evaluated.names):
        rows = []
    yield page.heading("Which labels does it find?")
    yield from _groups(metrics)
    drawn = list(_scores_by_label(rows, evaluated)) if rows else []
    yield page.panels([*drawn, *_precision_recall(evaluated)])
    if rows:
        yield page.heading("Every label")
        yield _every_label(rows, evaluated)


def _groups(metrics: Metrics) -> Iterator[str]:
    groups = {name: part for name, part in (get(metrics, "groups") or {}).items() if part.get("labels")}
    rarest = {f"{k} rarest": part for k, part in (get(metrics, "rarest") or {}).items()}
    if not groups and not rarest:
        return
    yield page.table(
        ("labels", "number", "mAP", "F1", "precision", "recall", "ACE", "ACE by chance", "Brier"),
        (
            (
                name,
                part.get("labels"),
                part.get("mAP"),
                *(get(part, "macro", score) for score in _SCORES),
                part.get("ace"),
                get(part, "by_chance", "ace"),
                part.get("brier"),
            )
            for name, part in (groups | rarest).items()
        ),
        places=3,
    )
    yield page.paragraph(
        "Means over the labels of each row; ACE and the Brier score over their cells. ACE by chance is what "
        "probabilities that are right would show on as many cells."
    )


def _scores_by_label(rows: Sequence[Metrics], evaluated: Evaluated) -> Iterator[str]:
    values = {name: column(rows, name) for name in (*_SCORES, "positives")}
    if not np.isfinite(values["f1"]).any():  # nothing is decided
        return
    judged = values["positives"] > 0
    bounds = (evaluated.head, evaluated.tail)
    if fits(len(rows)):
        f1, precision, recall, positives = values.values()
        drawn = label_bars(evaluated.names, evaluated.counts, f1, precision, recall, positives, *bounds)
        yield page.plot(
            drawn,
            "F1, precision and recall of each label at its threshold, the most frequent in training at the top; "
            "beside its name the positives it was trained with.",
        )
        return
    for name in _SCORES:
        written = _NAMES.get(name, name)
        drawn = label_trend(evaluated.counts, np.where(judged, values[name], np.nan), written, *bounds)
        yield page.plot(drawn, f"{_sentence(written)} of each label that has a positive here, by how frequent it was.")


def _precision_recall(evaluated: Evaluated) -> Iterator[str]:
    """Draw, for each group, the labels of the highest, the middle and the lowest average precision."""
    scores = evaluated.scores
    ap = average_precision(scores, evaluated.targets)
    said = "Precision against recall of the labels that are ranked best, middling and worst"
    said += "." if evaluated.thresholds is None else "; the large mark is where the label's threshold stands."
    for group, members in evaluated.groups().items():
        ranked = sorted((int(c) for c in members if np.isfinite(ap[c])), key=lambda c: -ap[c])
        chosen = [ranked[i] for i in dict.fromkeys((0, len(ranked) // 2, len(ranked) - 1))] if ranked else []
        if chosen:
            curves = [
                precision_recall_curve(
                    evaluated.names[c], scores[:, c], evaluated.targets[:, c], evaluated.threshold(c)
                )
                for c in chosen
            ]
            yield page.plot(precision_recall_plot(curves, f"{group} labels"), said)
            said = "The same for other labels."


def _every_label(rows: Sequence[Metrics], evaluated: Evaluated) -> str:
    order = np.argsort(-np.asarray(evaluated.counts), kind="stable")
    group_of = {int(c): group for group, members in evaluated.groups().items() for c in members}
    keys = ("positives", "known", "average_precision", *_SCORES, "ace", "brier")
    header = ("label", "group", "positives in training", "positives here", "known here")
    return page.table(
        (*header, "AP", "F1", "precision", "recall", "ACE", "Brier", "threshold"),
        (
            (
                evaluated.names[c],
                group_of[int(c)],
                int(evaluated.counts[c]),
                *(rows[c].get(key) for key in keys),
                evaluated.threshold(c),
            )
            for c in order
        ),
        fold=f"{len(rows):,} labels, most frequent first" if len(rows) > _MOST_OPEN else None,
        places=3,
    )
