"""Every parser as a target: seeds of small real files, a maker of likely inputs, and the error it may raise."""

from __future__ import annotations

import csv
import gzip
import io
import json
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

import layouts
from fuzz.mutate import tree
from steelyard._sealed import checksum
from steelyard.calibrate import Isotonic, Platt, Temperature, load
from steelyard.calibrate import save as save_calibrator
from steelyard.calibrate.probability import ProbabilityModel
from steelyard.config.settings import dump_config, load_config
from steelyard.data.files import DataError
from steelyard.data.images import BadImage, decode
from steelyard.data.inputs import open_inputs
from steelyard.data.readers.arff import arff
from steelyard.data.readers.cifar import cifar10
from steelyard.data.readers.coco import coco
from steelyard.data.readers.cub import cub
from steelyard.data.readers.mnist import read_idx
from steelyard.data.readers.npz import npz
from steelyard.data.readers.nus_wide import nus_wide
from steelyard.data.readers.open_images import open_images
from steelyard.data.readers.pickles import read_pickle
from steelyard.data.readers.vispr import vispr
from steelyard.data.readers.voc import voc
from steelyard.data.readers.vqa import vqa
from steelyard.data.readers.wider_attribute import wider_attribute
from steelyard.data.tables.read import table
from steelyard.labels import Labels
from steelyard.metrics import Evaluator
from steelyard.objective import Objective
from steelyard.objective.parts import Part, completed, make_loss
from steelyard.run.deployment import read_prior
from steelyard.search import Query, QueryError
from steelyard.search import pointer as pointers
from steelyard.training.checkpoint import load_tensors, read_history, save_tensors


class Target(NamedTuple):
    """A parser."""

    seeds: tuple[bytes, ...]
    read: Callable[[bytes], Any]
    """What is tried; it raises AssertionError where the value is wrong."""
    error: type[Exception] = DataError
    """The one class of exceptions that it may raise."""
    make: Callable[[Random], bytes] | None = None
    words: tuple[bytes, ...] = ()


def _words(text: str) -> tuple[bytes, ...]:
    return tuple(word.encode() for word in text.split())


