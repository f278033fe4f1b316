"""Runs as ONNX files: the reading written for ONNX, the file against torch, and predictions from it alone."""

from __future__ import annotations

import copy
import csv
import functools
import json
import re
import shutil
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from PIL import ExifTags, Image, ImageOps
from torch import Tensor

from small_run import LOSSES, NAMES, items, part, probability_model_of, saved_run, small_run
from steelyard.calibrate.aim import Aim
from steelyard.calibrate.isotonic import Curve, interpolated
from steelyard.calibrate.probability import ProbabilityModel
from steelyard.data.images import decode
from steelyard.data.inputs import inputs_of
from steelyard.export import graph as export_graph
from steelyard.export.onnx import export, export_trained
from steelyard.export.runtime import load_onnx
from steelyard.export.trace import PRIMITIVES, ProbabilityNetwork
from steelyard.folder.fingerprints import fingerprints
from steelyard.folder.run_folder import RunFolder, Trained
from steelyard.labels import Labels
from steelyard.losses import FormulaLoss
from steelyard.models import Input, ModelSettings, build_model
from steelyard.models.race.members import Member, Members, MemberSpec
from steelyard.objective import parts
from steelyard.objective.parts import Part
from steelyard.predict import prediction

heavy = pytest.mark.onnx

OTHERS = {
    "LDAM, softmax": part("ldam", softmax=True),
    "ASL without margin": part("asymmetric", margin=0.0, detach_focus=False),
    "ASL, small margin": part("asymmetric", margin=0.01),
    "ASL without focus": part("asymmetric", gamma_neg=0.0),
}
QUICK = [("ASL", "link"), ("BCE", "isotonic")]  # of all losses by every calibrator: heavy
KINDS = ("none", "link", "temperature", "platt", "isotonic")
PRIOR = [0.1, float("nan"), 0.0, 0.9]


@pytest.fixture(scope="module", autouse=True)
def onnxruntime() -> Any:
    return pytest.importorskip("onnxruntime")


@functools.cache
def judged() -> tuple[Tensor, Tensor]:
    data = items(300, seed=1)
    with torch.no_grad():
        return small_run().model(torch.from_numpy(data.inputs)), torch.from_numpy(data.labels.values)


def fitted(loss: Part, kind: str, class_aware: bool = False) -> Any:
    """A reading fitted to small items, with thresholds for F1; None where the loss has no link and needs one."""
    labels = items(400, seed=7).labels
    plain = probability_model_of(loss, labels.counts, labels.n_known, class_aware)
    if plain.link is None and kind in ("none", "link"):
        return None
    z, t = judged()
    probability_model = plain.fit(z, t, kind)
    return probability_model.with_thresholds(Aim("f1"), probability_model.probability(z), t)


def far_and_near() -> Tensor:
    """Logits to ±60 and far beyond, the same of all labels and not, and NaN of one label each."""
    g = torch.Generator().manual_seed(0)
    line = torch.cat([torch.linspace(-60, 60, 1201), torch.tensor([-1e4, -200.0, 200.0, 1e4])])
    broken = torch.zeros(4, 4).fill_diagonal_(torch.nan)
    return torch.cat([line[:, None].expand(-1, 4), 5 * torch.randn(400, 4, generator=g), judged()[0], broken])


# ---- the reading, traced


@pytest.mark.parametrize("name", [*LOSSES, *OTHERS])
def test_links_as_networks(name: str) -> None:
    assert_reads_alike(fitted((LOSSES | OTHERS)[name], "link"))


UNDONE = ("BCE", "DB-Focal")  # the same is laid over every link


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in UNDONE else heavy) for name in LOSSES | OTHERS]
)
def test_class_aware_links_as_networks(name: str) -> None:
    assert_reads_alike(fitted((LOSSES | OTHERS)[name], "link", class_aware=True))


@pytest.mark.parametrize("kind", ["none", "temperature", "platt", "isotonic"])
@pytest.mark.parametrize("name", ["Focal", "LDAM, softmax"])
def test_calibrators_as_networks(name: str, kind: str) -> None:
    assert_reads_alike(fitted((LOSSES | OTHERS)[name], kind))


