"""The pictures of the concepts, one each: what docs/img/concept-*.svg shows.

    python docs/pictures.py               # all of them
    python docs/pictures.py plm links     # some
    python docs/pictures.py --format pdf --out FOLDER

Nothing is drawn by hand: every curve and bar is what the library computes. Colours and marks are those of the report:
probabilities by the link are blue circles, those by σ orange squares.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch

import steelyard as sy
from steelyard.labels.targets import as_targets
from steelyard.report.canvas import (
    ACCENT,
    FAINT,
    FRAME,
    INK,
    LINES,
    OTHER,
    SOFT,
    STYLE,
    log_scale,
    look,
    per_cent_axis,
    save_figure,
)

mpl.use("Agg")
from matplotlib import pyplot as plt

OUT = Path(__file__).parent / "img"
BY = {"link": {"color": ACCENT, "marker": "o"}, "σ": {"color": OTHER, "marker": "s"}}
"""How probabilities by the link and by σ look, in every picture."""
LONG_TAIL = np.geomspace(0.4, 0.01, 10)


def sheet(n: int, width: float = 3.6, height: float = 2.8, **options: Any) -> tuple[Any, Any]:
    """A figure with n panels side by side."""
    figure, axes = plt.subplots(1, n, figsize=(width * n, height), layout="constrained", **options)
    return figure, axes


def key(ax: Any, **place: Any) -> None:
    """Write the legend of a panel, on paper so that no line crosses it."""
    ax.legend(frameon=True, edgecolor="none", framealpha=0.8, fontsize=8, **place)


def some_labels(n: int = 4000, seed: int = 0) -> sy.Labels:
    """A long-tailed table: labels of an item come together, as a frequent one draws rare ones along."""
    g = np.random.default_rng(seed)
    busy = g.gamma(2, 0.5, (n, 1))
    return sy.Labels((g.random((n, 10)) < np.clip(LONG_TAIL * busy, 0, 0.95)).astype(np.int8))


def links() -> Any:
    """What a label costs, and the probability that follows from it."""
    figure, (left, right) = sheet(2)
    z = torch.linspace(-6, 6, 400)
    losses: dict[str, Any] = {
        "BCE": sy.losses.BCE(),
        "focal": sy.losses.Focal(),
        "ASL": sy.losses.Asymmetric(),
        "SPA": sy.losses.SPA(),
    }
    for i, (name, loss) in enumerate(losses.items()):
        style = {**look(i), "ms": 4, "markevery": (10 * i, 50), "label": name}
        left.plot(z, loss.positive(z), **style)
        left.plot(z, loss.negative(z), ls="--", **style)
        right.plot(z, loss.probability(z), **style)
    left.set(title="ℓ₊ (solid) and ℓ₋ (dashed)", xlabel="logit z", ylim=(0, 4))
    right.set(title="the probability each pair implies", xlabel="logit z", ylabel="η")
    key(right)
    return figure


def unknown() -> Any:
    """The same labels under three rules."""
    targets = torch.tensor([[1, 0, -1, -1, 0], [-1, 1, 0, -1, -1], [0, -1, 1, 1, -1], [-1, -1, 0, -1, 1]])
    z = torch.zeros(targets.shape)
    rules = {
        "ignore": sy.losses.Ignore(),
        "weak_negative": sy.losses.WeakNegative(),
        "negative": sy.losses.Negative(),
    }
    figure, axes = sheet(4, width=2.3, height=2.3)
    panels: list[tuple[str, Any]] = [("labels: 1, 0, unknown", None)]
    panels += [(f'unknown="{name}"', rule) for name, rule in rules.items()]
    for ax, (name, rule) in zip(axes, panels, strict=True):
        cells = None if rule is None else rule(as_targets(targets, z), z, None)
        for (i, c), t in np.ndenumerate(targets.numpy()):
            a, b = (float(t == 1), float(t == 0)) if cells is None else (float(cells.a[i, c]), float(cells.b[i, c]))
            colour, strength = (ACCENT, a) if a else (OTHER, b) if b else (FAINT, 1.0)
            ax.add_patch(plt.Rectangle((c, i), 0.94, 0.94, color=colour, alpha=0.25 + 0.5 * strength))
            text = "?" if cells is None and t < 0 else "" if not a + b else str(t)
            text = f"{'+' if a else '−'}{a or b:.2g}" if cells and text else text
            ax.text(c + 0.47, i + 0.5, text, ha="center", va="center", color=INK, fontsize=9)
        ax.set(title=name, xlim=(0, 5), ylim=(4, 0), xticks=[], yticks=[], aspect="equal")
        ax.spines[:].set_visible(False)
    figure.supxlabel("+ and blue: weight of ℓ₊; − and orange: weight of ℓ₋; grey: counts nowhere", fontsize=9)
    return figure


def plm() -> Any:
    """Ratios before and after masking, and which labels are kept."""
    labels = some_labels()
    masking = sy.balance.PartialLabelMasking(labels.counts, labels.n_known, rate=0.0, initial="mean")
    targets = torch.from_numpy(labels.rows(np.arange(len(labels))))
    kept = masking.mask(targets, torch.arange(len(labels))) & (targets >= 0)
    after = ((targets == 1) & kept).sum(0) / ((targets == 0) & kept).sum(0)
    figure, (left, right) = sheet(2)
    at = np.arange(10)
    left.bar(at - 0.2, labels.ratio, 0.4, color=FRAME, label="in the data, r")
    left.bar(at + 0.2, after, 0.4, color=ACCENT, label="after the masks")
    left.axhline(float(masking.ratio[0]), color=OTHER, lw=1.5, ls="--", label="target, r̄")
    left.set(title="positives over negatives", xlabel="label, frequent to rare", xticks=at)
    log_scale(left)
    key(left)
    positive, negative = masking.keep_probabilities
    right.plot(at, positive, "o-", color=ACCENT, label="a positive")
    right.plot(at, negative, "s-", color=OTHER, label="a negative")
    right.set(title="chance that a label is kept", xlabel="label, frequent to rare", ylim=(0, 1.05), xticks=at)
    key(right, loc="lower left")
    return figure


def resampling() -> Any:
    """Label frequencies under class-aware sampling, and DB's weight."""
    labels = some_labels()
    sampler = sy.balance.ClassAware(labels, visits=2000)
    drawn = labels.rows(np.fromiter(sampler, np.int64, len(sampler)))
    figure, (left, right) = sheet(2)
    at = np.arange(10)
    left.bar(at - 0.2, labels.prior, 0.4, color=FRAME, label="in the data")
    left.bar(at + 0.2, (drawn == 1).mean(0), 0.4, color=ACCENT, label="in what is drawn")
    left.plot(at + 0.2, labels.resampled_prior(), "o", color=OTHER, ms=4, label="expected, eq. 1 of DB")
    left.set(title="share of items with the label", xlabel="label, frequent to rare", xticks=at)
    key(left)
    counts = [800, 200, 50, 12, 3]
    items = torch.eye(5)
    items[:, 0] = 1  # each with the most frequent label
    weights = sy.balance.Rebalanced(counts)(items)
    right.plot(range(5), weights.diag(), "o-", color=ACCENT, label="of the label itself")
    right.plot(range(5), weights[:, 0], "s-", color=OTHER, label="of the label with 800")
    right.set(title="r̂ in an item that also has the label with 800", xticks=range(5), xticklabels=counts, ylim=(0, 1.2))
    right.set_xlabel("positives of the label")
    key(right)
    return figure


