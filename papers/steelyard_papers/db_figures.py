"""The Distribution-Balanced paper's figures: the numbers they show, and how they are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.balance import ClassAware, Rebalanced
from steelyard.data import mlt_labels
from steelyard.data.builders import pareto_counts, pareto_long_tail
from steelyard.data.readers.coco import COCO_LABELS, coco
from steelyard.data.readers.npz import read_arrays
from steelyard.data.readers.voc import VOC_LABELS
from steelyard.labels import Labels
from steelyard.losses import BCE, NegativeTolerant, PairLoss
from steelyard.metrics import label_groups
from steelyard.report.canvas import FRAME, GROUPS, MARKERS, MOST_NAMES, SERIES, drawing, legend, short
from steelyard_papers.db_rows import CONSTANTS
from steelyard_papers.reproduction import Job
from steelyard_papers.result import Result
from steelyard_papers.sources import COCO_MLT, VOC_MLT, Source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats: TypeAlias = NDArray[np.float64]
Numbers: TypeAlias = Mapping[str, Any]
"""Plain lists and numbers, as a result keeps them in JSON."""


SPLITS = (VOC_MLT, COCO_MLT)


def labels_of(job: Job, source: Source) -> Labels:
    """The labels of a published split."""
    names = VOC_LABELS if source is VOC_MLT else COCO_LABELS
    release = "appendix/VOCdevkit/longtail2012" if source is VOC_MLT else "appendix/coco/longtail2017"
    arrays = "labels/voc_mlt.npz" if source is VOC_MLT else "labels/coco_mlt.npz"
    folder = job.data_root / release
    return mlt_labels(folder if folder.is_dir() else job.data_root / arrays, names)


def splits_there(root: Path) -> list[Source]:
    """The sources whose split is there, with or without images."""
    return [source for source in SPLITS if any((root / name).exists() for name in source.files[0].split("|"))]


def split_statistics(job: Job) -> Result:
    """Return the numbers of figures 2 and 5 for the published splits."""
    found = {}
    for source in splits_there(job.data_root):
        c = CONSTANTS[source.name]
        found[source.name] = statistics(labels_of(job, source), 0.1, 10.0, c.mu)
    data = "; ".join(f"the published split of {name}, {said['items']:,} images" for name, said in found.items())
    return Result(data=data, figure=found)


ALPHAS = (1.0, 2.0, 4.0, 6.0, 8.0)
_STEPS_SHOWN = 5
_COCO_TRAIN = "labels/coco2014_train.npz"


def construction(job: Job) -> Result:
    """Figure 8: Pareto curves, and COCO's labels while a long tail is made of them."""
    figure: dict[str, Any] = {"labels": len(COCO_LABELS), "most": CONSTANTS[COCO_MLT.name].most, "alphas": list(ALPHAS)}
    labels, of = _whole_coco(job.data_root)
    if labels is None:
        return Result(figure=figure, notes=(f"the labels of all of COCO are not there ({_COCO_TRAIN}): curves alone",))
    ranked = np.argsort(-labels.resampled_prior(), kind="stable")
    along: list[Any] = []
    pareto_long_tail(labels, figure["most"], after_label=lambda have: along.append(have[ranked].tolist()))
    shown = np.unique(np.linspace(1, len(along), _STEPS_SHOWN).round().astype(int)).tolist()
    figure |= {"of": of, "steps": {str(done): along[done - 1] for done in shown}}
    return Result(data=of, figure=figure)


def _whole_coco(root: Path) -> tuple[Labels | None, str]:
    """The labels of COCO's training images: those of 2017 as the paper took them, or of 2014."""
    if (root / "annotations/instances_train2017.json").is_file():
        return coco(root, 2017, "train").labels, "COCO 2017 train"
    if not (root / _COCO_TRAIN).is_file():
        return None, ""
    labels = Labels(read_arrays(root / _COCO_TRAIN)["Y"], COCO_LABELS)
    return labels, f"COCO 2014 train, {len(labels):,} images with a label (the paper's is that of 2017)"


