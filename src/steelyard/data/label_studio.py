"""Write questions as Label Studio tasks, and read its JSON export back as answers.

A task asks one question, whether an item has a label. The labelling interface that goes with it is `INTERFACE`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from steelyard.data.review import Answer, Question

CHOICES = {"present": "y", "absent": "n", "cannot tell": "?"}
"""The choices of a task, with the answer that each stands for."""
INTERFACE = """<View>
  <Header value="$ask"/>
  <Text name="why" value="$why"/>
  <Image name="image" value="$image"/>
  <Choices name="answer" toName="image" choice="single" showInline="true">
    <Choice value="present" hotkey="y"/>
    <Choice value="absent" hotkey="n"/>
    <Choice value="cannot tell" hotkey="u"/>
  </Choices>
</View>
"""
"""The labelling interface of the tasks; without images, text items need another object tag."""
_MODEL = "steelyard"


def tasks_of(questions: Sequence[Question], prefix: str = "", images: str | None = None) -> list[dict[str, Any]]:
    """Return the tasks of a queue, in its order, in the format of Label Studio's JSON import.

    The model's decision is added as a prediction, so that Label Studio shows it beside the question.

    Args:
        questions: the questions of a queue.
        prefix: text before each image's path, such as "/data/local-files/?d=" or the address of a web server.
        images: folder to which image paths are made relative; by default they stay as they are.
    """
    tasks = []
    for rank, question in enumerate(questions, 1):
        data = {
            "id": question.id,
            "label": question.label,
            "ask": f"Is {question.label!r} present?",
            "why": question.why,
            "image": prefix + _inside(question.path, images) if question.path else "",
            "rank": rank,
            "given": {1: "present", 0: "absent", None: "unknown"}[question.given],
        }
        task: dict[str, Any] = {"data": data}
        if question.probability is not None:
            believed = "present" if question.probability >= 0.5 else "absent"
            result = {"from_name": "answer", "to_name": "image", "type": "choices", "value": {"choices": [believed]}}
            task["predictions"] = [{"model_version": _MODEL, "score": question.probability, "result": [result]}]
        tasks.append(task)
    return tasks


def _inside(path: str, folder: str | None) -> str:
    """Return a path relative to a folder that it must be in."""
    if folder is None:
        return path
    try:
        return Path(path).resolve().relative_to(Path(folder).resolve()).as_posix()
    except ValueError:
        raise ValueError(f"{path} is not in the folder {folder}: let --images name the folder of the images") from None


def read_annotations(path: str | Path) -> list[Answer]:
    """Return the answers in a JSON export of Label Studio whose tasks are those of `tasks_of`, the oldest first.

    Annotations that were cancelled, and tasks without any, are left out.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): give a JSON export of Label Studio") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is not JSON: give a JSON export of Label Studio") from None
    if not isinstance(document, list) or not all(isinstance(task, dict) for task in document):
        raise ValueError(f"{path} is not a list of tasks: export from Label Studio as JSON, not as JSON-MIN or CSV")
    answers = [answer for k, task in enumerate(document) for answer in _answers(task, f"{path} task {k}")]
    return sorted(answers, key=lambda answer: answer.when)


def _answers(task: dict[str, Any], where: str) -> Iterator[Answer]:
    data, annotations = task.get("data"), task.get("annotations")
    if not isinstance(data, dict) or not isinstance(annotations, list):
        raise ValueError(f"{where} has no data or no annotations: export from Label Studio as JSON")
    if not (isinstance(data.get("id"), str) and isinstance(data.get("label"), str)):
        raise ValueError(f"{where} names no id and label in its data: make tasks with steelyard label-studio")
    for annotation in annotations:
        if not isinstance(annotation, dict) or annotation.get("was_cancelled"):
            continue
        results = annotation.get("result")
        chosen = [c for result in (results if isinstance(results, list) else ()) for c in _choices(result)]
        if not chosen:
            continue
        if len(chosen) > 1 or chosen[0] not in CHOICES:
            raise ValueError(f"{where} has the choice {chosen[-1]!r:.60}: it must be one of {', '.join(CHOICES)}")
        when = annotation.get("updated_at") or annotation.get("created_at") or ""
        yield Answer(data["id"], data["label"], CHOICES[chosen[0]], _who(annotation.get("completed_by")), str(when))


def _choices(result: Any) -> list[Any]:
    """Return the choices of one result of an annotation; none if it belongs to another control."""
    if not isinstance(result, dict) or result.get("type") != "choices" or result.get("from_name") != "answer":
        return []
    value = result.get("value")
    choices = value.get("choices") if isinstance(value, dict) else None
    return choices if isinstance(choices, list) else []


def _who(user: Any) -> str:
    """Return the annotator: Label Studio writes a number, or an object with an e-mail address."""
    if isinstance(user, dict):
        return str(user.get("email") or user.get("id") or "")
    return "" if user is None else str(user)
