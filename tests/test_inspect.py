"""`steelyard inspect`: its facts against references written out cell by cell, its advice, its three outputs."""

from __future__ import annotations

import base64
import json
import re
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from rich.console import Console

import layouts
import steelyard as sy
from steelyard.config.advice import RECIPES, RULES, Evidence, advise
from steelyard.config.inspection import inspect
from steelyard.data import ArrayDataset, ImageDataset
from steelyard.data import inspect as pairs
from steelyard.data.inspect import find_duplicates, find_pairs
from steelyard.data.opening import Opened, open_data
from steelyard.labels import UNKNOWN, Labels
from steelyard.report import page, plots
from steelyard.report.canvas import to_png, to_svg
from steelyard.report.terminal import bar, percent, show
from typed import typed as run


@st.composite
def tables(draw: st.DrawFn) -> NDArray[np.int8]:
    """Tables of 1, 0, −1 of every density, some of whose columns are copies of others."""
    n, k = draw(st.integers(1, 30)), draw(st.integers(1, 7))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rates = rng.dirichlet([0.4, 0.4, draw(st.sampled_from([0.01, 0.5]))])
    values = rng.choice(np.array([1, 0, -1], np.int8), (n, k), p=rates)
    for j in range(1, k):
        if rng.random() < 0.3:
            values[:, j] = np.where(rng.random(n) < 0.05, values[:, j], values[:, j - 1])
    return values


def opened(values: Any, names: list[str] | None = None, inputs: Any = None) -> Opened:
    labels = Labels(values, names)
    features = np.zeros((len(labels), 0), np.float32) if inputs is None else inputs
    return Opened(ArrayDataset(features, labels), "npz", None, "a table.")


# ---- facts