def to_test_on(job: Job) -> Result:
    """Figure 9: the positives of the test items, labels in the order of the training set."""
    found, data = {}, []
    for source in splits_there(job.data_root):
        labels, tested, of = labels_of(job, source), *_test_counts(job.data_root, source)
        if tested is not None:
            order = np.argsort(-labels.counts, kind="stable")
            names, values = [labels.names[c] for c in order], tested.values == 1
            counts = values.sum(0)[order].tolist()
            found[source.name] = {"names": names, "test": counts, "test items": len(tested)}
            data.append(f"{source.name}: {of}")
    return Result(data="; ".join(data), figure=found)


def _test_counts(root: Path, source: Source) -> tuple[Labels | None, str]:
    """The labels of the test items of a split; those of VOC 2007 come without their images, too."""
    official = root / "labels/voc2007_test_labels.npz"
    if source is VOC_MLT and official.is_file():
        present_ = (read_arrays(official)["Y_official"] >= 0).astype(np.int8)
        return Labels(present_, VOC_LABELS), "VOC 2007 test, what is difficult counts as present"
    if not source.is_there(root):
        return None, ""
    opened = source.open(root)
    return opened.test.labels, opened.notes[0].partition("tested on ")[2]


def statistics(labels: Labels, alpha: float, beta: float, mu: float) -> dict[str, Any]:
    """Return what the figures show of the labels of a data set, from the most frequent label on.

    `before` and `after` are the shares of items that have a label, as they are and after class-aware sampling (eq. 1);
    `expected` and `drawn` the items of a label in an epoch of such sampling, by that equation and as drawn with seed 0;
    `spread` and `weighted` how unequally the items of a label are drawn, plainly and with the weights r̂: the
    coefficient of variation over them of s_k = Σ_j y_j/n_j, and of r̂ s_k.

    Args:
        labels: of training.
        alpha, beta, mu: of r̂.
    """
    items, columns = labels.positives()
    inverse = 1.0 / np.maximum(labels.counts, 1)
    drawn = np.bincount(items, inverse[columns], len(labels)).astype(np.float64)
    weights = Rebalanced(labels.counts, alpha, beta, mu, floor=1)(torch.from_numpy(labels.values)).numpy()
    order = np.argsort(-labels.counts, kind="stable")
    epoch = np.fromiter(ClassAware(labels), np.int64)
    times = np.bincount(epoch, minlength=len(labels))

    def listed(values: NDArray[Any]) -> list[Any]:
        return [None if not np.isfinite(x) else float(x) for x in values[order]]

    return {
        "items": len(labels),
        "names": [labels.names[c] for c in order],
        "counts": labels.counts[order].tolist(),
        "before": listed(labels.counts / len(labels)),
        "after": listed(labels.resampled_prior()),
        "expected": listed(len(epoch) * labels.resampled_prior()),
        "drawn": listed(np.bincount(columns, times[items], labels.n_labels)),
        "spread": listed(_spread(labels, drawn[items], columns)),
        "weighted": listed(_spread(labels, drawn[items] * weights[items, columns], columns)),
        "conditional": [[round(float(x), 4) for x in row] for row in labels.conditional()[np.ix_(order, order)]],
    }


def _spread(labels: Labels, values: Floats, columns: NDArray[Any]) -> Floats:
    """The coefficient of variation of the cells' values, by label; NaN for a label without positives."""
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(columns, values, labels.n_labels) / labels.counts
        apart = np.bincount(columns, (values - mean[columns]) ** 2, labels.n_labels) / labels.counts
        return np.asarray(np.sqrt(apart) / mean)