def _in_file(path: Path, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    def tried(content: bytes) -> Any:
        path.write_bytes(content)
        return read(path)

    return tried


def _labels(data: Any) -> None:
    """A data set must be whole: as many inputs as labels, values that are labels."""
    values = data.labels.values
    assert values.shape == (len(data.labels.ids), len(data.labels.names))
    assert len(data) == len(values)
    assert ((values == -1) | ((values >= 0) & (values <= 1))).all()
    assert len(set(data.labels.names)) == len(data.labels.names)


# ARFF

_ARFF = b"""% a comment
@relation 'songs: -C 2'
@attribute 'label 0' {0,1}
@attribute label1 {no, yes}
@attribute x numeric
@attribute "y y" REAL
@attribute colour {red,'dark blue',"it's"}
@data
0,yes,1.5,-2e3,red
1,no,?,0,'dark blue'
0, no ,.5,+7,"it's"
"""
_SPARSE = (
    b"@relation b:-C -2\n@attribute a numeric\n@attribute b {0,1}\n@attribute c {0,1}\n@data\n{0 1.5,2 1}\n{}\n{1 1}\n"
)
_PLAIN = b"@relation b:-C 1\n@attribute a {0,1}\n@attribute b numeric\n@data\n0,1.5\n1,2\n"


def _make_arff(random: Random) -> bytes:
    n, sparse = random.randrange(1, 6), random.random() < 0.4
    kinds = [
        random.choice(("numeric", "REAL", "{0,1}", "{1,0}", "{a,'b c',d}", "{'0','1'}", "string")) for _ in range(n)
    ]
    names = [random.choice(("a", "'b b'", '"c"', "d\\'", f"x{i}", f"y{i}", f"z{i}")) for i in range(n)]
    cells = ("0", "1", "a", "'b c'", "?", "1.5", "-2e3", "''", " 1 ", "1e39", "d", "'", '"', "{", "0 1")
    rows = []
    for _ in range(random.randrange(4)):
        row = [random.choice(cells[: random.randrange(1, len(cells) + 1)]) for _ in range(n + (random.random() < 0.1))]
        if random.random() < 0.7:
            row = [random.choice("a?" if "a" in kind else "01?") for kind in kinds]
        pairs = ",".join(f"{i} {cell}" for i, cell in enumerate(row) if random.random() < 0.5)
        rows.append("{" + pairs + "}" if sparse else ",".join(row))
    head = "".join(f"@attribute {name} {kind}\n" for name, kind in zip(names, kinds, strict=True))
    return f"@relation r:-C {random.randrange(-n, n + 2)}\n{head}@data\n{chr(10).join(rows)}\n".encode()


def _arff(folder: Path) -> Target:
    words = _words("@relation @attribute @data numeric real integer string {0,1} {a,b} ? -C % {0 0} '' \\'")
    read = _in_file(folder / "a.arff", lambda path: _labels(arff(path)))
    return Target((_ARFF, _SPARSE, _PLAIN), read, make=_make_arff, words=words)


def _mulan(folder: Path) -> Target:
    layouts.write_arff(folder, n=3)
    xml = folder / "songs.xml"
    words = _words(
        '<label name="label 0"></label> <label <labels> &amp; &#0; &lol; <!DOCTYPE <!ENTITY <![CDATA[ xmlns='
    )
    bomb = b'<!DOCTYPE l [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;">]><labels><label name="&b;"/></labels>'
    read = _in_file(xml, lambda _: _labels(arff(folder / "songs-train.arff")))
    return Target((xml.read_bytes(), bomb), read, words=words)


# manifests

_TABLES = (
    b"id,cat,dog,x\na,1,0,0.5\nb,0,,1.5\nc,-1,1,2e3\n",
    b"image\tcat\tdog\tsplit\na.jpg\tyes\tno\ttrain\nb.jpg\t0.25\tNaN\tval\n",
    b'id;labels\n1;"cat|dog"\n2;dog\n3;\n',
    b"file,tags\na.png,cat dog\nb.png,\n",
    b"id,label\n1,cat\n1,dog\n2,\n3,cat\n",
    b"ImageID,LabelName,Confidence\nx,/m/1,1\nx,/m/2,0\ny,/m/1,0.5\n",
    b'"id","a ""b""",c\n"x\ny",1,0\nz,0,1\n',
    b"f1,f2,f3,cat,dog\n1,2,3,1,0\n4,5,6,0,1\n",
)


def _make_table(random: Random) -> bytes:
    names = [f"f{i}" for i in range(3)] + ["id", "image", "path", "label", "labels", "tags", "value", "split", "cat"]
    names += ["dog", "", " ", "cat", "Unnamed: 0", "confidence", "fold"]
    header = random.sample(names, random.randrange(1, 7)) if random.random() < 0.9 else random.choices(names, k=3)
    kinds: tuple[tuple[str, ...], ...] = (
        ("0", "1"),
        ("0", "1", "-1", "", "NaN", "?", "0.5", "yes", "no", "TRUE"),
        ("cat", "dog", "cat;dog", "cat|dog", "cat,dog", "", "a b", ";", ";;"),
        ("a.jpg", "b.png", "../x.jpg", "/etc/passwd", "c", "a.jpg "),
        ("1.5", "2", "1e400", "nan", "inf", "x", "-0", "1_0", "0x1"),
        ("train", "val", "test", "", "0", "1", "trian"),
        ("é", "\u200b", "\U0001f436", "\ufeff", 'q"q', "line\nbreak", "\x00", " "),
    )
    of = [random.choice(kinds) for _ in header]
    out = io.StringIO()
    writer = csv.writer(
        out,
        delimiter=random.choice(",,,\t;|"),
        lineterminator=random.choice(("\n", "\n", "\r\n", "\r")),
        quoting=random.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL)),
    )
    writer.writerow(header)
    for i in range(random.randrange(5)):
        row = [str(i) if random.random() < 0.3 else random.choice(kind) for kind in of]
        writer.writerow(row if random.random() < 0.97 else row[:-1])
    return out.getvalue().encode()