def partial() -> Any:
    """Four ways in which a table is not fully annotated."""
    labels = some_labels(24, seed=3)
    tables = {
        "all labels": labels,
        "PAL: 30 % of the labels": sy.data.keep_labels(labels, 0.3, seed=0),
        "PPL: 60 % of the positives": sy.data.keep_positives(labels, 0.6, seed=0),
        "SPL: one positive": sy.data.keep_single_positive(labels, seed=0),
    }
    figure, axes = sheet(4, width=2.2, height=3.4)
    for ax, (name, table) in zip(axes, tables.items(), strict=True):
        values = table.rows(np.arange(len(table)))
        for value, mark, colour, size in ((1, "s", ACCENT, 34), (0, "o", OTHER, 8)):
            item, label = np.nonzero(values == value)
            ax.scatter(label, item, size, color=colour, marker=mark, linewidths=0)
        ax.set(title=name, xticks=[], yticks=[], xlim=(-0.7, 9.7), ylim=(23.7, -0.7))
        ax.title.set_fontsize(9)
        ax.spines[:].set_color(FAINT)
    figure.supxlabel("one item per row, one label per column: ■ present, ● absent, empty unknown", fontsize=9)
    return figure


def trained(loss: Any, eta: torch.Tensor) -> torch.Tensor:
    """The logits at which a loss comes to rest for each η: the root of η ℓ₊' + (1−η) ℓ₋', by bisection."""
    low, high = torch.full_like(eta, -15), torch.full_like(eta, 15)
    for _ in range(60):
        z = ((low + high) / 2).requires_grad_()
        (gradient,) = torch.autograd.grad((eta * loss.positive(z) + (1 - eta) * loss.negative(z)).sum(), z)
        z = z.detach()
        low, high = torch.where(gradient < 0, z, low), torch.where(gradient < 0, high, z)
    return z


