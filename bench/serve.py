"""Load on `steelyard serve`: mixed requests at a fixed rate on loopback while the index is appended to.

    python bench/serve.py --items 1000000 --rate 100 --seconds 60

Of the requests 50 % are thumbnails (a few of them asked for often), 15 % pages and their files, 25 % searches out of
forty, 10 % queries never asked before. Requests are sent when they are due, whether or not earlier ones are answered,
and a latency counts from when it was due: a server that falls behind shows. They begin when the server says that it
serves. The server, the requests and the appends are three processes that share the cores of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import numpy as np
from PIL import Image

import steelyard as sy
from steelyard.search import Index

N_FILES = 2000
WARM = 10.0
"""Seconds after which a server that was just started has met most of what is asked often."""
PAGES = ("/", "/data", "/static/main.js", "/static/style.css", "/static/search.js", "/api/run", "/api/labels?text=la")


class Done(NamedTuple):
    kind: str
    due: float
    seconds: float
    status: int


def make(folder: Path, n_items: int, n_labels: int) -> Path:
    """A run, an index of so many items, and pictures that the items share."""
    g = np.random.default_rng(0)
    names = [f"label {i}" for i in range(n_labels)]
    x, y = g.normal(size=(200, 8)).astype(np.float32), (g.random((200, n_labels)) < 0.2).astype(np.int8)
    data = (x, sy.Labels(y, names))
    sy.fit(data, None, out=folder / "run", settings={"train": {"epochs": 1}}, verbose=False)
    pictures = folder / "pictures"
    pictures.mkdir()
    for i in range(N_FILES):
        noise = g.integers(0, 255, (30, 40, 3), np.uint8)
        Image.fromarray(noise).resize((500, 375)).save(pictures / f"{i}.jpg", quality=85)
    ids = [f"{i:09d}" for i in range(n_items)]
    paths = [str(pictures / f"{i % N_FILES}.jpg") for i in range(n_items)]
    p = g.beta(0.3, 3.0, (n_items, n_labels)).astype(np.float32)
    Index.build(folder / "run" / "index", ids, p, names, paths, overwrite=True).close()
    return folder / "run"


def requests(n: int, n_items: int, n_labels: int) -> list[tuple[str, str]]:
    """(kind, target) of each request."""
    g = np.random.default_rng(1)

    def query() -> str:
        picked = g.choice(n_labels, int(g.integers(2, 6)), replace=False)
        signs = g.choice(["present", "absent"], len(picked), p=[0.7, 0.3])
        asked = [(sign, f"label {i}") for sign, i in zip(signs.tolist(), picked.tolist(), strict=True)]
        return f"/api/search?{urlencode([*asked, ('k', 40)])}"

    often = [query() for _ in range(40)]
    popular = g.integers(0, n_items, 400)
    found = []
    for kind in g.choice(["thumbnail", "page", "search", "new search"], n, p=[0.5, 0.15, 0.25, 0.1]).tolist():
        if kind == "thumbnail":
            item = g.choice(popular) if g.random() < 0.8 else g.integers(0, n_items)
            found.append((kind, f"/api/thumbnail?id={item:09d}"))
        elif kind == "page":
            found.append((kind, str(g.choice(PAGES))))
        else:
            found.append((kind, str(g.choice(often)) if kind == "search" else query()))
    return found


class Client:
    """Connections that are kept, each used by one request at a time."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def get(self, target: str) -> int:
        kept = bool(self.idle)
        reader, writer = self.idle.pop() if kept else await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept-Encoding: gzip\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))  # type: ignore[index]
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            if kept:  # the server closes idle connections; that is no error, as any browser would try again
                return await self.get(target)
            return 0
        self.idle.append((reader, writer))
        return int(head[9:12])


async def load(port: int, asked: list[tuple[str, str]], rate: float) -> list[Done]:
    client, loop = Client(port), asyncio.get_running_loop()
    start = loop.time()

    async def one(i: int, kind: str, target: str) -> Done:
        due = start + i / rate
        await asyncio.sleep(max(0.0, due - loop.time()))
        try:
            status = await asyncio.wait_for(client.get(target), 30)
        except (TimeoutError, OSError):
            status = 0
        return Done(kind, due - start, loop.time() - due, status)

    return await asyncio.gather(*(one(i, kind, target) for i, (kind, target) in enumerate(asked)))


