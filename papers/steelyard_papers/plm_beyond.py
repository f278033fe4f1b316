"""Beyond the PLM paper: what its gain depends on, what the prior of the test items adds to its runs, and what varied
pictures, a second network, views of test pictures and the number of labels of a picture add on MultiMNIST.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from steelyard.calibrate import LabelSets
from steelyard.config import recipes
from steelyard.data.builders import exponential_long_tail
from steelyard.data.dataset import ArrayDataset
from steelyard.data.readers.multi_mnist import N_MAX, RHO, balanced_pairs, imbalanced_pairs
from steelyard.labels import Labels
from steelyard.metrics import calibration_error, exact_match, precision_recall_f1, rarest_labels
from steelyard.run.datasets import Datasets
from steelyard.run.deployment import ESTIMATE, deployment
from steelyard_papers import fixtures
from steelyard_papers.ledger import claimed, note, noted
from steelyard_papers.plm_rows import (
    DRAW,
    HEAD_AND_TAIL,
    MNIST,
    MULTI_MNIST,
    base_of,
    chosen,
    multi_mnist,
    open_digits,
    open_multi_mnist,
    plm,
)
from steelyard_papers.reproduction import BEYOND, Job, Reproduction
from steelyard_papers.result import Result, RowResult, RunResult
from steelyard_papers.study import Measured, Row, Settings, chosen_rows, joined, merged, settings_of, study
from steelyard_papers.trial import Trial, key_of, tested_on, trial

READINGS = ("σ", "link", "link and prior")
SCORES = ("F1", "F1 of the 3 rarest", "0-1", "ACE")


def readings(trial: Trial) -> Measured:
    """Measure decisions at ½ and calibration by three readings of the same logits.

    By σ(z), as the paper does; by the link of the objective, which undoes masks and weights; and by the link for the
    frequencies of the test items, which are estimated from their logits: no label of theirs is used.
    """
    by_link = trial.reading.fit(trial.logits[:0], trial.targets[:0], "link")
    there = deployment(ESTIMATE, by_link, trial.names, trial.logits).of(by_link)
    eta = (torch.sigmoid(trial.logits), by_link.probability(trial.logits), there.probability(trial.logits))
    rare = torch.from_numpy(rarest_labels(trial.counts, 3).copy())
    return _scored({how: (p, p >= 0.5) for how, p in zip(READINGS, eta, strict=True)}, trial.targets, rare)


def _scored(by_reading: Mapping[str, tuple[Tensor, Tensor]], targets: Tensor, rare: Tensor) -> Measured:
    """Measure probabilities and decisions by reading, F1 of the labels `rare` apart, in per cent."""
    values: dict[str, float | None] = {}
    for how, (eta, present) in by_reading.items():
        f1 = precision_recall_f1(present, targets).f1.double()
        all_right, ace = exact_match(present, targets), calibration_error(eta, targets).ace
        for name, value in zip(SCORES, (f1.mean(), f1[rare].mean(), all_right, ace), strict=True):
            values[f"{name}, {how}"] = 100 * float(value)
    return Measured(values)


def _prior(job: Job) -> Result:
    columns = tuple(f"{name}, {how}" for name in SCORES for how in READINGS)
    return study(job, base_of("multimnist-plm"), MULTI_MNIST, lambda *_: open_multi_mnist(job), readings, columns)


_MEAN = "BCE + PLM, the mean for a first ratio"
_DROPOUT: Settings = {"model": {"dropout": 0.5}}


def _gain(job: Job) -> Result:
    dropout, limit = _DROPOUT, plm(rate=0.01, eps=0.0)
    held_out: Settings = {"data": {"validation": 0.1}, "train": {"keep": "last"}}
    observed = merged(held_out, plm(rate=0.01, eps=0.0, observes="validation"))
    shifts: Settings = {"model": {"dropout": 0.5}, "train": {"augment": {"pad_crop": 2}}}
    rows = (
        *chosen(MULTI_MNIST, HEAD_AND_TAIL),
        Row(_MEAN, plm(rate=0.01, initial="mean")),
        Row("BCE, dropout", dropout),
        Row("BCE + PLM, limit form", limit),
        Row("BCE + PLM, dropout", merged(dropout, plm(rate=0.01))),
        Row("BCE + PLM, limit form and dropout", merged(dropout, limit)),
        Row("BCE + PLM, λ .03, limit form and dropout", merged(dropout, plm(rate=0.03, eps=0.0))),
        Row("BCE + PLM, limit form of held-out outputs", observed),
        Row("BCE + PLM, limit form of held-out outputs, and dropout", merged(dropout, observed)),
        Row("BCE, dropout and shifts", shifts),
        Row("BCE + PLM, limit form, dropout and shifts", merged(shifts, limit)),
    )
    result = _with_gains(multi_mnist(job, rows))
    if job.validation or _MEAN not in [row.name for row in result.rows]:
        return result
    train, _, test, *_ = open_multi_mnist(job)
    r, there = (float((n / (len(part) - n)).mean()) for part in (train, test) for n in (part.labels.counts,))
    why = (
        f"the mean over the classes of positives over negatives, which PLM so begun asks of every class, is {r:.2f} in "
        f"the training items and {there:.2f} in the test items"
    )
    return replace(result, notes=(*result.notes, why))


def _with_gains(result: Result) -> Result:
    """Say what PLM adds to the same network without it."""
    rows = {row.name: row for row in result.rows}
    said = []
    for name, without in _SAME_BUT_PLM.items():
        if name in rows and without in rows:
            means = [(rows[name].mean(column), rows[without].mean(column)) for column in SCORES[:2]]
            found = [f"{mine - its:+.2f}" for mine, its in means if mine is not None and its is not None]
            said.append(f"{name} {', '.join(found)}")
    note = f"what PLM adds to the same network, by F1 and F1 of the 3 rarest: {'; '.join(said)}"
    return replace(result, notes=(*result.notes, note)) if said else result


_SAME_BUT_PLM = {
    "BCE + PLM": "BCE",
    _MEAN: "BCE",
    "BCE + PLM, limit form": "BCE",
    "BCE + PLM, dropout": "BCE, dropout",
    "BCE + PLM, limit form and dropout": "BCE, dropout",
    "BCE + PLM, λ .03, limit form and dropout": "BCE, dropout",
    "BCE + PLM, limit form, dropout and shifts": "BCE, dropout and shifts",
}


def _draws(job: Job) -> Result:
    rows = (
        *chosen(MULTI_MNIST, HEAD_AND_TAIL),
        Row("BCE, dropout", _DROPOUT),
        Row("BCE + PLM, limit form and dropout", merged(_DROPOUT, plm(rate=0.01, eps=0.0))),
    )
    return _with_gains(multi_mnist(job, rows, drawn=True))


VIEWS = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))
"""Pixels, down and right, by which test pictures are shifted."""
TRACK_READINGS = ("σ", "prior", "label sets", "views")
"""The last: label sets, of the mean logits of a picture and of its `VIEWS`."""
UNPAIRED: Settings = {"objective": {"label_pair": "none"}}
FAST: Settings = {"evaluate": {"batch_size": 1024}}
OPEN: Settings = {
    "data": {"validation": 0.0},
    "train": {"epochs": 100, "validate_every": 100},
    "evaluate": {"calibration": "none"},
}
"""All digits are trained on, none held out: of the rarest class there are 59."""
SLIGHT = {"rotate": 8.0, "scale": 0.08, "shear": 0.1, "elastic": 0.75, "warp": 1.0}
"""Warps of half the strength, of every digit: another network that is as good, to take the mean with."""
TEMPERATURE = {"paper": 1.5, "open": 1.25}
"""By which a track divides log-odds, having no items to fit it to; chosen in a rehearsal."""
TOGETHER = {"BCE and warped": ("BCE", "warped"), "open, both networks": ("open, warped", "open, slightly warped")}
"""Rows for which nothing is trained: the mean of the logits of two networks."""
TRACK_ROWS = (
    *("BCE", "warped", "warped, label pairs", "BCE and warped"),
    *("open", "open, warped", "open, slightly warped", "open, both networks"),
)
_PAD = 2


class Pictures(NamedTuple):
    """What the two tracks train on, and what both are measured on."""

    pairs: ArrayDataset
    """Of the paper's track: two digits each, long-tailed."""
    digits: ArrayDataset
    """Of the open track: the same digits one by one."""
    test: ArrayDataset
    note: str


