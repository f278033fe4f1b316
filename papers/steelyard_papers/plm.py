"""Partial Label Masking: its seven tables and eight figures.

paper     Duarte, Rawat, Shah 2021 (arXiv 2105.10782); ResNet-12, ResNet-32, ResNet-50; F1 80.4 → 83.7 on MultiMNIST
here      the same networks on MultiMNIST and CIFAR; on COCO a linear layer over features of a frozen ResNet-50
hardware  one H200: MultiMNIST 72 to 105 s a run (undersampling 22 s), CIFAR-10 42 to 187 s by ρ; on COCO one CPU core,
          250 s a run over 4,500 items
commands  steelyard reproduce plm-table1 --data DATA --seeds 3 --ledger docs/results/ledger.jsonl       31 minutes
          steelyard reproduce plm-table3 --data DATA --seeds 3 --ledger docs/results/ledger.jsonl      102 minutes
          steelyard reproduce plm-fig7 --data DATA                                                      10 seconds
          steelyard reproduce plm-table2 --data DATA --seeds 3 --ledger docs/results/ledger.jsonl      100 minutes, CPU
score     docs/results/plm-table1.md, plm-table3.md; the claims that are judged are `CLAIMS`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard.config import recipes
from steelyard.data.builders import exponential_counts, exponential_long_tail
from steelyard.data.dataset import ArrayDataset
from steelyard.data.readers.cifar import cifar10, cifar100
from steelyard.data.readers.coco import coco as read_coco
from steelyard.data.readers.mnist import mnist
from steelyard.data.readers.multi_mnist import N_MAX, balanced_pairs, imbalanced_pairs
from steelyard.data.subset import Subset
from steelyard.metrics import exact_match, precision_recall_f1, rarest_labels
from steelyard.run.datasets import Datasets
from steelyard_papers import figures, generated
from steelyard_papers.claims import BEYOND, Claim, Difference, Entry, Paper
from steelyard_papers.datasets import CIFAR10, CIFAR100, COCO2014, COCO_FEATURES, LEFT_OUT, MNIST
from steelyard_papers.result import Printed, Result, RowResult, RunResult, beside, printed_rows
from steelyard_papers.study import Job, Measured, Row, Settings, merged, named, study
from steelyard_papers.trial import Trial

PAPER = "PLM: Partial Label Masking (Duarte, Rawat, Shah 2021)"

# Data

DRAW = 0
"""The seed of the data: all runs see the same items, whatever their own seed."""


def open_digits(job: Job, train: bool) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the digits of MNIST: images (M, 28, 28) and classes (M,)."""
    data = mnist(job.data_root, train)
    return data.inputs[:, 0], data.labels.positives()[1].astype(np.int64)


def open_multi_mnist(job: Job, draw: int = DRAW) -> Datasets:
    """Return imbalanced MultiMNIST, the draw of this seed: 14,694 pictures to train on, 90,000 to test on."""
    n_max = generated.MNIST_N_MAX if job.smoke else N_MAX
    made = imbalanced_pairs(*open_digits(job, True), n_max, seed=draw), balanced_pairs(*open_digits(job, False), draw)
    train, test = (ArrayDataset(pictures[:, None], labels) for pictures, labels in made)
    note = f"imbalanced MultiMNIST, the draw of seed {draw}: positives {', '.join(map(str, train.labels.counts))}"
    return Datasets(train, None, test, (note,))


def open_cifar(job: Job, n_classes: int, rho: float) -> Datasets:
    """Return CIFAR-10 or CIFAR-100, thinned to a long tail of ρ; the test part is whole."""
    whole, test, n_max = _cifar10(job) if n_classes == 10 else _cifar100(job)
    ratio = min(rho, float(n_max))
    aimed = exponential_counts(n_max, n_classes, ratio)
    for name, n, least in zip(whole.labels.names, whole.labels.counts, aimed, strict=True):
        if n < least:
            raise ValueError(
                f"CIFAR-{n_classes} in {job.data_root} has {n} training images of {name}, but the long tail takes "
                f"{least}: fetch all of it"
            )
    kept = exponential_long_tail(whole.labels.positives()[1], n_max, ratio, DRAW)
    notes = [f"long tails of CIFAR-{n_classes}, the draw of seed {DRAW}"]
    if len(whole) != 50_000:
        notes.append(f"drawn from the {len(whole):,} training images that this copy has")
    return Datasets(Subset(whole, kept), None, test, tuple(notes))


