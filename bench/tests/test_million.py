"""The generated set of many labels, and the page about them: its tables are those of the figures beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

BENCH = Path(__file__).resolve().parents[1]


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The scripts of this folder, which are no package."""
    monkeypatch.syspath_prepend(BENCH)
    import million
    import million_page
    import million_peers

    return million, million_page, million_peers


def test_tables_of_the_page_are_those_of_the_figures(scripts: Any) -> None:
    _, million_page, _ = scripts
    text = million_page.PAGE.read_text(encoding="utf-8")
    for name, lines in million_page.PARTS.items():
        begin, end = f"<!-- {name}: python bench/million_page.py -->\n", f"\n<!-- /{name} -->"
        assert text.split(begin)[1].split(end)[0] == "\n".join(lines()), name


def test_labels_come_as_often_as_their_probabilities_say(scripts: Any) -> None:
    million, _, million_peers = scripts
    world = million.make_world(2000, 16, 0.8, "cpu")
    x, labels = million.draw(world, 500, 1)
    eta = torch.sigmoid(world.log_odds(x, slice(0, 2000)))
    assert float(eta.sum(1).mean()) == pytest.approx(million.PER_ITEM, rel=0.1)
    assert labels.counts.sum() == pytest.approx(float(eta.sum()), rel=0.05)
    top = eta.topk(20)
    rows, columns, _ = labels.listed(np.arange(500))
    data = {"X_test": x.numpy(), "Y_test_indices": columns, "Y_test_indptr": np.searchsorted(rows, np.arange(501))}
    quality = million_peers.judged(top.indices.numpy(), top.values.numpy(), world, data, labels.counts, 500)
    assert [quality[f"true@{k}"] for k in (1, 5, 20)] == [1, 1, 1]
    assert quality["off"] == pytest.approx(0, abs=1e-6)
    worse = million_peers.judged(top.indices.flip(1).numpy(), top.values.numpy(), world, data, labels.counts, 500)
    assert worse["true@1"] < 0.1
    assert worse["true@20"] == 1
    assert worse["off"] > 0.05
