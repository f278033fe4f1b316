"""Every table and figure of the four papers that can be run, by name."""

from __future__ import annotations

from steelyard_papers import (
    db,
    db_beyond,
    db_frozen,
    pal,
    pal_beyond,
    pal_feedback,
    plm,
    plm_beyond,
    plm_tracks,
    spa,
    spa_beyond,
)
from steelyard_papers.reproduction import Reproduction

CATALOGUE: dict[str, Reproduction] = {
    reproduction.name: reproduction
    for room in (plm, db, db_frozen, pal, spa, plm_beyond, plm_tracks, db_beyond, pal_beyond, pal_feedback, spa_beyond)
    for reproduction in room.REPRODUCTIONS
}
"""In the order of the papers, and of their tables and figures; last what goes beyond them."""
