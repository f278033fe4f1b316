"""A queue of questions, and the file to which people's answers are appended one by one."""

from __future__ import annotations

import csv
import getpass
import io
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, final, get_args

from steelyard._files import check_place
from steelyard._locks import sole
from steelyard.data.files import harmless
from steelyard.data.review import ANSWER_COLUMNS, Answer, Reply, read_answers, read_queue, settled
from steelyard.serve.guards import Missing, Refusal

ENDING = ".answers.csv"
"""Ending of the default file of answers, which lies beside the queue and has its name."""
LONGEST_NAME = 80
"""Characters of who answers."""
MOST_OF_ONE = 20
"""Rows that one question may fill in the file, undone or not, as long as the server runs."""
RATE, BURST = 10.0, 30
"""Answers a second, and how many may come at once."""


class TooFast(Refusal):
    """Answers arrive faster than a person gives them."""

    status = 429
    headers: ClassVar[dict[str, str]] = {"retry-after": "1"}


class Conflict(Refusal):
    """The request does not fit the answers so far."""

    status = 409


@final
class Review:
    """The questions of a queue and their answers; its methods may be called from any thread.

    Answers are rows of a CSV file that are only ever appended, each under the project's lock and flushed to the disk
    before the reply. What another process appends in between is taken in.

    queue: a file of `steelyard audit` or `steelyard next`.
    answers: the file of answers, made with the first of them; by default beside the queue.
    clock: seconds, for the rate of answers.
    """

    def __init__(
        self,
        queue: str | os.PathLike[str],
        answers: str | os.PathLike[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        source = Path(queue)
        self.questions = read_queue(source)
        self.file = source.with_name(source.stem + ENDING) if answers is None else Path(answers)
        if self.file.exists() and source.exists() and self.file.samefile(source):
            raise ValueError(f"--answers is {self.file}, the queue itself: give another file")
        check_place(self.file)
        self._lock_file = self.file.with_name(f".{self.file.name}.lock")
        self.token = secrets.token_urlsafe(32)
        self.who = _user()
        self._places = {(question.id, question.label): i for i, question in enumerate(self.questions)}
        self._paths = {question.id: question.path for question in reversed(self.questions) if question.path}
        self._ids = {question.id for question in self.questions}
        self._lock = threading.Lock()
        self._given: dict[tuple[str, str], Answer] = {}
        self._state: tuple[int, int] | None = None
        self._written: Counter[tuple[str, str]] = Counter()
        self._clock, self._allowance, self._last = clock, float(BURST), clock()
        self._catch_up()

    def questions_from(self, start: int, k: int) -> dict[str, Any]:
        """Return the first `k` questions from place `start` on that have no answer; see `api_types.ReviewPage`."""
        with self._lock:
            self._catch_up()
            still_open = (i for i in range(start, len(self.questions)) if self._key(i) not in self._given)
            return {**self._progress(), "questions": [self._shown(i) for i in islice(still_open, k)]}

    def answer(self, id: str, label: str, answer: str, who: str) -> dict[str, Any]:
        """Append an answer to the file and return the progress of the queue; see `api_types.ReviewProgress`."""
        key = (id, label)
        if key not in self._places:
            raise Missing("the queue has no such question")
        if answer not in get_args(Reply):
            raise Refusal("the answer is unknown: give y, n, ? or undo")
        name = "".join(c for c in who if c.isprintable()).strip()[:LONGEST_NAME] or self.who
        with self._lock:
            self._count(key)
            with sole(self._lock_file, waits=True):
                self._catch_up()
                if answer == "undo" and key not in self._given:
                    raise Conflict("there is no answer to undo")
                when = datetime.now(UTC).isoformat(timespec="seconds")
                self._append([harmless(id), harmless(label), answer, harmless(name), when])
            self._catch_up()
            return self._progress()

    def path(self, id: str) -> str | None:
        """Return the image file that the queue names for an item, None where it names none."""
        if id not in self._ids:
            raise Missing("there is no such item in the queue")
        return self._paths.get(id)

    def _count(self, key: tuple[str, str]) -> None:
        """Refuse answers that come too fast or too often."""
        now = self._clock()
        self._allowance = min(BURST, self._allowance + RATE * (now - self._last))
        self._last = now
        if self._allowance < 1:
            raise TooFast("answers come too fast: wait a second")
        self._allowance -= 1
        self._written[key] += 1
        if self._written[key] > MOST_OF_ONE:
            raise Conflict("this question was answered too often: start steelyard serve again to change it once more")

    def _append(self, row: list[str]) -> None:
        """Append one row, after the header if the file is new, and flush it to disk."""
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        with self.file.open("ab+") as file:
            size = file.seek(0, os.SEEK_END)
            if size == 0:
                writer.writerow(ANSWER_COLUMNS)
            else:
                file.seek(size - 1)
                if file.read(1) != b"\n":  # a truncated row must not run into this one
                    text.write("\n")
            writer.writerow(row)
            file.write(text.getvalue().encode())
            file.flush()
            os.fsync(file.fileno())

    def _catch_up(self) -> None:
        """Read the file again if it has changed."""
        state = None
        with suppress(FileNotFoundError):
            facts = self.file.stat()
            state = (facts.st_size, facts.st_mtime_ns)
        if state != self._state:
            here = [] if state is None or state[0] == 0 else read_answers(self.file)
            self._given = {key: answer for key, answer in settled(here).items() if key in self._places}
            self._state = state

    def _progress(self) -> dict[str, Any]:
        total, answered = len(self.questions), len(self._given)
        return {"total": total, "answered": answered, "file": self.file.name, "who": self.who}

    def _key(self, number: int) -> tuple[str, str]:
        question = self.questions[number]
        return question.id, question.label

    def _shown(self, number: int) -> dict[str, Any]:
        shown = {"place": number, **self.questions[number]._asdict()}
        del shown["path"]
        return shown


def _user() -> str:
    """Return the name of the user who started the server, "" if the system does not tell."""
    with suppress(Exception):  # which kind depends on the system and the version of Python
        return getpass.getuser()[:LONGEST_NAME]
    return ""
