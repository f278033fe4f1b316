"""The planter of faults: what it changes, that each change is one, and the page it writes."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from mutants import page, warm
from mutants.mutations import mutants, planted, unharmed

SOURCE = '''
LIMIT = 1e30

class Box:
    """Text."""

    def f(self, x: int = 2, *, deep: bool = False) -> int:
        """Text."""
        if x <= LIMIT and deep:
            raise ValueError(f"x is {x + 1}")
        return -x + sum([x], start=0)
'''
CHANGES = {
    "module: 1e+30 → 2e+30",
    "Box.f: x=2 → 3",
    "Box.f: deep=False → True",
    "Box.f: x <= LIMIT and deep → x <= LIMIT or deep",
    "Box.f: x <= LIMIT → x < LIMIT",
    "Box.f: x <= LIMIT → x > LIMIT",
    "Box.f: deep → not deep",
    "Box.f: raise ValueError(f'x is {x + 1}') → pass",
    "Box.f: -x + sum([x], start=0) → -x - sum([x], start=0)",
    "Box.f: -x → x",
    "Box.f: sum([x], start=0) → sum([x])",
    "Box.f: sum([x], start=0) → mean([x], start=0)",
    "Box.f: start=0 → start=1",
}


def test_what_is_planted() -> None:
    found = mutants("box.py", SOURCE)
    assert {m.name.removeprefix("box.py ") for m in found} == CHANGES
    assert len(found) == len(CHANGES)
    seen = {m.name.split(": ")[1]: m for m in found}
    assert seen["x=2 → 3"].is_default
    assert list(seen["x=2 → 3"].seen_at) == [8, 9, 10, 11]
    assert seen["1e+30 → 2e+30"].on_import
    assert list(seen["deep → not deep"].seen_at) == [9]
    assert seen["deep → not deep"].line == 9


@pytest.mark.parametrize("file", ["losses/bce.py", "metrics/groups.py"])
def test_every_mutant_is_another_program(file: str) -> None:
    source = (Path(__file__).parent.parent / "src" / "steelyard" / file).read_text()
    found = mutants(file, source)
    dumps = {ast.dump(planted(source, m.number)) for m in [unharmed(file), *found]}
    assert len(dumps) == len(found) + 1
    assert len({m.name for m in found}) == len(found)
    for m in found:
        compile(planted(source, m.number), file, "exec")


def test_the_page_counts_and_argues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argued = tmp_path / "survivors.toml"
    argued.write_text('[[survivor]]\nwhy = "It is a size."\nnames = ["a.py f: 1 → 2"]\n')
    monkeypatch.setattr(page, "ARGUED", argued)
    outcomes = [("f: 1 → 2", "killed"), ("f: 1 → 2", "survived"), ("f: x → y", "killed"), ("g: p → q", "unreached")]
    rows = [
        {"name": f"a.py {name}", "file": "a.py", "digest": "d", "line": 1, "result": result, "by": "t"}
        for name, result in outcomes
    ]
    results = tmp_path / "results.jsonl"
    results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page.write(tmp_path / "page.md", page.read(results), 4)
    text = (tmp_path / "page.md").read_text()
    assert "\n3 of 4 are planted so far" in text
    assert "| a.py | 3 | 1 | 2 |" in text
    assert "It is a size.\n\n- `f: 1 → 2`" in text
    assert "**Not argued.**\n\n- `g: p → q`" in text
    assert page.reason("a.py f: 1 → 2, then 3", [{"why": "w", "names": ["a.py f: 1 → 2"]}]) == ""
    assert page.reason("a.py f: 1 → 2, then 3", [{"why": "w", "names": ["a.py f: 1*"]}]) == "w"
    false = {"a.py as it is": {**rows[0], "name": "a.py as it is"}}
    with pytest.raises(SystemExit, match="without any fault"):
        page.write(tmp_path / "page.md", false, 1)


def test_a_function_that_others_hold_is_changed_in_place(tmp_path: Path) -> None:
    """The warm process plants a body's mutant in every holder of the function, and leaves to others what it cannot."""
    source = "LIMIT = 1\n\ndef outer(x, by=1):\n    def inner(y):\n        return x + y\n    return inner(by) * LIMIT\n"
    file = tmp_path / "box.py"
    file.write_text(source)
    found = {m.name.removeprefix("box.py "): m for m in mutants("box.py", source)}
    for name, want in (
        ("outer.inner: x + y → x - y", 9),
        ("outer: inner(by) * LIMIT → inner(by) / LIMIT", 11),
        ("outer: by=1 → 2", None),
        ("module: 1 → 2", None),
    ):
        room: dict[str, Any] = {}
        exec(compile(source, str(file), "exec"), room)
        held = room["outer"]
        functions = {(str(file), "outer", 3): [held]}
        assert warm.replace(found[name], file, functions) == (want is not None)
        assert held(10) == (11 if want is None else want)
        assert isinstance(held(10), float if want == 11 else int)  # a quotient
