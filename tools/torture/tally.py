"""What the campaign counts: faults injected, survived, lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from steelyard import _source


@dataclass
class Tally:
    """One row of the table.

    Args:
        fault: what was done, and to which command.
        held_to: what counts as survived.
        injected: how often.
        lost: what was wrong, a sentence for each that was not survived.
    """

    fault: str
    held_to: str
    injected: int = 0
    lost: list[str] = field(default_factory=list)

    def add(self, wrong: str, injected: int = 1) -> None:
        """Count faults, and what was wrong afterwards, "" where nothing was."""
        self.injected += injected
        if wrong:
            self.lost.append(wrong)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return asdict(self)


def keep(file: Path, tallies: Sequence[Tally], is_part: bool) -> list[Tally]:
    """Write rows as JSON, each with its date and commit, and return all of the file.

    Where they are only a part of the campaign, they replace those of the same fault, and the others stay.
    """
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"] if is_part and file.is_file() else {}
    source = {"date": datetime.now(UTC).date().isoformat(), "commit": _source.commit()}
    for tally in tallies:
        rows[tally.fault] = {**source, **tally.as_dict(), "lost": len(tally.lost), "why": tally.lost}
    totals = {name: sum(row[name] for row in rows.values()) for name in ("injected", "lost")}
    file.write_text(json.dumps({**source, **totals, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return [Tally(row["fault"], row["held_to"], row["injected"], row["why"]) for row in rows.values()]


PAGE = """# Faults

What happens to a command that is killed, finds the disk full, is lied to about the time, reads a damaged file,
meets another one that writes to the same run, or finds odd things among images.
Written by

```
{command}
```

which takes some minutes on two cores; `EVERY=3` has a third of the writes meet a fault, another `SEED` draws other
moments and places. A fault is *survived* if what stands in the third column holds, and *lost* otherwise. "Equal" is
byte for byte, but for the seconds that a training took; of an index it is every item, probability, path and note. A
kill may leave a hidden folder `.NAME.PID.partial` beside the file that was being written; it is of no account.

| fault | injected | survived if | survived | lost |
|---|---:|---|---:|---:|
{rows}
| **all** | **{injected}** | | **{survived}** | **{lost}** |
{told}"""


def page(tallies: Sequence[Tally], command: str) -> str:
    """Return the page of a campaign that `command` ran."""
    rows = [f"| {t.fault} | {t.injected} | {t.held_to} | {t.injected - len(t.lost)} | {len(t.lost)} |" for t in tallies]
    told = [f"- {t.fault}: {_brief(why)}" for t in tallies for why in t.lost]
    injected, lost = sum(t.injected for t in tallies), sum(len(t.lost) for t in tallies)
    return PAGE.format(
        command=command,
        rows="\n".join(rows),
        injected=injected,
        survived=injected - lost,
        lost=lost,
        told="\n## Lost\n\n" + "\n".join(told) + "\n" if told else "",
    )


def _brief(why: str) -> str:
    """A line without the folders of this machine."""
    return " ".join(why.replace(f"{Path(__file__).resolve().parents[2]}/", "").split())[:240]
