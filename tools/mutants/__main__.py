"""Mutation testing of the losses and the metrics: which planted faults do the tests find?

    python -m mutants                     plant all, note each outcome in build/mutants, write the page
    python -m mutants --only losses/bce   of some files
    python -m mutants --page              the page alone, from what is known
    python -m mutants --again             those that survived, once more: after new tests

A run that was stopped goes on where it was; a file that changed is begun anew. First every test is run once and the
lines it reaches are noted. Then each mutant meets the tests that reach its lines until one fails, in a process of its
own: forked from one where all is imported and collected (`mutants.warm`), or, for what is changed on import, from one
where nothing is, so that it imports the changed file in place of the real one.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from mutants import page, warm
from mutants.mutations import Mutant, mutants, planted, unharmed

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "steelyard"
ROOMS = ("losses", "metrics")
TESTS = (
    *("compile", "extremes", "losses", "losses_handed_over", "links", "objective", "calibrate_link"),
    *("metrics_evaluator", "metrics_ranking", "metrics_calibration", "metrics_decisions", "metrics_groups"),
    *("partial_annotation", "label_pair", "weighting", "pseudo_labels", "expected_positives"),
    *("documents", "metrics_chance", "metrics_inputs", "metrics_retrieval", "metrics_store"),
)
FIRST = 16
"""Tests that a mutant meets before the others: those that killed its neighbours, and the quickest."""
PRELOADED = ("torch", "torch._dynamo", "scipy.stats", "sklearn.metrics", "mpmath", "pyarrow")
Reach = dict[str, Any]
"""Of a test file: `tests`, {test: [seconds, {file: lines}]}, `first`, {file: lines} that ran before any of them."""

settings.register_profile(
    "mutants",
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],  # a fault need not be shrunk to be found
    suppress_health_check=list(HealthCheck),
)


class Tracer:
    """Notes which lines of the rooms each test of a file reaches, and how long it takes."""

    def __init__(self) -> None:
        self.files = {str(path): str(path.relative_to(SOURCE)) for room in ROOMS for path in _files(room)}
        self.first: dict[str, set[int]] = {}
        self.lines = self.first
        self.tests: dict[str, tuple[float, dict[str, set[int]]]] = {}
        self.failed: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> Tracer | None:
        """Note a line; the interpreter calls it."""
        file = self.files.get(frame.f_code.co_filename)
        if file is None:
            return None
        if event == "line":
            self.lines.setdefault(file, set()).add(frame.f_lineno)
        return self

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Trace one test."""
        self.lines, begun = {}, time.perf_counter()
        result = yield
        self.tests[item.nodeid] = time.perf_counter() - begun, self.lines
        self.lines = {}
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        """Lay what a shared fixture reaches to every test of the file."""
        mine = self.lines
        if fixturedef.scope != "function":
            self.lines = self.first
        try:
            return (yield)
        finally:
            self.lines = mine

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Leave out what does not pass as it is."""
        if report.failed:
            self.failed.add(report.nodeid)

    def found(self) -> Reach:
        """Return what was noted."""
        tests = {name: [seconds, _listed(lines)] for name, (seconds, lines) in self.tests.items()}
        kept = {name: found for name, found in tests.items() if name not in self.failed}
        return {"tests": kept, "first": _listed(self.first), "failed": sorted(self.failed)}


class Quickest:
    """Runs the chosen tests in the order given, and names the one that failed."""

    def __init__(self, chosen: Sequence[str]) -> None:
        self.rank = {name: i for i, name in enumerate(chosen)}
        self.failed = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Choose and sort."""
        items[:] = sorted((i for i in items if i.nodeid in self.rank), key=lambda i: self.rank[i.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take note of a failure."""
        if report.failed:
            self.failed = report.nodeid


class Planted(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Imports one module from another syntax tree than its file's."""

    def __init__(self, mutant: Mutant) -> None:
        self.tree = planted((SOURCE / mutant.file).read_text(), mutant.number)
        super().__init__("steelyard." + mutant.file.removesuffix(".py").replace("/", "."), str(SOURCE / mutant.file))

    def find_spec(self, name: str, path: object, target: ModuleType | None = None) -> Any:  # type: ignore[override]
        """Return itself for its module."""
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_code(self, fullname: str) -> CodeType:
        """Return the changed code."""
        return compile(self.tree, self.path, "exec")


def trace(file: Path) -> Reach:
    """Return what the tests of a file reach."""
    tracer = Tracer()
    sys.settrace(tracer)
    _pytest([str(file)], tracer)
    sys.settrace(None)
    return tracer.found()


def attack(mutant: Mutant, chosen: Sequence[str]) -> dict[str, str]:
    """Return whether the tests find a mutant, and which one does; a few are tried before files of many are read."""
    sys.meta_path.insert(0, Planted(mutant))
    for some in (chosen[:FIRST], chosen[FIRST:]):
        quickest = Quickest(some)
        code = _pytest(["-x", *sorted({name.split("::")[0] for name in some})], quickest) if some else 0
        if code > pytest.ExitCode.INTERNAL_ERROR:
            raise RuntimeError(f"pytest ended with {code}: no test was run")
        if code:
            return {"result": "killed", "by": quickest.failed}
    return {"result": "survived", "by": ""}


def _pytest(arguments: list[str], plugin: object) -> int:
    without = ("cacheprovider", "faulthandler", "unraisableexception", "threadexception", "doctest", "junitxml")
    quiet = [*(f"-pno:{name}" for name in without), "--assert=plain", "--tb=no", "--show-capture=no", "-q"]
    return int(pytest.main([*quiet, *arguments], plugins=[plugin]))


class Reached:
    """Which tests reach which lines."""

    def __init__(self, reach: Iterable[Reach]) -> None:
        self.seconds: dict[str, float] = {}
        self.at: dict[str, dict[int, set[str]]] = {}
        self.first: dict[str, dict[int, set[str]]] = {}
        self.of_defaults: set[str] = set()  # these read signatures, and so reach nothing
        self.kills: dict[str, dict[str, int]] = {}
        for found in reach:
            for name, (seconds, reached) in found["tests"].items():
                self.seconds[name] = seconds
                if "defaults" in name:
                    self.of_defaults.add(name)
                _note(self.at, reached, [name])
            _note(self.first, found["first"], found["tests"])

    def on_import(self, mutant: Mutant) -> bool:
        """Return whether a mutant's lines run before any test does."""
        return any(line in mutant.seen_at for line in self.first.get(mutant.file, ()))

    def by(self, mutant: Mutant, most: float) -> list[str]:
        """Return the tests that can see a mutant, as long as they take `most` seconds together.

        Those come first that found most mutants of the same file so far, then the quickest case of each test, the
        second of each, and so on.
        """
        names: set[str] = self.of_defaults.copy() if mutant.is_default else set()
        for at in (self.at,) if mutant.on_import else (self.at, self.first):
            for line, found in at.get(mutant.file, {}).items():
                names |= found if line in mutant.seen_at else set()
        kills = self.kills.get(mutant.file, {})
        best = sorted(names & kills.keys(), key=lambda name: -kills[name])[: FIRST // 2]
        turn: dict[str, tuple[int, float]] = {}
        cases: dict[str, int] = {}
        for name in sorted(names, key=lambda name: (self.seconds[name], name)):
            test = name.partition("[")[0]
            cases[test] = cases.get(test, 0) + 1
            turn[name] = cases[test], self.seconds[name]
        total, chosen = 0.0, []
        for name in [*best, *sorted(names - set(best), key=turn.__getitem__)]:
            total += self.seconds[name]
            if chosen and total > most:
                break
            chosen.append(name)
        return chosen


def _note(at: dict[str, dict[int, set[str]]], lines: dict[str, list[int]], names: Iterable[str]) -> None:
    for file, numbers in lines.items():
        for line in numbers:
            at.setdefault(file, {}).setdefault(line, set()).update(names)


def in_processes(
    jobs: Iterable[tuple[Any, Callable[[], Any], float]], n: int, done: Callable[[Any, Any, float], None]
) -> None:
    """Call each job (key, function, most seconds of work) in a forked process, `n` at a time; a dead one answers None.

    Nothing of ours is imported before the fork, so that each process imports it anew.
    """
    with tempfile.TemporaryDirectory() as folder:
        running: dict[int, tuple[Any, float]] = {}

        def wait() -> None:
            pid, _ = os.wait()
            key, begun = running.pop(pid)
            answer = Path(folder, str(pid))
            done(key, json.loads(answer.read_text()) if answer.exists() else None, time.monotonic() - begun)

        for key, function, seconds in jobs:
            if len(running) >= n:
                wait()
            if pid := os.fork():
                running[pid] = key, time.monotonic()
                continue
            _child(function, seconds, Path(folder))
        while running:
            wait()


def _child(function: Callable[[], Any], seconds: float, folder: Path) -> None:
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds),) * 2)
        signal.alarm(int(20 * seconds))  # for what waits for ever
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (6 << 30),) * 2)  # a fault may ask for any amount
        answer = json.dumps(function())
        part = folder / f"{os.getpid()}.part"
        part.write_text(answer)
        part.rename(folder / str(os.getpid()))
    finally:
        os._exit(0)


