"""From which share of unknown labels on do pseudo-labels pay? Judged on training items alone, by mAP.

    python examples/choose_partial_recipe.py FEATURES.npz emotions-train.arff scene-train.arff yeast-train.arff

In FEATURES.npz X_train, and Y_train with 1 present, 0 unknown, -1 absent; beside NAME-train.arff lies NAME.xml.
Of the training items a fifth is held out with all of its labels; of the others each label is kept with probability q.
By a hidden layer under dropout, three seeds: cross-entropy over the known labels (`bce`), pseudo-labels for some of the
unknown ones (`pal`), and the unknown ones as weak negatives (`wan`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from steelyard import SteelyardClassifier
from steelyard.data import arff, keep_labels, stratified_split
from steelyard.labels import Labels

RECIPES = ("bce", "pal", "wan")
SHARES = (0.3, 0.1, 0.03)
SEEDS = 3
DROPOUT = {"model": {"dropout": 0.5}}


def read(path: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return features and targets of the training items."""
    if path.suffix == ".npz":
        with np.load(path) as file:
            x, raw = file["X_train"].astype(np.float32), file["Y_train"]
        return x, np.where(raw == 1, 1, np.where(raw == 0, -1, 0))
    xml = path.with_name(path.stem.removesuffix("-train") + ".xml")
    data = arff(path, xml)
    return np.asarray(data.inputs, np.float32), data.labels.values


def main() -> None:
    print(f"{'':>16s}{'known':>8s}" + "".join(f"{recipe:>16s}" for recipe in RECIPES))
    for path in map(Path, sys.argv[1:]):
        x, y = read(path)
        x = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)  # a column that is constant stays so
        for share in SHARES:
            said = ""
            for recipe in RECIPES:
                found = []
                for seed in range(SEEDS):
                    rest, judge = stratified_split(Labels(y), 0.2, seed=seed)
                    known = keep_labels(Labels(y[rest]), share, seed)
                    model = SteelyardClassifier(recipe, hidden=512, validation=0.0, seed=seed, settings=DROPOUT)
                    found.append(100 * model.fit(x[rest], known.values).score(x[judge], y[judge]))
                said += f"{np.mean(found):10.2f} ± {np.std(found):.2f}"
            print(f"{path.stem:>16.16s}{share:8.0%}{said}", flush=True)


if __name__ == "__main__":
    main()
