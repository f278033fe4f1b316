"""Averages over head, medium, tail and the rarest labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import steelyard.metrics as m


def test_groups_of_the_published_long_tails(shared_data: Path) -> None:
    for file, sizes in (("voc_mlt.npz", [6, 6, 8]), ("coco_mlt.npz", [22, 33, 25])):
        stored = np.load(shared_data / "labels" / file)
        counts = stored["class_freq"]
        assert [len(g) for g in m.label_groups(counts).values()] == sizes


def test_means() -> None:
    values = torch.tensor([0.1, 0.2, float("nan"), 0.4])
    counts = np.array([100, 99, 20, 19])
    by_group = m.mean_by_group(values, counts)
    assert by_group["head"] == pytest.approx((0.1, 1, 0))
    assert by_group["medium"] == pytest.approx((0.2, 1, 1))
    assert by_group["tail"] == pytest.approx((0.4, 1, 0))
    assert m.mean_by_group(values.requires_grad_(), counts) == by_group
    assert m.mean_of_rarest(values, counts, 2) == pytest.approx((0.4, 1, 1))
    assert m.mean_of_rarest(values, counts, 4) == pytest.approx(m.mean_defined(values))
    assert m.mean_of_rarest(np.array([1.0, 2.0, 3.0]), np.array([5, 5, 5]), 1).value == 1


def test_groups_at_their_edges() -> None:
    counts = np.array([0, 5, 6], np.uint8)
    assert [g.tolist() for g in m.label_groups(counts, head=5, tail=5).values()] == [[1, 2], [], [0]]
    assert [g.tolist() for g in m.label_groups(counts, head=0, tail=0).values()] == [[0, 1, 2], [], []]
    assert m.rarest_labels(counts, 1).tolist() == [0]
    assert m.mean_defined(np.array([[np.nan, 1.0], [3.0, 5.0]])) == (3.0, 3, 1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: m.mean_of_rarest(np.zeros(3), np.zeros(3), 4), "k is 4: there are 3 labels"),
        (lambda: m.mean_by_group(np.zeros(3), np.zeros(2)), r"values has shape \(3,\), but counts has \(2,\)"),
        (lambda: m.label_groups(np.array([1, -1])), r"counts\[1\] is -1"),
        (lambda: m.label_groups(np.zeros((2, 2))), r"counts has shape \(2, 2\)"),
        (lambda: m.label_groups(np.zeros(2), head=5, tail=10), "head is 5 and tail is 10"),
        (lambda: m.label_groups(np.zeros(2), head=5, tail=-1), "head is 5 and tail is -1"),
        (lambda: m.rarest_labels(np.zeros(3), 0), "k is 0: there are 3 labels"),
        (lambda: m.label_groups(np.array([np.inf, 1])), r"counts\[0\] is inf"),
        (lambda: m.label_groups(np.array([1, np.nan])), r"counts\[1\] is nan"),
        (lambda: m.label_groups(np.array(["a"])), "dtype <U1"),
        (lambda: m.label_groups(np.array([True])), "dtype bool"),
    ],
)
def test_mistakes(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()  # type: ignore[operator]
