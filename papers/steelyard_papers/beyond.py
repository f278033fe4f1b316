"""Beyond the papers: `auto` on the data of DB, PAL and SPA, what each of its parts is worth, and more of MultiMNIST.

hardware  one H200: auto 40 to 60 s a run on VOC-MLT and VOC 2012, 73 s on MultiMNIST; over features one CPU core
commands  steelyard reproduce db-beyond --data DATA --seeds 3 --ledger docs/results/ledger.jsonl        20 + 14 minutes
          steelyard reproduce spa-beyond --data DATA --seeds 3 --ledger docs/results/ledger.jsonl       16 minutes
          steelyard reproduce plm-gain --data DATA --seeds 3 --ledger docs/results/ledger.jsonl         46 minutes
score     docs/results/beyond.md
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from steelyard.calibrate import LabelSets
from steelyard.config import recipes
from steelyard.config.advice import resolve_auto
from steelyard.config.recipes import settings
from steelyard.data.builders import exponential_long_tail
from steelyard.data.dataset import ArrayDataset
from steelyard.data.readers.multi_mnist import N_MAX, RHO, balanced_pairs, imbalanced_pairs
from steelyard.labels import Labels
from steelyard.metrics import (
    average_precision,
    calibration_error,
    error_by_chance,
    exact_match,
    mean_average_precision,
    precision_recall_f1,
    rarest_labels,
)
from steelyard.objective.parts import Part
from steelyard.run.datasets import Datasets
from steelyard.run.deployment import ESTIMATE, deployment
from steelyard_papers import db, generated, pal
from steelyard_papers.claims import BEYOND, Claim, Difference, Entry
from steelyard_papers.datasets import COCO_FEATURES, MNIST, TABLES, VOC2012, VOC_FEATURES, VOC_MLT, DataSet, present
from steelyard_papers.plm import (
    DRAW,
    HEAD_AND_TAIL,
    MULTI_MNIST,
    base_of,
    multi_mnist,
    open_digits,
    open_multi_mnist,
    plm,
)
from steelyard_papers.result import RANKED, Result, RowResult, RunResult, beside, joined
from steelyard_papers.spa import FINE
from steelyard_papers.study import (
    Job,
    Measured,
    Row,
    Settings,
    chosen_rows,
    claimed,
    merged,
    named,
    note,
    noted,
    settings_of,
    study,
)
from steelyard_papers.trial import Trial, key_of, tested_on, trial


def chosen(labels: Labels) -> tuple[str, Settings]:
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
    each = {"": trial.probability_model}
    if trial.probability_model.link is not None:
        each[" by the link"] = trial.by_link
    for how, probability_model in each.items():
        if probability_model.has_probability:
            error = calibration_error(probability_model.probability(z), t)
            values |= {f"ACE{how}": 100 * float(error.ace), f"MCE{how}": 100 * float(error.mce)}
            if not how:
                values["ACE by chance"] = 100 * error_by_chance(error.bins).ace
    return Measured(values)


CHANGES: dict[str, Settings] = {
    "with a tenth held out": {"data": {"validation": 0.1}},
    "without held-out items": {"data": {"validation": 0.0}},
    "without mirror images": {"model": {"mirror": False}},
    "without averaged weights": {"train": {"ema": 0.0}},
    "without kept statistics": {"model": {"keep_statistics": False}},
    "without crops": {"train": {"augment": {"flip": 0.5, "resized_crop": 0.0}}},
    "without dropout": {"model": {"dropout": 0.0}},
    "with a weight decay of .01": {"optimizer": {"weight_decay": 0.01}},
    "at 160 pixels": {"data": {"size": 160}},
    "under a linear layer": {"model": {"head": "linear"}},
    "by the focal loss": {"objective": {"loss": Part("focal", {"gamma": 2.0})}},
    "by cross-entropy": {"objective": {"loss": Part("bce")}},
    "by SPA + LPR": {"objective": {"loss": Part("spa"), "label_pair": Part("on", {"weight": 0.1})}},
    "by the two-way loss": {"objective": {"loss": Part("two_way")}},
}
"""What is changed of `auto` in a row of this name."""


def _ablation(auto: Settings, names: Sequence[str], data: str = "") -> tuple[Row, ...]:
    """`auto`, and what is left of it with each of the changes."""
    return (Row("auto", auto, data), *(Row(name, merged(auto, CHANGES[name]), data) for name in names))


# Distribution-Balanced Loss

_COSINE = {"kind": "cosine", "milestones": [], "warmup_epochs": 1, "warmup_from": 0.0}
DB_TRAINING: Settings = {
    "model": {"mirror": True},
    "schedule": _COSINE,
    "train": {"epochs": 8, "ema": 0.99, "keep": "last"},
}
"""How `auto` is fine-tuned, whatever the objective: as the rows, but its rate falls smoothly, its weights are averaged,
and photographs are seen with their mirror images."""
_LITE0 = {"backbone": "lite0", "frozen": True, "keep_statistics": False}
_UNVARIED = {"flip": 0.0, "resized_crop": 0.0}
DB_FROZEN: Settings = {
    "data": {"size": 224},
    "model": {**_LITE0, "head": "bottleneck", "dropout": 0.5},
    "optimizer": {"kind": "adamw", "lr": 3e-4, "weight_decay": 0.01},
    "schedule": _COSINE,
    "train": {"epochs": 8, "keep": "last", "augment": _UNVARIED},
}
"""How the paper's head is trained here over a backbone that stays as it is; chosen on a fifth of the training items."""
DB_BESIDE = ("DB-Focal", "DB")
"""The paper's two best rows, DB-Focal the best."""
DB_BESIDE_FROZEN = ("DB-Focal", "CB-Focal")
"""The same of db-table1-frozen."""
_OTHER_LOSSES = ("by the focal loss", "by cross-entropy")
_DB_PARTS = ("mirror images", "averaged weights", "kept statistics", "crops")


