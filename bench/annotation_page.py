"""The pictures and tables of docs/annotation/README.md, made from audit.json and next.json beside it.

python bench/annotation_page.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from steelyard.report.canvas import ACCENT, FAINT, OTHER, SOFT, STYLE, save_figure

HERE = Path(__file__).resolve().parent.parent / "docs" / "annotation"
SETS = {"yeast": "yeast", "scene": "scene", "bibtex": "bibtex", "voc": "VOC features", "digits": "digit pairs"}
LOOKS = {"next": (ACCENT, "o"), "uncertainty": (OTHER, "s"), "random": (SOFT, "^")}


def draw_audit(content: dict[str, Any]) -> None:
    """Draw the average precision of audit and of cleanlab in every setting, and VOC 2007's missing persons."""
    figure, axes = plt.subplots(
        1, 3, figsize=(12, 3.9), layout="constrained", gridspec_kw={"width_ratios": [1, 1, 1.1]}
    )
    for axis, share in zip(axes, ("0", "0.7"), strict=False):
        keys = [k for k in content["rows"] if k.endswith(f" {share}")]
        for place, key in enumerate(keys):
            row = content["rows"][key]
            axis.plot([row["cleanlab"], row["audit"]], [-place] * 2, color=FAINT, lw=2, zorder=1)
            axis.scatter(
                *(row["cleanlab"], -place),
                color=OTHER,
                marker="s",
                zorder=2,
                label="cleanlab, its best score" if not place else None,
            )
            axis.scatter(row["audit"], -place, color=ACCENT, zorder=2, label="audit" if not place else None)
        axis.set_yticks([-k for k in range(len(keys))], [_name(k) for k in keys])
        axis.set_xlabel("average precision of planted errors")
        axis.set_title("all labels known" if share == "0" else "70 % of the labels unknown", loc="left", fontsize=10)
        axis.set_xlim(0, 1)
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, fontsize=9, loc="outside upper left", ncols=2)
    real = content["voc2007"]
    ranks = list(range(50, 2001, 50))
    axes[2].plot(ranks, real["found_by_rank"], color=ACCENT)
    axes[2].plot(ranks, real["found_by_rank_cleanlab"], color=OTHER, ls="--")
    axes[2].axhline(real["missing"], color=FAINT, lw=1)
    axes[2].text(2000, real["missing"] - 4, f"all {real['missing']}", ha="right", va="top", fontsize=9)
    axes[2].set_xlabel("cells looked at, of 99,553")
    axes[2].set_ylabel("missing persons found")
    axes[2].set_ylim(0, 340)
    axes[2].set_title("VOC 2007's missing persons", loc="left", fontsize=10)
    _save(figure, "audit.svg")


def draw_next(content: dict[str, Any]) -> None:
    """Draw mAP against the share of cells that are annotated."""
    rows = content["rows"]
    figure, axes = plt.subplots(1, len(rows), figsize=(2.6 * len(rows), 3), layout="constrained")
    for axis, (name, row) in zip(axes, rows.items(), strict=True):
        for method, (colour, mark) in LOOKS.items():
            share = [10 + 5 * k for k in range(len(row[method]["curve"]))]
            axis.plot(share, [100 * v for v in row[method]["curve"]], color=colour, marker=mark, ms=3, label=method)
        axis.set_title(SETS[name], loc="left", fontsize=10)
        axis.set_xlabel("% of cells annotated")
    axes[0].set_ylabel("test mAP")
    axes[0].legend(frameon=False, fontsize=8)
    _save(figure, "next.svg")


def _save(figure: Any, name: str) -> None:
    save_figure(figure, HERE / name)
    plt.close(figure)


def _name(key: str) -> str:
    name, kind, _ = key.split()
    return f"{SETS[name]}, {kind}"


