"""Answers of people merged into labels: files, merging against a dense reference, training, Label Studio."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from run_data import NAMES, items, write_table
from steelyard.data.corrections import corrected
from steelyard.data.label_studio import INTERFACE, read_annotations, tasks_of
from steelyard.data.review import ANSWER_COLUMNS, QUEUE_COLUMNS, Answer, read_answers, read_queue, settled
from steelyard.folder.run_folder import RunFolder
from steelyard.labels import Labels
from steelyard.run.datasets import open_datasets
from steelyard.run.locate import run_config
from typed import done, typed

QUICK = ("--recipe", "bce", "--set", "train.epochs=2", "--set", "train.batch_size=64")


def write_answers(path: Path, *rows: tuple[str, ...]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(ANSWER_COLUMNS)
        writer.writerows([*row, "eve", "2026-01-02T03:04:05+00:00"] for row in rows)
    return path


def write_queue(path: Path, *rows: dict[str, Any]) -> Path:
    plain = dict.fromkeys(QUEUE_COLUMNS, "")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, QUEUE_COLUMNS)
        writer.writeheader()
        writer.writerows({**plain, "rank": i, "question": "wrong?", **row} for i, row in enumerate(rows, 1))
    return path


# ---- files


def test_a_queue_is_read_in_its_order(tmp_path: Path) -> None:
    path = write_queue(
        tmp_path / "q.csv",
        {"id": "a", "label": "dog", "given": "1", "probability": "0.02", "why": "one, two\nthree", "path": "a.jpg"},
        {"id": "'=b", "label": "dog", "question": "present?", "probability": "0.9"},
        {"id": "c", "label": "cat", "given": "0.0"},
    )
    first, second, third = read_queue(path)
    assert first == ("a", "dog", "wrong?", 1, 0.02, "one, two\nthree", "a.jpg")
    assert (second.id, second.given, second.question) == ("=b", None, "present?")
    assert (third.given, third.probability) == (0, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column 'rank'"),
        ("id,label\na,b\n", "no column 'rank'"),
        (",".join(QUEUE_COLUMNS) + "\n", "holds no question"),
        (",".join(QUEUE_COLUMNS) + "\n1,a,dog\n", "line 2 has 3 cells, not 9"),
        (",".join(QUEUE_COLUMNS) + "\n1,a,dog,wrong?,yes,,,,\n", "line 2: given is 'yes'"),
        (",".join(QUEUE_COLUMNS) + "\n1,a,dog,wrong?,1,1.5,,,\n", "line 2: the probability is '1.5'"),
        (",".join(QUEUE_COLUMNS) + "\n1,a,dog,wrong?,1,x,,,\n", "line 2: the probability is 'x'"),
        (",".join(QUEUE_COLUMNS) + "\n1,a,d,wrong?,1,,,,\n2,a,d,wrong?,1,,,,\n", "line 3: .*'d' is listed twice"),
        (",".join(QUEUE_COLUMNS) + '\n1,"a,dog', "is not CSV"),
        ("\udcff", "is not UTF-8"),
    ],
)
def test_a_damaged_queue_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "q.csv"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=message):
        read_queue(path)


def test_the_last_answer_counts_and_undo_takes_one_back() -> None:
    def counting(*answers: str) -> dict[Any, str]:
        rows = [Answer("a", "dog", answer, "", "") for answer in answers]
        return {key: answer.answer for key, answer in settled(rows).items()}

    assert counting("y", "n") == {("a", "dog"): "n"}
    assert counting("y", "n", "undo") == {("a", "dog"): "y"}
    assert counting("y", "undo") == counting("undo") == counting() == {}
    assert counting("undo", "?") == {("a", "dog"): "?"}


# ---- merging


@given(seed=st.integers(0, 10**6), fill=st.sampled_from([0, -1]))
@settings(max_examples=60)
def test_merging_is_that_of_a_dense_table(seed: int, fill: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    g = np.random.default_rng(seed)
    n, width = int(g.integers(1, 9)), int(g.integers(1, 5))
    dense = np.where(g.random((n, width)) < 0.5, fill, g.integers(-1, 2, (n, width)))
    if g.random() < 0.3:
        dense = np.where(g.random(dense.shape) < 0.3, 0.25, dense)  # soft
    names, ids = [f"l{c}" for c in range(width)], [f"i{r}" for r in range(n)]
    labels = Labels(dense, names, ids).grouped(np.arange(n) // 2)
    answers = [(int(g.integers(0, n + 1)), int(g.integers(width)), g.choice(["y", "n", "?"])) for _ in range(8)]
    answers.append((0, 0, "y"))
    path = tmp_path_factory.mktemp("answers") / "a.csv"
    write_answers(path, *((f"i{r}", f"l{c}", answer) for r, c, answer in answers))
    merged, report = corrected(labels, path)
    expected = dense.astype(np.float64)
    for r, c, answer in answers:
        if r < n:
            expected[r, c] = {"y": 1, "n": 0, "?": -1}[answer]
    np.testing.assert_array_equal(merged.values, expected)
    assert (merged.names, list(merged.ids), merged.fill) == (tuple(names), ids, labels.fill)
    assert np.array_equal(merged.item_groups, labels.item_groups)
    assert report.changed == int((expected != dense).sum())
    for c, name in enumerate(names):
        counts, changed = report.by_label.get(name), expected[:, c] != dense[:, c]
        assert (0 if counts is None else counts["present"]) == int((changed & (expected[:, c] == 1)).sum())
        assert (0 if counts is None else counts["unknown"]) == int((changed & (expected[:, c] == -1)).sum())
    assert report.elsewhere == len({(r, c) for r, c, _ in answers if r == n})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("i0", "dgo", "y")], "label 'dgo', which the data does not have: did you mean 'dog'"),
        ([("x", "dog", "y")], "no answer about an item of the data, whose first id is 'i0'"),
        ([("i0", "dog", "yes")], "line 2: the answer is 'yes': write y, n, . or undo"),
        ([], "holds no answers"),
    ],
)
def test_answers_that_do_not_fit_are_one_sentence(tmp_path: Path, rows: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        corrected(Labels([[1]], ["dog"], ["i0"]), write_answers(tmp_path / "a.csv", *rows))
    with pytest.raises(ValueError, match="cannot be read"):
        corrected(Labels([[1]], ["dog"], ["i0"]), tmp_path / "none.csv")


# ---- training


def test_train_merges_answers_reports_them_and_refuses_others_when_it_goes_on(tmp_path: Path) -> None:
    x, y = items()
    data = write_table(tmp_path / "items.csv", x, y)
    first = next(csv.DictReader(data.open()))
    id_column = "id" if "id" in first else None
    ids = [row["id"] for row in csv.DictReader(data.open())] if id_column else [str(i) for i in range(len(y))]
    flipped = [(ids[i], NAMES[0], "n" if y[i, 0] == 1 else "y") for i in range(6)]
    path = write_answers(tmp_path / "answers.csv", *flipped, (ids[7], NAMES[1], "?"), ("gone", NAMES[1], "y"))
    out = tmp_path / "run"
    shown = done("train", "--data", data, "--out", out, "--corrections", path, *QUICK)
    n_up = int((y[:6, 0] != 1).sum())
    assert f"Corrections of {path}: 7 labels of items changed, 0 confirmed." in shown.out
    assert f"  {NAMES[0]}: {n_up} present, {6 - n_up} absent" in shown.out
    assert f"  {NAMES[1]}: 1 unknown" in shown.out
    assert "1 answer is about an item that is not here" in shown.out
    kept = json.loads((out / "run.json").read_text())["corrections"]
    assert kept[NAMES[1]]["unknown"] == 1
    config = run_config(out)
    assert config.data.corrections == str(out / "corrections.csv")
    assert (out / "corrections.csv").read_bytes() == path.read_bytes()
    before = done("evaluate", out, "--json").out
    answers = path.read_bytes()
    for change in (lambda: write_answers(path, (ids[9], NAMES[0], "y")), path.unlink):
        change()
        assert done("evaluate", out, "--json").out == before
    path.write_bytes(answers)
    plain = open_datasets(config.with_overrides({"data": {"corrections": ""}}).data, config.model, config.train.seed)
    merged = open_datasets(config.data, config.model, config.train.seed)
    assert list(merged.validation.labels.ids) == list(plain.validation.labels.ids)  # no answer moves an item
    parts = (merged.train.labels, merged.validation.labels)
    whole = {i: row for part in parts for i, row in zip(part.ids, part.values, strict=True)}
    assert [whole[i][0] for i in ids[:6]] == [1 - (v == 1) for v in y[:6, 0]]
    assert whole[ids[7]][1] == -1
    (out / "run.json").unlink()  # as if it had been broken off after a checkpoint
    (out / "checkpoint").mkdir(exist_ok=True)
    (out / "checkpoint" / "last.safetensors").touch()
    write_answers(path, *flipped)
    other = typed("train", "--data", data, "--out", out, "--corrections", path, *QUICK)
    assert (other.code, other.err.count("\n")) == (2, 1)
    assert "holds an unfinished run on other validation labels" in other.err
    write_answers(path, *flipped, (ids[7], NAMES[1], "?"))  # the same labels, from another file
    other = typed("train", "--data", data, "--out", out, "--corrections", path, *QUICK)
    assert "holds an unfinished run on other corrections" in other.err
    path.unlink()
    gone = typed("train", "--data", data, "--out", out, "--corrections", path, *QUICK)
    assert f"{path} cannot be read" in gone.line
    assert RunFolder(out).unfinished() is not None
    assert (out / "corrections.csv").read_bytes() == answers
    path.write_bytes(answers)
    without = typed("train", "--data", data, "--out", out, *QUICK)
    assert "holds an unfinished run with another --corrections" in without.err


# ---- Label Studio


def test_tasks_go_out_and_annotations_come_back(tmp_path: Path) -> None:
    queue = write_queue(
        tmp_path / "q.csv",
        {"id": "a", "label": "dog", "given": "1", "probability": "0.02", "why": "seldom", "path": "a b.jpg"},
        {"id": "b", "label": "<b>cat", "question": "present?"},
    )
    assert done("label-studio", queue, "--out", tmp_path / "t.json", "--prefix", "/data/?d=").out.endswith(
        "(2 tasks)\n"
    )
    tasks = json.loads((tmp_path / "t.json").read_text())
    assert tasks == tasks_of(read_queue(queue), "/data/?d=")
    assert tasks[0]["data"]["image"] == "/data/?d=a b.jpg"
    assert tasks[0]["predictions"][0]["result"][0]["value"] == {"choices": ["absent"]}
    assert "predictions" not in tasks[1]
    photos = write_queue(
        tmp_path / "p.csv", {"id": "a", "label": "dog", "path": str(tmp_path / "photos" / "x" / "a.jpg")}
    )
    out = ("--out", tmp_path / "p.json", "--prefix", "https://example.org/")
    done("label-studio", photos, *out, "--images", tmp_path / "photos")
    assert json.loads((tmp_path / "p.json").read_text())[0]["data"]["image"] == "https://example.org/x/a.jpg"
    assert "a.jpg is not in the folder" in typed("label-studio", photos, *out, "--images", tmp_path / "other").line
    assert tasks[1]["data"]["image"] == ""
    for name in ("$ask", "$why", "$image"):
        assert name in INTERFACE
        assert name[1:] in tasks[0]["data"]
    assert INTERFACE in done("label-studio", queue, "--out", tmp_path / "t.json", "--interface").out

    def annotated(choice: str, when: str, **more: Any) -> dict[str, Any]:
        result = {"from_name": "answer", "to_name": "image", "type": "choices", "value": {"choices": [choice]}}
        return {"result": [result], "updated_at": when, "was_cancelled": False, "completed_by": 7, **more}

    export = [
        {**tasks[1], "annotations": [annotated("cannot tell", "2026-03-01", completed_by={"email": "a@b.c"})]},
        {
            **tasks[0],
            "annotations": [
                annotated("absent", "2026-02-02"),
                annotated("present", "2026-01-01"),
                annotated("present", "2026-05-05", was_cancelled=True),
                {"result": [], "updated_at": "2026-06-06"},
            ],
        },
    ]
    path = tmp_path / "export.json"
    path.write_text(json.dumps(export))
    assert [(a.id, a.label, a.answer, a.who) for a in read_annotations(path)] == [
        ("a", "dog", "y", "7"),
        ("a", "dog", "n", "7"),
        ("b", "<b>cat", "?", "a@b.c"),
    ]
    merged, report = corrected(Labels([[1, 0], [1, 1]], ["dog", "<b>cat"], ["a", "b"]), path)
    assert merged.values.tolist() == [[0, 0], [1, -1]]
    assert report.changed == 2


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "is not JSON"),
        ('{"a": 1}', "not a list of tasks"),
        ('[{"data": {}}]', "task 0 has no data or no annotations"),
        ('[{"data": {"id": 3}, "annotations": []}]', "names no id and label"),
        ('[{"data": {"id": "a", "label": "b"}, "annotations": [{"result": 3}]}]', "holds no answers"),
        (
            '[{"data": {"id": "a", "label": "b"}, "annotations": [{"result": [{"from_name": "answer",'
            ' "type": "choices", "value": {"choices": ["maybe"]}}]}]}]',
            "has the choice 'maybe'",
        ),
        ("[]", "holds no answers"),
    ],
)
def test_an_export_that_does_not_fit_is_one_sentence(tmp_path: Path, document: str, message: str) -> None:
    path = tmp_path / "export.json"
    path.write_text(document)
    with pytest.raises(ValueError, match=message):
        corrected(Labels([[1]], ["b"], ["a"]), path)


def test_read_answers_undoes_the_guard_of_spreadsheets(tmp_path: Path) -> None:
    (answer,) = read_answers(write_answers(tmp_path / "a.csv", ("'=1+1", "'-dog", "y")))
    assert (answer.id, answer.label, answer.who) == ("=1+1", "-dog", "eve")