def _db_row(source: DataSet, name: str) -> Settings:
    return dict(named(db.rows(source), (name,))[0].settings)


def db_auto(objective: Settings, source: DataSet = VOC_MLT) -> tuple[Row, ...]:
    """Return the paper's best rows, `auto`, and what is left of it without each of its parts.

    Args:
        objective: the settings of the recipe that `auto` chooses, its sampler included.
        source: the data set; on COCO-MLT without the parts.
    """
    parts = (*(f"without {part}" for part in _DB_PARTS), *_OTHER_LOSSES) if source is VOC_MLT else ()
    made = _ablation(merged(DB_TRAINING, objective), ("with a tenth held out", *parts))
    return (*(Row(name, _db_row(source, name)) for name in DB_BESIDE), *made)


def db_auto_frozen(objective: Settings) -> tuple[Row, ...]:
    """Return the table's best rows and `auto`, all over a frozen backbone, and what is left without each of its parts.

    Args:
        objective: the settings of the recipe that `auto` chooses, its sampler included.
    """
    table = {"model": _LITE0, "train": {"augment": _UNVARIED}}
    parts = ("at 160 pixels", "without dropout", "under a linear layer", *_OTHER_LOSSES)
    best = (Row(name, merged(_db_row(VOC_MLT, name), table)) for name in DB_BESIDE_FROZEN)
    return (*best, *_ablation(merged(DB_FROZEN, objective), parts))


def _db_fine_tuned(job: Job) -> Result:
    """`auto` beside the paper's rows on the data that is there."""
    notes: list[str] = []
    parts = {}
    for source in present(job.data_root, db.SETS):
        opened = source.open(job.data_root)
        name, objective = chosen(opened.train.labels)
        asked = {row.name for row in chosen_rows(job, db_auto(objective))}
        if rows := [row for row in db_auto(objective, source) if row.name in asked]:
            of_all, columns = replace(job, rows=()), (*RANKED, "ACE")
            part = study(of_all, db.base_of(source), rows, lambda *_, data=opened: data, db.db_scores, columns)
            notes += [f"on {source.name} auto chooses the recipe {name}"]
            parts[source.name] = part
    return replace(beside(parts), notes=tuple(notes))


def _alone(
    source: DataSet,
    base: Settings,
    make: Callable[[Settings], Sequence[Row]],
    measure: Callable[[Trial], Measured],
    columns: Sequence[str],
    job: Job,
) -> Result:
    """`auto` and its parts on one data set."""
    opened = source.open(job.data_root)
    name, objective = chosen(opened.train.labels)
    result = study(job, base, make(objective), lambda *_: opened, measure, columns)
    return replace(result, notes=(f"auto chooses the recipe {name}",))


