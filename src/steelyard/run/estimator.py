"""A scikit-learn estimator over the same training, for feature matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_array, check_is_fitted

from steelyard.labels import Labels
from steelyard.metrics import mean_average_precision
from steelyard.run.api import Run, fit


class SteelyardClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A multi-label classifier of features (N, F) whose probabilities are calibrated on items it holds out.

    `predict_proba` gives η (N, L), `predict` 0 or 1 by thresholds of its own, `decision_function` log-odds. `score` is
    the mean average precision over known labels. Y is (N, L) of 1, 0, −1 (unknown) or between, dense or sparse.

    Args:
        recipe: a method of `steelyard train --recipes`; "auto" is chosen by the labels.
        hidden: units of a hidden layer; 0 for a linear model.
        epochs, batch_size, lr, weight_decay: of training.
        validation: the share of items held out for calibration, thresholds and the choice of the epoch; 0 for none.
        seed: of everything random.
        settings: any other settings, a nested dict in the shape of the TOML file.
        verbose: whether progress is shown.
    """

    run_: Run
    classes_: NDArray[Any]
    n_features_in_: int

    def __init__(
        self,
        recipe: str = "auto",
        hidden: int = 0,
        epochs: int = 30,
        batch_size: int = 128,
        lr: float = 3e-3,
        weight_decay: float = 0.01,
        validation: float = 0.1,
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
        verbose: bool = False,
    ) -> None:
        self.recipe, self.hidden, self.epochs, self.batch_size = recipe, hidden, epochs, batch_size
        self.lr, self.weight_decay, self.validation, self.seed = lr, weight_decay, validation, seed
        self.settings, self.verbose = settings, verbose

    def fit(self, X: Any, Y: Any) -> Self:
        """Train on features X (N, F) and labels Y (N, L)."""
        x = check_array(X, dtype=np.float32)
        names = [str(name) for name in Y.columns] if hasattr(Y, "columns") else None
        values = Y.toarray() if hasattr(Y, "toarray") else np.asarray(Y)
        if values.ndim != 2:
            raise ValueError(f"Y has shape {values.shape}: give one column a label, (N, L)")
        said: dict[str, Any] = {
            "model": {"backbone": "mlp", "width": self.hidden} if self.hidden else {"backbone": "linear"},
            "optimizer": {"lr": self.lr, "weight_decay": self.weight_decay},
            "train": {"epochs": self.epochs, "batch_size": self.batch_size, "seed": self.seed, "device": "cpu"},
        }
        for section, content in (self.settings or {}).items():
            said[section] = {**said.get(section, {}), **content}
        labels = Labels(values, names=names)
        self.run_ = fit(
            (x, labels), self.recipe, validation=float(self.validation), settings=said, verbose=self.verbose
        )
        self.n_features_in_, self.classes_ = x.shape[1], np.array(labels.names)
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Return η (N, L)."""
        return self.run_.probability(self._features(X), device="cpu")

    def decision_function(self, X: Any) -> NDArray[np.float32]:
        """Return log η/(1−η) (N, L)."""
        odds: NDArray[np.float32] = self.run_.trained.reading.log_odds(
            self.run_.logits(self._features(X), device="cpu")
        )
        return odds

    def predict(self, X: Any) -> NDArray[np.int64]:
        """Return 1 where a label is decided present, else 0, (N, L)."""
        return self.run_.decide(self._features(X), device="cpu").astype(np.int64)

    def score(self, X: Any, Y: Any, sample_weight: None = None) -> float:
        """Return the mean average precision over known labels."""
        if sample_weight is not None:
            raise ValueError("sample_weight is given, but average precision here has none: leave it out")
        values = Y.toarray() if hasattr(Y, "toarray") else np.asarray(Y)
        return mean_average_precision(self.decision_function(X), values)

    def _features(self, X: Any) -> NDArray[np.float32]:
        check_is_fitted(self, "run_")
        x: NDArray[np.float32] = check_array(X, dtype=np.float32)
        if x.shape[1] != self.n_features_in_:
            raise ValueError(f"X has {x.shape[1]} features, but {self.n_features_in_} were trained on: give as many")
        return x
