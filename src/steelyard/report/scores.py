"""Metrics in a terminal: a table by group of labels, and the main facts in lines."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from steelyard.report.headline import Metrics, fitted_without, four, get, groups_of, plural, scores_of
from steelyard.report.headline import per_cent as percent
from steelyard.report.terminal import plain


def show(metrics: Metrics, console: Console, title: str = "") -> None:
    """Print the metrics of `evaluate`: a row for all labels and one for each group, then lines, then warnings.

    Decisions are averaged over labels (macro). ACE, and the ACE that perfect probabilities would have by chance, pool
    the labels of the row. All in per cent.
    """
    if title:
        console.print(Text(plain(title), "bold"))
    pooled = get(metrics, "calibration", "pooled", "width") or {}
    macro = {"labels": metrics["labels"], "mAP": get(metrics, "mAP", "label"), "macro": metrics.get("macro")}
    table = right_aligned("labels", "number", "mAP", "F1", "precision", "recall", "ACE", "by chance")
    for name, part in {"all": {**pooled, **macro}, **groups_of(metrics)}.items():
        table.add_row(name, f"{part['labels']:,}", *map(percent, scores_of(part)))
    console.print(table)
    for line in summary_lines(metrics):
        console.print(Text(line))
    for note in metrics["notes"]:
        console.print(Text(f"Beware: {plain(note)}.", "yellow"))


def right_aligned(first: str, *others: str, widest: int | None = None) -> Table:
    """Return a table without lines, columns after the first right-aligned; `widest` cuts the first, and none wraps."""
    table = Table(box=None, pad_edge=False)
    table.add_column(first, max_width=widest, no_wrap=widest is not None)
    for name in others:
        table.add_column(name, justify="right", no_wrap=widest is not None)
    return table


def summary_lines(metrics: Metrics) -> list[str]:
    """Return the facts that the table by group does not show, one line each."""
    unknown = f"; {metrics['unknown']:,} unknown ones are left out" if metrics["unknown"] else ""
    known = f"{metrics['known']:,} known labels, of which {metrics['positives']:,} are present"
    lines = [f"{plural(metrics['items'], 'item')}, {known}{unknown}"]
    how = metrics["reading"]
    lines.append(f"probabilities: {how['how']}; thresholds: {_GOALS[how['goal']]}{fitted_without(how, '; ')}")
    if get(metrics, "calibration") is not None:
        ace = get(metrics, "calibration", "pooled", "width", "ace")
        plain_ace = get(metrics, "plain_sigmoid", "calibration", "pooled", "ace")
        loss, plain_loss = metrics["log_loss"], get(metrics, "plain_sigmoid", "log_loss")
        chance = get(metrics, "calibration", "pooled", "width", "by_chance", "ace")
        lines.append(
            f"calibration error (ACE) {percent(ace)}, by chance alone {percent(chance)}, by plain σ "
            f"{percent(plain_ace)}; log-loss {four(loss)}, by plain σ {four(plain_loss)}; "
            f"Brier {four(metrics['brier'])}"
        )
        lines.append(
            f"micro F1 {percent(get(metrics, 'micro', 'f1'))}, all labels right {percent(metrics['exact_match'])}; "
            f"at ½ macro F1 {percent(get(metrics, 'at_half', 'macro', 'f1'))}, all labels right "
            f"{percent(get(metrics, 'at_half', 'exact_match'))}"
        )
    lines.append(
        f"mAP over the labels of each item {percent(get(metrics, 'mAP', 'item'))}, "
        f"P@1 {percent(get(metrics, 'top', 'p@1'))}, nDCG@5 {percent(get(metrics, 'top', 'ndcg@5'))}; "
        f"AUROC {percent(get(metrics, 'auroc', 'label'))}"
    )
    lines += baseline_lines(metrics)
    one = metrics["single_label"]
    if one is not None:
        few = [f"{percent(part['accuracy'])} on the {k} rarest" for k, part in one["rarest"].items()]
        lines.append(f"accuracy by argmax {percent(one['accuracy'])}, {', '.join(few)}")
    if "intervals" in metrics:
        low, high = get(metrics, "intervals", "mAP", "label") or (None, None)
        share = metrics["intervals"]["confidence"]
        lines.append(f"mAP: {100 * share:g} % interval {percent(low)} to {percent(high)}")
    if get(metrics, "deploy_prior", "shifted") is not False and metrics["deploy_prior"] is not None:
        lines.append(f"probabilities are for the label frequencies of {_prior(metrics['deploy_prior'])}")
    return lines


def baseline_lines(metrics: Metrics) -> list[str]:
    """Return one line per baseline: how the run compares on the same items."""
    rows = metrics.get("baselines") or {}
    lines = []
    for name, row in rows.items():
        ours = rows["this run"]
        if row is ours or None in (*row.values(), *ours.values()):
            continue
        by = better_by(ours, row)
        gain, ratio = 100 * (by["map"] or 0.0), 1.0 if by["log_loss_ratio"] is None else by["log_loss_ratio"]
        worse = (gain < -0.05) + (ratio > 1.005)
        better = (gain > 0.05) + (ratio < 0.995)
        verdict = "better than" if better > worse else "worse than" if worse > better else "on a par with"
        lines.append(
            f"{verdict} {name}: mAP {percent(ours['map'])} against {percent(row['map'])} ({gain:+.1f}), log-loss "
            f"per label {ours['log_loss']:.4f} against {row['log_loss']:.4f} (× {ratio:.2f})"
        )
    return lines


def better_by(ours: Mapping[str, float | None], row: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the mAP of a run less that of a baseline, and its log-loss over the baseline's; None where undefined."""
    a, b, mine, other = ours["map"], row["map"], ours["log_loss"], row["log_loss"]
    return {
        "map": None if a is None or b is None else a - b,
        "log_loss_ratio": mine / other if mine is not None and other else None,
    }


_GOALS = {"half": "½", "f1": "best F1", "precision": "a precision", "recall": "a recall", "cost": "least cost"}


def _prior(report: Metrics) -> str:
    if report["source"] != "estimate":
        return plain(report["source"])
    return f"these {report['items']:,} items, estimated without their labels"
