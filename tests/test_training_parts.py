"""The parts of training by themselves: images varied, batches, files, history, settings."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from steelyard._files import remove_partial, replacing, write_atomic
from steelyard.balance.philox import uniform
from steelyard.balance.samplers import Shuffled
from steelyard.data.dataset import ArrayDataset, as_inputs
from steelyard.data.subset import Subset
from steelyard.labels import Labels
from steelyard.training import group
from steelyard.training.augment import augment
from steelyard.training.batches import (
    Batches,
    Loaded,
    Resident,
    all_outputs,
    fits,
    make_batches,
    make_sampler,
    n_workers,
    ordered,
)
from steelyard.training.checkpoint import (
    History,
    load_tensors,
    module_tensors,
    optimizer_tensors,
    read_history,
    restore_optimizer,
    save_tensors,
)
from steelyard.training.settings import (
    AugmentSettings,
    OptimizerSettings,
    SamplerSettings,
    ScheduleSettings,
    TrainSettings,
)
from steelyard.training.step import pick_device, pick_precision
from training_jobs import F, Items, N, Net, arrays, features, seeded, table

CPU = torch.device("cpu")
STREAM = 0x4147 << 32  # of the draws that vary images, written again


def pictures(n: int, height: int = 9, width: int = 7, seed: int = 0) -> Tensor:
    """Images without a zero, so that pixels that came in can be told from the others."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 256, (n, 3, height, width), generator=generator, dtype=torch.uint8)


# images varied


def test_flipping() -> None:
    images, draws = pictures(4000, 2, 3), torch.arange(4000)
    assert augment(images, AugmentSettings(), 0, 1, draws) is images
    assert torch.equal(augment(images, AugmentSettings(flip=1.0), 0, 1, draws), images.flip(-1))
    out = augment(images, AugmentSettings(flip=0.3), 0, 1, draws)
    mirrored = (out == images.flip(-1)).flatten(1).all(1)
    untouched = (out == images).flatten(1).all(1)
    want = uniform(STREAM, 1, draws, 7)[:, 6] < 0.3
    assert torch.equal(mirrored & ~untouched, want & ~untouched)
    assert bool((mirrored | untouched).all())
    assert float(want.double().mean()) == pytest.approx(0.3, abs=5 * math.sqrt(0.21 / 4000))


@pytest.mark.parametrize("pad", [1, 4, 12])
def test_cropping_a_padded_image_shifts_it(pad: int) -> None:
    """Against numpy: pad with zeros, cut out at (top, left), both uniform on 0 … 2·pad; every shift comes."""
    n = 40 * (2 * pad + 1)
    images, draws = pictures(n), torch.arange(5, 5 + n)
    out = augment(images, AugmentSettings(pad_crop=pad), 9, 3, draws).numpy()
    u = uniform(9 ^ STREAM, 3, draws, 7).double().numpy()
    spots = set()
    for i in range(n):
        top, left = (math.floor(float(u[i, k]) * (2 * pad + 1)) for k in (4, 5))
        padded = np.pad(images[i].numpy(), ((0, 0), (pad, pad), (pad, pad)))
        assert (out[i] == padded[:, top : top + 9, left : left + 7]).all()
        spots |= {("top", top), ("left", left)}
    assert len(spots) == 2 * (2 * pad + 1)


def test_a_part_scaled_to_full_size() -> None:
    images, draws = pictures(200), torch.arange(200)
    whole = augment(images, AugmentSettings(resized_crop=1.0), 0, 1, draws)
    assert torch.equal(whole, images)  # all of the area is all of the image
    flat = torch.full_like(images, 77)
    assert torch.equal(augment(flat, AugmentSettings(resized_crop=0.1), 0, 1, draws), flat)
    out = augment(images, AugmentSettings(resized_crop=0.3), 0, 1, draws)
    assert out.dtype == torch.uint8
    assert out.shape == images.shape
    assert bool((out.amax((1, 2, 3)) <= images.amax((1, 2, 3))).all())
    assert bool((out.amin((1, 2, 3)) >= images.amin((1, 2, 3))).all())


