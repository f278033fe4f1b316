"""The papers' figures, drawn from plain numbers: those of `Result.figure`, or of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.data.builders import pareto_counts
from steelyard.losses import BCE, NegativeTolerant, PairLoss
from steelyard.metrics import label_groups
from steelyard.metrics.calibration import Bins
from steelyard.report.canvas import (
    ACCENT,
    FRAME,
    GROUPS,
    INK,
    MARKERS,
    MOST_NAMES,
    OTHER,
    SERIES,
    drawing,
    key,
    legend,
    short,
)
from steelyard.report.contact_sheet import thumbnail
from steelyard.report.reliability import reliability_diagram
from steelyard.report.retrieval import RetrievalCurve, retrieval_curves
from steelyard_papers.result import Printed, Result, RowResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from steelyard_papers.claims import Paper

Floats: TypeAlias = NDArray[np.float64]
Numbers: TypeAlias = Mapping[str, Any]
"""Plain lists and numbers, as a result keeps them in JSON."""


def numbers_of(result: Result) -> Numbers:
    """Return the numbers that a figure is drawn from."""
    if result.figure is None:
        raise ValueError(f"the result of {result.name} holds no figure: run it again")
    return result.figure


def _floats(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _ranks(values: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
    return np.arange(1, len(values) + 1)


def _size(n: int) -> float:
    return 4.0 if n <= MOST_NAMES else 2.0


def _order(counts: Sequence[float] | NDArray[Any]) -> NDArray[np.int64]:
    """The labels, most frequent first."""
    return np.argsort(-np.array(counts), kind="stable")


def _name_labels(axes: Any, names: Sequence[str]) -> None:
    axes.set_xlim(0.5, len(names) + 0.5)
    if len(names) <= MOST_NAMES:
        axes.set_xticks(_ranks(names), [short(name) for name in names], rotation=60, ha="right", fontsize=8)
        axes.tick_params(axis="x", length=0)
        for label in axes.get_xticklabels():
            label.set_rotation_mode("anchor")
    else:
        axes.set_xlabel("labels by rank")


# In print and here


def chart(paper: Paper, result: Result, printed: Printed) -> Figure:
    """Draw the rows in print of the paper's main column: values on the left, gains over the baseline on the right.

    Rows of which nothing was run here have the printed value alone; so has the baseline where all do.
    """
    values = {row: value for row in printed.rows if (value := printed.value(row, paper.column)) is not None}
    column = paper.column if any(row.mean(paper.column) is not None for row in result.rows) else paper.column_here
    data = column.partition(" on ")[2].partition(",")[0]
    here = "here" if column == paper.column else f"here, on {data}"
    names = list(values)[::-1]
    ours = [name for name in names if result.row(name).mean(column) is not None]
    base = result.row(paper.baseline)
    with drawing(width=9, height=0.27 * len(names) + 1.3, ncols=2, sharey=True) as (figure, axes):
        for i, name in enumerate(names):
            row = result.row(name)
            _point(axes[0], i + 0.14, values[name], 0.0, OTHER, "s", "in print" if not i else None)
            if (mean := row.mean(column)) is not None:
                _point(
                    axes[0], i - 0.14, mean, row.error(column) or 0.0, ACCENT, "o", here if name == ours[0] else None
                )
        for i, name in enumerate(names):
            if name != paper.baseline:
                axes[1].barh(i + 0.18, values[name] - values[paper.baseline], 0.34, color=OTHER)
                _gain_bar(axes[1], i - 0.18, result.row(name), base, column)
        axes[0].set_yticks(range(len(names)), names)
        axes[0].set_xlabel(f"{paper.column}, %")
        axes[1].set_xlabel(f"{paper.column} less that of {paper.baseline}")
        axes[1].axvline(0, color=INK, lw=0.6)
        legend(axes[0])
    return figure


def _gain_bar(axes: Any, y: float, row: RowResult, base: RowResult, column: str) -> None:
    """Draw a bar of our gain with two standard errors."""
    mean, of_base = row.mean(column), base.mean(column)
    if mean is not None and of_base is not None:
        both = 2 * np.sqrt((row.error(column) or 0.0) ** 2 + (base.error(column) or 0.0) ** 2)
        style = {"lw": 0.8, "ecolor": INK}
        axes.barh(y, mean - of_base, 0.34, color=ACCENT, xerr=both or None, error_kw=style)


def _point(axes: Any, y: float, x: float, error: float, colour: str, marker: str, label: str | None) -> None:
    axes.errorbar(x, y, xerr=2 * error or None, fmt=marker, ms=5, color=colour, lw=1, label=label)


# Partial Label Masking

BINS = 10
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
FINE_TICKS = (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 2)
"""Of ratios that stay within a factor of two."""
MEASURES = ("F1", "precision", "recall", "accuracy")


def _methods(numbers: Numbers, *parts: str) -> dict[str, Numbers]:
    """The content kept for each row that has one of the parts."""
    return {
        name: content
        for name, content in numbers.items()
        if isinstance(content, Mapping) and any(part in content for part in parts)
    }


def output_distributions(result: Result) -> Figure:
    """Draw the outputs σ(z) for positive samples on the left and negative ones on the right, BCE above PLM.

    Each panel shows the most frequent and the rarest class.
    """
    numbers = numbers_of(result)
    order = _order(numbers["counts"])
    left = np.arange(BINS) / BINS
    with drawing(width=9, height=5.2, nrows=2, ncols=2, sharex=True, sharey=True) as (figure, axes):
        for row, (method, content) in zip(axes, _methods(numbers, "positives").items(), strict=True):
            for panel, kind in zip(row, ("positives", "negatives"), strict=True):
                for i, (c, colour) in enumerate(((order[0], ACCENT), (order[-1], OTHER))):
                    label = f"{('head', 'tail')[i]}: {short(numbers['names'][c])}"
                    x = left + i * 0.5 / BINS
                    panel.bar(x, content[kind][c], 0.5 / BINS, align="edge", color=colour, label=label)
                panel.set_title(f"{method}: {kind}")
                panel.set_xlim(0, 1)
                panel.set_ylim(0, 1)
            row[0].set_ylabel("share of items")
        for panel in axes[-1]:
            panel.set_xlabel("output σ(z)")
        axes[0, 1].legend(frameon=False, fontsize=9)
    return figure


def ratios_by_epoch(result: Result) -> Figure:
    """Draw how many times the ratio of the data each class's ratio r̄ is, epoch by epoch."""
    numbers = numbers_of(result)
    own = np.array(numbers["data_ratio"])
    (content,) = (content for content in _methods(numbers, "ratios").values() if content["ratios"])
    ratios = np.array(content["ratios"])
    with drawing(width=9, height=4.4) as (figure, axes):
        from matplotlib.colors import LinearSegmentedColormap

        colours = LinearSegmentedColormap.from_list("frequency", [ACCENT, "#9a9a9a", OTHER])(
            np.linspace(0, 1, len(own))
        )
        for place, c in enumerate(_order(numbers["counts"])):
            axes.plot(
                range(1, len(ratios) + 1),
                ratios[:, c] / own[c],
                color=colours[place],
                lw=1.5,
                label=short(numbers["names"][c]) if len(own) <= MOST_NAMES else None,
            )
        axes.axhline(1, color=INK, lw=0.6, ls=":")
        axes.set_yscale("log")
        low, high = (ratios / own).min(), (ratios / own).max()
        ticks = FINE_TICKS if low > 0.5 and high < 2 else TICKS
        inside = [tick for tick in ticks if low / 1.1 <= tick <= high * 1.1]
        axes.set_yticks(inside, [f"{tick:g}" for tick in inside])
        axes.set_yticks([], minor=True)
        axes.set_xlabel("epoch")
        axes.set_ylabel("r̄ over the ratio of the data")
        legend(axes, columns=10)
    return figure


