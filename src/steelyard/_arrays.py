"""Names for the arrays that most modules pass on, and blocks of their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[np.float64]
Index: TypeAlias = NDArray[np.int64]


def slices(shape: Sequence[int], cells: int) -> Iterator[slice]:
    """Yield consecutive slices of the rows of a table; each has about `cells` cells, and at least one row."""
    n, step = shape[0], max(1, cells // max(1, shape[1]))
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))