def _files(room: str) -> list[Path]:
    return sorted((SOURCE / room).glob("*.py"))


def _listed(lines: dict[str, set[int]]) -> dict[str, list[int]]:
    return {file: sorted(found) for file, found in lines.items()}


def _digest(paths: Iterable[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:12]


def reaching(tests: Sequence[Path], folder: Path, n: int) -> list[Reach]:
    """Return what each test file reaches, from the last run where neither tests nor code changed since."""
    notes = folder / "reach.json"
    known: dict[str, Any] = json.loads(notes.read_text()) if notes.exists() else {}
    code = _digest(path for room in ROOMS for path in _files(room))
    key = {test.name: code + _digest([test]) for test in tests}
    stale = [test for test in tests if known.get(test.name, {}).get("key") != key[test.name]]

    def done(test: Path, answer: Reach | None, seconds: float) -> None:
        print(f"{test.name}: {len(answer['tests']) if answer else 'no'} tests in {seconds:.0f} s", flush=True)
        for name in answer["failed"] if answer else ():
            print(f"  left out, it fails without any fault: {name}", flush=True)
        known[test.name] = {"key": key[test.name], **(answer or {"tests": {}, "first": {}, "failed": []})}
        notes.write_text(json.dumps(known))

    in_processes(((test, lambda test=test: trace(test), 900.0) for test in stale), n, done)
    return [known[test.name] for test in tests]


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description="Plant faults in losses and metrics; see which the tests find.")
    parser.add_argument("--only", nargs="*", default=[], help="files, as losses/bce")
    parser.add_argument("--again", action="store_true", help="plant those that survived once more")
    parser.add_argument("--page", action="store_true", help="plant nothing, write the page of what is known")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--each", type=float, default=60.0, help="seconds of tests, unharmed, that a mutant meets")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no mutant after this")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "mutants")
    options = parser.parse_args()
    folder = options.folder
    os.chdir(ROOT)
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "results.jsonl"
    digests = {str(path.relative_to(SOURCE)): _digest([path]) for room in ROOMS for path in _files(room)}
    every = [m for file in digests for m in mutants(file, (SOURCE / file).read_text())]
    every += [unharmed(file) for file in {m.file: 0 for m in every}]
    if not options.page:
        plant(every, digests, results, options)
    found, n_all = page.read(results), sum(m.number >= 0 for m in every)
    page.write(ROOT / "docs" / "mutants.md", {m.name: found[m.name] for m in every if m.name in found}, n_all)


