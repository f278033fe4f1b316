"""NaN stays NaN: in every link, calibrator, prior shift and exported file, so that a broken logit is never a number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from small_run import items, small_run
from steelyard import losses
from steelyard.calibrate import Isotonic, LabelSets, Link, Platt, Temperature, shift_prior, undo_class_aware
from steelyard.export import functions as export_functions
from steelyard.export.probability import ReadingNetwork
from steelyard.losses.focused import log1mexp
from steelyard.losses.loss import NoLink
from steelyard.losses.table import TABLE, Row
from test_export import KINDS, LOSSES, OTHERS, PRIOR, fitted, network_run

NAN = float("nan")
Z = torch.tensor([[NAN, 1.0, -1.0, 0.0], [0.0, NAN, 2.0, -3.0], [1.0, 9.0, NAN, 0.0], [1.0, 2.0, 30.0, NAN]])
BROKEN = Z.isnan()
COUNTS = torch.tensor([50, 20, 5, 2])


def stays(result: Tensor, of_items: bool = False) -> None:
    """NaN where a logit was NaN, and nowhere else, or anywhere in its item where labels hang together."""
    assert result[BROKEN].isnan().all()
    assert of_items or not result[~BROKEN].isnan().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_links(row: Row, dtype: torch.dtype) -> None:
    loss = row.make(COUNTS, 100, "mean")
    try:
        link = Link(loss)
    except NoLink:
        pytest.skip("it has none")
    stays(link(Z.to(dtype)))
    stays(link.loss.log_odds(Z.to(dtype)))
    stays(link.loss.probability(Z.to(dtype)))


def test_an_infinite_logit_of_asl_is_its_limit() -> None:
    loss = losses.Asymmetric()
    eta = loss.probability(torch.tensor([[NAN, np.inf, -np.inf]], dtype=torch.float64))[0].tolist()
    assert np.isnan(eta[0])
    assert eta[1] == pytest.approx(loss.eta_range[1])
    assert eta[2] == pytest.approx(0, abs=1e-40)


def test_calibrators_and_shifts() -> None:
    g = torch.Generator().manual_seed(0)
    z = torch.randn(300, 4, generator=g)
    t = (torch.rand(300, 4, generator=g) < z.sigmoid()).long()
    for calibrator in (Temperature(), Platt(), Isotonic(), Isotonic("pooled"), Temperature("pooled")):
        calibrator.fit(z, t)
        stays(calibrator(Z))
        stays(calibrator.log_odds(Z))
    stays(shift_prior(Z, 0.5, torch.tensor([0.0, 1.0, 0.3, 0.5])))
    stays(undo_class_aware(Z, COUNTS), of_items=True)
    sets = LabelSets.of(t)
    stays(sets.probability(Z, LabelSets.of(t[:100])), of_items=True)


def test_log1mexp() -> None:
    t = torch.tensor([NAN, -1.0, 1.0], dtype=torch.float64)
    for function in (log1mexp, export_functions.log1mexp):
        assert function(t).isnan().tolist() == [True, False, False]


@pytest.mark.parametrize("class_aware", [False, True])
@pytest.mark.parametrize("name", [*LOSSES, *OTHERS])
def test_what_is_exported_and_what_it_is_made_of(name: str, class_aware: bool) -> None:
    for kind in KINDS:
        reading = fitted((LOSSES | OTHERS)[name], kind, class_aware)
        for prior in (None, PRIOR) if reading is not None else ():
            assert reading is not None
            read = reading.with_prior(prior)
            network = ReadingNetwork(read)
            eta, decided = network(Z)
            stays(eta, network.by_item)
            stays(read.probability(Z), network.by_item)
            assert torch.equal(eta.isnan(), read.probability(Z).isnan())
            assert not decided[eta.isnan()].any()


@pytest.mark.onnx
@pytest.mark.parametrize("kind", ["link", "platt", "isotonic"])
@pytest.mark.parametrize("name", ["BCE", "BCE, smoothed", "ASL", "DB-Focal", "LDAM, softmax"])
def test_files(name: str, kind: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from steelyard.export.onnx import export_trained
    from steelyard.export.runtime import load_onnx

    loss = (LOSSES | OTHERS)[name]
    reading = fitted(loss, kind)
    if reading is None:
        pytest.skip("its loss has no link")
    trained = small_run(loss).read_by(reading.with_prior(PRIOR))
    export_trained(trained, tmp_path / "x.onnx")
    x = items(6).inputs.copy()
    x[2, 1] = np.nan
    eta, decided, logits = load_onnx(tmp_path / "x.onnx")(x)
    for result in (eta, logits):
        assert np.isnan(result).any(1).tolist() == [i == 2 for i in range(6)]
        assert np.isnan(result[2]).all()
    assert not decided[2].any()


@pytest.mark.onnx
def test_nan_passes_a_relu(tmp_path: Path) -> None:
    """Of which onnxruntime makes 0: a hidden layer once hid what was missing."""
    pytest.importorskip("onnxruntime")
    from steelyard.export.onnx import export_trained
    from steelyard.export.runtime import load_onnx

    trained = network_run("mlp", "linear", "features", (3,))
    export_trained(trained, tmp_path / "x.onnx")
    x = items(3).inputs.copy()
    x[1, 0] = np.nan
    eta, _, _ = load_onnx(tmp_path / "x.onnx")(x)
    assert np.isnan(eta).all(1).tolist() == [False, True, False]
