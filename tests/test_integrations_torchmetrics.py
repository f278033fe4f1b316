"""The torchmetrics classes: the functions' values however batches come, in collections, processes and Lightning."""

from __future__ import annotations

import importlib
import importlib.util
import io
import pickle
import socket
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import steelyard.metrics as m

sy_tm = pytest.importorskip("steelyard.integrations.torchmetrics", exc_type=ImportError)
torchmetrics = pytest.importorskip("torchmetrics")  # after ours, which sees to torchvision
theirs = torchmetrics.functional.classification
MetricCollection = torchmetrics.MetricCollection

L = 4
THRESHOLDS = torch.tensor([0.2, 0.5, 0.5, 0.8], dtype=torch.float64)
Reference = Callable[[Tensor, Tensor], Tensor | float]

CASES: dict[str, tuple[Callable[[], Any], Reference]] = {
    "map by label": (lambda: sy_tm.MeanAveragePrecision(L), m.mean_average_precision),
    "map by item": (
        lambda: sy_tm.MeanAveragePrecision(L, per="item"),
        lambda p, t: m.mean_average_precision(p, t, per="item"),
    ),
    "each label's ap": (lambda: sy_tm.MeanAveragePrecision(L, each=True), m.average_precision),
    "each item's ap": (
        lambda: sy_tm.MeanAveragePrecision(L, "item", each=True),
        lambda p, t: m.average_precision(p, t, per="item"),
    ),
    "map of float16": (
        lambda: sy_tm.MeanAveragePrecision(L, dtype="float16"),
        lambda p, t: m.mean_average_precision(p.half(), t),
    ),
    "ace": (lambda: sy_tm.CalibrationError(L), lambda p, t: m.calibration_error(p, t).ace),
    "mce": (lambda: sy_tm.CalibrationError(L, "mce", 7), lambda p, t: m.calibration_error(p, t, 7).mce),
    "ece by label": (
        lambda: sy_tm.CalibrationError(L, "ece", per="label"),
        lambda p, t: m.calibration_error(p, t, per="label").ece,
    ),
    "ace, equal mass": (
        lambda: sy_tm.MassCalibrationError(L, bins=5),
        lambda p, t: m.calibration_error(p, t, 5, "mass").ace,
    ),
    "mce by label, equal mass": (
        lambda: sy_tm.MassCalibrationError(L, "mce", 5, "label"),
        lambda p, t: m.calibration_error(p, t, 5, "mass", "label").mce,
    ),
    "macro f1": (lambda: sy_tm.LabelF1(L), lambda p, t: m.precision_recall_f1(p >= 0.5, t).macro.f1),
    "micro f1": (
        lambda: sy_tm.LabelF1(L, THRESHOLDS, "micro"),
        lambda p, t: m.precision_recall_f1(p >= THRESHOLDS.to(p.dtype), t).micro.f1,
    ),
    "precision": (
        lambda: sy_tm.LabelPrecision(L, 0.3, "none"),
        lambda p, t: m.precision_recall_f1(p >= 0.3, t).precision,
    ),
    "recall": (
        lambda: sy_tm.LabelRecall(L, THRESHOLDS.numpy(), "macro"),
        lambda p, t: m.precision_recall_f1(p >= THRESHOLDS.to(p.dtype), t).macro.recall,
    ),
    "exact match": (lambda: sy_tm.ExactMatch(L, 0.4), lambda p, t: m.exact_match(p >= 0.4, t)),
    "brier": (sy_tm.Brier, m.brier),
    "log-loss": (sy_tm.LogLoss, m.log_loss),
}
EACH = pytest.mark.parametrize("name", CASES)


def drawn(seed: int, n: int, soft: bool = True) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    p = torch.rand(n, L, generator=g)
    p = torch.where(torch.rand(n, 1, generator=g) < 0.3, (10 * p).round() / 10, p)  # ties, edges, 0 and 1
    t = (torch.rand(n, L, generator=g) < p).float()
    if soft:
        t = torch.where(torch.rand(n, L, generator=g) < 0.1, torch.tensor(0.25), t)
    t[torch.rand(n, L, generator=g) < 0.25] = -1
    return p, t


def same(got: Tensor | float, want: Tensor | float) -> None:
    torch.testing.assert_close(
        torch.as_tensor(got, dtype=torch.float64),
        torch.as_tensor(want, dtype=torch.float64),
        rtol=0,
        atol=1e-12,
        equal_nan=True,
    )


