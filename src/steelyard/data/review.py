"""Read the queue of questions about labels, and the file of people's answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

from steelyard.data.files import csv_rows, unguarded

QUEUE_COLUMNS = ("rank", "id", "label", "question", "given", "probability", "score", "why", "path")
"""The columns of a queue: one row per item and label, the best first."""
ANSWER_COLUMNS = ("id", "label", "answer", "who", "when")
"""The columns of a file of answers: one row per answer, in the order in which they were given."""
Reply: TypeAlias = Literal["y", "n", "?", "undo"]
"""The label is present (y), absent (n) or cannot be told (?); "undo" takes the last answer back."""
VALUES = {"y": 1, "n": 0, "?": -1}
"""Label value for each answer."""
MOST_QUESTIONS = 1_000_000
_GIVEN = {"1": 1, "0": 0, "": None}


class Question(NamedTuple):
    """Asks whether an item has a label."""

    id: str
    label: str
    question: str
    """"wrong?" if the given label may be wrong, "present?" if none is given."""
    given: int | None
    """1 present, 0 absent, None unknown."""
    probability: float | None
    why: str
    path: str
    """Image file of the item; "" if there is none."""


class Answer(NamedTuple):
    """A person's answer about one label of an item."""

    id: str
    label: str
    answer: str
    """One of `Reply`."""
    who: str
    when: str


def read_queue(path: str | Path) -> list[Question]:
    """Return the questions of a queue file, which `steelyard audit` and `steelyard next` write, in its order."""
    questions, seen = [], set()
    for line, row in _rows(path, QUEUE_COLUMNS, "a queue of steelyard audit or steelyard next"):
        if row["given"].removesuffix(".0") not in _GIVEN:
            raise ValueError(f"{path} line {line}: given is {row['given']!r:.40}: write 1, 0 or nothing")
        key = (unguarded(row["id"]), unguarded(row["label"]))
        if key in seen:
            raise ValueError(f"{path} line {line}: item {key[0]!r:.80}, label {key[1]!r:.80} is listed twice: keep one")
        seen.add(key)
        given = _GIVEN[row["given"].removesuffix(".0")]
        chance = _number(row["probability"], path, line)
        questions.append(Question(*key, row["question"], given, chance, row["why"], row["path"]))
        if len(questions) > MOST_QUESTIONS:
            raise ValueError(f"{path} holds more than {MOST_QUESTIONS:,} questions: ask for fewer")
    if not questions:
        raise ValueError(f"{path} holds no question: give a queue of steelyard audit or steelyard next")
    return questions


def read_answers(path: str | Path) -> list[Answer]:
    """Return the answers of a CSV file in their order."""
    answers = []
    for line, row in _rows(path, ANSWER_COLUMNS, "a file of answers"):
        if row["answer"] not in get_args(Reply):
            raise ValueError(f"{path} line {line}: the answer is {row['answer']!r:.40}: write y, n, ? or undo")
        answers.append(Answer(unguarded(row["id"]), unguarded(row["label"]), row["answer"], row["who"], row["when"]))
    return answers


def settled(answers: Sequence[Answer]) -> dict[tuple[str, str], Answer]:
    """Return the answer that counts for each item and label: the last that was not undone."""
    given: dict[tuple[str, str], list[Answer]] = {}
    for answer in answers:
        earlier = given.setdefault((answer.id, answer.label), [])
        if answer.answer != "undo":
            earlier.append(answer)
        elif earlier:
            earlier.pop()
    return {key: earlier[-1] for key, earlier in given.items() if earlier}


def _rows(path: str | Path, columns: Sequence[str], expected: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number of the line and the row, by column, of a CSV file that must have these columns."""
    rows = csv_rows(path, expected)
    _, head = next(rows, (1, []))
    if missing := [name for name in columns if name not in head]:
        raise ValueError(f"{path} has no column {missing[0]!r}: give {expected} ({','.join(columns)})")
    for line, cells in rows:
        if len(cells) != len(head):
            raise ValueError(f"{path} line {line} has {len(cells)} cells, not {len(head)}: mend or remove it")
        yield line, dict(zip(head, cells, strict=True))


def _number(text: str, path: str | Path, line: int) -> float | None:
    try:
        value = float(text) if text else math.nan
    except ValueError:
        value = math.inf
    if math.isnan(value):
        return None
    if not 0 <= value <= 1:
        raise ValueError(f"{path} line {line}: the probability is {text!r:.40}: write a number from 0 to 1")
    return value