def simulated(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """η of items and labels, and labels drawn from it."""
    g = torch.Generator().manual_seed(seed)
    eta = torch.sigmoid(torch.randn(6000, 6, generator=g, dtype=torch.float64) * 2 - 1.5)
    return eta, (torch.rand(eta.shape, generator=g, dtype=torch.float64) < eta).int()


def calibration() -> Any:
    """The same logits converted by σ and by the link."""
    eta, y = simulated()
    figure, axes = sheet(3, width=2.8, height=3.1)
    losses = {"focal": sy.losses.Focal(), "SPA": sy.losses.SPA(), "LDAM": sy.losses.LDAM(y.sum(0))}
    for ax, (name, loss) in zip(axes, losses.items(), strict=True):
        z = trained(loss, eta)
        ax.plot([0, 1], [0, 1], color=FRAME, lw=1)
        for how, p in (("σ", torch.sigmoid(z)), ("link", loss.probability(z))):
            error = sy.metrics.calibration_error(p, y)
            label = f"{how}: ACE {100 * error.ace:.1f} %"
            ax.plot(error.bins.confidence, error.bins.frequency, ls="", ms=4, label=label, **BY[how])
        ax.set(title=name, xlabel="predicted probability", xlim=(0, 1.02), ylim=(0, 1.02), aspect="equal")
        per_cent_axis(ax.yaxis)
        key(ax, loc="upper left")
    axes[0].set_ylabel("present, %")
    return figure


def prior() -> Any:
    """What another frequency does to a probability, and how EM finds it."""
    figure, (left, right) = sheet(2)
    eta = np.linspace(0.001, 0.999, 400)
    for i, to in enumerate((0.02, 0.1, 0.3, 0.6)):
        z = sy.calibrate.shift_prior(np.log(eta / (1 - eta))[:, None], 0.1, to)[:, 0]
        style = {**look(i), "ms": 4, "markevery": (10 * i, 60)}
        left.plot(eta, 1 / (1 + np.exp(-z)), label=f"frequency {100 * to:g} %", **style)
    left.set(title="η learned at frequency 10 %, for another", xlabel="η as learned", ylabel="η where it is used")
    key(left, loc="lower right")
    g = np.random.default_rng(0)
    truth = np.array([0.02, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6])
    y = g.random((4000, 7)) < truth
    seen = g.normal(2.0 * y, 1)
    odds = 0.1 / 0.9 * np.exp(2 * seen - 2)  # calibrated where the frequency is .1
    estimate = sy.calibrate.estimate_prior(odds / (1 + odds), np.full(7, 0.1))
    right.plot([0.01, 1], [0.01, 1], color=FRAME, lw=1)
    right.plot(truth, estimate, "o", color=ACCENT, ms=5)
    right.set(title="estimated without labels, by EM", xlabel="true frequency", xscale="log", xlim=(0.01, 1))
    right.set(ylabel="estimate", ylim=(0.01, 1))
    log_scale(right)
    right.xaxis.set_minor_formatter("")
    right.xaxis.set_major_formatter("{x:g}")
    return figure


def thresholds() -> Any:
    """Where each goal puts the cut."""
    eta, y = simulated(1)
    p, t = eta[:, :1], y[:, :1]
    grid = torch.linspace(0.01, 0.99, 197, dtype=torch.float64)
    scores = [sy.metrics.precision_recall_f1((p >= at).int(), t) for at in grid]
    figure, ax = sheet(1, width=6)
    for name, colour, line in zip(("precision", "recall", "f1"), (SOFT, FRAME, INK), LINES, strict=True):
        ax.plot(grid, [float(getattr(s, name)[0]) for s in scores], color=colour, ls=line, label=name)
    goals: list[tuple[str, dict[str, Any]]] = [
        ("best F1", {"goal": "f1"}),
        ("precision .9", {"goal": "precision", "level": 0.9}),
        ("recall .9", {"goal": "recall", "level": 0.9}),
        ("a miss costs 5 false alarms", {"goal": "cost", "cost_fp": 1.0, "cost_fn": 5.0}),
    ]
    for i, (name, goal) in enumerate(goals):
        at = float(sy.calibrate.thresholds(p, t, **goal)[0])
        ax.plot([at, at], [0, 1], lw=1.5, ms=5, markevery=[1], label=f"{name}: {at:.3f}".replace("0.", "."), **look(i))
    ax.set(title="decided present from this probability on", xlabel="threshold", xlim=(0, 1), ylim=(0, 1.02))
    key(ax, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def retrieval() -> Any:
    """A query is a product of probabilities, so they must be right together."""
    figure, (left, right) = sheet(2)
    grid = np.linspace(0, 1, 101)
    left.contour(grid, grid, grid[None, :] * (1 - grid[:, None]), 8, colors=FRAME, linewidths=0.7)
    eta, y = simulated(2)
    p = eta[:300].numpy()
    score = p[:, 0] * (1 - p[:, 1])
    best = np.argsort(-score)[:20]
    left.plot(p[:, 0], p[:, 1], ".", color=FRAME, ms=3)
    left.plot(p[best, 0], p[best, 1], "o", color=ACCENT, ms=4, label="the first 20 of 300")
    left.set(title='"dog & ~car": η(dog) · (1 − η(car))', xlabel="η of dog", ylabel="η of car")
    key(left, loc="upper right")
    loss = sy.losses.Focal()
    z = trained(loss, eta)
    few = slice(0, 1500)
    for how, p in (("σ", torch.sigmoid(z)), ("link", loss.probability(z))):
        search = sy.metrics.retrieval_map(p[few], y[few], max_terms=5)
        terms = sorted(search.by_terms)
        right.plot(terms, [100 * float(search.by_terms[k]) for k in terms], label=f"by {how}", **BY[how])
    right.set(title="mAP of all queries, focal loss", xlabel="terms in the query", ylabel="mAP, %", xticks=range(1, 6))
    key(right)
    return figure


PICTURES: tuple[Callable[[], Any], ...] = (
    links,
    unknown,
    plm,
    resampling,
    partial,
    calibration,
    prior,
    thresholds,
    retrieval,
)


def main() -> None:
    """Draw what was asked for."""
    names = [picture.__name__ for picture in PICTURES]
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("names", nargs="*", choices=[*names, []], help="by default all")
    ask.add_argument("--out", type=Path, default=OUT)
    ask.add_argument("--format", choices=("svg", "pdf", "png"), default="svg")
    asked = ask.parse_args()
    for picture in PICTURES:
        if not asked.names or picture.__name__ in asked.names:
            with plt.rc_context(STYLE):
                figure = picture()
                file = asked.out / f"concept-{picture.__name__}.{asked.format}"
                save_figure(figure, file)
                plt.close(figure)
            print(file)


if __name__ == "__main__":
    main()
