"""Typeset the formulas of docstrings and pages: plain text as `help()` shows it becomes MathML, which browsers draw.

A docstring gives its formulas under "Formula:", one per line; on a page they stand between dollar signs, and a
paragraph of nothing else is set apart. They are written as text: `ℓ₋(z) = −s^γ₋ log(1 − s)`. `^` and `_` take one name,
number or pair of brackets, as do the raised and lowered characters of Unicode; `a/b` without spaces is a fraction, with
spaces a slash. Round brackets around a part of a fraction, and braces anywhere, only hold together.
"""

from __future__ import annotations

import html
import re
import unicodedata
from typing import Any

TOKEN = re.compile(r"\d*\.?\d+|[A-Za-z]{2,}|\s+|.", re.S)
IN_LINE = re.compile(r"(?P<code><(?P<tag>pre|code)\b.*?</(?P=tag)>)|\$(?P<formula>[^$<>\n]+)\$", re.S)
ALONE = re.compile(r"<p>(\$[^$<>\n]+\$(?:\n\$[^$<>\n]+\$)*)</p>")
PAIRS = {"(": ")", "[": "]", "{": "}", "⌊": "⌋", "⌈": "⌉"}
SUMS = "ΣΠ"
LARGE = {"Σ": "∑", "Π": "∏"}
OPERATORS = set("=<>≤≥≠≈∝+−-·×±,;:|∈→←…∩∪‖∂∞/!′'~")
ACCENTS = {"\u0302": "\u02c6", "\u0304": "\u203e", "\u0303": "~"}


def lowered(char: str) -> tuple[str, str] | None:
    """Return ("sub" or "super", the plain character) of a raised or lowered one, else None."""
    kind, _, plain = unicodedata.decomposition(char).partition("> ")
    if kind not in ("<sub", "<super"):
        return None
    return kind[1:], chr(int(plain, 16))


class Formula:
    """Reads one formula from left to right."""

    def __init__(self, text: str) -> None:
        self.tokens = TOKEN.findall(unicodedata.normalize("NFC", text))
        self.at = 0

    def peek(self, ahead: int = 0) -> str:
        """Return a token that comes, "" at the end."""
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else ""

    def row(self, end: str = "") -> str:
        """Read up to a closing bracket, or to the end."""
        parts: list[str] = []
        while self.peek() and self.peek() != end:
            if self.peek().isspace():
                self.at += 1
                if parts and not self.closes():
                    parts.append('<mspace width="0.25em"></mspace>')
            else:
                parts.append(self.fraction())
        return "".join(parts)

    def closes(self) -> bool:
        """Return whether an operator follows or went before, which has its own space."""
        before = self.tokens[self.at - 2] if self.at > 1 else ""
        return self.peek() in OPERATORS - {"∂", "|"} or before in OPERATORS - {",", ";", ":"}

    def fraction(self) -> str:
        """Read a term, and what it is divided by."""
        top = self.applied()
        while self.peek() == "/" and self.peek(1).strip() and not self.tokens[self.at - 1].isspace():
            self.at += 1
            below = self.applied()
            top = f"<mfrac>{bare(top)}{bare(below)}</mfrac>"
        return top

    def applied(self) -> str:
        """Read a name with its argument, as in σ(z), or anything else alone."""
        is_name = self.peek()[:1].isalpha()
        content = self.scripted()
        while is_name and self.peek() == "(":
            content = f"<mrow>{content}{self.scripted()}</mrow>"
        return content

    def scripted(self) -> str:
        """Read an atom with what is raised and lowered behind it."""
        name = self.peek()
        atom, scripts = self.atom(), {"sub": "", "super": ""}
        while True:
            mark = lowered(self.peek()) if len(self.peek()) == 1 else None
            if self.peek() in ("_", "^") and self.peek(1).strip():
                where = "sub" if self.peek() == "_" else "super"
                self.at += 1
                scripts[where] += bare(self.script())
            elif mark is not None:
                self.at += 1
                scripts[mark[0]] += leaf(mark[1])
            elif self.peek() == "′":
                self.at += 1
                scripts["super"] += "<mo>′</mo>"
            else:
                break
        sub, above = (f"<mrow>{scripts[where]}</mrow>" if scripts[where] else "" for where in ("sub", "super"))
        under = name in SUMS or name in ("max", "min", "mean", "argmax")
        if sub and above:
            tag = "munderover" if under else "msubsup"
            return f"<{tag}>{atom}{sub}{above}</{tag}>"
        if sub:
            tag = "munder" if under else "msub"
            return f"<{tag}>{atom}{sub}</{tag}>"
        return f"<msup>{atom}{above}</msup>" if above else atom

    def script(self) -> str:
        """Read what is raised or lowered: a name with what is lowered behind it, a number, a sign, or brackets."""
        sign = self.peek() if self.peek() in ("−", "+") else ""
        self.at += bool(sign)
        if sign and not (self.peek()[:1].isalnum() or self.peek() in PAIRS):
            return f"<mo>{sign}</mo>"
        atom, below = self.atom(), ""
        while len(self.peek()) == 1 and (mark := lowered(self.peek())) and mark[0] == "sub":
            self.at += 1
            below += leaf(mark[1])
        return (f"<mo>{sign}</mo>" if sign else "") + (f"<msub>{atom}<mrow>{below}</mrow></msub>" if below else atom)

    def atom(self) -> str:
        """Read a bracket with its content, a root, a name with its accent, a number or a sign."""
        token = self.peek()
        self.at += 1
        if token in PAIRS:
            content, end = self.row(PAIRS[token]), self.peek()
            self.at += 1
            if token == "{":  # braces only hold together
                return f"<mrow>{content}</mrow>"
            return f"<mrow><mo>{token}</mo>{content}<mo>{end}</mo></mrow>"
        if token == "√":
            return f"<msqrt>{bare(self.atom())}</msqrt>"
        if self.peek() in ACCENTS and self.peek():
            self.at += 1
            return accented(leaf(token), self.tokens[self.at - 1])
        return leaf(token)