def test_the_area_and_aspect_of_a_part() -> None:
    """Read from images of which one channel is x, another y, so that the corners of a part show."""
    n, size = 3000, 64
    ramp = torch.linspace(0, 1, size)
    images = torch.stack([ramp.expand(size, size), ramp[:, None].expand(size, size)]).expand(n, 2, size, size)
    out = augment(images, AugmentSettings(resized_crop=0.4), 1, 2, torch.arange(n))
    assert out.dtype == torch.float32  # floats stay floats
    inner = out[:, :, 8:-8, 8:-8]  # away from the border, where pixels are reflected
    stretch = (size - 1) / (size - 17)
    width = (inner[:, 0].amax((1, 2)) - inner[:, 0].amin((1, 2))) * stretch
    height = (inner[:, 1].amax((1, 2)) - inner[:, 1].amin((1, 2))) * stretch
    area, aspect = width * height, width / height
    assert 0.4 - 0.02 <= float(area.min()) <= 0.45
    assert 0.95 <= float(area.max()) <= 1.02
    assert float(area.mean()) == pytest.approx(0.7, abs=0.02)  # uniform
    assert 3 / 4 - 0.02 <= float(aspect.min()) <= 0.8
    assert 1.25 <= float(aspect.max()) <= 4 / 3 + 0.02
    assert abs(float(aspect.log().mean())) < 0.02
    centre = inner.mean((2, 3))
    assert float(centre.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(centre.std()) > 0.04


@given(st.integers(0, 2**63), st.integers(1, 1000), st.permutations(range(12)))
@settings(max_examples=20)
def test_an_image_is_varied_by_its_draw_alone(seed: int, epoch: int, order: list[int]) -> None:
    """In any order, in any company: a pure function of (seed, epoch, draw)."""
    images, wanted = pictures(12), AugmentSettings(flip=0.5, pad_crop=2, resized_crop=0.5)
    draws = torch.arange(100, 112)
    whole = augment(images, wanted, seed, epoch, draws)
    mixed = augment(images[order], wanted, seed, epoch, draws[order])
    assert torch.equal(mixed, whole[order])
    alone = augment(images[order[:1]], wanted, seed, epoch, draws[order[:1]])
    assert torch.equal(alone[0], whole[order[0]])
    assert torch.equal(images, pictures(12))
    other = augment(images, wanted, seed, epoch + 1, draws)
    assert not torch.equal(other, whole)


def test_an_item_drawn_twice_is_varied_twice() -> None:
    images = pictures(1).expand(50, -1, -1, -1)
    out = augment(images, AugmentSettings(pad_crop=3), 0, 1, torch.arange(50))
    assert len({image.numpy().tobytes() for image in out}) > 20


# batches


def samplers(labels: Labels, seed: int = 4) -> dict[str, Any]:
    return {
        kind: make_sampler(SamplerSettings(kind, visits=7, per_class=6), labels, seed)
        for kind in ("shuffle", "class_aware", "undersample")
    }


def kinds(data: ArrayDataset, kind: str, batch_size: int) -> list[Batches]:
    items = Items(torch.from_numpy(data.inputs), data.labels)
    return [
        Resident(data, samplers(data.labels)[kind], batch_size, CPU),
        Loaded(data, samplers(data.labels)[kind], batch_size, CPU, 0),
        Loaded(items, samplers(data.labels)[kind], batch_size, CPU, 0),
    ]


@pytest.mark.parametrize("kind", ["shuffle", "class_aware", "undersample"])
@pytest.mark.parametrize("batch_size", [1, 8, 100])
def test_batches_are_the_samplers_items(kind: str, batch_size: int) -> None:
    data = arrays(unknown=0.3)
    for epoch in (1, 2):
        sampler = samplers(data.labels)[kind]
        sampler.set_epoch(epoch)
        plan = list(sampler)
        for batches in kinds(data, kind, batch_size):
            steps = batches.start_epoch(epoch)
            found = list(batches)
            assert steps == len(found) == -(-len(plan) // batch_size)
            assert torch.cat([batch.index for batch in found]).tolist() == plan
            assert all(len(batch.index) == batch_size for batch in found[:-1])
            for batch in found:
                assert isinstance(batch.inputs, Tensor)
                assert torch.equal(batch.inputs, torch.from_numpy(data.inputs[batch.index.numpy()]))
                assert torch.equal(batch.targets, torch.from_numpy(data.labels.rows(batch.index.numpy())))


@pytest.mark.parametrize("kind", ["shuffle", "class_aware", "undersample"])
def test_an_epoch_taken_up_in_the_middle(kind: str) -> None:
    data = arrays()
    for batches in kinds(data, kind, 8):
        steps = batches.start_epoch(2)
        whole = [batch.index.tolist() for batch in batches]
        for step in (0, 1, steps - 1, steps):
            assert batches.start_epoch(2, step) == steps
            assert [batch.index.tolist() for batch in batches] == whole[step:]
        assert batches.start_epoch(3) >= 1
        assert [batch.index.tolist() for batch in batches] != whole


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_share_a_step_out(processes: int) -> None:
    """Together the shares of a step are the step of one process, and every item knows its place in the plan."""
    data, size = arrays(), 12
    one = Resident(data, samplers(data.labels)["shuffle"], size, CPU)
    one.start_epoch(1)
    whole = [batch.index.tolist() for batch in one]
    shares = []
    for rank in range(processes):
        sampler = make_sampler(SamplerSettings(), data.labels, 4)
        sampler.rank, sampler.num_replicas = rank, processes
        mine = Resident(data, sampler, size, CPU)
        assert mine.start_epoch(1) == len(whole)
        shares.append([(batch.index, mine.draws(i, len(batch.index), CPU)) for i, batch in enumerate(mine)])
    plan = [item for batch in whole for item in batch]
    for i, want in enumerate(whole):
        assert sorted(item for share in shares for item in share[i][0].tolist()) == sorted(want)
        for share in shares:
            items, draws = share[i]
            assert [plan[draw] for draw in draws.tolist()] == items.tolist()


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((20, 4), np.float64), ((20, 4), np.uint8), ((20, 5, 4), np.uint8), ((20, 3, 5, 4), np.uint8), ((20, 4), bool)],
)
def test_arrays_on_the_device_are_what_the_data_set_gives(shape: tuple[int, ...], dtype: Any) -> None:
    array = np.random.default_rng(0).integers(0, 2 if dtype is bool else 200, shape).astype(dtype)
    data = ArrayDataset(array, table(20))
    some = Subset(data, [3, 19, 4, 0, 7])
    for whole in (data, some):
        batches = Resident(whole, make_sampler(SamplerSettings(), whole.labels, 0), 4, CPU)
        batches.start_epoch(1)
        for batch in batches:
            for x, target, i in zip(batch.inputs, batch.targets, batch.index.tolist(), strict=True):
                want, want_target, want_index = whole[i]
                assert x.dtype == want.dtype
                assert torch.equal(x, want)
                assert torch.equal(target, want_target)
                assert want_index == i
    assert torch.from_numpy(as_inputs(array)).shape[0] == 20


