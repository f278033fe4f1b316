"""A run that is trained again while it is served: every answer is that of the old index or of the new one, whole."""

from __future__ import annotations

import json
import random
import signal
import time
import urllib.parse
import urllib.request

from torture.child import Running, asked
from torture.clock import address_of
from torture.commands import QUICK, Place, content_of_index
from torture.tally import Tally

QUERIES = ("cat", "dog", "cat & ~dog", "dog | cat")


def retrained(place: Place, times: int, rng: random.Random) -> Tally:
    """Train a run again on other items while a server answers from it."""
    tally = Tally("a run trained again while it is served", "every answer is wholly that of the old run or of the new")
    work = place.anew()
    server = Running(("serve", "run", "--port", "0"), work)
    try:
        address = address_of(server)
        for n in range(times):
            old = asked(lambda: content_of_index(work / "run" / "index"))["items"]
            data = "new.csv" if n % 2 == 0 else "items.csv"
            training = Running(("train", "--data", data, "--out", "run", *QUICK, "--overwrite"), work)
            answers = []
            while not (work / "run" / "run.json").is_file() or len(answers) < 3:
                answers.append(_ask(address, rng.choice(QUERIES)))
            ended = training.wait(300)
            time.sleep(2.5)  # a server may be a second behind
            last = _ask(address, "cat")
            new = asked(lambda: content_of_index(work / "run" / "index"))["items"]
            wrong = ended.wrong(0) or ("" if _is_of(last, new) else "the new run is not shown")
            for answer in answers:
                if not (_is_of(answer, old) or _is_of(answer, new)):
                    wrong = f"mixed: {answer['hits'][:1]}"
            tally.add(wrong)
    except OSError as error:
        tally.add(f"no answer: {error}")
    server.signal(signal.SIGTERM)
    tally.add(server.wait(time.monotonic() - server.started + 30).wrong(0), 0)  # it counts from the start
    return tally


def _ask(address: str, query: str) -> dict[str, object]:
    with urllib.request.urlopen(f"{address}/api/search?q={urllib.parse.quote(query)}&k=20", timeout=30) as reply:
        return json.load(reply)  # type: ignore[no-any-return]


def _is_of(answer: dict[str, object], items: dict[str, list[float]]) -> bool:
    """Whether every hit is an item with these probabilities."""
    hits: list[dict[str, object]] = answer["hits"]  # type: ignore[assignment]
    return all(
        hit["id"] in items and all(eta in items[str(hit["id"])] for eta in hit["probabilities"].values())  # type: ignore[attr-defined]
        for hit in hits
    )
