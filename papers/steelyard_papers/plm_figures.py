"""The figures of the PLM paper, drawn from plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from steelyard.report.canvas import ACCENT, INK, MOST_NAMES, OTHER, drawing, legend, short
from steelyard_papers.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats: TypeAlias = NDArray[np.float64]

BINS = 10
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
FINE_TICKS = (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 2)
"""Of ratios that stay within a factor of two."""
FLOORS = (1e-2, 1e-6, 1e-12)
MEASURES = ("F1", "precision", "recall", "accuracy")
TOY = {"positives": (0.2, 0.6, 0.95, 0.99, 0.45), "negatives": (0.1, 0.15, 0.8, 0.4, 0.3)}
"""Outputs for the ten items of the paper's example."""
TOY_BINS = 4


def output_distributions(result: Result) -> Figure:
    """Draw the outputs σ(z) of the most frequent and of the rarest class, positives and negatives, BCE and PLM."""
    numbers = _numbers(result)
    order = np.argsort(-np.array(numbers["counts"]), kind="stable")
    methods = _methods(numbers, "positives")
    with drawing(width=9, height=5.2, nrows=2, ncols=2, sharex=True, sharey=True) as (figure, axes):
        for row, (method, content) in zip(axes, methods.items(), strict=True):
            for panel, c, kind in zip(row, (order[0], order[-1]), ("head", "tail"), strict=True):
                _histogram(panel, content["positives"][c], content["negatives"][c])
                panel.set_title(f"{method}: {kind} class {short(numbers['names'][c])}")
        for panel in axes[-1]:
            panel.set_xlabel("output σ(z)")
        for row in axes:
            row[0].set_ylabel("share of items")
        axes[0, 1].legend(frameon=False, fontsize=9)
    return figure


def ratios_by_epoch(result: Result) -> Figure:
    """Draw how many times the ratio of the data each class's ratio r̄ is, epoch by epoch."""
    numbers = _numbers(result)
    own = np.array(numbers["data_ratio"])
    (content,) = (content for content in _methods(numbers, "ratios").values() if content["ratios"])
    ratios = np.array(content["ratios"])
    with drawing(width=9, height=4.4) as (figure, axes):
        colours = _shades(len(own))
        for place, c in enumerate(np.argsort(-np.array(numbers["counts"]), kind="stable")):
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
    numbers = _numbers(result)
    order = np.argsort(-np.array(numbers["counts"]), kind="stable")
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