def test_soft_labels_stay_soft() -> None:
    values = np.random.default_rng(0).random((10, 3)).astype(np.float32)
    data = ArrayDataset(features(10), Labels(values))
    for batches in (make_batches(data, make_sampler(SamplerSettings(), data.labels, 0), 10, CPU, 0),):
        batches.start_epoch(1)
        (batch,) = batches
        assert torch.equal(batch.targets, torch.from_numpy(values[batch.index.numpy()]))


def test_who_fetches() -> None:
    data = arrays()
    assert isinstance(make_batches(data, make_sampler(SamplerSettings(), data.labels, 0), 4, CPU, -1), Resident)
    items = Items(torch.zeros(N, F), data.labels)
    assert isinstance(make_batches(items, make_sampler(SamplerSettings(), data.labels, 0), 4, CPU, 0), Loaded)
    assert n_workers(-1, data) == 0
    assert n_workers(3, data) == 3
    assert 0 <= n_workers(-1, items) <= 8


# outputs


@pytest.mark.parametrize("workers", [0, 1])
def test_outputs_come_in_order_and_in_evaluation_mode(workers: int) -> None:
    model = torch.nn.Sequential(seeded(Net), torch.nn.Dropout(0.9)).train()
    data = arrays(23, unknown=0.2)
    logits, targets = all_outputs(model, data, 5, workers=workers)
    assert torch.equal(targets, torch.from_numpy(data.labels.values))
    torch.testing.assert_close(logits, model[0](torch.from_numpy(data.inputs)).detach())
    assert model.training
    assert not logits.requires_grad