def pictures(job: Job) -> Pictures:
    """Return the data of a job; with `validation` of a rehearsal, in which no test digit is seen.

    Rehearsal: of each class as many of MNIST's training digits as that share of the most frequent class are set aside,
    and their pictures are measured on; the long tail is drawn from the others, and is shorter by that share.
    """
    images, classes = open_digits(job, True)
    n_max = fixtures.MNIST_N_MAX if job.smoke else N_MAX
    if job.validation and not job.smoke:  # of generated digits there are too few to set any aside
        n_there = int(job.validation * n_max)
        order = np.random.default_rng(DRAW).permutation(len(classes))
        first = np.concatenate([order[classes[order] == c][:n_there] for c in range(10)])
        others = np.setdiff1d(order, first)
        there, (images, classes) = (images[first], classes[first]), (images[others], classes[others])
        n_max -= n_there
        note = f"a rehearsal: measured on pictures of {len(first):,} training digits that are not trained on"
    else:
        there, note = open_digits(job, False), f"imbalanced MultiMNIST, the draw of seed {DRAW}"
    kept = exponential_long_tail(classes, n_max, RHO, DRAW)
    middle = np.pad(images[kept], ((0, 0), (_PAD, _PAD), (_PAD, _PAD)))[:, None]
    made = imbalanced_pairs(images, classes, n_max, seed=DRAW), balanced_pairs(*there, DRAW)
    pairs, test = (ArrayDataset(drawn[:, None], labels) for drawn, labels in made)
    return Pictures(pairs, ArrayDataset(middle, Labels(np.eye(10, dtype=np.int8)[classes[kept]])), test, note)


