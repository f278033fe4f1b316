"""Partial Label Masking: its seven tables and eight figures.

paper     Duarte, Rawat, Shah 2021 (arXiv 2105.10782); ResNet-12, ResNet-32, ResNet-50; F1 80.4 → 83.7 on MultiMNIST
here      the same networks on MultiMNIST and CIFAR, a linear layer over features on COCO; one GPU, see `--list`
command   steelyard reproduce plm-table1 --data DATA --seeds 3; all of them: steelyard reproduce --list
score     docs/results/plm-table1.md and plm-table3.md; the claims that are judged: `catalogue.PLM_CLAIMS`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from steelyard_papers import plm_figures as figures
from steelyard_papers import plm_rows as rows_of
from steelyard_papers.findings import above, gain
from steelyard_papers.plm_rows import (
    CIFAR10,
    CIFAR100,
    COCO,
    HEAD_AND_TAIL,
    INITIAL,
    MNIST,
    MULTI_MNIST,
    ON_COCO,
    RATES,
    RATIOS,
    chosen,
    decisions_of_3,
    examples,
    open_multi_mnist,
    plm,
)
from steelyard_papers.published import PUBLISHED
from steelyard_papers.reproduction import BEYOND, LEFT_OUT, Job, Need, Reproduction
from steelyard_papers.result import Result, RowResult, RunResult, beside
from steelyard_papers.study import Row, Settings, merged, study

TEN = 10
"""Epochs after which Figure 7 shows outputs."""
PAPER = "PLM: Partial Label Masking (Duarte, Rawat, Shah 2021)"


def _table1(job: Job) -> Result:
    result = rows_of.multi_mnist(job, MULTI_MNIST)
    said = gain(result, "BCE + PLM", "BCE", "F1", "the paper has PLM gain 3.4 of F1")
    said += gain(result, "BCE + PLM", "BCE", "F1 of the 3 rarest", "the paper has PLM gain 8.5 of F1 of the 3 rarest")
    return replace(result, notes=(*result.notes, *said))


def _table2(job: Job) -> Result:
    return rows_of.coco(job, ON_COCO)


def _table3(job: Job) -> Result:
    result = rows_of.cifar(job, 10, rows_of.cifar_rows(1.0, rows_of.rhos_of(job)))
    said: tuple[str, ...] = ()
    for rho in rows_of.rhos_of(job):
        there = replace(result, rows=tuple(row for row in result.rows if row.name.endswith(f" {rho}")))
        said += above(there, f"BCE + PLM, ρ {rho}", ("error",))
    return replace(result, notes=(*result.notes, *said))


def _table4(job: Job) -> Result:
    return rows_of.cifar(job, 100, rows_of.cifar_rows(0.01, rows_of.rhos_of(job)))


def _ablation(job: Job, settings: dict[str, Settings]) -> Result:
    """PLM on BCE with each of the settings, on the CIFARs of ρ 100; one seed each."""
    there = [n for n, need in ((10, CIFAR10), (100, CIFAR100)) if need.check(job.data_root)][: 1 if job.smoke else None]
    parts = {}
    for n in there:
        rate = 1.0 if n == 10 else 0.01
        rows = [
            Row(name, {} if each.get("rate") == 0 else plm(**{"rate": rate, **each}), "100", 1)
            for name, each in settings.items()
        ]
        parts[f"CIFAR-{n}"] = rows_of.cifar(job, n, rows)
    whole = beside(parts)
    columns = tuple(column for column in whole.columns if column.startswith("error on "))
    return replace(whole, columns=columns, notes=() if len(there) > 1 else (f"CIFAR-100{LEFT_OUT}",))


def _table5(job: Job) -> Result:
    return _ablation(job, {f"λ {rate:g}": {"rate": rate} for rate in RATES})


def _table6(job: Job) -> Result:
    return _ablation(job, {initial: {"initial": initial} for initial in INITIAL})


def _table7(job: Job) -> Result:
    """By class: how many there are, and the decisions of BCE and of PLM on it."""
    whole = rows_of.multi_mnist(job, chosen(MULTI_MNIST, HEAD_AND_TAIL))
    datasets = open_multi_mnist(job)
    shares = [100 * part.labels.counts / len(part) for part in (datasets.train, datasets.test)]
    columns = ["training positives, %", "test positives, %"]
    columns += [f"{name}, {method}" for method in ("BCE", "PLM") for name in RATIOS]
    rows = []
    for c, digit in enumerate(datasets.train.labels.names):
        runs = []
        for bce, masked in zip(*(whole.row(name).runs for name in HEAD_AND_TAIL), strict=True):
            values = {column: float(share[c]) for column, share in zip(columns, shares, strict=False)}
            for method, run in (("BCE", bce), ("PLM", masked)):
                values |= {f"{name}, {method}": run.details[name][c] for name in RATIOS}
            runs.append(RunResult(bce.seed, values, bce.seconds + masked.seconds))
        rows.append(RowResult(digit, tuple(runs)))
    return replace(whole, columns=tuple(columns), rows=tuple(rows))


def _drawn(whole: Result, wanted: Sequence[str]) -> Result:
    """The details of each row's run as the numbers of a figure; its table stays where it belongs."""
    for row in whole.rows:
        if "names" not in row.runs[0].details:
            said = f"the ledger keeps nothing to draw of {row.name}, seed {row.runs[0].seed}"
            raise ValueError(f"{said}: leave the ledger out")
    first = whole.rows[0].runs[0].details
    figure: dict[str, Any] = {name: first[name] for name in ("names", "counts", "data_ratio")}
    for row in whole.rows:
        figure[row.name] = {name: row.runs[0].details[name] for name in wanted}
    return replace(whole, columns=(), rows=(), figure=figure)


