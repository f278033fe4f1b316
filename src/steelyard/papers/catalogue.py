"""Every table and figure of the four papers that can be run, by name."""

from __future__ import annotations

from steelyard.papers import db, pal, plm, plm_beyond, spa
from steelyard.papers.reproduction import Reproduction

CATALOGUE: dict[str, Reproduction] = {
    reproduction.name: reproduction for room in (plm, db, pal, spa, plm_beyond) for reproduction in room.REPRODUCTIONS
}
"""In the order of the papers, and of their tables and figures; last what goes beyond them."""