@EACH
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), cuts=st.lists(st.integers(0, 40), max_size=4))
def test_batches_give_what_the_function_gives_on_all(name: str, seed: int, cuts: list[int]) -> None:
    make, reference = CASES[name]
    p, t = drawn(seed, 40)
    p[t == -1] = torch.nan  # nobody's business
    metric, other = make(), make()
    for k, (start, end) in enumerate(zip([0, *sorted(cuts)], [*sorted(cuts), 40], strict=True)):
        if k % 3 == 2:
            other.update(p[start:end], t[start:end])
        elif k % 3 == 1:  # forward: this batch's value, and this batch added
            value, want = metric(p[start:end], t[start:end]), reference(p[start:end], t[start:end])
            same(
                value.reshape(-1), torch.as_tensor(want, dtype=torch.float64).reshape(-1)
            )  # torchmetrics makes (1,) a scalar
        else:
            metric.update(p[start:end].clone(), t[start:end])
    metric.merge_state(other)
    got, want = metric.compute(), reference(p, t)
    assert got.dtype == torch.float64
    if name == "each item's ap":  # which come in another order
        got, want = got.sort().values, want.sort().values  # type: ignore[union-attr]
    same(got, want)


@EACH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    make, reference = CASES[name]
    p, t = drawn(1, 50, soft=False)
    p = p.float().to(dtype)
    metric = make()
    metric.update(p, t.to(torch.int64))
    want = reference(p.float(), t) if dtype == torch.bfloat16 and "mass" in name else reference(p, t)
    same(metric.compute(), want)


@EACH
def test_reset_clone_and_saved_states(name: str, tmp_path: Path) -> None:
    make, reference = CASES[name]
    (p, t), (q, u) = drawn(2, 30), drawn(3, 20)
    metric = make()
    metric.update(p, t)
    copies = [metric.clone(), pickle.loads(pickle.dumps(metric))]
    metric.persistent(True)
    file = io.BytesIO()
    torch.save(metric.state_dict(), file)  # tensors alone: no class is needed to read them
    file.seek(0)
    loaded = make()
    loaded.persistent(True)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    loaded._update_count = 1
    metric.reset()
    metric.update(q, u)
    same(metric.compute(), reference(q, u))
    for copy in (*copies, loaded):
        same(copy.compute(), reference(p, t))
        copy.update(q, u)
        same(copy.compute(), reference(torch.cat([p, q]), torch.cat([t, u])))


@EACH
def test_what_is_given_may_change_afterwards(name: str) -> None:
    make, reference = CASES[name]
    p, t = drawn(4, 30)
    want, metric = reference(p, t), make()
    metric.update(p, t)
    p.fill_(0.5)
    t.fill_(-1)
    same(metric.compute(), want)


def test_sums_do_not_grow_and_keep_no_graph() -> None:
    for name in ("ace", "macro f1", "exact match", "brier", "log-loss"):
        metric = CASES[name][0]()
        sizes = set()
        for n in (5, 500):
            p, t = drawn(n, n)
            metric(p.requires_grad_(), t)
            sizes.add(sum(v.numel() for v in metric.metric_state.values()))
        assert len(sizes) == 1, name
        assert not any(v.requires_grad for v in metric.metric_state.values())