def plant(every: Sequence[Mutant], digests: dict[str, str], results: Path, options: argparse.Namespace) -> None:
    """Plant what is asked for, and note each outcome."""
    begun = time.monotonic()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        os.environ[name] = "1"
    os.environ |= {"STEELYARD_EXAMPLES": "mutants", "CUDA_VISIBLE_DEVICES": ""}
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    for module in PRELOADED:
        if importlib.util.find_spec(module):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # what is here already need not be searched for garbage in every process
    tests = [ROOT / "tests" / f"test_{name}.py" for name in TESTS]
    tests = [test for test in tests if test.exists()]
    reached = Reached(reaching(tests, results.parent, options.jobs))
    found = page.read(results)
    settled = {(name, r["digest"]) for name, r in found.items() if not (options.again and r["result"] != "killed")}
    wanted = [m for m in every if not options.only or m.file.removesuffix(".py") in options.only]
    wanted = [m for m in wanted if (m.name, digests[m.file]) not in settled]
    wanted.sort(key=lambda m: hashlib.sha256(m.name.encode()).digest())  # a part of a run speaks for the whole
    print(f"{len(wanted)} of {len(every)} mutants to plant", flush=True)
    campaign = Campaign(wanted, digests, reached, results, options, begun)
    if os.fork() == 0:
        try:
            _pytest(["--capture=no", *map(str, tests)], warm.Collected(campaign.warm))
        finally:
            os._exit(0)
    os.wait()
    print(f"{time.monotonic() - begun:.0f} s, what runs on import is left", flush=True)
    campaign.cold()
    print(f"{time.monotonic() - begun:.0f} s", flush=True)


