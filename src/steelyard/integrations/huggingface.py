"""An objective under Hugging Face's Trainer: its loss, our metrics, calibration and thresholds beside the model.

`examples/with_huggingface.py` shows it whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from steelyard._compat import import_torchvision
from steelyard._extras import needed
from steelyard.calibrate.aim import Aim
from steelyard.calibrate.probability import ProbabilityModel
from steelyard.labels.targets import UNKNOWN
from steelyard.losses.pair import PairLoss
from steelyard.metrics import calibration_error, mean_average_precision, precision_recall_f1
from steelyard.objective import Objective
from steelyard.objective.parts import Part, completed

with suppress(ModuleNotFoundError):
    import_torchvision()  # transformers imports it where it is installed
with needed("steelyard.integrations.huggingface needs", "'steelyard[huggingface]'"):
    from transformers import TrainerCallback

__all__ = ["ObjectiveMixin", "compute_metrics", "load_probability_model", "targets_of"]

FILE = "calibration.json"
IGNORED = -100
"""Value of labels that Hugging Face ignores."""


def targets_of(labels: Any) -> Any:
    """Return labels as targets: −100, which Hugging Face ignores, becomes −1 (unknown).

    Args:
        labels: a tensor, or anything NumPy takes; tensors stay tensors.

    Examples:
        >>> from steelyard.integrations.huggingface import targets_of
        >>> targets_of([[1, 0, -100]]).tolist()
        [[1, 0, -1]]
    """
    if isinstance(labels, Tensor):
        return torch.where(labels == IGNORED, UNKNOWN, labels)
    values = np.asarray(labels)
    return np.where(values == IGNORED, UNKNOWN, values)


def compute_metrics(objective: Objective) -> Callable[[Any], dict[str, float]]:
    """Return a function for `Trainer(compute_metrics=…)`: mAP and, if the loss has a link, macro F1 at ½, ACE and ECE.

    Args:
        objective: what the model is trained by; its link turns logits into probabilities.

    Examples:
        >>> from transformers import EvalPrediction
        >>> from steelyard.integrations.huggingface import compute_metrics
        >>> metrics = compute_metrics(sy.Objective(sy.losses.BCE()))
        >>> metrics(EvalPrediction(np.array([[4.0, -4.0], [-4.0, 4.0]]), np.array([[1, 0], [0, 1]])))["f1"]
        1.0
    """

    def measured(prediction: Any) -> dict[str, float]:
        logits = torch.as_tensor(np.asarray(prediction.predictions), dtype=torch.float32)
        targets = torch.as_tensor(targets_of(prediction.label_ids))
        scores = {"map": mean_average_precision(logits, targets)}
        if isinstance(objective.loss, PairLoss):
            with torch.no_grad():
                eta = objective.probability(logits.to(_place(objective))).cpu()
            scores["f1"] = float(precision_recall_f1(eta >= 0.5, targets).macro.f1)
            error = calibration_error(eta, targets)
            scores |= {"ace": float(error.ace), "ece": float(error.ece)}
        return scores

    return measured


class ObjectiveMixin:
    """Trains a Hugging Face model by an `Objective`: `class MyTrainer(ObjectiveMixin, transformers.Trainer)`.

    The objective replaces the model's own loss. The model must return `logits` (B, L), and items must have `labels`
    (L,) of 1, 0, numbers between, and −1 or −100 for unknown. A column `index`, the number of the item, is passed to
    objectives that distinguish items. `calibrate` fits probabilities and thresholds to other items, and `save_model`
    writes them beside the model, where `load_probability_model` reads them.

    Args:
        objective: the objective, built for the training labels.
        loss: its loss as a part of [objective], a name or (name, arguments); saved with the calibration.

    Examples:
        >>> from transformers import Trainer
        >>> from steelyard.integrations.huggingface import ObjectiveMixin
        >>> class MyTrainer(ObjectiveMixin, Trainer):
        ...     pass
        >>> MyTrainer(objective="bce")
        Traceback (most recent call last):
        ValueError: objective is a str: give a steelyard.Objective
    """

    def __init__(self, *args: Any, objective: Objective, loss: str | Part = "bce", **more: Any) -> None:
        if not isinstance(objective, Objective):
            raise ValueError(f"objective is a {type(objective).__name__}: give a steelyard.Objective")
        more.setdefault("compute_metrics", compute_metrics(objective))
        super().__init__(*args, **more)
        self.objective = objective.to(self.args.device)  # type: ignore[attr-defined]
        self.loss_part = completed("loss", loss if isinstance(loss, Part) else Part(loss))
        self.probability_model: ProbabilityModel | None = None
        self.model_accepts_loss_kwargs = False  # the loss is a mean already: accumulated steps are averaged
        self.label_names = ["labels"]
        self.add_callback(_Epochs(objective))  # type: ignore[attr-defined]

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
        """Return the objective's value, and with `return_outputs` the model's outputs too."""
        rest = dict(inputs)
        labels, index = rest.pop("labels", None), rest.pop("index", None)
        if labels is None:
            raise ValueError("a batch has no labels: give items a column 'labels', (L,) of 1, 0, and -100 for unknown")
        outputs = model(**rest)
        logits = outputs["logits"] if isinstance(outputs, dict) or hasattr(outputs, "keys") else outputs[0]
        self.objective.train(model.training)
        value = self.objective(logits.float(), targets_of(labels), index).total
        return (value, {"loss": value, "logits": logits}) if return_outputs else value

    def calibrate(self, data: Any, thresholds: str = "f1") -> ProbabilityModel:
        """Fit probabilities, and one threshold per label, to items that training has not seen; return them.

        Args:
            data: a data set as `evaluate` takes it.
            thresholds: what they are for: "f1" or "half".
        """
        counts, known = _counts(self.train_dataset, self.objective)  # type: ignore[attr-defined]
        predicted = self.predict(data)  # type: ignore[attr-defined]
        logits = torch.as_tensor(np.asarray(predicted.predictions), dtype=torch.float32)
        targets = torch.as_tensor(targets_of(predicted.label_ids))
        probability_model = ProbabilityModel.of_objective(self.objective.cpu(), self.loss_part, counts, known)
        self.objective.to(self.args.device)  # type: ignore[attr-defined]
        probability_model = probability_model.fit(logits, targets)
        eta = probability_model.out_of_fold(logits, targets) if probability_model.has_probability else None
        aim = Aim(thresholds)  # type: ignore[arg-type]
        self.probability_model = probability_model.with_thresholds(aim, eta, None if eta is None else targets)
        return self.probability_model

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the model as always, and calibration and thresholds beside it where they were fitted."""
        super().save_model(output_dir, _internal_call)  # type: ignore[misc]
        folder = Path(output_dir or self.args.output_dir)  # type: ignore[attr-defined]
        if self.probability_model is not None and folder.is_dir():
            self.probability_model.save(folder / FILE)


