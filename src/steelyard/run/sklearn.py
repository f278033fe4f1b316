"""Scikit-learn estimator for features, tables and texts, trained like any run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # scikit-learn before 1.6

    def validate_data(estimator: Any, X: Any, **how: Any) -> Any:
        """Check features, and remember or compare their number and names."""
        return estimator._validate_data(X, **how)


from steelyard.config.sections import Thresholds
from steelyard.data.columns.mixed import TEXTS, columns_of, named_columns
from steelyard.data.given import given_labels, lists_of_labels
from steelyard.labels import Labels
from steelyard.metrics import mean_average_precision
from steelyard.run.api import Run, fit


class SteelyardClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Multi-label classifier of features (N, F), tables or texts, with calibrated probabilities.

    `predict_proba` gives η (N, L), `decision_function` log-odds, and `predict` 1 where these are above 0, as
    scikit-learn's classifiers do, unless `thresholds` is set. `score` is the mean average precision over known labels.
    X is an array, a scipy sparse matrix, a list of texts, or a table of pandas, polars or Arrow of numbers, categories
    and texts. y is (N, L) of 1, 0, −1 (unknown) or between, dense or sparse; `classes_` holds the names of
    its columns, or their numbers.

    Args:
        recipe: a method of `steelyard train --recipes`; "auto" lets small models compete on the items.
        hidden: units of a hidden layer, trained by the training loop; 0 for none beyond the recipe's.
        epochs: epochs of the training loop; 0 chooses by the data. It and the next three imply the loop.
        batch_size: items per batch of the training loop; 0 chooses by the data.
        lr: learning rate of the training loop; None for the default.
        weight_decay: weight decay of the training loop; None for the default.
        validation: share of items held out for calibration and thresholds; None takes folds of all items, or a tenth
            for the training loop; 0 holds out none.
        thresholds: thresholds of `predict`: "half", or one per label as `steelyard train` chooses them: "f1",
            "precision", "recall", "cost".
        seed: seed of everything random.
        settings: other settings, a nested dict in the shape of the TOML file.
        verbose: whether progress is shown.

    Examples:
        >>> import numpy as np
        >>> import steelyard as sy
        >>> x = np.random.default_rng(0).normal(size=(80, 3))
        >>> y = (x[:, :2] > 0).astype(int)
        >>> classifier = sy.SteelyardClassifier("bce", validation=0.25).fit(x, y)
        >>> classifier.predict_proba(x[:5]).shape
        (5, 2)
        >>> classifier.predict(np.array([[3.0, -3.0, 0.0]]))
        array([[1, 0]])
        >>> classifier.score(x, y) > 0.9
        True
    """

    run_: Run
    classes_: NDArray[Any]
    n_features_in_: int

    def __init__(
        self,
        recipe: str = "auto",
        hidden: int = 0,
        epochs: int = 0,
        batch_size: int = 0,
        lr: float | None = None,
        weight_decay: float | None = None,
        validation: float | None = None,
        thresholds: Thresholds = "half",
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
        verbose: bool = False,
    ) -> None:
        self.recipe, self.hidden, self.epochs, self.batch_size = recipe, hidden, epochs, batch_size
        self.lr, self.weight_decay, self.validation, self.thresholds = lr, weight_decay, validation, thresholds
        self.seed, self.settings, self.verbose = seed, settings, verbose

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> Self:
        """Train on features and labels, and return the classifier.

        Args:
            X: features (N, F), a table, or texts.
            y: labels (N, L) of 1, 0, −1 (unknown) or between.
            groups: one value per item, (N,); items that share it stay together in every split.
            sample_weight: weight of each item in training, (N,); the training loop has none.
        """
        if y is None:
            raise ValueError(
                "SteelyardClassifier requires y to be passed, but the target y is None: give labels (N, L)"
            )
        if (columns := columns_of(X)) is None:
            x = validate_data(self, X, dtype=np.float32, accept_sparse="csr", ensure_min_samples=2)
        else:
            x, self.n_features_in_ = X, len(columns)
            self.__dict__.pop("feature_names_in_", None)
            if list(columns) != [TEXTS]:
                self.feature_names_in_ = np.array(list(columns), object)
        labels, named = _labels_of(y)
        overrides: dict[str, Any] = {
            "model": {"backbone": "mlp", "width": self.hidden} if self.hidden else {"backbone": "linear"},
            "optimizer": {"lr": self.lr, "weight_decay": self.weight_decay},
            "train": {"epochs": self.epochs, "batch_size": self.batch_size, "seed": self.seed, "device": "cpu"},
            "evaluate": {"thresholds": self.thresholds},
        }
        for section, content in (self.settings or {}).items():
            overrides[section] = {**overrides.get(section, {}), **content}
        share = None if self.validation is None else float(self.validation)
        self.run_ = fit(
            (x, labels),
            self.recipe,
            validation=share,
            groups=groups,
            sample_weight=sample_weight,
            settings=overrides,
            verbose=self.verbose,
        )
        self.classes_ = np.array(labels.names) if named else np.arange(labels.n_labels)
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Return the calibrated probabilities η (N, L) of X, in the form of `fit`."""
        x = self._features(X)
        return self.run_.probability(x, device="cpu")

    def decision_function(self, X: Any) -> NDArray[np.float32]:
        """Return the log-odds log η/(1−η) (N, L) of X, in the form of `fit`."""
        x = self._features(X)
        odds: NDArray[np.float32] = self.run_.trained.probability_model.log_odds(self.run_.logits(x, device="cpu"))
        return odds

    def predict(self, X: Any) -> NDArray[np.int64]:
        """Return 1 where a label is decided present, else 0, (N, L), for X, in the form of `fit`."""
        x = self._features(X)
        if (self.run_.trained.thresholds == 0.5).all():  # log-odds of 0 are undecided: absent, as in scikit-learn
            return (self.decision_function(x) > 0).astype(np.int64)
        return self.run_.decide(x, device="cpu").astype(np.int64)

    def score(self, X: Any, y: Any, sample_weight: None = None) -> float:
        """Return the mean average precision over known labels; without probabilities logits rank the items.

        Args:
            X: features (N, F).
            y: labels (N, L).
            sample_weight: must be None, which scikit-learn passes.
        """
        if sample_weight is not None:
            raise ValueError("sample_weight is given, but average precision here has none: leave it out")
        x = self._features(X)
        values = _labels_of(y, self.run_.names)[0].values
        ranked = self.run_.trained.probability_model.has_probability
        scores = self.decision_function(x) if ranked else self.run_.logits(x, device="cpu")
        return mean_average_precision(scores, values)

    def _features(self, X: Any) -> Any:
        check_is_fitted(self, "run_")
        if self.run_.trained.encoder is not None:
            return X
        return validate_data(self, X, dtype=np.float32, accept_sparse="csr", reset=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class, tags.classifier_tags.multi_label = False, True
        tags.target_tags.multi_output, tags.target_tags.single_output = True, False
        tags.target_tags.two_d_labels = True
        tags.input_tags.sparse = True
        return tags


def _labels_of(y: Any, names: Sequence[str] | None = None) -> tuple[Labels, bool]:
    """Return y as a table of labels, and whether it names them: a table, or one list of labels per item.

    `names` are those of training, where these are other items.
    """
    if hasattr(y, "toarray"):
        return given_labels(y), False
    if (listed := lists_of_labels(y)) is not None:
        return given_labels(listed, names), True
    values = np.asarray(y)
    if values.ndim != 2:
        kind = f", {type_of_target(values)}" if values.ndim == 1 and values.size else ""
        raise ValueError(
            f"y has shape {values.shape}{kind}: Only binary classification is supported. Give one column of 0 and 1 "
            "per class, (N, L); of a single class y[:, None]"
        )
    if named_columns(y) is not None:
        return given_labels(y), True
    if hasattr(y, "columns"):
        return given_labels(values, [str(name) for name in y.columns]), True
    if values.dtype == object:  # numbers among objects are numbers
        with suppress(TypeError, ValueError):
            values = values.astype(np.float64)
    return given_labels(values), False
