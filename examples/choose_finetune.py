"""How is a pretrained backbone best trained further where nothing is set? Judged on training items alone, by mAP.

    python examples/choose_finetune.py DATA voc-mlt "+ finetune" 0       # or voc2012

Below DATA lie VOCdevkit/ (2012) and, for voc-mlt, labels/voc_mlt.npz. Of the training items a fifth is held out and
judged; what `auto` chooses by the labels is trained on the others with the defaults but for fewer epochs, the recipe
`finetune` added to it or left out, and changed. Prints the data, the way, the seed and the mAP; all ways by two seeds
where none is given.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import steelyard as sy
from steelyard.config.advice import resolve_auto
from steelyard.data import stratified_split, voc, voc_mlt
from steelyard.data.subset import Subset

KEPT: dict[str, Any] = {"model": {"keep_statistics": True}}
WAYS: dict[str, dict[str, Any]] = {
    "as before": {},
    "+ finetune": {},
    "+ finetune, statistics kept": KEPT,
    "+ finetune, statistics kept, one rate": KEPT | {"optimizer": {"backbone_lr": 1.0}},
    "+ finetune, statistics kept, mirrored": KEPT | {"train": {"augment": {"flip": 0.5, "resized_crop": 0.64}}},
}
SEEDS = (0, 1)
EPOCHS = {"voc-mlt": 8, "voc2012": 15}


def opened(name: str, root: Path) -> Any:
    """Return the training items."""
    if name == "voc-mlt":
        return voc_mlt(root / "labels/voc_mlt.npz", root)
    return voc(root, 2012, "train", "negative")


def main() -> None:
    """Print a line a run."""
    root, name, *rest = sys.argv[1:]
    ways, seeds = (rest[:1], (int(rest[1]),)) if rest else (list(WAYS), SEEDS)
    data = opened(name, Path(root))
    recipe, _ = resolve_auto(data.labels)
    for way in ways:
        for seed in seeds:
            train, judged = (Subset(data, part) for part in stratified_split(data.labels, 0.2, seed=seed))
            trained = {"seed": seed, "epochs": EPOCHS[name], **WAYS[way].get("train", {})}
            named = recipe if way == "as before" else f"{recipe}+finetune"
            run = sy.fit(
                train, named, validation=0.0, test=judged, settings={**WAYS[way], "train": trained}, verbose=False
            )
            print(f"{name}, {recipe}, {way}, seed {seed}: {100 * run.metrics['test']['mAP']['label']:.2f}", flush=True)


if __name__ == "__main__":
    main()