_TABLE_WORDS = _words('id image path label labels tags value split cat dog train val ; | , \t "" " NaN -1 yes no .jpg')
_HOW: tuple[dict[str, Any], ...] = (
    *({}, {}, {}, {"form": "wide"}, {"form": "list"}, {"form": "long"}, {"absent": "unknown"}, {"split": "all"}),
    *({"minus_one": "negative"}, {"form": "list", "separator": "|"}, {"split": "train"}, {"absent": "negative"}),
)


def _manifest(folder: Path) -> Target:
    layouts.write_image(folder / "a.jpg", np.random.default_rng(0))
    files = folder / "a.csv", folder / "a.tsv"

    def read(content: bytes) -> None:
        mark = zlib.crc32(content)  # how it is read hangs on what it is, so that an input can be tried again
        path = files[mark % 8 == 0]
        path.write_bytes(content)
        how = _HOW[mark // 8 % len(_HOW)]
        _labels(table(path, on_bad_image="skip", **how))

    return Target(_TABLES, read, make=_make_table, words=_TABLE_WORDS)


def _stream(folder: Path) -> Target:
    layouts.write_image(folder / "a.jpg", np.random.default_rng(0))

    def read(path: Path) -> None:
        inputs = open_inputs(path, on_bad_image="skip")
        if inputs.kind == "features":
            assert sum(len(batch.ids) + len(batch.bad) for batch in inputs.batches(2)) == inputs.n_items

    return Target(_TABLES, _in_file(folder / "a.csv", read), make=_make_table, words=_TABLE_WORDS)


# binary data


def _idx(folder: Path) -> Target:
    plain, packed = folder / "a", folder / "a.gz"
    seeds = tuple(layouts.idx(np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)) for shape in ((6,), (2, 2, 3)))

    def read(content: bytes) -> None:
        file = packed if content[:2] == b"\x1f\x8b" else plain
        file.write_bytes(content)
        rank = 1 if zlib.crc32(content) % 3 == 0 else 3
        found = read_idx(file, rank)
        assert found.ndim == rank
        assert found.tobytes() == (gzip.decompress(content) if file is packed else content)[4 + 4 * rank :]

    def make(random: Random) -> bytes:
        rank = random.choice((1, 3))
        shape = [random.choice((0, 1, 2, 3, 255, 1 << 16, (1 << 32) - 1)) for _ in range(rank)]
        made = bytes([0, 0, random.choice((8, 8, 8, 9)), rank]) + b"".join(n.to_bytes(4, "big") for n in shape)
        made += random.randbytes(random.choice((0, 1, 2, 3, 6, 12, 255)))
        return gzip.compress(made, 1) if random.random() < 0.3 else made

    return Target((*seeds, *(gzip.compress(seed, mtime=0) for seed in seeds)), read, make=make)


def _npz_file(compress: bool = False, **arrays: Any) -> bytes:
    out = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(out, **arrays)
    return out.getvalue()


def _strange_array(random: Random) -> Any:
    dtype = random.choice(("i1", "u1", "f4", "f8", "f2", "i8", "?", "U3", "S2", "c8", "M8[s]", ">i2", "V3", "i1,f4"))
    shape = tuple(random.choice((0, 1, 2, 2, 3)) for _ in range(random.choice((0, 1, 2, 2, 2, 3))))
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    filling = random.choice((b"\x00", b"\x01", b"\xff", b"a"))
    return np.frombuffer((filling * size) or b"", dtype).reshape(shape) if size else np.zeros(shape, dtype)


