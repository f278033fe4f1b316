"""Distribution-Balanced Loss: its two tables, and figures 2, 3 and 5 to 10.

paper     Wu et al., ECCV 2020 (arXiv 2007.09654); ResNet-50; DB-Focal: mAP 78.9 on VOC-MLT, 53.6 on COCO-MLT
here      ResNet-50 v1, 256 pixels on VOC-MLT, 224 on COCO-MLT, the paper's schedule; one GPU, minutes as `--list` says
command   steelyard reproduce db-table1 --data DATA --seeds 3; all of them: steelyard reproduce --list
score     docs/results/db-table1.md; the claims that are judged: `db_rows.CLAIMS`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.config.recipes import settings
from steelyard.metrics import average_precision, calibration_error, label_groups
from steelyard_papers import db_figures as figures
from steelyard_papers.db_rows import CLAIMS, CONSTANTS, ON_COCO, STEPS, SWEEPS, combinations, rows, sweep, weighted
from steelyard_papers.findings import first, gain, sentences
from steelyard_papers.published import PUBLISHED, RANKED
from steelyard_papers.reproduction import Job, Need, Reproduction, Tuned
from steelyard_papers.result import Result, beside, on
from steelyard_papers.sources import COCO_MLT, RELEASE, VOC_MLT, Source, left_out, one_of, present
from steelyard_papers.study import Measured, Row, chosen_rows, study
from steelyard_papers.trial import Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PAPER = "Distribution-Balanced Loss (Wu et al. 2020)"
_SOURCES = figures.SPLITS


def db_scores(trial: Trial) -> Measured:
    """Return mAP over all labels and over head, medium and tail, and ACE, in per cent; details: the AP of each label.

    ACE is that of the run's probabilities: of the derived link, or of what was fitted to held-out items.
    """
    ap = 100 * average_precision(trial.logits, trial.targets).numpy()
    groups = {"mAP": np.arange(len(ap))} | {f"mAP {name}": at for name, at in label_groups(trial.counts).items()}
    values = {name: _mean(ap[at]) for name, at in groups.items()}
    if trial.reading.has_probability:
        values["ACE"] = 100 * float(calibration_error(trial.reading.probability(trial.logits), trial.targets).ace)
    return Measured(values, {"ap": [float(x) if np.isfinite(x) else None for x in ap]})


def _mean(values: Any) -> float | None:
    defined = values[np.isfinite(values)]
    return float(defined.mean()) if len(defined) else None


def base_of(source: Source) -> dict[str, Any]:
    """Return the paper's settings for a data set, over the ResNet-50 whose weights are at hand."""
    constants = CONSTANTS[source.name]
    base = settings(constants.recipe)
    size = {"size": constants.size}
    return {**base, "data": {**base["data"], **size}, "model": {**base["model"], "backbone": "resnet50"}}


def _studied(job: Job, source: Source, chosen: Sequence[Row]) -> Result:
    base = base_of(source)
    return study(job, base, chosen, lambda _data, _seed: source.open(job.data_root), db_scores, RANKED)


def _on(source: Source, job: Job, made: Sequence[Row]) -> list[Row]:
    """The rows that are run on a data set: on COCO-MLT, of those that are not asked for, some."""
    wanted = chosen_rows(job, made)
    return wanted if job.rows or source is not COCO_MLT else [row for row in wanted if row.name in ON_COCO]


def _table(make: Callable[[Source], Sequence[Row]], job: Job) -> Result:
    """All rows on the data that is there."""
    there = present(job.data_root, _SOURCES)
    found = {source.name: _studied(job, source, _on(source, job, make(source))) for source in there}
    result = beside(found)
    said: list[str] = []
    for source in there:
        said += first(result, "DB-Focal", on("mAP", source.name))
        claim = f"the paper's gain on the tail labels of {source.name} is 10 points or more"
        said += gain(result, "DB-Focal", "ERM", on("mAP tail", source.name), claim)
    return replace(result, notes=(*result.notes, *said, *left_out(job.data_root, _SOURCES)))


def _steps(job: Job) -> Result:
    """The rows of the four steps on the data that is there, and the AP of every label."""
    found, figure = {}, {}
    for source in present(job.data_root, (COCO_MLT, VOC_MLT)):
        part = _studied(job, source, [row for row in rows(source) if row.name in STEPS])
        labels = figures.labels_of(job, source)
        ap = {row.name: np.array([run.details["ap"] for run in row.runs], np.float64) for row in part.rows}
        figure[source.name] = {
            "names": list(labels.names),
            "counts": labels.counts.tolist(),
            "ap": {name: [_mean(of_label) for of_label in values.T] for name, values in ap.items()},
        }
        found[source.name] = part
    result = beside(found)
    return replace(result, figure=figure, notes=(*result.notes, *left_out(job.data_root, _SOURCES)))