def assert_reads_alike(probability_model: ProbabilityModel | None) -> None:
    if probability_model is None:
        pytest.skip("the loss has no link")
    z, read = far_and_near(), probability_model.with_prior(PRIOR)
    network = ProbabilityNetwork(read)
    eta, decisions = network(z)
    assert eta.dtype == torch.float32
    torch.testing.assert_close(eta, read.probability(z), rtol=3e-7, atol=1e-9, equal_nan=True)
    assert torch.equal(decisions, read.decisions(eta))
    assert bool(eta.isnan()[z.isnan()].all())
    near = z.abs().amax(1) <= 60
    odds = network.odds(z.double())
    torch.testing.assert_close(odds[near], read.log_odds(z.double())[near], rtol=1e-8, atol=1e-8)


def test_class_aware_sampling_is_undone_where_items_have_no_positive_and_labels_are_never_seen() -> None:
    counts, known = np.array([50.0, 0.0, 3.0, 1.0]), np.full(4, 100.0)
    probability_model = probability_model_of(part(), counts, known, class_aware=True)
    z = torch.tensor([[-9.0, 2.0, -9.0, -9.0], [0.0, 0.0, 0.0, 0.0], [3.0, -5.0, 40.0, -2.0], [-0.4, 0.1, -0.6, -1.2]])
    network = ProbabilityNetwork(probability_model)
    assert network.by_item
    torch.testing.assert_close(network(z)[0], probability_model.probability(z), rtol=1e-6, atol=1e-12)


@given(st.floats(-700, 700), st.floats(-0.999999, 1e6))
def test_primitives(x: float, y: float) -> None:
    def at(function: Any, value: float) -> float:
        found = PRIMITIVES[function.default](torch.tensor(value, dtype=torch.float64))
        return float(found[0] if isinstance(found, tuple) else found)

    aten = torch.ops.aten
    assert at(aten.log_sigmoid_forward, x) == pytest.approx(-np.logaddexp(0, -x), rel=1e-13, abs=0)
    assert at(aten.sigmoid, x) == pytest.approx(np.exp(-np.logaddexp(0, -x)), rel=1e-12, abs=0)
    assert at(aten.log1p, y) == pytest.approx(np.log1p(y), rel=1e-13, abs=0)
    assert at(aten.expm1, x) == pytest.approx(np.expm1(x), rel=1e-13, abs=0)
    assert at(aten.expm1, y * 1e-9) == pytest.approx(np.expm1(y * 1e-9), rel=1e-13, abs=0)


@given(st.data())
def test_curves_are_those_of_numpy(data: st.DataObject) -> None:
    curves = []
    for _ in range(data.draw(st.integers(1, 4))):
        n = data.draw(st.integers(1, 20))
        # knots a subnormal number apart have an infinite slope, with which numpy's own answer is no reference
        x = np.unique(data.draw(st.lists(st.floats(-50, 50, allow_subnormal=False), min_size=n, max_size=n)))
        eta = np.sort(data.draw(st.lists(st.floats(0, 1), min_size=len(x), max_size=len(x))))
        curves.append(Curve(x, eta))
    drawn = np.array(data.draw(st.lists(st.floats(-60, 60), min_size=5, max_size=5)))
    z = np.concatenate([drawn, *(c.x for c in curves), [-1e9, 1e9]])
    found = interpolated(curves, torch.from_numpy(z)[:, None].expand(-1, len(curves))).numpy()
    for c, curve in enumerate(curves):
        np.testing.assert_allclose(found[:, c], np.interp(z, curve.x, curve.eta), rtol=0, atol=1e-12)


# ---- log-odds through onnxruntime


class Own(FormulaLoss):
    """A loss of a user's own: polynomial in σ, its link by automatic differentiation."""

    def positive(self, z: Tensor) -> Tensor:
        return F.softplus(-z) + torch.sigmoid(-z) ** 2

    def negative(self, z: Tensor) -> Tensor:
        return F.softplus(z) + torch.sigmoid(z) ** 2


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Part:
    monkeypatch.setitem(parts.KINDS["loss"], "own", parts.Kind(Own))
    return part("own")


