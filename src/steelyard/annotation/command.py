"""Run the commands audit and next: read their input, print the result and write the queues."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from json import dumps
from math import isnan
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from steelyard._files import check_place
from steelyard.annotation.audit import LISTED, RESAMPLES, Audit, Interval, audit_labels
from steelyard.annotation.next_cells import By, next_to_annotate
from steelyard.annotation.queue import Ranked, as_text, rows_of, score_text, write_queue
from steelyard.annotation.sources import AuditData, is_run, of_data, of_run
from steelyard.config.sections import DataSettings
from steelyard.data.corrections import answered, corrected
from steelyard.folder.run_folder import RunFolder, Trained
from steelyard.labels import UNKNOWN, Labels
from steelyard.metrics.measures import number
from steelyard.predict.inputs import inputs_at
from steelyard.predict.prediction import check_probability, scores
from steelyard.report.headline import plural
from steelyard.report.scores import right_aligned
from steelyard.report.terminal import console_of, plain, say
from steelyard.run.api import Run
from steelyard.run.command import Other, items_of
from steelyard.run.datasets import paths_of
from steelyard.run.evaluation import judge
from steelyard.run.locate import run_config
from steelyard.training.batches import n_workers
from steelyard.training.step import pick_device

_ROWS = 20
N = TypeVar("N", int, float)


def audit(
    source: str | os.PathLike[str] | Run | Labels | NDArray[Any],
    probabilities: NDArray[Any] | None = None,
    *,
    embeddings: NDArray[Any] | None = None,
    limit: int = LISTED,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Audit:
    """Find given labels that are probably wrong, and unknown ones that are probably present.

    Args:
        source: a run or its folder, such as "runs/photos", whose out-of-fold probabilities are used; or `Labels` or an
            array (N, L) of 1 (present), 0 (absent) and −1 (unknown).
        probabilities: with labels, probabilities (N, L) by models that have not seen the labels of that item.
        embeddings: array (N, D) for the search of near-duplicates with contradicting labels; by default the run's.
        limit: maximum number of entries in each ranked list.
        resamples: number of bootstrap resamples of the items, for the intervals.
        seed: seed of the bootstrap.

    Examples:
        >>> eta = 1 / (1 + np.exp(-np.linspace(-6, 6, 200)))[:, None]
        >>> labels = (eta > 0.5).astype(int)
        >>> labels[199] = 0  # a mistake
        >>> audit = sy.audit(labels, eta, resamples=10)
        >>> int(audit.wrong.items[0]), audit.why(audit.wrong, 0)
        (199, 'given absent, but present with probability >.99')
    """
    if isinstance(source, str | os.PathLike | Run):
        folder = source.trained.folder if isinstance(source, Run) else source
        if folder is None:
            raise ValueError("the run was not kept in a folder: give out= to fit, or labels with probabilities")
        if probabilities is not None:
            raise ValueError("probabilities are given, but those of a run are taken: give labels instead of the run")
        own = of_run(folder)
        source, probabilities = own.labels, own.probabilities
        embeddings = own.embeddings if embeddings is None else embeddings
    if probabilities is None:
        raise ValueError("labels are given without probabilities: give those of models that have not seen the labels")
    return audit_labels(source, probabilities, embeddings=embeddings, limit=limit, resamples=resamples, seed=seed)


def show_audit(
    source: str,
    scores_file: str | None,
    where: Mapping[str, Any],
    out: str | None,
    present: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Audit a run or data, print the result, and write the queues.

    Args:
        source: a run, or labelled data.
        scores_file: a file of probabilities for the data, see `read_scores`.
        where: settings of [data].
        out: where to write the given labels that are probably wrong.
        present: where to write the unknown labels that are probably present.
        limit: maximum number of entries in each list.
        as_json: whether to print JSON.
    """
    for file in (out, present):
        if file is not None:
            check_place(file)
    if limit < 1:
        raise ValueError(f"--limit is {limit}: give at least 1")
    progress = console_of(stderr=True)
    if is_run(source):
        if scores_file is not None or where:
            first = "--scores" if scores_file is not None else f"--{next(iter(where)).replace('_', '-')}"
            raise ValueError(f"{first} is for data, but {source} is a run: leave it out, or give the data")
        audited = of_run(source, progress)
    else:
        audited = of_data(DataSettings(path=source, **where), scores_file)
    result = audit_labels(audited.labels, audited.probabilities, embeddings=audited.embeddings, limit=limit)
    for file, ranked in ((out, result.wrong), (present, result.present)):
        if file is not None:
            write_queue(file, ranked, audited.labels, lambda k, r=ranked: result.why(r, k), audited.paths)  # type: ignore[misc]
    if as_json:
        print(dumps(document(result, audited), ensure_ascii=False, allow_nan=False))
        return
    _print_audit(result, audited, console_of())
    for file, content in ((out, "labels that may be wrong"), (present, "unknown labels that may be present")):
        if file is not None:
            say(console_of(), f"Written: {file}, {content}.")


