"""Probabilities η and decisions: links, fitted calibrators, shifted priors, thresholds."""

from steelyard.calibrate.bands import HeldOutCells, bands_of, fit_bands
from steelyard.calibrate.calibrator import Calibrator, NotFitted
from steelyard.calibrate.guarantees import GuaranteeReport, NoPromiseWarning, Promise, guaranteed_thresholds
from steelyard.calibrate.isotonic import Isotonic
from steelyard.calibrate.label_sets import LabelSets
from steelyard.calibrate.link import Link, undo_class_aware
from steelyard.calibrate.prior import PriorReport, UncalibratedWarning, estimate_prior, prior_report, shift_prior
from steelyard.calibrate.scaling import Platt, Temperature
from steelyard.calibrate.store import load, save
from steelyard.calibrate.teacher import teacher_probabilities
from steelyard.calibrate.thresholds import ThresholdReport, threshold_report, thresholds

__all__ = [
    "Calibrator",
    "GuaranteeReport",
    "HeldOutCells",
    "Isotonic",
    "LabelSets",
    "Link",
    "NoPromiseWarning",
    "NotFitted",
    "Platt",
    "PriorReport",
    "Promise",
    "Temperature",
    "ThresholdReport",
    "UncalibratedWarning",
    "bands_of",
    "estimate_prior",
    "fit_bands",
    "guaranteed_thresholds",
    "load",
    "prior_report",
    "save",
    "shift_prior",
    "teacher_probabilities",
    "threshold_report",
    "thresholds",
    "undo_class_aware",
]
