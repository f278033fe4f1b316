"""Losses: pairs of partial losses of the logit, each with its own probability."""

from steelyard.losses.asymmetric import Asymmetric
from steelyard.losses.bce import BCE
from steelyard.losses.distribution_balanced import DistributionBalanced, WeightedLoss
from steelyard.losses.focal import Focal
from steelyard.losses.hill import Hill
from steelyard.losses.ldam import LDAM
from steelyard.losses.loss import Cells, Loss, NoLink, Reduction
from steelyard.losses.negative_tolerant import LogitAdjusted, NegativeTolerant
from steelyard.losses.pair import AnalyticLoss, FormulaLoss, PairLoss
from steelyard.losses.partial_annotation import Annotation, PartialAnnotation
from steelyard.losses.partial_rules import (
    SPLC,
    EntropyMaximizing,
    GeneralizedRobust,
    LargeLoss,
    Selective,
    SoftNegatives,
    Teacher,
)
from steelyard.losses.softplus_pair import SoftplusPair
from steelyard.losses.spa import SPA
from steelyard.losses.two_way import TwoWay
from steelyard.losses.unknown import Ignore, Negative, Pseudo, Resolver, WeakAssumedNegative, WeakNegative

__all__ = [
    "BCE",
    "LDAM",
    "SPA",
    "SPLC",
    "AnalyticLoss",
    "Annotation",
    "Asymmetric",
    "Cells",
    "DistributionBalanced",
    "EntropyMaximizing",
    "Focal",
    "FormulaLoss",
    "GeneralizedRobust",
    "Hill",
    "Ignore",
    "LargeLoss",
    "LogitAdjusted",
    "Loss",
    "Negative",
    "NegativeTolerant",
    "NoLink",
    "PairLoss",
    "PartialAnnotation",
    "Pseudo",
    "Reduction",
    "Resolver",
    "Selective",
    "SoftNegatives",
    "SoftplusPair",
    "Teacher",
    "TwoWay",
    "WeakAssumedNegative",
    "WeakNegative",
    "WeightedLoss",
]
