"""Some items of a data set, as a data set."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader

from steelyard.data.dataset import ArrayDataset, ImageDataset
from steelyard.data.readers.vqa import Questions
from steelyard.data.subset import Subset
from steelyard.labels import Labels


def _arrays(n: int) -> ArrayDataset:
    labels = Labels(np.arange(3 * n).reshape(n, 3) % 3 - 1, ["a", "b", "c"], [f"item {i}" for i in range(n)])
    return ArrayDataset(np.arange(2 * n).reshape(n, 2), labels)


@given(st.permutations(range(12)), st.integers(1, 12), st.data())
def test_an_item_of_a_subset_is_the_item_of_the_data_numbered_anew(
    order: list[int], k: int, choose: st.DataObject
) -> None:
    data, chosen = _arrays(12), order[:k]
    part = Subset(data, chosen)
    assert len(part) == k == len(part.labels)
    assert part.labels.names == data.labels.names
    assert list(part.labels.ids) == [f"item {i}" for i in chosen]
    wanted = choose.draw(st.lists(st.integers(-k, k - 1), max_size=5))
    for i, (x, y, place) in zip(wanted, part.__getitems__(wanted), strict=True):
        theirs = data[chosen[i]]
        assert place == i % k
        assert torch.equal(x, theirs[0])
        assert torch.equal(y, theirs[1])
        assert np.array_equal(y.numpy(), part.labels.values[place])
    assert np.array_equal(part.inputs, data.inputs[chosen])


@given(st.permutations(range(10)), st.permutations(range(6)))
def test_a_subset_of_a_subset_holds_the_data_itself(outer: list[int], inner: list[int]) -> None:
    data = _arrays(10)
    nested = Subset(Subset(data, outer[:6]), inner[:4])
    assert nested.data is data
    assert nested.index.tolist() == [outer[i] for i in inner[:4]]
    assert [int(nested[i][0][0]) for i in range(4)] == [2 * outer[i] for i in inner[:4]]
    assert [nested[i][2] for i in range(4)] == [0, 1, 2, 3]
    assert list(nested.labels.ids) == [f"item {outer[i]}" for i in inner[:4]]


def test_images_keep_their_paths_and_a_loader_takes_them(tmp_path: Path) -> None:
    for i in range(4):
        Image.new("RGB", (5, 5), (10 * i, 0, 0)).save(tmp_path / f"{i}.png")
    data = ImageDataset([tmp_path / f"{i}.png" for i in range(4)], Labels(np.eye(4, dtype=np.int8)), size=3)
    part = Subset(data, np.array([3, 1]))
    assert part.paths == [str(tmp_path / "3.png"), str(tmp_path / "1.png")]
    with pytest.raises(AttributeError, match="inputs"):
        _ = part.inputs
    (images, targets, index) = next(iter(DataLoader(part, batch_size=2)))
    assert images[:, 0, 0, 0].tolist() == [30, 10]
    assert targets.argmax(1).tolist() == [3, 1]
    assert index.tolist() == [0, 1]


def test_data_without_paths_or_many_at_once_will_do() -> None:
    questions = Questions(["who", "what", "why"], np.array([7, 8, 9]), Labels([[0.5, 0], [0, 1], [1, 1]]))
    part = Subset(questions, [2, 0])
    assert part[0][0] == ("why", 9)
    assert part[1][0] == ("who", 7)
    assert part[1][1].tolist() == [0.5, 0]
    assert not hasattr(part, "paths")
    assert not hasattr(part, "inputs")


def test_a_subset_can_be_empty_is_frozen_and_goes_to_other_processes() -> None:
    part = Subset(_arrays(4), [])
    assert len(part) == 0
    assert part.__getitems__([]) == []
    index = np.array([1, 2])
    part = Subset(_arrays(4), index)
    index[0] = 3
    assert part.index.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        part.index[0] = 3
    again = pickle.loads(pickle.dumps(part))
    assert torch.equal(again[1][0], part[1][0])


@pytest.mark.parametrize(
    ("index", "says"),
    [([1, 1], "holds 1 twice"), ([4], r"index\[0\] is 4"), ([-1], "between 0 and 3"), ([0.5], "whole numbers")],
)
def test_what_is_no_choice_of_items_is_refused(index: list[float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Subset(_arrays(4), index)


def test_an_item_that_is_not_there() -> None:
    with pytest.raises(IndexError, match="index 2 is out of range for 2 items"):
        Subset(_arrays(4), [0, 1])[2]
