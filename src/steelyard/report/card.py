"""The model card of a run: one page of Markdown made from the run folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from steelyard.config.recipes import RECIPES
from steelyard.report.headline import Metrics, decided, ends, fitted_without, four, get, plural, rare
from steelyard.report.headline import per_cent as percent
from steelyard.report.race_table import outcome_sentence
from steelyard.report.terminal import plain

MOST_ROWS = 20
"""Most labels in the table of thresholds; metrics.json has all."""
FEW = 20
"""Positives in training below which a label is named among the limits."""
_PARTS = ("objective.loss", "objective.unknown", "objective.masking", "objective.weighting", "objective.label_pair")
_SETTINGS = ("model.backbone", *(f"{name}.kind" for name in _PARTS), "train.sampler.kind")


_ABOUT = (
    "A multi-label classifier: for each item it gives the probability of each label, and a threshold per label decides "
    "which labels are present."
)


def model_card(
    title: str,
    config: Mapping[str, Any],
    facts: Mapping[str, Any],
    metrics: Mapping[str, Metrics],
    race: Mapping[str, Any] | None = None,
) -> str:
    """Return the card as Markdown; a section without content is left out.

    Args:
        title: name of the run.
        config: its settings, as nested dicts.
        facts: content of `run.json`.
        metrics: content of `metrics.json`. The last of validation, test and recalibration is shown.
        race: content of `race.json`, None where no models competed.
    """
    part = next((name for name in ("recalibration", "test", "validation") if metrics.get(name)), "")
    shown = metrics[part] if part else {}
    of = "training" if get(shown, "reading", "by_folds") else part
    sections = {
        "Data": _data(config, facts, shown),
        "Recipe": _recipe(config, facts, race),
        f"Scores on {of} items": _scores(shown, facts if facts.get("card_part") == part else {}),
        "Calibration": _calibration(shown),
        "Thresholds": _thresholds(get(shown, "thresholds") or {}),
        "Limits": _limits(shown, facts, part),
    }
    version = get(facts, "versions", "steelyard")
    by = f" Trained with Steelyard {version}." if version else ""
    head = f"# Model card: {_text(title)}\n\n{_ABOUT}{by}"
    filled = [(name, text) for name, lines in sections.items() if (text := "\n".join(lines))]
    return "\n\n".join([head, *(f"## {name}\n\n{text}" for name, text in filled)]) + "\n"


def _data(config: Mapping[str, Any], facts: Mapping[str, Any], shown: Metrics) -> Iterator[str]:
    yield f"- Source: {_code(get(config, 'data', 'path') or 'given in Python')}"
    if items := facts.get("items"):
        yield f"- Items: {', '.join(f'{n:,} {name}' for name, n in items.items())}"
    labels = facts.get("labels") or {}
    if labels:
        unknown = f"{percent(labels['unknown'])} % of the training labels are unknown"
        yield f"- Labels: {labels['number']:,}; {unknown if labels['unknown'] else 'all training labels are known'}"
        yield f"- Training items per label: {labels['least']:,} (rarest) to {labels['most']:,} (most frequent)"
    if shown.get("unknown"):
        yield f"- Unknown labels among the scored items, left out of every score: {shown['unknown']:,}"
    if facts.get("corrections"):
        yield f"- Corrections by people were merged into {plural(len(facts['corrections']), 'label')}"
    if skipped := sum((facts.get("unreadable") or {}).values()):
        yield f"- Images that could not be read and were skipped: {skipped:,}"


def _recipe(config: Mapping[str, Any], facts: Mapping[str, Any], race: Mapping[str, Any] | None) -> Iterator[str]:
    why = f": {_text(facts['why'])}" if facts.get("why") else ""
    yield f"- Recipe: {_code(facts.get('recipe') or 'settings of config.toml')}{why}"
    for name in (facts.get("recipe") or "").split("+"):
        if name in RECIPES:
            yield f"- {_code(name)}: {_text(RECIPES[name].what)}"
    values = {name: get(config, *name.split(".")) for name in _SETTINGS}
    chosen = [f"{name} = {value}" for name, value in values.items() if value not in (None, "", "none")]
    if race is None and chosen:
        yield f"- Settings: {_code(', '.join(chosen))}"
    if race is not None:
        yield f"- {_text(outcome_sentence(race))}"
    if facts.get("epochs"):
        kept = f", epoch {facts['kept_epoch']} kept" if facts.get("kept_epoch") else ""
        yield f"- Training: {plural(facts['epochs'], 'epoch')}{kept}, {facts.get('seconds', 0):.0f} s"


def _scores(shown: Metrics, facts: Mapping[str, Any]) -> Iterator[str]:
    if not shown:
        return
    intervals = shown.get("intervals") or facts.get("intervals") or {}
    few = rare(shown) if shown.get("labels") else None
    of_few = get(intervals, "rarest", min(shown.get("rarest") or ["0"], key=int), "macro", "f1")
    baselines = {name: row for name, row in (shown.get("baselines") or {}).items() if name != "this run"}
    rows: list[tuple[str, float | None, Any, str]] = [
        ("mAP, %", get(shown, "mAP", "label"), get(intervals, "mAP", "label"), "map"),
        ("F1, mean over labels, %", get(shown, "macro", "f1"), get(intervals, "macro", "f1"), ""),
        ("Items with all labels right, %", shown.get("exact_match"), intervals.get("exact_match"), ""),
    ]
    if few is not None:
        rows.insert(2, (f"F1 of the {few.name}, %", get(few.part, "macro", "f1"), of_few, ""))
    ours = get(shown, "baselines", "this run", "log_loss")
    table = [
        [
            name,
            percent(value),
            ends(interval),
            *(percent(row.get(key)) if key else "" for row in baselines.values()),
        ]
        for name, value, interval, key in rows
        if value is not None
    ]
    if ours is not None:
        ends_of = facts.get("intervals", {}).get("log_loss_per_label") or (None,)
        between = "–" if None in ends_of else " to ".join(map(four, ends_of))
        others = (four(row.get("log_loss")) for row in baselines.values())
        table.append(["log-loss per label", four(ours), between, *others])
    yield from _table(["", "this run", "95 % interval", *baselines], table)
    yield ""
    how = fitted_without(shown.get("reading") or {}, ": ")
    yield (
        f"Measured on {plural(shown.get('items', 0), 'item')}{how}. mAP: how well each label ranks the items, the "
        "mean average precision. F1: precision and recall of decisions at the thresholds. Log-loss: lower is "
        "better. Label frequency: always predict how often a label is present in training. "
        "Every score is in metrics.json."
    ) + ("" if intervals else " For intervals, train with `--set evaluate.bootstrap=1000`.")


def _calibration(shown: Metrics) -> Iterator[str]:
    if shown and get(shown, "reading", "kind") is None and get(shown, "reading", "how"):
        yield "- This run has no probabilities, only a ranking."
        return
    if get(shown, "calibration") is None:
        return
    width = get(shown, "calibration", "pooled", "width") or {}
    yield f"- Probabilities: {_text(get(shown, 'reading', 'how') or '')}"
    rows = [
        ("this run", width.get("ace"), shown.get("log_loss")),
        ("perfect probabilities, by chance", get(width, "by_chance", "ace"), None),
        ("link of the loss, without calibration", *_read_by(shown, "by_link")),
        ("plain sigmoid σ(z)", *_read_by(shown, "plain_sigmoid")),
    ]
    yield ""
    known = [row for row in rows if row[1] is not None]
    yield from _table(["probabilities by", "ACE, %", "log-loss"], [[n, percent(a), four(loss)] for n, a, loss in known])
    yield ""
    yield (
        "ACE: mean distance between predicted probability and observed frequency, 0 at best. The link is the formula "
        "that converts outputs of a network trained with this loss to probabilities."
    )


def _read_by(shown: Metrics, name: str) -> tuple[Any, Any]:
    return get(shown, name, "calibration", "pooled", "ace"), get(shown, name, "log_loss")


def _thresholds(decisions: Mapping[str, Any]) -> Iterator[str]:
    if not decisions:
        return
    rows = sorted(decisions["labels"], key=lambda row: row["positives"])
    yield f"{_text(decisions['heading'])} (on {plural(decisions['items'], 'item')}, rarest labels first)."
    yield ""
    yield from _table(
        ["label", "training items", "threshold", "precision, %", "95 % interval", "recall, %", "items decided"],
        [
            [_text(row["label"]), f"{row['positives']:,}", *decided(row), f"{row['decided']:,}"]
            for row in rows[:MOST_ROWS]
        ],
    )
    if len(rows) > MOST_ROWS:
        yield ""
        yield f"And {len(rows) - MOST_ROWS:,} more in metrics.json."


def _limits(shown: Metrics, facts: Mapping[str, Any], part: str) -> Iterator[str]:
    yield "- Scores, probabilities and thresholds hold for items like those above, not for other sources."
    if shown.get("intervals") or facts.get("intervals"):
        yield "- Intervals tell how scores vary with the choice of items, not with the training run."
    if part == "validation":
        own = ", each of which is scored by those chosen without it" if get(shown, "reading", "out_of_fold") else ""
        yield f"- There were no test items: calibration and thresholds were chosen on the scored items{own}."
    for note in shown.get("notes") or ():
        yield f"- {_text(note[:1].upper() + note[1:]).removesuffix('.')}."
    decisions = get(shown, "thresholds") or {}
    scarce = [row["label"] for row in decisions.get("labels", ()) if row["positives"] < FEW]
    if scarce:
        named = f"{_names(scarce)} {'has' if len(scarce) == 1 else 'have'}"
        yield f"- {named} fewer than {FEW} training items; their scores and thresholds are uncertain."
    if never := decisions.get("never"):
        yield f"- Never predicted as present, {len(never):,} of {len(decisions['labels']):,} labels: {_names(never)}."
    if facts.get("converged") is False:
        yield "- Training stopped before it converged."


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return f"{', '.join(_code(name) for name in names[:5])}{more}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|---|{'---:|' * (len(head) - 1)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _text(text: str) -> str:
    """Return text that Markdown shows as it is."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#" else c for c in plain(text))


def _code(text: str) -> str:
    """Return text in a code span."""
    return f"`{plain(str(text)).replace('`', chr(39)).replace('|', '/')}`"