def _npz(folder: Path) -> Target:
    x, y = np.linspace(0, 1, 6, dtype=np.float32).reshape(3, 2), np.array([[0, 1], [1, -1], [0, 0]], np.int8)
    seeds = (
        _npz_file(X=x, Y=y),
        _npz_file(True, X=x, Y=y, ids=np.array(["a", "b", "c"]), classes=np.array(["p", "q"])),
    )

    def make(random: Random) -> bytes:
        arrays: dict[str, Any] = {"X": x, "Y": y}
        for name in random.sample(("X", "Y", "ids", "classes", "Y_train"), random.randrange(1, 3)):
            arrays[name] = _strange_array(random)
        return _npz_file(random.random() < 0.2, **arrays)

    read = _in_file(folder / "a.npz", lambda path: _labels(npz(path)))
    words = (b"PK\x01\x02", b"PK\x03\x04", b"\x93NUMPY", b"'descr': '|O'", b"'shape': (9999999999, 2)", b"True", b"<f4")
    return Target(seeds, read, make=make, words=words)


def _array(folder: Path) -> Target:
    """Arrays to predict from."""
    seeds = []
    for array in (np.arange(6, dtype=np.float32).reshape(3, 2), np.arange(48, dtype=np.uint8).reshape(2, 2, 4, 3)):
        out = io.BytesIO()
        np.save(out, array)
        seeds += [out.getvalue(), _npz_file(X=array)]
    files = folder / "a.npy", folder / "a.npz"

    def make(random: Random) -> bytes:
        if random.random() < 0.5:
            return _npz_file(X=_strange_array(random), ids=_strange_array(random))
        out = io.BytesIO()
        np.save(out, _strange_array(random))
        return out.getvalue()

    def read(content: bytes) -> None:
        path = files[content.startswith(b"PK")]
        path.write_bytes(content)
        for batch in open_inputs(path, on_bad_image="skip").batches(2):
            assert len(batch.ids) == len(batch.inputs)

    words = (b"'descr': '|O'", b"'shape': (9999999999, 2)", b"'shape': ()", b"True", b"<f4", b"|u1", b">i8", b"<U9")
    return Target(tuple(seeds), read, make=make, words=words)


def _image(folder: Path) -> Target:
    pixels, seeds = np.random.default_rng(0).integers(0, 256, (6, 5, 3), np.uint8), []
    for kind, mode in (("JPEG", "RGB"), ("PNG", "RGBA"), ("GIF", "P"), ("BMP", "L"), ("TIFF", "RGB"), ("WEBP", "RGB")):
        out = io.BytesIO()
        Image.fromarray(pixels).convert(mode).save(out, kind)
        seeds.append(out.getvalue())

    def read(path: Path) -> None:
        whole, small = decode(path), decode(path, (4, 3))
        assert (whole.shape[0], small.shape) == (3, (3, 4, 3))

    return Target(tuple(seeds), _in_file(folder / "a.jpg", read), BadImage)


def _labels_file(folder: Path) -> Target:
    path = folder / "labels.npz"
    seeds = []
    for labels in (
        Labels(np.array([[0, 1], [1, -1]], np.int8), ["a", "b"], ["x", "y"]),
        Labels(np.array([[0, 0.5], [1, -1]], np.float32)),
    ):
        labels.save(path)
        seeds.append(path.read_bytes())
    arrays = [dict(np.load(io.BytesIO(seed))) for seed in seeds]

    def make(random: Random) -> bytes:
        changed = dict(random.choice(arrays))
        for name in random.sample(sorted(changed), random.randrange(1, 3)):
            changed[name] = _strange_array(random) if random.random() < 0.6 else changed[name] * random.randrange(3)
        return _npz_file(**changed)

    def read(file: Path) -> None:
        labels = Labels.load(file)
        assert labels.values.shape == (len(labels.ids), len(labels.names))
        assert all(isinstance(name, str) for name in labels.names)

    return Target(tuple(seeds), _in_file(path, read), ValueError, make)