# Partial labels

PAL_LINEAR: Settings = {"model": {"dropout": 0.5}, "train": {"epochs": 60}}
"""How a linear layer is trained here, whatever the objective; chosen on a fifth of the training items."""
PAL_HIDDEN: Settings = {
    "model": {"backbone": "mlp", "width": 1024, "dropout": 0.5},
    "optimizer": {"weight_decay": 1.0},
    "train": {"epochs": 30},
}
"""How one hidden layer is, on tables; chosen in the same way."""
PAL_BOTTLENECK: Settings = {
    "model": {"head": "bottleneck", "width": 1024, "dropout": 0.7},
    "train": {"epochs": 12, "keep": "last"},
}
"""How a hidden layer is over the features of photographs; chosen in the same way."""
MakeAuto = Callable[[Settings, str], Sequence[Row]]
"""(settings of the recipe that `auto` chooses, the setting of the labels) → rows."""


def pal_auto(objective: Settings, setting: str) -> tuple[Row, ...]:
    """Return `auto` on tables and what is left of it without each of its parts."""
    auto, *rest = _ablation(merged(PAL_HIDDEN, objective), ("without dropout", "with a weight decay of .01"), setting)
    return (auto, Row("under a linear layer", merged(PAL_LINEAR, objective), setting), *rest)


def pal_auto_frozen(objective: Settings, setting: str) -> tuple[Row, ...]:
    """Return the same of photographs, at the 224 pixels of the backbone's training and at 160."""
    larger = {"data": {"size": 224}}
    auto, without = _ablation(merged(PAL_BOTTLENECK, objective, larger), ("without dropout",), setting)
    return (
        auto,
        Row("at 160 pixels", merged(PAL_BOTTLENECK, objective), setting),
        Row("under a linear layer", merged(PAL_LINEAR, objective, larger), setting),
        Row("under a linear layer, at 160 pixels", merged(PAL_LINEAR, objective), setting),
        without,
    )


def pal_auto_alone(objective: Settings, setting: str) -> tuple[Row, ...]:
    """Return `auto` under the linear layer of the tables."""
    return (Row("auto", objective, setting),)


def short_epochs(objective: Settings, labels: Labels) -> Settings:
    """Return the settings with an epoch of a class-aware sampler about as long as the data are, however many labels."""
    train = objective.get("train", {})
    if train.get("sampler", {}).get("kind") != "class_aware":
        return objective
    visits = max(1, round(len(labels) / labels.n_labels))
    return merged(objective, {"train": {"sampler": {**train["sampler"], "visits": visits}}})


def _pal(sets: Sequence[DataSet], make: MakeAuto, job: Job) -> Result:
    parts, names = {}, []
    for source in present(job.data_root, sets):
        opened = source.open(job.data_root)
        for setting in pal.settings_on(source, list(pal.SETTINGS)[: 1 if job.smoke else None]):
            labels = pal.thinned(opened, setting, 0, source, job.data_root).train.labels
            name, objective = chosen(labels)
            of_setting = partial(_whatever_k, make, short_epochs(objective, labels))
            names.append(f"{source.name}, {setting}: {name}")
            parts[f"{source.name}, {setting}"] = pal.studied(job, source, setting, of_setting)
    return replace(beside(parts), notes=(f"auto chooses: {'; '.join(names)}",))


def _whatever_k(make: MakeAuto, objective: Settings, _positives: float, setting: str) -> Sequence[Row]:
    """The rows of a setting, which do not depend on the mean positives of an item."""
    return make(objective, setting)


# SPA

SPA_TRAINING: Settings = merged(
    FINE,
    {
        "model": {"mirror": True},
        "train": {"ema": 0.99, "keep": "best", "monitor": "loss", "augment": {"flip": 0.5, "resized_crop": 0.64}},
    },
)
"""How a pretrained network is fine-tuned here, whatever the objective: as the rows of spa-table3, the epoch chosen as
theirs, with crops, averaged weights and mirror images, customary values that were not tuned."""
SPA_FROZEN: Settings = {
    "data": {"size": 224, "validation": 0.1},
    "model": {"backbone": "lite0", "frozen": True, "dropout": 0.5},
    "optimizer": {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.01},
    "schedule": {"kind": "cosine"},
    "train": {"epochs": 60, "batch_size": 128, "keep": "last"},
}
"""How a linear layer is trained here over a backbone that stays as it is; chosen on a fifth of the training items."""
_SPA_PARTS = ("without held-out items", "by SPA + LPR", "by the two-way loss")
_SPA_COLUMNS = ("mAP@y", "mAP@x", "ACE", "ACE by chance", "MCE", "ACE by the link")


