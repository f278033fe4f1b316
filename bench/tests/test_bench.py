"""`steelyard bench`: what is timed and how, whose losses may stand beside ours, and what becomes of the figures."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import layouts
from steelyard.data.dataset import ArrayDataset
from steelyard.kernels import choice
from steelyard.labels import Labels
from steelyard.losses.table import TABLE
from steelyard_bench import command, losses, metrics, pairs, peers, tables, timing, training
from steelyard_bench.command import BenchRequest, again, bench
from steelyard_bench.headlines import headlines
from steelyard_bench.page import page, publish
from steelyard_bench.record import Record, begin
from steelyard_bench.row import Row
from steelyard_bench.timing import Candidate, Clock, Times
from torture.child import Ended, typed
from typed import typed as run

CPU = torch.device("cpu")
DOCS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"


class Hours:
    """A clock that only candidates move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.made = 0.0, list[str]()
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(timing, "peak", lambda call, device: 0)

    def call(self, name: str, *seconds: float) -> Callable[[], None]:
        """A call that takes so long, then so long, and so on from the first."""
        taken: Iterator[int] = iter(range(10**9))

        def call() -> None:
            self.made.append(name)
            self.now += seconds[next(taken) % len(seconds)]

        return call


def test_candidates_are_timed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = Hours(monkeypatch)
    found = Clock(CPU, 1.0).times({name: Candidate([hours.call(name, 0.05)]) for name in "abc"})
    rounds = len(found["a"].called)
    assert rounds == 20  # a second each
    orders = ["".join(hours.made[i : i + 3]) for i in range(6, len(hours.made), 3)]
    assert len(orders) == rounds
    assert {"".join(sorted(order)) for order in orders} == {"abc"}
    assert len(set(orders)) > 3  # none has always the same one before it
    assert found["b"].called == pytest.approx([0.05] * rounds)
    assert found["b"].on_device == found["b"].called


def test_who_takes_long_leaves_after_fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = Hours(monkeypatch)
    call = {"short": hours.call("s", 1.0), "long": hours.call("L", 2.0, 4.0)}
    found = Clock(CPU, 12.0).times({name: Candidate([call[name]]) for name in call})
    assert [len(found[name].called) for name in ("short", "long")] == [12, 5]  # 12 s each, five rounds at least
    rounds = hours.made[4:]
    assert all(set(rounds[i : i + 2]) == {"s", "L"} for i in range(0, 10, 2))
    assert rounds[10:] == ["s"] * 7
    assert found["long"].over(found["short"]) in found["long"].called  # of the rounds that both were in


def test_short_calls_are_timed_many_at_a_time_and_over_all_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = Hours(monkeypatch)
    inputs = [hours.call(name, 1 / 8192) for name in "xyz"]
    found = Clock(CPU, 0.0).times({"short": Candidate(inputs), "long": Candidate([hours.call("L", 0.5)])})
    assert found["short"].seconds == pytest.approx(1 / 8192)
    assert found["long"].seconds == pytest.approx(0.5)
    turns = [turn[i : i + 9] for turn in "".join(hours.made).split("L")[3:] for i in range(0, len(turn), 9)]
    assert set(turns) == {"xyzxyzxyz"}  # a millisecond at least