def _pickle(folder: Path) -> Target:
    plain = {"data": np.arange(4, dtype=np.uint8), "labels": [1, 2], "names": ("a", b"b"), "x": None}
    seeds = (layouts.python2_pickle(plain | {"names": ["a"], "x": 1}), *(pickle.dumps(plain, p) for p in (0, 2, 4, 5)))
    words = (
        b"cos\nsystem\n",
        b"R",
        b"b",
        b"\x93",
        b"\x81",
        b"cnumpy\ndtype\n",
        b"ccopyreg\n_reconstructor\n",
        b"0",
        b"i",
    )
    return Target(seeds, _in_file(folder / "a.pkl", read_pickle), words=words)


def _tensors(folder: Path) -> Target:
    path = folder / "a.safetensors"
    save_tensors(path, {"w": torch.ones(2, 2), "b": torch.zeros(1, dtype=torch.int64)}, {"epoch": 1, "format": 1})
    seed = path.read_bytes()
    length = int.from_bytes(seed[:8], "little")
    header, rest = json.loads(seed[8 : 8 + length]), seed[8 + length :]

    def make(random: Random) -> bytes:
        changed = dict(header)
        if random.random() < 0.5:
            changed = tree(random, changed)
        else:  # what stands inside the one entry of its metadata, with the checksums right
            inner = json.loads(header["__metadata__"]["steelyard"])
            if random.random() < 0.5:
                inner["notes"] = _json(tree(random, json.loads(inner["notes"]))).decode()
                inner["notes_crc32"] = str(zlib.crc32(inner["notes"].encode()))
            else:
                inner = tree(random, inner)
            changed["__metadata__"] = {"steelyard": _json(inner).decode()}
        text = _json(changed)
        return len(text).to_bytes(8, "little") + text + rest

    return Target(
        (seed,), _in_file(path, load_tensors), ValueError, make, _words("F32 I64 BOOL F8_E5M2 U8 dtype shape")
    )


def _evaluator(folder: Path) -> Target:
    path = folder / "evaluator.safetensors"
    evaluator = Evaluator(2, names=["a", "b"], counts=[3, 4])
    evaluator.update(torch.tensor([[0.1, 0.9], [0.5, 0.5]]), torch.tensor([[0, 1], [1, -1]]))
    evaluator.save(path)
    seed = path.read_bytes()
    length = int.from_bytes(seed[:8], "little")
    header, rest = json.loads(seed[8 : 8 + length]), seed[8 + length :]

    def make(random: Random) -> bytes:
        if random.random() < 0.3:
            text = _json(tree(random, header))
            return len(text).to_bytes(8, "little") + text + rest
        settings: Any = {"names": ["a", "b"], "bins": 15, "dtype": "float32"}
        settings = tree(random, settings) if random.random() < 0.7 else settings
        tensors = {
            name: torch.full(random.choice(((2, 2), (2, 2), (1, 2), (2,), (0, 2), (), (2, 3))), 1).to(
                random.choice((torch.float32, torch.float16, torch.int8, torch.bool, torch.float64, torch.int64))
            )
            for name in random.sample(("probabilities", "targets", "counts", "x"), random.randrange(1, 5))
        }
        about = {"format": header["__metadata__"]["format"], "settings": _json(settings).decode()}
        return save(tensors, about)

    return Target((seed,), _in_file(path, lambda file: Evaluator.load(file).compute()), ValueError, make)


# JSON


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _json_maker(
    seeds: tuple[bytes, ...], sign: Callable[[Any], Any] = lambda value: value
) -> Callable[[Random], bytes]:
    documents = [json.loads(seed) for seed in seeds]
    return lambda random: _json(sign(tree(random, random.choice(documents))))


