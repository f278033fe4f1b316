"""The SPA paper's figures and its table of losses: what is computed for them, and how they are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.losses import BCE, SPA, Asymmetric, Focal, PairLoss
from steelyard.metrics.calibration import Bins
from steelyard.report.canvas import FRAME, MARKERS, SERIES, drawing, key, legend
from steelyard.report.contact_sheet import thumbnail
from steelyard.report.reliability import reliability_diagram
from steelyard.report.retrieval import RetrievalCurve, retrieval_curves
from steelyard_papers.reproduction import Job
from steelyard_papers.result import Result, RowResult, RunResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOSSES: dict[str, PairLoss] = {
    "BCE": BCE(),
    "focal": Focal(2.0),
    "ASY": Asymmetric(0.0, 4.0, 0.05, detach_focus=False),
    "SPA": SPA(),
}
"""The losses of the paper that give each label a probability, with its constants."""


class LinkFacts(NamedTuple):
    """Properties of a loss's link over logits from −30 to 30."""

    rises: bool
    """True if η rises with z everywhere: then each z has its own η."""
    least: float
    most: float
    """Between which η lies."""
    away: float
    """The largest |η − σ(z)|: the error of a perfect model whose logits are converted by σ."""


def link_facts(loss: PairLoss) -> LinkFacts:
    """Return what the derived link of a loss does."""
    z = torch.linspace(-30, 30, 60_001, dtype=torch.float64)
    odds, eta = (f(z.unsqueeze(1)).squeeze(1) for f in (loss.log_odds, loss.probability))
    rises = bool((odds.diff() > 0).all())
    return LinkFacts(rises, float(eta.min()), float(eta.max()), float((eta - torch.sigmoid(z)).abs().max()))


def losses_table(job: Job) -> Result:
    """Table 1: whether a probability can be read off the minimiser of a loss, and how far σ is from it."""
    columns = ("one to one", "least η", "largest η", "η away from σ(z), at most")
    rows = []
    for name, loss in {**LOSSES, "ASY, detached": Asymmetric(0.0, 4.0, 0.05)}.items():
        facts = link_facts(loss)
        values = (float(facts.rises), 100 * facts.least, 100 * facts.most, 100 * facts.away)
        rows.append(RowResult(name, (RunResult(0, dict(zip(columns, values, strict=True))),)))
    rows.append(RowResult("TWL", (RunResult(0, dict.fromkeys(columns)),)))
    notes = (
        "one to one: 1 where η rises with z everywhere, so that the minimiser of the risk gives it away, else 0",
        "ASY, detached: as it is trained in Tables 3 and 4, its focusing weight taken as a constant",
        "TWL has no probability of a label",
    )
    return Result(columns, tuple(rows), notes=notes, seeds=(0,))


def losses_figure(losses: Mapping[str, PairLoss]) -> Figure:
    """Draw ℓ₊, ℓ₋ and the derived link η of each loss against the logit, the link beside σ."""
    z = torch.linspace(-6, 6, 481, dtype=torch.float64).unsqueeze(1)
    with drawing(11, 3.9, ncols=3) as (figure, row):
        row[2].plot(z.squeeze(1), torch.sigmoid(z).squeeze(1), color=FRAME, lw=3, alpha=0.5, label="σ(z)")
        for i, (name, loss) in enumerate(losses.items()):
            for axes, values in zip(row, (loss.positive(z), loss.negative(z), loss.probability(z)), strict=True):
                axes.plot(z.squeeze(1), values.squeeze(1), color=SERIES[i], lw=1.6, label=name)
        for axes, quantity in zip(row, ("ℓ₊, present", "ℓ₋, absent", "η, the derived link"), strict=True):
            axes.set_xlabel("logit z")
            axes.set_ylabel(quantity)
            axes.grid(True)
        for axes in row[:2]:
            axes.set_ylim(0, 6)
        key(figure, row[2], columns=len(losses) + 1)
    return figure


