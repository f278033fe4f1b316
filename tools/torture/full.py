"""A disk that is full from the n-th write on, for every n: one line says where, and what is there stays whole."""

from __future__ import annotations

import random
import re

from torture.child import FULL, Ended, arm, typed
from torture.commands import Command, Place
from torture.tally import Tally


def disk_full(place: Place, command: Command, every: int, rng: random.Random) -> Tally:
    """Refuse a command its n-th write and all later ones, for every so many n; then there is room again."""
    tally = Tally(
        f"disk full at a write of {command.name}", "one line says so and where; typed again, the result is equal"
    )
    for at in range(rng.randint(1, every), place.undisturbed(command)[1].writes + 1, every):
        ended = typed(command.args, place.anew(), lambda at=at: arm(FULL, at))
        wrong = refusal(ended) or place.finished(command)
        tally.add(f"write {at}: {wrong}" if wrong else "")
    return tally


def refusal(ended: Ended) -> str:
    """What is wrong about the end of a command that could not write; one that could do without is right."""
    if ended.code == 0:
        return ended.wrong(0)
    if wrong := ended.wrong(2):
        return wrong
    says = re.search(r"(steelyard: [^:\[]+: |\S[./]\w).*No space left", ended.err)
    return "" if says else f"does not say where: {ended.err.strip()!r}"