def test_a_device_is_timed_with_launches_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pretended GPU: a launch takes the host 3 ms and the device 1 ms; what is in its cache takes none of that."""
    host, device, done, seen = Hours(monkeypatch), 0.0, list[str](), list[str]()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = max(host.now, device)

        def synchronize(self) -> None:
            host.now = max(host.now, device)

        def elapsed_time(self, end: Event) -> float:
            return 1e3 * (end.at - self.at)

    def work(seconds: float) -> None:
        nonlocal device
        device = max(host.now, device) + seconds

    def launch(name: str, fresh: bool) -> Callable[[], None]:
        def call() -> None:
            host.now += 3e-3
            work(1e-3 if not fresh or seen[-1:] != [name] else 0.0)
            seen.append(name)

        return call

    def sleep(cycles: int) -> None:
        done.append("sleep")
        work(cycles / 2e9)

    def flush(self: Clock) -> None:
        done.append("flush")
        seen.append("")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "_sleep", sleep)
    monkeypatch.setattr(Clock, "_flush", flush)
    clock = Clock(CPU, 0.0)
    clock.is_gpu = True
    found = clock.times({"a": Candidate([launch("a", False)] * 5), "b": Candidate([launch("b", True)], cached=True)})
    assert found["a"].called == pytest.approx([3e-3] * 5)
    assert found["a"].on_device == pytest.approx([1e-3] * 5)
    assert found["b"].on_device == pytest.approx([1e-3] * 5)
    assert done == 5 * ["sleep", "flush", "sleep"]


def test_a_ratio_is_that_of_rounds() -> None:
    """A machine that is slow for a while slows both; the ratio of medians would not be 2."""
    ours, theirs = Times([2.0, 20.0, 200.0, 2.0, 6.0], [], 0), Times([1.0, 10.0, 100.0, 9.0, 3.0], [], 0)
    assert ours.over(theirs) == 2
    assert ours.seconds / theirs.seconds != 2


def test_the_context_of_a_candidate_is_its_own() -> None:
    seen: dict[str, set[bool]] = {"a": set(), "b": set()}
    call = {name: (lambda name=name: seen[name].add(choice.fuses(CPU))) for name in seen}
    with choice.using("fused"):
        Clock(CPU, 0.0).times({"a": Candidate([call["a"]]), "b": Candidate([call["b"]], losses.plainly)})
        assert choice.fuses(CPU)
    assert seen == {"a": {True}, "b": {False}}


def test_memory_at_the_peak() -> None:
    def call() -> Tensor:
        first = torch.zeros(1000)  # 4,000 bytes
        first = first + 1  # 8,000 at once
        del first
        return torch.zeros(1500)  # 6,000

    call()
    assert timing.peak(call, CPU) == pytest.approx(8000, abs=512)


def test_a_call_both_ways_counts_its_gradient_and_leaves_none() -> None:
    z = torch.zeros(64, 64, requires_grad=True)
    seen = []
    call = timing.both_ways(lambda x, t: seen.append(x.grad) or x.sum() * t, z, torch.tensor(2.0))  # type: ignore[func-returns-value]
    call()
    assert timing.peak(call, CPU) >= 4 * z.numel()
    assert seen == [None, None]
    assert z.grad is None


def test_bandwidth_counts_what_is_read_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing.Clock, "times", lambda self, candidates: {"copy": Times([0.5], [0.25], 0)})
    assert timing.bandwidth(CPU, 1.0) == 2 * 2**28 / 0.25


PEER = """
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

def half(logits, targets, factor=0.5):
    return factor * binary_cross_entropy_with_logits(logits, targets)

def one_argument(x):
    return x

def _hidden(logits, targets):
    raise RuntimeError

class Summed(nn.Module):
    def forward(self, logits, targets):
        return nn.functional.softplus(logits).sum() - (logits * targets).sum()
