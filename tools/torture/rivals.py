"""Two commands that write to one run at once."""

from __future__ import annotations

import random
import time

from torture.child import Running
from torture.commands import Command, Place, different, left
from torture.tally import Tally


def two_writers(place: Place, command: Command, times: int, rng: random.Random) -> Tally:
    """Type a command twice, the second time at a random moment of the first."""
    tally = Tally(
        f"a second {command.name} into the same run",
        "one of them is done, the other done too or refused in one line; the result is equal",
    )
    wanted, undisturbed = place.undisturbed(command)
    for _ in range(times):
        work = place.anew()
        first = Running(command.args, work)
        after = rng.uniform(0, undisturbed.seconds)
        time.sleep(after)
        second = Running(command.args, work)
        ends = [first.wait(), second.wait()]
        wrong = next((why for ended in ends if (why := ended.wrong(0, 2))), "")
        if not wrong and all(ended.code for ended in ends):
            wrong = f"both are refused: {ends[0].err!r}, {ends[1].err!r}"
        wrong = wrong or different(left(work, command), wanted)
        tally.add(f"after {after:.3f} s: {wrong}" if wrong else "")
    return tally