@settings(max_examples=60)
@given(tables())
def test_facts_are_those_of_the_dense_table(values: NDArray[np.int8]):
    found = inspect(opened(values))
    facts = found.as_dict()
    n, k = values.shape
    assert facts["cells"] == {
        "all_including_unknown": n * k,
        "positive": (values == 1).sum(),
        "negative": (values == 0).sum(),
        "unknown": (values == -1).sum(),
        "soft_among_known": 0,
        "unknown_rate": pytest.approx((values == -1).mean()),
    }
    per_item = [int((row == 1).sum()) for row in values]
    assert facts["positives_per_item"]["items_by_number_of_positives"] == np.bincount(per_item).tolist()
    assert facts["positives_per_item"]["median"] == sorted(per_item)[(n - 1) // 2]
    assert facts["items_without_positive"] == per_item.count(0)
    assert facts["items_without_known_label"] == sum((row == -1).all() for row in values)
    columns = dict(zip(found.labels.names, values.T, strict=True))
    assert facts["labels_never_known"] == [name for name, c in columns.items() if (c == -1).all()]
    assert facts["labels_never_positive"] == [name for name, c in columns.items() if 0 in c and 1 not in c]
    assert facts["labels_always_positive_where_known"] == [n for n, c in columns.items() if 1 in c and 0 not in c]
    assert [row["unknown"] for row in facts["labels"]] == [(c == -1).sum() for c in columns.values()]
    json.dumps(facts, allow_nan=False)


def test_soft_labels_are_positive_from_one_half():
    found = inspect(opened(np.array([[0.5, 0.4, -1], [1, 0, 0.9]])))
    assert (found.n_positive, found.n_negative, found.n_unknown, found.n_soft) == (3, 2, 1, 3)


# ---- pairs of labels


def overlap_and_agreement(a: NDArray[Any], b: NDArray[Any]) -> tuple[float, float, int, int]:
    known = (a != UNKNOWN) & (b != UNKNOWN)
    both, either = ((a == 1) & (b == 1))[known].sum(), ((a == 1) | (b == 1))[known].sum()
    return both / either if either else 0.0, (a == b)[known].mean() if known.any() else 0.0, known.sum(), both


@settings(max_examples=100)
@given(tables())
def test_near_identical_columns(values: NDArray[np.int8]):
    expected = {}
    n_pairs = values.shape[1] * (values.shape[1] - 1) / 2
    for i, j in combinations(range(values.shape[1]), 2):
        a, b = values[:, i], values[:, j]
        overlap, agreement, known, both = overlap_and_agreement(a, b)
        if overlap < 0.9 or not ((a == 0) & (b == 0)).any():
            continue
        given_b, given_a = (x[(y == 1) & (x != -1)].mean() for x, y in ((a, b), (b, a)))
        lift = np.sqrt(given_b / a[a != -1].mean() * given_a / b[b != -1].mean())
        if round(both * np.log2(lift), 9) > round(np.log2(n_pairs), 9):
            expected[str(i), str(j)] = (both, pytest.approx(overlap), pytest.approx(agreement), known)
    found = {(t.first, t.second): (t.both, t.overlap, t.agreement, t.known) for t in find_pairs(Labels(values)).twins}
    assert found == expected


def test_identical_columns_are_told_from_nearly_identical_ones_and_from_chance():
    rng = np.random.default_rng(0)
    values = (rng.random((400, 6)) < 0.2).astype(np.int8)
    values[:, 1] = values[:, 0]
    values[:, 3] = values[:, 2]
    values[np.flatnonzero(values[:, 3])[0], 3] = 0
    values[:, 4:] = UNKNOWN
    values[:4, 4:] = [[1, 1], [1, 1], [0, 0], [0, 0]]  # that four coins fall alike says little
    twins = {(t.first, t.second): t.identical for t in find_pairs(Labels(values)).twins}
    assert twins == {("0", "1"): True, ("2", "3"): False}


def test_positives_alone_make_no_twins():
    values = np.where(np.random.default_rng(0).random((200, 5)) < 0.3, 1, -1)
    found = find_pairs(Labels(values))
    assert found.twins == ()
    assert found.together == ()


def test_labels_that_come_together():
    rng = np.random.default_rng(1)
    values = (rng.random((2000, 8)) < 0.1).astype(np.int8)
    values[:, 5] = np.where(rng.random(2000) < 0.7, values[:, 2], values[:, 5])
    values[rng.random((2000, 8)) < 0.2] = UNKNOWN
    first = find_pairs(Labels(values, list("abcdefgh"))).together[0]
    a, b = values[:, 2], values[:, 5]
    assert (first.first, first.second) == ("c", "f")
    assert first.both == ((a == 1) & (b == 1)).sum()
    assert first.first_given_second == pytest.approx((a == 1)[(b == 1) & (a != -1)].mean())
    assert first.second_given_first == pytest.approx((b == 1)[(a == 1) & (b != -1)].mean())
    lifts = [first.first_given_second / (a[a != -1]).mean(), first.second_given_first / (b[b != -1]).mean()]
    assert first.lift == pytest.approx(np.sqrt(lifts[0] * lifts[1]))


@pytest.mark.parametrize("fill", [0, UNKNOWN])
def test_of_many_labels_the_most_frequent_are_compared(fill: int, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(2)
    values = np.where(rng.random((300, 9)) < np.linspace(0.1, 0.6, 9), 1, fill)
    values[:100] = np.where(values[:100] == 1, 1, 0)
    values[:, 8] = values[:, 7]
    whole = find_pairs(Labels(values), n_together=100)
    monkeypatch.setattr(pairs, "MOST_LABELS", 4)
    part = find_pairs(Labels(values), n_together=100)
    frequent = np.argsort(-Labels(values).counts, kind="stable")[:4]
    np.testing.assert_array_equal(part.order, frequent)
    np.testing.assert_array_equal(part.conditional, Labels(values).conditional()[np.ix_(frequent, frequent)])
    np.testing.assert_array_equal(whole.conditional[:4, :4], part.conditional)
    assert [(t.first, t.second, t.known) for t in part.twins] == [("7", "8", (values[:, 7] != -1).sum())]
    assert {frozenset(p[:2]) for p in part.together} <= {frozenset(p[:2]) for p in whole.together}


# ---- duplicates


@settings(max_examples=80)
@given(tables(), st.integers(1, 6), st.sampled_from([np.float32, np.uint8, np.float16]), st.integers(0, 2**32))
def test_duplicates_and_contradictions(values: NDArray[np.int8], kinds: int, dtype: Any, seed: int):
    rng = np.random.default_rng(seed)
    inputs = rng.integers(0, 2, (kinds, 11)).astype(dtype)[rng.integers(0, kinds, len(values))]
    found = find_duplicates(ArrayDataset(inputs, Labels(values)))
    groups: dict[tuple[float, ...], list[int]] = {}
    for i, row in enumerate(inputs.tolist()):
        groups.setdefault(tuple(row), []).append(i)
    twice = [group for group in groups.values() if len(group) > 1]
    conflicting = sum(any({0, 1} <= set(column) for column in values[group].T) for group in twice)
    assert (found.n_groups, found.n_items) == (len(twice), sum(map(len, twice)))
    assert found.n_conflicting == conflicting
    assert found.examples == tuple(tuple(map(str, group[:4])) for group in twice[:5])


def test_minus_zero_is_zero():
    inputs = np.array([[0.0, 1.0], [-0.0, 1.0], [np.nan, 1.0], [np.nan, 1.0], [1.0, 0.0]])
    found = find_duplicates(ArrayDataset(inputs, Labels(np.ones((5, 1)))))
    assert found.examples == (("0", "1"), ("2", "3"))


def test_image_files_are_compared_by_path_or_by_content(tmp_path: Path):
    rng = np.random.default_rng(0)
    for name in ("a.png", "b.png", "c.png"):
        layouts.write_image(tmp_path / name, rng)
    layouts.write(tmp_path / "copy of a.png", (tmp_path / "a.png").read_bytes())
    names = ["a.png", "b.png", "c.png", "copy of a.png", "b.png", "gone.png"]
    data = ImageDataset([tmp_path / name for name in names], Labels(np.eye(6)))
    quick, deep = find_duplicates(data), find_duplicates(data, deep=True)
    assert (quick.examples, quick.looked_at) == ((("1", "4"),), "the paths of the images (not their content)")
    assert deep.examples == (("0", "3"), ("1", "4"))
    assert deep.n_conflicting == 2
    assert deep.unreadable == (str(tmp_path / "gone.png"),)
    boxes = np.array([[0, 0, 2, 2 + (i == 4)] for i in range(6)])
    people = find_duplicates(ImageDataset([tmp_path / name for name in names], data.labels, boxes=boxes), deep=True)
    assert people.examples == (("0", "3"),)


def test_questions_are_compared_by_text_and_image(tmp_path: Path):
    layouts.write_vqa(tmp_path)
    found = find_duplicates(open_data(tmp_path).data)
    assert found.looked_at == "question and image"


# ---- advice

SURE = Evidence(positives=1000, unknown=0.0, positive_among_known=0.1, imbalance=5.0, tail=0.0)


@pytest.mark.parametrize(
    ("changes", "recipe"),
    [
        ({}, "bce"),
        ({"positives": 0, "imbalance": float("nan"), "tail": float("nan")}, None),
        ({"unknown": 0.9, "positive_among_known": 1.0}, "wan"),
        ({"unknown": 0.01, "positive_among_known": 0.5}, "wan"),
        ({"positive_among_known": 0.6}, "bce"),
        ({"unknown": 0.9}, "bce"),
        ({"unknown": 0.69}, "bce"),
        ({"imbalance": 20.0}, "plm"),
        ({"imbalance": 19.9}, "bce"),
        ({"imbalance": 20.0, "tail": 0.2}, "db"),
        ({"imbalance": 20.0, "tail": 0.19}, "plm"),
        ({"imbalance": 500.0, "tail": 0.9, "unknown": 0.4}, "db"),
        ({"imbalance": 500.0, "tail": 0.9, "unknown": 0.8}, "db"),
        ({"unknown": 0.05, "positive_among_known": 0.039}, "wan"),
        ({"unknown": 0.8, "positive_among_known": 0.039, "imbalance": 500.0, "tail": 0.9}, "wan"),
        ({"unknown": 0.049, "positive_among_known": 0.039}, "asl"),
        ({"unknown": 0.05, "positive_among_known": 0.04}, "bce"),
        ({"positive_among_known": 0.039}, "asl"),
        ({"positive_among_known": 0.039, "imbalance": 50.0}, "plm"),
    ],
)
def test_the_first_rule_that_holds_is_the_advice(changes: dict[str, float], recipe: str | None):
    advice = advise(SURE._replace(**changes))  # type: ignore[arg-type]
    assert advice.recipe == recipe
    assert "{" not in advice.why
    assert recipe not in [name for name, _ in advice.otherwise]
    assert recipe is None or "spa-lpr" in [name for name, _ in advice.otherwise]


def test_rules_are_a_table_of_known_recipes_and_numbers():
    assert RULES[-1].conditions == ()
    assert {rule.recipe for rule in RULES} <= {None, *RECIPES}
    assert {c.field for rule in RULES for c in rule.conditions} <= set(Evidence._fields)
    assert set(RECIPES) == {"bce", "plm", "db", "spa-lpr", "wan", "asl"}


def test_evidence_counts_known_labels_only():
    values = np.array([[1, -1, 0], [1, -1, -1], [1, 1, -1], [1, -1, -1]])
    evidence = Evidence.of(Labels(values))
    assert evidence == Evidence(5, 0.5, 5 / 6, 4.0, 1.0)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_code_of_a_recipe_trains(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    values = np.random.default_rng(0).choice([1, 0, -1], (8, 5))
    values[:, 4] = np.where(values[:, 4] == 1, 0, values[:, 4])  # a label that is never positive
    *before, last = RECIPES[recipe].code.split("\n")
    scope: dict[str, Any] = {"sy": sy, "labels": Labels(values)}
    exec("\n".join(before), scope)
    objective = eval(last, scope)
    objective.start_epoch(1, n_epochs=3)
    logits = torch.zeros(8, 5, requires_grad=True)
    objective(logits, torch.from_numpy(values), index=torch.arange(8)).total.backward()
    assert logits.grad.isfinite().all()
    assert logits.grad.abs().sum() > 0


# ---- terminal


def shown(found: Any, width: int = 80) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    show(found, console)
    return console.export_text()


def test_the_summary_fits_80_columns_and_cannot_steer_the_terminal():
    rng = np.random.default_rng(0)
    names = ["\x1b[31mred\n", "[bold]markup[/]", "猫" * 30, "~a & b", *(f"label {i}" for i in range(30))]
    values = (rng.random((500, len(names))) < np.geomspace(0.5, 0.002, len(names))).astype(np.int8)
    values[:, 3] = values[:, 2]
    values[rng.random(values.shape) < 0.1] = UNKNOWN
    text = shown(inspect(opened(values, names)))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "\x1b" not in text
    assert "·[31mred·" in text
    assert "[bold]markup[/]" in text
    assert f"{(values == 1).sum():,} positive + {(values == 0).sum():,} negative" in " ".join(text.split())


@pytest.mark.parametrize("values", [np.zeros((3, 2)), np.full((3, 2), -1), np.zeros((0, 2)), np.ones((1, 1))])
def test_extreme_tables_are_shown(values: NDArray[Any], tmp_path: Path):
    found = inspect(opened(values))
    text = shown(found)
    assert ("Recommended" in text) == bool((values == 1).any())
    json.dumps(found.as_dict(), allow_nan=False)


def test_percent_and_bar_do_not_hide_what_is_there():
    assert [percent(x) for x in (0, 1, 0.5, 0.00012, 0.99999, float("nan"))] == [
        *("0.0 %", "100.0 %", "50.0 %", "<0.1 %", ">99.9 %", "–")
    ]
    assert [len(bar(x, 10)) for x in (0, 1e-6, 0.5, 1)] == [0, 1, 5, 10]


# ---- command line


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = []
    for i in range(12):
        layouts.write_image(tmp_path / "photos" / f"{i}.jpg", rng)
        rows.append(f"{i}.jpg,{'cat;dog' if i % 3 else '<script>alert(1)</script>;$dog'}\n")
    layouts.write(tmp_path / "photos" / "labels.csv", "image,labels\n" + "".join(rows))
    return tmp_path / "photos"


def test_a_new_user_inspects_a_folder_of_photos(mine: Path):
    code, out, err = run("inspect", mine)
    assert (code, err) == (0, "")
    assert "is read as comma-separated text in list form" in " ".join(out.split())
    assert "Recommended recipe" in out
    assert "48 = 24 positive + 24 negative + 0 unknown" in out


def test_json_is_all_there_is_on_stdout(mine: Path):
    code, out, err = run("inspect", mine, "--json", "--deep")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert out.count("\n") == 1
    assert facts["n_items"] == 12
    assert facts["duplicates"]["looked_at"] == "the content of the image files"
    assert facts["advice"]["recipe"] in RECIPES
    assert [row["name"] for row in facts["labels"]] == ["$dog", "<script>alert(1)</script>", "cat", "dog"]


def test_settings_reach_the_reader(mine: Path):
    _, out, _ = run("inspect", mine / "labels.csv", "--labels", "labels", "--absent", "unknown", "--json")
    assert json.loads(out)["cells"]["unknown"] == 24
    _, out, _ = run(
        "inspect", mine / "labels.csv", "--labels", "labels", "--separator", "|", "--form", "list", "--json"
    )
    assert json.loads(out)["n_labels"] == 2
    points = layouts.write(mine.parent / "points.csv", "who;what;how;x;y\nu;cat;1;2;3\nv;dog;0;4;5\n")
    words = ["--delimiter", ";", "--id", "who", "--labels", "what", "--value", "how", "--form", "long", "--json"]
    _, out, _ = run("inspect", points, *words)
    assert json.loads(out)["cells"] | {"unknown_rate": 0} == {
        "all_including_unknown": 4,
        "positive": 1,
        "negative": 1,
        "unknown": 2,
        "soft_among_known": 0,
        "unknown_rate": 0,
    }
    wide = layouts.write(mine.parent / "wide.csv", "who,a,b,x,y\nu,1,0,2,3\nv,0,1,2,5\n")
    _, out, _ = run("inspect", wide, "--labels", "a", "--labels", "b", "--features", "x", "--json")
    assert json.loads(out)["duplicates"]["n_groups"] == 1
    photo = layouts.write(mine.parent / "by path.csv", "who,file,tags\nu,0.jpg,cat\nv,1.jpg,dog\n")
    _, out, _ = run("inspect", photo, "--images", mine, "--path", "file", "--json")
    assert "the files of column 'file'" in json.loads(out)["data"]["note"]


def test_a_page_is_whole_safe_and_needs_nothing_else(mine: Path, tmp_path: Path):
    file = tmp_path / "page.html"
    code, out, err = run("inspect", mine, "--html", file, "--absent", "unknown")
    assert (code, err) == (0, "")
    assert str(file) in out.replace("\n", "")
    text = file.read_text(encoding="utf-8")
    assert text.endswith("</html>\n")
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert not re.search(r"""(src|href)=["'](?!data:)""", text)
    pictures = [base64.b64decode(found).decode() for found in re.findall(r"svg\+xml;base64,([^\"]+)", text)]
    assert len(pictures) == 4
    assert not any("<script" in picture for picture in pictures)
    assert any("$dog" in picture for picture in pictures)
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_a_page_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = layouts.write(tmp_path / "page.html", "old")

    def fail(self: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        page.write_page(file, "base.html", "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_without_matplotlib_one_line_names_the_extra(mine: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = run("inspect", mine, "--html", mine / "page.html")
    assert (code, out) == (2, "")
    assert err == "steelyard: plots need matplotlib, which is not installed: pip install 'steelyard[report]'\n"
    assert run("inspect", mine)[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.csv"], "nothing.csv does not exist"),
        (["{mine}", "--format", "cvs"], "format is 'cvs'"),
        (["{mine}", "--html", "{mine}/no/page.html"], "cannot be written"),
        (["{mine}", "--html", "{mine}"], "is a folder"),
        (["{mine}", "--absent", "maybe"], "absent is 'maybe'"),
        (["{mine}", "--year", "soon"], "--year"),
        ([], "Missing argument"),
        (["{mine}", "--images", "{mine}/no"], "is not a folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(mine: Path, words: list[str], message: str):
    code, out, err = run("inspect", *(word.format(mine=mine) for word in words))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_file_that_cannot_be_read_is_one_line(mine: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "labels.csv")

    monkeypatch.setattr("steelyard.data.opening.read_table", fail)
    code, out, err = run("inspect", mine)
    assert (code, out, err) == (2, "", "steelyard: labels.csv: Permission denied\n")


# ---- plots


@pytest.mark.parametrize("n", [1, 20, 159])
def test_plots_of_few_and_many_labels(n: int):
    rng = np.random.default_rng(n)
    names = [f"$label_{i}$ <&> \x00 猫" for i in range(n)]
    counts = np.sort(rng.integers(0, 1000, n))[::-1].copy()
    share = counts / 1000
    conditional = rng.random((n, n))
    conditional[0] = np.nan
    for figure in (
        plots.frequency_curve(names, counts),
        plots.resampling(names, counts, share, np.sqrt(share)),
        plots.unknown_rates(names, counts, 1 - share),
        plots.heat_map(names, conditional),
    ):
        svg = to_svg(figure)
        assert svg.startswith("<?xml")
        assert "\x00" not in svg
        assert len(figure.axes[0].get_xticklabels()) <= 40
        assert ("$label_0$ &lt;&amp;" in svg) == (n <= 40 or "by rank, from" in svg)
        assert n > 1 or to_png(figure).startswith(b"\x89PNG")


def test_the_frequency_curve_shows_every_label_in_its_group():
    counts = np.array([5, 300, 20, 0, 100, 99])
    axes = plots.frequency_curve(list("abcdef"), counts).axes[0]
    curve, never = axes.get_lines()
    assert list(curve.get_ydata()) == [300, 100, 99, 20, 5]
    assert list(never.get_xdata()) == [6]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["b", "e", "f", "c", "a", "d"]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["head: 2 labels", "medium: 2 labels", "tail: 2 labels", "never positive: 1"]


def test_a_heat_map_of_too_many_labels_is_averaged_over_what_is_defined():
    values = np.arange(9.0).reshape(3, 3)
    values[0, 0] = np.nan
    averaged = plots._averaged(values, 2)
    np.testing.assert_allclose(averaged, [[(1 + 3 + 4) / 3, (2 + 5) / 2], [(6 + 7) / 2, 8]])


def test_inspecting_real_data(shared_data: Path):
    found = inspect(open_data(shared_data, format="voc"))
    assert (found.n_positive, found.n_unknown) == (8331, 532)
    assert found.advice.recipe == "bce"
    pairs_found = inspect(open_data(shared_data, format="multi_mnist"))
    assert pairs_found.advice.recipe == "plm"
    corel = inspect(open_data(shared_data / "mulan" / "corel5k.npz"))
    assert len(corel.never_positive) == 3
    assert corel.advice.recipe == "db"
    assert corel.pairs.twins[0].both == 89
