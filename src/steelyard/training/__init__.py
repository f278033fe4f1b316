"""The training loop."""

from steelyard.training.loop import Outcome, train
from steelyard.training.settings import (
    AugmentSettings,
    OptimizerSettings,
    SamplerSettings,
    ScheduleSettings,
    TrainSettings,
)

__all__ = [
    "AugmentSettings",
    "OptimizerSettings",
    "Outcome",
    "SamplerSettings",
    "ScheduleSettings",
    "TrainSettings",
    "train",
]