def through_onnxruntime(readings: list[ProbabilityModel], z: np.ndarray) -> list[np.ndarray]:
    """The log-odds of several readings as one file computes them."""
    import onnxruntime

    networks = torch.nn.ModuleList(ProbabilityNetwork(probability_model).odds for probability_model in readings)

    class All(torch.nn.Module):
        def forward(self, z: Tensor) -> tuple[Tensor, ...]:
            return tuple(network(z) for network in networks)

    with export_graph.quiet():
        batch = {0: torch.export.Dim("batch", min=1)}
        program = torch.onnx.export(All(), (torch.zeros(2, 4).double(),), dynamo=True, dynamic_shapes=(batch,))
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, {session.get_inputs()[0].name: z})
    return found


def test_log_odds_of_links_and_calibrators_keep_their_digits() -> None:
    """To ±60: plain tracing gives NaN for ASL at 20 and loses the digits of small η."""
    assert_digits([(LOSSES[name], kind, False) for name, kind in QUICK])


def test_links_inside_a_race_keep_their_digits() -> None:
    """The members of a race end in links of their own; texts give them logits far beyond those of a table."""
    import onnxruntime

    head = Members([MemberSpec("none", loss=loss) for loss in ("asl", "spa")], 4, 4).eval()
    for member in head.members:
        assert isinstance(member, Member)
        torch.nn.init.eye_(member.network[0].weight)
        torch.nn.init.zeros_(member.network[0].bias)
    whole = copy.deepcopy(head)
    export_graph.trace_links(whole, 4)
    with export_graph.quiet():
        program = torch.onnx.export(whole, (torch.zeros(2, 4),), dynamo=True)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for z in torch.linspace(-300, 300, 1201)[:, None].repeat(1, 4).split(2)[:-1]:
        (found,) = session.run(None, {session.get_inputs()[0].name: z.numpy()})
        np.testing.assert_allclose(found, head(z).detach().numpy(), rtol=1e-5, atol=1e-5)


def test_a_loss_of_ones_own_is_exported(own: Part, tmp_path: Path) -> None:
    probability_model = fitted(own, "link")
    assert probability_model is not None
    trained = small_run(own).read_by(probability_model)
    done = export_trained(trained, tmp_path / "x.onnx")
    assert done.checked is not None
    assert max(done.checked) <= 1e-6
    eta, _, logits = load_onnx(tmp_path / "x.onnx")(items(50, seed=3).inputs)
    np.testing.assert_allclose(eta, Own().probability(torch.from_numpy(logits)), rtol=0, atol=1e-6)


@heavy
@pytest.mark.parametrize("name", [*LOSSES, *OTHERS])
def test_log_odds_of_every_loss_keep_their_digits(name: str) -> None:
    loss = (LOSSES | OTHERS)[name]
    for case in [*((loss, kind, False) for kind in KINDS), (loss, "link", True)]:
        if fitted(*case) is not None:
            assert_digits([case])  # a file each: of six ASL readings in one, torch's exporter confuses the names


def assert_digits(cases: list[tuple[Part, str, bool]]) -> None:
    readings = [
        probability_model.with_prior(PRIOR) for case in cases if (probability_model := fitted(*case)) is not None
    ]
    g = np.random.default_rng(0)
    z = np.concatenate([np.repeat(np.linspace(-60, 60, 1201)[:, None], 4, 1), g.uniform(-60, 60, (500, 4))])
    for probability_model, found in zip(readings, through_onnxruntime(readings, z), strict=True):
        assert not np.isnan(found).any()
        told = np.ones(len(z), bool)
        if (
            probability_model.link is not None and probability_model.link.class_aware is not None
        ):  # what is drawn has Σ σ > 1
            sampled = replace(probability_model, base="sampled", to_prior=None).log_odds(z)
            told = np.abs((1 / (1 + np.exp(-sampled))).sum(1) - 1) > 1e-9  # nearer is noise
            assert told.mean() > 0.8
        np.testing.assert_allclose(
            found[told], probability_model.log_odds(z)[told], rtol=0, atol=1e-5, err_msg=probability_model.how
        )


