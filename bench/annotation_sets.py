"""The sets of the studies of audit and next, errors that are planted in them, and VOC 2007's real ones.

    python bench/annotation_sets.py --data DATA --out FEATURES.npz      # features of VOC 2007's photographs, minutes

The rules are those of docs/annotation/README.md, which was written before the studies were run.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch

from defaults import load
from steelyard.labels import UNKNOWN
from steelyard.models.lite import Lite

SETS = ("yeast", "scene", "bibtex", "voc", "digits")
KINDS = ("random", "confusable")
SHARE = 0.1
NEIGHBOURS = 3
SIDE = 160

Array = np.ndarray[Any, Any]

__all__ = ["KINDS", "SETS", "load", "planted", "some_unknown", "voc2007"]


def planted(x: Array, y: Array, kind: str, seed: int) -> Array:
    """Return the labels (N, L) with errors in a tenth of each label's positives; unknown cells stay unknown.

    "random": a tenth of a label's positives become absent, and as many of its negatives, drawn at random, present.
    "confusable": a tenth of a label's positives, drawn at random, are given another label in its place: the first of
    the three most similar ones (cosine of the mean standardised features of their positives) that the item lacks.
    """
    rng = np.random.default_rng(seed)
    given = y.copy()
    near = _most_similar(x, y) if kind == "confusable" else None
    for c in range(y.shape[1]):
        positives = rng.permutation(np.flatnonzero(y[:, c] == 1))
        n = round(SHARE * len(positives))
        if near is None:
            negatives = rng.permutation(np.flatnonzero(y[:, c] == 0))
            n = min(n, len(negatives))
            given[positives[:n], c], given[negatives[:n], c] = 0, 1
        else:
            for i in positives.tolist():
                other = next((d for d in near[c] if y[i, d] == given[i, d] == 0), None)
                if n > 0 and other is not None and given[i, c] == 1:
                    given[i, c], given[i, other] = 0, 1
                    n -= 1
    return given


def _most_similar(x: Array, y: Array) -> Array:
    """Return the labels that each label is most easily taken for, (L, 3)."""
    deviation = x.std(0)
    standard = (x - x.mean(0)) / np.where(deviation > 1e-6, deviation, 1)
    has = (y == 1).astype(np.float32)
    means = has.T @ standard / np.maximum(has.sum(0), 1)[:, None]
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    similarity = means @ means.T
    np.fill_diagonal(similarity, -np.inf)
    return np.argsort(-similarity, axis=1, kind="stable")[:, :NEIGHBOURS]


def some_unknown(given: Array, share: float, seed: int) -> Array:
    """Return the labels with a share of the cells unknown, drawn at random."""
    hidden = np.random.default_rng(seed + 10_000).random(given.shape) < share
    return np.where(hidden, UNKNOWN, given).astype(given.dtype)


def voc2007(data: Path, features: Path) -> tuple[Array, Array, Array, tuple[str, ...]]:
    """Return features, the official labels (1, 0, −1 difficult), the incomplete ones (1, 0), and the names."""
    with np.load(data / "voc" / "voc2007-trainval.npz") as arrays:
        official, given, names = arrays["labels"], arrays["labels_incomplete"], arrays["classes"]
    true = np.where(official == 0, UNKNOWN, official == 1).astype(np.int8)
    with np.load(features) as arrays:
        return arrays["X"].astype(np.float32), true, given.astype(np.int8), tuple(names.tolist())


def photographs(data: Path) -> Array:
    """Return features (N, 1280) of VOC 2007, photographs squeezed to 160 × 160, by a frozen EfficientNet-Lite0."""
    from PIL import Image

    with np.load(data / "voc" / "voc2007-trainval.npz") as arrays:
        offsets = arrays["offsets"].tolist()
    pack = np.memmap(data / "voc" / "voc2007-trainval.jpgpack", np.uint8, mode="r")
    network = Lite("lite0", pretrained=True).eval()
    assert network.statistics is not None
    mean, deviation = (torch.tensor(part).view(3, 1, 1) for part in network.statistics)
    rows = []
    for start in range(0, len(offsets) - 1, 32):
        ends = range(start, min(start + 32, len(offsets) - 1))
        images = [Image.open(io.BytesIO(pack[offsets[i] : offsets[i + 1]].tobytes())).convert("RGB") for i in ends]
        pixels = np.stack([np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)) for image in images])
        x = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
        with torch.inference_mode():
            rows.append(network.maps((x - mean) / deviation).mean((2, 3)).half().numpy())
        if start % 640 == 0:
            print(f"{start} of {len(offsets) - 1}", flush=True)
    return np.concatenate(rows)


def main() -> None:
    """Compute the features."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    np.savez(args.out, X=photographs(args.data))


if __name__ == "__main__":
    main()