def _cifar10(job: Job) -> tuple[ArrayDataset, ArrayDataset, int]:
    files = (f"cifar-10-batches-{kind}/data_batch_{{}}{ending}" for kind in ("bin", "py") for ending in (".bin", ""))
    patterns = list(files)
    there = [n for n in range(1, 6) if any((job.data_root / file.format(n)).is_file() for file in patterns)]
    whole = cifar10(job.data_root, True, there or (1, 2, 3, 4, 5))
    return whole, cifar10(job.data_root, False), generated.CIFAR10_N_MAX if job.smoke else 5000


def _cifar100(job: Job) -> tuple[ArrayDataset, ArrayDataset, int]:
    whole, test = (cifar100(job.data_root, train) for train in (True, False))
    return whole, test, generated.CIFAR100_N_MAX if job.smoke else 500


def _open_coco(root: Path) -> Datasets:
    """COCO 2014 train and val, images without labels kept, as the paper has them."""
    train, val = (read_coco(root, 2014, split) for split in ("train", "val"))
    return Datasets(train, None, val, (f"COCO 2014: {len(train):,} images to train on, {len(val):,} to test on",))


COCO = replace(COCO2014, open=_open_coco)

# Measures

BY_CLASS = ("precision", "recall", "F1")
_BINS = 10


def decisions_of_3(trial: Trial) -> Measured:
    """Measure σ(z) ≥ ½, the three rarest classes apart, and the items that are all right."""
    return _decisions(trial, 3)


def decisions_of_10(trial: Trial) -> Measured:
    """Measure σ(z) ≥ ½, the ten rarest classes apart, and the items that are all right."""
    return _decisions(trial, 10)


def _decisions(trial: Trial, k: int) -> Measured:
    decided = torch.sigmoid(trial.logits) >= 0.5
    scores = precision_recall_f1(decided, trial.targets)
    by_class = {name: (100 * getattr(scores, name.lower()).double()).tolist() for name in BY_CLASS}
    rare = rarest_labels(trial.counts, k)
    values: dict[str, float | None] = {name: float(np.mean(by_class[name])) for name in BY_CLASS}
    values |= {f"{name} of the {k} rarest": float(np.mean(np.array(by_class[name])[rare])) for name in BY_CLASS}
    values["0-1"] = 100 * float(exact_match(decided, trial.targets))
    ratios = [record["plm_ratio"] for record in trial.history if "plm_ratio" in record]
    return Measured(values, by_class, _distributions(trial) | {"ratios": ratios})