# ---- the file


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run with Platt's calibrator, a deployment prior and thresholds, exported."""
    probability_model = fitted(part(), "platt")
    folder = tmp_path_factory.mktemp("run") / "run"
    saved_run(folder, small_run().read_by(probability_model.with_prior([0.2, 0.3, float("nan"), 0.1])))
    assert export(folder) == folder / "model.onnx"
    return folder


def test_a_file_gives_what_the_run_gives(run: Path) -> None:
    model, trained = load_onnx(run), RunFolder(run).load()
    assert model.names == NAMES == trained.names
    np.testing.assert_array_equal(model.thresholds, trained.thresholds)
    assert model.input == Input("features", (3,))
    assert model.fingerprints == fingerprints(run)
    assert model.how == trained.probability_model.how
    data = items(211, seed=5)
    with torch.inference_mode():
        wanted = trained.model(torch.from_numpy(data.inputs)).numpy()
    for n in (1, 2, 211):
        eta, decisions, logits = model(data.inputs[:n])
        assert eta.dtype == logits.dtype == np.float32
        np.testing.assert_allclose(logits, wanted[:n], atol=1e-5)
        np.testing.assert_allclose(eta, trained.probability_model.probability(wanted[:n]), rtol=0, atol=1e-5)
        np.testing.assert_array_equal(decisions, eta >= trained.thresholds.astype(np.float32))


def test_a_linear_model_by_hand(tmp_path: Path) -> None:
    trained = small_run()
    done = export_trained(trained, tmp_path / "x.onnx")
    assert done.checked is not None
    assert max(done.checked) < 1e-6
    x = items(50, seed=3).inputs
    state = {name: tensor.double().numpy() for name, tensor in trained.model.state_dict().items()}
    z = (x - state["normalise.mean"]) / state["normalise.std"] @ state["head.last.weight"].T + state["head.last.bias"]
    model = load_onnx(tmp_path / "x.onnx")
    assert model.fingerprints == {}
    np.testing.assert_allclose(model(x)[0], 1 / (1 + np.exp(-z)), rtol=0, atol=1e-6)


def test_the_file_tells_nothing_of_the_machine(run: Path) -> None:
    import onnx

    content = (run / "model.onnx").read_bytes()
    assert str(Path(export_graph.__file__).parent).encode() not in content
    proto = onnx.load_from_string(content)
    onnx.checker.check_model(proto, full_check=True)
    notes = {entry.key: entry.value for entry in proto.metadata_props}
    assert json.loads(notes["steelyard.labels"]) == list(NAMES)


def test_a_run_calibrated_anew_is_exported_anew(run: Path, tmp_path: Path) -> None:
    folder, alone, x = tmp_path / "my run", tmp_path / "elsewhere.onnx", items(20).inputs
    shutil.copytree(run, folder)
    shutil.copy(run / "model.onnx", alone)
    np.testing.assert_array_equal(load_onnx(alone)(x)[0], load_onnx(folder)(x)[0])
    fitted(part(), "temperature").save(folder / "calibration.json")
    with pytest.raises(ValueError, match=f"recalibrated since: export it again with steelyard export '{folder}'"):
        load_onnx(folder)


def test_class_aware_sampling_is_undone_in_the_file(tmp_path: Path) -> None:
    probability_model = fitted(part(), "link", class_aware=True)
    done = export_trained(small_run().read_by(probability_model), tmp_path / "x.onnx")
    assert done.checked.probability_model < 1e-6
    eta, _, logits = load_onnx(tmp_path / "x.onnx")(items(300, seed=9).inputs)
    assert np.abs(replace(probability_model, base="sampled").probability(logits) - eta).max() > 0.05


