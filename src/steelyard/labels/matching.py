"""Labels of two tables matched by their names, whatever their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from steelyard.labels import UNKNOWN


@dataclass(frozen=True)
class Match:
    """The position of each label of a model among those of some data."""

    columns: tuple[int, ...]
    """The data's column of each of the model's labels, −1 where it has none."""
    n_columns: int
    """The number of labels of the data."""
    lacking: tuple[str, ...]
    """The model's labels that the data lacks."""
    besides: tuple[str, ...]
    """The data's labels that the model does not know."""

    @property
    def notes(self) -> list[str]:
        """One sentence for each difference."""
        notes = []
        if self.lacking:
            notes.append(f"the data lacks {some_labels(self.lacking)} of the model: unknown, not absent, for all items")
        if self.besides:
            notes.append(f"the data also has {some_labels(self.besides)}, which the model does not know: ignored")
        return notes

    def targets(self, values: Tensor) -> Tensor:
        """Return targets (N, L') of the data as (N, L) in the order of the model, unknown where the data lacks one."""
        if values.ndim != 2 or values.shape[1] != self.n_columns:
            raise ValueError(f"targets has shape {tuple(values.shape)}: give (N, {self.n_columns}), a column per label")
        if self.columns == tuple(range(self.n_columns)):
            return values
        out = torch.full((len(values), len(self.columns)), UNKNOWN, dtype=_signed(values.dtype))
        columns = torch.tensor(self.columns)
        out[:, columns >= 0] = values[:, columns[columns >= 0]].to(out.dtype)
        return out


def match_labels(names: Sequence[str], others: Sequence[str]) -> Match:
    """Return the position of each label of a model, `names`, among `others`; no label in common is an error."""
    position = {name: c for c, name in enumerate(others)}
    columns = tuple(position.get(name, -1) for name in names)
    if max(columns) < 0:
        raise ValueError(
            f"the data has none of the model's labels, but {some_labels(tuple(others))} where the model has "
            f"{some_labels(tuple(names))}: give data with the same label names"
        )
    known = set(names)
    lacking = tuple(name for name in names if name not in position)
    return Match(columns, len(others), lacking, tuple(name for name in others if name not in known))


def _signed(dtype: torch.dtype) -> torch.dtype:
    return torch.int8 if dtype in (torch.bool, torch.uint8) else dtype


def some_labels(names: Sequence[str]) -> str:
    """Return labels by name, the first few of many."""
    shown = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"label{'' if len(names) == 1 else 's'} {shown}"
