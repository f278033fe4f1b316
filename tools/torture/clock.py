"""A clock that is wrong by years, otherwise at every look: nothing that counts depends on it."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
import urllib.parse
import urllib.request
from pathlib import Path

from steelyard.search import Index
from torture.child import Running, asked, jump, typed
from torture.commands import TRAIN, Command, Place, different, left
from torture.tally import Tally

YEARS = 10 * 365.25 * 86400


def jumps(place: Place, command: Command, times: int, rng: random.Random) -> Tally:
    """Run a command while the clock jumps, on files whose times lie anywhere; a training is killed in between."""
    tally = Tally(f"a jumping clock during {command.name}", "the result is equal")
    seconds = place.undisturbed(command)[1].seconds
    for _ in range(times):
        place.anew()
        if command is TRAIN:
            running = Running(command.args, place.work, jump)
            time.sleep(rng.uniform(0.3, 0.9) * seconds)
            running.signal(signal.SIGKILL)
            running.wait()
        for path in place.work.rglob("*"):
            when = time.time() + rng.uniform(-YEARS, YEARS)
            os.utime(path, (when, when))
        if not (place.work / "new" / "run.json").is_file():
            ended = typed(command.args, place.work, jump)
            if wrong := ended.wrong(0):
                tally.add(wrong)
                continue
        tally.add(different(left(place.work, command), place.undisturbed(command)[0]))
    return tally


def serving(place: Place, requests: int, rng: random.Random) -> Tally:
    """Ask a server whose clock jumps, while items are added to its index; compare with the index itself."""
    tally = Tally("a jumping clock during serve, while its index grows", "every answer is that of the index")
    work = place.anew()
    running = Running(("serve", "run", "--port", "0"), work, jump)
    try:
        address = address_of(running)
        for i in range(requests):
            if i % 5 == 0:
                asked(lambda i=i: _grow(work / "run" / "index", i))
                time.sleep(1.2)  # a server may be a second behind
            query = rng.choice(["cat", "dog", "cat & ~dog", "dog | cat"])
            url = f"{address}/api/search?q={urllib.parse.quote(query)}&k=100"
            wanted = asked(lambda query=query: _found(work / "run" / "index", query))
            with urllib.request.urlopen(url, timeout=30) as reply:
                found = [hit["id"] for hit in json.load(reply)["hits"]]
            tally.add("" if found == wanted else f"{query}: {len(found)} hits, not {len(wanted)}")
    except OSError as error:
        tally.add(f"no answer: {error}")
    running.signal(signal.SIGTERM)
    ended = running.wait(time.monotonic() - running.started + 30)
    tally.add(ended.wrong(0), 0)
    return tally


def address_of(running: Running) -> str:
    """Where a server says that it listens."""
    for _ in range(3000):
        if found := re.search(r"http://\S+", running.said()):
            return found[0]
        time.sleep(0.01)
    raise OSError("it does not listen")


def _grow(folder: Path, i: int) -> None:
    with Index.open(folder) as index:
        eta = random.Random(i).random()
        index.append([f"new {i}"], [[eta] * len(index.names)])


def _found(folder: Path, query: str) -> list[str]:
    with Index.open(folder) as index:
        return [hit.id for hit in index.search(query, k=100)]