def test_a_wrong_file_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "x.onnx"
    out.write_bytes(b"before")
    right = ProbabilityNetwork.forward

    def wrong(self: ProbabilityNetwork, logits: Tensor) -> tuple[Tensor, Tensor]:
        eta, _ = right(self, logits)
        return eta * 0.9999, eta * 0.9999 >= self.thresholds

    monkeypatch.setattr(ProbabilityNetwork, "forward", wrong)
    with pytest.raises(RuntimeError, match="nothing was written"):
        export_trained(small_run(), out)
    assert out.read_bytes() == b"before"
    assert [p.name for p in tmp_path.iterdir()] == ["x.onnx"]


@pytest.mark.parametrize(
    ("out", "what"),
    [("none/x.onnx", "its folder does not exist"), ("x.pt", "does not end in .onnx"), (".", "a folder")],
)
def test_bad_targets(run: Path, tmp_path: Path, out: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        export(run, tmp_path / out)


def test_no_probabilities_no_export(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    trained = small_run(part("two_way"))
    with pytest.raises(ValueError, match=r"there are no probabilities to export.*steelyard calibrate first"):
        export_trained(trained, tmp_path / "x.onnx")


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf"{package}, which is not installed: pip install 'steelyard\[export\]'"):
        export(run, tmp_path / "x.onnx")
    if package == "onnxruntime":
        with pytest.raises(ValueError, match="onnxruntime, which is not installed"):
            load_onnx(run)


def test_what_is_no_file_of_ours(run: Path, tmp_path: Path) -> None:
    import onnx

    content = (run / "model.onnx").read_bytes()
    foreign, lost = onnx.load_from_string(content), onnx.load_from_string(content)
    foreign.ClearField("metadata_props")
    next(e for e in lost.metadata_props if e.key == "steelyard.labels").value = '["cat"]'
    bare = saved_run(tmp_path / "my run", small_run()).path
    for file, written, message in (
        (tmp_path / "none.onnx", None, r"does not exist: give an .onnx file, or a run folder"),
        (tmp_path / "damaged.onnx", content[:900], "not a valid ONNX file"),
        (tmp_path / "foreign.onnx", foreign.SerializeToString(), "was not written by steelyard export"),
        (tmp_path / "lost.onnx", lost.SerializeToString(), r"metadata of .* is corrupt"),
        (bare, None, re.escape(f"write it with steelyard export '{bare}'")),
    ):
        if written is not None:
            file.write_bytes(written)
        with pytest.raises(ValueError, match=message):
            load_onnx(file)


# ---- predictions


@pytest.mark.parametrize("form", ["wide", "long"])
def test_predictions_are_those_of_torch(run: Path, tmp_path: Path, form: Any) -> None:
    data = inputs_of(items(37, seed=4))
    trained, top = RunFolder(run).load(), 2 if form == "long" else 0
    prediction.predict(trained, data, tmp_path / "torch.csv", form=form, top=top, batch_size=10)
    seen: list[tuple[int, int | None]] = []
    done = load_onnx(run).predict(
        data, tmp_path / "onnx.csv", form=form, top=top, batch_size=10, progress=lambda n, of: seen.append((n, of))
    )
    assert done.n_items == 37
    assert seen[-1] == (37, 37)
    tables = [list(csv.reader((tmp_path / f"{name}.csv").open(encoding="utf-8"))) for name in ("torch", "onnx")]
    assert tables[0][0] == tables[1][0]
    for wanted, found in zip(tables[0][1:], tables[1][1:], strict=True):
        for a, b, name in zip(wanted, found, tables[0][0], strict=True):
            assert float(a) == pytest.approx(float(b), abs=1e-5) if name.startswith("probability") else a == b


def test_inputs_from_a_manifest(run: Path, tmp_path: Path) -> None:
    x = items(5).inputs
    np.save(tmp_path / "x.npy", x)
    model = load_onnx(run)
    model.predict(model.open(str(tmp_path / "x.npy")), tmp_path / "out.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    found = np.array([list(line["probabilities"].values()) for line in lines])
    np.testing.assert_allclose(found, model(x)[0], atol=1e-7)


def test_inputs_that_do_not_fit(run: Path, tmp_path: Path) -> None:
    model = load_onnx(run)
    with pytest.raises(ValueError, match=r"an item has 2 features, but .* takes 3"):
        model(np.zeros((4, 2), np.float32))
    with pytest.raises(ValueError, match="takes 1 inputs, but 2 are given"):
        model(np.zeros((4, 3), np.float32), np.zeros((4, 3), np.float32))
    x = items(3).inputs.copy()
    x[1] = np.nan
    broken = inputs_of(items(3))
    assert not np.isfinite(model(x)[2]).all()
    monkey = [batch._replace(inputs=torch.from_numpy(x)) for batch in broken.batches(3)]
    broken.batches = lambda *_: iter(monkey)  # type: ignore[method-assign,assignment]
    with pytest.raises(ValueError, match=f"for item '{monkey[0].ids[1]}' is not finite"):
        model.predict(broken, tmp_path / "x.csv")


# ---- models and readings through whole files


def network_run(backbone: str, head: str, kind: str, shape: tuple[int, ...], mirror: bool = False) -> Trained:
    """A run whose network has random weights and statistics everywhere."""
    g = np.random.default_rng(0)
    labels = Labels((g.random((50, 4)) < 0.4).astype(np.int8), NAMES)
    torch.manual_seed(0)
    settings_ = ModelSettings(backbone=backbone, head=head, pretrained=False, width=32, mirror=mirror)  # type: ignore[arg-type]
    model = build_model(settings_, Input(kind, shape), labels)  # type: ignore[arg-type]
    if model.has_memory:
        targets = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
        model.observe(torch.randn(2, model.n_features), targets)
        model.start_epoch()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 2)
        for name, parameter in model.named_parameters():
            if name.startswith("attention.back"):
                parameter.normal_(0, 0.05)
    return replace(small_run(), model=model.eval())


def assert_exports(trained: Trained, out: Path) -> None:
    done = export_trained(trained, out)
    assert done.checked.probability <= 1e-5
    assert done.checked.probability_model <= 1e-6
    model = load_onnx(out)
    inputs = export_graph.examples(trained, 5, seed=11)
    eta = model(*(x.numpy() for x in inputs))[0]
    with torch.inference_mode():
        wanted = trained.model(inputs if len(inputs) > 1 else inputs[0])
    np.testing.assert_allclose(eta, trained.probability_model.probability(wanted).numpy(), rtol=0, atol=1e-5)
    assert np.ptp(eta, axis=0).max() > 0


@heavy
def test_features(tmp_path: Path) -> None:
    assert_exports(network_run("mlp", "ml_gcn", "features", (7,)), tmp_path / "x.onnx")


def test_images_of_integers_and_one_channel(tmp_path: Path) -> None:
    trained = network_run("small", "oltr", "image", (1, 32, 32))
    assert_exports(trained, tmp_path / "x.onnx")
    model = load_onnx(tmp_path / "x.onnx")
    assert model.input == Input("image", (1, 32, 32))
    with pytest.raises(ValueError, match="an item has 3 × 32 × 32 images"):
        model(np.zeros((1, 3, 32, 32), np.uint8))


@heavy
@pytest.mark.parametrize(("size", "turned"), [((640, 401), False), ((57, 90), False), ((300, 200), True)])
def test_the_lines_of_the_manual_give_the_probabilities_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], turned: bool
) -> None:
    """docs/how-to/onnx.md with onnxruntime and Pillow alone; a centre crop instead of squashing is far from it."""
    trained = network_run("small", "linear", "image", (3, 32, 32))
    with torch.no_grad():  # steep enough for a probability to show how the image was resized
        for parameter in trained.model.head.parameters():
            parameter.mul_(100)
    export_trained(trained, tmp_path / "model.onnx")
    rows, columns = np.mgrid[: size[1], : size[0]]
    waves = [np.sin(rows / 23), np.cos(columns / 17), np.sin((rows + columns) / 31)]
    photo = Image.fromarray((127 + 120 * np.stack(waves, 2)).astype(np.uint8))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6 if turned else 1
    photo.save(tmp_path / "photo.jpg", quality=95, exif=exif)
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).resolve().parent.parent / "docs" / "how-to" / "onnx.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"```py\n(.*?)```", page, flags=re.S)
    scope: dict[str, Any] = {}
    exec(compile(lines, "onnx.md", "exec"), scope)

    def run_on(pixels: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            found: np.ndarray = trained.probability_model.probability(
                trained.model(torch.from_numpy(pixels)[None])
            ).numpy()
        return found

    wanted = run_on(decode(tmp_path / "photo.jpg", (32, 32)))
    np.testing.assert_allclose(scope["probabilities"], wanted, rtol=0, atol=1e-5)
    cropped = ImageOps.fit(ImageOps.exif_transpose(Image.open("photo.jpg")), (32, 32), Image.Resampling.BILINEAR)
    assert np.abs(run_on(np.asarray(cropped).transpose(2, 0, 1).copy()) - wanted).max() > 0.02
    notes = json.loads(scope["notes"]["steelyard.preprocessing"])
    assert notes["mean"] == pytest.approx(trained.model.normalise.mean.flatten().tolist())
    assert notes["std"] == pytest.approx(trained.model.normalise.std.flatten().tolist())
    assert (notes["channels"], notes["layout"], notes["dtype"]) == ("RGB", "NCHW", "uint8")
    assert notes["resize"]["mode"] == "squash"


class _OneSize(torch.nn.Module):
    """A head whose graph holds for the batch that it was traced with alone."""

    def __init__(self, inside: torch.nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x).reshape(len(x), -1)


def test_a_model_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    trained = network_run("mlp", "linear", "features", (7,))
    trained.model.head = _OneSize(trained.model.head)
    with pytest.raises(ValueError, match="backbone mlp and head linear, cannot be written as ONNX"):
        export_trained(trained, tmp_path / "x.onnx")
    assert not (tmp_path / "x.onnx").exists()


@heavy
@pytest.mark.parametrize(
    ("backbone", "shape"),
    [
        ("small", (1, 28, 28)),
        ("resnet12", (1, 32, 32)),
        ("resnet32", (3, 32, 32)),
        ("lite0", (3, 64, 64)),
        ("lite0", (1, 0, 0)),
        ("timm:resnet18", (3, 64, 64)),
        ("timm:vit_tiny_patch16_224", (3, 64, 64)),
    ],
)
@pytest.mark.parametrize("head", ["linear", "cosine", "bottleneck", "ml_gcn", "oltr", "places"])
def test_every_backbone_and_head(tmp_path: Path, backbone: str, shape: tuple[int, ...], head: str) -> None:
    if backbone.startswith("timm:") and find_spec("timm") is None:
        pytest.skip("timm is not installed")
    if head == "places" and ("vit" in backbone or backbone == "small"):
        pytest.skip("it has no maps")
    assert_exports(network_run(backbone, head, "image", shape), tmp_path / "x.onnx")


@heavy
def test_a_mirrored_image_is_in_the_graph(tmp_path: Path) -> None:
    assert_exports(network_run("lite0", "places", "image", (3, 64, 64), mirror=True), tmp_path / "x.onnx")


@heavy
@pytest.mark.parametrize("head", ["linear", "oltr"])
def test_a_model_of_regions_and_words(tmp_path: Path, head: str) -> None:
    trained = network_run("cross_attention", head, "pair", (3, 5, 7, 20))
    assert_exports(trained, tmp_path / "x.onnx")
    regions, words = export_graph.examples(trained, 5, seed=9)
    regions[1, 2], words[1, 4:] = 0, 0  # a missing region, a shorter sentence
    with torch.inference_mode():
        wanted = trained.model((regions, words)).numpy()
    np.testing.assert_allclose(load_onnx(tmp_path / "x.onnx")(regions.numpy(), words.numpy())[2], wanted, atol=1e-5)