def _sweep(name: str, job: Job) -> Result:
    source = present(job.data_root, _SOURCES)[0]
    return _studied(job, source, sweep(name, source))


def _draw_sweep(name: str, result: Result) -> Figure:
    found = {row.name: row for row in result.rows}
    panels = {
        symbol: {
            value: {c: (found[row].mean(c) or 0.0, found[row].std(c) or 0.0) for c in result.columns}
            for value in values
            if (row := f"{symbol} = {value:g}") in found
        }
        for symbol, (_, values) in SWEEPS[name].items()
    }
    return figures.sweep_figure({symbol: points for symbol, points in panels.items() if points})


def _first(result: Result) -> tuple[str, Mapping[str, Any]]:
    """The first data set of a figure."""
    return next(iter((result.figure or {}).items()))


def _splits() -> Need:
    """The need of a published split alone."""
    where = "; ".join(f"{source.name}: {source.files[0].split('|')[0]}/ {RELEASE}" for source in _SOURCES)
    names = " or ".join(f"the split of {source.name}" for source in _SOURCES)
    return Need(names, where, lambda root: bool(figures.splits_there(root)), _fixture)


def _fixture(folder: Path) -> None:
    for source in _SOURCES:
        source.fixture(folder)


_IMAGES = one_of(_SOURCES, VOC_MLT)
VARIED = (
    "photographs are mirrored and cropped, and batch normalisations keep their statistics, as in the released code; "
    "its changes of colour, the first stage that is not trained and its clipping are left out"
)
_NETWORK = (
    "network, schedule and constants as in the paper but for what is changed; photographs of VOC-MLT have 256 pixels a "
    "side; of its two baselines from elsewhere, "
    "ML-GCN and OLTR, the heads; by SGD, CB-Focal has its rate of .1, OLTR its authors' .1 for the head and .01 below "
    "it, the others .02; OLTR has no dropout; CB-Focal's loss weight of 10 is left out; weights by class (CB, RW under "
    "RS) are below 1 for most items, and under SGD such rows learn less in the same time; RW's weights are at most 1, "
    f"OLTR's reachability has its authors' factor of 10; what is difficult counts as present; {VARIED}"
)
TUNED = Tuned(
    (
        "model.backbone=lite0",
        "optimizer.kind=adamw",
        "optimizer.lr=1e-3",
        "optimizer.backbone_lr=0.1",
        "optimizer.weight_decay=0.01",
    ),
    "These were the best of eleven settings tried on a fifth of the training items, by one seed and the mean mAP of "
    "RS, R-BCE and DB-Focal; all rows have them, whatever rates are said above.",
)
"""How the rows are fine-tuned over a network that is at hand."""

_VALUES = (
    "the values are chosen here; with the paper's own, on VOC-MLT β 10, λ 5, μ .3 and κ .05, it is DB-Focal of "
    "db-table1"
)