def resampling_figure(sets: Mapping[str, Numbers]) -> Figure:
    """Draw the items of every label before and after class-aware sampling, one row per data set."""
    with drawing(10.5, 3.4 * len(sets), nrows=len(sets), ncols=2, squeeze=False) as (figure, grid):
        for row, (name, numbers) in zip(grid, sets.items(), strict=True):
            when = ("as it is", "after re-sampling (dots: drawn)")
            for axes, shown, how in zip(row, ("counts", "expected"), when, strict=True):
                y = _floats(numbers[shown])
                axes.bar(_ranks(y), y, width=0.8, color=SERIES[0], lw=0)
                axes.set_title(f"{name}, {how}: {np.nanmin(y):,.0f} to {np.nanmax(y):,.0f}")
                axes.set_ylabel("items of a label")
                _name(axes, numbers["names"])
            drawn = _floats(numbers["drawn"])
            style = dict(ls="", marker=".", color=SERIES[1], ms=2 * _size(len(drawn)))
            row[1].plot(_ranks(drawn), drawn, **style)
    return figure


def imbalance_figure(sets: Mapping[str, Numbers]) -> Figure:
    """Draw p(i|j), the items after re-sampling and how unequally they are drawn, one column per data set.

    Column i and row j of the matrix hold p(i|j). Below it, the variance of the times that the items of a label are
    drawn, of mean 1 within the label.
    """
    n = len(sets)
    grid = dict(nrows=3, ncols=n, squeeze=False, sharex="col", height_ratios=(3, 1, 1))
    with drawing(5.0 * n + 0.8, 8.4, **grid) as (figure, rows):
        image: Any = None
        for column, (name, numbers) in zip(rows.T, sets.items(), strict=True):
            shown = np.array([_floats(row) for row in numbers["conditional"]]).T
            end = len(shown) + 0.5
            style = dict(cmap="Blues", vmin=0, vmax=1, extent=(0.5, end, end, 0.5), aspect="auto")
            image = column[0].imshow(np.ma.masked_invalid(shown), **style)
            column[0].set_title(f"{name}: p(i|j), column i, row j")
            column[0].set_ylabel("j, by rank")
            after, spread = _floats(numbers["expected"]), _floats(numbers["spread"])
            column[1].bar(_ranks(after), after, width=0.8, color=SERIES[0], lw=0)
            column[1].set_ylabel("items after\nre-sampling")
            column[2].plot(_ranks(spread), spread**2, color=SERIES[1], lw=1.3, marker=".", ms=_size(len(spread)))
            column[2].set_ylabel("variance\nwithin a label")
            _name(column[2], numbers["names"])
        figure.colorbar(image, ax=list(rows[0]), shrink=0.8, label="p(i|j)")
    return figure


def construction_figure(numbers: Numbers) -> Figure:
    """Draw Pareto curves for several α, and the positives of every label while a long tail is made of a data set."""
    steps: Numbers = numbers.get("steps") or {}
    with drawing(11 if steps else 5.5, 4.0, ncols=2 if steps else 1, squeeze=False) as (figure, rows):
        n, most = numbers["labels"], numbers["most"]
        for i, alpha in enumerate(numbers["alphas"]):
            aimed = pareto_counts(most, n, alpha)
            rows[0][0].plot(_ranks(aimed), aimed, color=SERIES[i], lw=1.5, label=f"α = {alpha:g}")
        rows[0][0].set_ylabel(f"positives aimed at, {most:,} first")
        for i, (done, counts) in enumerate(steps.items()):
            y = _floats(counts)
            rows[0][1].step(_ranks(y), y, where="mid", color=SERIES[i], lw=1.3, label=f"after {done}")
            rows[0][1].set_ylabel("positives, after so many labels")
        for axes in rows[0]:
            axes.set_xlabel("labels by rank")
            legend(axes, 5)
    return figure