def document(result: Audit, source: AuditData) -> dict[str, Any]:
    """Return an audit as plain values for JSON; undefined numbers become None."""
    ids, names = result.table.ids, result.table.names

    def interval(value: Interval) -> dict[str, float | None]:
        return {name: number(part) for name, part in value._asdict().items()}

    def listed(ranked: Ranked) -> list[dict[str, Any]]:
        rows = rows_of(ranked, result.table, lambda k: result.why(ranked, k), source.paths)
        return [row | {name: float(row[name]) for name in ("probability", "score")} for row in rows]

    return {
        "source": source.note,
        "labels": [
            {
                **{name: getattr(row, name) for name in ("name", "n_positive", "n_negative", "n_unknown")},
                "wrong_positives": interval(row.wrong_positives),
                "wrong_negatives": interval(row.wrong_negatives),
                "probably_present": row.probably_present,
            }
            for row in result.labels
        ],
        "wrong": listed(result.wrong),
        "present": listed(result.present),
        "confused": [pair._asdict() for pair in result.confused],
        "contradictions": [
            {"first": ids[c.first], "second": ids[c.second], "label": names[c.label], "distance": c.distance}
            for c in result.contradictions
        ],
    }


def _print_audit(result: Audit, source: AuditData, console: Console) -> None:
    """Print the estimates by label, the first rows of the lists, confused pairs and contradictions."""
    say(console, f"{plural(len(result.table), 'item')}, {plural(result.table.n_labels, 'label')}; {source.note}.")
    say(console, f"About {100 * result.rates.shared:.1f} % of a label's positives are wrong, and as many are missing.")
    table = right_aligned(
        "label", "present", "of these wrong", "absent", "of these wrong", "unknown", "probably present"
    )
    order = sorted(result.labels, key=lambda r: -np.nan_to_num(r.wrong_positives.estimate + r.wrong_negatives.estimate))
    for row in order[:_ROWS]:
        wrong = (_interval(row.wrong_positives), _interval(row.wrong_negatives))
        numbers = (f"{row.n_positive:,}", wrong[0], f"{row.n_negative:,}", wrong[1], f"{row.n_unknown:,}")
        table.add_row(plain(row.name), *numbers, f"{row.probably_present:,.0f}")
    console.print(table)
    for title, ranked in (("Probably wrong", result.wrong), ("Unknown, probably present", result.present)):
        if ranked.n:
            say(console, f"\n{title}, the first of {ranked.n:,} listed:", "bold")
            console.print(_listed(ranked.first(_ROWS // 2), result.table, lambda k, r=ranked: result.why(r, k)))
    for pair in result.confused[: _ROWS // 2]:
        sentence = f"{pair.given} is given in the place of {pair.missing} in about {pair.items:.0f} items"
        say(console, f"Confused: {plain(sentence)} ({pair.by_chance:.1f} by chance).")
    for c in result.contradictions[: _ROWS // 2]:
        first, second = (result.table.ids[i] for i in (c.first, c.second))
        say(console, f"Near-duplicates {plain(first)} and {plain(second)} contradict in {result.table.names[c.label]}.")
    if (n := len(result.contradictions)) > _ROWS // 2:
        say(console, f"{n:,} such contradictions in all.")


def _interval(value: Interval) -> str:
    if isnan(value.estimate):
        return "–"
    return f"{value.estimate:,.0f} ({value.low:,.0f} to {value.high:,.0f})"


def _listed(ranked: Ranked, labels: Labels, why: Any) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("score", "id", "label", "why"):
        table.add_column(name, justify="right" if name == "score" else "left")
    for row in rows_of(ranked, labels, why):
        table.add_row(score_text(float(row["score"])), *(Text(plain(row[name])) for name in ("id", "label", "why")))
    return table


def show_next(
    run: str,
    other: Other,
    options: Mapping[str, Any],
    corrections: str | None,
    unlabelled: bool,
    spread: bool,
    out: str | None,
    as_json: bool,
) -> None:
    """Print and write the unknown labels of some data that are most worth annotating.

    Args:
        run: the folder of the run.
        other: the items.
        options: of `next_to_annotate`; `cell_cost` and `quota` as in `by_label`.
        corrections: a file of answers; they are merged, and what they say is not asked again.
        unlabelled: whether the items have no labels at all.
        spread: whether to spread the questions about a label over items with different features.
        out: where to write the queue.
        as_json: whether to print JSON.
    """
    if out is not None:
        check_place(out)
    trained = RunFolder(run).load()
    check_probability(trained)
    progress = console_of(stderr=True)
    labels, eta, paths, features, _ = (_unlabelled if unlabelled else _labelled)(run, trained, other, progress)
    if spread and features is None:
        raise ValueError("--spread needs features, but the items are images without kept features: leave it out")
    information = None if labels.n_known.any() else trained.counts * (1 - np.nan_to_num(trained.prior))
    exclude = None
    if corrections is not None:
        labels, exclude = corrected(labels, corrections)[0], answered(labels, corrections)
    by: By = options["by"]
    rest = {name: options[name] for name in ("unit", "item_cost", "seed")}
    cells = next_to_annotate(
        labels,
        eta,
        options["budget"],
        by=by,
        embeddings=features if spread else None,
        cell_cost=np.array(list(by_label("--cell-cost", options["cell_cost"], labels.names, 1.0).values())),
        quota=by_label("--quota", options["quota"], labels.names, len(labels)),
        information=information,
        exclude=exclude,
        **rest,
    )
    counts = labels.counts if information is None else trained.counts

    def why(k: int) -> str:
        known = plural(int(counts[cells.labels[k]]), "known positive")
        return f"{known} so far; present with probability {as_text(float(cells.probability[k]))}"

    if out is not None:
        write_queue(out, cells, labels, why, paths)
    if as_json:
        print(dumps(rows_of(cells, labels, why, paths), ensure_ascii=False))
        return
    console = console_of()
    asked, unknown = plural(len(np.unique(cells.items)), "item"), int((labels.n_items - labels.n_known).sum())
    say(console, f"{cells.n:,} of {unknown:,} unknown labels, in {asked}, by {by}:")
    asked_of = np.bincount(cells.labels, minlength=labels.n_labels)
    shown = [f"{plain(labels.names[c])} {asked_of[c]:,}" for c in np.argsort(-asked_of, kind="stable")[:_ROWS]]
    say(console, ", ".join(shown) + (" …" if labels.n_labels > _ROWS else ""))
    console.print(_listed(cells.first(_ROWS // 2), labels, why))
    if out is not None:
        say(console, f"Written: {out}.")


def by_label(option: str, given: Sequence[str], names: Sequence[str], default: N) -> dict[str, N]:
    """Return a number for each label from texts such as "50", for all labels, and "owl=200", for one of them.

    Args:
        option: its name, for messages.
        given: the texts, in any order.
        names: of the labels.
        default: the number of labels that are not mentioned; the others are of its type.
    """
    numbers = dict.fromkeys(names, default)
    for text in sorted(given, key=lambda text: "=" in text):
        name, sign, number = text.rpartition("=")
        if sign and name not in numbers:
            meant = get_close_matches(name, names, 1)
            hint = f"did you mean {meant[0]!r}?" if meant else "give one of the data's labels"
            raise ValueError(f"{option} names label {name!r:.80}, which the data does not have: {hint}")
        try:
            value = type(default)(number)
        except ValueError:
            kind = "a whole number" if isinstance(default, int) else "a number"
            raise ValueError(f"{option} is {text!r:.80}: give {kind}, or LABEL=N") from None
        numbers.update({name: value} if sign else dict.fromkeys(names, value))
    return numbers


def _labelled(run: str, trained: Trained, other: Other, console: Console) -> AuditData:
    """Return what there is of labelled data, in the order of the run's labels."""
    config = run_config(run)
    items, _ = items_of(config, trained, other)
    device = pick_device(config.train.device)
    judged = judge(trained, items, config.evaluate, False, device, n_workers(-1, items), console)
    labels = items.labels.arranged(trained.names, UNKNOWN)
    features = items.inputs if trained.model.input.kind == "features" else None
    return AuditData(labels, judged.probabilities.numpy(), paths_of(items), features)


def _unlabelled(run: str, trained: Trained, other: Other, console: Console) -> AuditData:
    """Return the same for items without labels."""
    if other.split is not None or other.reading:
        raise ValueError("--unlabelled takes no options about how labels are read: leave them out")
    inputs = inputs_at(trained, str(other.data), other.images)
    device = pick_device(run_config(run).train.device)
    ids, paths, eta = list[str](), list[str](), [np.zeros((0, len(trained.names)), np.float32)]
    for some in scores(trained, inputs, 256, 0, device, console):
        ids += some.rows.ids
        paths += some.paths
        eta.append(some.rows.probabilities)
    shape = (len(ids), len(trained.names))
    nothing = Labels.from_cells([], [], np.zeros(0, np.int8), shape, UNKNOWN, trained.names, ids)
    return AuditData(nothing, np.concatenate(eta), paths or None, None)