def _once(job: Job) -> Job:
    """A figure shows one run of a row."""
    return replace(job, seeds=job.seeds[:1])


def _of_multi_mnist(*wanted: str) -> Callable[[Job], Result]:
    return lambda job: _drawn(rows_of.multi_mnist(_once(job), chosen(MULTI_MNIST, HEAD_AND_TAIL)), wanted)


def _of_cifar(*wanted: str) -> Callable[[Job], Result]:
    rows = chosen(rows_of.cifar_rows(1.0, (100,), named=False), HEAD_AND_TAIL)
    return lambda job: _drawn(rows_of.cifar(_once(job), 10, rows), wanted)


def _figure3(job: Job) -> Result:
    """Accuracy by class for each ρ, BCE and PLM, one run each."""
    rhos = rows_of.rhos_of(job)
    rows = [row for row in rows_of.cifar_rows(1.0, rhos) if row.name.split(",")[0] in HEAD_AND_TAIL]
    return _drawn(rows_of.cifar(_once(job), 10, rows), ("accuracy",))


def _figure7(job: Job) -> Result:
    """Outputs for training items after ten epochs: as the masks of PLM would first see them."""
    datasets = open_multi_mnist(job)
    base = merged(rows_of.base_of("multimnist-plm"), {"train": {"epochs": TEN}})
    seen = datasets._replace(test=datasets.train)
    rows = chosen(MULTI_MNIST, HEAD_AND_TAIL[:1])
    whole = study(_once(job), base, rows, lambda *_: seen, decisions_of_3, ())
    return _drawn(whole, ("positives", "negatives"))


def _pictures(job: Job) -> Result:
    datasets = open_multi_mnist(job)
    pictures, labels = examples(datasets, 24)
    figure = {
        "pictures": pictures.tolist(),
        "labels": labels,
        "names": list(datasets.train.labels.names),
        "training": datasets.train.labels.counts.tolist(),
        "test": datasets.test.labels.counts.tolist(),
    }
    return Result(data="; ".join(datasets.notes), figure=figure)


def _toy(job: Job) -> Result:
    return Result(figure=figures.toy_numbers())


def _entry(
    name: str,
    title: str,
    needs: tuple[Need, ...],
    minutes: float,
    run: Callable[[Job], Result],
    note: str = "",
    draw: Any = None,
    shown: str = "*",
) -> Reproduction:
    whole = draw is not None or run is _table7
    return Reproduction(name, PAPER, title, needs, minutes, run, PUBLISHED.get(name), note, draw, whole, shown)


