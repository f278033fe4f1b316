"""The numbers of every epoch in MLflow: a logger is any object with `log(numbers, epoch)`.

    python examples/with_mlflow.py

TensorBoard needs no such class: set `train.tensorboard = true` (examples/with_tensorboard.py). This example needs
`pip install mlflow`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import mlflow

import steelyard as sy
from steelyard.demo.digits import digit_pairs


class MLflow:
    """Writes to the run of MLflow that is active."""

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        """Keep the numbers of an epoch."""
        mlflow.log_metrics(dict(numbers), step=epoch)


def main(n_train: int = 600, epochs: int = 3) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        mlflow.set_tracking_uri(f"sqlite:///{Path(folder) / 'mlflow.db'}")
        with mlflow.start_run() as kept:
            data, settings = digit_pairs(n_train, train=True), {"train": {"epochs": epochs}}
            run = sy.fit(data, "bce", logger=MLflow(), settings=settings)
            mlflow.log_metrics({"mAP": run.metrics["validation"]["mAP"]["label"]})
        numbers: dict[str, float] = mlflow.get_run(kept.info.run_id).data.metrics
    print(numbers)
    return numbers


if __name__ == "__main__":
    main()
