"""SIGINT and SIGTERM at random moments: one line, exit code 130, and the same command goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

from torture.child import Ended, Running
from torture.commands import Command, Place
from torture.tally import Tally

EARLY = 0.02
"""Seconds in which a copy of this process may not have come to the command line: it ends as Python itself would."""
HELD_TO = "one line and exit code 130, or done; typed again, the result is equal"


def stopped(place: Place, command: Command, number: signal.Signals, times: int, rng: random.Random) -> Tally:
    """Stop a command at random moments."""
    tally = Tally(f"{number.name} at a random moment of {command.name}", HELD_TO)
    seconds = place.undisturbed(command)[1].seconds
    while tally.injected < times:
        running = Running(command.args, place.anew())
        after = rng.uniform(0, seconds)
        time.sleep(after)
        running.signal(number)
        ended = running.wait()
        early = after < EARLY and (ended.code, ended.out, ended.err) == (-number, "", "")
        wrong = ("" if early else ended.wrong(0, 130)) or place.finished(command)
        counts = bool(wrong) or (ended.code != 0 and not early)
        tally.add(f"after {after:.3f} s: {wrong}" if wrong else "", int(counts))
    return tally


def stopped_from_outside(place: Place, command: Command, times: int, rng: random.Random) -> Tally:
    """Stop a command that was started as a person starts it, so that it may be importing its libraries."""
    tally = Tally(f"SIGINT or SIGTERM while {command.name} starts in a process of its own", HELD_TO)
    place.undisturbed(command)
    start = [sys.executable, "-c", "import os, sys; from steelyard.cli import main; os.write(3, b'.'); main()"]
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    for _ in range(times):
        place.anew()
        reading, writing = os.pipe()
        began = time.monotonic()
        process = subprocess.Popen(
            ["/bin/sh", "-c", f'exec "$0" "$@" 3>&{writing}', *start, *command.args],
            cwd=place.work,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[writing],
        )
        os.close(writing)
        os.read(reading, 1)  # the command line is about to be read
        os.close(reading)
        after = rng.uniform(0, 4)
        time.sleep(after)
        process.send_signal(rng.choice([signal.SIGINT, signal.SIGTERM]))
        out, err = process.communicate()
        ended = Ended(process.returncode, out, err, 0, time.monotonic() - began)
        wrong = ended.wrong(0, 130) or place.finished(command)
        tally.add(f"after {after:.3f} s: {wrong}" if wrong else "")
    return tally
