"""Plots, tables for the terminal, and HTML pages in one file each."""

from steelyard.report.canvas import save_figure, to_png, to_svg
from steelyard.report.comparison import ComparedRun, write_comparison_page
from steelyard.report.evaluated import Evaluated
from steelyard.report.history import history_curves, ratio_curves
from steelyard.report.plots import (
    frequency_curve,
    heat_map,
    label_bars,
    label_points,
    label_trend,
    resampling,
    unknown_rates,
)
from steelyard.report.precision_recall import PrecisionRecallCurve, precision_recall_curve, precision_recall_plot
from steelyard.report.reliability import reliability_diagram, score_counts, score_histogram

__all__ = [
    "ComparedRun",
    "Evaluated",
    "PrecisionRecallCurve",
    "frequency_curve",
    "heat_map",
    "history_curves",
    "label_bars",
    "label_points",
    "label_trend",
    "precision_recall_curve",
    "precision_recall_plot",
    "ratio_curves",
    "reliability_diagram",
    "resampling",
    "save_figure",
    "score_counts",
    "score_histogram",
    "to_png",
    "to_svg",
    "unknown_rates",
    "write_comparison_page",
]
