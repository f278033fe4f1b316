"""The page of a run: scores, plots, every label, and the command that repeats it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.metrics import CalibrationErrors, average_precision
from steelyard.report.canvas import MOST_NAMES, OWN, SIGMOID
from steelyard.report.evaluated import Evaluated
from steelyard.report.headline import (
    Metrics,
    column,
    ends,
    fitted_without,
    get,
    groups_of,
    headline,
    never_decided,
    percent,
    plural,
    scores_of,
)
from steelyard.report.history import drawable, history_curves, ratio_curves, series
from steelyard.report.page import Cell, Eta, LossCell, Picture, plot, share, write_page
from steelyard.report.plots import label_bars, label_trend
from steelyard.report.precision_recall import precision_recall_curve, precision_recall_plot
from steelyard.report.race_table import outcome_sentence
from steelyard.report.reliability import reliability_diagram, score_counts, score_histogram

_NAMES = {"map": "mAP", "f1": "F1", "assumed_map": "mAP, unknown as absent"}
_FALLING = {
    "loss": "log-loss",
    "assumed_loss": "log-loss, unknown as absent",
    "ace": "calibration error (ACE)",
    "error": "error rate",
}
_SHARES = ("ace", "error")
_SCORES = ("f1", "precision", "recall")


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
    card: str = "",
) -> None:
    """Write the page of one run to `path`, whole or not at all.

    - `title`, plain text; `config_text`, the configuration as TOML; `command`, the command that repeats the run.
    - `metrics`: from `evaluate` or `Evaluator.compute`; a missing part is left out of the page.
    - `history`: one dict per epoch, as in `history.jsonl`.
    - `evaluated`: the outputs that `metrics` measure; `split`, the name of the items, such as "validation".
    - `race`: content of `race.json`, if any; `card`, the file of the model card beside the page.
    """
    error, raw = evaluated.calibration(), evaluated.raw_calibration()
    rows = get(metrics, "per_label") or []
    if len(rows) != len(evaluated.names) or not evaluated.n_items:
        rows = []
    baselines = get(metrics, "baselines") or {}
    write_page(
        path,
        "run.html",
        title,
        about=f"{_about(evaluated, history, split)}{_read(metrics)}",
        notes=[f"{_sentence(note).removesuffix('.')}." for note in get(metrics, "notes") or ()],
        judged=evaluated.n_items > 0,
        numbers=list(headline(metrics, None if raw is None else float(raw.ace))) if evaluated.n_items else [],
        baselines=[_baseline(name, row) for name, row in baselines.items()],
        outcome="" if race is None else outcome_sentence(race),
        race=[] if race is None else [_candidate(row) for row in race["candidates"]],
        trust=list(_trust(evaluated, error, raw)),
        training=list(_training(history, evaluated)) if len(history) > 1 else [],
        groups=[
            (name, p.get("labels"), *map(share, (*scores_of(p), p.get("brier"))))
            for name, p in groups_of(metrics).items()
        ],
        labels=[*_scores_by_label(rows, evaluated), *_precision_recall(evaluated)] if evaluated.n_items else [],
        rows=list(_every_label(rows, evaluated, get(metrics, "thresholds", "labels") or ())) if rows else [],
        thresholds=get(metrics, "thresholds", "heading") or "",
        never=never_decided(get(metrics, "thresholds") or {}),
        command=command,
        card=card,
        config=config_text,
    )


def _baseline(name: str, row: Metrics) -> tuple[Any, ...]:
    """Return a row of the table of baselines: their scores, and by how much the run is better."""
    ratio = get(row, "better_by", "log_loss_ratio")
    gain = share(get(row, "better_by", "map"))
    return name, share(row["map"]), _loss(row["log_loss"]), gain, None if ratio is None else f"× {ratio:.2f}"


def _candidate(row: Metrics) -> tuple[Cell, ...]:
    losses = _loss(row["screened_log_loss"]), _loss(row["log_loss"])
    return row["candidate"], *losses, share(row["map"]), round(row["weight"], 2) or None, row["note"] or ""


def _loss(value: float | None) -> LossCell | None:
    return None if value is None else LossCell(value)


def _about(evaluated: Evaluated, history: Sequence[Mapping[str, Any]], split: str) -> str:
    n, labels = evaluated.n_items, plural(len(evaluated.names), "label")
    known = int(np.count_nonzero(np.asarray(evaluated.targets) >= 0))
    unknown = n * len(evaluated.names) - known
    text = f"Measured on {plural(n, f'{split} item' if split else 'item')} with {labels}"
    text += f": {known:,} known labels, {unknown:,} unknown and left out." if unknown else "; all are known."
    if not n:
        text = f"{labels}; no items to score."
    if history:
        seconds = sum(series(history, "seconds")[1])
        text += f" Trained for {plural(len(history), 'epoch')}"
        text += f" in {_duration(seconds)}." if seconds else "."
    return text


def _read(metrics: Metrics) -> str:
    """Return how probabilities are computed, and whether these items were used for it."""
    text = f" Probabilities: {get(metrics, 'reading', 'how')}." if get(metrics, "reading", "kind") else ""
    sentence = fitted_without(get(metrics, "reading") or {})
    return f"{text} {_sentence(sentence)}." if sentence else text


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def _trust(evaluated: Evaluated, error: CalibrationErrors | None, raw: CalibrationErrors | None) -> Iterator[Picture]:
    errors = {"σ(z)": (SIGMOID, raw), "probability" if raw is None else "η": (OWN, error)}
    drawn = [(name, place, e) for name, (place, e) in errors.items() if e is not None]
    readings = [(f"{name}: ACE {percent(float(e.ace))}", e.bins) for name, _, e in drawn]
    if not readings:
        return
    if error is None:
        beside = "This run has no probabilities: σ(z) is not one, however close to the line. "
    else:
        beside = "" if raw is None else "σ(z) is the sigmoid of the network's output, η the run's probability. "
    yield plot(
        reliability_diagram(readings, looks=[place for _, place, _ in drawn]),
        "Of all labels predicted with about this probability, the share that is present; on the dashed line the two "
        f"are equal. {beside}Bars: 95 % intervals, as if labels were independent. Below: the number of labels in each "
        "bin, on a log scale.",
    )
    if evaluated.probabilities is None:
        return
    caption = (
        "How the probabilities of present and of absent labels are distributed, on a log scale; the less they overlap, "
        "the better."
    )
    for name, members in evaluated.ends().items():
        present, absent = score_counts(evaluated.probabilities[:, members], evaluated.targets[:, members])
        yield plot(score_histogram(present, absent, name), caption)
        caption = "The same for other labels."


def _training(history: Sequence[Mapping[str, Any]], evaluated: Evaluated) -> Iterator[Picture]:
    parts = dict.fromkeys(name for line in history for name in get(line, "parts") or {})
    losses = {"training": series(history, "loss")}
    if len(parts) > 1:
        losses |= {f"of it, {name.replace('_', ' ')}": series(history, "parts", name) for name in parts}
    if curves := drawable(losses):
        yield plot(history_curves(curves, "loss"), "Training loss, the mean over each epoch.")
    keys = dict.fromkeys(key for line in history for key in get(line, "validation") or {})
    scores = {_NAMES.get(key, key): series(history, "validation", key) for key in keys if key not in _FALLING}
    if curves := drawable(scores):
        drawn = history_curves(curves, "score, %", "highest", shares=True)
        yield plot(drawn, "Scores on validation items after each epoch; the best is circled.")
    for key, name in _FALLING.items():
        if curves := drawable({name: series(history, "validation", key)}):
            drawn = history_curves(curves, f"{name}, %" if key in _SHARES else name, "lowest", shares=key in _SHARES)
            yield plot(drawn, f"{_sentence(name)} on validation items; the best is circled.")
    if curves := drawable({"learning rate": series(history, "lr")}):
        yield plot(history_curves(curves, "learning rate", linear=True), "The learning rate of each epoch.")
    ratios = [(line["epoch"], line["plm_ratio"]) for line in history if line.get("plm_ratio")]
    if ratios:
        epochs, values = zip(*ratios, strict=True)
        shown = np.array(values, dtype=np.float64)
        drawn = ratio_curves(epochs, shown, evaluated.names, evaluated.counts, evaluated.head, evaluated.tail)
        yield plot(
            drawn,
            "The ratio of positives to negatives with which partial label masking trains each label; it falls for "
            "labels that are predicted too often and rises for those that are missed.",
        )


def _scores_by_label(rows: Sequence[Metrics], evaluated: Evaluated) -> Iterator[Picture]:
    values = {name: column(rows, name) for name in (*_SCORES, "positives")}
    if not np.isfinite(values["f1"]).any():  # nothing is decided
        return
    judged = values["positives"] > 0
    bounds = (evaluated.head, evaluated.tail)
    if len(rows) <= MOST_NAMES:
        f1, precision, recall, positives = values.values()
        drawn = label_bars(evaluated.names, evaluated.counts, f1, precision, recall, positives, *bounds)
        yield plot(
            drawn,
            "F1, precision and recall of each label at its threshold, the most frequent in training at the top; "
            "in brackets its positives in training.",
        )
        return
    for name in _SCORES:
        written = _NAMES.get(name, name)
        drawn = label_trend(evaluated.counts, np.where(judged, values[name], np.nan), f"{written}, %", *bounds)
        yield plot(drawn, f"{_sentence(written)} of each label that has a positive here, by how frequent it was.")


def _precision_recall(evaluated: Evaluated) -> Iterator[Picture]:
    """Draw, for each group, the labels with the highest, the median and the lowest average precision."""
    scores = evaluated.ranking
    ap = average_precision(scores, evaluated.targets)
    caption = "Precision against recall of the labels with the highest, median and lowest average precision"
    caption += "." if evaluated.thresholds is None else "; the large mark is at the label's threshold."
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
            yield plot(precision_recall_plot(curves, f"{group} labels"), caption)
            caption = "The same for other labels."


def _every_label(
    rows: Sequence[Metrics], evaluated: Evaluated, decisions: Sequence[Metrics]
) -> Iterator[tuple[Cell, ...]]:
    """Yield a row per label: counts, scores, and the decisions at its threshold where there are any."""
    group_of = {int(c): group for group, members in evaluated.groups().items() for c in members}
    for c in np.argsort(-np.asarray(evaluated.counts), kind="stable").tolist():
        row, chosen, threshold = rows[c], decisions[c] if decisions else {}, evaluated.threshold(c)
        yield (
            evaluated.names[c],
            group_of[c],
            int(evaluated.counts[c]),
            *(row.get(key) for key in ("positives", "known")),
            *(share(row.get(key)) for key in ("average_precision", "ace", "brier")),
            None if threshold is None else Eta(threshold),
            chosen.get("decided"),
            share(row.get("precision")),
            ends(chosen.get("precision_interval")).replace(" ", "\xa0"),
            *(share(row.get(key)) for key in ("recall", "f1")),
        )