def test_outputs_put_the_mode_back_after_a_mistake() -> None:
    model = seeded(Net).train()
    with pytest.raises(RuntimeError):
        all_outputs(model, ArrayDataset(np.zeros((4, F + 1), np.float32), table(4)), 2)
    assert model.training


# files


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_files_have_the_mode_the_umask_says(mask: int, tmp_path: Path) -> None:
    with umask(mask):
        write_atomic(tmp_path / "text", "ä")
        save_tensors(tmp_path / "tensors", {"a": torch.ones(3)}, {})
        (tmp_path / "plain").write_text("x")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("text", "tensors", "plain")}
    assert modes == {0o666 & ~mask}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["plain", "tensors", "text"]
    assert (tmp_path / "text").read_text(encoding="utf-8") == "ä"


def test_a_file_holds_the_old_or_the_new_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def fails() -> None:
        with replacing(path) as partial:
            partial.write_bytes(b"half of the ne")
            (partial.parent / "beside").write_bytes(b"what a writer may leave")
            assert path.read_bytes() == b"old"
            assert partial.parent.parent == tmp_path
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    with replacing(path) as partial:
        partial.write_bytes(b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flush the content, rename, flush the folder: in that order."""
    done: list[str] = []
    flush, rename = os.fsync, os.replace

    def flushed(descriptor: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")
        flush(descriptor)

    def renamed(*args: Any) -> None:
        done.append("rename")
        rename(*args)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", renamed)
    save_tensors(tmp_path / "a", {"x": torch.ones(2)}, {})
    write_atomic(tmp_path / "b", "text")
    assert done == ["content", "rename", "folder"] * 2


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    tensors = {name: torch.full((3,), float(i)) for i, name in enumerate("bca")}
    notes = {"step": 3, "epoch": 1, "deep": {"z": 1, "a": [2]}}
    found = set()
    for turn in range(12):  # the order of several entries would change about every other time
        flipped = dict(reversed(list(notes.items()))) if turn % 2 else notes
        save_tensors(tmp_path / "x", dict(reversed(list(tensors.items()))) if turn % 3 else tensors, flipped)
        found.add((tmp_path / "x").read_bytes())
    assert len(found) == 1
    read, said = load_tensors(tmp_path / "x")
    assert said == notes
    assert {name: tensor.tolist() for name, tensor in read.items()} == {n: t.tolist() for n, t in tensors.items()}


def test_files_of_the_first_version_are_read(tmp_path: Path) -> None:
    x = torch.arange(3.0)
    notes = '{"epoch": 2}'
    sums = json.dumps({"x": zlib.crc32(x.numpy().tobytes())})
    header = {"notes": notes, "notes_crc32": str(zlib.crc32(notes.encode())), "crc32": sums}
    save_file({"x": x}, tmp_path / "old", header)
    tensors, said = load_tensors(tmp_path / "old")
    assert said == {"epoch": 2}
    assert torch.equal(tensors["x"], x)


@pytest.mark.parametrize("fails", [False, True])
def test_a_group_is_left_unless_something_failed(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving waits for the others, who may be gone."""
    done: list[str] = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *_: done.append("joined"))
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: done.append("left"))

    def work() -> None:
        with group.joined():
            if fails:
                raise ZeroDivisionError

    if fails:
        with pytest.raises(ZeroDivisionError):
            work()
    else:
        work()
    assert done == (["joined"] if fails else ["joined", "left"])


