"""kill −9, at random moments and at the very write; typed again, the command leaves what it leaves undisturbed."""

from __future__ import annotations

import random
import signal
import time

from torture.child import KILL, Running, arm, typed
from torture.commands import Command, Place
from torture.tally import Tally

EQUAL = "typed again, the result is equal"


def at_random(place: Place, command: Command, kills: int, rng: random.Random) -> Tally:
    """Kill a command `kills` times; some restarts are killed too, before one is let be."""
    tally = Tally(f"kill −9 at a random moment of {command.name}", EQUAL)
    seconds = place.undisturbed(command)[1].seconds
    while tally.injected < kills:
        place.anew()
        here = 0
        for _ in range(3):
            running = Running(command.args, place.work)
            time.sleep(rng.uniform(0, seconds))
            running.signal(signal.SIGKILL)
            ended = running.wait()
            here += ended.code == -signal.SIGKILL
            if ended.code == 0 or rng.random() < 0.6:
                break
        tally.add(place.finished(command), here)
    return tally


def at_writes(place: Place, command: Command, every: int, rng: random.Random) -> Tally:
    """Kill a command at its n-th write, half of which reaches the file, for every so many n."""
    tally = Tally(f"kill −9 at a write of {command.name}", EQUAL)
    for at in range(rng.randint(1, every), place.undisturbed(command)[1].writes + 1, every):
        ended = typed(command.args, place.anew(), lambda at=at: arm(KILL, at))
        wrong = place.finished(command) if ended.code == -signal.SIGKILL else ended.wrong(-signal.SIGKILL)
        tally.add(f"write {at}: {wrong}" if wrong else "")
    return tally
