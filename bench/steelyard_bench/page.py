"""The page of a folder of runs: README.md, written from their files and nothing else."""

from __future__ import annotations

from pathlib import Path

from steelyard._files import write_atomic
from steelyard_bench.headlines import headlines
from steelyard_bench.record import Record
from steelyard_bench.tables import tables

_HEAD = """# Benchmarks

What is faster, as fast (within a tenth) and slower than the peers, in each run of `steelyard bench`; the tables follow.
"""
_HOW = """## How to read the tables

All figures of a section are of one run: candidates take turns, a figure is the median over rounds, and a multiple is
the median of the rounds' ratios. The page is written by `steelyard bench --from FILE.json --out FOLDER` from the files
beside it, one section per file.

- **µs**: forward and backward pass as called, launches included; **device µs**: on the GPU alone.
- **× floor**: device time (on a CPU: time) divided by the time to move 9 bytes per label (logit and one-byte target
  read, gradient written) at the bandwidth of a large copy in the same run.
- **× BCE**: time divided by that of torch's `BCEWithLogitsLoss` as it comes. **MB**: peak memory of a call, beyond its
  inputs.
- Our losses get int8 targets. Peers get float32 targets as they come, and also int8 where they take it (**int8**).
- **plain**: without fused kernels. **compiled**: by `torch.compile`; of ours the plain code. Targets are int8, which a
  peer that does not take int8 converts inside the compiled code.
- **unknown**: with 30 % of the labels unknown. **soft**: with soft targets.
"""
_PARTS = {"losses": "losses", "pairs": "label pairs", "metrics": "metrics", "training": "training"}


def publish(record: Record, folder: Path) -> None:
    """Write a run's file, its roofline and the page of all runs in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    record.save(folder / f"{record.name}.json")
    picture = _picture(record) if any(row.part == "losses" for row in record.rows) else None
    if picture is not None:
        write_atomic(folder / f"{record.name}.svg", picture)
    write_atomic(folder / "README.md", page(folder))


def _picture(record: Record) -> str | None:
    """The roofline; None where what draws it is not installed: `again` draws it elsewhere."""
    try:
        from steelyard.report.canvas import by_night, has_matplotlib, to_svg
        from steelyard_bench.roofline import roofline
    except ImportError:
        return None
    return by_night(to_svg(roofline(record))) if has_matplotlib() else None


def page(folder: Path) -> str:
    """Return the page of the runs in `folder`: GPUs first, those of more parts first, the newest first."""
    runs = [(file, Record.read(file)) for file in sorted(folder.glob("*.json"))]
    runs.sort(key=lambda run: (run[1].is_gpu, len({row.part for row in run[1].rows}), run[1].date), reverse=True)
    sections = (_section(record, file.with_suffix(".svg")) for file, record in runs)
    return "\n".join([_HEAD, *(_in_short(record) for _, record in runs), _HOW, *sections])


def _name(record: Record) -> str:
    """Return the machine and the parts of a run, such as "NVIDIA H200: losses, metrics"."""
    machine = record.machine.get("gpu") or record.machine["cpu"]
    parts = dict.fromkeys(_PARTS.get(row.part, row.part) for row in record.rows)
    return f"{machine}: {', '.join(parts)}"


def _in_short(record: Record) -> str:
    sentences = headlines(record)
    if not sentences:
        return ""
    return "\n".join([f"**{_name(record)}** ({record.date.split()[0]})", "", *(f"- {s}" for s in sentences), ""])


def _section(record: Record, picture: Path) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in record.machine.items())
    versions = ", ".join(f"{name} {value}" for name, value in record.versions.items())
    lines = [
        f"## {_name(record)}",
        "",
        f"{record.date}, {record.seconds:,.0f} s: `{record.command}`",
        "",
        f"- machine: {machine}; a copy moves {record.bandwidth / 1e9:,.1f} GB/s, read and written",
        f"- versions: {versions}; sources {record.sources}, commit {record.commit or 'not known'}",
    ]
    if record.left_out:
        lines.append(f"- left out: {'; '.join(record.left_out)}")
    if picture.is_file():
        lines += ["", f"![Bytes a second over bytes that must move, beside the bandwidth of a copy]({picture.name})"]
    for table in tables(record):
        lines += ["", table.markdown()]
    return "\n".join([*lines, ""])
