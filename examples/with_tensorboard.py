"""A run's history in TensorBoard, on pairs of digits with missing labels.

    python examples/with_tensorboard.py runs/board && tensorboard --logdir runs/board

`train.tensorboard = true`, in a TOML file or here, writes every epoch's numbers into the run folder. Needs
`pip install tensorboard`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import steelyard as sy
from steelyard.data import keep_labels
from steelyard.demo.digits import digit_pairs


def main(out: str, n_train: int = 600, epochs: int = 3) -> Path:
    pairs = digit_pairs(n_train, train=True)
    settings = {
        "model": {"backbone": "small"},
        "train": {"epochs": epochs, "device": "cpu", "tensorboard": True},
    }
    labels = keep_labels(pairs.labels, 0.6, seed=0)
    sy.fit((pairs.inputs, labels), "plm", out=out, validation=0.2, settings=settings, verbose=False)
    return Path(out)


if __name__ == "__main__":
    print(f"tensorboard --logdir {main(sys.argv[1])}")
