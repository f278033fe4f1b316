"""Files cut short and with a bit flipped: named in one line, or without any effect, and never another answer."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from torture.child import Running, asked, typed
from torture.commands import TRAIN, Place, different, left
from torture.tally import Tally

READERS = {
    "predict": ("predict", "run", "new.csv"),
    "evaluate": ("evaluate", "run", "--data", "new.csv", "--json"),
    "search": ("search", "run", 'cat | ~"rare bird"', "-k", "1000", "--json"),
    "items": (),
}
FILES: dict[str, tuple[str, ...]] = {
    "run/model.safetensors": ("predict",),
    "run/model.json": ("predict",),
    "run/calibration.json": ("predict",),
    "run/config.toml": ("predict", "evaluate"),
    "run/index/index.json": ("search",),
    "run/index/*.duckdb": ("search", "items"),
}
"""The files of a finished run, and the commands that read each."""


UNFINISHED = {
    "newest checkpoint": "the older one is used, the damaged one named, and the result is equal",
    "every checkpoint": "the command names one and refuses to go on",
    "config.toml": "the command names it, or the result is equal",
    "started.json": "the command refuses to go on, or the rest of the result is equal",
}
"""The files of an unfinished run, and what is survived."""


def damages(whole: bytes, cuts: int, flips: int, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield damaged copies of a file: cut off somewhere, and with one bit flipped, most often near an end."""
    for _ in range(cuts):
        at = rng.choice([0, len(whole) - 1, rng.randrange(len(whole))])
        yield f"cut to {at} of {len(whole)} bytes", whole[:at]
    for _ in range(flips):
        edge = rng.randrange(min(400, len(whole)))
        at = rng.choice([edge, len(whole) - 1 - edge, rng.randrange(len(whole))])
        bit = rng.randrange(8)
        yield f"bit {bit} of byte {at} flipped", whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]


def finished_run(place: Place, pattern: str, cuts: int, flips: int, rng: random.Random) -> Tally:
    """Damage a file of a finished run, and use the run."""
    tally = Tally(f"{pattern} cut or with a flipped bit", "the command names it, or its answer is the same")
    place.anew()
    _prepare_index(place)
    readers = {name: READERS[name] for name in FILES[pattern]}
    wanted = {name: _answer(place, name) for name in readers}
    (file,) = list(place.work.glob(pattern))[:1]
    whole = file.read_bytes()
    for what, content in damages(whole, cuts, flips, rng):
        file.write_bytes(content)
        wrong = ""
        for name in readers:
            code, out, err = _answer(place, name)
            if code == 0 and out != wanted[name][1]:
                wrong = f"{name} says something else"
            elif code != 0 and (code != 2 or "Traceback" in err or not _names(err, file)):
                wrong = f"{name} ends with {code}: {err[-200:]!r}"
        tally.add(f"{what}: {wrong}" if wrong else "")
    file.write_bytes(whole)
    return tally


def unfinished_run(place: Place, which: str, cuts: int, flips: int, rng: random.Random) -> Tally:
    """Damage a file of a run that was killed in its last epoch, and go on with it."""
    tally = Tally(f"{which} of an unfinished run cut or with a flipped bit", UNFINISHED[which])
    half = _half_way(place)
    checkpoints = sorted((half / "new" / "checkpoint").glob("0*.safetensors"))
    names = {"newest checkpoint": checkpoints[-1:], "every checkpoint": checkpoints}
    files = names.get(which, [half / "new" / which])
    files = [file.relative_to(half) for file in files]
    for (what, content), *more in zip(
        *(damages((half / file).read_bytes(), cuts, flips, rng) for file in files), strict=True
    ):
        shutil.rmtree(place.work)
        shutil.copytree(half, place.work)
        for file, changed in zip(files, [content, *(other for _, other in more)], strict=True):
            (place.work / file).write_bytes(changed)
        ended = typed(TRAIN.args, place.work)
        if ended.code == 0 and which != "every checkpoint":
            found, wanted = left(place.work, TRAIN), place.undisturbed(TRAIN)[0]
            wrong = different({**found, str(files[0]): None}, {**wanted, str(files[0]): None})
            if which == "newest checkpoint" and files[0].name not in ended.out:
                wrong = "it was not named"
        else:
            wrong = ended.wrong(2)
            if not wrong and not any(_names(ended.err, file) for file in [*files, Path("new")]):
                wrong = f"names something else: {ended.err!r}"
            if which == "newest checkpoint":
                wrong = f"it was not passed over: {ended.err[-200:]!r}"
        tally.add(f"{what}: {wrong}" if wrong else "")
    shutil.rmtree(half)
    return tally


def _half_way(place: Place) -> Path:
    """A training that was killed when its last epoch had begun, with two checkpoints."""
    half = place.work.with_name("half")
    while True:
        running = Running(TRAIN.args, place.anew())
        while not list((place.work / "new").glob("checkpoint/000002-0000000[12].safetensors")):
            time.sleep(0.001)
        running.signal(signal.SIGKILL)
        if running.wait().code == -signal.SIGKILL and len(list(place.work.glob("new/checkpoint/0*"))) == 2:
            shutil.move(place.work, half)
            place.anew()
            return half


def _prepare_index(place: Place) -> None:
    """Give the run's index a second part and deleted items."""

    def change() -> None:
        from steelyard.search import Index

        with Index.open(place.work / "run" / "index") as index:
            ids = [hit.id for hit in index.search("cat", k=3)]
            rows = index.rows(ids)
            index.append([f"more{i}" for i in range(200)], rows[[i % 3 for i in range(200)]])
            index.delete(ids[:1])

    if found := asked(change):
        raise RuntimeError(found.why)


def _answer(place: Place, name: str) -> tuple[int, str, str]:
    """The exit code, answer and last words of one of `READERS`."""
    if name != "items":
        ended = typed(READERS[name], place.work)
        return ended.code, ended.out, ended.err

    def read() -> tuple[int, str, str]:
        from torture.commands import content_of_index

        try:
            return 0, repr(content_of_index(place.work / "run" / "index")), ""
        except ValueError as error:
            return 2, "", str(error)

    found = asked(read)
    return found if isinstance(found, tuple) and len(found) == 3 else (1, "", found.why)


def _names(said: str, file: Path) -> bool:
    """Whether a line names a file, or the folder it lies in."""
    return file.name in said or file.parent.name in said
