"""The tables and the picture of docs/benchmarks/million-labels.md, made from files in bench/figures.

python bench/million_page.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from steelyard.report.canvas import drawing, legend, log_scale, look, save_figure

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "benchmarks" / "million-labels.md"


def figures(name: str) -> Any:
    return json.loads((HERE / "figures" / f"{name}.json").read_text(encoding="utf-8"))


def table(head: str, rows: Iterator[tuple[Any, ...]]) -> Iterator[str]:
    yield f"| {head} |"
    yield "|---" * (head.count("|") + 1) + "|"
    yield from (f"| {' | '.join(map(str, row))} |" for row in rows)


def size(row: dict[str, Any]) -> str:
    return f"{row['items']:,} × {row['labels']:,}"


def draw() -> None:
    """Draw time and memory of a step against the number of labels."""
    rows = figures("million_curves")["rows"]
    with drawing(9.0, 3.4, ncols=2) as (figure, axes):
        for axis, unit, title in zip(axes, ("ms", "gb"), ("milliseconds a step", "gigabytes a step"), strict=True):
            for i, (kind, name) in enumerate((("block", "BlockHead"), ("plain", "linear layer"))):
                there = [row for row in rows if f"{kind}_{unit}" in row]
                axis.plot(
                    [r["labels"] for r in there], [r[f"{kind}_{unit}"] for r in there], label=name, ms=4, **look(i)
                )
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter("{x:,.0f}")
            log_scale(axis)
            axis.set_xlabel("labels")
            axis.set_ylabel(title)
        legend(axes[0])
        save_figure(figure, PAGE.with_suffix(".svg"))


def head() -> Iterator[str]:
    """Yield what a step takes beside its products, by optimizer and by loss."""
    content = figures("block_head")
    yield f"{content['device']}, torch {content['torch']}, commit {content['commit']}."
    yield ""
    yield from table(
        "items × labels | products alone, ms | step, ms | share | step, GB | all, GiB",
        (
            (
                size(row), f"{row['products_ms']:.1f}", f"{row['step_ms']:.1f}",
                f"{row['share']:.0%} ({min(row['shares']):.0%} to {max(row['shares']):.0%})",
                f"{row['peak_gb']:.2f}", f"{row['total_gib']:.1f}",
            )
            for row in content["sizes"]
        ),
    )  # fmt: skip
    yield ""
    yield from table(
        "optimizer, 1,024 × 10⁶ | ms | SGD, rounding to nearest, ms | ratio",
        (
            (name, f"{row['ms']:.1f}", f"{row['sgd_ms']:.1f}", f"{row['ratio']:.2f}")
            for name, row in content["optimizers"].items()
        ),
    )
    yield ""
    ratios = ", ".join(f"{name} {row['ratio']:.2f}" for name, row in content["losses"].items())
    yield f"Losses, 1,024 × 10⁶, time over BCE's: {ratios}."


def plain() -> Iterator[str]:
    """Yield steps beside those of a linear layer."""
    rows = figures("block_head")["plain"]
    yield from table(
        "items × labels | blocks, ms | plain, ms | ratio | without the gradient of features | blocks, GB | plain, GB",
        (
            (
                size(row), f"{row['block_ms']:.2f}", f"{row['plain_ms']:.2f}", f"{row['ratio']:.2f}",
                f"{row['weights_ratio']:.2f}" if "weights_ratio" in row else "",
                f"{row['block_gb']:.2f}", f"{row['plain_gb']:.2f}",
            )
            for row in rows
        ),
    )  # fmt: skip


def graphs() -> Iterator[str]:
    """Yield steps of few labels without the host."""
    yield from table(
        "items × labels | blocks, ms | plain, ms | ratio | blocks as a graph, ms | plain as a graph, ms | ratio",
        (
            (
                size(row), *(f"{row[name]:.2f}" for name in ("ms", "plain_ms", "ratio")),
                *(f"{row[name]:.2f}" for name in ("graph_ms", "graph_plain_ms", "graphs")),
            )
            for row in figures("block_variants")["small"]
        ),
    )  # fmt: skip


def curves() -> Iterator[str]:
    """Yield time and memory against the number of labels."""
    yield "![Time and memory of a step against the number of labels](million-labels.svg)"
    yield ""
    yield from table(
        "labels | blocks, ms | plain, ms | blocks, GB | plain, GB",
        (
            (f"{row['labels']:,}", *(f"{row[k]:.2f}" if k in row else "" for k in _CURVES))
            for row in figures("million_curves")["rows"]
        ),
    )


_CURVES = ("block_ms", "plain_ms", "block_gb", "plain_gb")


def equal() -> Iterator[str]:
    """Yield how far the head is from the dense head on real tables."""
    rows = figures("block_evidence")["rows"]
    off, points = max(row["off"] for row in rows), max(abs(row["mAP"] - row["dense_mAP"]) for row in rows)
    sets, losses = (", ".join(dict.fromkeys(row[name] for row in rows)) for name in ("set", "objective"))
    yield (
        f"On {sets}, with AdamW and with momentum, and with {losses} ({len(rows)} runs, same seeds and steps, CPU), "
        f"test logits differ from the dense head's by at most {off:.0e} of their spread, and mAP by at most "
        f"{100 * points:.3f} points."
    )


def peers() -> Iterator[str]:
    """Yield the head beside other libraries on a CPU."""
    content = figures("million_peers")
    yield (
        f"{content['items']:,} items × {content['labels']:,} labels, {content['features']} features, one CPU thread; "
        f"{content['epochs']} epochs of batches of {content['batch']} (napkinXC: its defaults)."
    )
    yield ""
    yield from table(
        "method | fit, s | 1,000 items, s | GB | P@1 | P@5 | of the true 20 | distance from η | ACE",
        (
            (
                name, f"{row['fit_seconds']:.0f}", f"{row['predict_seconds']:.2f}", f"{row['gb']:.2f}",
                *(f"{row[key]:.3f}" for key in ("P@1", "P@5", "true@20", "off", "ace")),
            )
            for name, row in content["rows"].items()
        ),
    )  # fmt: skip


def known() -> Iterator[str]:
    """Yield how near the head comes to probabilities that are known."""
    content = figures("million")
    fit = content["fit"]
    yield (
        f"`python bench/million.py --labels {content['labels']} --items {content['items']} --epochs "
        f"{content['epochs']} --device {content['device']}`: {content['features']} features; training took "
        f"{fit['seconds']:.0f} s, the start at the prior {fit['prior_seconds']:.1f} s."
    )
    yield ""
    tops, shared = content["top"], content["recall_of_true_top"]
    yield from table(
        "k | P@k | P@k of the true η | share of the true first k",
        (
            (k, f"{tops['model']['precision'][k]:.3f}", f"{tops['truth']['precision'][k]:.3f}", f"{shared[k]:.3f}")
            for k in shared
        ),
    )
    yield ""
    yield from table(
        "positives in training | labels | mean η | ACE | with lines by band | distance from η | with lines by band",
        (
            (
                " to ".join(f"{n:,}" for n in dict.fromkeys(row["positives"])), f"{row['labels']:,}",
                f"{row['mean_eta']:.1e}",
                *(f"{row[key]:.1e}" for key in ("ace_plain", "ace_by_band", "off_plain", "off_by_band")),
            )
            for row in content["bands"]
        ),
    )  # fmt: skip


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    part.__name__: part for part in (head, plain, graphs, curves, equal, known, peers)
}


def main() -> None:
    """Draw, and write the tables into the page."""
    draw()
    text = PAGE.read_text(encoding="utf-8")
    for name, lines in PARTS.items():
        begin, end = f"<!-- {name}: python bench/million_page.py -->\n", f"<!-- /{name} -->\n"
        before, rest = text.split(begin)
        text = before + begin + "\n".join(lines()) + "\n" + end + rest.split(end)[1]
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
