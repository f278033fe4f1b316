"""No count of the private language rises, and readers meet none of it."""

from __future__ import annotations

import ast
import json
from collections import defaultdict

import pytest

import prose


@pytest.mark.parametrize("area", prose.CLEAN)
def test_readers_meet_none_of_it(area):
    assert list(prose.hits(area)) == []


def test_no_class_name_has_two_meanings():
    modules: defaultdict[str, list[str]] = defaultdict(list)
    for file, tree in prose.modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                modules[node.name.lstrip("_")].append(file)
    assert {name: files for name, files in modules.items() if len(files) > 1} == {}


def test_no_count_rises():
    assert prose.risen(prose.counts(), json.loads(prose.KEPT.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("rule", "phrase"),
    [
        ("anew", "Draw a run's page anew."),
        ("a line an epoch", "give one row an item"),
        ("a line an epoch", "one label column a line a label"),
        ("is said", "where that is said"),
        ("at hand", "the items\nat hand"),
        ("rooms", "a room of the package"),
        ("holes", "a table with holes"),
        ("a reading", "its reading is kept"),
        ("known cells", "unknown cells are left out"),
        ("nominal opening", "What is measured."),
    ],
)
def test_a_rule_finds_its_phrase(rule, phrase, monkeypatch):
    monkeypatch.setitem(prose.AREAS, "docstrings", lambda: iter([prose.Text("here", phrase)]))
    assert rule in {hit[0] for hit in prose.hits("docstrings")}


def test_code_is_no_prose_and_a_count_that_rose_is_told():
    page = "Text.\n\n```text\nanew\n```\n\n    anew\n\nSee `anew` and [here](anew.md).\n"
    assert "anew" not in prose.prose(page)
    assert prose.risen({"docs": {"anew": 2, "rooms": 0}}, {"docs": {"anew": 1}}) == ["docs, anew: 2, kept 1"]
    assert prose.risen({"docs": {"anew": 1}}, {"docs": {"anew": 1}}) == []
