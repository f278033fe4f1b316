"""Features of a frozen network: computed in parts, resumed, and joined with the labels that are published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from steelyard.data.files import DataError
from steelyard_papers import frozen_features, pal
from steelyard_papers.frozen_features import COCO_FEATURES, CUB_FEATURES, drawn_order, read_features


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Seven images of COCO's names, the list of eight, of which one is missing."""
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for i in range(7):
        Image.fromarray(rng.integers(0, 256, (20, 30, 3), np.uint8)).save(tmp_path / "images" / f"{i:04d}.png")
    np.savez(tmp_path / "list.npz", ids=np.arange(8))
    return tmp_path


class Mean:
    """A network whose features are the mean and the first pixel of an image."""

    def __init__(self) -> None:
        self.calls = 0

    def parameters(self):  # type: ignore[no-untyped-def]
        import torch

        return iter([torch.zeros(1)])

    def features(self, x):  # type: ignore[no-untyped-def]
        import torch

        self.calls += len(x)
        return torch.stack([x.float().mean((1, 2, 3)), x[:, 0, 0, 0].float()], 1)


def typed(home: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    words = [str(home / "out"), "--weights", "w", "--images", str(home / "images"), "--ids", str(home / "list.npz")]
    monkeypatch.setattr("sys.argv", ["", *words, "--file", "{:04d}.png", "--part", "3", "--batch", "2", *more])
    frozen_features.main()


def test_parts_are_resumed_and_cover_every_image_once(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Mean()
    monkeypatch.setattr(frozen_features, "backbone", lambda *_: model)
    typed(pictures, monkeypatch, "--parts", "0:1")
    assert len(list((pictures / "out").iterdir())) == 1
    typed(pictures, monkeypatch)
    assert model.calls == 7, "no image twice, and the part that was there is not computed again"
    found = read_features(pictures / "out")
    assert sorted(found.ids.tolist()) == list(range(7))
    assert found.ids.tolist() == [i for i in drawn_order(8).tolist() if i < 7], "in the drawn order"
    assert found.x.dtype == np.float16
    typed(pictures, monkeypatch)
    assert model.calls == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda home: (home / "a").mkdir(), "holds no .npz file: run python -m steelyard_papers.frozen_features"),
        (lambda home: _parts(home, X=np.zeros((2, 3))), "no arrays ids and X"),
        (lambda home: _parts(home, ids=np.arange(3), X=np.zeros((2, 3))), "of one length"),
        (lambda home: _parts(home, 2, ids=np.arange(2), X=np.zeros((2, 3))), "holds some items twice"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(tmp_path: Path, change, message: str) -> None:  # type: ignore[no-untyped-def]
    change(tmp_path)
    with pytest.raises(DataError, match=message):
        read_features(tmp_path / "a")


def _parts(home: Path, n: int = 1, **arrays: np.ndarray) -> None:
    (home / "a").mkdir()
    for i in range(n):
        np.savez(home / "a" / f"{i}.npz", **arrays)


def test_features_are_joined_with_labels_by_id(tmp_path: Path) -> None:
    COCO_FEATURES.fixture(tmp_path)
    part = tmp_path / "features" / "coco2014" / "0.npz"
    with np.load(part) as arrays:
        ids, x = arrays["ids"], arrays["X"]
    kept = np.random.default_rng(1).permutation(len(ids))[:100]  # in another order, and not all of them
    np.savez(part, ids=ids[kept], X=x[kept])
    found = COCO_FEATURES.open(tmp_path)
    with np.load(tmp_path / "labels" / "coco2014_train.npz") as arrays:
        values = arrays["Y"]
    assert len(found.train) == 100
    assert "100 of 160 (drawn by a seed)" in found.notes[0]
    for i in (0, 7, 99):
        key = int(found.train.labels.ids[i])
        np.testing.assert_array_equal(found.train.inputs[i], x[key].astype(np.float32))
        np.testing.assert_array_equal(found.train.labels.values[i], values[key])


def test_published_lists_say_which_positives_are_known(tmp_path: Path) -> None:
    for source in (COCO_FEATURES, CUB_FEATURES):
        source.fixture(tmp_path)
        whole = source.open(tmp_path)
        single = pal.thinned(whole, "SPL", 5, source, tmp_path).train.labels.values
        assert set(np.unique(single)) == {-1, 1}
        np.testing.assert_array_equal((single == 1).sum(1), 1)
        assert (whole.test.labels.values != -1).all()
    assert pal.settings_on(COCO_FEATURES, ["PPL 0.3"]) == ["PPL 0.3", "PPL 0.75", "PPL 0.4"]
    assert pal.settings_on(COCO_FEATURES, ["FAL"]) == ["FAL"]
    assert pal.settings_on(CUB_FEATURES, ["FAL", "SPL"]) == ["SPL"]
    assert [source.name for source in pal.there(tmp_path)] == ["COCO 2014", "CUB"]


def test_the_real_lists_keep_what_their_names_say(shared_data: Path) -> None:
    with np.load(shared_data / "labels" / "coco2014_train.npz") as arrays:
        whole = arrays["Y"].sum()
        shares = [arrays[name].sum() / whole for name in ("Y_075left", "Y_04left")]
        assert shares == pytest.approx([0.75, 0.4], abs=0.005)
        assert (arrays["Y_singlelabel"].sum(1) == 1).all()
