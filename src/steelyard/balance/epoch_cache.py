"""Random draws made ahead: one pass over all items at the start of an epoch; steps look up rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from steelyard._arrays import slices

_CELLS = 1 << 22  # drawn at a time: random numbers pass through several 64-bit temporaries


class EpochCache:
    """A row (L,) of draws for every item of an epoch.

    The rows keep their address from epoch to epoch, so that a captured step can read them.
    """

    def __init__(self) -> None:
        self.epoch, self._rows = 0, torch.empty(0)

    def draw(self, epoch: int, n_items: int, n_labels: int, rows: Callable[[slice], Tensor]) -> None:
        """Draw `epoch`: `rows(a:b)` gives the draws (b − a, L) of items a … b − 1."""
        self.forget()
        for some in slices((n_items, n_labels), _CELLS):
            drawn = rows(some)
            if self._rows.shape != (n_items, n_labels) or self._rows.device != drawn.device:
                self._rows = torch.empty((n_items, n_labels), dtype=drawn.dtype, device=drawn.device)
            self._rows[some] = drawn
        self.epoch = epoch

    def forget(self) -> None:
        """Discard cached draws; their inputs are about to change."""
        self.epoch = 0

    def table(self, epoch: int) -> Tensor | None:
        """Return the draws (N, L) of all items, None where this epoch was not drawn ahead."""
        return self._rows if self.epoch == epoch else None
