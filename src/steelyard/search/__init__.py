"""Search: find the items that best match a query such as "dog & person & ~car"."""

from steelyard.search.index import Hit, Index
from steelyard.search.query import Query, QueryError

__all__ = ["Hit", "Index", "Query", "QueryError"]