def viewed(test: ArrayDataset, views: Sequence[tuple[int, int]] = VIEWS) -> ArrayDataset:
    """Return the pictures shifted as `views` says, one shift of all of them after the other; zeros come in."""
    height, width = test.inputs.shape[-2:]
    padded = np.pad(test.inputs, ((0, 0), (0, 0), (1, 1), (1, 1)))
    parts = [padded[:, :, 1 - down : 1 - down + height, 1 - right : 1 - right + width] for down, right in views]
    labels = Labels(np.tile(test.labels.values, (len(views), 1)), names=test.labels.names)
    return ArrayDataset(np.concatenate(parts), labels)


class Track(NamedTuple):
    """Networks that are trained on one kind of pictures, and how their logits are read."""

    rows: Mapping[str, Settings]
    train: ArrayDataset
    sets: LabelSets
    """Of what it is trained on."""
    temperature: float


def _tracks(data: Pictures) -> tuple[Track, Track]:
    """The paper's track, on its 14,694 pictures, and the open one: its digits, paired and shifted at every step."""
    beyond = recipes.settings("multimnist-beyond")
    paper = {"BCE": base_of("multimnist-plm"), "warped": merged(beyond, UNPAIRED), "warped, label pairs": beyond}
    settings = merged(recipes.settings("multimnist-open"), OPEN)
    warped = settings["train"]["augment"]
    warps = {"open": {"warp": 0.0}, "open, warped": {}, "open, slightly warped": SLIGHT}
    even = np.eye(10, dtype=np.int8)
    pairs = np.maximum(even[:, None], even[None]).reshape(100, 10)  # of two classes drawn evenly
    return (
        Track(paper, data.pairs, LabelSets.of(data.pairs.labels.values), TEMPERATURE["paper"]),
        Track(
            {name: merged(settings, {"train": {"augment": {**warped, **changed}}}) for name, changed in warps.items()},
            data.digits,
            LabelSets.of(pairs),
            TEMPERATURE["open"],
        ),
    )


def reader(track: Track, rare: Tensor, n_views: int = len(VIEWS)) -> Callable[[Trial], Measured]:
    """Return what measures a run by σ, for the estimated prior, and by estimated label sets, the labels `rare` apart.

    The test items are those of `viewed`. No label of theirs is used until they are measured: decisions, at ½ or the
    most probable set, and calibration.
    """

    def by_label_sets(log_odds: Tensor) -> tuple[Tensor, Tensor]:
        """η, float32, and the most probable sets, both for the estimated distribution of label sets."""
        odds = log_odds / track.temperature
        there = track.sets.estimate(odds)
        potentials = track.sets.potentials(odds) + there.labels - track.sets.labels
        return there.marginals(potentials).float(), there.best(potentials)

    def readings_by_sets(trial: Trial) -> Measured:
        each = trial.logits.view(n_views, -1, trial.logits.shape[1])
        logits, targets = each[0], trial.targets[: each.shape[1]]
        there = deployment(ESTIMATE, replace(trial.reading, sets=None), trial.names, logits).of(trial.reading)
        plain, shifted = torch.sigmoid(logits), there.probability(logits)
        alone = by_label_sets(trial.reading.log_odds(logits.double()))
        views = alone if n_views == 1 else by_label_sets(trial.reading.log_odds(each.mean(0).double()))
        read = ((plain, plain >= 0.5), (shifted, shifted >= 0.5), alone, views)
        return _scored(dict(zip(TRACK_READINGS, read, strict=True)), targets, rare)

    return readings_by_sets


def _together(
    job: Job, rows: Sequence[Row], seed: int, data: Datasets, measure: Callable[[Trial], Measured]
) -> RunResult:
    """Measure networks by the mean of their logits, or read what the ledger notes of that."""
    configs = {key_of(config, data): config for row in rows for config in (settings_of(job, FAST, row, seed, data),)}
    key, ledger = "+".join(configs), None if job.smoke else job.ledger
    known = None if ledger is None else noted(ledger, key, measure.__name__)
    if known is None or known["facts"].get("test") != tested_on(data):
        runs = []
        for one, config in configs.items():
            with claimed(job.out / "locks" / one, waits=True):  # another table may have it too
                runs.append(trial(config, data, job.out / "runs" / one, job.console, job.note))
        logits = torch.stack([run.logits for run in runs]).mean(0)
        measured = measure(replace(runs[0], outputs={"test": (logits, runs[0].targets)}))
        facts = {"note": job.note, **runs[0].facts, "seconds": sum(run.facts["seconds"] for run in runs)}
        known = {"values": measured.values, "details": {}, "facts": facts}
        if ledger is not None:
            note(ledger, key, measure.__name__, known)
    return RunResult(seed, known["values"], known["facts"]["seconds"])