def spa_auto(objective: Settings) -> tuple[Row, ...]:
    """Return `auto` on photographs, and what is left of it without each of its parts."""
    fine_tuned = ("without mirror images", "without crops", "without averaged weights")
    *rows, two_way = _ablation(merged(SPA_TRAINING, objective), (*fine_tuned, *_SPA_PARTS))
    by_map = merged(two_way.settings, {"train": {"monitor": "map"}})  # it has no link, hence no log-loss
    return (*rows, replace(two_way, settings=by_map))


def spa_auto_frozen(objective: Settings) -> tuple[Row, ...]:
    """Return `auto` over a frozen backbone and what is left of it without each of its parts."""
    return _ablation(merged(SPA_FROZEN, objective), ("at 160 pixels", "without dropout", *_SPA_PARTS))


# MultiMNIST: what PLM's gain depends on, and what the prior of the test items adds to its runs

READINGS = ("σ", "link", "link and prior")
SCORES = ("F1", "F1 of the 3 rarest", "0-1", "ACE")


def readings(trial: Trial) -> Measured:
    """Measure decisions at ½ and calibration by three readings of the same logits.

    By σ(z), as the paper does; by the link of the objective, which undoes masks and weights; and by the link for the
    frequencies of the test items, which are estimated from their logits: no label of theirs is used.
    """
    there = deployment(ESTIMATE, trial.by_link, trial.names, trial.logits).of(trial.by_link)
    eta = (torch.sigmoid(trial.logits), trial.by_link.probability(trial.logits), there.probability(trial.logits))
    rare = torch.from_numpy(rarest_labels(trial.counts, 3).copy())
    return _scored({how: (p, p >= 0.5) for how, p in zip(READINGS, eta, strict=True)}, trial.targets, rare)


def _scored(by_reading: Mapping[str, tuple[Tensor, Tensor]], targets: Tensor, rare: Tensor) -> Measured:
    """Measure probabilities and decisions by reading, F1 of the labels `rare` apart, in per cent."""
    values: dict[str, float | None] = {}
    for how, (eta, decided) in by_reading.items():
        f1 = precision_recall_f1(decided, targets).f1.double()
        all_right, ace = exact_match(decided, targets), calibration_error(eta, targets).ace
        for name, value in zip(SCORES, (f1.mean(), f1[rare].mean(), all_right, ace), strict=True):
            values[f"{name}, {how}"] = 100 * float(value)
    return Measured(values)


def _prior(job: Job) -> Result:
    columns = tuple(f"{name}, {how}" for name in SCORES for how in READINGS)
    return study(job, base_of("multimnist-plm"), MULTI_MNIST, lambda *_: open_multi_mnist(job), readings, columns)


_MEAN = "BCE + PLM, the mean for a first ratio"
_DROPOUT: Settings = {"model": {"dropout": 0.5}}
_SHIFTS: Settings = {"model": {"dropout": 0.5}, "train": {"augment": {"pad_crop": 2}}}
_LIMIT = plm(rate=0.01, eps=0.0)
_OBSERVED = merged(
    {"data": {"validation": 0.1}, "train": {"keep": "last"}}, plm(rate=0.01, eps=0.0, observes="validation")
)
_TWO = named(MULTI_MNIST, HEAD_AND_TAIL)
DRAWS = (*_TWO, Row("BCE, dropout", _DROPOUT), Row("BCE + PLM, limit form and dropout", merged(_DROPOUT, _LIMIT)))
GAIN = (
    *_TWO,
    Row(_MEAN, plm(rate=0.01, initial="mean")),
    Row("BCE, dropout", _DROPOUT),
    Row("BCE + PLM, limit form", _LIMIT),
    Row("BCE + PLM, dropout", merged(_DROPOUT, plm(rate=0.01))),
    Row("BCE + PLM, limit form and dropout", merged(_DROPOUT, _LIMIT)),
    Row("BCE + PLM, λ .03, limit form and dropout", merged(_DROPOUT, plm(rate=0.03, eps=0.0))),
    Row("BCE + PLM, limit form of held-out outputs", _OBSERVED),
    Row("BCE + PLM, limit form of held-out outputs, and dropout", merged(_DROPOUT, _OBSERVED)),
    Row("BCE, dropout and shifts", _SHIFTS),
    Row("BCE + PLM, limit form, dropout and shifts", merged(_SHIFTS, _LIMIT)),
)
_SAME_BUT_PLM = {
    "BCE + PLM": "BCE",
    _MEAN: "BCE",
    "BCE + PLM, limit form": "BCE",
    "BCE + PLM, dropout": "BCE, dropout",
    "BCE + PLM, limit form and dropout": "BCE, dropout",
    "BCE + PLM, λ .03, limit form and dropout": "BCE, dropout",
    "BCE + PLM, limit form, dropout and shifts": "BCE, dropout and shifts",
}


