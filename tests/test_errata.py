"""Every claim of docs/errata.md is borne out by numbers, and the page shows them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
spec = importlib.util.spec_from_file_location("errata", ROOT / "examples" / "errata.py")
errata = importlib.util.module_from_spec(spec)
spec.loader.exec_module(errata)


@pytest.mark.parametrize("check", errata.CHECKS, ids=lambda check: check.__name__)
def test_claim_is_borne_out_and_on_the_page(check):
    claim = check()
    assert claim.holds, claim
    page = (ROOT / "docs" / "errata.md").read_text()
    assert f"| {claim.paper} | {claim.claim} | {claim.printed} | {claim.used} |" in page


def test_a_check_fails_where_the_used_form_is_wrong(monkeypatch):
    monkeypatch.setattr(errata.SPA, "probability", lambda self, z: torch.sigmoid(z))
    monkeypatch.setattr(errata, "label_groups", lambda counts: {"head": [0] * 5, "medium": [0] * 7, "tail": [0] * 8})
    monkeypatch.setattr(errata, "Asymmetric", lambda **_: errata.Focal())
    assert not errata.spa_link().holds
    assert not errata.db_groups().holds
    assert not errata.asl_link().holds


def test_the_minimiser_finds_the_link_of_cross_entropy():
    eta = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    z = errata.minimiser(lambda z: errata.softplus(-z), errata.softplus, eta)
    torch.testing.assert_close(z, torch.logit(eta), rtol=0, atol=1e-9)
