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
from steelyard.losses.focused import log1mexp
from steelyard.losses.loss import NoLink
from steelyard.losses.table import EVERY, Row
from test_export import LOSSES, OTHERS, PRIOR, fitted, network_run

NAN = float("nan")
Z = torch.tensor([[NAN, 1.0, -1.0, 0.0], [0.0, NAN, 2.0, -3.0], [1.0, 9.0, NAN, 0.0], [1.0, 2.0, 30.0, NAN]])
BROKEN = Z.isnan()
COUNTS = torch.tensor([50, 20, 5, 2])


def stays(result: Tensor, of_items: bool = False) -> None:
    """NaN where a logit was NaN, and nowhere else, or anywhere in its item where labels hang together."""
    assert result[BROKEN].isnan().all()
    assert of_items or not result[~BROKEN].isnan().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("row", EVERY, ids=lambda row: row.name)
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
    assert log1mexp(torch.tensor([NAN, -1.0, 1.0], dtype=torch.float64)).isnan().tolist() == [True, False, False]


@pytest.mark.onnx
@pytest.mark.parametrize("kind", ["link", "platt", "isotonic"])
@pytest.mark.parametrize("name", ["BCE", "BCE, smoothed", "ASL", "DB-Focal", "LDAM, softmax", "a hidden layer"])
def test_files(name: str, kind: str, tmp_path: Path) -> None:
    """A hidden layer once hid what was missing: onnxruntime's ReLU makes 0 of NaN."""
    pytest.importorskip("onnxruntime")
    from steelyard.export.onnx import export_trained
    from steelyard.export.runtime import load_onnx

    loss = (LOSSES | OTHERS).get(name, LOSSES["BCE"])
    probability_model = fitted(loss, kind)
    if probability_model is None:
        pytest.skip("its loss has no link")
    trained = network_run("mlp", "linear", "features", (3,)) if name == "a hidden layer" else small_run(loss)
    export_trained(trained.read_by(probability_model.with_prior(PRIOR)), tmp_path / "x.onnx")
    x = items(6).inputs.copy()
    x[2, 1] = np.nan
    eta, decided, logits = load_onnx(tmp_path / "x.onnx")(x)
    for result in (eta, logits):
        assert np.isnan(result).any(1).tolist() == [i == 2 for i in range(6)]
        assert np.isnan(result[2]).all()
    assert not decided[2].any()