def test_metrics_share_what_they_keep_exactly_where_that_is_right() -> None:
    same_state = {
        "map": sy_tm.MeanAveragePrecision(L),
        "map_item": sy_tm.MeanAveragePrecision(L, per="item"),
        "ace": sy_tm.CalibrationError(L),
        "mce": sy_tm.CalibrationError(L, "mce"),
        "ece_label": sy_tm.CalibrationError(L, "ece", per="label"),
        "f1": sy_tm.LabelF1(L),
        "precision": sy_tm.LabelPrecision(L, average="micro"),
        "recall": sy_tm.LabelRecall(L, 0.5, "none"),
    }
    alone = {
        "map_16": sy_tm.MeanAveragePrecision(L, dtype="float16"),
        "ace_7": sy_tm.CalibrationError(L, bins=7),
        "mass": sy_tm.MassCalibrationError(L, bins=15),
        "f1_at_6": sy_tm.LabelF1(L, 0.6),
        "f1_by_label": sy_tm.LabelF1(L, [0.5, 0.5, 0.5, 0.500001]),
        "match": sy_tm.ExactMatch(L),
        "match_6": sy_tm.ExactMatch(L, 0.6),
        "brier": sy_tm.Brier(),
        "log": sy_tm.LogLoss(),
    }
    collection = MetricCollection({**same_state, **alone})
    separate = {name: metric.clone() for name, metric in {**same_state, **alone}.items()}
    # certain and right: at first all thresholds count alike, and both losses are 0
    batches = [(torch.eye(L), torch.eye(L)), drawn(5, 30), drawn(6, 7)]
    for p, t in batches:
        collection.update(p, t)
        for metric in separate.values():
            metric.update(p, t)
    groups = {frozenset(group) for group in collection.compute_groups.values()}
    assert groups == {
        frozenset({"map", "map_item"}),
        frozenset({"ace", "mce", "ece_label"}),
        frozenset({"f1", "precision", "recall"}),
        *(frozenset({name}) for name in alone),
    }
    got = collection.compute()
    for name, metric in separate.items():
        same(got[name], metric.compute())
    collection.reset()
    p, t = batches[1]
    values = collection(preds=p, target=t)  # by torchmetrics' names, as its own metrics are called
    same(values["map"], m.mean_average_precision(p, t))
    same(collection.clone(prefix="val_").compute()["val_brier"], m.brier(p, t))


def test_agrees_with_torchmetrics() -> None:
    for seed in range(5):
        p, t = drawn(seed, 200, soft=False)
        p = 0.003 + 0.99 * p  # off the thresholds, where theirs decides by >, and off the edges of bins
        y = t.long()
        every = torch.where(y < 0, (p > 0.7).long(), y)  # theirs has no unknown labels everywhere
        pairs = [
            (sy_tm.MeanAveragePrecision(L), theirs.multilabel_average_precision(p, y, L, ignore_index=-1), y),
            (sy_tm.LabelF1(L), theirs.multilabel_f1_score(p, every, L), every),
            (sy_tm.LabelPrecision(L, 0.4, "micro"), theirs.multilabel_precision(p, every, L, 0.4, "micro"), every),
            (sy_tm.LabelRecall(L, 0.4), theirs.multilabel_recall(p, every, L, 0.4), every),
            (sy_tm.ExactMatch(L), theirs.multilabel_exact_match(p, every, L), every),
            (sy_tm.CalibrationError(L, "ece"), theirs.binary_calibration_error(p.ravel(), every.ravel(), 15), every),
            (sy_tm.CalibrationError(L, "mce"), _their_mce(p, every), every),
        ]
        for mine, value, target in pairs:
            mine.update(p, target)
            assert mine.compute().item() == pytest.approx(value.item(), abs=2e-6), type(mine).__name__


def _their_mce(p: Tensor, y: Tensor) -> Tensor:
    return theirs.binary_calibration_error(p.ravel(), y.ravel(), 15, norm="max")


def _process(rank: int, port: int, sizes: list[tuple[int, int]], results: Path) -> None:
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    values = {}
    for size in sizes:
        p, t = (x.split(list(size))[rank] for x in drawn(7, sum(size)))
        for name, (make, _) in CASES.items():
            metric = make()
            for a, b in zip(p.split(9), t.split(9), strict=True) if len(p) else ():
                metric.update(a, b)
            values[f"{name} {size}"] = metric.compute()
            if size[rank] and size[1 - rank]:  # goes on from what this process had, not from what all had
                metric.update(p, t)
                values[f"{name} {size} twice"] = metric.compute()
    torch.save(values, results / f"{rank}.pt")
    dist.destroy_process_group()


def test_two_processes(tmp_path: Path) -> None:
    sizes = [(31, 12), (0, 43)]  # uneven; and one that never saw an item
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    torch.multiprocessing.start_processes(_process, (port, sizes, tmp_path), nprocs=2, start_method="fork")
    p, t = drawn(7, 43)
    twice = [torch.cat([x[:31], x[:31], x[31:], x[31:]]) for x in (p, t)]
    for rank in range(2):
        got = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for name, (_, reference) in CASES.items():
            for size in sizes:
                same(got[f"{name} {size}"], reference(p, t))
            same(got[f"{name} {sizes[0]} twice"], reference(*twice))