def audit_tables(content: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the tables of audit."""
    bars = content["bars"]
    yield "![Average precision of planted errors, and missing persons found](audit.svg)"
    yield ""
    yield from (
        "| set, errors | audit | cleanlab | its best score | with 70 % unknown | cleanlab | seeds |",
        "|---|---|---|---|---|---|---|",
    )
    for key, row in content["rows"].items():
        other = content["rows"].get(key.removesuffix(" 0") + " 0.7")
        if key.endswith(" 0") and other:
            cells = [f"{r[m]:.3f}" for r in (row, other) for m in ("audit", "cleanlab")]
            cells.insert(2, _plain(row["by"]))
            seeds = sorted({row["seeds"], other["seeds"]})
            yield f"| {_name(key)} | {' | '.join(cells)} | {' and '.join(map(str, seeds))} |"
    yield ""
    yield (
        f"Audit is above cleanlab in {bars['settings_above_cleanlab']} of 10 settings, and with 70 % of the labels "
        f"unknown in {bars['settings_above_cleanlab_unknown']} of 10 (average precision, mean over seeds)."
    )
    yield ""
    yield from (
        "| set, errors, all labels known | missing: planted | estimated | wrongly present: planted | estimated "
        "| η there | η of all absent |",
        "|---|---|---|---|---|---|---|",
    )
    for key, row in content["rows"].items():
        if key.endswith(" 0"):
            counts = [f"{row[side][value]:.0f}" for side in ("missing", "added") for value in ("planted", "estimated")]
            levels = [f"{row['added'][value]:.3f}" for value in ("probability", "probability_of_all")]
            yield f"| {_name(key)} | {' | '.join(counts + levels)} |"
    yield ""
    yield (
        "η is the mean out-of-fold probability at the cells that were made wrongly present, and at all truly absent "
        "cells of the same labels: where the two differ, errors depend on the item."
    )
    yield ""
    real = content["voc2007"]
    best = real["cleanlab_best"]
    estimate = real["estimated_missing_persons"]
    yield (
        f"**VOC 2007.** {real['missing']} persons are missing. Average precision {_precision(real, 'audit'):.3f}; "
        f"cleanlab's best score here ({_plain(best)}) has {_precision(real, best):.3f}. Of the first 322 "
        f"cells of the list {real['audit']['found_among_the_first_322']} are among them, against "
        f"{real[best]['found_among_the_first_322']}. Estimated missing persons: {estimate['estimate']:.0f} "
        f"({estimate['low']:.0f} to {estimate['high']:.0f}); of all other labels together "
        f"{real['estimated_missing_of_others']:.0f}, of which VOC knows none."
    )
    yield ""
    rows = real["missing_share_by_probability"]
    yield "| tenth of the photographs, by the probability of a person | " + " | ".join(map(str, range(1, 11))) + " |"
    yield "|---" * (1 + len(rows)) + "|"
    yield "| mean probability | " + " | ".join(f"{row['probability']:.2f}" for row in rows) + " |"
    yield "| persons | " + " | ".join(str(row["persons"]) for row in rows) + " |"
    yield "| of these missing, % | " + " | ".join(f"{100 * row['missing']:.0f}" for row in rows) + " |"


def _plain(name: str) -> str:
    return name.replace("_", "-")


def _precision(real: dict[str, Any], name: str) -> float:
    return float(real[name]["average_precision"])


def next_tables(content: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the table of next."""
    yield "![Test mAP against annotated cells](next.svg)"
    yield ""
    yield from (
        "| set | next | uncertainty | random | next over random | uncertainty over random | seeds |",
        "|---|---|---|---|---|---|---|",
    )
    for name, row in content["rows"].items():
        areas = " | ".join(f"{row[m]['area']:.2f}" for m in LOOKS)
        gains = " | ".join(f"{row[m]['over_random']:+.2f} ± {row[m]['error']:.2f}" for m in ("next", "uncertainty"))
        yield f"| {SETS[name]} | {areas} | {gains} | {row['seeds']} |"
    yield ""
    bars = content["bars"]
    yield (
        f"Area under test mAP (in per cent) against cells; ± is one standard error over seeds. Next is above random by "
        f"two standard errors on {bars['sets_above_random']} of 5 sets, below by two on {bars['sets_below_random']}."
    )


def main() -> None:
    """Draw, and write the tables into the page."""
    audit, nexts = (json.loads((HERE / f"{name}.json").read_text()) for name in ("audit", "next"))
    with plt.rc_context(STYLE):
        draw_audit(audit)
        draw_next(nexts)
    page = HERE / "README.md"
    text = page.read_text(encoding="utf-8")
    for name, lines in (("audit", audit_tables(audit)), ("next", next_tables(nexts))):
        begin, end = f"<!-- {name}: python bench/annotation_page.py -->\n", f"<!-- /{name} -->\n"
        before, rest = text.split(begin)
        text = before + begin + "\n".join(lines) + "\n" + end + rest.split(end)[1]
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
