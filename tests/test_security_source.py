"""What the source never does, read from the source itself: run what a file or a request says."""

from __future__ import annotations

import ast
import pickle
import xml.etree.ElementTree as ElementTree
import zipfile
from pathlib import Path

import numpy as np
import pytest

from steelyard.data import arff, npz
from steelyard.data.files import DataError
from steelyard.data.readers.pickles import read_pickle

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "steelyard"
MODULES = {
    *("pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "pty", "telnetlib"),
    *("code", "codeop", "ctypes", "requests", "urllib", "http", "ftplib", "smtplib", "xmlrpc", "webbrowser"),
}
"""Modules that run or fetch what others wrote."""
MAY_IMPORT = {("data/readers/pickles.py", "pickle"), ("models/timm_backbone.py", "urllib")}
"""An unpickler that admits plain data only, tested here and among the readers; a look at the proxy timm would use."""
MAY_START_GIT = {"_source.py"}
BUILTINS = {"eval", "exec", "compile", "__import__", "breakpoint", "input"}
CALLS = {
    *("os.system", "os.popen", "os.startfile", "tempfile.mktemp", "torch.save", "torch.hub.load", "torch.jit.load"),
    *("yaml.load", "yaml.unsafe_load", "builtins.eval", "builtins.exec", "shutil.unpack_archive", "hashlib.md5"),
    *("hashlib.sha1", "ssl._create_unverified_context", "logging.config.listen"),
}
METHODS = {"extractall", "extract", "unpack_archive", "load_state_dict_from_url"}
ENDINGS = {".py", ".toml", ".typed", ".js", ".css", ".html", ".svg"}
"""Of the files in the package: no model, no archive, no binary."""


def faults(source: Path) -> list[str]:
    """Every place where a module does what it must not."""
    found = []
    for path in sorted(source.rglob("*.py")):
        inside = path.relative_to(source).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found += [f"{inside}:{node.lineno}: {what}" for what in _faults(node, inside)]  # type: ignore[attr-defined]
    return found


def _faults(node: ast.AST, file: str) -> list[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        roots = {name.partition(".")[0] for name in names if not getattr(node, "level", 0)}
        return [f"imports {name}" for name in roots & MODULES if (file, name) not in MAY_IMPORT]
    if not isinstance(node, ast.Call):
        return []
    name = ast.unparse(node.func)
    given = {word.arg: ast.unparse(word.value) for word in node.keywords}
    found = []
    if (isinstance(node.func, ast.Name) and name in BUILTINS) or name in CALLS or name.rpartition(".")[2] in METHODS:
        found.append(f"calls {name}")
    if name == "torch.load" and given.get("weights_only") != "True":
        found.append("torch.load without weights_only=True")
    if name in ("np.load", "numpy.load") and given.get("allow_pickle") != "False":
        found.append("np.load without allow_pickle=False")
    if given.get("shell", "False") != "False":
        found.append("a shell")
    if name.startswith(("subprocess.", "os.exec", "os.spawn", "asyncio.create_subprocess")):
        first = node.args[0] if node.args else None
        words = first.elts if isinstance(first, ast.List) else []
        own = file == "search/check.py" and [ast.unparse(word) for word in words[:3]] == [
            "sys.executable",
            "'-I'",
            "__file__",
        ]  # reads files of strangers where a crash does no harm
        if not own and (file not in MAY_START_GIT or not words or ast.unparse(words[0]) != "'git'"):
            found.append(f"starts a program by {name}")
    return found


def test_the_source_runs_nothing_that_it_reads() -> None:
    assert faults(SOURCE) == []


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("import pickle", "imports pickle"),
        ("def f():\n    from joblib import load", "imports joblib"),
        ("import urllib.request as u", "imports urllib"),
        ("eval('1')", "calls eval"),
        ("exec(text)", "calls exec"),
        ("import os\nos.system('ls')", "calls os.system"),
        ("torch.load(f)", "weights_only"),
        ("torch.load(f, weights_only=False)", "weights_only"),
        ("np.load(f)", "allow_pickle"),
        ("np.load(f, allow_pickle=True)", "allow_pickle"),
        ("archive.extractall(folder)", "calls archive.extractall"),
        ("import subprocess\nsubprocess.run(['git', 'log'])", "starts a program"),
        ("run('ls', shell=True)", "a shell"),
    ],
)
def test_a_planted_fault_is_found(tmp_path: Path, text: str, verdict: str) -> None:
    (tmp_path / "a.py").write_text(text)
    (found,) = faults(tmp_path)
    assert verdict in found


def test_git_is_the_only_program_and_only_where_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "_source.py").write_text("subprocess.run(['git', 'log'])")
    assert faults(tmp_path) == []
    (tmp_path / "_source.py").write_text("subprocess.run([word, 'log'])")
    assert len(faults(tmp_path)) == 1


def test_the_package_holds_text_only() -> None:
    files = [path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert len(files) > 100
    assert {path.suffix for path in files} <= ENDINGS


class Evil:
    """A pickle of it makes a file when it is read."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.file,)


def test_no_pickle_is_run(tmp_path: Path) -> None:
    made = tmp_path / "made"
    evil = tmp_path / "evil.pkl"
    evil.write_bytes(pickle.dumps({"data": Evil(made)}))
    pickle.loads(evil.read_bytes())
    assert made.exists()  # it is evil indeed
    made.unlink()
    with pytest.raises(DataError, match="not plain data: do not trust it"):
        read_pickle(evil)
    arrays = np.empty(1, object)
    arrays[0] = Evil(made)
    np.savez(tmp_path / "evil.npz", X=np.zeros((1, 2)), Y=arrays)
    with pytest.raises(DataError):
        npz(tmp_path / "evil.npz")
    assert not made.exists()


def test_an_archive_is_never_unpacked(tmp_path: Path) -> None:
    """Entries that lead out of the folder are neither written nor read."""
    inner = tmp_path / "inner"
    inner.mkdir()
    with zipfile.ZipFile(inner / "evil.npz", "w") as archive:
        archive.writestr("../out.npy", b"nothing")
        archive.writestr("/tmp/steelyard-out.npy", b"nothing")
    with pytest.raises(DataError):
        npz(inner / "evil.npz")
    assert [path.name for path in tmp_path.rglob("*")] == ["inner", "evil.npz"]
    assert not Path("/tmp/steelyard-out.npy").exists()


@pytest.mark.parametrize(
    "kind", ["internal", "external"], ids=["entities that grow a thousandfold", "an entity that names a file"]
)
def test_xml_fetches_and_swells_nothing(tmp_path: Path, kind: str) -> None:
    (tmp_path / "secret").write_text("secret")
    table = tmp_path / "a.arff"
    table.write_text("@relation a\n@attribute x numeric\n@attribute secret {0,1}\n@data\n1,0\n")
    if kind == "external":
        head, word = f'<!DOCTYPE a [<!ENTITY e SYSTEM "{tmp_path}/secret">]>', "&e;"
    else:
        levels = "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10}">' for i in range(1, 10))
        head, word = f'<!DOCTYPE a [<!ENTITY e0 "0123456789">{levels}]>', "&e9;"
    (tmp_path / "a.xml").write_text(f'<?xml version="1.0"?>{head}<labels><label name="secret">{word}</label></labels>')
    with pytest.raises(ElementTree.ParseError):
        ElementTree.fromstring((tmp_path / "a.xml").read_bytes())
    with pytest.raises(DataError, match="is not XML"):
        arff(table)
