"""Text for a terminal: without control characters, and with probabilities as .xxx."""

from __future__ import annotations

from rich.console import Console

_ENDLESS = 1 << 14


def console_of(stderr: bool = False) -> Console:
    """Return where to print; in a pipe or a file no line is wrapped, so that a table row is one line."""
    console = Console(stderr=stderr)
    if not console.is_terminal:
        console.width = _ENDLESS
    return console


def plain(text: str) -> str:
    """Return a text without characters that would control the terminal."""
    return "".join(c if c.isprintable() else "·" for c in text)


def probability(value: float) -> str:
    """Return a probability or threshold as .xxx; only 0 and 1 are written as .000 and 1.000."""
    if 0 < value < 0.0005:
        return "<.001"
    return ">.999" if 0.9995 <= value < 1 else f"{value:.3f}".removeprefix("0")


def tell(console: Console, sentence: str, style: str = "") -> None:
    """Print a sentence; outside a terminal it is one line, which programs can find."""
    console.print(sentence, style=style, markup=False, highlight=False, soft_wrap=not console.is_terminal)
