"""What the PLM paper compares: imbalanced MultiMNIST, long-tailed CIFAR, COCO; what is measured; the rows."""

from __future__ import annotations

from collections.abc import Sequence
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
from steelyard_papers import fixtures
from steelyard_papers.frozen_features import COCO_FEATURES
from steelyard_papers.reproduction import Job, Need
from steelyard_papers.result import Result, RunResult
from steelyard_papers.study import Measured, Row, Settings, merged, study
from steelyard_papers.trial import Trial

DRAW = 0
"""The seed of the data: all runs see the same items, whatever their own seed."""

Digits = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Images (M, 28, 28) and classes (M,)."""


def _has_mnist(root: Path) -> bool:
    raw = root / "MNIST" / "raw"
    names = (f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
    return all((raw / name).is_file() or (raw / f"{name}.gz").is_file() for name in names)


def _has_one(root: Path, *names: str) -> bool:
    return any((root / name).is_dir() for name in names)


def has_coco(root: Path) -> bool:
    """Return whether COCO 2014 is there as its owners publish it."""
    return all((root / "annotations" / f"instances_{split}2014.json").is_file() for split in ("train", "val"))


MNIST = Need(
    "MNIST",
    "its four idx files from http://yann.lecun.com/exdb/mnist/ or torchvision's download, put in MNIST/raw/",
    _has_mnist,
    fixtures.mnist,
)
CIFAR10 = Need(
    "CIFAR-10",
    "the binary or python version from https://www.cs.toronto.edu/~kriz/cifar.html, unpacked to "
    "cifar-10-batches-bin/ or cifar-10-batches-py/",
    lambda root: _has_one(root, "cifar-10-batches-bin", "cifar-10-batches-py"),
    fixtures.cifar10,
)
CIFAR100 = Need(
    "CIFAR-100",
    "the binary or python version from https://www.cs.toronto.edu/~kriz/cifar.html, unpacked to cifar-100-binary/ or "
    "cifar-100-python/",
    lambda root: _has_one(root, "cifar-100-binary", "cifar-100-python"),
    fixtures.cifar100,
)
COCO = Need(
    "COCO 2014",
    "images and instances of train and val from https://cocodataset.org, unpacked to annotations/, train2014/ and "
    f"val2014/; or {COCO_FEATURES.where}",
    lambda root: has_coco(root) or COCO_FEATURES.is_there(root),
    fixtures.coco,
)


def open_digits(job: Job, train: bool) -> Digits:
    """Return the digits of MNIST."""
    data = mnist(job.data_root, train)
    return data.inputs[:, 0], data.labels.positives()[1].astype(np.int64)


def open_multi_mnist(job: Job, draw: int = DRAW) -> Datasets:
    """Return imbalanced MultiMNIST, the draw of this seed: 14,694 pictures to train on, 90,000 to test on."""
    n_max = fixtures.MNIST_N_MAX if job.smoke else N_MAX
    made = imbalanced_pairs(*open_digits(job, True), n_max, seed=draw), balanced_pairs(*open_digits(job, False), draw)
    train, test = (ArrayDataset(pictures[:, None], labels) for pictures, labels in made)
    note = f"imbalanced MultiMNIST, the draw of seed {draw}: positives {', '.join(map(str, train.labels.counts))}"
    return Datasets(train, None, test, (note,))


def open_cifar(job: Job, n_classes: int, rho: float) -> Datasets:
    """Return CIFAR-10 or CIFAR-100, thinned to a long tail of ρ; the test part is whole."""
    whole, test, n_max = _cifar10(job) if n_classes == 10 else _cifar100(job)
    ratio = min(rho, float(n_max))
    for name, n, wanted in zip(
        whole.labels.names, whole.labels.counts, exponential_counts(n_max, n_classes, ratio), strict=True
    ):
        if n < wanted:
            raise ValueError(
                f"CIFAR-{n_classes} in {job.data_root} has {n} training images of {name}, but the long tail takes "
                f"{wanted}: fetch all of it"
            )
    kept = exponential_long_tail(whole.labels.positives()[1], n_max, ratio, DRAW)
    notes = [f"long tails of CIFAR-{n_classes}, the draw of seed {DRAW}"]
    if len(whole) != 50_000:
        notes.append(f"drawn from the {len(whole):,} training images that this copy has")
    return Datasets(Subset(whole, kept), None, test, tuple(notes))


def open_coco(job: Job) -> Datasets:
    """Return COCO 2014 train and val, images without labels kept, as the paper has them."""
    train, val = (read_coco(job.data_root, 2014, split) for split in ("train", "val"))
    return Datasets(train, None, val, (f"COCO 2014: {len(train):,} images to train on, {len(val):,} to test on",))


def _cifar10(job: Job) -> tuple[ArrayDataset, ArrayDataset, int]:
    found = [
        batch
        for batch in range(1, 6)
        for home in ("cifar-10-batches-bin", "cifar-10-batches-py")
        for ending in (".bin", "")
        if (job.data_root / home / f"data_batch_{batch}{ending}").is_file()
    ]
    whole = cifar10(job.data_root, True, sorted(set(found)) or (1, 2, 3, 4, 5))
    return whole, cifar10(job.data_root, False), fixtures.CIFAR10_N_MAX if job.smoke else 5000


def _cifar100(job: Job) -> tuple[ArrayDataset, ArrayDataset, int]:
    whole, test = (cifar100(job.data_root, train) for train in (True, False))
    return whole, test, fixtures.CIFAR100_N_MAX if job.smoke else 500


def examples(datasets: Datasets, n: int) -> tuple[NDArray[np.uint8], list[str]]:
    """Return `n` pictures of the training part, spread over its length, (n, 32, 32), and the labels of each."""
    at = np.linspace(0, len(datasets.train) - 1, n).astype(int)
    labels = datasets.train.labels
    names = [", ".join(labels.names[c] for c in np.flatnonzero(row == 1)) for row in labels.rows(at)]
    return datasets.train.inputs[at, 0], names


RATIOS = ("precision", "recall", "F1")
_BINS = 10


def decision_columns(*rarest: int) -> tuple[str, ...]:
    """Return the columns of Tables 1 and 2 but the last: means over the classes and over the `rarest` of them."""
    names = ["precision", *_apart("recall", rarest), *_apart("F1", rarest)]
    return tuple(names)


def _apart(name: str, rarest: Sequence[int]) -> list[str]:
    return [name, *(f"{name} of the {k} rarest" for k in rarest)]


def rarest_apart(result: Result, rarest: Sequence[int]) -> Result:
    """Return the runs with recall and F1 of their `rarest` classes, from what was measured class by class."""
    counts = next((run.details["counts"] for row in result.rows for run in row.runs if "counts" in run.details), None)
    if counts is None:
        return replace(result, columns=tuple(column for column in result.columns if column in _values(result)))
    rare = {k: rarest_labels(np.array(counts), k) for k in rarest}

    def more(run: RunResult) -> RunResult:
        apart = {
            f"{name} of the {k} rarest": float(np.mean(np.array(run.details[name])[at]))
            for name in ("recall", "F1")
            for k, at in rare.items()
        }
        return replace(run, values={**run.values, **apart})

    return replace(result, rows=tuple(replace(row, runs=tuple(map(more, row.runs))) for row in result.rows))


def _values(result: Result) -> set[str]:
    return {name for row in result.rows for run in row.runs for name in run.values}


def decisions_of_3(trial: Trial) -> Measured:
    """Measure σ(z) ≥ ½, the three rarest classes apart, and the items that are all right."""
    return _decisions(trial, 3)


def decisions_of_10(trial: Trial) -> Measured:
    """Measure σ(z) ≥ ½, the ten rarest classes apart, and the items that are all right."""
    return _decisions(trial, 10)


def errors(trial: Trial) -> Measured:
    """Measure the most probable class, the rarer half of the classes apart, in per cent of wrong items."""
    truth, said = trial.targets.float().argmax(1), trial.logits.argmax(1)
    wrong = (truth != said).double()
    half = torch.from_numpy(rarest_labels(trial.counts, len(trial.names) // 2).copy())
    rare = torch.isin(truth, half)
    accuracy = [_share(1 - wrong[truth == c]) for c in range(len(trial.names))]
    values = {"error": _share(wrong), "error of the K rarest": _share(wrong[rare])}
    return Measured(values, {"accuracy": accuracy}, _drawn(trial))


def _decisions(trial: Trial, k: int) -> Measured:
    decided = torch.sigmoid(trial.logits) >= 0.5
    found = precision_recall_f1(decided, trial.targets)
    by_class = {name: (100 * getattr(found, name.lower()).double()).tolist() for name in RATIOS}
    rare = rarest_labels(trial.counts, k)
    values: dict[str, float | None] = {name: float(np.mean(by_class[name])) for name in RATIOS}
    values |= {f"{name} of the {k} rarest": float(np.mean(np.array(by_class[name])[rare])) for name in RATIOS}
    values["0-1"] = 100 * float(exact_match(decided, trial.targets))
    ratios = [record["plm_ratio"] for record in trial.history if "plm_ratio" in record]
    return Measured(values, by_class, _drawn(trial) | {"ratios": ratios})


def _drawn(trial: Trial) -> dict[str, Any]:
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
    counts = torch.zeros(p.shape[1], _BINS, dtype=torch.float64)
    for c in range(p.shape[1]):
        counts[c] = torch.bincount(spot[among[:, c], c], minlength=_BINS)
    shares = counts / counts.sum(1, keepdim=True).clamp_min(1)
    return [[round(share, 5) for share in row] for row in shares.tolist()]


def _share(values: Tensor) -> float | None:
    """The mean in per cent, None of nothing."""
    return 100 * float(values.mean()) if len(values) else None


RHOS = (200, 100, 50, 20, 10)
SEVERAL_SEEDS = (100, 10)
"""The ρ of Tables 3 and 4 that are run with all seeds, the others with one."""
RATES = (1.0, 0.1, 0.01, 0.0)
"""λ of Table 5; with 0 no ratio moves, and nothing is masked: that is BCE."""
INITIAL = ("dataset", "mean", "min", "max")
HEAD_AND_TAIL = ("BCE", "BCE + PLM")
"""The rows that figures compare."""


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
    "objective": {"loss": {"kind": "ldam", "softmax": True}, "weighting": {"kind": "class_balanced", "start": 161}},
    "model": {"head": "cosine"},
    "evaluate": {"calibration": "auto"},
}


def _with_and_without(masked: Settings, per_class: int) -> tuple[Row, ...]:
    """The eight rows of Tables 1 and 2: four methods, and PLM on top of each."""
    undersampled: Settings = {"train": {"sampler": {"kind": "undersample", "per_class": per_class}}}
    methods: dict[str, Settings] = {"BCE": {}, "Focal": FOCAL, "CB": CB, "Undersampling": undersampled}
    alone = (Row(name, settings) for name, settings in methods.items())
    on_top = (Row(f"{name} + PLM", merged(settings, masked)) for name, settings in methods.items())
    return (*alone, *on_top)


MULTI_MNIST = _with_and_without(plm(rate=0.01), 500)
ON_COCO = _with_and_without(plm(rate=0.01, clip=(0.0, 1.0)), 1000)


def multi_mnist(job: Job, rows: Sequence[Row], drawn: bool = False) -> Result:
    """Run rows on MultiMNIST, which every seed draws anew where `drawn`."""
    whole = study(
        job,
        base_of("multimnist-plm"),
        rows,
        lambda _, seed: open_multi_mnist(job, seed if drawn else DRAW),
        decisions_of_3,
        (*decision_columns(5, 3), "0-1"),
        seeded_data=drawn,
    )
    return rarest_apart(whole, (5, 3))


def coco(job: Job, rows: Sequence[Row]) -> Result:
    """Run rows on COCO 2014: on its photographs, or on features of them where those alone are there."""
    base, open_data = base_of("coco-plm"), partial(open_coco, job)
    if not has_coco(job.data_root):
        base, open_data = over_features(base), partial(COCO_FEATURES.open, job.data_root)
    columns = (*decision_columns(20, 10), "0-1")
    return rarest_apart(study(job, base, rows, lambda *_: open_data(), decisions_of_10, columns), (20, 10))


def over_features(base: Settings) -> Settings:
    """Return the settings for a linear layer over features, trained for as many epochs: in each the ratios move."""
    alone = {name: part for name, part in base.items() if name not in ("optimizer", "schedule")}
    return merged(COCO_FEATURES.over(alone), {"train": {"epochs": base["train"]["epochs"]}})


def cifar(job: Job, n_classes: int, rows: Sequence[Row]) -> Result:
    """Run rows on the long tails of CIFAR-10 or CIFAR-100 whose ρ they name."""
    columns = ("error", "error of the K rarest")
    return study(
        job, base_of("cifar10-lt-plm"), rows, lambda rho, _: open_cifar(job, n_classes, float(rho)), errors, columns
    )


def rhos_of(job: Job) -> tuple[int, ...]:
    """Return the ρ of Tables 3 and 4."""
    return RHOS[-1:] if job.smoke else RHOS


def cifar_rows(rate: float, rhos: Sequence[int], named: bool = True) -> tuple[Row, ...]:
    """Return the rows of Tables 3 and 4: six methods for each ρ, which the name of a row says where `named`."""
    methods: dict[str, Settings] = {
        "BCE": {},
        "Focal": FOCAL,
        "CB": CB_OF_ITEMS,
        "LDAM-DRW": LDAM_DRW,
        "BCE + PLM": plm(rate=rate),
        "Focal + PLM": merged(FOCAL, plm(rate=rate)),
    }
    return tuple(
        Row(f"{name}, ρ {rho}" if named else name, settings, str(rho), 0 if rho in SEVERAL_SEEDS else 1)
        for rho in rhos
        for name, settings in methods.items()
    )


def chosen(rows: Sequence[Row], names: Sequence[str]) -> tuple[Row, ...]:
    """Return the rows of these names."""
    return tuple(row for row in rows if row.name in names)