def _coco(folder: Path) -> Target:
    annotations = folder / "annotations"
    annotations.mkdir()
    content = {
        "images": [{"id": 7, "file_name": "a.jpg"}, {"id": 9, "file_name": "b.jpg", "width": 4}],
        "annotations": [{"id": 1, "image_id": 7, "category_id": 2, "bbox": [0.5, 1, 2, 3]}],
        "categories": [{"id": 2, "name": "cat"}, {"id": 3, "name": "dog"}],
    }
    seeds = (_json(content),)
    words = _words('"id" "image_id" "category_id" "file_name" "name" "images" "annotations" "categories" [ ] { } null')
    read = _in_file(annotations / "instances_train2014.json", lambda _: _labels(coco(folder, 2014, "train")))
    return Target(seeds, read, make=_json_maker(seeds), words=words)


def _calibration(folder: Path) -> Target:
    path, seeds = folder / "calibration.json", []
    z = torch.tensor([[0.2, -1.0], [1.5, 0.4], [-0.7, 0.1], [0.9, -2.0]])
    y = torch.tensor([[1, 0], [1, 1], [0, 0], [0, 1]])
    for calibrator in (Temperature(), Platt(), Isotonic()):
        save_calibrator(calibrator.fit(z, y), path)
        seeds.append(path.read_bytes())

    def read(file: Path) -> None:
        eta = load(file)(torch.zeros(1, 2))
        assert ((eta >= 0) & (eta <= 1)).all()

    return Target(tuple(seeds), _in_file(path, read), ValueError, _json_maker(tuple(seeds)))


def _reading(folder: Path) -> Target:
    path = folder / "calibration.json"
    counts, known = torch.tensor([3.0, 5.0]), torch.tensor([9.0, 9.0])
    z, y = torch.linspace(-2, 2, 16).reshape(8, 2), torch.tensor([[0, 1], [1, 0]] * 4)
    seeds = []
    for name, kind in (("bce", "temperature"), ("asymmetric", "link"), ("two_way", "isotonic")):
        part = completed("loss", Part(name))
        reading = ProbabilityModel.of_objective(Objective(make_loss(part, counts, known)), part, counts, known)
        reading.fit(z, y, kind).save(path)
        seeds.append(path.read_bytes())

    def read(file: Path) -> None:
        found = ProbabilityModel.load(file)
        if found.has_probability:
            eta = found.probability(torch.zeros(1, found.n_labels))
            assert ((eta >= 0) & (eta <= 1)).all()

    return Target(tuple(seeds), _in_file(path, read), ValueError, _signed(tuple(seeds)))


def _sign(document: Any) -> Any:
    if not isinstance(document, dict):
        return document
    rest = {key: value for key, value in document.items() if key not in ("format", "version", "sha256")}
    return document | {"sha256": checksum(rest)}


def _signed(seeds: tuple[bytes, ...]) -> Callable[[Random], bytes]:
    """Trees that have their checksum."""
    made = _json_maker(seeds, _sign)

    def make(random: Random) -> bytes:
        while True:
            try:
                return made(random)
            except ValueError:  # NaN has none
                continue

    return make


def _history(folder: Path) -> Target:
    lines = (b'{"epoch": 1, "loss": 0.5}\n{"epoch": 2, "loss": NaN}\n', b'{"epoch": 1}\n{"ep')

    def read(path: Path) -> None:
        assert all(isinstance(record, dict) and "epoch" in record for record in read_history(path))

    return Target(lines, _in_file(folder / "history.jsonl", read), ValueError, words=_words('"epoch" { } [ NaN'))


def _index(folder: Path) -> Target:
    file = pointers.FileFacts(f"{0:032x}.duckdb", 10, 5, 0)
    pointers.write(folder, pointers.Pointer("0" * 32, 3, 2, 5, (file,), {"a": 1}))
    path = folder / pointers.FILE
    seeds = (path.read_bytes(),)

    def read(_: Path) -> None:
        found = pointers.read(folder)
        assert found.n_items >= 0
        assert all(Path(file.name).name == file.name for file in found.files)

    return Target(seeds, _in_file(path, read), ValueError, _signed(seeds))


# text


