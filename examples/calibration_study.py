"""Do probabilities hold when training was rebalanced? A study on labels whose η is known.

    python examples/calibration_study.py calibration.svg

Every setting trains a model with one logit for each label and each of 120 values of η, spread uniformly over what the
loss can reach, on 1,000,000 drawn labels (10 labels of unequal frequency), until the gradient of the package's own
objective is zero. Its outputs are then read by σ and by `Link` (the derived link with masks, weights and sampling
undone) and held against 1,000,000 fresh labels: pooled calibration error (ACE, 15 bins). A last part moves the label
frequencies and estimates them without labels (EM). It prints a table and draws one picture. One CPU core: about half
a minute, 1 GB.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from steelyard.balance import ClassAware, PartialLabelMasking, Weighting
from steelyard.calibrate import Link, PriorReport, UncalibratedWarning, prior_report
from steelyard.labels import Labels
from steelyard.losses import BCE, SPA, DistributionBalanced, PartialAnnotation, WeightedLoss
from steelyard.losses.table import TABLE
from steelyard.metrics import CalibrationErrors, calibration_error
from steelyard.objective import Objective

N_LABELS, GRID, BAND, ROUNDS = 10, 120, 0.8, 32


class World(NamedTuple):
    """Items whose label c has probability eta[i, c] = levels[cell[i, c]]."""

    levels: Tensor
    cell: Tensor
    eta: Tensor
    targets: Tensor
    fresh: Tensor

    @property
    def counts(self) -> Tensor:
        """Return the positives n_c of each label."""
        return (self.targets == 1).sum(0)


class Row(NamedTuple):
    """A line of the table: the setting, and the calibration error by σ and by the link."""

    name: str
    sigmoid: CalibrationErrors
    link: CalibrationErrors


class Shift(NamedTuple):
    """Priors of training and of deployment, and what EM makes of the link's and of σ's probabilities."""

    train: Tensor
    deployed: Tensor
    by_link: PriorReport
    by_sigmoid: PriorReport


class PositiveWeight(Weighting):
    """Positives of class c weigh w_c, negatives 1."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.n_labels = len(weight)
        self.register_buffer("extra", weight - 1)
        self.extra: Tensor

    def weights(self, present: Tensor) -> Tensor:
        return 1 + present * self.extra.to(present.dtype)