def test_figure(sets: Mapping[str, Numbers]) -> Figure:
    """Draw the positives of the test items, labels from the most frequent of training on, a panel a data set."""
    with drawing(5.4 * len(sets), 4.0, ncols=len(sets), squeeze=False) as (figure, rows):
        for axes, (name, numbers) in zip(rows[0], sets.items(), strict=True):
            y = _floats(numbers["test"])
            axes.bar(_ranks(y), y, width=0.8, color=SERIES[0], lw=0)
            axes.set_title(f"{name}: {numbers['test items']:,} images, {y.min():,.0f} to {y.max():,.0f}")
            axes.set_ylabel("positives to test on")
            _name(axes, numbers["names"])
    return figure


def sampling_figure(data: str, numbers: Numbers) -> Figure:
    """Draw how frequent labels are before and after class-aware sampling, and how unequally their items are drawn."""
    panels = (
        ("share of items", {"as it is": "before", "after class-aware sampling": "after"}),
        ("spread among a label's items", {"class-aware sampling": "spread", "with re-balanced weights": "weighted"}),
    )
    with drawing(10, 4.4, ncols=2) as (figure, row):
        for axes, (quantity, lines) in zip(row, panels, strict=True):
            for i, (name, kept) in enumerate(lines.items()):
                y = _floats(numbers[kept])
                axes.plot(_ranks(y), y, color=SERIES[i], lw=1.3, marker=MARKERS[i], ms=_size(len(y)), label=name)
            axes.set_ylabel(f"{quantity}, {data}")
            axes.set_ylim(bottom=0)
            _name(axes, numbers["names"])
            legend(axes, 2)
    return figure


def tolerance_figure(lams: Sequence[float], nu: float) -> Figure:
    """Draw ℓ₋ and its gradient against the logit: BCE, and negative-tolerant BCE shifted by ν, for some λ."""
    z = torch.linspace(-6, 6, 241, dtype=torch.float64)
    count, n_known = 1000 / (1 + np.exp(nu)), 1000
    lines: dict[str, PairLoss] = {"BCE": BCE()}
    lines |= {f"λ = {lam:g}, ν = {nu:g}": NegativeTolerant(torch.tensor([count]), n_known, lam, 1.0) for lam in lams}
    with drawing(10, 3.8, ncols=2) as (figure, row):
        for i, (name, loss) in enumerate(lines.items()):
            at = z.clone().requires_grad_()
            value = loss.negative(at.unsqueeze(1)).squeeze(1)
            (slope,) = torch.autograd.grad(value.sum(), at)
            for axes, y in zip(row, (value, slope), strict=True):
                axes.plot(z.numpy(), y.detach().numpy(), color=SERIES[i], lw=1.6, label=name)
        for axes, quantity in zip(row, ("loss of a negative label", "its gradient"), strict=True):
            axes.set_xlabel("logit z")
            axes.set_ylabel(quantity)
            axes.grid(True)
        legend(row[0], len(lines))
    return figure


def gain_figure(sets: Mapping[str, Numbers]) -> Figure:
    """Draw by how many points each step changes the average precision of each label, one column per data set.

    sets: by data, `names` and training `counts` of the labels; `ap`, the AP in per cent of the labels by the name of
    the step, from the first on: every other one is drawn as its difference to the one before.
    """
    first = next(iter(sets.values()))
    n, across = len(first["ap"]) - 1, len(sets)
    grid = dict(nrows=n, ncols=across, sharex="col", sharey="col", squeeze=False)
    with drawing(7.0 * across + 2.5 * (across == 1), 1.9 * n + 1.3, **grid) as (figure, cells):
        for column, (name, numbers) in zip(cells.T, sets.items(), strict=True):
            counts = np.array(numbers["counts"])
            order, steps = np.argsort(-counts, kind="stable"), list(numbers["ap"])
            for i, axes in enumerate(column):
                _bands(axes, counts[order], named=i == 0)
                gain = (_floats(numbers["ap"][steps[i + 1]]) - _floats(numbers["ap"][steps[i]]))[order]
                axes.bar(_ranks(gain), gain, width=0.7, color=SERIES[i % len(SERIES)], lw=0)
                axes.axhline(0, color=FRAME, lw=0.8)
                axes.set_title(f"{name}, {steps[i]} → {steps[i + 1]}: {np.nanmean(gain):+.2f}")
                axes.set_ylabel("AP, points")
            _name(column[-1], [numbers["names"][c] for c in order])
    return figure


