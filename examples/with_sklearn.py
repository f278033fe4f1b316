"""Steelyard in a scikit-learn pipeline beside scikit-learn's own `CalibratedClassifierCV`, with missing labels.

    python examples/with_sklearn.py

Labels of `y` may be −1, unknown. scikit-learn's classifiers have no such thing: beside ours, each label's classifier is
given the items where that label is known. Both are judged on complete labels they have not seen. On this data
scikit-learn's pipeline is ahead.
"""

from __future__ import annotations

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import steelyard as sy
from steelyard.data import keep_labels
from steelyard.demo.digits import digit_pairs


def main(n_train: int = 1500, epochs: int = 20) -> dict[str, dict[str, float]]:
    train, test = digit_pairs(n_train, train=True), digit_pairs(1000, train=False)
    y = keep_labels(train.labels, 0.6, seed=0).values
    x, x_test = (part.inputs.reshape(len(part.inputs), -1).astype(np.float32) / 255 for part in (train, test))

    ours = GridSearchCV(
        make_pipeline(StandardScaler(), sy.SteelyardClassifier("bce", epochs=epochs, validation=0.2)),
        {"steelyardclassifier__lr": [0.003, 0.03]},
        cv=2,  # judged by SteelyardClassifier.score, the mean average precision over known labels
    ).fit(x, y)

    theirs = np.empty((len(x_test), y.shape[1]))
    for c in range(y.shape[1]):
        known = y[:, c] >= 0
        one = CalibratedClassifierCV(make_pipeline(StandardScaler(), LogisticRegression(C=0.01)), cv=3)
        theirs[:, c] = one.fit(x[known], y[known, c]).predict_proba(x_test)[:, 1]

    truth = test.labels.values
    return {
        name: {
            "mAP": sy.metrics.mean_average_precision(eta, truth),
            "log-loss": sy.metrics.log_loss(eta, truth),
            "ECE": float(sy.metrics.calibration_error(eta, truth).ece),
        }
        for name, eta in {"SteelyardClassifier": ours.predict_proba(x_test), "CalibratedClassifierCV": theirs}.items()
    }


if __name__ == "__main__":
    for name, scores in main().items():
        shown = (f"{what} " + (f"{v:.4f}" if what == "log-loss" else f"{100 * v:.1f} %") for what, v in scores.items())
        print(f"{name:24s}", *shown, sep="  ")