def accented(base: str, mark: str) -> str:
    """Return a letter under an accent; a bar needs the distance that other accents have of themselves."""
    close = "" if ACCENTS[mark] == "\u203e" else ' accent="true"'
    return f"<mover{close}>{base}<mo>{ACCENTS[mark]}</mo></mover>"


def leaf(token: str) -> str:
    """Return one name, number or sign; letters with an accent of their own are taken apart."""
    plain = unicodedata.normalize("NFD", token)
    if len(plain) == 2 and plain[1] in ACCENTS:
        return accented(f"<mi>{plain[0]}</mi>", plain[1])
    shown = html.escape(LARGE.get(token, token))
    if token in LARGE or token in OPERATORS:
        return f"<mo>{shown}</mo>"
    if token[0].isdigit() or (token[0] == "." and len(token) > 1):
        return f"<mn>{shown}</mn>"
    return f"<mi>{shown}</mi>"  # upright where it is a word, as browsers have it


def bare(content: str) -> str:
    """Return the content of round brackets as a row, anything else as it is."""
    opening, closing = "<mrow><mo>(</mo>", "<mo>)</mo></mrow>"
    if content.startswith(opening) and content.endswith(closing):
        return f"<mrow>{content[len(opening) : -len(closing)]}</mrow>"
    return content


def mathml(text: str, block: bool = False) -> str:
    """Return a formula as MathML, in a line of text or as a block."""
    opening = '<math display="block">' if block else "<math>"
    return f"{opening}{Formula(text.strip()).row()}</math>"


def on_page_content(text: str, **_: Any) -> str:
    """Return a page of HTML whose "Formula" boxes and $…$ are MathML."""

    def box(match: re.Match[str], marks: str = "") -> str:
        lines = [line.strip(marks) for line in html.unescape(re.sub(r"<[^>]*>", "", match[1])).strip().splitlines()]
        return f'<div class="formula">{"".join(mathml(line, block=True) for line in lines if line.strip())}</div>'

    text = re.sub(r'<details class="formula"[^>]*>\s*<summary>[^<]*</summary>(.*?)</details>', box, text, flags=re.S)
    text = ALONE.sub(lambda match: box(match, "$"), text)
    return IN_LINE.sub(lambda match: match[0] if match["code"] else mathml(html.unescape(match["formula"])), text)
