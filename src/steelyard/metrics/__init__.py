"""Metrics of ranking, decisions, calibration and search, exact, with unknown labels left out."""

from steelyard.metrics.calibration import (
    Bins,
    ByChance,
    CalibrationErrors,
    brier,
    calibration_error,
    error_by_chance,
    log_loss,
)
from steelyard.metrics.decisions import (
    Averages,
    PrecisionRecallF1,
    exact_match,
    hamming_loss,
    jaccard,
    precision_recall_f1,
)
from steelyard.metrics.evaluator import Evaluator
from steelyard.metrics.groups import Mean, label_groups, mean_by_group, mean_defined, mean_of_rarest, rarest_labels
from steelyard.metrics.ordered import (
    auroc,
    coverage_error,
    ndcg_at_k,
    precision_at_k,
    propensities,
    psp_at_k,
    ranking_loss,
)
from steelyard.metrics.ranking import average_precision, mean_average_precision
from steelyard.metrics.retrieval import RetrievalMap, retrieval_map
from steelyard.metrics.top import TopEvaluator

__all__ = [
    "Averages",
    "Bins",
    "ByChance",
    "CalibrationErrors",
    "Evaluator",
    "Mean",
    "PrecisionRecallF1",
    "RetrievalMap",
    "TopEvaluator",
    "auroc",
    "average_precision",
    "brier",
    "calibration_error",
    "coverage_error",
    "error_by_chance",
    "exact_match",
    "hamming_loss",
    "jaccard",
    "label_groups",
    "log_loss",
    "mean_average_precision",
    "mean_by_group",
    "mean_defined",
    "mean_of_rarest",
    "ndcg_at_k",
    "precision_at_k",
    "precision_recall_f1",
    "propensities",
    "psp_at_k",
    "ranking_loss",
    "rarest_labels",
    "retrieval_map",
]
