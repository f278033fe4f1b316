"""Images a second from files to batches of uint8 (B, 3, 112, 112): first epoch, cached epochs, and a plain reader.

    python bench/data_images.py FOLDER      # a folder of JPEG files, e.g. VOCdevkit/VOC2012/JPEGImages

Two worker processes for everyone. The plain reader is torchvision's as its `ImageFolder` reads: default_loader, resize,
pil_to_tensor. Its second pass over the files counts, so that everyone reads them from the page cache.
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
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from steelyard._compat import import_torchvision
from steelyard.data.dataset import ImageDataset
from steelyard.labels import Labels

SIDE, BATCH, WORKERS = 112, 128, 2


class Plain(Dataset[Tensor]):
    """What one would write without this package: torchvision's loader of image folders and its resize."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        import_torchvision()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Tensor:
        from torchvision.datasets.folder import default_loader
        from torchvision.transforms.v2.functional import pil_to_tensor, resize

        image: Tensor = pil_to_tensor(resize(default_loader(str(self.paths[i])), [SIDE, SIDE]))
        return image


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
    print(f"{'torchvision, as ImageFolder reads':45} {rate(plain):8.0f} images/s")
    print(f"{'ImageDataset, no cache':45} {rate(ImageDataset(paths, labels, SIDE)):8.0f} images/s")
    with tempfile.TemporaryDirectory() as folder:
        dataset = ImageDataset(paths, labels, SIDE, cache=folder)
        print(f"{'ImageDataset, first epoch (fills the cache)':45} {rate(dataset):8.0f} images/s")
        for epoch in (2, 3):
            print(f"{f'ImageDataset, epoch {epoch} (from the cache)':45} {rate(dataset):8.0f} images/s")


if __name__ == "__main__":
    main()