def errors(trial: Trial) -> Measured:
    """Measure the most probable class, the rarer half of the classes apart, in per cent of wrong items."""
    truth, decided = trial.targets.float().argmax(1), trial.logits.argmax(1)
    wrong = (truth != decided).double()
    half = torch.from_numpy(rarest_labels(trial.counts, len(trial.names) // 2).copy())
    accuracy = [_share(1 - wrong[truth == c]) for c in range(len(trial.names))]
    values = {"error": _share(wrong), "error of the K rarest": _share(wrong[torch.isin(truth, half)])}
    return Measured(values, {"accuracy": accuracy}, _distributions(trial))


def _share(values: Tensor) -> float | None:
    """The mean in per cent, None of nothing."""
    return 100 * float(values.mean()) if len(values) else None


def _distributions(trial: Trial) -> dict[str, Any]:
    """Names and counts, and the distributions of outputs of each class."""
    p = torch.sigmoid(trial.logits)
    return {
        "names": list(trial.names),
        "counts": trial.counts.tolist(),
        "data_ratio": (trial.counts / (trial.n_known - trial.counts)).tolist(),
        "positives": _histograms(p, trial.targets == 1),
        "negatives": _histograms(p, trial.targets == 0),
    }


def _histograms(p: Tensor, among: Tensor) -> list[list[float]]:
    """The share of a class's outputs in each of ten equal bins of [0, 1], (L, 10); zeros of a class without any."""
    spot = (p.double() * _BINS).long().clamp(0, _BINS - 1)
    counts = torch.stack([torch.bincount(spot[among[:, c], c], minlength=_BINS) for c in range(p.shape[1])]).double()
    shares = counts / counts.sum(1, keepdim=True).clamp_min(1)
    return [[round(share, 5) for share in row] for row in shares.tolist()]


def decision_columns(*rarest: int) -> tuple[str, ...]:
    """Return the columns of Tables 1 and 2: means over the classes and over the `rarest` of them."""
    apart = ([name, *(f"{name} of the {k} rarest" for k in rarest)] for name in ("recall", "F1"))
    return ("precision", *(column for columns in apart for column in columns), "0-1")


def rarest_apart(result: Result, rarest: Sequence[int]) -> Result:
    """Return the runs with recall and F1 of their `rarest` classes, from what was measured class by class."""
    counts = next((run.details["counts"] for row in result.rows for run in row.runs if "counts" in run.details), None)
    if counts is None:
        measured = {name for row in result.rows for run in row.runs for name in run.values}
        return replace(result, columns=tuple(column for column in result.columns if column in measured))
    rare = {k: rarest_labels(np.array(counts), k) for k in rarest}

    def more(run: RunResult) -> RunResult:
        apart = {
            f"{name} of the {k} rarest": float(np.mean(np.array(run.details[name])[at]))
            for name in ("recall", "F1")
            for k, at in rare.items()
        }
        return replace(run, values={**run.values, **apart})

    return replace(result, rows=tuple(replace(row, runs=tuple(map(more, row.runs))) for row in result.rows))


# Rows

RHOS = (200, 100, 50, 20, 10)
SEVERAL_SEEDS = (100, 10)
"""The ρ of Tables 3 and 4 that are run with all seeds, the others with one."""
RATES = (1.0, 0.1, 0.01, 0.0)
"""λ of Table 5; with 0 no ratio moves, and nothing is masked: that is BCE."""
INITIAL = ("dataset", "mean", "min", "max")
HEAD_AND_TAIL = ("BCE", "BCE + PLM")
"""The rows that figures compare."""
TEN = 10
"""Epochs after which Figure 7 shows outputs."""


def plm(**arguments: Any) -> Settings:
    """Return the settings of PLM with these arguments."""
    return {"objective": {"masking": {"kind": "plm", **arguments}}}


def base_of(recipe: str) -> Settings:
    """Return the set-up of a recipe without its method, which the rows give."""
    settings = recipes.settings(recipe)
    settings["objective"] = {"reduction": "item"}
    settings["evaluate"] = {**settings["evaluate"], "batch_size": 1024}
    return settings


FOCAL: Settings = {"objective": {"loss": {"kind": "focal", "gamma": 2.0}}}
CB: Settings = {"objective": {"weighting": "class_balanced"}}
CB_OF_ITEMS: Settings = {"objective": {"weighting": {"kind": "class_balanced", "mode": "mean_weight"}}}
"""An item has the weight of its class, as its authors have it where items have one class each."""
LDAM_DRW: Settings = {
    "objective": {
        "loss": {"kind": "ldam", "softmax": True},
        "weighting": {"kind": "class_balanced", "start": 161},
        "reduction": "mean",
    },
    "model": {"head": "cosine"},
    "evaluate": {"calibration": "auto"},
}
"""With the deferred weights divided by their sum over the batch, as its authors have it."""


def _with_and_without(masked: Settings, per_class: int) -> tuple[Row, ...]:
    """The eight rows of Tables 1 and 2: four methods, and PLM on top of each."""
    undersampled: Settings = {"train": {"sampler": {"kind": "undersample", "per_class": per_class}}}
    methods: dict[str, Settings] = {"BCE": {}, "Focal": FOCAL, "CB": CB, "Undersampling": undersampled}
    alone = (Row(name, settings) for name, settings in methods.items())
    on_top = (Row(f"{name} + PLM", merged(settings, masked)) for name, settings in methods.items())
    return (*alone, *on_top)


MULTI_MNIST = _with_and_without(plm(rate=0.01), 500)
ON_COCO = _with_and_without(plm(rate=0.01, clip=(0.0, 1.0)), 1000)


def multi_mnist(rows: Sequence[Row], job: Job, drawn: bool = False) -> Result:
    """Run rows on MultiMNIST, which every seed draws for itself where `drawn`."""
    base, columns = base_of("multimnist-plm"), decision_columns(5, 3)
    data = partial(_multi_mnist_of, job, drawn)
    return rarest_apart(study(job, base, rows, data, decisions_of_3, columns, seeded_data=drawn), (5, 3))


def _multi_mnist_of(job: Job, drawn: bool, _data: str, seed: int) -> Datasets:
    return open_multi_mnist(job, seed if drawn else DRAW)


def coco(rows: Sequence[Row], job: Job) -> Result:
    """Run rows on COCO 2014: on its photographs, or on features of them where those alone are there."""
    source = COCO if COCO.is_there(job.data_root) else COCO_FEATURES
    base = base_of("coco-plm") if source is COCO else over_features(base_of("coco-plm"))
    data = lambda *_: source.open(job.data_root)  # noqa: E731
    return rarest_apart(study(job, base, rows, data, decisions_of_10, decision_columns(20, 10)), (20, 10))


def over_features(base: Settings) -> Settings:
    """Return the settings for a linear layer over features, trained for as many epochs: in each the ratios move."""
    alone = {name: part for name, part in base.items() if name not in ("optimizer", "schedule")}
    return merged(alone, COCO_FEATURES.settings, {"train": {"epochs": base["train"]["epochs"]}})


def cifar(n_classes: int, rows: Sequence[Row], job: Job) -> Result:
    """Run rows on the long tails of CIFAR-10 or CIFAR-100 whose ρ they name."""
    columns, base = ("error", "error of the K rarest"), base_of("cifar10-lt-plm")
    return study(job, base, rows, lambda rho, _: open_cifar(job, n_classes, float(rho)), errors, columns)


def rhos_of(job: Job) -> tuple[int, ...]:
    """Return the ρ of Tables 3 and 4."""
    return RHOS[-1:] if job.smoke else RHOS


def cifar_rows(rate: float, rhos: Sequence[int], with_rho: bool = True) -> tuple[Row, ...]:
    """Return the rows of Tables 3 and 4: six methods for each ρ, which is in the name of a row `with_rho`."""
    methods: dict[str, Settings] = {
        "BCE": {},
        "Focal": FOCAL,
        "CB": CB_OF_ITEMS,
        "LDAM-DRW": LDAM_DRW,
        "BCE + PLM": plm(rate=rate),
        "Focal + PLM": merged(FOCAL, plm(rate=rate)),
    }
    return tuple(
        Row(f"{name}, ρ {rho}" if with_rho else name, settings, str(rho), 0 if rho in SEVERAL_SEEDS else 1)
        for rho in rhos
        for name, settings in methods.items()
    )


# Tables and figures


def _by_rho(n_classes: int, rate: float, job: Job) -> Result:
    return cifar(n_classes, cifar_rows(rate, rhos_of(job)), job)


def _ablation(settings: dict[str, Settings], job: Job) -> Result:
    """PLM on BCE with each of the settings, on the CIFARs of ρ 100; one seed each."""
    sets = {10: (CIFAR10, 1.0), 100: (CIFAR100, 0.01)}
    there = [n for n, (data, _) in sets.items() if data.is_there(job.data_root)][: 1 if job.smoke else None]
    parts = {}
    for n in there:
        rows = [
            Row(name, {} if each.get("rate") == 0 else plm(**{"rate": sets[n][1], **each}), "100", 1)
            for name, each in settings.items()
        ]
        parts[f"CIFAR-{n}"] = cifar(n, rows, job)
    whole = beside(parts)
    columns = tuple(column for column in whole.columns if column.startswith("error on "))
    return replace(whole, columns=columns, notes=() if len(there) > 1 else (f"CIFAR-100{LEFT_OUT}",))


def _of_classes(job: Job) -> Result:
    """Table 7: by class, how many there are, and the decisions of BCE and of PLM on it."""
    whole = _bce_and_plm(job)
    datasets = open_multi_mnist(job)
    counts = {"train": datasets.train.labels.counts, "test": datasets.test.labels.counts}
    rows = []
    for c, digit in enumerate(datasets.train.labels.names):
        runs = []
        for bce, masked in zip(*(whole.row(name).runs for name in HEAD_AND_TAIL), strict=True):
            values: dict[str, float | None] = {part: float(count[c]) for part, count in counts.items()}
            for method, run in (("BCE", bce), ("PLM", masked)):
                values |= {f"{name}, {method}": run.details[name][c] for name in BY_CLASS}
            runs.append(RunResult(bce.seed, values, bce.seconds + masked.seconds))
        rows.append(RowResult(digit, tuple(runs)))
    columns = (*counts, *(f"{name}, {method}" for method in ("BCE", "PLM") for name in BY_CLASS))
    return replace(whole, columns=columns, rows=tuple(rows))


def _drawn(whole: Result, parts: Sequence[str]) -> Result:
    """The details of each row's run as the numbers of a figure; its table stays where it belongs."""
    for row in whole.rows:
        if "names" not in row.runs[0].details:
            words = f"the ledger keeps nothing to draw of {row.name}, seed {row.runs[0].seed}"
            raise ValueError(f"{words}: leave the ledger out")
    first = whole.rows[0].runs[0].details
    figure: dict[str, Any] = {name: first[name] for name in ("names", "counts", "data_ratio")}
    for row in whole.rows:
        figure[row.name] = {name: row.runs[0].details[name] for name in parts}
    return replace(whole, columns=(), rows=(), figure=figure)


def _of_runs(run: Callable[[Job], Result], *parts: str) -> Callable[[Job], Result]:
    """Return what makes a figure of one run of each row."""
    return lambda job: _drawn(run(job.once), parts)


_TWO = named(MULTI_MNIST, HEAD_AND_TAIL)
_bce_and_plm = partial(multi_mnist, _TWO)
_coco_bce_and_plm = partial(coco, named(ON_COCO, HEAD_AND_TAIL))
_cifar_bce_and_plm = partial(cifar, 10, named(cifar_rows(1.0, (100,), with_rho=False), HEAD_AND_TAIL))


def _at_every_rho(job: Job) -> Result:
    return cifar(10, [row for row in cifar_rows(1.0, rhos_of(job)) if row.name.split(",")[0] in HEAD_AND_TAIL], job)


def _early(job: Job) -> Result:
    """Figure 7: outputs for training items after ten epochs: as the masks of PLM would first see them."""
    datasets = open_multi_mnist(job)
    base = merged(base_of("multimnist-plm"), {"train": {"epochs": TEN}})
    seen = datasets._replace(test=datasets.train)
    return study(job, base, named(MULTI_MNIST, HEAD_AND_TAIL[:1]), lambda *_: seen, decisions_of_3, ())


def _pictures(job: Job) -> Result:
    """Some pictures of the training part, spread over its length, and the labels of each."""
    datasets = open_multi_mnist(job)
    labels, at = datasets.train.labels, np.linspace(0, len(datasets.train) - 1, 24).astype(int)
    figure = {
        "pictures": datasets.train.inputs[at, 0].tolist(),
        "labels": [", ".join(labels.names[c] for c in np.flatnonzero(row == 1)) for row in labels.rows(at)],
        "names": list(labels.names),
        "training": labels.counts.tolist(),
        "test": datasets.test.labels.counts.tolist(),
    }
    return Result(data="; ".join(datasets.notes), figure=figure)


FLOORS = (1e-2, 1e-6, 1e-12)
TOY = {"positives": (0.2, 0.6, 0.95, 0.99, 0.45), "negatives": (0.1, 0.15, 0.8, 0.4, 0.3)}
"""Outputs for the ten items of the paper's example."""
TOY_BINS = 4


def _toy(_job: Job) -> Result:
    """The example's histograms and distributions, and how far they are from the truth with each floor ε."""
    counts = {kind: np.histogram(outputs, TOY_BINS, (0, 1))[0] for kind, outputs in TOY.items()}
    plus, minus = (counts[kind] / counts[kind].sum() for kind in ("positives", "negatives"))
    figure = {
        "bins": TOY_BINS,
        "outputs": {kind: list(outputs) for kind, outputs in TOY.items()},
        "counts": {kind: of_kind.tolist() for kind, of_kind in counts.items()},
        "positives": plus.tolist(),
        "negatives": minus.tolist(),
        "divergences": {f"{e:g}": [_divergence(plus, TOY_BINS - 1, e), _divergence(minus, 0, e)] for e in FLOORS},
    }
    return Result(figure=figure)


def _divergence(p: NDArray[np.float64], true_bin: int, eps: float) -> float:
    """KL(p ‖ q), where q has all its mass in the true bin but for a floor ε of the others."""
    q = np.full(len(p), eps)
    q[true_bin] = 1 - (len(p) - 1) * eps
    seen = p > 0
    return float((p[seen] * np.log(p[seen] / q[seen])).sum())


# Printed numbers

_SOURCE = "Duarte, Rawat, Shah 2021 (arXiv 2105.10782)"
TABLE1 = Printed(
    f"{_SOURCE}, Table 1",
    "MultiMNIST; decisions at .5, means over all and over the rarest digits",
    decision_columns(5, 3),
    printed_rows("""
    BCE                 | 86.96 78.65 63.39 51.5  80.35 73.87 65.73 53.42
    Focal               | 86.75 78.28 62.53 50.44 79.93 73.33 64.88 52.64
    CB                  | 85.86 76.55 61.02 49.12 78.05 72.32 63.81 48.51
    Undersampling       | 87.97 79.0  65.36 54.16 81.39 75.57 67.92 54.46
    BCE + PLM           | 87.41 81.55 71.91 65.31 83.73 79.17 74.27 56.95
    Focal + PLM         | 87.5  80.95 70.27 62.31 83.22 78.13 72.61 56.45
    CB + PLM            | 89.37 75.24 65.31 56.25 80.52 75.64 69.28 49.95
    Undersampling + PLM | 88.54 80.38 71.29 65.86 83.56 79.44 75.1  56.53
    """),
    "BCE",
)
TABLE2 = Printed(
    f"{_SOURCE}, Table 2",
    "COCO 2014, ResNet-50; decisions at .5, means over all and the rarest",
    decision_columns(20, 10),
    printed_rows("""
    BCE                 | 69.35 39.89 30.02 16.0  48.74 37.94 21.8  21.76
    Focal               | 68.01 38.62 28.92 15.1  47.38 36.52 20.46 20.88
    CB                  | 67.82 37.23 35.25 23.68 46.1  43.64 30.53 19.43
    Undersampling       | 65.96 37.75 35.18 19.5  46.06 41.59 24.16 18.6
    BCE + PLM           | 67.75 41.29 39.69 29.91 50.16 44.24 31.26 20.51
    Focal + PLM         | 66.89 39.48 37.63 27.67 48.49 42.38 29.56 19.66
    CB + PLM            | 65.71 37.06 39.06 29.25 46.39 45.68 33.18 17.41
    Undersampling + PLM | 63.72 36.23 40.21 31.46 44.85 44.49 32.72 16.71
    """),
    "BCE",
)


def _printed_by_rho(table: str, note: str, text: str) -> Printed:
    """A table of two numbers per ρ, with a row per method and ρ."""
    rows = {
        f"{name}, ρ {rho}": values[2 * i : 2 * i + 2]
        for name, values in printed_rows(text).items()
        for i, rho in enumerate(RHOS)
        if any(value is not None for value in values[2 * i : 2 * i + 2])
    }
    return Printed(f"{_SOURCE}, {table}", note, ("error", "error of the K rarest"), rows, "BCE")


TABLE3 = _printed_by_rho(
    "Table 3",
    "CIFAR-10, K is 5, printed as 50; the paper quotes CB and LDAM-DRW from their authors",
    """
    BCE         | 34.88 55.84 29.43 46.46 23.34 35.52 16.37 22.54 12.71 15.98
    Focal       | 36.28 58.8  29.69 46.88 23.38 35.22 16.53 23.0  12.63 16.74
    CB          | 31.11 –     25.43 –     20.73 –     15.64 –     12.51 –
    LDAM-DRW    | –     –     22.97 –     –     –     –     –     11.84 –
    BCE + PLM   | 29.67 44.65 24.86 36.05 20.5  28.66 15.21 19.92 12.35 14.98
    Focal + PLM | 29.79 44.54 25.19 36.53 20.19 27.94 15.21 19.6  12.2  14.6
    """,
)
TABLE4 = _printed_by_rho(
    "Table 4",
    "CIFAR-100, K is 50",
    """
    BCE         | 63.92 86.1  59.88 79.18 55.25 72.84 48.66 59.98 43.35 52.12
    Focal       | 64.67 87.84 60.04 81.62 55.71 74.6  48.62 63.86 43.04 53.74
    CB          | 63.77 –     60.4  –     54.68 –     47.41 –     42.01 –
    LDAM-DRW    | –     –     57.96 –     –     –     –     –     41.29 –
    BCE + PLM   | 61.37 80.79 55.98 73.14 52.49 67.07 46.15 57.26 41.71 49.78
    Focal + PLM | 61.68 79.43 56.19 72.39 52.09 65.39 46.11 56.28 41.54 48.83
    """,
)
_ON_CIFAR = ("error on CIFAR-10", "error on CIFAR-100")
TABLE5 = Printed(
    f"{_SOURCE}, Table 5",
    "error by the rate λ at ρ 100; λ 0 is BCE",
    _ON_CIFAR,
    printed_rows("""
    λ 1    | 24.86 56.92
    λ 0.1  | 25.08 57.67
    λ 0.01 | 25.64 55.98
    λ 0    | 29.43 59.88
    """),
    "λ 0",
)
TABLE6 = Printed(
    f"{_SOURCE}, Table 6",
    "error by the first ratio at ρ 100, with λ 1 on CIFAR-10 and .01 on CIFAR-100",
    _ON_CIFAR,
    printed_rows("""
    min     | 28.82 73.46
    max     | 30.74 56.73
    mean    | 25.65 56.08
    dataset | 24.86 55.98
    """),
    "mean",
)
TABLE7 = Printed(
    f"{_SOURCE}, supplement",
    "positives by digit, of 14,694 and 90,000 pictures",
    ("train", "test"),
    printed_rows("""
    0 | 9485 17840
    1 | 6167 19080
    2 | 3967 18256
    3 | 2476 18080
    4 | 1508 17856
    5 | 875  17136
    6 | 538  17664
    7 | 331  18224
    8 | 164  17792
    9 | 105  18072
    """),
    is_data=True,
)


def _gain_by_class(numbers: figures.Numbers, measure: str, at: Sequence[int]) -> float:
    """By how much PLM raises a measure, mean over some classes."""
    bce, masked = (np.array(numbers[name][measure], float)[list(at)] for name in HEAD_AND_TAIL)
    return float((masked - bce).mean())


def _ratio_facts(result: Result) -> list[tuple[str, float, float]]:
    numbers = figures.numbers_of(result)
    own, last = np.array(numbers["data_ratio"]), np.array(numbers["BCE + PLM"]["ratios"][-1])
    counts = np.array(numbers["counts"])
    return [
        ("ρ, positives of the most frequent digit over those of the rarest", 90.33, counts.max() / counts.min()),
        ("ratio of digit 0 at first", 1.82, own[0]),
        ("ratio of digit 0 after 90 epochs", 0.24, last[0]),
        ("ratio of digit 9 at first", 0.007, own[9]),
        ("ratio of digit 9 after 90 epochs", 0.047, last[9]),
    ]


def _f1_facts(result: Result) -> list[tuple[str, float, float]]:
    numbers = figures.numbers_of(result)
    hard = [i for i, name in enumerate(numbers["names"]) if name in ("backpack", "bench", "cell phone")]
    counts = np.array(numbers["counts"])
    return [
        ("ρ, positives of the most frequent label over those of the rarest", 352.92, counts.max() / counts.min()),
        ("gain of F1 on backpack, bench and cell phone", 11.16, _gain_by_class(numbers, "F1", hard)),
    ]


def _precision_facts(result: Result) -> list[tuple[str, float, float]]:
    numbers = figures.numbers_of(result)
    order = np.argsort(-np.array(numbers["counts"]), kind="stable").tolist()
    return [
        ("gain of precision on the 5 most frequent labels", 12.73, _gain_by_class(numbers, "precision", order[:5])),
        ("gain of precision on the 10 most frequent labels", 7.86, _gain_by_class(numbers, "precision", order[:10])),
        ("gain of recall on the 5 rarest labels", 13.04, _gain_by_class(numbers, "recall", order[-5:])),
    ]


# Claims and entries


def _claim(text: str, table: str, column: str, row: str = "BCE + PLM", over: str = "BCE") -> Claim:
    return Claim(text, (Difference(table, row, over, column),))


_OF_3, _OF_10 = "F1 of the 3 rarest", "F1 of the 10 rarest"
CLAIMS = (
    _claim("Masking labels raises F1 on MultiMNIST", "plm-table1", "F1"),
    _claim("and most on its three rarest digits", "plm-table1", _OF_3),
    Claim(
        "Masking lowers the error on long-tailed CIFAR-10",
        tuple(Difference("plm-table3", f"BCE + PLM, ρ {rho}", f"BCE, ρ {rho}", "error") for rho in (100, 10)),
    ),
    _claim("and on CIFAR-100", "plm-table4", "error", "BCE + PLM, ρ 100", "BCE, ρ 100"),
    _claim("Masking raises F1 on COCO", "plm-table2", "F1"),
    _claim("and most on its ten rarest labels", "plm-table2", _OF_10),
    _claim(
        "Ratios that start at the data's own do better than at the mean",
        "plm-table6",
        "error on CIFAR-10",
        "dataset",
        "mean",
    ),
)
ABOUT = Paper(
    "plm",
    PAPER,
    "Leave out some positives of frequent labels and some negatives of rare ones, at random.",
    CLAIMS,
    "plm-table1",
    "F1",
    "F1",
    "BCE",
    {
        "network": ("ResNet-12, layers not given", "ResNet-12, layers chosen here"),
        "data": ("imbalanced MultiMNIST, 14,694 and 90,000 pictures", ""),
        "schedule": ("SGD, 90 epochs, batch 128", "as in the paper; weight decay chosen here"),
        "runs": ("not said", ""),
    },
)


_SILENT = (
    "weight decay and the layers of ResNet-12 are silent in the paper and chosen here; PLM begins with the ratios of "
    "the data, as its text has it; for other beginnings see plm-table6 and plm-gain"
)
_K5 = (
    "K is 5; long tails are read by the most probable class; CB weighs items by their class, LDAM-DRW has cosines for "
    "logits, as their authors have it; LDAM's print an error of 29.64 for cross-entropy on the original images at ρ "
    "100; what the same network and recipe get in plain torch, without a line of ours, is measured by "
    "bench/plain_resnet32.py, and is in plain-resnet32.jsonl for this copy"
)
_ON_FEATURES = (
    "where the photographs are not there, a linear layer over features of a frozen ResNet-50 stands for the network, "
    "and AdamW with a cosine schedule for its optimizer, under which a weight per class changes nothing in a linear "
    "layer: CB equals BCE; as many epochs, the same λ, bins and clipping"
)
_ONE_SEED = "ρ is 100; each row is one seed; how far apart seeds are, plm-table3 shows"
_EARLY = (
    "BCE; outputs are those of training items, τ is 10, and the learning rate falls within these ten epochs as it does "
    "within ninety elsewhere"
)
_RATES = {f"λ {rate:g}": {"rate": rate} for rate in RATES}
_FIRST = {initial: {"initial": initial} for initial in INITIAL}
_CIFARS, _COCO_SETS = (CIFAR10, CIFAR100), (COCO, COCO_FEATURES)
_SMALLER = "the network is a linear layer over features of a frozen ResNet-50"
_KL = "KL of the truth with a floor ε in its empty bins: without one it is infinite"
_MNIST = (
    "The digits are MNIST's, of Yann LeCun and Corinna Cortes, under CC BY-SA 3.0, as are this picture and its JSON"
)
_table1, _table2 = partial(multi_mnist, MULTI_MNIST), partial(coco, ON_COCO)
_table3, _table4 = partial(_by_rho, 10, 1.0), partial(_by_rho, 100, 0.01)
_table5, _table6 = partial(_ablation, _RATES), partial(_ablation, _FIRST)
_fig1 = _of_runs(_cifar_bce_and_plm, "positives", "negatives")
_fig2, _fig3 = _of_runs(_bce_and_plm, "ratios"), _of_runs(_at_every_rho, "accuracy")
_fig4, _fig8 = _of_runs(_coco_bce_and_plm, "F1"), _of_runs(_coco_bce_and_plm, "precision", "recall")
_fig7 = _of_runs(_early, "positives", "negatives")

_ALL = (
    Entry("plm-table1", PAPER, "MultiMNIST: PLM on top of four methods", (MNIST,), 10, _table1, TABLE1, _SILENT),
    Entry(
        "plm-table2",
        PAPER,
        "COCO 2014: PLM on top of four methods",
        _COCO_SETS,
        34,
        _table2,
        TABLE2,
        _ON_FEATURES,
        _SMALLER,
    ),
    Entry("plm-table3", PAPER, "Long-tailed CIFAR-10 by ρ", (CIFAR10,), 20, _table3, TABLE3, _K5),
    Entry("plm-table4", PAPER, "Long-tailed CIFAR-100 by ρ", (CIFAR100,), 20, _table4, TABLE4, "K is 50"),
    Entry("plm-table5", PAPER, "CIFAR: error by the rate λ", _CIFARS, 5, _table5, TABLE5, _ONE_SEED),
    Entry("plm-table6", PAPER, "CIFAR: error by the ratio of the first epoch", _CIFARS, 5, _table6, TABLE6, _ONE_SEED),
    Entry("plm-table7", PAPER, "MultiMNIST by class", (MNIST,), 3, _of_classes, TABLE7),
    Entry(
        "plm-fig1",
        PAPER,
        "Outputs for a head and a tail class of CIFAR-10",
        (CIFAR10,),
        3,
        _fig1,
        note="ρ is 100, outputs are those of test items",
        draw=figures.output_distributions,
    ),
    Entry(
        "plm-fig2",
        PAPER,
        "MultiMNIST: ratios by epoch",
        (MNIST,),
        3,
        _fig2,
        draw=figures.ratios_by_epoch,
        facts=_ratio_facts,
    ),
    Entry(
        "plm-fig3",
        PAPER,
        "CIFAR-10: accuracy by class, by ρ",
        (CIFAR10,),
        15,
        _fig3,
        note="one run each: bars of PLM, points of BCE",
        draw=figures.accuracy_by_rho,
    ),
    Entry(
        "plm-fig4",
        PAPER,
        "COCO 2014: F1 by class",
        _COCO_SETS,
        9,
        _fig4,
        note=_ON_FEATURES,
        draw=figures.by_class,
        facts=_f1_facts,
    ),
    Entry("plm-fig5", PAPER, "The example of ten items: histograms", (), 0, _toy, draw=figures.toy_histograms),
    Entry("plm-fig6", PAPER, "The example of ten items: distributions", (), 0, _toy, note=_KL, draw=figures.toy),
    Entry(
        "plm-fig7",
        PAPER,
        "MultiMNIST: distributions of outputs after ten epochs",
        (MNIST,),
        0.2,
        _fig7,
        note=_EARLY,
        draw=figures.beside_truth,
    ),
    Entry(
        "plm-fig8",
        PAPER,
        "COCO 2014: precision and recall by class",
        _COCO_SETS,
        9,
        _fig8,
        note=_ON_FEATURES,
        draw=figures.by_class,
        facts=_precision_facts,
    ),
    Entry(
        "plm-pictures",
        BEYOND,
        "Imbalanced MultiMNIST: pictures and counts",
        (MNIST,),
        0,
        _pictures,
        note=_MNIST,
        draw=figures.pictures,
    ),
)
ENTRIES = tuple(replace(one, whole=one.draw is not None or one.name == "plm-table7") for one in _ALL)
"""In the order of the paper; last a picture that it does not have."""
