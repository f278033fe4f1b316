"""Things with a memory, driven by random sequences of what may happen to them, beside a plain model of each."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import reference
from steelyard.balance import ClassAware, PartialLabelMasking, PseudoLabels, Undersample
from steelyard.balance.samplers import PlannedSampler, Shuffled
from steelyard.labels import Labels
from steelyard.metrics import Evaluator
from steelyard.search import Index, Query, writing
from steelyard.search import pointer as pointers
from test_metrics_ranking import reference as average_precision

SEEDS = st.integers(0, 10_000)


def runs(examples: int, steps: int) -> settings:
    return settings(max_examples=examples, stateful_step_count=steps, suppress_health_check=list(HealthCheck))


def test_no_example_is_timed() -> None:
    """On a busy machine one that takes 23 ms took 315, more than Hypothesis allows unless it is told otherwise."""
    assert settings().deadline is None


class InFolder(RuleBasedStateMachine):
    """A machine with a folder of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())

    def teardown(self) -> None:
        shutil.rmtree(self.folder)


class Evaluators(InFolder):
    """An evaluator knows all rows it was given, however they came, and no others."""

    @initialize(labels=st.integers(1, 3), counts=st.booleans())
    def begin(self, labels: int, counts: bool) -> None:
        self.labels = labels
        self.settings: dict[str, Any] = {"counts": [5, 50, 500][:labels] if counts else None, "bins": 8}
        self.evaluator = Evaluator(labels, **self.settings)
        self.p, self.t = np.zeros((0, labels), np.float32), np.zeros((0, labels), np.float32)

    def batch(self, seed: int, n: int, p_type: str, t_type: str) -> tuple[Any, Any]:
        """Probabilities that every dtype holds exactly, on the edges of bins too; unknown ones may be anything."""
        rng = np.random.default_rng(seed)
        p = rng.integers(0, 65, (n, self.labels)).astype(np.float32) / 64
        t = rng.choice([0, 1, -1] if t_type in ("int8", "int64") else [0, 1, -1, 0.5, 0.25], (n, self.labels))
        t = (t > 0).astype(np.float32) if t_type == "bool" else t.astype(np.float32)
        self.p, self.t = np.concatenate([self.p, p]), np.concatenate([self.t, t])
        p = np.where((t == -1) & (rng.random(t.shape) < 0.3), np.nan, p)
        given = torch.from_numpy(p).to(getattr(torch, p_type)) if p_type == "bfloat16" else p.astype(p_type)
        return given, t.astype(t_type)

    @rule(
        seed=SEEDS,
        n=st.integers(0, 5),
        p=st.sampled_from(["float64", "float32", "float16", "bfloat16"]),
        t=st.sampled_from(["float32", "float64", "float16", "int8", "int64", "bool"]),
    )
    def update(self, seed: int, n: int, p: str, t: str) -> None:
        self.evaluator.update(*self.batch(seed, n, p, t))

    @rule(seed=SEEDS, n=st.integers(0, 4), swapped=st.booleans())
    def merge(self, seed: int, n: int, swapped: bool) -> None:
        other = Evaluator(self.labels, **self.settings)
        other.update(*self.batch(seed, n, "float32", "float32"))
        self.evaluator = other.merge(self.evaluator) if swapped else self.evaluator.merge(other)

    @rule()
    def pass_its_state_on(self) -> None:
        self.evaluator = Evaluator.from_state_dict(self.evaluator.state_dict())

    @rule()
    def save(self) -> None:
        self.evaluator.save(self.folder / "evaluator")
        self.evaluator = Evaluator.load(self.folder / "evaluator")

    @rule(fault=st.sampled_from(["a probability of 1.5", "another number of labels", "a target of 2"]))
    def refuse(self, fault: str) -> None:
        wide = self.labels + (fault == "another number of labels")
        p, t = np.full((2, wide), 0.5), np.zeros((2, wide))
        p[1, -1] += fault == "a probability of 1.5"
        t[1, -1] = 2 * (fault == "a target of 2")
        with pytest.raises(ValueError):
            self.evaluator.update(p, t)

    @invariant()
    def computes_what_all_rows_give(self) -> None:
        got, known = self.evaluator.compute(), self.t != -1
        assert (got["items"], got["known"]) == (len(self.p), known.sum())
        assert got["positives"] == (self.t >= 0.5).sum()
        with np.errstate(invalid="ignore"):
            each = [average_precision(p, t) for p, t in zip(self.p.T, self.t.T, strict=True)]
        defined = [value for value in each if not np.isnan(value)]
        found = [label["average_precision"] for label in got["per_label"]]
        assert found == [None if np.isnan(value) else pytest.approx(value, abs=1e-12) for value in each]
        assert got["mAP"]["label"] == (pytest.approx(np.mean(defined), abs=1e-12) if defined else None)
        if known.any():
            p, t = self.p[known].astype(np.float64), self.t[known].astype(np.float64)
            assert got["brier"] == pytest.approx(((p - t) ** 2).mean(), abs=1e-7)
            bins = [np.minimum(p * 8 // 1, 7) == b for b in range(8)]
            gaps = [abs(p[b].mean() - t[b].mean()) * b.mean() for b in bins if b.any()]
            assert got["calibration"]["pooled"]["width"]["ece"] == pytest.approx(sum(gaps), abs=1e-6)
        at_once = Evaluator(self.labels, **self.settings)
        at_once.update(self.p[::-1].copy(), self.t[::-1].copy())
        assert got == at_once.compute()


class Masking(RuleBasedStateMachine):
    """PLM's masks and ratios are those of a plain re-computation, through every restart."""

    @initialize(
        seed=SEEDS,
        rate=st.sampled_from([0.0, 0.01, 1.0]),
        eps=st.sampled_from([0.0, 1e-12, 1e-3]),
        clip=st.sampled_from([None, (0.1, 2.0)]),
    )
    def begin(self, seed: int, rate: float, eps: float, clip: Any) -> None:
        counts = np.random.default_rng(seed).integers(0, 41, 5)
        self.arguments: dict[str, Any] = dict(
            counts=counts, n_known=40, rate=rate, bins=4, eps=eps, clip=clip, seed=seed
        )
        self.plm = PartialLabelMasking(**self.arguments)
        self.rate, self.eps, self.clip, self.seed = rate, eps, clip, seed
        self.maskable = (counts > 0) & (counts < 40)
        with np.errstate(divide="ignore"):
            self.data_ratio = counts / (40 - counts)
        self.ratio = self.clipped(self.data_ratio)
        self.epoch, self.drawn = 1, 0
        self.seen: list[tuple[np.ndarray, np.ndarray]] = []

    def clipped(self, ratio: np.ndarray) -> np.ndarray:
        return ratio if self.clip is None else np.where(self.maskable, np.clip(ratio, *self.clip), ratio)

    def targets(self, seed: int, n: int) -> np.ndarray:
        return np.random.default_rng(seed).choice(np.array([0, 1, -1, 0.5, 0.25], np.float32), (n, 5))

    def kept(self, t: np.ndarray, items: Any) -> np.ndarray:
        out = np.ones(t.shape, bool)
        for i, item in enumerate(items):
            for c in range(5):
                if t[i, c] != -1 and self.maskable[c]:
                    gain = np.float32(self.ratio[c] / self.data_ratio[c])
                    chance = min(gain, np.float32(1)) if t[i, c] >= 0.5 else min(1 / gain, np.float32(1))
                    out[i, c] = reference.masking_uniform(self.seed, self.epoch, int(item), c) < chance
        return out

    @rule(seed=SEEDS, n=st.integers(0, 6))
    def observe(self, seed: int, n: int) -> None:
        p = np.random.default_rng(seed + 1).integers(0, 65, (n, 5)) / 64
        t = self.targets(seed, n)
        self.plm.observe(torch.from_numpy(p), t)
        self.seen.append((p, t))

    @rule(seed=SEEDS, n=st.integers(0, 4), by_index=st.booleans())
    def mask(self, seed: int, n: int, by_index: bool) -> None:
        t, index = self.targets(seed, n), np.random.default_rng(seed).integers(0, 50, n)
        got = self.plm.mask(t, index if by_index else None).numpy()
        assert (got == self.kept(t, index if by_index else range(self.drawn, self.drawn + n))).all()
        self.drawn += 0 if by_index else n

    @rule(seed=SEEDS)
    def draw_ahead(self, seed: int) -> None:
        t = self.targets(seed, 6)
        self.plm.draw_ahead(torch.from_numpy(t))
        assert (self.plm.mask(t[[4, 1, 1]], np.array([4, 1, 1])).numpy() == self.kept(t[[4, 1, 1]], [4, 1, 1])).all()
        self.plm.ahead.forget()

    @rule()
    def step(self) -> None:
        self.plm.step()
        histogram = np.zeros((2, 5, 4))
        for p, t in self.seen:
            for i, c in np.argwhere(t != -1):
                histogram[0 if t[i, c] >= 0.5 else 1, c, min(int(p[i, c] * 4), 3)] += 1
        part = (histogram.sum(2) > 0).all(0) & self.maskable
        moved = np.zeros(5)
        if part.any():
            moved[part] = reference.masking_divergence(histogram[0, part], histogram[1, part], self.eps)
        if self.rate:
            self.ratio = np.where(self.maskable, self.clipped(self.ratio * np.exp(self.rate * moved)), self.ratio)
        self.epoch, self.seen = self.epoch + 1, []

    @rule()
    def resume(self) -> None:
        state = {name: value.clone() for name, value in self.plm.state_dict().items()}
        self.plm = PartialLabelMasking(**self.arguments)
        self.plm.load_state_dict(state)

    @rule(seed=SEEDS)
    def merge(self, seed: int) -> None:
        other = PartialLabelMasking(**self.arguments)
        other.epoch = self.epoch
        p, t = np.random.default_rng(seed).integers(0, 65, (3, 5)) / 64, self.targets(seed, 3)
        other.observe(torch.from_numpy(p), t)
        self.plm.merge(other)
        self.seen.append((p, t))

    @invariant()
    def has_the_ratios(self) -> None:
        np.testing.assert_allclose(self.plm.ratio.numpy()[self.maskable], self.ratio[self.maskable], rtol=1e-9)
        shift = np.log(self.ratio[self.maskable] / self.data_ratio[self.maskable])
        np.testing.assert_allclose(self.plm.log_odds_shift.numpy()[self.maskable], shift, rtol=1e-7, atol=1e-9)


class Samplers(RuleBasedStateMachine):
    """An epoch that is broken off anywhere, and goes on with any number of processes, draws what one alone draws."""

    @initialize(seed=SEEDS, kind=st.sampled_from(["class-aware", "undersample", "shuffled"]))
    def begin(self, seed: int, kind: str) -> None:
        values = (np.random.default_rng(seed).random((30, 4)) < [0.5, 0.2, 0.05, 0.0]).astype(np.int8)
        values[0, 0], values[:, 2] = 1, np.arange(30) == seed % 30  # a class of one item
        self.values, self.kind, self.seed = values, kind, seed
        self.labels, self.processes = Labels(values), 1
        self.new_epoch(0)

    def sampler(self, rank: int, replicas: int) -> PlannedSampler:
        if self.kind == "shuffled":
            return Shuffled(30, rank, replicas, self.seed)
        if self.kind == "class-aware":
            return ClassAware(self.labels, 7, rank, replicas, self.seed)
        return Undersample(self.labels, 4, rank, replicas, self.seed)

    @rule(epoch=st.integers(0, 5))
    def new_epoch(self, epoch: int) -> None:
        alone = self.sampler(0, 1)
        alone.set_epoch(epoch)
        self.epoch, self.start, self.plan = epoch, 0, list(alone)
        assert alone.left().tolist() == self.plan
        self.check_plan()

    def check_plan(self) -> None:
        """What each sampler promises of an epoch."""
        visited = [c for c in range(4) if self.values[:, c].any()]
        if self.kind == "shuffled":
            assert sorted(self.plan) == list(range(30))
        elif self.kind == "undersample":
            assert len(set(self.plan)) == len(self.plan)
            assert self.values[self.plan].any(1).all()
            assert all(self.values[self.plan, c].sum() >= min(4, self.values[:, c].sum()) for c in visited)
            assert len(self.plan) <= 4 * len(visited)
        else:
            assert len(self.plan) == 7 * len(visited)
            for round_ in np.reshape(self.plan, (7, -1)):  # the classes of a round can be told apart among its items
                assert _matches([{c for c in visited if self.values[item, c]} for item in round_], visited)

    @rule(processes=st.integers(1, 4))
    def begin_with(self, processes: int) -> None:
        self.processes = processes

    @rule(steps=st.integers(1, 3), batch=st.integers(1, 5))
    def go_on(self, steps: int, batch: int) -> None:
        """A restart: every process begins where all of them left off, and makes some steps."""
        drawn = []
        for rank in range(self.processes):
            sampler = self.sampler(rank, self.processes)
            sampler.set_epoch(self.epoch, self.start)
            drawn.append(list(sampler))
            assert len(drawn[-1]) == len(sampler) == (len(self.plan) - self.start) // self.processes
        whole = [item for row in zip(*drawn, strict=True) for item in row]
        assert whole == self.plan[self.start : self.start + len(whole)]
        assert len(self.plan) - self.start - len(whole) < self.processes
        self.start += min(steps * batch, len(drawn[0])) * self.processes

    @rule(beyond=st.integers(1, 3))
    def refuse(self, beyond: int) -> None:
        with pytest.raises(ValueError, match="start is"):
            self.sampler(0, 1).set_epoch(self.epoch, len(self.plan) + beyond)


def _matches(held: list[set[int]], classes: list[int]) -> bool:
    """Whether the items can be given the classes, each its own, that they were drawn for."""
    if not classes:
        return True
    rest = classes[1:]
    return any(classes[0] in held[i] and _matches(held[:i] + held[i + 1 :], rest) for i in range(len(held)))


class Stores(InFolder):
    """Pseudo-labels: an epoch reads what the one before wrote, through kills, restarts and going back."""

    n, labels = 7, 3

    @initialize()
    def begin(self) -> None:
        self.store = PseudoLabels(self.folder / "store", self.n, self.labels)
        self.store.start_epoch(1)
        self.epoch = 1
        self.before = np.full((self.n, self.labels), 0.5)
        self.current = self.before.copy()
        self.earlier: np.ndarray | None = None
        """What the epoch before read, while nothing is written over it."""

    @rule(seed=SEEDS, n=st.integers(0, 5))
    def write(self, seed: int, n: int) -> None:
        rng = np.random.default_rng(seed)
        items, said = rng.permutation(self.n)[:n], rng.integers(0, 255, (n, self.labels)) / 254
        self.store.write(torch.from_numpy(items), torch.from_numpy(said))
        self.current[items] = said
        self.earlier = None if n else self.earlier

    @rule()
    def advance(self) -> None:
        self.epoch += 1
        self.store.start_epoch(self.epoch)
        self.earlier, self.before, self.current = self.before, self.current, self.current.copy()

    @rule()
    def begin_again(self) -> None:
        self.store.start_epoch(self.epoch)

    @precondition(lambda self: self.epoch > 1 and self.earlier is not None and not self.store.held)
    @rule()
    def go_back(self) -> None:
        """A checkpoint of the epoch before is taken up: nothing of this one was written yet."""
        self.epoch -= 1
        self.reopened()
        self.current, self.before, self.earlier = self.before, self.earlier, None

    @rule()
    def killed(self) -> None:
        if self.store.held:
            self.store.flush()
        self.reopened()

    def reopened(self) -> None:
        self.store = PseudoLabels(self.folder / "store", self.n, self.labels)
        self.store.check_continues(self.epoch)
        self.store.start_epoch(self.epoch)

    @rule(on=st.booleans())
    def hold(self, on: bool) -> None:
        if on and not self.store.held:
            self.store.hold_on(torch.device("cpu"))
        elif not on and self.store.held:
            self.store.flush()
            self.store.let_go()

    @precondition(lambda self: self.epoch == 1)
    @rule()
    def reset(self) -> None:
        self.store.reset()
        self.before[:], self.current[:] = 0.5, 0.5

    @rule()
    def refuse(self) -> None:
        with pytest.raises(ValueError):
            self.store.write(torch.tensor([0]), torch.zeros(1, self.labels + 1))
        with pytest.raises(ValueError, match="use another folder"):
            PseudoLabels(self.folder / "store", self.n + 1, self.labels)

    @invariant()
    def reads_the_epoch_before(self) -> None:
        if hasattr(self, "store"):
            got = self.store.read(torch.arange(self.n)).numpy()
            np.testing.assert_allclose(got, self.before, atol=1e-6)


class Indexes(InFolder):
    """An index is what its changes say; a change that fails is none; who has it open sees what it opened."""

    names = ("dog", "cat")
    queries = ("dog", "dog & ~cat", "dog | cat", "cat < 0.5 & dog")

    @initialize(seed=SEEDS)
    def begin(self, seed: int) -> None:
        self.rows: dict[str, np.ndarray] = {}
        first = [f"z{i}" for i in range(40)]  # so many that a few which are deleted stay in their part
        self.index = Index.build(self.folder / "index", *self.some(first, seed), self.names)
        self.reader, self.read = Index.open(self.folder / "index"), dict(self.rows)

    def some(self, ids: list[str], seed: int) -> tuple[list[str], np.ndarray]:
        """Probabilities with ties, noted in the model."""
        values = np.random.default_rng(seed).integers(0, 5, (len(ids), 2)).astype(np.float32) / 4
        self.rows |= dict(zip(ids, values, strict=True))
        return ids, values

    def fresh(self, seed: int, n: int) -> list[str]:
        return [name for name in (f"{chr(97 + (seed + i) % 26)}{seed % 7}" for i in range(n)) if name not in self.rows]

    def there(self, seed: int, n: int) -> list[str]:
        return np.random.default_rng(seed).permutation(sorted(self.rows))[:n].tolist()

    @rule(seed=SEEDS, n=st.integers(0, 12))
    def append(self, seed: int, n: int) -> None:
        self.index.append(*self.some(self.fresh(seed, n), seed))

    @rule(seed=SEEDS, n=st.integers(0, 4), more=st.integers(0, 3))
    def replace(self, seed: int, n: int, more: int) -> None:
        self.index.replace(*self.some(self.there(seed, n) + self.fresh(seed, more), seed))

    @rule(seed=SEEDS, n=st.integers(0, 5))
    def delete(self, seed: int, n: int) -> None:
        gone = self.there(seed, n)
        self.index.delete(gone)
        for name in gone:
            del self.rows[name]

    @rule(seed=SEEDS, where=st.sampled_from(["file", "pointer"]), what=st.sampled_from(["append", "replace", "delete"]))
    def crash(self, seed: int, where: str, what: str) -> None:
        """A disk that fails in the middle of a change."""
        module, name = (writing, "put") if where == "file" else (pointers, "write")
        ids = self.there(seed, 2) if what == "delete" else self.fresh(seed, 3)
        if not ids:
            return
        real = getattr(module, name)

        def fails(*_: Any, **__: Any) -> None:
            raise OSError(28, "No space left on device")

        setattr(module, name, fails)
        try:
            with pytest.raises(OSError, match="No space left"):
                getattr(self.index, what)(ids, *([] if what == "delete" else [np.zeros((len(ids), 2))]))
        finally:
            setattr(module, name, real)

    @rule(seed=SEEDS)
    def refuse(self, seed: int) -> None:
        if self.rows:
            with pytest.raises(ValueError, match="already"):
                self.index.append([*self.fresh(seed, 1), *self.there(seed, 1)][-1:], np.zeros((1, 2)))
        with pytest.raises(ValueError, match="nothing was deleted"):
            self.index.delete([*self.there(seed, 1), "nobody"])

    @rule()
    def reopen(self) -> None:
        self.index.close()
        self.index = Index.open(self.folder / "index")

    @rule()
    def refresh_the_reader(self) -> None:
        self.reader, self.read = self.reader.refreshed(), dict(self.rows)

    @rule(query=st.sampled_from(queries), k=st.integers(1, 6), offset=st.integers(0, 3))
    def search(self, query: str, k: int, offset: int) -> None:
        for index, rows in ((self.index, self.rows), (self.reader, self.read)):
            table = np.array(list(rows.values()), np.float32).reshape(-1, 2)
            asked = Query.parse(query, self.names)
            score, admitted = asked.score(table, self.names), asked.admits(table, self.names)
            found = sorted((-s, name) for s, name, ok in zip(score, rows, admitted, strict=True) if ok)
            hits = index.search(query, k, offset)
            assert [hit.id for hit in hits] == [name for _, name in found[offset : offset + k]]
            assert [hit.score for hit in hits] == pytest.approx([-s for s, _ in found[offset : offset + k]], abs=1e-6)

    @invariant()
    def holds_what_it_should(self) -> None:
        for index, rows in ((self.index, self.rows), (self.reader, self.read)):
            assert len(index) == len(rows)
            if rows:
                assert (index.rows(list(rows)) == np.stack(list(rows.values()))).all()
        gone = self.read.keys() - self.rows.keys()
        assert not any(name in self.index for name in gone)

    def teardown(self) -> None:
        self.index.close()
        self.reader.close()
        super().teardown()


TestEvaluators = Evaluators.TestCase
TestEvaluators.settings = runs(15, 10)
TestMasking = Masking.TestCase
TestMasking.settings = runs(30, 15)
TestSamplers = Samplers.TestCase
TestSamplers.settings = runs(40, 10)
TestStores = Stores.TestCase
TestStores.settings = runs(80, 20)
TestIndexes = Indexes.TestCase
TestIndexes.settings = runs(20, 12)