"""


def test_losses_of_a_file(tmp_path: Path) -> None:
    file = layouts.write(tmp_path / "mine.py", PEER)
    found = peers.of_file(str(file), CPU)
    assert list(found) == ["mine: half", "mine: Summed"]
    z, t = torch.randn(4, 3), torch.eye(4, 3)
    theirs = torch.nn.functional.binary_cross_entropy_with_logits(z, t)
    torch.testing.assert_close(found["mine: half"](z, t), theirs / 2)
    torch.testing.assert_close(found["mine: Summed"](z, t), theirs * 12)
    assert list(peers.of_file(f"{file}:half", CPU)) == ["mine: half"]


@pytest.mark.parametrize(
    ("content", "asked", "said"),
    [
        (None, "", "no such file"),
        ("x = 1", "", "no loss in it: define a function of (logits, targets) or an nn.Module class"),
        (PEER, ":hlaf", "has no loss hlaf; there is half, Summed"),
        ("import nowhere", "", "it cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        ("def f(logits, targets):\n    return logits", "", "f fails: RuntimeError: grad can be implicitly created"),
        (
            "def f(logits, targets):\n    return logits.sum() / 0 * 0",
            "",
            "f gives (): a peer returns one finite number",
        ),
        ("from torch import nn\nclass A(nn.Module):\n    def __init__(self, n): pass", "", "A fails: TypeError"),
    ],
)
def test_a_file_that_cannot_be_timed(tmp_path: Path, content: str | None, asked: str, said: str) -> None:
    file = tmp_path / "mine.py"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError) as error:
        peers.of_file(f"{file}{asked}", CPU)
    assert said in str(error.value)
    assert str(file) in str(error.value)


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("timm.loss", "torchmetrics.functional.classification"):
        monkeypatch.setitem(sys.modules, name, None)
    left_out: list[str] = []
    assert list(peers.installed(left_out)) == [peers.BCE]
    rows = metrics.metric_rows(30, Clock(CPU, 0.0), left_out)
    assert all(row.over_peer is None for row in rows)
    assert [line.split()[0] for line in left_out] == ["timm", "torchmetrics"]


def test_a_part_whose_packages_are_missing_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "steelyard_bench.metrics", None)
    monkeypatch.delattr("steelyard_bench.metrics")
    monkeypatch.setattr(command, "bandwidth", lambda device, seconds: 1e9)
    shown: list[str] = []
    record = bench(BenchRequest("cpu", only="metrics", quick=True), str(tmp_path), shown.append)
    assert record.rows == []
    assert shown[-1].startswith("left out: metrics (")


def test_what_cannot_be_compiled_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(*args: object, **kwargs: object) -> Callable[..., Tensor]:
        def fails(z: Tensor, t: Tensor) -> Tensor:
            raise RuntimeError("no C++ compiler\nmore of it")

        return fails

    monkeypatch.setattr(torch, "compile", no_compiler)
    left_out: list[str] = []
    found = losses.loss_rows((4, 3), Clock(CPU, 0.0), peers.installed([]), ["ASL"], left_out, kinds=True)
    compiled = ["ASL", "torch BCEWithLogitsLoss", "timm AsymmetricLossMultiLabel"]
    assert left_out == [f"{name}, compiled, at 4 × 3 (no C++ compiler)" for name in compiled]
    assert {row.way for row in found} == {"steelyard", "peer", "int8", "unknown", "soft"}
    assert {row.name for row in found if row.way == "soft"} == {row.name for row in TABLE}


def test_peers_are_given_int8_targets_and_a_compiler_like_our_losses() -> None:
    batch = (torch.randn(6, 4, requires_grad=True), torch.randint(0, 2, (6, 4), dtype=torch.int8))
    takes = {name: losses.takes_int8(peer, batch) for name, peer in peers.installed([]).items()}
    assert takes == {peers.BCE: False, "timm AsymmetricLossMultiLabel": True}
    for peer in peers.installed([]).values():
        torch.testing.assert_close(losses.int8(peer, batch)(*batch), peer(batch[0], batch[1].float()))
    rows = losses.loss_rows((4, 3), Clock(CPU, 0.0), peers.installed([]), ["BCE"], [])
    assert {row.name for row in rows if row.way == "compiled"} == {"BCE", *takes}
    assert [row.name for row in rows if row.way == "int8"] == ["timm AsymmetricLossMultiLabel"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """A small run of the command."""
    folder = tmp_path_factory.mktemp("bench")
    layouts.write(folder / "mine.py", PEER)
    options = "--quick --only losses,pairs --sizes 16x5,8x300 --compiled none --peer mine.py:half --out out"
    done = typed(("bench", *options.split(), "--device", "cpu"), folder)
    assert done.code == 0, done.err
    return folder / "out", done


def test_every_loss_and_peer_at_every_size(small: tuple[Path, Ended]) -> None:
    record = Record.read(small[0] / "cpu.json")
    rows = [row for row in record.rows if row.part == "losses"]
    for size, least in (("16 × 5", 16 * 5 * 9), ("8 × 300", 8 * 300 * 9)):
        some = [row for row in rows if row.size == size]
        assert {row.name for row in some if row.way == "steelyard"} >= {row.name for row in TABLE}
        assert {row.name for row in some if row.way == "peer"} == {
            *(peers.BCE, "timm AsymmetricLossMultiLabel", losses.ALONE, "mine: half")
        }
        assert {row.least_bytes for row in some} == {least}
        assert next(row for row in some if row.name == peers.BCE).over_peer == 1
    assert all(row.seconds > 0 and row.memory is not None for row in rows)
    assert [row.size for row in record.rows if row.part == "pairs"] == ["1,024 × 600"]
    assert record.command.startswith("steelyard bench --quick --only losses,pairs")
    assert record.versions["torch"] == torch.__version__
    assert record.bandwidth > 0
    assert record.seconds > 0


def test_what_is_shown_and_written(small: tuple[Path, Ended]) -> None:
    folder, done = small
    assert done.out.count("Losses, ") == 2
    assert done.out.count("DB-Focal") == 2
    assert "mine: half" in done.out
    assert done.out.endswith("Written: out\n")
    assert done.err == ""
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "cpu.json", "cpu.svg"]
    assert (folder / "README.md").read_text() == page(folder)
    assert "prefers-color-scheme: dark" in (folder / "cpu.svg").read_text()


def test_the_page_is_written_again_without_measuring(small: tuple[Path, Ended], tmp_path: Path) -> None:
    again(str(small[0] / "cpu.json"), str(tmp_path))
    for name in ("README.md", "cpu.json"):
        assert (tmp_path / name).read_bytes() == (small[0] / name).read_bytes()


def made(gpu: str, rows: list[Row], date: str = "2026-01-02 03:04 UTC") -> Record:
    return replace(begin(CPU, 1e12), machine={"gpu": gpu, "cpu": "x"}, rows=rows, date=date)


def test_a_page_of_several_runs(tmp_path: Path) -> None:
    """GPUs come first, of them those of more parts; each with the picture that is named as its file is."""
    some = [
        Row("losses", "1 × 1", "BCE", "steelyard", 1.0, 1.0, 1, 9, 1.0),
        Row("metrics", "1 × 1", "mAP", "steelyard", 1.0),
    ]
    runs = {"whole": made("A", some), "part": made("B", some[:1], "2027-01-01 00:00 UTC")}
    runs["cpu"] = replace(runs["whole"], machine={"cpu": "x"})
    for name, record in runs.items():
        record.save(tmp_path / f"{name}.json")
    for name in ("whole", "cpu"):
        (tmp_path / f"{name}.svg").write_bytes(b"")
    shown = re.findall(r"^## (.)|\]\((.*?)\)", page(tmp_path), re.M)
    assert shown == [("H", ""), ("A", ""), ("", "whole.svg"), ("B", ""), ("x", ""), ("", "cpu.svg")]


def test_the_page_begins_with_the_headlines_of_every_run(tmp_path: Path) -> None:
    some = [Row("losses", "1 × 1", peers.BCE, "peer", 1.0, 1.0, 1, 9, 1.0)]
    some += [Row("losses", "1 × 1", "BCE", "steelyard", 2.0, 2.0, 1, 9, 2.0)]
    for name, gpu in (("a", "A"), ("b", "B")):
        made(gpu, some).save(tmp_path / f"{name}.json")
    before, _, after = page(tmp_path).partition("## How to read the tables")
    assert before.count("2.0 times as long at 1 × 1") == 2
    assert "**A: losses** (2026-01-02)" in before
    assert "times as long" not in after
    assert "## A: losses" in after


def test_the_headlines_of_a_run_say_what_is_slower() -> None:
    def row(name: str, way: losses.Way, over: float, part: str = "losses") -> Row:
        return Row(part, "2 × 2", name, way, over, over_peer=over)

    some = [row("torch BCEWithLogitsLoss", "peer", 1.0), row("timm AsymmetricLossMultiLabel", "peer", 5.0)]
    ours = [row("BCE", "steelyard", 1.05), row("ASL", "steelyard", 2.5), row("SPA", "steelyard", 0.5)]
    others = [
        row("ASL", "compiled", 1.5),
        row("timm AsymmetricLossMultiLabel", "int8", 2.4),
        row("timm AsymmetricLossMultiLabel", "compiled", 1.0),
        row("mAP", "steelyard", 0.01, "metrics"),
        row("these bytes alone", "peer", 0.1),
    ]
    assert headlines(made("A", some + ours + others)) == [
        "**3 losses**, compared with torch's `BCEWithLogitsLoss`: 1 faster, 1 as fast, 1 slower at 2 × 2.",
        "**Slower** than that at one size or more: ASL (2.5 times as long).",
        "**`torch.compile`** of our plain code is faster than what runs by default: ASL at 2 × 2.",
        "**BCE**, compared with torch's `BCEWithLogitsLoss` as it comes, as fast at 2 × 2.",
        "**ASL**, compared with timm's `AsymmetricLossMultiLabel` as it comes, 2.0 times as fast at 2 × 2; with int8 "
        "targets, as fast at 2 × 2; by `torch.compile`, 2.5 times as long at 2 × 2.",
        "**mAP**, compared with torchmetrics: 100 times as fast at 2 × 2.",
    ]
    alone = headlines(made("A", some + ours))
    assert alone[-1] == "**Peers ran as they come** in this run: not compiled and without int8 targets."
    assert headlines(made("A", some + ours + others[2:3]))[-1].endswith("in this run: without int8 targets.")
    assert headlines(made("A", ours)) == []


def test_figures_of_a_table() -> None:
    def row(name: str, way: losses.Way, *figures: float, part: str = "losses") -> Row:
        called, device, memory, over = figures
        return Row(part, "10 × 10", name, way, called, device, int(memory), 900, over)

    record = made(
        "G 1",
        [
            row(peers.BCE, "peer", 50e-6, 40e-6, 2e6, 1),
            row("BCE", "steelyard", 25e-6, 1.8e-9, 1e6, 0.5),
            row("BCE", "plain", 75e-6, 7e-6, 3e6, 1.5),
            row("BCE", "compiled", 1e-3, 9e-6, 12345e6, 20),
            row("LPR", "steelyard", 2e-6, 1e-6, 1e6, 0.1, part="pairs"),
        ],
    )
    first, second = tables.tables(record)
    assert first.title.endswith("the floor is 0.00 µs")  # 900 bytes at 1 TB/s: 0.9 ns
    assert dict(zip(first.columns, first.rows[1], strict=True)) == {
        "": "BCE", "µs": "25.0", "device µs": "0.00", "× floor": "2.00", "× BCE": "0.50", "MB": "1.00",
        "plain µs": "75.0", "plain MB": "3.00", "compiled µs": "1,000", "compiled MB": "12,345",
    }  # fmt: skip
    assert dict(zip(first.columns, first.rows[0], strict=True))["plain µs"] == ""
    assert second.rows == [("LPR", "10 × 10", "as called", "2.00", "1.00", "1,111", "0.10", "1.00")]
    lines = first.markdown().splitlines()
    assert {line.count("|") for line in lines[2:]} == {len(first.columns) + 1}
    starts = [line.index("25.0") + 4 for line in first.text().splitlines() if "25.0" in line]
    assert starts == [line.index("50.0") + 4 for line in first.text().splitlines() if "50.0" in line]


def test_a_page_of_several_machines(tmp_path: Path) -> None:
    rows = [Row("training", "5 images", "a", "steelyard", 2.0, note="9 images/s")]
    publish(replace(made("", rows), machine={"cpu": "Slow CPU", "threads": "2"}, date="2026-12-31 00:00 UTC"), tmp_path)
    for gpu, date in (("Old GPU", "2026-01-01 00:00 UTC"), ("New GPU", "2026-02-01 00:00 UTC")):
        publish(made(gpu, rows, date), tmp_path)
    text = (tmp_path / "README.md").read_text()
    places = [text.index(f"## {name}") for name in ("New GPU", "Old GPU", "Slow CPU")]
    assert all(a < b for a, b in pairwise(places))
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["cpu.json", "new-gpu.json", "old-gpu.json"]
    assert text.count("| a | 5 images | 2.00 | 9 images/s |") == 3
    publish(made("New GPU", [replace(rows[0], name="b")], "2026-03-01 00:00 UTC"), tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert text.count("| a | ") == 2
    assert "2026-02-01" not in text


def test_the_roofline_draws_bytes_over_time() -> None:
    from steelyard_bench.roofline import roofline

    rows = [
        Row("losses", size, name, way, seconds, seconds / 2, 0, least)
        for size, least in (("10 × 10", 900), ("100 × 100", 90_000))
        for name, way, seconds in (
            *(("BCE", "steelyard", 1e-6), ("ASL", "steelyard", 3e-6), ("SPA", "steelyard", 2e-6)),
            *(("BCE", "plain", 4e-6), (peers.BCE, "peer", 5e-6), (losses.ALONE, "peer", 9e-6)),
        )
    ]  # type: ignore[misc]
    left, right = roofline(made("G", rows)).axes
    names = ["Steelyard, fused", "Steelyard, plain", peers.BCE]
    assert left.get_legend_handles_labels()[1] == names
    lines = {line.get_label(): line.get_data() for line in left.lines}
    np.testing.assert_allclose(lines["Steelyard, fused"], [[900, 90_000], [0.45, 45.0]])  # GB/s, the middle one
    np.testing.assert_allclose(lines[peers.BCE][1], [0.18, 18.0])
    on_device = {line.get_label(): line.get_data() for line in right.lines}
    np.testing.assert_allclose(on_device[peers.BCE][1], [0.36, 36.0])
    assert any(np.allclose(line.get_ydata(), 1000.0) for line in left.lines)  # the copy


def test_metrics_beside_torchmetrics() -> None:
    left_out: list[str] = []
    rows = metrics.metric_rows(60, Clock(CPU, 0.0), left_out)
    assert left_out == []
    with_peer = [row.name for row in rows if row.over_peer not in (None, 1)]
    assert with_peer == ["mAP, exact", "calibration error, 15 bins"]
    assert {"mAP by item", "Brier score", "PLM's histograms"} <= {row.name for row in rows}
    found = metrics.retrieval_row(1, Clock(CPU, 0.0))
    assert found.note.startswith("20 queries that have an answer")


def test_the_peers_of_metrics_say_the_same() -> None:
    import steelyard.metrics as m

    p, t = metrics._scores(4000, metrics.LABELS, CPU)
    theirs = metrics._torchmetrics(p, t.long(), [])
    assert theirs["mAP, exact"]() == pytest.approx(m.mean_average_precision(p, t), abs=1e-6)
    ece = m.calibration_error(p, t, bins=15).ece
    assert float(theirs["calibration error, 15 bins"]()) == pytest.approx(ece, abs=1e-5)  # type: ignore[arg-type]


def test_lpr_as_printed_is_lpr() -> None:
    from steelyard.balance import LabelPair

    z, t = torch.randn(6, 9), (torch.rand(6, 9) < 0.3).to(torch.int8)
    torch.testing.assert_close(pairs.as_printed(z, t.float()), LabelPair()(z, t))


def test_training_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = ArrayDataset(rng.integers(0, 256, (9, 1, 32, 32), np.uint8), Labels(np.eye(9, 10, dtype=np.int8)))
    for i in range(3):
        layouts.write_image(tmp_path / f"{i}.png", rng)
    rows = training.rows_of(data, 1, training.files(str(tmp_path), quick=True), CPU)
    assert [row.name for row in rows[:4]] == [
        f"MultiMNIST, {name}, ResNet-12, 1 epoch" for name in ("BCE", "PLM", "LPR", "pseudo-labels")
    ]
    assert {row.size for row in rows[:4]} == {"9 images of 32 × 32"}
    assert [row.name.split(",")[0] for row in rows[4:]] == ["reading"] * 3 + ["training a small network"]
    assert all(row.seconds > 0 and row.note.endswith(" images/s") for row in rows)


def test_some_of_multi_mnist(shared_data: Path) -> None:
    data = training.pictures(str(shared_data), 50)
    assert len(data) == len(data.inputs) == 50
    assert training.pictures(None, 50) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sizes", "256"], "--sizes 256: give items x labels, with commas between, as 256x80,1024x600"),
        (["--sizes", "0x80"], "--sizes 0x80: give items x labels"),
        (["--only", "speed"], "--only speed: 'speed' is none of losses, pairs, metrics, training"),
        (["--compiled", "ASL"], "--compiled ASL: give all, some, none"),
        (["--device", "tpu"], "--device tpu: give auto, cpu or cuda"),
        (["--peer", "nowhere.py"], "--peer nowhere.py: no such file"),
        (["--images", "nowhere", "--only", "training"], "--images nowhere: no .jpg, .jpeg or .png file in it"),
        (["--from", "nowhere.json"], "nowhere.json: no such file"),
    ],
)
def test_a_mistake_is_one_line(options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "bandwidth", lambda device, seconds: pytest.fail("it has begun to measure"))
    assert run("bench", *options).line.startswith(f"steelyard: {said}")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu() -> None:
    with pytest.raises(ValueError, match="torch sees no GPU here"):
        bench(BenchRequest(device="cuda"), "nowhere")


def test_a_command_is_kept_without_the_places_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ["steelyard", "bench", "--mnist", "/home/me/data", "--out", "runs/bench", "--peer", "/a/b c.py"]
    monkeypatch.setattr(sys, "argv", typed)
    assert begin(CPU, 1.0).command == "steelyard bench --mnist data --out runs/bench --peer 'b c.py'"


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "cpu.json"
    record = made("G", [])
    record.save(file)
    assert Record.read(file) == record
    file.write_text(json.dumps({**asdict(record), "extra": 1}))
    with pytest.raises(ValueError, match=r"cpu\.json: not a run of steelyard bench .*extra"):
        Record.read(file)
    file.write_text("{")
    with pytest.raises(ValueError, match="not a run of steelyard bench"):
        Record.read(file)


def test_the_documents_are_what_the_figures_say() -> None:
    assert list(DOCS.glob("*.json"))
    assert (DOCS / "README.md").read_text(encoding="utf-8") == page(DOCS)