def _adds(table: str) -> tuple[Claim, ...]:
    """That PLM adds to the same network without it, by F1 over all digits and over the three rarest."""
    rows = [row.name for row in (GAIN if table == "plm-gain" else DRAWS) if row.name in _SAME_BUT_PLM]
    return tuple(
        Claim(
            f"{name} is above {_SAME_BUT_PLM[name]}, and most on the three rarest digits",
            tuple(Difference(table, name, _SAME_BUT_PLM[name], column) for column in SCORES[:2]),
        )
        for name in rows
    )


def _gain(job: Job) -> Result:
    result = multi_mnist(GAIN, job)
    if job.validation or _MEAN not in result.by_name:
        return result
    train, _, test, *_ = open_multi_mnist(job)
    r, there = (float((n / (len(part) - n)).mean()) for part in (train, test) for n in (part.labels.counts,))
    why = (
        f"the mean over the classes of positives over negatives, which PLM so begun asks of every class, is {r:.2f} in "
        f"the training items and {there:.2f} in the test items"
    )
    return replace(result, notes=(*result.notes, why))


# MultiMNIST beyond the paper: varied pictures, a second network, views of test pictures, the number of labels

VIEWS = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))
"""Pixels, down and right, by which test pictures are shifted."""
TRACK_READINGS = ("σ", "prior", "label sets", "views")
"""The last: label sets, of the mean logits of a picture and of its `VIEWS`."""
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
    n_max = generated.MNIST_N_MAX if job.smoke else N_MAX
    if job.validation and not job.smoke:  # of generated digits there are too few to set any aside
        n_there = int(job.validation * n_max)
        order = np.random.default_rng(DRAW).permutation(len(classes))
        first = np.concatenate([order[classes[order] == c][:n_there] for c in range(10)])
        others = np.setdiff1d(order, first)
        there, (images, classes) = (images[first], classes[first]), (images[others], classes[others])
        n_max -= n_there
        text = f"a rehearsal: measured on pictures of {len(first):,} training digits that are not trained on"
    else:
        there, text = open_digits(job, False), f"imbalanced MultiMNIST, the draw of seed {DRAW}"
    kept = exponential_long_tail(classes, n_max, RHO, DRAW)
    middle = np.pad(images[kept], ((0, 0), (_PAD, _PAD), (_PAD, _PAD)))[:, None]
    made = imbalanced_pairs(images, classes, n_max, seed=DRAW), balanced_pairs(*there, DRAW)
    pairs, test = (ArrayDataset(drawn[:, None], labels) for drawn, labels in made)
    return Pictures(pairs, ArrayDataset(middle, Labels(np.eye(10, dtype=np.int8)[classes[kept]])), test, text)


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