def world(n_items: int, reach: tuple[float, float], seed: int = 0) -> World:
    """Draw items; label c has most of its cells in the c-th tenth of the range, and all labels together fill it evenly.

    So labels differ in frequency from some .1 to .9 of the range. They are independent given the item.
    """
    rng = np.random.default_rng(seed)
    low, high = reach
    levels = low + (high - low) * (np.arange(GRID) + 0.5) / GRID
    wide = rng.integers(0, GRID, (n_items, N_LABELS))
    band = rng.integers(0, GRID // N_LABELS, (n_items, N_LABELS)) + np.arange(N_LABELS) * (GRID // N_LABELS)
    cell = np.where(rng.random((n_items, N_LABELS)) < BAND, band, wide)
    eta = levels[cell]
    draws = [(rng.random(eta.shape) < eta).astype(np.int8) for _ in range(2)]
    return World(*(torch.from_numpy(x) for x in (levels, cell, eta, *draws)))


def stationary(value: Callable[[Tensor], Tensor], shape: tuple[int, int], cell: Tensor | None = None) -> Tensor:
    """Return the table of logits at which the gradient of `value` is zero, by bisection of every entry at once.

    `value` takes the logits of the items, read from the table at `cell` (the table itself if None).
    """
    low, high = torch.full(shape, -14.0), torch.full(shape, 14.0)
    columns = torch.arange(shape[1])
    for _ in range(ROUNDS):
        table = ((low + high) / 2).requires_grad_()
        value(table if cell is None else table[cell, columns]).backward()
        assert table.grad is not None
        left = table.grad < 0
        middle = table.detach()
        low, high = torch.where(left, middle, low), torch.where(left, high, middle)
    return (low + high) / 2


def trained(objective: Objective, data: World) -> Tensor:
    """Return the logits (N, L) of a model trained by `objective` on the labels of `data`."""
    index = torch.arange(len(data.cell))
    objective.start_epoch(1, 1)
    table = stationary(lambda z: objective(z, data.targets, index).total, (GRID, N_LABELS), data.cell)
    return table[data.cell, torch.arange(N_LABELS)]


def judged(name: str, logits: Tensor, eta: Tensor, data: World) -> Row:
    """Hold σ of the logits and η of the link against fresh labels."""
    return Row(name, *(calibration_error(p, data.fresh) for p in (torch.sigmoid(logits), eta)))


def by_loss(n_items: int) -> list[Row]:
    """Every loss with a link, as the table of losses makes it, over the η that it reaches."""
    rows = []
    for row in TABLE:
        if row.name == "Two-way":
            continue
        probe = row.make(torch.full((N_LABELS,), 9), 10, "mean")
        loss = probe.loss if isinstance(probe, WeightedLoss) else probe
        low, high = loss.eta_range  # type: ignore[misc]
        data = world(n_items if high == 1 else 2 * n_items, (low, high))  # a bin that is cut off is to be full, too
        objective = Objective(row.make(data.counts, len(data.targets), "mean"))
        logits = trained(objective, data)
        rows.append(judged(row.name, logits, Link(objective)(logits), data))
    return rows


def by_balance(n_items: int) -> list[Row]:
    """PLM's masks, positive weights 1..100, a loss with both, and paper 3's α and β with half the labels unknown."""
    data = world(n_items, (0.0, 1.0))
    ratio = data.counts / (n_items - data.counts)
    masks = [
        PartialLabelMasking(data.counts, n_items, rate=0.0, initial=ratio * torch.logspace(-s, s, N_LABELS), seed=7)
        for s in (1.3, 0.5)
    ]
    weights = PositiveWeight(torch.logspace(0, 2, N_LABELS, dtype=torch.float64))
    settings = {
        "PLM, ratios × 1/20..20": Objective(BCE(), masking=masks[0]),
        "positives × 1..100": Objective(BCE(), weighting=weights),
        "SPA, PLM, positives × 1..100": Objective(SPA(), masking=masks[1], weighting=weights),
    }
    rows = []
    for name, objective in settings.items():
        logits = trained(objective, data)
        rows.append(judged(name, logits, Link(objective)(logits), data))
    loss = PartialAnnotation(q=0.0)
    hidden = torch.from_numpy(np.random.default_rng(5).random(data.targets.shape) < 0.5)
    targets = torch.where(hidden, -1, data.targets)
    no_pseudo = torch.zeros(targets.shape)
    table = stationary(lambda z: loss(z, targets, no_pseudo, 1, 1), (GRID, N_LABELS), data.cell)
    logits = table[data.cell, torch.arange(N_LABELS)]
    return [*rows, judged("partial labels' α, β", logits, Link(loss)(logits), data)]


def by_sampling(n_items: int, n_kinds: int = 400, seed: int = 3) -> Row:
    """Class-aware sampling, undone by its fixed point: a logit for each of some kinds of items.

    The correction depends on all labels of an item, so the model needs its η as a whole: items come in kinds, η of a
    kind spread over (0, 1) by label (η^k of a uniform number, k the greater the rarer the label).
    """
    rng = np.random.default_rng(seed)
    eta = rng.random((n_kinds, N_LABELS)) ** np.geomspace(0.7, 30, N_LABELS)
    kind = np.arange(n_items) % n_kinds
    targets, fresh = ((rng.random((n_items, N_LABELS)) < eta[kind]).astype(np.int8) for _ in range(2))
    labels = Labels(targets)
    sampler = ClassAware(labels, visits=n_items // N_LABELS)
    drawn = np.fromiter(sampler, np.int64, len(sampler))
    seen = np.stack([np.bincount(kind[drawn], targets[drawn, c], n_kinds) for c in range(N_LABELS)], 1)
    frequency = torch.from_numpy(seen / np.bincount(kind[drawn], minlength=n_kinds)[:, None])
    objective = Objective(BCE())
    table = stationary(lambda z: objective(z, frequency).total, (n_kinds, N_LABELS))
    corrected = Link(objective, class_aware=labels.counts)(table)
    errors = (calibration_error(p[kind], torch.from_numpy(fresh)) for p in (torch.sigmoid(table), corrected))
    return Row("class-aware sampling", *errors)


def by_prior(n_items: int, seed: int = 11) -> Shift:
    """Move the label frequencies, and estimate the new ones from DB-Focal outputs, read by the link and by σ.

    An item shows one of 400 scores to each label, normal about 2 where it is present and about 0 where it is absent.
    The model is what DB-Focal makes of unlimited training data.
    """
    rng = np.random.default_rng(seed)
    train = torch.logspace(-2, math.log10(0.5), N_LABELS, dtype=torch.float64)
    deployed = torch.tensor([4.0, 0.3, 2, 0.5, 3, 0.2, 2, 0.5, 1.5, 0.4], dtype=torch.float64) * train
    score = torch.linspace(-5, 7, 400, dtype=torch.float64)
    present, absent = (torch.softmax(-((score - m) ** 2) / 2, 0) for m in (2.0, 0.0))
    eta = train * present[:, None] / (train * present[:, None] + (1 - train) * absent[:, None])
    known = 1_000_000
    loss = DistributionBalanced(train * known, known, gamma=2.0).loss  # without its item weights: class-wise
    table = stationary(lambda z: loss(z, eta), (len(score), N_LABELS))
    y = rng.random((n_items, N_LABELS)) < deployed.numpy()
    shown = np.where(y, *(rng.choice(len(score), y.shape, p=p.numpy() / p.sum().item()) for p in (present, absent)))
    logits = table[torch.from_numpy(shown), torch.arange(N_LABELS)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncalibratedWarning)  # which is what reading by σ earns
        reports = [prior_report(p, train) for p in (Link(loss)(logits), torch.sigmoid(logits))]
    return Shift(train, deployed, *reports)


def study(n_items: int) -> tuple[list[Row], Shift]:
    """Run all of it."""
    return [*by_loss(n_items), *by_balance(n_items), by_sampling(4 * n_items)], by_prior(5 * n_items)


def show(rows: list[Row], shift: Shift) -> None:
    """Print the tables."""
    print(f"{'pooled ACE, per cent':32}{'by σ':>8}{'by link':>9}{'MCE σ':>8}{'MCE link':>10}{'smallest':>11}")
    for row in rows:
        errors = [100 * x for x in (row.sigmoid.ace, row.link.ace, row.sigmoid.mce, row.link.mce)]
        smallest = int(row.link.bins.counts[row.link.bins.counts > 0].min())
        print(f"{row.name:32}{errors[0]:8.1f}{errors[1]:9.1f}{errors[2]:8.1f}{errors[3]:10.1f}{smallest:11,}")
    print(f"\n{'prior: training':>16}{'deployed':>11}{'EM by link':>12}{'z':>7}{'EM by σ':>11}")
    report = shift.by_link
    z = (report.prior - shift.deployed) / report.standard_error
    for columns in zip(shift.train, shift.deployed, report.prior, z, shift.by_sigmoid.prior, strict=True):
        print("{:16.4f}{:11.4f}{:12.4f}{:7.2f}{:11.4f}".format(*(float(x) for x in columns)))


def draw(rows: list[Row], shift: Shift, path: str) -> None:
    """Draw a reliability diagram for each setting, and the estimated priors."""
    from steelyard.report.canvas import ACCENT, FRAME, OTHER, drawing, save_figure

    across = 6
    down = -(-(len(rows) + 1) // across)
    with drawing(2.5 * across, 2.65 * down, nrows=down, ncols=across) as (figure, axes):
        _panels(axes.ravel(), rows, shift, {"σ": (OTHER, "s"), "link": (ACCENT, "o")}, FRAME)
        figure.supxlabel("mean probability in the bin", fontsize=10)
        figure.supylabel("frequency of the label in the bin, %", fontsize=10)
    save_figure(figure, path)


def _panels(panels: Any, rows: list[Row], shift: Shift, looks: dict[str, tuple[str, str]], frame: str) -> None:
    from steelyard.report.canvas import log_scale, per_cent_axis

    for ax, row in zip(panels, rows, strict=False):
        ax.plot([0, 1], [0, 1], color=frame, lw=1, zorder=0)
        for name, error in (("σ", row.sigmoid), ("link", row.link)):
            colour, marker = looks[name]
            label = f"{name}: ACE {100 * error.ace:.1f} %"
            ax.plot(error.bins.confidence, error.bins.frequency, marker, color=colour, ms=4, label=label)
        ax.set(title=row.name, xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
        per_cent_axis(ax.yaxis)
        ax.set_aspect("equal")
        ax.title.set_fontsize(9)
        ax.legend(fontsize=7, frameon=False, loc="upper left", handletextpad=0.1, borderpad=0.1)
    last = panels[len(rows)]
    last.plot([1e-3, 1], [1e-3, 1], color=frame, lw=1, zorder=0)
    for report, name in ((shift.by_sigmoid, "σ"), (shift.by_link, "link")):
        colour, marker = looks[name]
        last.plot(shift.deployed, report.prior, marker, color=colour, ms=4, label=f"EM on {name}")
    last.set(title="prior estimated by EM / true", xscale="log", xlim=(1e-3, 1), ylim=(1e-3, 1.3))
    log_scale(last)
    last.xaxis.set_minor_formatter("")
    last.xaxis.set_major_formatter("{x:g}")
    last.title.set_fontsize(9)
    last.set_aspect("equal")
    last.legend(fontsize=7, frameon=False, loc="lower right", handletextpad=0.1)
    for ax in panels:
        ax.tick_params(labelsize=8)
    for ax in panels[len(rows) + 1 :]:
        ax.set_visible(False)


def main() -> None:
    """Run the study and draw its picture."""
    parser = argparse.ArgumentParser(description="Calibration on labels whose probabilities are known.")
    parser.add_argument("picture", help="where to write the picture (.png, .svg, .pdf)")
    parser.add_argument("--items", type=int, default=100_000, help="items of each setting (100,000)")
    arguments = parser.parse_args()
    rows, shift = study(arguments.items)
    show(rows, shift)
    draw(rows, shift, arguments.picture)


if __name__ == "__main__":
    main()