def by_class(result: Result) -> Figure:
    """Draw what was measured class by class, most frequent first: bars of PLM, points of BCE over them."""
    numbers = numbers_of(result)
    order = _order(numbers["counts"])
    methods = _methods(numbers, *MEASURES)
    shown = [name for name in MEASURES if all(name in content for content in methods.values())]
    x, n = np.arange(len(order)), len(shown)
    with drawing(width=9, height=2.6 * n + 0.4, nrows=n, squeeze=False, sharex=True) as (figure, axes):
        for panel, measure in zip(axes[:, 0], shown, strict=True):
            for method, content in methods.items():
                values = np.array(content[measure], float)[order]
                if "PLM" in method:
                    panel.bar(x, values, width=0.8, color=ACCENT, lw=0, label=method)
                else:
                    panel.plot(x, values, ls="", marker="o", ms=5, color=OTHER, mec="white", mew=0.6, label=method)
            panel.set_ylabel(f"{measure}, %")
            panel.set_ylim(0, 100)
        names = [short(numbers["names"][c]) for c in order]
        few = len(names) <= 12
        axes[-1, 0].set_xticks(x, names, rotation=0 if few else 90, fontsize=9 if few else 6)
        axes[-1, 0].tick_params(axis="x", length=0)
        axes[-1, 0].set_xlabel("class, most frequent first")
        legend(axes[0, 0])
    return figure