def _beyond(job: Job) -> Result:
    """Train the networks of both tracks that the chosen rows need, and measure these rows."""
    asked = [row.name for row in chosen_rows(job, [Row(name) for name in TRACK_ROWS])]
    needed = {name for row in asked for name in TOGETHER.get(row, (row,))}
    data, plain = pictures(job), replace(job, rows=(), validation=0.0)
    views = VIEWS[: 1 if job.smoke else None]
    test, rare = viewed(data.test, views), torch.from_numpy(rarest_labels(data.pairs.labels.counts, 3).copy())
    columns = tuple(f"{name}, {how}" for name in SCORES for how in TRACK_READINGS)
    parts: list[Result] = []
    rows: dict[str, RowResult] = {}
    for track in _tracks(data):
        made = {name: Row(name, settings) for name, settings in track.rows.items() if name in needed}
        if not made:
            continue
        seen, measure = Datasets(track.train, None, test, (data.note,)), reader(track, rare, len(views))
        parts.append(study(plain, FAST, list(made.values()), lambda *_, seen=seen: seen, measure, columns))
        rows |= {row.name: row for row in parts[-1].rows}
        for name in asked:
            if name in TOGETHER and made.keys() >= {*TOGETHER[name]}:
                pair = [made[one] for one in TOGETHER[name]]
                runs = (_together(plain, pair, seed, seen, measure) for seed in job.seeds)
                rows[name] = RowResult(name, tuple(runs))
    return replace(joined(*parts), rows=tuple(rows[name] for name in asked))


REPRODUCTIONS: tuple[Reproduction, ...] = (
    Reproduction(
        "plm-draws",
        BEYOND,
        "MultiMNIST drawn anew by every seed: what of PLM's gain, and of the distance from the paper, is the draw",
        (MNIST,),
        1,
        _draws,
        note="every seed draws its own digits and pairs, training and test; of the rarest class there are 59 digits",
    ),
    Reproduction(
        "plm-gain",
        BEYOND,
        "What PLM's gain on MultiMNIST depends on",
        (MNIST,),
        2,
        _gain,
        note="BCE and BCE + PLM are plm-table1's, the mean of the data's ratios for a first one is plm-table6's; the "
        "limit form of PLM's statistic, taken on training outputs or on those of a tenth of the items that is held out "
        "from training, dropout of .5 before the last layer, and pictures shifted by up to two pixels; λ .03 "
        "and the mean are tries, not choices: they were not held against others on validation items",
    ),
    Reproduction(
        "plm-prior",
        BEYOND,
        "The runs of plm-table1 read by σ, by the link, and for the prior of the test items",
        (MNIST,),
        2.2,
        _prior,
        note="the link reads for the label frequencies of training, from which those of the test items are far, so "
        "PLM's rows decide worse by the link alone than by σ, and are worse calibrated; the prior is estimated from "
        "the test images, no label of theirs is used, label by label, which leaves probabilities far off: see "
        "plm-beyond's label sets; plm-table1's runs are read where they are there still, else trained anew",
    ),
    Reproduction(
        "plm-beyond",
        BEYOND,
        "MultiMNIST beyond the paper, on its own pictures and on its own digits",
        (MNIST,),
        4,
        _beyond,
        note="BCE is plm-table1's, trained anew; warped has dropout .5, a cosine schedule, averaged weights and shifts "
        "by two pixels too, and half of its pictures are warped; label pairs: with LPR, of weight .1. Open: the same "
        "digits, drawn evenly by class and paired and shifted by up to six pixels anew at every step; warped, half "
        "of the digits, or slightly warped, all of them by half as much. Both networks, BCE and warped: the mean of "
        "two networks' logits. Prior: for label frequencies estimated from the test pictures; label sets: for "
        "frequencies and numbers of labels of a picture estimated so, "
        f"log-odds divided by {TEMPERATURE['paper']:g}, open by {TEMPERATURE['open']:g}, chosen "
        "in a rehearsal; views: the same, of logits that are means over shifts by a pixel; no label of a test "
        "picture is used. --validation .15 is the rehearsal, on training digits alone",
    ),
)
"""On the runs of Table 1, a few more, and on its digits."""
