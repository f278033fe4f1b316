"""Images a second from files to batches of uint8 (B, 3, 112, 112): first epoch, cached epochs, and a plain reader.

    python bench/data_images.py FOLDER      # a folder of JPEG files, e.g. VOCdevkit/VOC2012/JPEGImages

Two worker processes for everyone. The plain reader is torchvision's (`torchvision.io.decode_jpeg` and its antialiased
resize) where that can be loaded, else a Pillow loop, as torchvision's `ImageFolder` does it. Its second pass over the
files counts, so that everyone reads them from the page cache.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sized
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from steelyard.data.dataset import ImageDataset
from steelyard.labels import Labels

SIDE, BATCH, WORKERS = 112, 128, 2


class Plain(Dataset[Tensor]):
    """What one would write without this package."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self.tv: Any = None
        try:
            from torchvision.io import decode_jpeg, read_file
            from torchvision.transforms.v2.functional import resize

            self.tv = decode_jpeg, read_file, resize
            self[0]
        except (ImportError, RuntimeError):  # not there, or built for another torch
            self.tv = None
        self.name = "Pillow loop" if self.tv is None else "torchvision.io.decode_jpeg"

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Tensor:
        if self.tv is not None:
            decode_jpeg, read_file, resize = self.tv
            image: Tensor = resize(decode_jpeg(read_file(str(self.paths[i])), mode="RGB"), [SIDE, SIDE], antialias=True)
            return image
        with Image.open(self.paths[i]) as image_file:
            pixels = np.array(image_file.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR))
        return torch.from_numpy(pixels).permute(2, 0, 1)


def rate(dataset: Dataset[Any] | Sized) -> float:
    """Items a second over one epoch, the start of the workers included."""
    start = time.perf_counter()
    count = 0
    for batch in DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS, prefetch_factor=4):
        count += len(batch[0] if isinstance(batch, list) else batch)
    assert count == len(dataset)
    return count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, default=20_000, help="use no more files than this")
    args = parser.parse_args()
    paths = sorted(args.folder.glob("*.jpg"))[: args.limit]
    if not paths:
        parser.error(f"no *.jpg in {args.folder}")
    labels = Labels(np.zeros((len(paths), 20), np.int8))
    plain = Plain(paths)
    rate(plain)
    print(f"{len(paths)} files, {SIDE} × {SIDE}, batches of {BATCH}, {WORKERS} workers, torch {torch.__version__}")
    print(f"{'plain reader: ' + plain.name:45} {rate(plain):8.0f} images/s")
    print(f"{'ImageDataset, no cache':45} {rate(ImageDataset(paths, labels, SIDE)):8.0f} images/s")
    with tempfile.TemporaryDirectory() as folder:
        dataset = ImageDataset(paths, labels, SIDE, cache=folder)
        print(f"{'ImageDataset, first epoch (fills the cache)':45} {rate(dataset):8.0f} images/s")
        for epoch in (2, 3):
            print(f"{f'ImageDataset, epoch {epoch} (from the cache)':45} {rate(dataset):8.0f} images/s")


if __name__ == "__main__":
    main()