def accuracy_by_rho(result: Result) -> Figure:
    """Draw the accuracy of each class, one panel per ρ, the longest tail first: bars of PLM, points of BCE."""
    numbers = numbers_of(result)
    methods = _methods(numbers, "accuracy")
    rhos = list(dict.fromkeys(name.partition(", ")[2] for name in methods))
    x = np.arange(len(numbers["names"]))
    with drawing(width=9, height=1.7 * len(rhos) + 0.6, nrows=len(rhos), squeeze=False, sharex=True) as (figure, axes):
        for panel, rho in zip(axes[:, 0], rhos, strict=True):
            masked, plain = (methods[f"{name}, {rho}"]["accuracy"] for name in ("BCE + PLM", "BCE"))
            panel.bar(x, masked, width=0.8, color=ACCENT, lw=0, label="BCE + PLM")
            panel.plot(x, plain, ls="", marker="o", ms=5, color=OTHER, mec="white", mew=0.6, label="BCE")
            panel.set_ylabel(f"{rho}, %")
            panel.set_ylim(0, 100)
        axes[-1, 0].set_xticks(x, [short(name) for name in numbers["names"]])
        axes[-1, 0].set_xlabel("class, most frequent first")
        legend(axes[0, 0])
    return figure


def beside_truth(result: Result) -> Figure:
    """Draw the distributions of outputs: the truth, two head and two tail classes; positives above negatives."""
    numbers = numbers_of(result)
    order = _order(numbers["counts"])
    (content,) = _methods(numbers, "positives").values()
    shown = [*order[:2], *order[-2:]]
    centres = (np.arange(BINS) + 0.5) / BINS
    kinds = ("positives", BINS - 1, ACCENT), ("negatives", 0, OTHER)
    with drawing(width=9, height=3.8, nrows=2, ncols=5, sharex=True, sharey=True) as (figure, axes):
        for row, (kind, true_bin, colour) in zip(axes, kinds, strict=True):
            row[0].bar(centres, np.eye(BINS)[true_bin], 0.9 / BINS, color=INK)
            for panel, c in zip(row[1:], shown, strict=True):
                panel.bar(centres, content[kind][c], 0.9 / BINS, color=colour)
            row[0].set_ylabel(f"{kind}, share")
        for panel, name in zip(axes[0], ["truth", *(short(numbers["names"][c]) for c in shown)], strict=True):
            panel.set_title(name, fontsize=9)
        for panel in axes[-1]:
            panel.set_xlabel("output")
    return figure


def toy(result: Result) -> Figure:
    """Draw the example's distributions: of the labels on the left, of the outputs on the right."""
    numbers = numbers_of(result)
    titles = []
    for i, kind in enumerate(("positives", "negatives")):
        texts = (f"{pair[i]:.2f} with ε {eps}" for eps, pair in numbers["divergences"].items())
        titles.append(f"{kind}, predicted: KL {'; '.join(texts)}")
    return _four(numbers["bins"], numbers, 1, "share of items", titles)


def toy_histograms(result: Result) -> Figure:
    """Draw the example's histograms: of the labels on the left, of the outputs on the right."""
    numbers = numbers_of(result)
    titles = [f"{kind}, predicted" for kind in ("positives", "negatives")]
    return _four(numbers["bins"], numbers["counts"], sum(numbers["counts"]["positives"]), "items", titles)


def _four(n: int, values: Numbers, top: float, unit: str, titles: Sequence[str]) -> Figure:
    """Draw truth and prediction of positives above those of negatives, in n bins."""
    centres = (np.arange(n) + 0.5) / n
    kinds = ("positives", n - 1, ACCENT), ("negatives", 0, OTHER)
    with drawing(width=9, height=4.6, nrows=2, ncols=2, sharex=True, sharey=True) as (figure, axes):
        for row, (kind, true_bin, colour), title in zip(axes, kinds, titles, strict=True):
            row[0].bar(centres, top * np.eye(n)[true_bin], 0.9 / n, color=colour)
            row[0].set_title(f"{kind}, truth", fontsize=8)
            row[1].bar(centres, values[kind], 0.9 / n, color=colour)
            row[1].set_title(title, fontsize=8)
            row[0].set_ylabel(unit)
        for panel in axes[-1]:
            panel.set_xlabel("output")
    return figure