def load_probability_model(folder: str | os.PathLike[str]) -> ProbabilityModel:
    """Return the calibration that `save_model` wrote: `.probability(logits)` and `.decisions(probabilities)`.

    Args:
        folder: folder of the saved model.

    Examples:
        >>> from steelyard.integrations.huggingface import load_probability_model
        >>> load_probability_model(".")
        Traceback (most recent call last):
        ValueError: . holds no calibration.json: call calibrate before save_model
    """
    path = Path(folder) / FILE
    if not path.is_file():
        raise ValueError(f"{folder} holds no {FILE}: call calibrate before save_model")
    return ProbabilityModel.load(path)


@final
class _Epochs(TrainerCallback):  # type: ignore[misc]
    """Starts the epochs of an objective."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Begin the next epoch of `num_train_epochs`."""
        n_epochs = max(1, int(np.ceil(state.num_train_epochs or args.num_train_epochs)))
        self.objective.start_epoch(min(int(state.epoch or 0) + 1, n_epochs), n_epochs)


def _counts(data: Any, objective: Objective) -> tuple[Any, Any]:
    """Return positives and known labels of each label in training, (L,) each, as the objective takes unknown ones."""
    rows: Sequence[Any] = [data[i]["labels"] for i in range(len(data))]
    values = targets_of(np.stack([np.asarray(row) for row in rows]))
    if objective.resolver.assumes_negative:
        values = np.maximum(values, 0)
    return (values * (values > 0)).sum(0).astype(np.float64), (values != UNKNOWN).sum(0).astype(np.float64)


def _place(objective: Objective) -> torch.device:
    return next((t.device for t in (*objective.parameters(), *objective.buffers())), torch.device("cpu"))