def test_what_a_kill_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".a.1.partial").write_text("a file")
    (tmp_path / ".b.2.partial").mkdir()
    (tmp_path / ".b.2.partial" / ".tmp77").write_text("in a folder")
    (tmp_path / ".hidden").write_text("the user's")
    (tmp_path / "kept.partial").write_text("the user's")
    remove_partial(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [".hidden", "kept.partial"]


DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8"]


def test_tensors_of_every_kind_come_back(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    kept = {name: torch.randint(0, 99, (3, 4), generator=generator).to(getattr(torch, name)) for name in DTYPES}
    kept |= {
        "bool": torch.tensor([True, False]),
        "number": torch.tensor(3.5),
        "empty": torch.zeros(0, 5),
        "not contiguous": torch.arange(12.0).view(3, 4).t(),
        "nan and inf": torch.tensor([math.nan, math.inf, -math.inf, -0.0]),
        "channels last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    }
    kept["shares memory"] = kept["float32"]
    kept["a view"] = kept["float32"][1:]
    notes = {"text": "ä\n\"'", "number": 0.1, "nested": {"list": [1, None, True]}, "infinite": math.inf}
    save_tensors(tmp_path / "file", kept, notes)
    found, said = load_tensors(tmp_path / "file")
    assert said == notes
    assert found.keys() == kept.keys()
    for name, value in kept.items():
        assert found[name].dtype == value.dtype
        assert found[name].shape == value.shape
        same = torch.equal(
            found[name].contiguous().view(-1).view(torch.uint8), value.contiguous().view(-1).view(torch.uint8)
        )
        assert same, name


def test_what_is_written_needs_no_pickle(tmp_path: Path) -> None:
    """The header is JSON, and the sums are those of zlib over the bytes that follow."""
    save_tensors(tmp_path / "file", {"x": torch.tensor([1.0, 2.0])}, {"a": 1})
    content = (tmp_path / "file").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert list(header["__metadata__"]) == ["steelyard"]
    sums = json.loads(json.loads(header["__metadata__"]["steelyard"])["crc32"])
    assert sums == {"x": zlib.crc32(np.array([1, 2], "<f4").tobytes())}
    assert json.loads(json.loads(header["__metadata__"]["steelyard"])["notes"]) == {"a": 1}


@pytest.mark.parametrize(
    "content", [b"", b"\x01", b"x" * 200, b"\x10\0\0\0\0\0\0\0{}              ", b"PK\x03\x04" + b"\0" * 90]
)
def test_a_file_of_another_kind_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="file is corrupt or was not written by Steelyard") as e:
        load_tensors(path)
    assert "\n" not in str(e.value)
    with pytest.raises(ValueError, match="nothing does not exist"):
        load_tensors(tmp_path / "nothing")
    for entry in ("[]", "{}", "null", '{"notes": 3, "notes_crc32": "0"}', "{"):
        save_file({"x": torch.zeros(1)}, path, {"steelyard": entry})
        with pytest.raises(ValueError, match="file is corrupt or was not written by Steelyard"):
            load_tensors(path)


@given(st.data())
@settings(max_examples=60)
def test_no_bit_can_change_unseen(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("bits") / "file"
    save_tensors(
        path, {"a": torch.arange(6.0).view(2, 3), "b": torch.arange(6, dtype=torch.int32)}, {"epoch": 12, "x": 0.5}
    )
    whole = bytearray(path.read_bytes())
    spot = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[spot // 8] ^= 1 << spot % 8
    path.write_bytes(whole)
    with pytest.raises(ValueError, match="is corrupt or was not written by Steelyard"):
        load_tensors(path)


# state


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_an_optimizer_goes_on_from_its_tensors(kind: str) -> None:
    def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        net = seeded(Net)
        if kind == "sgd":
            return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        return net, torch.optim.AdamW(net.parameters(), lr=0.1)

    def step(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        net(torch.from_numpy(features(8))).square().sum().backward()
        optimizer.step()

    first, second = made(), made()
    for _ in range(3):
        step(*first)
    second[0].load_state_dict(first[0].state_dict())
    restore_optimizer(second[1], {name: value.clone() for name, value in optimizer_tensors(first[1]).items()})
    for _ in range(2):
        step(*first)
        step(*second)
    for a, b in zip(first[0].parameters(), second[0].parameters(), strict=True):
        assert torch.equal(a, b)


def test_state_that_would_need_pickle_is_refused() -> None:
    class Odd(torch.nn.Module):
        def get_extra_state(self) -> Any:
            return {"a": 1}

        def set_extra_state(self, state: Any) -> None: ...

    with pytest.raises(ValueError, match="Odd keeps _extra_state as dict: keep it as a tensor"):
        module_tensors(Odd())


# history


def test_history_goes_on_from_an_epoch(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = History(path, 1)
    assert path.read_text() == ""
    for epoch in (1, 2, 3):
        history.append({"epoch": epoch})
    assert read_history(path) == history.records == [json.loads(line) for line in path.read_text().splitlines()]
    with path.open("a") as file:
        file.write('{"epoch": 4, "lo')
    assert [record["epoch"] for record in read_history(path)] == [1, 2, 3]
    again = History(path, 3)
    again.append({"epoch": 3, "again": True})
    assert [json.loads(line) for line in path.read_text().splitlines()] == again.records
    assert again.records == [{"epoch": 1}, {"epoch": 2}, {"epoch": 3, "again": True}]
    silent = History(tmp_path / "other.jsonl", 1, writes=False)  # of a process that is not the first
    silent.append({"epoch": 1})
    assert silent.records == [{"epoch": 1}]
    assert read_history(silent.path) == []
    assert not silent.path.exists()


# settings


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OptimizerSettings(kind="adam"), "optimizer.kind is 'adam': choose one of sgd, adamw"),
        (lambda: OptimizerSettings(lr=-1), "optimizer.lr is -1.0: it must be at least 0 and finite"),
        (lambda: OptimizerSettings(lr=math.nan), "optimizer.lr is nan: it must be a number"),
        (lambda: OptimizerSettings(clip_norm=math.inf), "optimizer.clip_norm is inf: it must be at least 0 and finite"),
        (
            lambda: OptimizerSettings(betas=(0.9, 1)),
            "optimizer.betas is [0.9, 1.0]: both must be at least 0 and below 1",
        ),
        (lambda: OptimizerSettings(betas=(-0.1, 0)), "optimizer.betas is [-0.1, 0.0]: both must be at least 0 and"),
        (lambda: OptimizerSettings(nesterov=True, momentum=0), "optimizer.nesterov is true, but optimizer.momentum is"),
        (lambda: ScheduleSettings(kind="step"), "schedule.kind is 'step': choose one of constant, multistep, cosine"),
        (
            lambda: ScheduleSettings("multistep", milestones=(3, 1)),
            "schedule.milestones is [3.0, 1.0]: give epochs in incr",
        ),
        (lambda: ScheduleSettings(milestones=(3,)), "schedule.milestones is given, but schedule.kind is 'cosine'"),
        (lambda: SamplerSettings("class"), "train.sampler.kind is 'class': choose one of shuffle"),
        (lambda: SamplerSettings(per_class=0), "train.sampler.per_class is 0: it must be at least 1 and finite"),
        (lambda: AugmentSettings(flip=2), "train.augment.flip is 2.0: it must lie between 0 and 1"),
        (lambda: AugmentSettings(overlay=1.5), "train.augment.overlay is 1.5: it must lie between 0 and 1"),
        *[
            (lambda name=name: AugmentSettings(**{name: -1.5}), f"train.augment.{name} is -1.5: it must be")
            for name in ("pad_crop", "scale", "rotate", "elastic")
        ],
        (lambda: TrainSettings(epochs=-1), "train.epochs is -1: it must be at least 0"),
        (lambda: TrainSettings(batch_size=-1), "train.batch_size is -1: it must be at least 0"),
        (lambda: TrainSettings(patience=-2), "train.patience is -2: it must be at least -1"),
        (lambda: ScheduleSettings(warmup_epochs=-0.5), "schedule.warmup_epochs is -0.5: it must be at least 0"),
        (lambda: TrainSettings(workers=-2), "train.workers is -2: it must be at least -1"),
        (lambda: TrainSettings(seed=-1), "train.seed is -1: it must lie between 0 and 9223372036854775807"),
        (lambda: TrainSettings(seed=2**64), "train.seed is 18446744073709551616: it must lie between 0 and"),
        (lambda: TrainSettings(ema=1.5), "train.ema is 1.5: it must lie between 0 and 1"),
        (lambda: TrainSettings(monitor="auc"), "train.monitor is 'auc': choose one of auto, map, f1, loss"),
        (lambda: TrainSettings(precision="fp16"), "train.precision is 'fp16': choose one of auto, float32"),
        (lambda: TrainSettings(checkpoint_seconds=math.nan), "train.checkpoint_seconds is nan: it must be a number"),
        (lambda: pick_device("gpu"), "train.device is 'gpu': give auto, cpu, cuda or cuda:N"),
        (lambda: pick_device("meta"), "train.device is 'meta': give auto, cpu, cuda or cuda:N"),
        (lambda: pick_device("gpu", "--device"), "--device is 'gpu': give auto, cpu, cuda or cuda:N"),
    ],
)
def test_settings_that_cannot_be_are_one_sentence(make: Any, message: str) -> None:
    with pytest.raises(ValueError) as e:
        make()
    assert str(e.value).startswith(message)
    assert "\n" not in str(e.value)


def test_devices_and_precisions() -> None:
    assert pick_device("cpu") == CPU
    assert pick_precision("auto", CPU) == torch.float32
    assert pick_precision("bfloat16", CPU) == torch.bfloat16
    if not torch.cuda.is_available():
        assert pick_device("auto") == CPU
        with pytest.raises(ValueError, match="this machine has no usable GPU: give cpu or auto"):
            pick_device("cuda:1")


@pytest.mark.filterwarnings("error")
def test_arrays_that_must_not_be_written_to_are_copied() -> None:
    inputs = np.arange(6, dtype=np.float32).reshape(3, 2)
    inputs.setflags(write=False)
    batches = Resident(ArrayDataset(inputs, Labels(np.eye(3, dtype=np.int8))), Shuffled(3), 3, CPU)
    batches.inputs.zero_()
    assert inputs.sum() == 15


def test_soft_labels_take_four_times_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (4 * 1000 * 20, 0))
    for values, whether in ((np.ones((1000, 16), np.int8), True), (np.full((1000, 16), 0.5, np.float32), False)):
        data = ArrayDataset(np.zeros((1000, 1), np.float32), Labels(values))
        assert fits(data, torch.device("cuda")) is whether  # 4 + 16 bytes an item, or 4 + 64


@pytest.mark.parametrize("workers", [0, 1])
def test_an_end_of_file_in_an_item_is_no_death_of_a_process(workers: int) -> None:
    with pytest.raises(EOFError, match="item 3 ends too soon"):
        list(ordered(Torn(), 2, workers))


class Torn(torch.utils.data.Dataset[Any]):
    """Data of one's own, one of whose items is cut off."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> Any:
        if i == 3:
            raise EOFError("item 3 ends too soon")
        return torch.zeros(2), torch.zeros(1), i


def test_a_file_that_cannot_be_read_while_another_is_written_is_the_one_named(tmp_path: Path) -> None:
    with pytest.raises(OSError) as e, replacing(tmp_path / "out"):
        (tmp_path / "in").read_bytes()
    assert e.value.filename == str(tmp_path / "in")
    with pytest.raises(OSError) as e, replacing(tmp_path / "out"):
        raise OSError(errno.ENOSPC, "No space left")
    assert e.value.filename == str(tmp_path / "out")
    with pytest.raises(OSError) as e, replacing(tmp_path / "out") as partial:
        (partial.parent / "deep" / "er").write_bytes(b"")
    assert e.value.filename == str(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
