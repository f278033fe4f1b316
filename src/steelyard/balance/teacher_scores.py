"""Another model's scores of the training items, read from a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


class TeacherScores:
    """Scores of items in a CSV or Parquet table: a column `id`, and a column of numbers for each label.

    Args:
        scores: the table; labels without a column and items without a row have no score.

    Examples:
        >>> import pyarrow, pyarrow.parquet
        >>> pyarrow.parquet.write_table(pyarrow.table({"id": ["a", "b"], "dog": [0.9, 0.2]}), "scores.parquet")
        >>> sy.balance.TeacherScores("scores.parquet").read(["b", "c"], ["dog", "car"])
        array([[0.2, nan],
               [nan, nan]])
    """

    def __init__(self, scores: str = "") -> None:
        self.path = scores

    def read(self, ids: Sequence[str], names: Sequence[str]) -> NDArray[np.float64]:
        """Return the scores (N, L) of items and labels, NaN where the table has none.

        Args:
            ids: of N items.
            names: of L labels.
        """
        where = f"objective.unknown.scores {self.path}"
        if not self.path:
            raise ValueError("objective.unknown.scores is missing: give a CSV or Parquet file with a column id")
        table = self._table(where)
        columns = [name for name in names if name in table.column_names]
        if "id" not in table.column_names or not columns:
            raise ValueError(f"{where}: it needs a column id and one column per label, named like {names[0]!r}")
        rows = {str(item): row for row, item in enumerate(table.column("id").to_pylist())}
        row_of = np.array([rows.get(str(item), -1) for item in ids], dtype=np.int64)
        if not (row_of >= 0).any():
            raise ValueError(f"{where}: no id is that of a training item ({ids[0]!r} is one): use the same ids")
        scores = np.full((len(ids), len(names)), np.nan)
        for name in columns:
            try:
                values = table.column(name).cast(pa.float64()).to_numpy()
            except pa.ArrowInvalid:
                raise ValueError(f"{where}: column {name!r} is not all numbers: write one score per cell") from None
            scores[row_of >= 0, list(names).index(name)] = values[row_of[row_of >= 0]]
        if np.isinf(scores).any():
            raise ValueError(f"{where}: a score is infinite: write finite numbers, and leave a missing score empty")
        return scores

    def _table(self, where: str) -> Any:
        from pyarrow import csv, parquet

        try:
            return (parquet.read_table if Path(self.path).suffix == ".parquet" else csv.read_csv)(self.path)
        except (OSError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0][:120]
            raise ValueError(f"{where} cannot be read ({reason}): give a CSV or Parquet file") from None
