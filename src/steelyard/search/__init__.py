"""Find: from "dog & person & ~car" to the items that most probably are that."""

from steelyard.search.index import Hit, Index
from steelyard.search.query import Query, QueryError

__all__ = ["Hit", "Index", "Query", "QueryError"]
