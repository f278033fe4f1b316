"""SPA and LPR, calibrated multi-label classification: four tables, four figures, and questions about images.

paper     Cheng and Vasconcelos, CVPR 2024; ECA-ResNet50-T and ViT-B/32; SPA + LPR on VOC 2012: mAP 89.9, ACE 4.9
here      ResNet-50 v1, 224 pixels, 12 epochs, the epoch by held-out log-loss; one GPU, minutes as `--list` says
command   steelyard reproduce spa-table3 --data DATA --seeds 3; all of them: steelyard reproduce --list
score     docs/results/spa-table3.md and spa-epochs.md; the claims that are judged: `spa_rows.CLAIMS`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.config.recipes import settings
from steelyard_papers import spa_figures as figures
from steelyard_papers.findings import above, firsts, sentences
from steelyard_papers.frozen_features import COCO_FEATURES
from steelyard_papers.published import CALIBRATED, PUBLISHED
from steelyard_papers.reproduction import Job, Reproduction
from steelyard_papers.result import Result, RowResult, RunResult, beside, read_as
from steelyard_papers.sources import COCO2014, VISPR, VOC2012, VQA, WIDER, Source, data_table, left_out, one_of, present
from steelyard_papers.spa_rows import (
    BY_LINK,
    BY_SIGMA,
    CLAIMS,
    FINE_TUNED,
    QUERIES,
    RUNS,
    SHOWN,
    TABLE3,
    TABLE4,
    at_held_out,
    curve,
    equal_accuracy,
    error_at,
    spa_answers,
    spa_found,
    spa_retrieval_by_link,
    spa_retrieval_by_sigma,
    spa_scores,
)
from steelyard_papers.study import Row, chosen_rows, joined, study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PAPER = "SPA + LPR (Cheng and Vasconcelos 2024)"
_SOURCES = (VOC2012, COCO2014, WIDER, VISPR)

FINE = {name: part for name, part in settings("voc2012-spa").items() if name not in ("data", "objective", "evaluate")}
FINE |= {"data": {"size": 224, **FINE_TUNED["data"]}, "train": {**FINE["train"], **FINE_TUNED["train"]}}
FINE |= {"model": {"backbone": "resnet50"}, "optimizer": {**FINE["optimizer"], "lr": 0.2}}
_FROZEN: dict[str, Any] = {
    "data": {"size": 160, "validation": 0.0},
    "model": {"backbone": "lite0", "frozen": True},
    "optimizer": {"kind": "adamw", "lr": 3e-4, "weight_decay": 0.01},
    "schedule": {"kind": "cosine"},
    "train": {"epochs": 60, "batch_size": 128},
}


BESIDE = ("spa-epochs", "spa-table4", "spa-fig3", "spa-table3-features", "spa-table4-features")
"""The results that its claims are judged by, besides Table 3."""
EPOCH = (
    "every row holds out a tenth of the training items, and of its epochs has the one whose log-loss on them, by the "
    "loss's own link, is the least (TWL by σ after one temperature)"
)
"""The rule by which epochs are chosen, the same for all rows and fixed before test items are looked at."""


def _studied(
    job: Job, source: Source, base: Mapping[str, Any], table: Mapping[str, tuple[str, str]], measure: Any
) -> Result:
    """The trainings that the rows of a table read; where items are held out, followed epoch by epoch."""
    chosen = [RUNS[run] for run in dict.fromkeys(run for run, _ in _chosen(job, table).values())]
    follows = bool(base["data"]["validation"])
    result = study(
        replace(job, rows=()),
        source.over(base),
        chosen,
        lambda _data, _seed: source.open(job.data_root),
        measure,
        (),
        follows=follows,
    )
    return replace(result, notes=(EPOCH,)) if follows else result


def _chosen(job: Job, table: Mapping[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """The rows of a table that the job wants."""
    return {row.name: table[row.name] for row in chosen_rows(job, [Row(name) for name in table])}


def _read(job: Job, result: Result, table: Mapping[str, tuple[str, str]]) -> Result:
    """The rows of a table, each a reading of its training."""
    rows = [(name, run, _columns(how)) for name, (run, how) in _chosen(job, table).items()]
    return read_as(result, rows, CALIBRATED)


def _columns(how: str) -> dict[str, str]:
    """By column of a table the number of a run, read in one way."""
    return {"mAP@y": "mAP@y", "mAP@x": "mAP@x", "ACE": f"ACE by {how}", "MCE": f"MCE by {how}"}


def _epochs_said(result: Result) -> tuple[str, ...]:
    """A sentence on the epochs that were chosen, by row and data, where runs were followed."""
    said: dict[str, dict[str, list[int]]] = {}
    for row in result.rows:
        for run in row.runs:
            for data, details in run.details.items():
                if "epoch" in details:
                    said.setdefault(data, {}).setdefault(row.name, []).append(details["epoch"])
    return tuple(
        f"epochs chosen on {data}, by seed: "
        + ", ".join(f"{name} {' '.join(map(str, epochs))}" for name, epochs in by_row.items())
        for data, by_row in said.items()
    )


def _along(base: Mapping[str, Any], table: Mapping[str, tuple[str, str]], job: Job) -> Result:
    """Calibration against accuracy after every epoch, at the chosen ones, and where accuracy is equal."""
    source, chosen = present(job.data_root, _SOURCES)[0], _chosen(job, table)
    runs = _studied(job, source, base, table, spa_scores)
    curves = {name: [curve(run, how) for run in runs.row(of).runs] for name, (of, how) in chosen.items()}
    level = equal_accuracy(curves)
    columns = ("mAP@y", "ACE", "ACE at equal mAP", "epoch")
    rows = []
    for name, (of, how) in chosen.items():
        made = []
        for run, (maps, errors) in zip(runs.row(of).runs, curves[name], strict=True):
            at_level = error_at(maps, errors, level)
            values = (run.values["mAP@y"], run.values[f"ACE by {how}"], at_level, float(run.details["epoch"]))
            made.append(replace(run, values=dict(zip(columns, values, strict=True)), details={}))
        rows.append(RowResult(name, tuple(made)))
    means = {name: np.mean(np.array(of_seeds), 0) for name, of_seeds in curves.items()}
    figure = {
        "level": level,
        "curves": {name: {"mAP": c[0].tolist(), "ACE": c[1].tolist()} for name, c in means.items()},
    }
    note = (
        f"ACE at equal mAP is read where a row first has an mAP@y of {level:.2f}, the most that every row has in every "
        "seed, between two epochs by a straight line"
    )
    return replace(runs, rows=tuple(rows), columns=columns, figure=figure, notes=(*runs.notes, note))


def _table(
    base: Mapping[str, Any], table: Mapping[str, tuple[str, str]], job: Job, sources: tuple[Source, ...] = _SOURCES
) -> Result:
    there = present(job.data_root, sources)
    found = {s.name: _read(job, _studied(job, s, base, table, spa_scores), table) for s in there}
    result = beside(found)
    errors = [column for column in result.columns if column.startswith("ACE")]
    said = (*firsts(result, "SPA + LPR", result.columns), *above(result, "SPA + LPR", errors), *_epochs_said(result))
    return replace(result, notes=(*result.notes, *said, *left_out(job.data_root, sources)))


FIGURE1 = {name: TABLE3[name] for name in ("BCE", "focal", "ASY", "ASY by φ", "SPA", "SPA + LPR")}
FIGURE3 = {name: TABLE3[name] for name in ("BCE", "ASY", "ASY by φ", "SPA", "SPA + LPR")}


def _reliability(base: Mapping[str, Any], job: Job) -> Result:
    source = present(job.data_root, _SOURCES)[0]
    result = _read(job, _studied(job, source, base, FIGURE1, spa_scores), FIGURE1)
    bins = {row.name: row.runs[0].details["bins"][FIGURE1[row.name][1]] for row in result.rows}
    return replace(result, figure=bins)


def _retrieval(base: Mapping[str, Any], job: Job) -> Result:
    source, chosen, parts = present(job.data_root, _SOURCES)[0], _chosen(job, FIGURE3), []
    for how, measure in ((BY_SIGMA, spa_retrieval_by_sigma), (BY_LINK, spa_retrieval_by_link)):
        table = {name: said for name, said in chosen.items() if said[1] == how}
        if table:
            runs = _studied(replace(job, rows=()), source, base, table, measure)
            column = {"retrieval mAP": "retrieval mAP"}
            parts.append(read_as(runs, [(name, run, column) for name, (run, _) in table.items()], [*column]))
    result = joined(*parts)
    result = replace(result, rows=tuple(result.row(name) for name in chosen))
    curves = {}
    for row in result.rows:
        by_terms = [run.details["by_terms"] for run in row.runs]
        curves[row.name] = {k: float(np.mean([said[k] for said in by_terms])) for k in by_terms[0]}
    first = result.rows[0].runs[0].details
    scored = "all were scored" if first["exact"] else "those of the longer ones that were scored are a sample"
    note = f"{first['queries']:,} queries of one to five terms have a relevant image; {scored}"
    return replace(result, figure=curves, notes=(*result.notes, note))


FIGURE4 = {name: TABLE3[name] for name in ("BCE", "ASY", "SPA", "SPA + LPR")}


def _found(base: Mapping[str, Any], job: Job) -> Result:
    """Figure 4: how many of the best images are right, which they are, and, for the drawing alone, their files."""
    runs = _studied(replace(job, seeds=job.seeds[:1]), VOC2012, base, FIGURE4, spa_found)
    test, chosen = VOC2012.open(job.data_root).test, _chosen(job, FIGURE4)
    details = {row.name: row.runs[0].details for row in runs.rows}
    queries: list[dict[str, Any]] = []
    right: dict[str, dict[str, float | None]] = {name: {} for name in chosen}
    files: dict[str, str] = {}
    for i, (wanted, unwanted) in enumerate(QUERIES):
        text, by_run = ", ".join((*wanted, *(f"not {name}" for name in unwanted))), {}
        for name, (run, how) in chosen.items():
            hits = details[run][f"{i} {how}"]
            by_run[name] = {"ids": [test.labels.ids[k] for k in hits["items"]], "right": hits["right"]}
            right[name][_right_of(text)] = float(sum(hits["right"]))
            files |= {test.labels.ids[k]: test.paths[k] for k in hits["items"]}
        queries.append({"text": text, "runs": by_run})
    made = {name: RunResult(runs.seeds[0], values, details={"files": files}) for name, values in right.items()}
    rows = tuple(RowResult(name, (run,)) for name, run in made.items())
    columns = tuple(_right_of(query["text"]) for query in queries)
    note = "VOC's photographs are not passed on: the command draws them, the picture of these numbers has their names"
    return replace(runs, rows=rows, columns=columns, figure={"queries": queries}, notes=(*runs.notes, note))


def _right_of(text: str) -> str:
    return f"right of {SHOWN}: {text}"


def _draw_found(result: Result) -> Figure:
    return figures.found_figure((result.figure or {})["queries"], result.rows[0].runs[0].details.get("files", {}))


ANSWERS = {name: TABLE3[name] for name in ("BCE", "focal", "focal by φ", "ASY", "ASY by φ", "SPA", "SPA + LPR")}
_PAIRS: dict[str, Any] = {
    "data": {"validation": 0.0},
    "model": {"backbone": "cross_attention", "width": 512, "layers": 4},
    "optimizer": {"kind": "adamw", "lr": 1e-4, "weight_decay": 0.01},
    "schedule": {"kind": "cosine", "warmup_epochs": 1},
    "train": {"epochs": 13, "batch_size": 256},
}


def _answers(job: Job) -> Result:
    small = _PAIRS | {"model": {"backbone": "cross_attention", "width": 16, "layers": 1}}
    result = _studied(job, VQA, small if job.smoke else _PAIRS, ANSWERS, spa_answers)
    rows = [
        (name, run, {"accuracy": "accuracy", "ACE": f"ACE by {how}", "MCE": f"MCE by {how}"})
        for name, (run, how) in _chosen(job, ANSWERS).items()
    ]
    return read_as(result, rows, ("accuracy", "ACE", "MCE"))


_CHOSEN = (
    "rate, schedule, epochs and mirroring are chosen here, and the weight of LPR, 1, which is not tuned; read by σ "
    "where not stated, SPA by its link; by φ: by the derived link; ASY is trained with its focusing weight "
    "detached, as its authors' code does, and φ is the link of that; TWL + TS is trained on nine tenths, its "
    "temperature fitted to the rest: it does not mend an offset of all logits, which TWL leaves free"
)
_ON_A_CPU = (
    "the backbone is EfficientNet-Lite0, frozen, at 160 pixels, under a linear layer; rate and epochs were chosen on a "
    "fifth of VOC's training items"
)


def _trained(base: Mapping[str, Any], ending: str, about: str, minutes: float) -> tuple[Reproduction, ...]:
    """The tables and figures that train, all over the same kind of network."""
    over = " over a frozen backbone" if ending else ""
    table3 = TABLE3 if ending else at_held_out(TABLE3)
    printed = {name: None if ending else PUBLISHED[name] for name in ("spa-table3", "spa-table4")}
    return (
        Reproduction(
            f"spa-table3{ending}",
            _PAPER,
            f"accuracy and calibration of all losses{over}",
            (one_of(_SOURCES, COCO2014 if ending else VOC2012),),
            minutes,
            partial(_table, base, table3),
            printed["spa-table3"],
            about + _CHOSEN,
            against=() if ending else BESIDE,
            says=None if ending else partial(sentences, CLAIMS),
        ),
        Reproduction(
            f"spa-table4{ending}",
            _PAPER,
            f"LPR on other losses{over}",
            (one_of(_SOURCES, WIDER),),
            minutes,
            partial(_table, base, TABLE4),
            printed["spa-table4"],
            f"{about}LPR is on the logits where not stated, as the paper's seems to be; {_CHOSEN}",
        ),
        Reproduction(
            f"spa-fig1{ending}",
            _PAPER,
            f"reliability{over}",
            (one_of(_SOURCES, VOC2012),),
            minutes / 2,
            partial(_reliability, base),
            note=about
            + "from the runs of Table 3, the picture from the first seed's; by σ where not stated, SPA by its "
            "link, ASY by φ by its own",
            draw=lambda result: figures.reliability_figure(result.figure or {}),
        ),
        Reproduction(
            f"spa-fig3{ending}",
            _PAPER,
            f"retrieval by several labels{over}: mAP against their number",
            (one_of(_SOURCES, WIDER),),
            minutes / 2,
            partial(_retrieval, base),
            note=about + "from the runs of Table 3; BCE and ASY read by σ, SPA by its link",
            draw=lambda result: figures.retrieval_figure(result.figure or {}),
        ),
        Reproduction(
            f"spa-fig4{ending}",
            _PAPER,
            f"images retrieved by several labels{over}",
            (one_of((VOC2012,), VOC2012),),
            minutes / 2,
            partial(_found, base),
            note=about + "from runs as those of Table 3, one seed; the queries are chosen here",
            draw=_draw_found,
        ),
    )


_NOT_SHOWN = (
    "one rate, 0.2, for all rows: with it TWL (mAP@y 7 to 11) and ASY + LPR on φ (15 to 64) do not learn, so both wait "
    "for a rate chosen on held-out items; "
)
_TABLE3, _TABLE4, _FIGURE1, _FIGURE3, _FIGURE4 = _trained(FINE, "", _NOT_SHOWN, 60)

_FEATURES: dict[str, Any] = {"data": {"validation": 0.1}, "train": {"keep": "last"}}


def _over_features(name: str, title: str, table: Mapping[str, tuple[str, str]]) -> Reproduction:
    """A table on COCO, over features that a frozen ResNet-50 gave once."""
    return Reproduction(
        f"{name}-features",
        _PAPER,
        f"{title} on COCO, over features of a frozen ResNet-50",
        (one_of((COCO_FEATURES,), COCO_FEATURES),),
        5,
        partial(_table, _FEATURES, at_held_out(table), sources=(COCO_FEATURES,)),
        PUBLISHED[name],
        f"a linear layer over features, so that gains compare and scores do not; {_CHOSEN}",
    )


REPRODUCTIONS: tuple[Reproduction, ...] = (
    Reproduction(
        "spa-table1",
        _PAPER,
        "what the minimiser of each loss says of the probability, in per cent",
        (),
        0,
        figures.losses_table,
    ),
    Reproduction("spa-table2", _PAPER, "the data sets", (one_of(_SOURCES, VISPR),), 0, partial(data_table, _SOURCES)),
    *(_TABLE3, _TABLE4, _FIGURE1),
    Reproduction(
        "spa-fig2",
        _PAPER,
        "the losses and their links",
        (),
        0,
        lambda job: Result(figure={"losses": list(figures.LOSSES)}),
        draw=lambda result: figures.losses_figure(figures.LOSSES),
    ),
    *(_FIGURE3, _FIGURE4),
    Reproduction(
        "spa-epochs",
        _PAPER,
        "calibration error against accuracy after every epoch",
        (one_of(_SOURCES, VOC2012),),
        60,
        partial(_along, FINE, at_held_out(TABLE3)),
        note="not in the paper: calibration error grows with over-training, so one number of epochs for all rows would "
        f"decide which is calibrated best; from the runs of Table 3; {_CHOSEN}",
        draw=lambda result: figures.epochs_figure(result),
    ),
    Reproduction(
        "spa-vqa",
        _PAPER,
        "answers to questions about images: accuracy and calibration",
        (one_of((VQA,), VQA),),
        120,
        _answers,
        note="cross-attention over regions and words, of LXMERT's kind, trained from scratch; width, layers, rate and "
        "epochs are chosen here",
    ),
    _over_features("spa-table3", "accuracy and calibration of all losses", TABLE3),
    _over_features("spa-table4", "LPR on other losses", TABLE4),
    *_trained(_FROZEN, "-frozen", f"{_ON_A_CPU}; ", 5),
)
"""The paper's, then those that train over a frozen backbone, which takes minutes on a CPU."""