_ALL: tuple[Reproduction, ...] = (
    Reproduction(
        "db-table1",
        _PAPER,
        "mAP of all methods over all labels and over head, medium and tail",
        (_IMAGES,),
        30,
        partial(_table, rows),
        PUBLISHED["db-table1"],
        _NETWORK,
        against=("db-table2", "db-parts"),
        says=partial(sentences, CLAIMS),
    ),
    Reproduction(
        "db-table2",
        _PAPER,
        "mAP of re-sampling combined with weights",
        (_IMAGES,),
        12,
        partial(_table, weighted),
        PUBLISHED["db-table2"],
        f"{_NETWORK}; the paper prints the numbers of CB-Focal of Table 1 for RS+CB-Focal on VOC-MLT",
    ),
    Reproduction(
        "db-fig2",
        _PAPER,
        "items of every label before and after class-aware re-sampling",
        (_splits(),),
        0,
        figures.split_statistics,
        note="an epoch visits every label a quarter as often as the most frequent one occurs",
        draw=lambda result: figures.resampling_figure(result.figure or {}),
    ),
    Reproduction(
        "db-fig3",
        _PAPER,
        "the loss of a negative label and its gradient, negative-tolerant or not",
        (),
        0,
        lambda job: Result(figure={"lam": [1.0, 2.0, 5.0], "nu": 0.5}),
        draw=lambda result: figures.tolerance_figure((result.figure or {})["lam"], (result.figure or {})["nu"]),
    ),
    Reproduction(
        "db-fig5",
        _PAPER,
        "which labels come with which, items after re-sampling, and how unequally a label's items are drawn",
        (_splits(),),
        0,
        figures.split_statistics,
        draw=lambda result: figures.imbalance_figure(result.figure or {}),
    ),
    Reproduction(
        "db-fig6",
        _PAPER,
        f"AP of each label, gained step by step: {', '.join(STEPS)}",
        (one_of(_SOURCES, COCO_MLT),),
        12,
        _steps,
        note="from the runs of Table 1, and on COCO-MLT R-BCE besides",
        draw=lambda result: figures.gain_figure(result.figure or {}),
        whole=True,
    ),
    Reproduction(
        "db-fig7",
        _PAPER,
        "mAP of DB-Focal against β and λ",
        (_IMAGES,),
        12,
        partial(_sweep, "db-fig7"),
        note=_VALUES,
        draw=partial(_draw_sweep, "db-fig7"),
    ),
    Reproduction(
        "db-fig8",
        _PAPER,
        "Pareto curves by α, and how COCO-MLT is made",
        (),
        0,
        figures.construction,
        note="the values of α are chosen here but for 6, that of both sets; the second panel is made anew with a seed "
        "of ours, so its counts are not those of the published split",
        draw=lambda result: figures.construction_figure(result.figure or {}),
    ),
    Reproduction(
        "db-fig9",
        _PAPER,
        "labels of the test sets, in the order of the training sets",
        (_splits(),),
        0,
        figures.to_test_on,
        draw=lambda result: figures.test_figure(result.figure or {}),
    ),
    Reproduction(
        "db-fig10",
        _PAPER,
        "mAP of DB-Focal against μ and κ",
        (_IMAGES,),
        12,
        partial(_sweep, "db-fig10"),
        note=_VALUES,
        draw=partial(_draw_sweep, "db-fig10"),
    ),
)
_ALL += (
    Reproduction(
        "db-parts",
        _PAPER,
        "mAP of the parts of the loss, combined",
        (_IMAGES,),
        40,
        partial(_table, combinations),
        note=f"not in the paper; {_NETWORK}",
    ),
    Reproduction(
        "db-counts",
        _PAPER,
        "positives of every label of the long-tailed sets",
        (_splits(),),
        0,
        figures.split_statistics,
        note="not a figure of the paper",
        draw=lambda result: figures.counts_figure(result.figure or {}),
    ),
    Reproduction(
        "db-weights",
        _PAPER,
        "how unequally a label's items are drawn, with and without the re-balanced weights",
        (_splits(),),
        0,
        figures.split_statistics,
        note="not a figure of the paper",
        draw=lambda result: figures.sampling_figure(*_first(result)),
    ),
)
REPRODUCTIONS = tuple(replace(made, tuned=TUNED) if made.minutes else made for made in _ALL)
"""In the order of the paper; figures 1 and 4 show no numbers."""

FROZEN_SETS = (
    *("data.size=224", "model.backbone=lite0", "model.frozen=true", "model.keep_statistics=false"),
    *("train.augment.flip=0", "train.augment.resized_crop=0"),
)
"""What is set besides the paper's set-up."""
TWINNED = ("db-table1", "db-table2", "db-parts", "db-fig6", "db-fig7", "db-fig10")


def _run_frozen(of: Reproduction, job: Job) -> Result:
    result = of.run(job if job.smoke else replace(job, sets=(*FROZEN_SETS, *job.sets)))
    return replace(result, changed=job.sets)


def twin(of: Reproduction) -> Reproduction:
    """Return a table or figure of the paper as one over a frozen backbone."""
    about = "the backbone is EfficientNet-Lite0, frozen"
    return replace(
        of,
        name=f"{of.name}-frozen",
        title=f"{of.title}, over a frozen backbone",
        minutes=of.minutes / 10,
        run=partial(_run_frozen, of),
        published=None,
        tuned=None,
        note=f"{about}; {of.note}".replace("network, schedule", "head, schedule")
        .replace(" for the head and .01 below it", "")
        .replace("photographs of VOC-MLT have 256 pixels a side; ", "")
        .replace("by SGD, ", "")
        .replace(VARIED, "photographs are not varied")
        .replace("db-table1", "db-table1-frozen"),
    )


TWINS: tuple[Reproduction, ...] = tuple(twin(of) for of in REPRODUCTIONS if of.name in TWINNED)
"""The tables and figures of the paper that train, over a frozen backbone: minutes on a CPU."""
