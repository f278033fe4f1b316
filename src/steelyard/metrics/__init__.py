"""How good is it? Ranking, decisions, calibration and search, exactly, with unknown labels left out."""

from steelyard.metrics.calibration import (
    Bins,
    ByChance,
    CalibrationError,
    brier,
    calibration_error,
    error_by_chance,
    log_loss,
)
from steelyard.metrics.decisions import Averages, PrecisionRecallF1, exact_match, precision_recall_f1
from steelyard.metrics.evaluator import Evaluator
from steelyard.metrics.groups import Mean, label_groups, mean_by_group, mean_defined, mean_of_rarest, rarest_labels
from steelyard.metrics.ranking import average_precision, mean_average_precision
from steelyard.metrics.retrieval import RetrievalMap, retrieval_map
from steelyard.metrics.top import TopEvaluator

__all__ = [
    "Averages",
    "Bins",
    "ByChance",
    "CalibrationError",
    "Evaluator",
    "Mean",
    "PrecisionRecallF1",
    "RetrievalMap",
    "TopEvaluator",
    "average_precision",
    "brier",
    "calibration_error",
    "error_by_chance",
    "exact_match",
    "label_groups",
    "log_loss",
    "mean_average_precision",
    "mean_by_group",
    "mean_defined",
    "mean_of_rarest",
    "precision_recall_f1",
    "rarest_labels",
    "retrieval_map",
]