class Campaign:
    """Mutants to plant, first where everything is imported, then the rest where nothing is; outcomes go to a file."""

    def __init__(
        self,
        wanted: Sequence[Mutant],
        digests: dict[str, str],
        reached: Reached,
        results: Path,
        options: argparse.Namespace,
        begun: float,
    ) -> None:
        self.wanted, self.digests, self.reached, self.results = wanted, digests, reached, results
        self.options, self.until = options, begun + options.seconds
        self.size = results.stat().st_size if results.exists() else 0

    def warm(self, collected: warm.Collected) -> None:
        """Plant mutants of functions in a process that has collected the tests."""

        def outcome(mutant: Mutant, chosen: Sequence[str]) -> dict[str, str] | None:
            if mutant.number >= 0 and not warm.replace(mutant, SOURCE / mutant.file, collected.functions):
                return None
            if by := collected.first_that_fails(chosen):
                return {"result": "killed", "by": by}
            return None if mutant.number < 0 or self.reached.on_import(mutant) else {"result": "survived", "by": ""}

        def done(mutant: Mutant, answer: dict[str, str] | None, seconds: float) -> None:
            if answer:
                self.note(mutant, answer, seconds)

        self.run(outcome, done)

    def cold(self) -> None:
        """Plant what is left, each in a process that imports everything anew."""

        def done(mutant: Mutant, answer: dict[str, str] | None, seconds: float) -> None:
            self.note(mutant, answer or {"result": "killed", "by": "hung or died"}, seconds)

        self.run(attack, done)

    def run(self, outcome: Callable[[Mutant, Sequence[str]], Any], done: Callable[[Mutant, Any, float], None]) -> None:
        """Plant each mutant that has no outcome yet."""
        noted = {json.loads(line)["name"] for line in self.lines()}

        def jobs() -> Iterator[tuple[Mutant, Callable[[], Any], float]]:
            for mutant in self.wanted:
                if mutant.name in noted:
                    continue
                chosen = self.reached.by(mutant, self.options.each)
                if time.monotonic() > self.until:
                    return
                if not chosen:
                    self.note(mutant, {"result": "unreached", "by": ""}, 0.0)
                    continue
                yield mutant, lambda m=mutant, c=chosen: outcome(m, c), 20 + 8 * self.options.each

        in_processes(jobs(), self.options.jobs, done)

    def lines(self) -> list[str]:
        """Return what this run noted so far."""
        if not self.results.exists():
            return []
        return self.results.read_bytes()[self.size :].decode().splitlines()

    def note(self, mutant: Mutant, answer: dict[str, str], seconds: float) -> None:
        """Note an outcome, and the test that found it for those that come after."""
        noted = {"name": mutant.name, "file": mutant.file, "digest": self.digests[mutant.file], "line": mutant.line}
        noted |= answer
        with self.results.open("a") as out:
            out.write(json.dumps(noted, ensure_ascii=False) + "\n")
        if noted["by"] in self.reached.seconds:
            kills = self.reached.kills.setdefault(mutant.file, {})
            kills[noted["by"]] = kills.get(noted["by"], 0) + 1
        if (noted["result"] != "killed") == (mutant.number >= 0):
            print(f"{noted['result']} after {seconds:.0f} s, line {noted['line']}: {mutant.name}", flush=True)


if __name__ == "__main__":
    main()