def reliability_figure(numbers: Mapping[str, Any]) -> Figure:
    """Draw the reliability of several runs: by name, edges, counts, confidence and frequency of bins."""
    readings = []
    for name, said in numbers.items():
        edges, counts, confidence, frequency = (
            np.array([np.nan if x is None else x for x in said[part]], np.float64)
            for part in ("edges", "counts", "confidence", "frequency")
        )
        readings.append((f"{name}: ACE {said['ace']:.1f}", Bins(edges, counts, confidence, frequency)))
    return reliability_diagram(readings)


def retrieval_figure(numbers: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw mAP against the number of terms of a query: by name, mAP in per cent by terms."""
    curves = {}
    for name, by_terms in numbers.items():
        shares = {int(k): value / 100 for k, value in by_terms.items()}
        curves[name] = RetrievalCurve(shares, {k: (value, value) for k, value in shares.items()})
    return retrieval_curves(curves)


DRAWN = ("BCE", "focal by φ", "ASY by φ", "SPA", "SPA + LPR")
"""The rows whose way is drawn: each read by its own link."""


def epochs_figure(result: Result) -> Figure:
    """Draw ACE against mAP@y, one line per row from its first epoch to its last, a ring at the chosen epochs."""
    numbers = result.figure or {}
    rows = {row.name: row for row in result.rows}
    shown = [name for name in DRAWN if name in rows] or list(rows)[: len(SERIES)]
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


def best_items(
    probabilities: NDArray[Any], wanted: Sequence[int], unwanted: Sequence[int], k: int
) -> NDArray[np.int64]:
    """Return the k items of the largest Π_P η Π_N (1−η) among probabilities (N, L), best first, ties by position."""
    eta = probabilities.astype(np.float64)
    with np.errstate(divide="ignore"):
        score = np.log(eta[:, list(wanted)]).sum(1) + np.log1p(-eta[:, list(unwanted)]).sum(1)
    return np.argsort(-score, kind="stable")[:k].astype(np.int64)


_RIGHT, _WRONG = "#2f8a57", "#b93a5b"
_SIDE = 88
"""Pixels of a picture, at most."""


def found_figure(queries: Sequence[Mapping[str, Any]], files: Mapping[str, str]) -> Figure:
    """Draw the images that runs find for queries, one row per run, framed green where right and red where wrong.

    Args:
        queries: each with its `text` and, by run, the found ids and which are right.
        files: of images, by id; one that is missing is shown by its id.
    """
    rows = [(query["text"], run, hits) for query in queries for run, hits in query["runs"].items()]
    across = max(len(hits["ids"]) for _, _, hits in rows)
    width, height = 1.05 * across + 1.2, 0.95 * len(rows) + 0.25 * len(queries)
    with drawing(width, height, nrows=len(rows), ncols=across) as (figure, grid):
        for i, (text, run, hits) in enumerate(rows):
            first = i == 0 or rows[i - 1][0] != text
            for j, axes in enumerate(grid[i]):
                axes.set_xticks([])
                axes.set_yticks([])
                if j >= len(hits["ids"]):
                    axes.set_visible(False)
                    continue
                name = hits["ids"][j]
                picture = thumbnail(files[name], _SIDE) if name in files else None
                if picture is not None:
                    axes.imshow(np.asarray(picture.convert("RGB")))
                    axes.set_adjustable("datalim")  # frames of one size: a tall picture leaves the title above it free
                else:
                    axes.text(0.5, 0.5, name.replace("_", "\n"), ha="center", va="center", transform=axes.transAxes)
                for spine in axes.spines.values():
                    spine.set(visible=True, color=_RIGHT if hits["right"][j] else _WRONG, linewidth=2.5)
            if first:
                grid[i][0].set_title(text)
            grid[i][0].set_ylabel(f"{run}\n{sum(hits['right'])} right", rotation=0, ha="right", va="center")
        figure.supxlabel("green: right, red: wrong")
    return figure