def test_nothing_known_is_nan() -> None:
    for name in ("map by label", "ace", "mce", "ace, equal mass", "exact match", "brier", "log-loss"):
        metric = CASES[name][0]()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torchmetrics' own word on computing before the first update
            assert metric.compute().isnan(), name
        metric.update(torch.rand(3, L), torch.full((3, L), -1))
        assert metric.compute().isnan(), name


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sy_tm.MeanAveragePrecision(0), "n_labels is 0"),
        (lambda: sy_tm.MeanAveragePrecision(3, per="row"), "per is 'row': choose one of label, item"),
        (lambda: sy_tm.MeanAveragePrecision(3, dtype="int8"), "dtype is 'int8'"),
        (lambda: sy_tm.CalibrationError(3, "rms"), "error is 'rms': choose one of ace, mce, ece"),
        (lambda: sy_tm.CalibrationError(3, bins=0), "bins is 0"),
        (lambda: sy_tm.CalibrationError(3, per="item"), "per is 'item'"),
        (lambda: sy_tm.MassCalibrationError(3, bins=0), "bins is 0"),
        (lambda: sy_tm.LabelF1(3, [0.5, 0.5]), r"threshold has shape \(2,\): give one number, or one for each of 3"),
        (lambda: sy_tm.ExactMatch(3, float("nan")), "not NaN"),
        (lambda: sy_tm.LabelF1(3, average="weighted"), "average is 'weighted'"),
        (lambda: sy_tm.LabelF1(3).update(torch.rand(2, 4), torch.ones(2, 4)), "preds has 4 labels, but n_labels is 3"),
        (lambda: sy_tm.MeanAveragePrecision(3).update(torch.rand(2, 4), torch.ones(2, 4)), "preds has 4 labels"),
        (lambda: sy_tm.Brier().update(torch.randn(9, 4) - 9, torch.ones(9, 4)), "give logits through their link first"),
        (lambda: sy_tm.Brier().update(torch.rand(2, 4), torch.ones(2, 3)), "targets has shape"),
        (lambda: sy_tm.LogLoss().update(torch.rand(2, 4), torch.full((2, 4), 2)), "a label is 1 present"),
        (lambda: sy_tm.Brier(bins=3), "Unexpected keyword arguments: `bins`"),
    ],
)
def test_mistakes_get_one_sentence(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_without_torchmetrics_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    for name in ("torchmetrics", "torchmetrics_base"):
        monkeypatch.delitem(sys.modules, f"steelyard.integrations.{name}")
    with pytest.raises(ImportError) as caught:
        importlib.import_module("steelyard.integrations.torchmetrics")
    assert str(caught.value) == (
        "steelyard.integrations.torchmetrics needs torchmetrics, which is not installed: pip install torchmetrics"
    )


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")
@pytest.mark.filterwarnings("ignore")
def test_under_lightning(tmp_path: Path) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(5, L)
            self.map = sy_tm.MeanAveragePrecision(L)
            self.others = MetricCollection([sy_tm.Brier(), sy_tm.CalibrationError(L), sy_tm.LabelF1(L)])
            self.seen: list[tuple[Tensor, Tensor]] = []

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            loss: Tensor = torch.nn.functional.binary_cross_entropy_with_logits(
                self.layer(batch[0]), batch[1].clamp_min(0)
            )
            return loss

        def validation_step(self, batch: list[Tensor], _: int) -> None:
            p = self.layer(batch[0]).sigmoid()
            self.map(p, batch[1])
            self.others.update(p, batch[1])
            self.seen.append((p.detach(), batch[1]))
            self.log("map", self.map, on_step=False, on_epoch=True)
            self.log_dict(self.others)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(50, 5), drawn(8, 50)[1])
    loader = torch.utils.data.DataLoader(data, batch_size=16)
    module = Module()
    trainer = lightning.Trainer(
        default_root_dir=tmp_path,
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=1,
    )
    trainer.fit(module, loader, loader)
    assert len(module.seen) == 1 + 2 * 4
    p, t = (torch.cat(x) for x in zip(*module.seen[-4:], strict=True))  # the last epoch's alone: reset between epochs
    logged = trainer.callback_metrics
    for name, value in {
        "map": m.mean_average_precision(p, t),
        "Brier": m.brier(p, t),
        "CalibrationError": m.calibration_error(p, t).ace,
        "LabelF1": m.precision_recall_f1(p >= 0.5, t).macro.f1,
    }.items():
        assert float(logged[name]) == pytest.approx(value, abs=1e-6), name
