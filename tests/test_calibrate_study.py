"""The simulated study in short: every loss and every way of balancing holds, read by the link, within one per cent."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from scipy.stats import norm

SCRIPT = Path(__file__).resolve().parent.parent / "examples" / "calibration_study.py"


@pytest.fixture(scope="module")
def study() -> ModuleType:
    spec = importlib.util.spec_from_file_location("calibration_study", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("size", "ace", "ratio"), [(5_000, 0.025, 1.4), pytest.param(20_000, 0.01, 4.0, marks=pytest.mark.slow)]
)
def test_the_link_holds_where_sigmoid_does_not(study: ModuleType, size: int, ace: float, ratio: float) -> None:
    rows = [*study.by_loss(size), *study.by_balance(2 * size), study.by_sampling(8 * size)]
    assert len(rows) == 17
    for row in rows:
        assert row.link.ace < ace, row.name
        assert row.name == "BCE" or row.sigmoid.ace > ratio * row.link.ace, row.name
    by_name = {row.name: row for row in rows}
    assert by_name["BCE"].sigmoid.ace == pytest.approx(by_name["BCE"].link.ace, abs=1e-4)
    assert by_name["positives × 1..100"].sigmoid.ace > 0.15


def test_em_finds_the_deployment_prior_from_the_link_and_not_from_sigmoid(study: ModuleType) -> None:
    shift = study.by_prior(100_000)
    report = shift.by_link
    z = (report.prior - shift.deployed) / report.standard_error
    assert float(z.abs().max()) < norm.isf(0.001 / 2 / len(z))
    often = shift.deployed * 100_000 >= 10_000
    assert int(often.sum()) >= 4
    assert float((report.prior / shift.deployed - 1)[often].abs().max()) < 0.05
    wrong = (shift.by_sigmoid.prior / shift.deployed - 1).abs()
    assert float(wrong.min()) > 0.3
    assert int(torch.as_tensor(shift.by_sigmoid.suspicious).sum()) >= 8


def test_it_prints_and_draws(study: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="the picture needs matplotlib")
    rows, shift = [study.by_sampling(20_000)], study.by_prior(2000)
    study.show(rows, shift)
    assert "class-aware sampling" in capsys.readouterr().out
    study.draw(rows, shift, str(tmp_path / "study.png"))
    assert (tmp_path / "study.png").stat().st_size > 5000