def _config(folder: Path) -> Target:
    seeds = (
        dump_config(load_config()).encode(),
        b'[train]\nepochs = 3\n[objective]\nloss = "asymmetric"\nmasking = {kind = "plm", rate = 0.1}\n',
        b'[data]\npath = "x.csv"\nvalidation = "val"\nlabels = ["a"]\n[objective.loss]\nkind = "focal"\ngamma = 1\n',
        b"[model]\n[optimizer]\nlr = 1e-3\n[schedule]\n[evaluate]\nbins = 3\n",
    )
    flat = load_config().as_dict()
    keys = [
        (section, key) for section, content in flat.items() for key in (content if isinstance(content, dict) else ())
    ]
    values = (
        *("1", "0", "-1", "0.5", "1e400", "nan", "inf", '""', '"x"', "true", "[]", "[1, 2]", "{}", '"none"'),
        *("1979-05-27", '{kind = "x"}', '"plm"', '"two_way"', '{kind = "ldam", softmax = true}'),
        *("99999999999999999999", '["a"]'),
    )

    def make(random: Random) -> bytes:
        lines = [f"{s}.{k} = {random.choice(values)}" for s, k in random.sample(keys, random.randrange(1, 5))]
        return "\n".join(lines).encode()

    path = folder / "config.toml"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        found = load_config(path)
        if zlib.crc32(content) % 16 == 0:  # slow
            path.write_text(dump_config(found), encoding="utf-8")
            assert load_config(path) == found

    words = _words(
        '[data] [train] [objective.loss] kind = "focal" "plm" epochs lr true false [[ ]] {kind= """ \'\'\' \\u0000'
    )
    return Target(seeds, read, ValueError, make, words)


def _set(folder: Path) -> Target:
    seeds = (b"train.epochs=3", b"objective.loss=focal", b"objective.loss.gamma=1.5", b'data.labels=["a", "b"]')

    def make(random: Random) -> bytes:
        key = random.choice(
            ("train.epochs", "objective.masking", "objective.loss.gamma", "data.path", "model", "x.y.z")
        )
        value = random.choice(("1", "plm", "[", "{", "{kind=1}", "nan", "1 # x", "\0", "=", ".5", "01"))
        return f"{key}={value}".encode()

    def read(content: bytes) -> None:
        load_config(sets=content.decode("utf-8", "surrogateescape").split("\x01"))

    words = _words("train. objective. .kind = [ ] { } epochs gamma focal plm")
    return Target(seeds, read, ValueError, make, (*words, b"\x01"))


_NAMES = ("dog", "person", "car", "traffic light", 'a"b', "AND", "0.5", "é", "dog > 0.8")


def _query(folder: Path) -> Target:
    seeds = (
        *(b"dog & person & ~car", b'"traffic light" | dog > 0.8', b"dog person -car", b'dog AND NOT (car OR "a\\"b")'),
        *(b"((dog | car) & (dog | person)) | ~(car & dog)", 'é ≥ .5 !"AND"'.encode()),
    )
    tokens = (
        *("dog", "car", "person", '"traffic light"', "&", "|", "~", "-", "!", "(", ")", "AND", "or", "NOT", ">", "<="),
        *("≥", "0.5", "1", "2", "1e-3", '"', "\\", "é", "&&", "||", "=", ",", "nan", "𝟎.5"),
    )
    eta = np.random.default_rng(0).random((3, len(_NAMES)))

    def make(random: Random) -> bytes:
        return random.choice(("", " ")).join(random.choices(tokens, k=random.randrange(1, 15))).encode()

    def read(content: bytes) -> None:
        query = Query.parse(content.decode("utf-8", "surrogateescape"), _NAMES if len(content) % 4 == 0 else None)
        if zlib.crc32(content) % 4:  # slow
            return
        names = query.labels
        columns = np.resize(eta, (3, len(names)))
        score = query.score(columns, names)
        assert ((score >= 0) & (score <= 1 + 1e-12)).all()
        again = Query.parse(str(query), names)
        assert again == query
        assert np.allclose(again.score(columns, names), score, atol=1e-12)

    return Target(seeds, read, QueryError, make, tuple(token.encode() for token in tokens))