def tracks(data: Pictures) -> tuple[Track, Track]:
    """Return the paper's track, on its 14,694 pictures, and the open one: its digits, paired and shifted again."""
    ours = recipes.settings("multimnist-beyond")
    unpaired: Settings = {"objective": {"label_pair": "none"}}
    paper = {"BCE": base_of("multimnist-plm"), "warped": merged(ours, unpaired), "warped, label pairs": ours}
    open_ = merged(recipes.settings("multimnist-open"), OPEN)
    warped = open_["train"]["augment"]
    warps = {"open": {"warp": 0.0}, "open, warped": {}, "open, slightly warped": SLIGHT}
    even = np.eye(10, dtype=np.int8)
    pairs = np.maximum(even[:, None], even[None]).reshape(100, 10)  # of two classes drawn evenly
    varied = {name: merged(open_, {"train": {"augment": {**warped, **changed}}}) for name, changed in warps.items()}
    return (
        Track(paper, data.pairs, LabelSets.of(data.pairs.labels.values), TEMPERATURE["paper"]),
        Track(varied, data.digits, LabelSets.of(pairs), TEMPERATURE["open"]),
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
        there = deployment(ESTIMATE, replace(trial.probability_model, sets=None), trial.names, logits).of(
            trial.probability_model
        )
        plain, shifted = torch.sigmoid(logits), there.probability(logits)
        alone = by_label_sets(trial.probability_model.log_odds(logits.double()))
        views = alone if n_views == 1 else by_label_sets(trial.probability_model.log_odds(each.mean(0).double()))
        read = ((plain, plain >= 0.5), (shifted, shifted >= 0.5), alone, views)
        return _scored(dict(zip(TRACK_READINGS, read, strict=True)), targets, rare)

    return readings_by_sets


def _together(
    job: Job, rows: Sequence[Row], seed: int, data: Datasets, measure: Callable[[Trial], Measured]
) -> RunResult:
    """Measure networks by the mean of their logits, or read what the ledger notes of that."""
    configs = {key_of(config, data): config for row in rows for config in (settings_of(job, FAST, row, seed, data),)}
    key, ledger = "+".join(configs), None if job.smoke else job.ledger
    record = None if ledger is None else noted(ledger, key, measure.__name__)
    if record is None or record["facts"].get("test") != tested_on(data):
        runs = []
        for one, config in configs.items():
            with claimed(job.out / "locks" / one, waits=True):  # another table may have it too
                runs.append(trial(config, data, job.out / "runs" / one, job.console, job.note))
        logits = torch.stack([run.logits for run in runs]).mean(0)
        measured = measure(replace(runs[0], outputs={"test": (logits, runs[0].targets)}))
        facts = {"note": job.note, **runs[0].facts, "seconds": sum(run.facts["seconds"] for run in runs)}
        record = {"values": measured.values, "details": {}, "facts": facts}
        if ledger is not None:
            note(ledger, key, measure.__name__, record)
    return RunResult(seed, record["values"], record["facts"]["seconds"])


def _tracks(job: Job) -> Result:
    """Train the networks of both tracks that the chosen rows need, and measure these rows."""
    asked = [row.name for row in chosen_rows(job, [Row(name) for name in TRACK_ROWS])]
    needed = {name for row in asked for name in TOGETHER.get(row, (row,))}
    data, plain = pictures(job), replace(job, rows=(), validation=0.0)
    views = VIEWS[: 1 if job.smoke else None]
    test, rare = viewed(data.test, views), torch.from_numpy(rarest_labels(data.pairs.labels.counts, 3).copy())
    columns = tuple(f"{name}, {how}" for name in SCORES for how in TRACK_READINGS)
    parts: list[Result] = []
    rows: dict[str, RowResult] = {}
    for track in tracks(data):
        made = {name: Row(name, settings) for name, settings in track.rows.items() if name in needed}
        if not made:
            continue
        seen, measure = Datasets(track.train, None, test, (data.note,)), reader(track, rare, len(views))
        parts.append(study(plain, FAST, list(made.values()), lambda *_, seen=seen: seen, measure, columns))
        rows |= parts[-1].by_name
        for name in asked:
            if name in TOGETHER and made.keys() >= {*TOGETHER[name]}:
                pair = [made[one] for one in TOGETHER[name]]
                runs = (_together(plain, pair, seed, seen, measure) for seed in job.seeds)
                rows[name] = RowResult(name, tuple(runs))
    return replace(joined(*parts), rows=tuple(rows[name] for name in asked))


# Entries

ROW = "auto takes its objective from the recipe auto for these labels; its network and training are set for this page"
_ON_A_FIFTH = "chosen on a fifth of the training items"
_CUSTOMARY = "customary values that are not tuned"
_LITE0_224 = "EfficientNet-Lite0, frozen, at the 224 pixels it was trained with"
_LOOKED_FOR = (
    "the hidden layer was looked for after that row had been seen, on the test items, to stay below some of theirs"
)
_DB_NOTE = (
    "ResNet-50 with ImageNet weights, fine-tuned; DB-Focal and DB, the paper's best, are those of db-table1; auto is "
    "trained as they are, but its rate falls smoothly, its weights are averaged, and a photograph is seen with its "
    f"mirror image: {_CUSTOMARY}; ACE is that of the derived link with what sampling and weights add, and with a tenth "
    f"held out that of a calibrator fitted to it; db-beyond-frozen is auto over a frozen backbone; {ROW}"
)
_DB_FROZEN_NOTE = (
    f"{_LITE0_224}, under the paper's head; DB-Focal, the paper's best, and CB-Focal, the best of db-table1-frozen "
    f"here, are rows of that, by the paper's SGD and schedule; auto's size, head, dropout and rate are {_ON_A_FIFTH}; "
    f"{ROW}"
)
_PAL_NOTE = (
    "to be compared with the rows of pal-table3 to pal-table6; one hidden layer, its width and decay, dropout and "
    f"epochs are {_ON_A_FIFTH}; those rows are linear, so the objective alone is judged by the row under a linear "
    f"layer; {_LOOKED_FOR}; {ROW}"
)
_PAL_FROZEN_NOTE = (
    f"{_LITE0_224}; to be compared with the rows of pal-table3 to pal-table6; the hidden layer, its width, dropout "
    f"and epochs are {_ON_A_FIFTH}; those rows are linear and at 160 pixels, so images apart it is judged by the row "
    f"at 160, and the objective alone by the row under a linear layer at 160; {_LOOKED_FOR}; so was bce in the place "
    "of pal for PAL 0.3, and taken since it is better on held-out items too (examples/choose_partial_recipe.py); "
    f"{ROW}"
)
_PAL_FEATURES_NOTE = (
    "the objective that auto chooses for the training labels, under the linear layer of pal-table3 to pal-table6 and "
    f"by their schedule, to be compared with their rows; {ROW}"
)
_SPA_NOTE = (
    "ResNet-50 with ImageNet weights, trained as the rows of spa-table3, the epoch chosen as theirs; besides, auto "
    f"has crops of at least .64 of an image, averaged weights and mirror images, {_CUSTOMARY}, and a calibrator "
    "fitted to the tenth that every row holds out; LPR's weight is .1, spa-table3's is 1; the epoch of the two-way "
    f"loss is chosen by mAP; {ROW}"
)
_SPA_FROZEN_NOTE = (
    f"{_LITE0_224}, under a linear layer; a tenth of the training items is held out and the calibrator fitted to it; "
    f"size, dropout and rate are {_ON_A_FIFTH}; LPR's weight is .1, spa-table3-frozen's is 1; {ROW}"
)
_DRAWS_NOTE = "every seed draws its own digits and pairs, training and test; of the rarest class there are 59 digits"
_GAIN_NOTE = (
    "BCE and BCE + PLM are plm-table1's, the mean of the data's ratios for a first one is plm-table6's; the limit form "
    "of PLM's statistic, taken on training outputs or on those of a tenth of the items that is held out from training, "
    "dropout of .5 before the last layer, and pictures shifted by up to two pixels; λ .03 and the mean are tries, not "
    "choices: they were not held against others on validation items"
)
_PRIOR_NOTE = (
    "the link reads for the label frequencies of training, from which those of the test items are far, so PLM's rows "
    "decide worse by the link alone than by σ, and are worse calibrated; the prior is estimated from the test images, "
    "no label of theirs is used, label by label, which leaves probabilities far off: see plm-beyond's label sets; "
    "plm-table1's runs are read where they are there still, else trained again"
)
_TRACKS_NOTE = (
    "BCE is plm-table1's, trained again; warped has dropout .5, a cosine schedule, averaged weights and shifts by two "
    "pixels too, and half of its pictures are warped; label pairs: with LPR, of weight .1. Open: the same digits, "
    "drawn evenly by class and paired and shifted by up to six pixels again at every step; warped, half of the "
    "digits, or slightly warped, all of them by half as much. Both networks, BCE and warped: the mean of two "
    "networks' logits. Prior: for label frequencies estimated from the test pictures; label sets: for frequencies "
    f"and numbers of labels of a picture estimated so, log-odds divided by {TEMPERATURE['paper']:g}, open by "
    f"{TEMPERATURE['open']:g}, chosen in a rehearsal; views: the same, of logits that are means over shifts by a "
    "pixel; no label of a test picture is used. --validation .15 is the rehearsal, on training digits alone"
)
_DB_TABLES = ("db-table1", "db-table2", "db-parts")
_PAL_TABLES = tuple(f"pal-table{i}" for i in range(3, 7))
_db_frozen = partial(_alone, VOC_MLT, settings(db.CONSTANTS[VOC_MLT.name].recipe), db_auto_frozen, db.db_scores, RANKED)
_spa = partial(_alone, VOC2012, {}, spa_auto, auto_scores, _SPA_COLUMNS)
_spa_frozen = partial(_alone, VOC2012, {}, spa_auto_frozen, auto_scores, _SPA_COLUMNS)
_FEATURES = (COCO_FEATURES, VOC_FEATURES)


ENTRIES: tuple[Entry, ...] = (
    Entry(
        "plm-draws",
        BEYOND,
        "MultiMNIST drawn by each seed: what of PLM's gain, and of the distance from the paper, is the draw",
        (MNIST,),
        1,
        lambda job: multi_mnist(DRAWS, job, drawn=True),
        note=_DRAWS_NOTE,
        claims=_adds("plm-draws"),
    ),
    Entry(
        "plm-gain",
        BEYOND,
        "What PLM's gain on MultiMNIST depends on",
        (MNIST,),
        2,
        _gain,
        note=_GAIN_NOTE,
        claims=_adds("plm-gain"),
    ),
    Entry(
        "plm-prior",
        BEYOND,
        "The runs of plm-table1 read by σ, by the link, and for the prior of the test items",
        (MNIST,),
        2.2,
        _prior,
        note=_PRIOR_NOTE,
    ),
    Entry(
        "plm-beyond",
        BEYOND,
        "MultiMNIST beyond the paper, on its own pictures and on its own digits",
        (MNIST,),
        4,
        _tracks,
        note=_TRACKS_NOTE,
    ),
    Entry(
        "db-beyond",
        BEYOND,
        "auto on VOC-MLT and COCO-MLT, fine-tuned: mAP, calibration, and what its parts are worth",
        db.SETS,
        5,
        _db_fine_tuned,
        note=_DB_NOTE,
        beside=_DB_TABLES,
    ),
    Entry(
        "db-beyond-frozen",
        BEYOND,
        "auto on VOC-MLT over a frozen backbone: mAP, and what its parts are worth",
        (VOC_MLT,),
        5,
        _db_frozen,
        note=_DB_FROZEN_NOTE,
        beside=tuple(f"{name}-frozen" for name in _DB_TABLES),
    ),
    Entry(
        "pal-beyond",
        BEYOND,
        "auto with partial labels, on tables: mAP, and what its parts are worth",
        pal.OURS[1:],
        70,
        partial(_pal, pal.OURS[1:], pal_auto),
        note=_PAL_NOTE,
        beside=_PAL_TABLES,
        smoke=TABLES[1],
    ),
    Entry(
        "pal-beyond-frozen",
        BEYOND,
        "auto with partial labels, on photographs over a frozen backbone: mAP, and what its parts are worth",
        pal.OURS[:1],
        20,
        partial(_pal, pal.OURS[:1], pal_auto_frozen),
        note=_PAL_FROZEN_NOTE,
        beside=_PAL_TABLES,
    ),
    Entry(
        "pal-beyond-features",
        BEYOND,
        "auto with partial labels, over features of frozen networks: mAP",
        _FEATURES,
        2,
        partial(_pal, _FEATURES, pal_auto_alone),
        note=_PAL_FEATURES_NOTE,
        beside=_PAL_TABLES,
        smoke=VOC_FEATURES,
    ),
    Entry(
        "spa-beyond",
        BEYOND,
        "auto on VOC 2012, fine-tuned: accuracy and calibration, and what its parts are worth",
        (VOC2012,),
        5,
        _spa,
        note=_SPA_NOTE,
        beside=("spa-table3",),
    ),
    Entry(
        "spa-beyond-frozen",
        BEYOND,
        "auto on VOC 2012 over a frozen backbone: accuracy and calibration, and what its parts are worth",
        (VOC2012,),
        10,
        _spa_frozen,
        note=_SPA_FROZEN_NOTE,
        beside=("spa-table3-frozen",),
    ),
)
"""For the rows they are compared with see the papers' tables."""
