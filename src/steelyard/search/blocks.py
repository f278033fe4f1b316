"""Checksums of a file that is written once, block by block: what is read is tested before it is believed, once."""

from __future__ import annotations

import base64
import binascii
import zlib
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray


def sums_of(path: Path, block: int) -> str:
    """Return the CRC-32 of each block of `block` bytes of a file, as text."""
    with path.open("rb") as file:
        sums = [zlib.crc32(content) for content in iter(lambda: file.read(block), b"")]
    return base64.b64encode(np.array(sums, "<u4").tobytes()).decode()


@final
class Blocks:
    """The bytes of a file, mapped into memory, with the checksums of its blocks.

    Args:
        path: of the file.
        sums: what `sums_of` gave when it was written; "" where that was not noted, and nothing is tested.
        block: bytes of a block.
    """

    def __init__(self, path: Path, sums: str, block: int) -> None:
        self.path, self.block = path, block
        self.bytes: NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
        try:
            self._sums = np.frombuffer(base64.b64decode(sums), "<u4") if sums else None
        except binascii.Error:
            self._sums = np.zeros(0, "<u4")
        n_blocks = -(-len(self.bytes) // block)
        if self._sums is not None and len(self._sums) != n_blocks:
            raise self._damaged("it has not its length")
        self._tested = np.full(n_blocks, self._sums is None)

    def test(self, start: int = 0, stop: int | None = None) -> None:
        """Raise unless the bytes `start` to `stop` are as they were written."""
        end = len(self.bytes) if stop is None else stop
        self._test(range(start // self.block, -(-end // self.block)))

    def test_at(self, offsets: NDArray[Any]) -> None:
        """Raise unless the four bytes at each of `offsets` are as they were written."""
        self._test(np.union1d(offsets // self.block, (offsets + 3) // self.block).tolist())

    def _test(self, numbers: range | list[int]) -> None:
        for number in numbers:
            if self._tested[number] or self._sums is None:
                continue
            start = number * self.block
            if zlib.crc32(self.bytes[start : start + self.block].data) != self._sums[number]:
                raise self._damaged(f"the block at byte {start:,} does not have its checksum")
            self._tested[number] = True

    def _damaged(self, what: str) -> ValueError:
        return ValueError(f"{self.path} is damaged ({what}): make the index anew")
