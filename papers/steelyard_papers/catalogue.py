"""Every table and figure of the four papers that can be run, by name."""

from __future__ import annotations

from steelyard_papers import (
    db,
    db_beyond,
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
    for part in (
        *(plm.REPRODUCTIONS, db.REPRODUCTIONS, db_beyond.TWINS, pal.REPRODUCTIONS, spa.REPRODUCTIONS),
        *(beyond.REPRODUCTIONS for beyond in (plm_beyond, plm_tracks, db_beyond, pal_beyond, pal_feedback, spa_beyond)),
    )
    for reproduction in part
}
"""In the order of the papers, and of their tables and figures; last what goes beyond them."""
