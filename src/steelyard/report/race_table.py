"""The candidates of a race as a table for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.text import Text

from steelyard.report.headline import four
from steelyard.report.headline import per_cent as percent
from steelyard.report.scores import right_aligned
from steelyard.report.terminal import say

MOST_ROWS = 8
"""Most candidates that are printed; race.json has all."""


def show_race(document: Mapping[str, Any], console: Console) -> None:
    """Print the best candidates and the winner."""
    rows = document["candidates"]
    table = right_aligned("candidate", "log-loss", "mAP, %", "weight", "seconds")
    for row in rows[:MOST_ROWS]:
        loss = row["log_loss"] if row["log_loss"] is not None else row["screened_log_loss"]
        table.add_row(
            row["candidate"],
            four(loss),
            percent(row["map"]),
            f"{row['weight']:.2f}" if row["weight"] else "",
            f"{row['seconds']:.1f}",
        )
    console.print(table)
    if len(rows) > MOST_ROWS:
        console.print(Text(f"and {len(rows) - MOST_ROWS} more in race.json", "dim"))
    say(console, outcome_sentence(document))


def outcome_sentence(document: Mapping[str, Any]) -> str:
    """Return the winner and its scores in one sentence."""
    members = [row for row in document["candidates"] if row["weight"]]
    winner = f"the mean of {len(members)} candidates" if len(members) > 1 else members[0]["candidate"]
    score = "" if document["map"] is None else f", mAP {percent(document['map'])} %"
    by = " by the audit sample" if document.get("decided_by") == "audit sample" else ""
    unfinished = [row["candidate"] for row in members if row.get("converged") is False]
    rest = f" Not converged: {'; '.join(unfinished)}." if unfinished else ""
    return f"Winner{by}: {winner}; out of fold, log-loss {document['log_loss']:.4f}{score}.{rest}"


@contextmanager
def race_progress(console: Console) -> Iterator[Callable[[str], None]]:
    """Give a function that shows progress: a status line on a terminal, plain lines elsewhere."""
    if not console.is_terminal:
        yield lambda sentence: say(console, sentence)
        return
    with console.status("Race of small models") as status:
        yield lambda sentence: status.update(f"Race of small models: {sentence}")