def examples(result: Result) -> Figure:
    """Draw some pictures with their labels, and the positives of each class in training and test."""
    numbers = _numbers(result)
    pictures = np.array(numbers["pictures"], np.uint8)
    columns = 12
    rows = -(-len(pictures) // columns)
    grid: Any = [*[[f"{r} {c}" for c in range(columns)] for r in range(rows)], *[["counts"] * columns] * 2]
    with drawing(width=9, height=4.6) as (figure, axes):
        axes.remove()
        panels = figure.subplot_mosaic(grid)
        for i, (picture, label) in enumerate(zip(pictures, numbers["labels"], strict=True)):
            panel = panels[f"{i // columns} {i % columns}"]
            panel.imshow(picture, cmap="gray", vmin=0, vmax=255)
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


def toy_numbers() -> dict[str, Any]:
    """Return the example's histograms and distributions, and how far they are from the truth with each floor ε."""
    counts = {kind: np.histogram(outputs, TOY_BINS, (0, 1))[0] for kind, outputs in TOY.items()}
    plus, minus = (counts[kind] / counts[kind].sum() for kind in ("positives", "negatives"))
    divergences = {f"{eps:g}": [_divergence(plus, TOY_BINS - 1, eps), _divergence(minus, 0, eps)] for eps in FLOORS}
    return {
        "bins": TOY_BINS,
        "outputs": {kind: list(outputs) for kind, outputs in TOY.items()},
        "counts": {kind: found.tolist() for kind, found in counts.items()},
        "positives": plus.tolist(),
        "negatives": minus.tolist(),
        "divergences": divergences,
    }


def _divergence(p: Floats, true_bin: int, eps: float) -> float:
    """KL(p ‖ q), where q has all its mass in the true bin but for a floor ε of the others."""
    q = np.full(len(p), eps)
    q[true_bin] = 1 - (len(p) - 1) * eps
    seen = p > 0
    return float((p[seen] * np.log(p[seen] / q[seen])).sum())


def toy(result: Result) -> Figure:
    """Draw the example's distributions: of the labels on the left, of the outputs on the right."""
    numbers = _numbers(result)
    titles = []
    for i, kind in enumerate(("positives", "negatives")):
        texts = (f"{pair[i]:.2f} with ε {eps}" for eps, pair in numbers["divergences"].items())
        titles.append(f"{kind}, predicted: KL {'; '.join(texts)}")
    return _four(numbers["bins"], numbers["positives"], numbers["negatives"], 1, "share of items", titles)


def toy_histograms(result: Result) -> Figure:
    """Draw the example's histograms: of the labels on the left, of the outputs on the right."""
    numbers = _numbers(result)
    counts = numbers["counts"]
    titles = [f"{kind}, predicted" for kind in ("positives", "negatives")]
    n = sum(counts["positives"])
    return _four(numbers["bins"], counts["positives"], counts["negatives"], n, "items", titles)


def _four(
    n: int, positives: Sequence[float], negatives: Sequence[float], top: float, unit: str, titles: Sequence[str]
) -> Figure:
    """Draw truth and prediction of positives above those of negatives, in n bins."""
    centres = (np.arange(n) + 0.5) / n
    with drawing(width=9, height=4.6, nrows=2, ncols=2, sharex=True, sharey=True) as (figure, axes):
        kinds = ("positives", positives, n - 1, ACCENT), ("negatives", negatives, 0, OTHER)
        for row, (kind, values, true_bin, colour), title in zip(axes, kinds, titles, strict=True):
            row[0].bar(centres, top * np.eye(n)[true_bin], 0.9 / n, color=colour)
            row[0].set_title(f"{kind}, truth", fontsize=8)
            row[1].bar(centres, values, 0.9 / n, color=colour)
            row[1].set_title(title, fontsize=8)
            row[0].set_ylabel(unit)
        for panel in axes[-1]:
            panel.set_xlabel("output")
    return figure


def accuracy_by_rho(result: Result) -> Figure:
    """Draw the accuracy of each class, one panel per ρ, the longest tail first: bars of PLM, points of BCE."""
    numbers = _numbers(result)
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
    numbers = _numbers(result)
    order = np.argsort(-np.array(numbers["counts"]), kind="stable")
    (content,) = _methods(numbers, "positives").values()
    shown = [*order[:2], *order[-2:]]
    left = (np.arange(BINS) + 0.5) / BINS
    with drawing(width=9, height=3.8, nrows=2, ncols=5, sharex=True, sharey=True) as (figure, axes):
        for row, kind, true_bin, colour in zip(
            axes, ("positives", "negatives"), (BINS - 1, 0), (ACCENT, OTHER), strict=True
        ):
            row[0].bar(left, np.eye(BINS)[true_bin], 0.9 / BINS, color=INK)
            for panel, c in zip(row[1:], shown, strict=True):
                panel.bar(left, content[kind][c], 0.9 / BINS, color=colour)
            row[0].set_ylabel(f"{kind}, share")
        for panel, name in zip(axes[0], ["truth", *(short(numbers["names"][c]) for c in shown)], strict=True):
            panel.set_title(name, fontsize=9)
        for panel in axes[-1]:
            panel.set_xlabel("output")
    return figure


def _numbers(result: Result) -> Mapping[str, Any]:
    if result.figure is None:
        raise ValueError(f"the result of {result.name} holds no figure: run it again")
    return result.figure


def _methods(numbers: Mapping[str, Any], *wanted: str) -> dict[str, Mapping[str, Any]]:
    """Return the content kept for each row."""
    return {
        name: content
        for name, content in numbers.items()
        if isinstance(content, Mapping) and any(key in content for key in wanted)
    }


def _histogram(panel: Any, positives: Sequence[float], negatives: Sequence[float]) -> None:
    left = np.arange(BINS) / BINS
    panel.bar(left, negatives, 0.5 / BINS, align="edge", color=OTHER, label="negatives")
    panel.bar(left + 0.5 / BINS, positives, 0.5 / BINS, align="edge", color=ACCENT, label="positives")
    panel.set_xlim(0, 1)
    panel.set_ylim(0, 1)


def _shades(n: int) -> Any:
    """From blue, the most frequent class, to orange, the rarest."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("frequency", [ACCENT, "#9a9a9a", OTHER])(np.linspace(0, 1, n))
