"""Steelyard in a scikit-learn pipeline beside scikit-learn's own `CalibratedClassifierCV`, with missing labels.

    python examples/with_sklearn.py [reliability.svg]

Labels of `y` may be −1, unknown. scikit-learn's classifiers do not take unknown labels, so each label's classifier gets
the items where that label is known. Both are scored on complete labels that they have not seen. On this data
scikit-learn's pipeline is ahead.
"""

from __future__ import annotations

import sys

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import steelyard as sy
from steelyard.data import keep_labels
from steelyard.demo.digits import digit_pairs


def main(n_train: int = 1500, epochs: int = 20, figure: str = "") -> dict[str, dict[str, float]]:
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

    truth, scores, curves = test.labels.values, {}, []
    for name, eta in {"SteelyardClassifier": ours.predict_proba(x_test), "CalibratedClassifierCV": theirs}.items():
        error = sy.metrics.calibration_error(eta, truth)
        curves.append((name, error.bins))
        scores[name] = {
            "mAP": sy.metrics.mean_average_precision(eta, truth),
            "log-loss": sy.metrics.log_loss(eta, truth),
            "ECE": float(error.ece),
        }
    if figure:
        sy.report.save_figure(sy.report.reliability_diagram(curves), figure)
    return scores


if __name__ == "__main__":
    for name, scores in main(figure=sys.argv[1] if sys.argv[1:] else "").items():
        texts = (f"{key} " + (f"{v:.4f}" if key == "log-loss" else f"{100 * v:.1f} %") for key, v in scores.items())
        print(f"{name:24s}", *texts, sep="  ")