def _prior(folder: Path) -> Target:
    seeds = (b'{"cat": 0.5, "dog": 0}', b"label,prior\ncat,0.5\ndog,1\n")
    files = folder / "prior.json", folder / "prior.csv"

    def read(content: bytes) -> None:
        path = files[not content.lstrip().startswith(b"{")]
        path.write_bytes(content)
        found = np.asarray(read_prior(path, ("cat", "dog")))
        assert (np.isnan(found) | ((found >= 0) & (found <= 1))).all()

    return Target(seeds, read, ValueError, _json_maker(seeds[:1]), _words('"cat" "dog" cat dog , : { }'))


# folders of several files, one of which is changed


def _layout(write: Callable[[Path], Any], read: Callable[[Path], Any]) -> Callable[[Path], Target]:
    """A published layout: the first byte of an input says which file the rest stands for."""

    def build(folder: Path) -> Target:
        write(folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".jpg")[:200]
        whole = [file.read_bytes() for file in files]
        documents = [
            json.loads(content) if file.suffix == ".json" else None for file, content in zip(files, whole, strict=True)
        ]

        def tried(content: bytes) -> None:
            which = content[0] % len(files) if content else 0
            files[which].write_bytes(content[1:])
            try:
                _labels(read(folder))
            finally:
                files[which].write_bytes(whole[which])

        def make(random: Random) -> bytes:
            which = random.randrange(len(files))
            if documents[which] is not None:
                return bytes([which]) + _json(tree(random, documents[which]))
            lines = whole[which].split(b"\n")
            lines[random.randrange(len(lines))] = random.choice(lines) + random.choice((b"", b" ", b"x", b" 1", b",1"))
            return bytes([which]) + b"\n".join(lines)

        seeds = tuple(bytes([i]) + content for i, content in enumerate(whole) if len(content) < 1 << 15)
        return Target(seeds, tried, make=make)

    return build


BUILD: dict[str, Callable[[Path], Target]] = {
    "ARFF": _arff,
    "Mulan XML": _mulan,
    "manifest": _manifest,
    "manifest to predict from": _stream,
    "idx": _idx,
    "npz": _npz,
    "array to predict from": _array,
    "image": _image,
    "Labels.load": _labels_file,
    "pickled arrays": _pickle,
    "checkpoint": _tensors,
    "Evaluator.load": _evaluator,
    "COCO": _coco,
    "calibration": _calibration,
    "reading": _reading,
    "history": _history,
    "index pointer": _index,
    "TOML config": _config,
    "option --set": _set,
    "query": _query,
    "deployment prior": _prior,
    "VOC": _layout(lambda f: layouts.write_voc(f, {"train": 2}), lambda f: voc(f, 2012, "train")),
    "NUS-WIDE": _layout(lambda f: layouts.write_nus_wide(f, 4, 3, 5), lambda f: nus_wide(f, "train")),
    "CUB": _layout(lambda f: layouts.write_cub(f, 6, 11), lambda f: cub(f, "train", 2)),
    "Open Images": _layout(lambda f: layouts.write_open_images(f, n_images=5), lambda f: open_images(f, "train")),
    "WIDER": _layout(lambda f: layouts.write_wider_attribute(f, 2), lambda f: wider_attribute(f, "train")),
    "VISPR": _layout(lambda f: layouts.write_vispr(f, n=3), lambda f: vispr(f, "train")),
    "VQA": _layout(lambda f: layouts.write_vqa(f, n=6), lambda f: vqa(f, "train")),
    "CIFAR, pickled": _layout(lambda f: layouts.write_cifar10(f, 1, version="py"), lambda f: cifar10(f)),
}
"""What makes each target in a folder of its own."""
