"""`steelyard reproduce --list`: what can be run, on which data, and what to expect."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from steelyard_papers.markdown import number
from steelyard_papers.published import Published
from steelyard_papers.reproduction import Reproduction


def entry(reproduction: Reproduction, root: Path) -> dict[str, Any]:
    """Return what is to be known about a reproduction, fit for JSON."""
    return {
        "name": reproduction.name,
        "paper": reproduction.paper,
        "title": reproduction.title,
        "needs": [{"what": need.what, "where": need.where, "there": need.check(root)} for need in reproduction.needs],
        "expected": _expected(reproduction.published),
        "minutes": reproduction.minutes,
        "command": reproduction.command,
        "note": reproduction.note,
    }


def show(reproductions: Sequence[Reproduction], root: Path, console: Console) -> None:
    """Print the list."""
    paper, width = "", max(len(reproduction.name) for reproduction in reproductions)
    for reproduction in reproductions:
        said = entry(reproduction, root)
        if reproduction.paper != paper:
            paper = reproduction.paper
            _say(console, f"\n{paper}", "bold")
        _say(console, f"  {said['name']:<{width}} {said['title']}")
        data = ", ".join(f"{need['what']}{'' if need['there'] else ' (not there)'}" for need in said["needs"])
        time = f"{said['minutes']:g} min a seed on a GPU" if said["minutes"] else "seconds"
        _say(console, f"  {'':<{width}} {data or 'no data'}; {time}; {said['command']}", "dim")
        if said["expected"]:
            _say(console, f"  {'':<{width}} expected: {'; '.join(said['expected'])}", "dim")
    absent = {need.what: need.where for r in reproductions for need in r.needs if not need.check(root)}
    if absent:
        _say(console, f"\nNot in {root} (--data names another folder):", "bold")
        for what, where in absent.items():
            _say(console, f"  {what}: {where}")


def _expected(published: Published | None) -> list[str]:
    """The numbers of the first row in print."""
    if published is None:
        return []
    return [
        f"{name} {column} {number(value)}"
        for name, values in list(published.rows.items())[:1]
        for column, value in zip(published.columns, values, strict=True)
        if value is not None
    ]


def _say(console: Console, line: str, style: str = "") -> None:
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)
