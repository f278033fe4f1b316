"""The pages of training runs: whole, safe, self-contained, and drawn from the right numbers."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgba
from PIL import Image
from sklearn.metrics import average_precision_score
from sklearn.metrics import precision_recall_curve as reference_curve

from steelyard.metrics import Evaluator, calibration_error
from steelyard.metrics.calibration import Bins
from steelyard.report import page
from steelyard.report import run_page as run_page_module
from steelyard.report.canvas import OWN, SERIES, SIGMOID, by_night, look, short, to_svg
from steelyard.report.comparison import ComparedRun, write_comparison_page
from steelyard.report.contact_sheet import SheetItem, write_sheet
from steelyard.report.evaluated import Evaluated
from steelyard.report.headline import compared, headline, percent, rare
from steelyard.report.history import drawable, history_curves, ratio_curves, series, spread
from steelyard.report.page import Eta, Share
from steelyard.report.plots import label_bars, label_points, label_trend
from steelyard.report.precision_recall import PrecisionRecallCurve, precision_recall_curve, precision_recall_plot
from steelyard.report.reliability import reliability_diagram, score_counts, score_histogram, wilson
from steelyard.report.run_page import write_run_page
from steelyard.run.run_report import evaluated_of
from steelyard.search import Hit

EVIL = ["<script>alert(1)</script>", '"><img src=x onerror=y>', "$a_b$ & c", "#1d2733", "new\nline", "_nul\x00"]
EVIL += ["بطة", "z" * 90]


class Page(HTMLParser):
    """A page read strictly: every element closed in order; its tags, texts, addresses and pictures."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert self.open == []
        assert self.source.endswith("</html>\n")
        inside = [a for a in self.addresses if a.startswith("data:image/svg+xml;base64,")]
        self.pictures = [base64.b64decode(a.partition(",")[2]).decode() for a in inside]
        self.links = [a for a in self.addresses if not a.startswith("data:")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not any(name.startswith("on") for name, _ in attrs)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag not in ("meta", "img", "br", "hr", "link", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data


def made(n_labels: int, n_items: int, names: list[str] | None = None, unknown: float = 0.1, seed: int = 0) -> Evaluated:
    """Outputs of an over-confident model of a long tail, and η that says the truth."""
    rng = np.random.default_rng(seed)
    counts = np.maximum(1, 900 * 0.01 ** (np.arange(n_labels) / max(1, n_labels - 1))).astype(np.int64)
    log_odds = np.log(0.3 * counts / counts.max()) + 2 * rng.normal(size=(n_items, n_labels))
    eta = 1 / (1 + np.exp(-log_odds))
    targets = (rng.random(eta.shape) < eta).astype(np.int8)
    targets[rng.random(eta.shape) < unknown] = -1
    return Evaluated(
        names=names or [f"label {c}" for c in range(n_labels)],
        counts=counts,
        targets=targets,
        probabilities=eta.astype(np.float32),
        logits=(2.5 * log_odds + 1).astype(np.float32),
        thresholds=np.full(n_labels, 0.4),
    )


def measured(e: Evaluated, bootstrap: int = 0) -> dict[str, Any]:
    evaluator = Evaluator(len(e.names), e.names, e.counts)
    assert e.probabilities is not None
    evaluator.update(e.probabilities, e.targets)
    return evaluator.compute(threshold=np.asarray(e.thresholds), rarest=[min(3, len(e.names))], bootstrap=bootstrap)


def epochs(n: int, n_labels: int = 0) -> list[dict[str, Any]]:
    found = []
    for e in range(1, n + 1):
        line = {"epoch": e, "steps": 9 * e, "seconds": 0.5, "lr": 0.1 / e, "loss": 2 / e, "items_per_second": 1e3}
        line["parts"] = {"bce": 1.5 / e, "label_pair": 0.5 / e}
        line["validation"] = {"map": 0.5 + 0.1 * math.sin(e), "f1": 0.4, "loss": 1 / e, "ace": None}
        if n_labels:
            line["plm_ratio"] = [0.9 ** (c + 1) / e for c in range(n_labels)]
        found.append(line)
    return found


def texts(svg: str) -> list[str]:
    return ["".join(node.itertext()) for node in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


# ---- figures


def by_hand(p: np.ndarray, t: np.ndarray, n_bins: int) -> list[tuple[int, float, float]]:
    """Cells, mean probability and share present of each bin, a cell at a time."""
    cells: list[list[tuple[float, float]]] = [[] for _ in range(n_bins)]
    for probability, target in zip(p.ravel().tolist(), t.ravel().tolist(), strict=True):
        if target != -1:
            k = next((k for k in range(n_bins - 1, 0, -1) if probability >= k / n_bins), 0)
            cells[k].append((probability, target))
    nan = math.nan
    return [(len(c), *(float(np.mean([x[i] for x in c])) if c else nan for i in (0, 1))) for c in cells]


def test_reliability_draws_each_bin_where_it_belongs():
    e = made(3, 60)
    p = e.scores.astype(np.float64)
    p[:4, 0] = 0.2, 0.4, 1.0, 0.0  # edges belong to the upper bin, 1 to the last
    p[(p > 0.6) & (p < 0.8)] = 0.5  # an empty bin
    wanted = by_hand(p, e.targets, 5)
    filled = [k for k, b in enumerate(wanted) if b[0]]
    assert filled == [0, 1, 2, 4]
    n, confidence, frequency = zip(*(wanted[k] for k in filled), strict=True)
    raw = 1 / (1 + np.exp(-np.asarray(e.logits, np.float64)))
    eta, targets = torch.from_numpy(p), torch.from_numpy(e.targets)  # bins may be NumPy's or torch's
    curves = [("σ", calibration_error(raw, e.targets, 5).bins), ("η", calibration_error(eta, targets, 5).bins)]
    axes, strip = reliability_diagram(curves).axes
    drawn = next(line for line in axes.lines if line.get_label() == "η")
    np.testing.assert_allclose(drawn.get_xydata(), np.transpose([confidence, frequency]))
    bars = [bar for bar in strip.patches if bar.get_facecolor() == to_rgba(SERIES[1])]
    assert tuple(bar.get_height() for bar in bars) == n
    for bar, k in zip(bars, filled, strict=True):
        assert k / 5 < bar.get_x() < bar.get_x() + bar.get_width() < (k + 1) / 5
    for i, segment in enumerate(axes.collections[-1].get_segments()):
        for end in segment[:, 1]:  # Wilson's ends are where the share lies 1.96 deviations of theirs away
            assert abs(frequency[i] - end) == pytest.approx(1.959964 * math.sqrt(max(0, end * (1 - end)) / n[i]))


@given(st.floats(0, 1), st.integers(1, 10**9))
def test_an_interval_holds_its_share_and_stays_a_share(share: float, n: int):
    low, high = wilson(np.array([share]), np.array([n]))
    assert -1e-12 <= low[0] <= share + 1e-12
    assert share - 1e-12 <= high[0] <= 1 + 1e-12


def test_reliability_of_nothing_is_empty():
    nothing = Bins(np.linspace(0, 1, 4), np.zeros(3, int), np.full(3, np.nan), np.full(3, np.nan))
    axes, strip = reliability_diagram([("none", nothing)]).axes
    assert [len(line.get_xdata()) for line in axes.lines] == [2, 0]
    assert list(strip.patches) == []


@pytest.mark.parametrize("places", [1, 9])
def test_precision_recall_is_scikit_learns(places: int):
    rng = np.random.default_rng(3)
    scores, targets = rng.random(300).round(places).astype(np.float32), rng.choice([-1.0, 0.0, 0.2, 0.7, 1.0], 300)
    known = targets != -1
    hit, said = targets[known] >= 0.5, scores[known] >= np.float32(0.6)
    found = precision_recall_curve("a", scores, targets, 0.6)
    precision, recall, _ = reference_curve(hit, scores[known])
    np.testing.assert_allclose([found.precision, found.recall], [precision[:-1][::-1], recall[:-1][::-1]])
    assert found.ap == pytest.approx(average_precision_score(hit, scores[known]))
    assert found.at == pytest.approx((hit[said].sum() / hit.sum(), hit[said].mean()))
    assert precision_recall_curve("a", scores, targets, math.inf).at == (0.0, 0.0)
    assert precision_recall_curve("a", scores, targets, None).at is None


def test_a_long_curve_is_thinned_but_keeps_its_shape():
    rng = np.random.default_rng(0)
    targets = (rng.random(20_000) < 0.3).astype(np.int8)
    curve = precision_recall_curve("a", rng.random(20_000) + targets, targets, 0.9)
    figure = precision_recall_plot([curve], "head labels")
    x, y = (np.asarray(v) for v in (figure.axes[0].lines[0].get_xdata(), figure.axes[0].lines[0].get_ydata()))
    assert len(x) < 500
    assert (np.diff(x) >= 0).all()
    assert (x[-1], y[-1]) == (1.0, curve.precision[-1])
    for a, b in zip(x[1:], y[1:], strict=True):
        assert ((curve.recall == a) & (curve.precision == b)).any()
    assert figure.axes[0].lines[1].get_xydata().tolist() == [list(curve.at or ())]
    assert len(to_svg(figure)) < 60_000


def test_histograms_count_every_known_cell_once():
    p = np.array([[0.0, 0.05, 0.5], [1.0, 0.99, 0.3]])
    t = np.array([[0, 1, 0.6], [1, -1, 0.4]])
    present, absent = score_counts(p, t, 10)
    assert present.tolist() == [1, 0, 0, 0, 0, 1, 0, 0, 0, 1]
    assert absent.tolist() == [1, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    axes = score_histogram(present, absent, "a").axes[0]
    outlines = [patch.get_data().values for patch in axes.patches if not patch.get_fill()]
    np.testing.assert_allclose(outlines, [absent / 2, present / 3])
    assert score_histogram(0 * present, 0 * absent, "none").axes[0].patches[:] == []


def test_series_skip_what_is_not_a_number():
    history = [{"epoch": 1, "validation": {"map": 0.5}}, {"epoch": 2}, {"epoch": 3, "validation": {"map": None}}]
    history += [{"epoch": 4, "validation": {"map": math.nan}}, {"epoch": 5, "validation": {"map": 1}}]
    assert series(history, "validation", "map") == ([1, 5], [0.5, 1.0])
    assert series(history, "validation", "f1") == ([], [])
    assert list(drawable({"a": series(history, "validation", "map"), "b": ([], [])})) == ["a"]


@pytest.mark.parametrize(
    ("values", "options", "circled", "written", "scale"),
    [
        ([0.2, 0.6, 0.5], {"best": "highest"}, [[2, 0.6]], "a: highest 0.6 at epoch 2", "linear"),
        ([0.2, 0.6, 0.001], {"best": "lowest"}, [[4, 0.001]], "a: lowest 0.001 at epoch 4", "log"),
        ([0.2, 0.6, 0.001], {"linear": True}, None, "epoch", "linear"),
    ],
)
def test_history_circles_the_best_and_needs_a_log_scale_only_for_wide_spans(values, options, circled, written, scale):
    figure = history_curves({"a": ([1, 2, 4], values)}, "score", **options)
    marks = [line.get_xydata().tolist() for line in figure.axes[0].lines if line.get_markersize() == 10]
    assert marks == ([] if circled is None else [circled])
    assert written in texts(to_svg(figure))
    assert figure.axes[0].get_yscale() == scale


@pytest.mark.parametrize("n_labels", [1, 20, 61])
def test_ratios_of_few_labels_are_named_of_many_summarised(n_labels: int):
    counts = np.linspace(900, 1, n_labels).astype(int)
    ratios = np.exp(np.random.default_rng(0).normal(size=(7, n_labels)))
    ratios[:, -1] = 0 if n_labels > 1 else 0.1  # clipped to nothing: no place on a log scale
    figure = ratio_curves(range(1, 8), ratios, [f"name {c}" for c in range(n_labels)], counts)
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata())]
    if n_labels <= 60:
        shown = n_labels if n_labels == 1 else n_labels - 1
        assert sorted(line.get_ydata()[3] for line in lines) == sorted(ratios[3, :shown])
        assert [t for t in texts(to_svg(figure)) if t.startswith("name")] == [f"name {c}" for c in range(shown)]
    else:
        medians = [np.median(ratios[:, g], 1) for g in (counts >= 100, (counts < 100) & (counts >= 20))]
        np.testing.assert_allclose([line.get_ydata() for line in lines][:2], medians)


def test_ratios_of_labels_that_are_never_absent_are_left_out():
    ratios = np.array([[np.inf, 0.2, 0.5], [np.inf, 0.3, 0.4]])
    axes = ratio_curves([1, 2], ratios, ["always", "cat", "dog"], np.array([9, 3, 4])).axes[0]
    assert sorted(tuple(line.get_ydata()) for line in axes.lines if len(line.get_ydata())) == [(0.2, 0.3), (0.5, 0.4)]
    assert [text.get_text() for text in axes.texts] == ["cat", "dog"]
    nothing = ratio_curves([1, 2], ratios[:, :1], ["always"], np.array([9]))
    assert not any(len(line.get_ydata()) for line in nothing.axes[0].lines)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_spread_names_keep_order_distance_and_place(at: list[float]):
    moved = spread(np.array(at), 1 / 20)
    ranked = moved[np.argsort(np.array(at), kind="stable")]
    assert (np.diff(ranked) > 1 / 20 - 1e-9).all()
    assert ranked[0] >= -1e-9
    assert ranked[-1] <= 1 + 1e-9
    apart = [0.1, 0.9, 0.5]
    assert spread(np.array(apart), 1 / 20).tolist() == apart


def test_bars_stand_at_their_labels_most_frequent_on_top():
    counts, f1 = np.array([5, 300, 40]), np.array([0.1, 0.9, 0.5])
    axes = label_bars(["rare", "often", "some"], counts, f1, f1 / 2, f1 / 3, np.array([2, 9, 0])).axes[0]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["often (300)", "some (40)", "rare (5)"]
    assert axes.yaxis_inverted()
    (bars,) = axes.containers
    assert [(bar.get_y() + bar.get_height() / 2, bar.get_width()) for bar in bars] == [(1, 0.9), (3, 0.1)]
    marks = {line.get_label(): line.get_xydata() for line in axes.lines}
    np.testing.assert_allclose(marks["precision"], [[0.45, 1], [0.05, 3]])
    np.testing.assert_allclose(marks["recall"], [[0.3, 1], [0.1 / 3, 3]])
    assert [(t.get_position()[1], t.get_text()) for t in axes.texts] == [(2, "no positive here")]
    bands = {p.get_label(): p.get_extents().transformed(axes.transData.inverted()) for p in axes.patches}
    ends = [sorted((bands[group].y0, bands[group].y1)) for group in ("head", "medium", "tail")]
    np.testing.assert_allclose(ends, [(0.5, 1.5), (1.5, 2.5), (2.5, 3.5)])


@pytest.mark.parametrize("has_logits", [True, False])
def test_sigmoid_and_own_probabilities_always_look_the_same(has_logits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    e = made(4, 200) if has_logits else replace(made(4, 200), logits=None)
    drawn: list[Any] = []
    monkeypatch.setattr(
        run_page_module, "reliability_diagram", lambda *a, looks: drawn.extend(zip(*a, looks, strict=True))
    )
    monkeypatch.setattr(run_page_module, "plot", lambda *_: None)
    monkeypatch.setattr(run_page_module, "score_histogram", lambda *_: None)
    list(run_page_module._trust(e, e.calibration(), e.raw_calibration()))
    places = {name.split(":")[0]: place for (name, _), place in drawn}
    assert places == ({"σ(z)": SIGMOID, "η": OWN} if has_logits else {"probability": OWN})
    assert look(SIGMOID)["color"] != look(OWN)["color"]
    assert look(SIGMOID)["marker"] != look(OWN)["marker"]


def test_lines_of_one_plot_differ_without_colour() -> None:
    counts = np.array([500, 50, 5])
    curves = {name: (list(range(1, 101)), [0.1 * i] * 100) for i, name in enumerate("abc")}
    curve = PrecisionRecallCurve("x", np.array([0.5, 1]), np.array([1, 0.5]), 0.7, None, None)
    figures = [
        history_curves(curves, "loss"),
        ratio_curves([1, 2], np.ones((2, 3)), list("abc"), counts),
        precision_recall_plot([curve] * 3, "t"),
        score_histogram(np.array([1, 2]), np.array([3, 4]), "t"),
    ]
    for figure in figures:
        handles = figure.legends[0].legend_handles
        styles = [(str(h.get_linestyle()), str(getattr(h, "get_marker", str)())) for h in handles]
        assert len(set(styles)) == len(styles) > 1


def test_points_of_runs_and_trends_of_many_labels():
    counts = np.arange(100)
    scores = {"a": np.linspace(0, 1, 4), "b": np.array([np.nan, 0.5, np.nan, np.nan])}
    axes = label_points(list("wxyz"), np.array([4, 3, 2, 1]), scores, "F1").axes[0]
    assert axes.collections[0].get_segments()[1][:, 0].tolist() == [pytest.approx(1 / 3), 0.5]
    values = np.where(counts % 7, counts / 100, np.nan)
    trend = label_trend(counts, values, "F1").axes[0]
    np.testing.assert_array_equal(trend.lines[0].get_ydata(), values[::-1])
    medians = [np.nanmedian(part) for part in np.array_split(values[::-1], 20)]
    np.testing.assert_allclose(trend.lines[1].get_ydata(), medians)
    label_trend(counts, np.full(100, np.nan), "F1")


def every_figure(names: list[str]) -> list[Any]:
    n = len(names)
    e = made(n, 50, names)
    counts, some = np.asarray(e.counts), np.linspace(0, 1, n)
    return [
        reliability_diagram([(names[0], calibration_error(e.scores, e.targets).bins)], title=names[0]),
        history_curves({name: ([1, 2], [0.1, 0.2]) for name in names}, "loss", "highest"),
        history_curves({"wide": ([1, 2], [1e-7, 2e5])}, "loss"),
        ratio_curves([1, 2], np.ones((2, n)), names, counts),
        label_bars(names, counts, some, some, some, some),
        label_points(names, counts, dict.fromkeys(names, some), "F1"),
        label_trend(counts, some, "F1"),
        precision_recall_plot([precision_recall_curve(names[0], some, np.r_[np.zeros(n - 1), 1], 0.5)], names[0]),
        score_histogram(np.arange(9), np.arange(9), names[0]),
    ]


def test_every_figure_is_xml_follows_the_night_and_can_be_drawn_of_any_name():
    for figure in every_figure(EVIL):
        day = to_svg(figure)
        night = by_night(day)
        assert texts(night) == texts(day)  # a label named like a colour is left alone
        assert not any("\\math" in text for text in texts(day))  # numbers in TeX, which no browser reads
        body = re.sub(r"<style>.*?</style>|<defs>\s*<style.*?</style>|>[^<]*<", "><", night, flags=re.S)
        assert re.findall(r"#[0-9a-f]{6}\b", body) == []  # every colour has its counterpart
        used, defined = set(re.findall(r"var\((--c\w+)\)", night)), set(re.findall(r"(--c\w+):", night))
        assert used == defined
        assert night.count("prefers-color-scheme: dark") == 1
        assert not re.search(r"(href|src)=\"(?!#)", night)
        assert "<script" not in night


# ---- what is said


def test_the_best_of_each_column_ties_and_gaps():
    reports = [
        {"mAP": {"label": 0.5}, "brier": 0.2, "labels": 9},
        {"mAP": {"label": 0.7}, "brier": 0.1, "macro": {"f1": 0.3}, "labels": 9},
        {"mAP": {"label": 0.7}, "brier": None, "labels": 9},
    ]
    header, rows, best = compared(reports)
    assert header == ["mAP", "F1", "Brier"]
    assert rows[1] == [0.7, 0.3, 0.1]
    assert rows[0][1] is None
    assert best == {(1, 0), (2, 0), (1, 1), (1, 2)}


def test_numbers_say_what_they_are():
    metrics = measured(made(4, 400), bootstrap=20)
    metrics["single_label"] = {"accuracy": 0.5}
    shown = {n.name: n for n in headline(metrics, 0.123)}
    error = "Calibration error (ACE)"
    assert list(shown) == ["mAP", "F1", "F1 of the 3 rarest labels", error, "Accuracy", "All labels right"]
    assert shown["mAP"].value == f"{100 * metrics['mAP']['label']:.1f} %"
    low, high = metrics["intervals"]["mAP"]["label"]
    assert f"95 % interval: {100 * low:.1f} to {100 * high:.1f} %" in shown["mAP"].meaning
    pooled = metrics["calibration"]["pooled"]["width"]
    assert shown[error].value == percent(pooled["ace"])
    assert "With σ(z) instead it is 12.3 %" in shown[error].meaning
    assert f"would show {percent(pooled['by_chance']['ace'])} by chance" in shown[error].meaning
    assert [percent(x) for x in (0, 0.0004, 0.0035, 0.083, 1)] == ["0.0 %", "<0.1 %", "0.4 %", "8.3 %", "100.0 %"]
    assert list(headline({})) == []


PART = {"labels": 3}


@pytest.mark.parametrize(
    ("metrics", "found"),
    [
        ({"labels": 3, "rarest": {"3": PART}}, None),
        ({"labels": 9, "rarest": {"10": {"labels": 9}, "3": PART}}, ("3 rarest labels", PART)),
        ({"labels": 9, "groups": {"tail": PART}}, ("tail labels", PART)),
        ({"labels": 9, "groups": {"tail": {"labels": 0}}}, None),
        ({"labels": 9}, None),
    ],
)
def test_the_rarest_are_no_news_where_they_are_all(metrics, found):
    assert rare(metrics) == found


def test_ends_are_head_and_tail_or_halves():
    e = made(9, 5)
    assert [list(v) for v in replace(e, head=500, tail=20).ends().values()] == [[0, 1], [7, 8]]
    halves = replace(e, head=1, tail=0).ends()
    assert [(k, list(v)) for k, v in halves.items()] == [
        ("the 5 most frequent", [0, 1, 2, 3, 4]),
        ("the 5 rarest", [4, 5, 6, 7, 8]),
    ]
    assert [list(v) for v in made(1, 5).ends().values()] == [[0]]


def test_tables_mark_align_and_dash(tmp_path: Path):
    rows = [
        ("x<y", 1.23456),
        ("z", None),
        ("w", math.inf),
        ("s", Share(0.12345)),
        ("p", Eta(0.4)),
        ("q", Eta(math.inf)),
    ]
    nothing = dict.fromkeys(("about", "rarest", "pages", "trust", "training", "labels"))
    page.write_page(tmp_path / "t.html", "comparison.html", "t", header=["b"], rows=rows, best={(0, 1)}, **nothing)
    found = Page(tmp_path / "t.html")
    assert re.findall(r"<t[dh] class=\"([^\"]*)\">", found.source) == ["number", "best number", *["number"] * 5]
    assert found.text.split()[:11] == [
        *("t", "t", "runb", "x<y★", "1.235", "z–", "w∞", "s12.3", "p.400", "qnever", "All")
    ]


# ---- pages

CONFIG = '[data]\npath = "<b>&"\n'


def test_a_page_may_load_its_own_style_and_pictures_and_nothing_else(tmp_path: Path):
    """A standalone page is opened from anywhere: what slipped into it may neither run nor fetch."""
    e = made(1, 10)
    report, sheet = tmp_path / "report.html", tmp_path / "sheet.html"
    write_run_page(report, "run", "", measured(e), (), e, "steelyard train", "test")
    Image.new("RGB", (30, 20)).save(tmp_path / "a.png")
    write_sheet(str(sheet), "found", [SheetItem(Hit("a", 0.5, {"cat": 0.5}), str(tmp_path / "a.png"))])
    for source in (report.read_text(), sheet.read_text()):
        (style,) = re.findall(r"<style>(.*?)</style>", source, flags=re.S)
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', source)
        assert policy == (
            f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
        )
        assert source.index("Content-Security-Policy") < source.index("<title>")
        assert not re.search(r"<[^>]* style=|<script| on[a-z]+=", source)
        assert set(re.findall(r'<img[^>]* src="([a-z]+:)', source)) == {"data:"}


def run_page(folder: Path, e: Evaluated, metrics: Any = None, history: Any = (), name: str = "report.html") -> Page:
    write_run_page(folder / name, "run <1>", CONFIG, measured(e) if metrics is None else metrics, history, e)
    return Page(folder / name)


@pytest.mark.parametrize(("n_labels", "n_items"), [(8, 100), (90, 30), (3, 0)])
def test_a_run_page_is_whole_and_needs_nothing_else(n_labels: int, n_items: int, tmp_path: Path):
    names = (EVIL + [f"label {c}" for c in range(n_labels)])[:n_labels]
    e = made(n_labels, n_items, names)
    file = tmp_path / "report.html"
    write_run_page(file, "run <1>", CONFIG, measured(e), epochs(5, n_labels), e, "steelyard train 'a&b.toml'", "test")
    found = Page(file)
    assert "script" not in found.tags
    assert found.links == []
    assert not re.search(r"url\((?!#)|@import", found.source)
    for text in ("run <1>", CONFIG, "steelyard train 'a&b.toml'", "5 epochs in 2.5 s"):
        assert text in found.text
    for picture in found.pictures:
        ET.fromstring(picture)
    many = n_labels > 40
    assert found.tags.count("details") == 1 + many
    training = 5  # loss, scores, log-loss, learning rate, ratios; no ACE was measured
    if n_items:
        assert len(found.pictures) == 1 + len(e.ends()) + training + (3 if many else 1) + len(e.groups())
        for name in names:
            assert name.replace("\x00", "�") in found.text or name in found.text
    else:
        assert len(found.pictures) == training
        assert "no items to score" in found.text


def test_a_name_that_ends_in_pdf_gets_the_plots_of_the_page(tmp_path: Path):
    e = made(6, 80)
    files = [tmp_path / name for name in ("report.html", "report.pdf", "again.pdf")]
    for file in files:
        write_run_page(file, "run", CONFIG, measured(e), epochs(5, 6), e, "steelyard train", "test")
    page, plots, again = (file.read_bytes() for file in files)
    assert plots[:5] == b"%PDF-"
    assert plots == again
    assert len(re.findall(rb"/Type /Page\b", plots)) == page.count(b"<img")


def test_a_run_page_shows_the_numbers_of_its_labels(tmp_path: Path):
    e = made(8, 300)
    metrics = measured(e)
    probability_model = {"kind": "platt", "how": "platt fitted to z", "out_of_fold": True}
    found = run_page(tmp_path, e, {**metrics, "notes": ["beware of <this>"], "reading": probability_model}, epochs(1))
    row = next(line for line in re.sub(r"<[^>]*>", " ", found.source).splitlines() if "label 7" in line)
    wanted = metrics["per_label"][7]
    ap, ace, brier, precision, recall, f1 = (
        f"{100 * wanted[k]:.1f}" for k in ("average_precision", "ace", "brier", "precision", "recall", "f1")
    )
    assert row.split()[-9:] == [ap, ace, brier, ".400", "–", precision, "–", recall, f1]
    assert "Beware of <this>" in found.text
    assert (
        "Probabilities: platt fitted to z. Each item is scored by a calibrator that was not fitted to it" in found.text
    )
    raw = 1 / (1 + np.exp(-np.asarray(e.logits, np.float64)))
    ace = np.mean([abs(c - f) for n, c, f in by_hand(raw, e.targets, 15) if n])
    assert f"σ(z): ACE {percent(float(ace))}" in texts(found.pictures[0])
    assert f"η: ACE {percent(metrics['calibration']['pooled']['width']['ace'])}" in texts(found.pictures[0])
    assert "How training went" not in found.text  # one epoch is no curve


def test_a_loss_without_probabilities_shows_what_it_has(tmp_path: Path):
    e = replace(made(8, 200), probabilities=None, thresholds=None)
    metrics = {"labels": 8, "mAP": {"label": 0.5}, "macro": None, "calibration": None, "per_label": None}
    found = run_page(tmp_path, e, metrics)
    assert "This run has no probabilities" in found.text
    assert [t[:9] for t in texts(found.pictures[0]) if "ACE" in t] == ["σ(z): ACE"]
    assert not any("threshold" in text for picture in found.pictures for text in texts(picture))
    assert len(found.pictures) == 1 + len(e.groups())


def test_probabilities_that_are_sigma_are_drawn_once(tmp_path: Path):
    e = made(1, 100)
    e = replace(e, probabilities=(1 / (1 + np.exp(-np.asarray(e.logits, np.float64)))).astype(np.float32))
    assert e.raw_calibration() is None
    found = run_page(tmp_path, e)
    shown = [t for t in texts(found.pictures[0]) if "ACE" in t]
    assert shown == [f"probability: ACE {percent(float(e.calibration().ace))}"]
    assert run_page(tmp_path, e, name="again.html").source == found.source
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.html", "report.html"]


def test_a_comparison_marks_the_best_and_overlays_the_runs(tmp_path: Path):
    runs = []
    for i, name in enumerate(("bce", EVIL[0], "a & b")):
        e = made(6, 200, seed=i)
        runs.append(ComparedRun(name, measured(e), e, epochs(4), f"run {i}/report.html"))
    file = tmp_path / "c.html"
    write_comparison_page(file, "three", runs, "about <these>")
    found = Page(file)
    assert "about <these>" in found.text
    assert found.links == [f"run {i}/report.html" for i in range(3)]
    assert "script" not in found.tags
    assert len(found.pictures) == 4  # σ, η, mAP over epochs, F1 by label
    rows = [
        re.findall(r"<td[^>]*>(.*?)</td>", line) for line in found.source.splitlines() if line.startswith("<tr><td")
    ]
    maps = [run.metrics["mAP"]["label"] for run in runs]
    aces = [run.metrics["calibration"]["pooled"]["width"]["ace"] for run in runs]
    for i, row in enumerate(rows):  # run, mAP, F1, F1 of the rarest, ACE
        assert row[1].endswith(f"{100 * maps[i]:.1f}")
        assert row[4].endswith(f"{100 * aces[i]:.1f}")
        assert ("★" in row[1], "★" in row[4]) == (maps[i] == max(maps), aces[i] == min(aces))
    for run in runs:
        assert run.name in found.text
        ace = percent(run.metrics["calibration"]["pooled"]["width"]["ace"])
        shown = run.name if len(run.name) <= 22 else f"{run.name[:21]}…"
        assert f"{shown}, ACE {ace}" in texts(found.pictures[1])


def test_a_comparison_of_what_cannot_be_drawn_is_a_table(tmp_path: Path):
    big = made(41, 30)
    e = replace(big, targets=big.targets[:0], probabilities=big.probabilities[:0], logits=None)  # type: ignore[index]
    write_comparison_page(tmp_path / "c.html", "c", [ComparedRun("a", {"labels": 41, "mAP": {"label": 0.5}}, e)])
    found = Page(tmp_path / "c.html")
    assert found.pictures == []
    assert "★ 50.0\n" in found.text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"names": ["a"]}, r"targets has shape \(10, 3\).*1 names"),
        ({"counts": np.ones(2)}, r"counts has shape \(2,\)"),
        ({"probabilities": np.ones((10, 2))}, r"probabilities has shape \(10, 2\)"),
        ({"logits": np.ones((9, 3))}, r"logits has shape \(9, 3\)"),
        ({"thresholds": np.ones((1, 3))}, r"thresholds has shape \(1, 3\)"),
        ({"probabilities": None}, "probabilities is None"),
        ({"probabilities": None, "logits": None, "thresholds": None}, "probabilities is None"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(change: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        replace(made(3, 10), **change)


@pytest.mark.parametrize(
    ("names", "said"), [("", "runs is empty"), ("aa", "'a' more than once"), ("ab", "'b' has other labels than 'a'")]
)
def test_runs_that_cannot_be_compared_are_refused(names: str, said: str, tmp_path: Path):
    runs = [ComparedRun(name, {"labels": 3}, made(3 + (name == "b"), 10)) for name in names]
    with pytest.raises(ValueError, match=said):
        write_comparison_page(tmp_path / "c.html", "c", runs)


@settings(max_examples=6)
@given(st.lists(st.text(st.characters(), max_size=12), min_size=3, max_size=3))
def test_any_names_make_a_page(tmp_path_factory: pytest.TempPathFactory, names: list[str]):
    some = np.arange(3)
    drawn = page.plot(label_points(names, some, {names[0]: some / 3}, "F1"), names[2])
    file = tmp_path_factory.mktemp("any") / "r.html"
    rows = list(zip(names, some.tolist(), strict=True))
    page.write_page(
        file,
        "retrieval.html",
        names[0],
        header=names,
        rows=rows,
        best={},
        n_items=1,
        n_labels=2,
        note=names[1],
        plot=drawn,
    )
    (picture,) = Page(file).pictures
    assert {f"{short(name, 18)} ({n})" for n, name in enumerate(names)} <= set(texts(picture))
    assert short(names[0]) in ("", *texts(picture))


@pytest.mark.parametrize("has", [True, False])
def test_a_judged_model_becomes_what_a_page_draws(has: bool):
    e = made(3, 10)
    trained: Any = SimpleNamespace(names=tuple(e.names), counts=e.counts.astype(np.float64))
    probability_model = SimpleNamespace(has_probability=has, thresholds=np.full(3, 0.3))
    arrays = {name: torch.from_numpy(getattr(e, name)) for name in ("targets", "probabilities", "logits")}
    section: Any = SimpleNamespace(head_at=50, tail_below=5, bins=7)
    ranks = torch.rand(10, 3)
    found = evaluated_of(trained, SimpleNamespace(probability_model=probability_model, ranks=ranks, **arrays), section)  # type: ignore[arg-type]
    assert (found.head, found.tail, found.bins, found.threshold(1)) == (50, 5, 7, 0.3 if has else None)
    np.testing.assert_array_equal(found.scores, e.probabilities if has else e.logits)
    np.testing.assert_array_equal(found.ranking, ranks if has else e.logits)