def append(folder: Path, every: float, n_labels: int) -> None:
    """Append 1,000 items every so many seconds until the input ends; print the seconds each took."""
    g = np.random.default_rng(2)
    index = Index.open(folder, threads=1)
    print("ready", flush=True)
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    while not stop.wait(every):
        began = time.perf_counter()
        ids = [f"new {time.time_ns()} {i:04d}" for i in range(1000)]
        index.append(ids, g.beta(0.3, 3.0, (1000, n_labels)).astype(np.float32))
        print(time.perf_counter() - began, flush=True)


def show(done: list[Done], seconds: float, took: list[float], before: float) -> None:
    by_kind: dict[str, list[Done]] = defaultdict(list)
    for one in done:
        by_kind[one.kind].append(one)
        by_kind["all"].append(one)
        if one.due > WARM:
            by_kind[f"all, {WARM:.0f} s on"].append(one)
    print(f"{'kind':<16}{'requests':>9}{'errors':>8}{'p50 ms':>9}{'p95 ms':>9}{'p99 ms':>9}{'max ms':>9}")
    for kind, ones in sorted(by_kind.items()):
        ms = 1000 * np.array([one.seconds for one in ones])
        wrong = sum(one.status != 200 for one in ones)
        p50, p95, p99 = np.percentile(ms, (50, 95, 99))
        print(f"{kind:<16}{len(ones):>9}{wrong:>8}{p50:>9.1f}{p95:>9.1f}{p99:>9.1f}{ms.max():>9.1f}")
    print(f"status: {dict(Counter(one.status for one in done))}; {seconds:.1f} s")
    if took:
        print(f"{len(took)} appends of 1,000 items, {np.median(took):.2f} s each (median)")
    print(f"{os.cpu_count()} cores, load average {before:.1f} before and {os.getloadavg()[0]:.1f} after (1 min)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--labels", type=int, default=80)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--append-every", type=float, default=5.0)
    parser.add_argument("--append-to", help="only append to this index, until the input ends")
    parser.add_argument("--folder", help="keep what is made here, and use it again")
    parser.add_argument("--out", type=Path, help="a JSON file in which the figures are kept")
    typed = parser.parse_args()
    if typed.append_to:
        append(Path(typed.append_to), typed.append_every, typed.labels)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(typed.folder or temporary)
        run = folder / "run"
        if not (run / "index" / "index.json").exists():
            folder.mkdir(parents=True, exist_ok=True)
            began = time.perf_counter()
            make(folder, typed.items, typed.labels)
            print(f"made {typed.items:,} items × {typed.labels} labels in {time.perf_counter() - began:.0f} s")
        code = f"from steelyard.serve import serve; serve({str(run)!r}, port=0, images={str(folder / 'pictures')!r})"
        append_to = [__file__, "--append-to", str(run / "index"), "--append-every", str(typed.append_every)]
        server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        writer = subprocess.Popen(
            [sys.executable, *append_to, "--labels", str(typed.labels)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            assert writer.stdout is not None
            writer.stdout.readline()  # it is ready
            port = int(re.search(r":(\d+) ", server.stdout.readline())[1])  # type: ignore[index]
            asked = requests(int(typed.rate * typed.seconds), typed.items, typed.labels)
            before, cpu, used = os.getloadavg()[0], time.process_time(), cpu_seconds(server.pid)
            began = time.perf_counter()
            done = asyncio.run(load(port, asked, typed.rate))
            seconds, used = time.perf_counter() - began, cpu_seconds(server.pid) - used
            own = time.process_time() - cpu
            took = [float(line) for line in writer.communicate()[0].split()]
        finally:
            for process in (writer, server):
                process.terminate()
                process.wait()
        show(done, seconds, took, before)
        print(f"CPU seconds of the server {used:.1f}, of the requests {own:.1f}")
        if typed.out is not None:
            kept = json.loads(typed.out.read_text()) if typed.out.exists() else {}
            p50, p99 = np.percentile([1000 * one.seconds for one in done], (50, 99))
            kept["serve"] = {
                "requests": len(done),
                "errors": sum(one.status != 200 for one in done),
                "p50 ms": p50,
                "p99 ms": p99,
                "p99 ms, 10 s on": np.percentile([1000 * one.seconds for one in done if one.due > WARM], 99),
                "appends": len(took),
                "CPU s of the server": used,
                "CPU s of the requests": own,
                "load": before,
                "date": datetime.now(UTC).date().isoformat(),
            }
            typed.out.write_text(json.dumps(kept, indent=1) + "\n")
        if len(took) < typed.seconds / typed.append_every / 2:
            sys.exit(f"only {len(took)} appends were made: this was no load while the index is appended to")


def cpu_seconds(pid: int) -> float:
    """The seconds of CPU that a process has used."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