def pictures(result: Result) -> Figure:
    """Draw some pictures with their labels, and the positives of each class in training and test."""
    numbers = numbers_of(result)
    images = np.array(numbers["pictures"], np.uint8)
    columns = 12
    rows = -(-len(images) // columns)
    grid: Any = [*[[f"{r} {c}" for c in range(columns)] for r in range(rows)], *[["counts"] * columns] * 2]
    with drawing(width=9, height=4.6) as (figure, axes):
        axes.remove()
        panels = figure.subplot_mosaic(grid)
        for i, (image, label) in enumerate(zip(images, numbers["labels"], strict=True)):
            panel = panels[f"{i // columns} {i % columns}"]
            panel.imshow(image, cmap="gray", vmin=0, vmax=255)
            panel.set_title(label, fontsize=8, loc="center", pad=2)
            panel.set_axis_off()
        counts = panels["counts"]
        x = np.arange(len(numbers["names"]))
        counts.bar(x - 0.2, numbers["training"], 0.4, color=ACCENT, label="training")
        counts.bar(x + 0.2, numbers["test"], 0.4, color=OTHER, label="test")
        counts.set_yscale("log")
        counts.set_ylim(bottom=0.5 * min(numbers["training"]))
        counts.yaxis.set_major_formatter("{x:,.0f}")
        counts.set_xticks(x, numbers["names"])
        counts.set_ylabel("positives")
        legend(counts)
    return figure


# Distribution-Balanced Loss


def resampling(result: Result) -> Figure:
    """Draw the items of every label before and after class-aware sampling, one row per data set."""
    sets = numbers_of(result)
    with drawing(10.5, 3.4 * len(sets), nrows=len(sets), ncols=2, squeeze=False) as (figure, grid):
        for row, (name, numbers) in zip(grid, sets.items(), strict=True):
            when = ("as it is", "after re-sampling (dots: drawn)")
            for axes, shown, how in zip(row, ("counts", "expected"), when, strict=True):
                y = _floats(numbers[shown])
                axes.bar(_ranks(y), y, width=0.8, color=SERIES[0], lw=0)
                axes.set_title(f"{name}, {how}: {np.nanmin(y):,.0f} to {np.nanmax(y):,.0f}")
                axes.set_ylabel("items of a label")
                _name_labels(axes, numbers["names"])
            drawn = _floats(numbers["drawn"])
            row[1].plot(_ranks(drawn), drawn, ls="", marker=".", color=SERIES[1], ms=2 * _size(len(drawn)))
    return figure


def tolerance(result: Result) -> Figure:
    """Draw ℓ₋ and its gradient against the logit: BCE, and negative-tolerant BCE shifted by ν, for some λ."""
    lams, nu = numbers_of(result)["lam"], numbers_of(result)["nu"]
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


def imbalance(result: Result) -> Figure:
    """Draw p(i|j), the items after re-sampling and how unequally they are drawn, one column per data set.

    Column i and row j of the matrix hold p(i|j). Below it, the variance of the times that the items of a label are
    drawn, of mean 1 within the label.
    """
    sets = numbers_of(result)
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
            _name_labels(column[2], numbers["names"])
        figure.colorbar(image, ax=list(rows[0]), shrink=0.8, label="p(i|j)")
    return figure


def label_gains(result: Result) -> Figure:
    """Draw by how many points each step changes the average precision of each label, one column per data set.

    Its numbers are by data `names` and training `counts` of the labels, and `ap`, the AP in per cent of the labels by
    the name of the step: every one but the first is drawn as its difference to the one before.
    """
    sets = numbers_of(result)
    first = next(iter(sets.values()))
    n, across = len(first["ap"]) - 1, len(sets)
    grid = dict(nrows=n, ncols=across, sharex="col", sharey="col", squeeze=False)
    with drawing(7.0 * across + 2.5 * (across == 1), 1.9 * n + 1.3, **grid) as (figure, cells):
        for column, (name, numbers) in zip(cells.T, sets.items(), strict=True):
            counts = np.array(numbers["counts"])
            order, steps = _order(counts), list(numbers["ap"])
            for i, axes in enumerate(column):
                _bands(axes, counts[order], named=i == 0)
                gain = (_floats(numbers["ap"][steps[i + 1]]) - _floats(numbers["ap"][steps[i]]))[order]
                axes.bar(_ranks(gain), gain, width=0.7, color=SERIES[i % len(SERIES)], lw=0)
                axes.axhline(0, color=FRAME, lw=0.8)
                axes.set_title(f"{name}, {steps[i]} → {steps[i + 1]}: {np.nanmean(gain):+.2f}")
                axes.set_ylabel("AP, points")
            _name_labels(column[-1], [numbers["names"][c] for c in order])
    return figure


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


def sweep(panels: Mapping[str, Mapping[float, str]], result: Result) -> Figure:
    """Draw scores against one constant after another, a panel each: by its symbol, the names of rows by value."""
    drawn = {
        symbol: {value: result.row(row) for value, row in sorted(rows.items()) if row in result.by_name}
        for symbol, rows in panels.items()
    }
    drawn = {symbol: rows for symbol, rows in drawn.items() if rows}
    with drawing(4.6 * len(drawn), 3.8, ncols=len(drawn), squeeze=False, sharey=True) as (figure, axes_of):
        for axes, (symbol, rows) in zip(axes_of[0], drawn.items(), strict=True):
            for i, column in enumerate(result.columns):
                y = [row.mean(column) or 0.0 for row in rows.values()]
                apart = [row.std(column) or 0.0 for row in rows.values()]
                x = [at + 0.05 * i for at in range(len(rows))]  # bars that would hide each other stand side by side
                style = dict(color=SERIES[i], marker=MARKERS[i], ms=5, lw=1.4, capsize=2, elinewidth=0.9)
                axes.errorbar(x, y, apart, label=column, **style)
            axes.set_xticks(range(len(rows)), [f"{value:g}" for value in rows])
            axes.set_xlabel(symbol)
            axes.grid(True)
        axes_of[0][0].set_ylabel("mAP, %")
        legend(axes_of[0][0])
    return figure


def construction(result: Result) -> Figure:
    """Draw Pareto curves for several α, and the positives of every label while a long tail is made of a data set."""
    numbers = numbers_of(result)
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


def counts_to_test(result: Result) -> Figure:
    """Draw the positives of the test items, labels from the most frequent of training on, a panel a data set."""
    sets = numbers_of(result)
    with drawing(5.4 * len(sets), 4.0, ncols=len(sets), squeeze=False) as (figure, rows):
        for axes, (name, numbers) in zip(rows[0], sets.items(), strict=True):
            y = _floats(numbers["test"])
            axes.bar(_ranks(y), y, width=0.8, color=SERIES[0], lw=0)
            axes.set_title(f"{name}: {numbers['test items']:,} images, {y.min():,.0f} to {y.max():,.0f}")
            axes.set_ylabel("positives to test on")
            _name_labels(axes, numbers["names"])
    return figure


# Partially annotated labels


def bars(result: Result) -> Figure:
    """Draw one bar of mAP per method."""
    with drawing(6.4, 3.6) as (figure, axes):
        means = [row.mean(result.columns[0]) or 0.0 for row in result.rows]
        axes.bar(range(len(means)), means, 0.7, color=SERIES[: len(means)])
        axes.set_xticks(range(len(means)), [row.name for row in result.rows])
        axes.set_ylabel(f"{result.columns[0]}, %")
    return figure


# SPA and LPR


def losses(named: Mapping[str, PairLoss]) -> Figure:
    """Draw ℓ₊, ℓ₋ and the derived link η of each loss against the logit, the link beside σ."""
    z = torch.linspace(-6, 6, 481, dtype=torch.float64).unsqueeze(1)
    with drawing(11, 3.9, ncols=3) as (figure, row):
        row[2].plot(z.squeeze(1), torch.sigmoid(z).squeeze(1), color=FRAME, lw=3, alpha=0.5, label="σ(z)")
        for i, (name, loss) in enumerate(named.items()):
            for axes, values in zip(row, (loss.positive(z), loss.negative(z), loss.probability(z)), strict=True):
                axes.plot(z.squeeze(1), values.squeeze(1), color=SERIES[i], lw=1.6, label=name)
        for axes, quantity in zip(row, ("ℓ₊, present", "ℓ₋, absent", "η, the derived link"), strict=True):
            axes.set_xlabel("logit z")
            axes.set_ylabel(quantity)
            axes.grid(True)
        for axes in row[:2]:
            axes.set_ylim(0, 6)
        key(figure, row[2], columns=len(named) + 1)
    return figure


def reliability(result: Result) -> Figure:
    """Draw the reliability of several runs: by name, edges, counts, confidence and frequency of bins."""
    diagrams = []
    for name, of_run in numbers_of(result).items():
        parts = (_floats(of_run[part]) for part in ("edges", "counts", "confidence", "frequency"))
        diagrams.append((f"{name}: ACE {of_run['ace']:.1f}", Bins(*parts)))
    return reliability_diagram(diagrams)


def retrieval(result: Result) -> Figure:
    """Draw mAP against the number of terms of a query: by name, mAP in per cent by terms."""
    curves = {}
    for name, by_terms in numbers_of(result).items():
        shares = {int(k): value / 100 for k, value in by_terms.items()}
        curves[name] = RetrievalCurve(shares, {k: (value, value) for k, value in shares.items()})
    return retrieval_curves(curves)


SHOWN_EPOCHS = ("BCE", "focal by φ", "ASY by φ", "SPA", "SPA + LPR")
"""The rows whose way is drawn: each read by its own link."""


def epochs(result: Result) -> Figure:
    """Draw ACE against mAP@y, one line per row from its first epoch to its last, a ring at the chosen epochs."""
    numbers, rows = numbers_of(result), result.by_name
    shown = [name for name in SHOWN_EPOCHS if name in rows] or list(rows)[: len(SERIES)]
    with drawing(6.4, 4.6) as (figure, axes):
        for i, name in enumerate(shown):
            way, row = numbers["curves"][name], rows[name]
            style = dict(color=SERIES[i], marker=MARKERS[i], ms=4, lw=1.4)
            axes.plot(way["mAP"], way["ACE"], label=name, **style)
            at = [(m, e) for m, e in zip(row.values("mAP@y"), row.values("ACE"), strict=True)]
            axes.plot(*zip(*at, strict=True), ls="", marker="o", ms=10, mfc="none", mec=SERIES[i], mew=1.4)
        axes.axvline(numbers["level"], color=FRAME, lw=0.8, ls=":")
        axes.set_xlabel("mAP@y, %; dotted: the most that every row has")
        axes.set_ylabel("ACE, %; rings: the chosen epochs")
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=numbers["level"] - 10)  # the first epochs lie far to the left of all that is compared
        axes.grid(True)
        legend(axes)
    return figure


