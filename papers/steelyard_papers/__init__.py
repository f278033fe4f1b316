"""The papers' tables and figures, each by `steelyard reproduce NAME` on a person's own copy of the data."""
