"""VQA v2 as its owners publish it: questions, ten human answers each, and targets that share the credit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from steelyard.data.files import PathLike, check_choice, damaged, field, read_json
from steelyard.labels import Labels

QuestionSample: TypeAlias = tuple[tuple[str, int], torch.Tensor, int]


@final
class Questions(Dataset[QuestionSample]):
    """Questions about COCO images with soft targets; item i is ((question, image id), target (L,), i).

    Arguments: `questions`, N texts; `image_ids` (N,), COCO's numbers, by which features or images are found; `labels`.
    """

    def __init__(self, questions: Sequence[str], image_ids: NDArray[np.int64], labels: Labels) -> None:
        if not len(questions) == len(image_ids) == len(labels):
            sizes = f"{len(questions)}, {len(image_ids)}, {len(labels)}"
            raise ValueError(f"questions, image_ids, labels have {sizes} entries: they must be equal")
        self.questions, self.image_ids, self.labels = tuple(questions), image_ids, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> QuestionSample:
        i = range(len(self))[index]
        target = torch.from_numpy(self.labels.rows([i])[0])
        return (self.questions[i], int(self.image_ids[i])), target, i


def vqa(root: PathLike, split: str, answers: int | Sequence[str] = 3129) -> Questions:
    """Return VQA v2: an answer that n of the ten annotators gave has the target min(n/3, 1); all others have 0.

    Labels are answers exactly as in the file; ids are question ids. A question with no answer among the labels is kept,
    with all targets 0. Items hold texts and image ids; image features come from elsewhere.

    Args:
        root: folder that holds `v2_OpenEnded_mscoco_{split}2014_questions.json` and
            `v2_mscoco_{split}2014_annotations.json`.
        split: "train" or "val".
        answers: number of most frequent answers to use as labels (by `multiple_choice_answer`, ties in alphabetical
            order), or the labels themselves: for "val" give `train.labels.names`.

    Examples:
        >>> import json
        >>> from pathlib import Path
        >>> questions = [{"question_id": 1, "image_id": 9, "question": "Is it red?"}]
        >>> given = [{"answer_id": i, "answer": "yes" if i < 8 else "no"} for i in range(10)]
        >>> annotations = [{"question_id": 1, "multiple_choice_answer": "yes", "answers": given}]
        >>> _ = Path("v2_OpenEnded_mscoco_val2014_questions.json").write_text(json.dumps({"questions": questions}))
        >>> _ = Path("v2_mscoco_val2014_annotations.json").write_text(json.dumps({"annotations": annotations}))
        >>> data = sy.data.vqa(".", "val", answers=["yes", "no"])
        >>> data[0][0], (3 * data.labels.values).tolist()
        (('Is it red?', 9), [[3.0, 2.0]])
    """
    check_choice(split, ("train", "val"), "split")
    question_file = _question_file(root, split)
    answer_file = Path(root) / f"v2_mscoco_{split}2014_annotations.json"
    asked = _questions(question_file)
    answered = field(read_json(answer_file, _slim), "annotations", list, answer_file, "the file")
    names = _labels(answers, answered, answer_file)
    column = {name: i for i, name in enumerate(names)}
    row = {number: i for i, number in enumerate(asked)}
    cells: list[tuple[int, int, int]] = []  # item, label, how many people gave it
    for i, record in enumerate(answered):
        where = f"annotations[{i}]"
        number = field(record, "question_id", int, answer_file, where)
        if number not in row:
            again = "was answered before" if number in asked else f"is not in {question_file.name}"
            raise damaged(answer_file, f"{where}: the question {number} {again}")
        item = row.pop(number)
        given = field(record, "answers", list, answer_file, where)
        if not all(isinstance(answer, str) for answer in given):
            raise damaged(answer_file, f"{where}: answers holds entries that are not answers")
        cells += [(item, column[answer], n) for answer, n in Counter(given).items() if answer in column]
    if row:
        raise damaged(answer_file, f"it does not answer the question {next(iter(row))}")
    items, labels, counts = np.array(cells, np.int64).reshape(-1, 3).T
    values = np.minimum(counts.astype(np.float32) / 3, 1)
    ids = [str(number) for number in asked]
    table = Labels.from_cells(items, labels, values, (len(asked), len(names)), 0, names, ids)
    texts, images = zip(*asked.values(), strict=True)
    return Questions(texts, np.array(images, np.int64), table)


def question_texts(root: PathLike, split: str) -> list[str]:
    """Return the texts of the questions of a split."""
    return [text for text, _ in _questions(_question_file(root, split)).values()]


def _question_file(root: PathLike, split: str) -> Path:
    return Path(root) / f"v2_OpenEnded_mscoco_{split}2014_questions.json"


def _slim(record: dict[str, Any]) -> Any:
    """Keep of one person's answer only the text."""
    return record["answer"] if "answer" in record and "answer_id" in record else record


def _questions(path: Path) -> dict[int, tuple[str, int]]:
    """Text and image of each question, by question id."""
    asked: dict[int, tuple[str, int]] = {}
    for i, record in enumerate(field(read_json(path), "questions", list, path, "the file")):
        where = f"questions[{i}]"
        number = field(record, "question_id", int, path, where)
        if number in asked:
            raise damaged(path, f"{where} has the question_id {number} of an earlier one")
        asked[number] = (field(record, "question", str, path, where), field(record, "image_id", int, path, where))
    if not asked:
        raise damaged(path, "questions is empty")
    return asked


def _labels(answers: int | Sequence[str], answered: list[Any], path: Path) -> list[str]:
    if isinstance(answers, str) or (isinstance(answers, int) and answers < 1):
        raise ValueError(f"answers is {answers!r}: give how many answers are the labels, or a list of them")
    if not isinstance(answers, int):
        return list(answers)
    common = Counter(
        field(record, "multiple_choice_answer", str, path, f"annotations[{i}]") for i, record in enumerate(answered)
    )
    return sorted(common, key=lambda name: (-common[name], name))[:answers]
