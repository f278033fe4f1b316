"""Read decimal commas in CSV files that another sign divides, as spreadsheets of many countries write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow.compute as pc

_COMMA: Final = r"^\s*[+-]?\d*,\d+(?:e[+-]?\d+)?\s*$"
_NO_LIST: Final = r"^\s*(?:[+-]\d*,\d+|\d*,(?:0\d+|\d{3,}))(?:e[+-]?\d+)?\s*$"
"""A number with a decimal comma that cannot be a list of two class numbers, as 3,17 can."""


def has_decimal_commas(columns: Mapping[str, Any]) -> bool:
    """Return whether a cell of some columns of texts is certainly a number with a decimal comma."""
    return any(pc.any(_matches(column, _NO_LIST)).as_py() for column in columns.values())


def with_points(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns of texts with a point in each number that has a decimal comma."""
    return {
        name: pc.if_else(_matches(column, _COMMA), pc.replace_substring(column, ",", "."), column)
        for name, column in columns.items()
    }


def _matches(column: Any, pattern: str) -> Any:
    return pc.match_substring_regex(column, pattern, ignore_case=True)
