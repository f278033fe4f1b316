"""Image files to uint8 tensors: the rules of decoding, the cache, and what a bad image does."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Subset

import steelyard.data.dataset as dataset_module
from steelyard.data.dataset import ArrayDataset, ImageDataset
from steelyard.data.files import DataError
from steelyard.data.images import BadImage, decode
from steelyard.data.subset import Subset as Some
from steelyard.data.subset import skipped_at, skipped_sentence
from steelyard.labels import UNKNOWN, Labels

RNG = np.random.default_rng(7)


def noise(height: int, width: int, channels: int = 3) -> NDArray[np.uint8]:
    shape = (height, width, channels) if channels > 1 else (height, width)
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def hwc(image: NDArray[np.uint8]) -> NDArray[Any]:
    return image.transpose(1, 2, 0).astype(int)


def save(path: Path, image: Image.Image, **options: Any) -> Path:
    image.save(path, **options)
    return path


def labels_of(n: int) -> Labels:
    return Labels(RNG.integers(-1, 2, (n, 4)).astype(np.int8))


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    return [save(tmp_path / f"{i}.png", Image.fromarray(noise(9 + i, 12))) for i in range(10)]


# --- the rules of decoding -------------------------------------------------------------------------------------------


def test_rgb_and_grey_are_taken_as_they_are(tmp_path: Path) -> None:
    rgb, grey = noise(5, 7), noise(5, 7, 1)
    image = decode(save(tmp_path / "a.png", Image.fromarray(rgb)))
    assert image.dtype == np.uint8
    assert image.flags.c_contiguous
    assert (hwc(image) == rgb).all()
    assert (hwc(decode(save(tmp_path / "b.png", Image.fromarray(grey)))) == grey[:, :, None]).all()
    bits = Image.fromarray(grey).convert("1", dither=Image.Dither.NONE)
    assert set(np.unique(decode(save(tmp_path / "c.png", bits)))) == {0, 255}


def test_one_pixel(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", Image.fromarray(np.full((1, 1, 3), (10, 20, 30), np.uint8)))
    assert decode(path).reshape(3).tolist() == [10, 20, 30]
    assert (decode(path, (4, 6)) == np.array([10, 20, 30]).reshape(3, 1, 1)).all()


def test_palette(tmp_path: Path) -> None:
    image = Image.fromarray(np.array([[0, 1], [1, 0]], np.uint8)).convert("P")
    image.putpalette([200, 10, 20, 30, 220, 40])
    expected = np.array([[[200, 10, 20], [30, 220, 40]], [[30, 220, 40], [200, 10, 20]]])
    assert (hwc(decode(save(tmp_path / "a.png", image))) == expected).all()
    expected[[0, 1], [0, 1]] = 255  # colour 0 is transparent now
    assert (hwc(decode(save(tmp_path / "b.png", image, transparency=0))) == expected).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_is_laid_over_white(tmp_path: Path, mode: str) -> None:
    raw = noise(6, 8, len(mode))
    raw[0, 0, -1], raw[0, 1, -1] = 0, 255
    alpha = raw[..., -1:] / 255
    expected = alpha * raw[..., :-1] + (1 - alpha) * 255
    found = hwc(decode(save(tmp_path / "a.png", Image.fromarray(raw))))
    assert np.abs(found - expected).max() <= 1
    assert (found[0, 0] == 255).all()


def test_cmyk(tmp_path: Path) -> None:
    raw = np.zeros((16, 16, 4), np.uint8)
    raw[:, :8, 0], raw[:, 8:, 3] = 255, 255  # cyan beside black
    found = hwc(decode(save(tmp_path / "a.jpg", Image.fromarray(raw, mode="CMYK"), quality=100)))
    assert np.abs(found[:, :7] - [0, 255, 255]).max() < 12
    assert found[:, 9:].max() < 12


def test_sixteen_bit_and_float(tmp_path: Path) -> None:
    deep = np.array([[0, 257, 32768], [65535, 128, 129]], np.uint16)
    expected = np.rint(deep / 65535 * 255)[:, :, None]
    assert (hwc(decode(save(tmp_path / "a.png", Image.fromarray(deep)))) == expected).all()
    assert (hwc(decode(save(tmp_path / "b.tif", Image.fromarray(deep.astype(np.int32))))) == expected).all()
    unit = np.array([[0.0, 0.5, 1.0]], np.float32)
    assert hwc(decode(save(tmp_path / "c.tif", Image.fromarray(unit))))[0, :, 0].tolist() == [0, 128, 255]
    with pytest.raises(BadImage, match=r"d\.tif.*beyond 0\.\.1.*8 bits"):
        decode(save(tmp_path / "d.tif", Image.fromarray(unit * 2)))


def test_of_an_animation_the_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (5, 4), colour) for colour in ("red", "blue")]
    path = save(tmp_path / "a.gif", frames[0], save_all=True, append_images=frames[1:])
    assert (hwc(decode(path)) == [255, 0, 0]).all()


ORIENTED = [(kind, o) for kind in ("png", "tif", "jpg", "webp") for o in range(1, 9)]


@pytest.mark.parametrize(("kind", "orientation"), ORIENTED)
def test_exif_orientation(tmp_path: Path, kind: str, orientation: int) -> None:
    raw = np.kron(noise(4, 3), np.ones((8, 8, 1), np.uint8))
    exif = Image.Exif()
    exif[0x0112] = orientation
    lossless = {"webp": {"lossless": True}, "jpg": {"quality": 95}}.get(kind, {})
    path = save(tmp_path / f"a.{kind}", Image.fromarray(raw), exif=exif, **lossless)
    with Image.open(path) as image:
        upright = ImageOps.exif_transpose(image).convert("RGB")
    assert (hwc(decode(path)) == np.asarray(upright)).all()
    box = (3.0, 5.0, 17.0, 22.0)
    assert (hwc(decode(path, box=box)) == np.asarray(upright.crop((3, 5, 17, 22)))).all()
    expected = np.asarray(upright.resize((10, 6), Image.Resampling.BILINEAR, box=box)).astype(int)
    assert np.abs(hwc(decode(path, (6, 10), box)) - expected).max() <= 2


def test_a_broken_exif_block_is_no_reason_to_refuse(tmp_path: Path) -> None:
    path = save(tmp_path / "a.jpg", Image.fromarray(noise(8, 8)), exif=b"Exif\0\0II*\0\xff\xff\xff\x7f")
    assert decode(path).shape == (3, 8, 8)


@pytest.mark.parametrize("orientation", [1, 2, 3, 6, 7])
@pytest.mark.parametrize("box", [None, (401.0, 205.0, 900.0, 801.0)])
def test_large_jpeg_is_decoded_small_yet_the_same(tmp_path: Path, orientation: int, box: Any) -> None:
    y, x = np.mgrid[:1203, :1605]
    raw = np.stack([x / 1604, y / 1202, (np.sin(x / 90) * np.cos(y / 70) + 1) / 2], 2) * 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(tmp_path / "a.jpg", Image.fromarray(raw.astype(np.uint8)), exif=exif, quality=95)
    with Image.open(path) as image:
        upright = ImageOps.exif_transpose(image)
    expected = np.asarray(upright.resize((60, 48), Image.Resampling.BILINEAR, box=box)).astype(int)
    assert np.abs(hwc(decode(path, (48, 60), box)) - expected).max() <= 3


def test_large_jpeg_is_not_decoded_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "a.jpg", Image.fromarray(noise(640, 960)))
    seen = []
    load = Image.Image.resize

    def spy(image: Image.Image, *args: Any, **kwargs: Any) -> Image.Image:
        seen.append(image.size)
        return load(image, *args, **kwargs)

    monkeypatch.setattr(Image.Image, "resize", spy)
    decode(path, (80, 80))
    decode(path, (80, 80), (0.0, 0.0, 480.0, 320.0))
    decode(path, (80, 80), (0.0, 0.0, 160.0, 160.0))
    assert seen == [(240, 160), (480, 320), (960, 640)]  # at least twice the size that is wanted of the part wanted


# --- bad images ------------------------------------------------------------------------------------------------------


def huge_png() -> bytes:
    """The head of an image of 10¹⁰ pixels."""
    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", len(header)) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))


def make_bad(kind: str, folder: Path) -> Path:
    path = folder / f"{kind}.jpg"
    jpeg = save(folder / "whole.jpg", Image.fromarray(noise(64, 64))).read_bytes()
    png = save(folder / "whole.png", Image.linear_gradient("L").convert("RGB")).read_bytes()
    contents = {
        "text": b"this is no image\n" * 50,
        "empty": b"",
        "cut off jpeg": jpeg[: len(jpeg) // 2],
        "cut off png": png[: len(png) // 2],
        "damaged png": png[:60] + b"\xff" * 40 + png[100:],
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n",
        "bomb": huge_png(),
    }
    if kind == "folder":
        path.mkdir()
    elif kind in contents:
        path.write_bytes(contents[kind])
    return path  # "missing" is not made


BAD = ["text", "empty", "cut off jpeg", "cut off png", "damaged png", "folder", "postscript", "bomb", "missing"]


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("size", [None, (16, 16)])
def test_bad_image_is_one_line_with_its_path(tmp_path: Path, kind: str, size: Any, recwarn: Any) -> None:
    path = make_bad(kind, tmp_path)
    with pytest.raises(BadImage) as caught:
        decode(path, size)
    assert isinstance(caught.value, DataError)
    assert str(caught.value).startswith(f"{path} ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) > len(str(path)) + 20
    assert not recwarn.list


def test_bomb_guard_is_pillows_limit_without_its_grace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert decode(save(tmp_path / "a.png", Image.new("RGB", (10, 10)))).shape == (3, 10, 10)
    for side in (11, 40):  # Pillow itself only warns of the first
        with pytest.raises(BadImage, match=r"more than 100 pixels.*MAX_IMAGE_PIXELS"):
            decode(save(tmp_path / "b.png", Image.new("RGB", (side, 10))))


def test_trouble_of_the_machine_is_not_a_bad_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "a.png", Image.new("RGB", (2, 2)))

    def too_many(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "open", too_many)
    with pytest.raises(OSError, match="Too many open files"):
        decode(path)


@pytest.mark.parametrize("box", [(20.0, 0.0, 30.0, 5.0), (-5.0, 0.0, 0.0, 5.0), (0.0, 12.0, 5.0, 15.0)])
def test_box_outside_the_image(tmp_path: Path, box: Any) -> None:
    path = save(tmp_path / "a.png", Image.new("RGB", (20, 12)))
    with pytest.raises(BadImage, match=r"box .* outside the 20 × 12 pixels"):
        decode(path, box=box)


def test_box_is_clipped(tmp_path: Path) -> None:
    raw = noise(12, 20)
    path = save(tmp_path / "a.png", Image.fromarray(raw))
    assert (hwc(decode(path, box=(-3.0, 5.0, 6.0, 99.0))) == raw[5:, :6]).all()


# --- data sets -------------------------------------------------------------------------------------------------------


def test_array_dataset() -> None:
    labels = labels_of(6)
    features = RNG.normal(size=(6, 3))
    data = ArrayDataset(features, labels)
    assert len(data) == 6
    x, y, i = data[-2]
    assert (x.dtype, i) == (torch.float32, 4)
    assert torch.equal(x, torch.from_numpy(features[4].astype(np.float32)))
    assert y.tolist() == labels.values[4].tolist()
    images = RNG.integers(0, 256, (6, 5, 4), dtype=np.uint8)
    assert torch.equal(ArrayDataset(images, labels)[2][0], torch.from_numpy(images[2:3]))
    assert ArrayDataset(images[:, None].repeat(3, 1), labels)[0][0].shape == (3, 5, 4)
    assert ArrayDataset(images[:, 0], labels)[0][0].dtype == torch.float32  # (N, D) of bytes are features
    batch = next(iter(DataLoader(data, 4)))
    assert [tuple(part.shape) for part in batch] == [(4, 3), (4, 4), (4,)]
    with pytest.raises(IndexError):
        data[6]
    with pytest.raises(ValueError, match=r"5 rows.*6 items"):
        ArrayDataset(features[:5], labels)
    with pytest.raises(ValueError, match="give numbers"):
        ArrayDataset(np.array([["a"]] * 6), labels)


def test_image_dataset_gives_image_target_index(photos: list[Path]) -> None:
    labels = labels_of(10)
    data = ImageDataset(photos, labels, (8, 6))
    x, y, i = data[-1]
    assert (x.dtype, tuple(x.shape), i) == (torch.uint8, (3, 8, 6), 9)
    assert np.array_equal(x.numpy(), decode(photos[9], (8, 6)))
    assert y.tolist() == labels.values[9].tolist()
    assert data.paths == [str(path) for path in photos]
    assert tuple(ImageDataset(photos, labels)[3][0].shape) == (3, 12, 12)
    assert tuple(ImageDataset(photos, labels, 5)[3][0].shape) == (3, 5, 5)
    images, targets, index = next(iter(DataLoader(Subset(data, [4, 2, 4]), 3)))
    assert index.tolist() == [4, 2, 4]
    assert np.array_equal(images[1].numpy(), decode(photos[2], (8, 6)))
    assert targets.tolist() == labels.rows([4, 2, 4]).tolist()


def test_boxes(photos: list[Path]) -> None:
    boxes = np.array([(1, 2, 9, 8)] * 10)
    x = ImageDataset(photos, labels_of(10), (4, 4), boxes=boxes)[5][0]
    assert np.array_equal(x.numpy(), decode(photos[5], (4, 4), (1, 2, 9, 8)))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"labels": Labels(np.zeros((3, 2)))}, "paths has 10 entries, but labels has 3"),
        ({"paths": "photos/pic"}, "paths is the single string 'photos/pic'"),
        ({"on_bad_image": "drop"}, "on_bad_image is 'drop'"),
        ({"cache": "somewhere"}, "cache is given without size"),
        ({"size": 0}, "size is 0"),
        ({"size": (4, -1)}, "size is"),
        ({"boxes": np.zeros((3, 4))}, r"boxes has shape \(3, 4\)"),
        ({"boxes": np.array([(0, 0, 1, 1)] * 9 + [(5, 0, 5, 1)])}, r"boxes\[9\]"),
        ({"boxes": np.array([(0, 0, 1, np.nan)] * 10)}, r"boxes\[0\]"),
    ],
)
def test_arguments_are_checked(photos: list[Path], wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ImageDataset(**{"paths": photos, "labels": Labels(np.zeros((10, 2))), **wrong})


def test_skipped_images_are_told_in_a_sentence(photos: list[Path]) -> None:
    data = ImageDataset(photos, labels_of(10), (4, 4), "skip")
    part, other = Some(data, [9, 7, 3]), Some(data, [1, 2])
    assert skipped_sentence(data, skipped_at(data)) == ""
    spoil(photos)
    for i in (3, 7, 1):
        data[i]
    assert skipped_at(data).tolist() == [3, 7]
    assert skipped_at(part).tolist() == [1, 2]
    assert skipped_at(other).tolist() == []
    kinds = "an image of a kind that is read"
    said = skipped_sentence(data, skipped_at(data))
    assert said.startswith(f"2 images could not be read and were left out: first {photos[3]} (is not {kinds}")
    assert skipped_sentence(part, skipped_at(part)) == (
        f"2 images could not be read and were left out: first {photos[7]} "
        "(cannot be decoded: No such file or directory)"
    )
    one = skipped_sentence(part, np.array([1]))
    assert one.startswith(f"1 image could not be read and was left out: {photos[7]} (")
    assert skipped_sentence(part, np.array([1]), 1200).startswith("1,200 images could not be read and were left out")
    assert skipped_sentence(ArrayDataset(np.zeros((2, 1)), labels_of(2)), np.array([1])) == ""


def spoil(photos: list[Path]) -> None:
    photos[3].write_text("no image")
    photos[7].unlink()


@pytest.mark.parametrize("cached", [False, True])
def test_skip_keeps_the_batch_whole_and_counts(photos: list[Path], tmp_path: Path, cached: bool) -> None:
    spoil(photos)
    labels = Labels(np.ones((10, 4), np.int8))
    data = ImageDataset(photos, labels, 6, on_bad_image="skip", cache=tmp_path / "cache" if cached else None)
    assert data.skipped.tolist() == []
    for _ in range(2):
        for images, targets, index in DataLoader(data, 4, num_workers=2, multiprocessing_context="fork"):
            assert images.shape[1:] == (3, 6, 6)
            for image, target, i in zip(images, targets, index.tolist(), strict=True):
                bad = i in (3, 7)
                assert (target == (UNKNOWN if bad else 1)).all()
                assert bool(image.any()) is not bad
    assert data.skipped.tolist() == [3, 7]
    assert (labels.values == 1).all()


def test_error_is_the_default(photos: list[Path]) -> None:
    spoil(photos)
    data = ImageDataset(photos, labels_of(10), 6)
    assert data[0][0].any()
    for i in (3, 7):
        with pytest.raises(BadImage, match=rf"{i}\.png .*: fix or remove it.*on_bad_image.*--skip-bad") as caught:
            data[i]
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match=r"3\.png"):
        list(DataLoader(data, 4, num_workers=1, multiprocessing_context="fork"))


def test_spawned_workers(photos: list[Path], tmp_path: Path) -> None:
    spoil(photos)
    data = ImageDataset(photos, labels_of(10), 6, on_bad_image="skip", cache=tmp_path / "cache")
    loader = DataLoader(data, 5, num_workers=1, multiprocessing_context="spawn")
    images = torch.cat([batch[0] for batch in loader])
    assert np.array_equal(images[2].numpy(), decode(photos[2], (6, 6)))
    assert data.skipped.tolist() == [3, 7]


def test_on_real_photographs(shared_data: Path, tmp_path: Path) -> None:
    paths = sorted((shared_data / "VOCdevkit/VOC2012/JPEGImages").glob("*.jpg"))[::200]
    data = ImageDataset(paths, labels_of(len(paths)), 112, cache=tmp_path)
    for _ in range(2):
        images = torch.cat([batch[0] for batch in DataLoader(data, 16)])
        for image, path in zip(images, paths, strict=True):
            with Image.open(path) as file:
                expected = np.asarray(file.convert("RGB").resize((112, 112), Image.Resampling.BILINEAR))
            assert np.array_equal(image.permute(1, 2, 0).numpy(), expected)


# --- the cache -------------------------------------------------------------------------------------------------------


def refuse_to_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise AssertionError("decoded though it is in the cache")

    monkeypatch.setattr(dataset_module, "decode", refuse)


def everything(data: ImageDataset) -> list[NDArray[np.uint8]]:
    return [image.numpy() for image, _, _ in data.__getitems__(range(len(data)))]


def expected_of(photos: list[Path], side: int) -> list[NDArray[np.uint8]]:
    return [decode(path, (side, side)) for path in photos]


def same(a: list[NDArray[np.uint8]], b: list[NDArray[np.uint8]]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_second_epoch_and_second_process_read_the_cache(
    photos: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, expected = ImageDataset(photos, labels_of(10), 8, cache=tmp_path / "cache"), expected_of(photos, 8)
    assert same(everything(data), expected)
    refuse_to_decode(monkeypatch)
    assert same(everything(data), expected)
    assert same(everything(data), expected)
    assert same(everything(ImageDataset(photos, labels_of(10), 8, cache=tmp_path / "cache")), expected)
    assert same(everything(pickle.loads(pickle.dumps(data))), expected)
    with pytest.raises(AssertionError, match="decoded though"):
        everything(ImageDataset(photos[::-1], labels_of(10), 8, cache=tmp_path / "cache"))


def test_a_changed_file_is_decoded_again(photos: list[Path], tmp_path: Path) -> None:
    everything(ImageDataset(photos, labels_of(10), 8, cache=tmp_path / "cache"))
    save(photos[4], Image.fromarray(noise(13, 12)))
    os.utime(photos[6], ns=(1, 1))
    assert same(everything(ImageDataset(photos, labels_of(10), 8, cache=tmp_path / "cache")), expected_of(photos, 8))


def test_a_bad_image_that_was_mended_is_decoded(photos: list[Path], tmp_path: Path) -> None:
    good = photos[3].read_bytes()
    spoil(photos)
    arguments: dict[str, Any] = {"size": 8, "on_bad_image": "skip", "cache": tmp_path / "cache"}
    assert not everything(ImageDataset(photos, labels_of(10), **arguments))[3].any()
    photos[3].write_bytes(good)
    data = ImageDataset(photos, labels_of(10), **arguments)
    assert np.array_equal(everything(data)[3], decode(photos[3], (8, 8)))
    assert data.skipped.tolist() == [7]
    with pytest.raises(BadImage, match=r"7\.png"):
        ImageDataset(photos, labels_of(10), 8, cache=tmp_path / "cache")[7]


def files_of(cache: Path) -> Path:
    (folder,) = cache.iterdir()
    return folder


@pytest.mark.parametrize("what", ["pixels", "zeros", "pixels without record", "record without pixels"])
def test_a_writer_killed_half_way_never_gives_a_wrong_image(photos: list[Path], tmp_path: Path, what: str) -> None:
    first = ImageDataset(photos, labels_of(10), 8, cache=tmp_path / "cache")
    step = 3 * 8 * 8
    if what == "pixels without record":
        with (files_of(tmp_path / "cache") / "images.u8").open("r+b") as file:
            file.seek(5 * step)
            file.write(b"\x07" * (step // 2))
    else:
        everything(first)
        pixels = files_of(tmp_path / "cache") / "images.u8"
        content = bytearray(pixels.read_bytes())
        start = 5 * step
        if what == "record without pixels":  # the record reached the disk, the pixels of an older file are still there
            content[start : start + step] = content[:step]
        else:
            content[start + step // 2 : start + step] = (b"\x07" if what == "pixels" else b"\0") * (step // 2)
        with pixels.open("r+b") as file:
            file.write(content)
    data = ImageDataset(photos, labels_of(10), 8, cache=tmp_path / "cache")
    for _ in range(2):
        assert same(everything(data), expected_of(photos, 8))


@pytest.mark.parametrize("what", ["header", "no header", "short pixels", "short records"])
def test_a_cache_that_is_not_sound_is_made_anew(photos: list[Path], tmp_path: Path, what: str) -> None:
    everything(ImageDataset(photos, labels_of(10), 8, cache=tmp_path / "cache"))
    folder = files_of(tmp_path / "cache")
    if what == "header":
        (folder / "header.json").write_text('{"rules": 0')
    elif what == "no header":
        (folder / "header.json").unlink()
    else:
        name = "images.u8" if what == "short pixels" else "records"
        (folder / name).write_bytes((folder / name).read_bytes()[:-1])
    data = ImageDataset(photos, labels_of(10), 8, cache=tmp_path / "cache")
    assert same(everything(data), expected_of(photos, 8))
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [folder.name]


def test_one_folder_serves_several_lists_and_sizes(
    photos: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    boxes = np.array([(0, 0, 5, 5)] * 10)

    def all_of_them() -> list[ImageDataset]:
        return [
            ImageDataset(photos[:6], labels_of(6), 8, cache=cache),
            ImageDataset(photos[6:], labels_of(4), 8, cache=cache),
            ImageDataset(photos, labels_of(10), 6, cache=cache),
            ImageDataset(photos, labels_of(10), 6, cache=cache, boxes=boxes),
        ]

    before = [everything(data) for data in all_of_them()]
    assert not same(before[2], before[3])
    refuse_to_decode(monkeypatch)
    for data, images in zip(all_of_them(), before, strict=True):
        assert same(everything(data), images)


def fill(photos: list[Path], cache: Path, order: list[int]) -> None:
    data = ImageDataset(photos, Labels(np.zeros((len(photos), 4))), 8, cache=cache)
    for i in order:
        if not np.array_equal(data[i][0].numpy(), decode(photos[i], (8, 8))):
            os._exit(1)


def test_two_processes_fill_one_cache(photos: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = multiprocessing.get_context("fork")
    orders = [[int(i) for _ in range(5) for i in RNG.permutation(10)] for _ in range(3)]
    workers = [context.Process(target=fill, args=(photos, tmp_path / "cache", order)) for order in orders]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert len(list((tmp_path / "cache").iterdir())) == 1
    refuse_to_decode(monkeypatch)
    data = ImageDataset(photos, labels_of(10), 8, cache=tmp_path / "cache")
    images = everything(data)
    monkeypatch.undo()
    assert same(images, expected_of(photos, 8))


def test_a_cache_that_cannot_be_written_says_so(photos: list[Path], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cache .*file cannot be created"):
        ImageDataset(photos, labels_of(10), 8, cache=tmp_path / "file")
    data = ImageDataset(photos, labels_of(10), 8, cache=tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(DataError, match=r"cache .* cannot be written to"):
        data[0]
