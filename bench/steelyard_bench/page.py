"""The page of a folder of runs: README.md, written from their files and nothing else."""

from __future__ import annotations

from pathlib import Path

from steelyard._files import write_atomic
from steelyard_bench.headlines import headlines
from steelyard_bench.record import Record
from steelyard_bench.tables import tables

_HEAD = """# Benchmarks

Each section begins with what is faster, as fast (within a tenth) and slower than the peers. Peers get the chances that
our losses get: int8 targets where they take them, and `torch.compile`; a section without such a figure is older.

Written by `steelyard bench --from FILE.json --out FOLDER` from the files beside it, one section per file. All figures
of a section are of one run: every candidate is timed in turns with the others, a figure is the median over rounds, a
multiple the median of the rounds' ratios.

- **µs**: forward and backward as they are called, launches included; **device µs**: on the GPU alone.
- **× floor**: device time (time, on a CPU) over that of moving 9 bytes per label (logit and one-byte target read,
  gradient written) at the bandwidth of a large copy in the same run.
- **× BCE**: time over that of torch's `BCEWithLogitsLoss` as it comes. **MB**: memory at the peak of a call, beyond its
  inputs. Ours are given int8 targets; peers float32 as they come, and int8 where they take it (**int8**).
- **plain**: without fused kernels. **compiled**: `torch.compile`, of the plain code of ours; targets are int8, which a
  peer that takes none converts in the compiled code. **unknown**, **soft**: with 30 % of the labels unknown, and with
  soft targets.
"""


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
    return "\n".join([_HEAD, *(_section(record, file.with_suffix(".svg")) for file, record in runs)])


def _section(record: Record, picture: Path) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in record.machine.items())
    versions = ", ".join(f"{name} {value}" for name, value in record.versions.items())
    sentences = headlines(record)
    lines = [
        f"## {record.machine.get('gpu') or record.machine['cpu']}",
        "",
        *(f"- {sentence}" for sentence in sentences),
        *([""] if sentences else []),
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
