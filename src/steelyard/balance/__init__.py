"""Weightings, masks, samplers and pair penalties: how much each label and item counts."""

from steelyard.balance.label_pair import LabelPair
from steelyard.balance.masking import PartialLabelMasking
from steelyard.balance.picked_labels import PickedLabels
from steelyard.balance.pseudo_labels import PseudoLabels
from steelyard.balance.samplers import ClassAware, Shuffled, Undersample
from steelyard.balance.teacher_scores import TeacherScores
from steelyard.balance.weighting import (
    ClassBalanced,
    Deferred,
    ExpectedWeights,
    InverseFrequency,
    Rebalanced,
    Weighting,
    expected_weights,
)

__all__ = [
    "ClassAware",
    "ClassBalanced",
    "Deferred",
    "ExpectedWeights",
    "InverseFrequency",
    "LabelPair",
    "PartialLabelMasking",
    "PickedLabels",
    "PseudoLabels",
    "Rebalanced",
    "Shuffled",
    "TeacherScores",
    "Undersample",
    "Weighting",
    "expected_weights",
]