_RIGHT, _WRONG = "#2f8a57", "#b93a5b"
_SIDE = 88
"""Pixels of a picture, at most."""


def retrieved(result: Result) -> Figure:
    """Draw the images that runs find for queries, one row per run, framed green where right and red where wrong.

    Its numbers are queries, each with its `text` and, by run, the ids of the images and which are right. The files of
    images, by id, are details of the first run; an image without one is shown by its id.
    """
    files = result.rows[0].runs[0].details.get("files", {})
    queries = numbers_of(result)["queries"]
    rows = [(query["text"], run, hits) for query in queries for run, hits in query["runs"].items()]
    across = max(len(hits["ids"]) for _, _, hits in rows)
    width, height = 1.05 * across + 1.2, 0.95 * len(rows) + 0.25 * len(queries)
    with drawing(width, height, nrows=len(rows), ncols=across) as (figure, grid):
        for i, (text, run, hits) in enumerate(rows):
            for j, axes in enumerate(grid[i]):
                axes.set_xticks([])
                axes.set_yticks([])
                if j >= len(hits["ids"]):
                    axes.set_visible(False)
                    continue
                _show(axes, hits["ids"][j], files)
                for spine in axes.spines.values():
                    spine.set(visible=True, color=_RIGHT if hits["right"][j] else _WRONG, linewidth=2.5)
            if i == 0 or rows[i - 1][0] != text:
                grid[i][0].set_title(text)
            grid[i][0].set_ylabel(f"{run}\n{sum(hits['right'])} right", rotation=0, ha="right", va="center")
        figure.supxlabel("green: right, red: wrong")
    return figure


def _show(axes: Any, name: str, files: Mapping[str, str]) -> None:
    picture = thumbnail(files[name], _SIDE) if name in files else None
    if picture is not None:
        axes.imshow(np.asarray(picture.convert("RGB")))
        axes.set_adjustable("datalim")  # frames of one size: a tall picture leaves the title above it free
    else:
        axes.text(0.5, 0.5, name.replace("_", "\n"), ha="center", va="center", transform=axes.transAxes)
