"""Formulas of docstrings become MathML: every one is read to its end, and the text stays readable."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

from steelyard import balance, calibrate, losses, metrics, objective

FORMULAS = runpy.run_path(str(Path(__file__).resolve().parent.parent / "docs" / "formulas.py"))
SECTION = re.compile(r"^Formula:\n((?:    .*\n?)+)", re.M)


def lines() -> list[tuple[str, str]]:
    """Every formula of the modules, with the name that it belongs to."""
    found = []
    for module in (losses, balance, objective, metrics, calibrate):
        for name in module.__all__:
            for section in SECTION.findall(inspect.getdoc(getattr(module, name)) or ""):
                found += [(name, line.strip()) for line in section.splitlines() if line.strip()]
    return found


def test_every_formula_is_read_whole() -> None:
    given = lines()
    assert len({name for name, _ in given}) > 50
    for name, line in given:
        text = "".join(ElementTree.fromstring(FORMULAS["mathml"](line)).itertext())
        assert not re.search(r"[_^{}/]", text), f"{name}: {line}"
        assert len(text) > len(line) / 3, f"{name}: {line}"


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("p_c", "<msub><mi>p</mi><mrow><mi>c</mi></mrow></msub>"),
        ("ℓ₊", "<msub><mi>ℓ</mi><mrow><mo>+</mo></mrow></msub>"),
        ("σ(z)/T_c", "<mfrac><mrow><mi>σ</mi><mrow><mo>(</mo><mi>z</mi><mo>)</mo></mrow></mrow>"),
        ("(1 − p)/2", "<mfrac><mrow><mn>1</mn><mo>−</mo><mi>p</mi></mrow><mn>2</mn></mfrac>"),
        ("s^γ₋", "<msup><mi>s</mi><mrow><msub><mi>γ</mi><mrow><mo>−</mo></mrow></msub></mrow></msup>"),
        ("Σ_{r ≤ k}", "<munder><mo>∑</mo>"),
        ("r̂", '<mover accent="true"><mi>r</mi><mo>ˆ</mo></mover>'),
        ("a < b", "<mo>&lt;</mo>"),
    ],
)
def test_a_formula(text: str, tree: str) -> None:
    assert tree in FORMULAS["mathml"](text)


def test_a_box_and_a_formula_between_dollars_are_typeset_and_code_is_not() -> None:
    box = '<details class="formula" open><summary>Formula</summary><p>a = b/c\nx &lt; y</p></details>'
    alone = "<p>$x = 1$\n$y = 2$</p><p>with $z$ inside</p>"
    page = f"{box}{alone}<td>$p_c$</td><code>$HOME and $PATH</code>"
    made = FORMULAS["on_page_content"](page)
    assert made.count("<math") == 6
    assert made.count('<div class="formula">') == 2
    assert made.count('display="block"') == 4
    assert "<mfrac><mi>b</mi><mi>c</mi></mfrac>" in made
    assert "$HOME and $PATH" in made