_SILENT = (
    "weight decay and the layers of ResNet-12 are silent in the paper and chosen here; PLM begins with the ratios of "
    "the data, as its text has it; for other beginnings see plm-table6 and plm-gain"
)
_K5 = (
    "K is 5; long tails are read by the most probable class; CB weighs items by their class, LDAM-DRW has cosines for "
    "logits, as their authors have it; LDAM's print an error of 29.64 for cross-entropy on the original images at ρ "
    "100; what the same network and recipe get in plain torch, without a line of ours, is measured by "
    "bench/plain_resnet32.py, and is in plain-resnet32.jsonl for the copy at hand"
)
_COCO = (
    "where the photographs are not there, a linear layer over features of a frozen ResNet-50 stands for the network, "
    "and AdamW with a cosine schedule for its optimizer; as many epochs, the same λ, bins and clipping"
)
_ONE_SEED = "ρ is 100; each row is one seed; how far apart seeds are, plm-table3 shows"
_KL = "KL of the truth with a floor ε in its empty bins: without one it is infinite"
_MNIST = (
    "The digits are MNIST's, of Yann LeCun and Corinna Cortes, under CC BY-SA 3.0, as are this picture and its JSON"
)


def _on_coco(*measures: str) -> Callable[[Job], Result]:
    return lambda job: _drawn(rows_of.coco(_once(job), chosen(ON_COCO, HEAD_AND_TAIL)), measures)


REPRODUCTIONS: tuple[Reproduction, ...] = (
    _entry("plm-table1", "MultiMNIST: PLM on top of four methods", (MNIST,), 2.2, _table1, _SILENT),
    _entry("plm-table2", "COCO 2014: PLM on top of four methods", (COCO,), 3000, _table2, _COCO),
    _entry("plm-table3", "Long-tailed CIFAR-10 by ρ", (CIFAR10,), 20, _table3, _K5, shown="*ρ 100"),
    _entry("plm-table4", "Long-tailed CIFAR-100 by ρ", (CIFAR100,), 20, _table4, "K is 50", shown="*ρ 100"),
    _entry("plm-table5", "CIFAR: error by the rate λ", (CIFAR10,), 2, _table5, _ONE_SEED),
    _entry("plm-table6", "CIFAR: error by the ratio of the first epoch", (CIFAR10,), 2, _table6, _ONE_SEED),
    _entry("plm-table7", "MultiMNIST by class", (MNIST,), 0.6, _table7),
    _entry(
        "plm-fig1",
        "Outputs for a head and a tail class of CIFAR-10",
        (CIFAR10,),
        1,
        _of_cifar("positives", "negatives"),
        "ρ is 100, outputs are those of test items",
        figures.output_distributions,
    ),
    _entry(
        "plm-fig2", "MultiMNIST: ratios by epoch", (MNIST,), 0.6, _of_multi_mnist("ratios"), "", figures.ratios_by_epoch
    ),
    _entry(
        "plm-fig3",
        "CIFAR-10: accuracy by class, by ρ",
        (CIFAR10,),
        5,
        _figure3,
        "one run each: bars of PLM, points of BCE",
        figures.accuracy_by_rho,
    ),
    _entry("plm-fig4", "COCO 2014: F1 by class", (COCO,), 750, _on_coco("F1"), _COCO, figures.by_class),
    _entry("plm-fig5", "The example of ten items: histograms", (), 0, _toy, "", figures.toy_histograms),
    _entry("plm-fig6", "The example of ten items: distributions", (), 0, _toy, _KL, figures.toy),
    _entry(
        "plm-fig7",
        "MultiMNIST: distributions of outputs after ten epochs",
        (MNIST,),
        0.1,
        _figure7,
        "BCE; outputs are those of training items, τ is 10, and the learning rate falls within these ten epochs as it "
        "does within ninety elsewhere",
        figures.beside_truth,
    ),
    _entry(
        "plm-fig8",
        "COCO 2014: precision and recall by class",
        (COCO,),
        750,
        _on_coco("precision", "recall"),
        _COCO,
        figures.by_class,
    ),
    Reproduction(
        "plm-pictures",
        BEYOND,
        "Imbalanced MultiMNIST: pictures and counts",
        (MNIST,),
        0,
        _pictures,
        None,
        _MNIST,
        figures.examples,
        True,
    ),
)
"""In the order of the paper; last a picture that it does not have."""