def sweep_figure(panels: Mapping[str, Mapping[float, Mapping[str, tuple[float, float]]]]) -> Figure:
    """Draw the scores of runs against one constant after another, a panel each.

    panels: by the symbol of the constant its values, and of each the scores in per cent by name: mean and deviation.
    """
    with drawing(4.6 * len(panels), 3.8, ncols=len(panels), squeeze=False, sharey=True) as (figure, rows):
        for axes, (symbol, points) in zip(rows[0], panels.items(), strict=True):
            values = sorted(points)
            for i, name in enumerate(points[values[0]]):
                y, apart = zip(*(points[value][name] for value in values), strict=True)
                x = [at + 0.05 * i for at in range(len(values))]  # bars that would hide each other stand side by side
                style = dict(color=SERIES[i], marker=MARKERS[i], ms=5, lw=1.4, capsize=2, elinewidth=0.9)
                axes.errorbar(x, y, apart, label=name, **style)
            axes.set_xticks(range(len(values)), [f"{value:g}" for value in values])
            axes.set_xlabel(symbol)
            axes.grid(True)
        rows[0][0].set_ylabel("mAP, %")
        legend(rows[0][0])
    return figure


def counts_figure(sets: Mapping[str, Numbers]) -> Figure:
    """Draw the positives of every label, most frequent first, over head, medium and tail, a panel a data set."""
    with drawing(5 * len(sets), 4.2, ncols=len(sets), squeeze=False) as (figure, rows):
        for axes, (name, numbers) in zip(rows[0], sets.items(), strict=True):
            counts = np.array(numbers["counts"])
            _bands(axes, counts)
            axes.bar(_ranks(counts), counts, width=0.8, color=SERIES[0], lw=0)
            axes.set_yscale("log")
            axes.set_ylim(bottom=1)
            axes.yaxis.set_minor_formatter("")
            axes.yaxis.set_major_formatter("{x:,.0f}")
            axes.set_title(f"{name}: {numbers['items']:,} images, {counts.min()} to {counts.max():,}")
            axes.set_ylabel("positives")
            _name(axes, numbers["names"])
    return figure


def _floats(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _ranks(values: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
    return np.arange(1, len(values) + 1)


def _size(n: int) -> float:
    return 4.0 if n <= MOST_NAMES else 2.0


def _bands(axes: Any, counts: NDArray[Any], named: bool = True) -> None:
    """Put a colour, and its name, behind the labels of each group; counts from the largest on.

    Bars that are drawn afterwards stay below the names.
    """
    axes.margins(y=0.14)
    for group, members in label_groups(counts).items():
        if len(members):
            left, right = members[0] + 0.5, members[-1] + 1.5
            axes.axvspan(left, right, color=GROUPS[group], lw=0, zorder=0)
            if named:
                place = dict(transform=axes.get_xaxis_transform(), ha="center", va="top")
                axes.text((left + right) / 2, 0.98, group, fontsize=8, color=FRAME, **place)


def _name(axes: Any, names: Sequence[str]) -> None:
    axes.set_xlim(0.5, len(names) + 0.5)
    if len(names) <= MOST_NAMES:
        axes.set_xticks(_ranks(names), [short(name) for name in names], rotation=60, ha="right", fontsize=8)
        axes.tick_params(axis="x", length=0)
        for label in axes.get_xticklabels():
            label.set_rotation_mode("anchor")
    else:
        axes.set_xlabel("labels by rank")
