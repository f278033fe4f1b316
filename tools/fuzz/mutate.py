"""Inputs for parsers: seeds changed a little or a lot, and trees of JSON with strange leaves."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

LONGEST = 1 << 16
_NUMBERS = (
    *(b"0", b"-1", b"1", b"2", b"255", b"256", b"65535", b"65536", b"2147483647", b"2147483648", b"4294967295"),
    *(b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"-9223372036854775809", b"1e400"),
    *(b"-1e400", b"1e-400", b"NaN", b"nan", b"inf", b"-Infinity", b"0x10", b"1_000", b".", b"-", b"+1", b"1.", b".5"),
    *(b"9" * 400, b"1" * 5000, b"\xd9\xa3", b"\xc2\xb2", b"1e", b"0.1", b"0.30000000000000004", b"-0.0", b"3.5e38"),
)
_BYTES = (
    *(b"\x00", b"\xff", b"\n", b"\r", b"\r\n", b"\t", b" ", b'"', b"'", b"\\", b"\xef\xbb\xbf", b"\xff\xfe"),
    *(b"\xc2\x85", b"\xe2\x80\xa8", b"\xed\xa0\x80", b"\xf0\x9f\x90\xb6", b"\xc2\xa0", b"\x1c", b"\x0b", b"\x0c"),
    *(b"\x7f", b"\x1b[2J", b"%", b",", b";", b"|", b"{", b"}", b"[", b"]", b"(", b")", b"=", b"<", b">", b"&", b"../"),
)
_TOKEN = re.compile(rb"[A-Za-z_@]+|[0-9]+(?:\.[0-9]+)?|[^A-Za-z0-9_@\s]+")


def raw(random: Random) -> bytes:
    """Bytes of no form."""
    return random.randbytes(random.choice((0, 1, 2, 3, 4, 8, 30, 200)))


def mutated(random: Random, seeds: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """A seed after one to six changes."""
    data = bytearray(random.choice(seeds))
    for _ in range(random.choice((1, 1, 1, 1, 2, 2, 3, 6))):
        random.choice(_CHANGES)(random, data, seeds, words)
    return bytes(data[:LONGEST])


Change = Callable[[Random, bytearray, Sequence[bytes], Sequence[bytes]], None]


def _span(random: Random, data: bytearray) -> slice:
    start = random.randrange(len(data) + 1)
    return slice(start, start + min(random.randrange(1, 64), random.randrange(1, 64)))


def _flip(random: Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _byte(random: Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    if data:
        data[random.randrange(len(data))] = random.randrange(256)


def _remove(random: Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    del data[_span(random, data)]


def _insert(random: Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = random.choice(random.choice((_NUMBERS, _BYTES, words or _BYTES)))


def _token(random: Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    """Put another word in the place of one."""
    found = list(_TOKEN.finditer(data, random.randrange(len(data) + 1)))[:20]
    if found:
        start, stop = random.choice(found).span()
        data[start:stop] = random.choice(random.choice((_NUMBERS, words or _NUMBERS)))


def _copy(random: Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = data[_span(random, data)]


def _repeat(random: Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    """Say something many times: what is slow or deep shows itself."""
    at = random.randrange(len(data) + 1)
    piece = bytes(data[at : at + random.choice((1, 1, 1, 2, 3, 8))])
    times = random.choice((3, 20, 200, 2000)) if random.random() < 0.3 else 2
    data[at:at] = piece * times


def _splice(random: Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    other = random.choice(seeds)
    data[random.randrange(len(data) + 1) :] = other[random.randrange(len(other) + 1) :]


def _cut(random: Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    del data[random.randrange(len(data) + 1) :]


def _line(random: Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    """Remove, double or move a line."""
    lines = data.split(b"\n")
    line = lines.pop(random.randrange(len(lines)))
    for _ in range(random.randrange(3)):
        lines.insert(random.randrange(len(lines) + 1), line)
    data[:] = b"\n".join(lines)


def _size(random: Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]) -> None:
    """Write a whole number over some bytes, as headers of binary files hold them."""
    width = random.choice((1, 2, 4, 8))
    number = random.choice(
        (0, 1, 2, 127, 128, 255, 256, 65535, 1 << 20, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 64) - 1)
    )
    at = random.randrange(len(data) + 1)
    data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, random.choice(("big", "little")))


_CHANGES: tuple[Change, ...] = (
    *(_flip, _byte, _remove, _insert, _insert, _token, _token, _copy, _repeat, _splice, _cut, _line, _size),
)

_LEAVES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.0, 1e308, 1 << 31, 1 << 63, 1 << 64, 10**400, "", "a", "\ud800", "\n"),
    *("../x", "/etc/passwd", "\u202e", "0", "nan", float("nan"), float("inf"), [], {}, [[]], [None], {"": None}),
    *("x" * 3000, [0] * 300, "kind", "F32", "I64", {"id": 1}),
)


def tree(random: Random, value: Any) -> Any:
    """JSON like `value` with one to four of its nodes changed."""
    for _ in range(random.randrange(1, 5)):
        value = _changed(random, value)
    return value


def _changed(random: Random, value: Any) -> Any:
    if not isinstance(value, (dict, list)) or not value or random.random() < 0.05:
        return random.choice(_LEAVES)
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    key = random.choice(list(copy)) if isinstance(copy, dict) else random.randrange(len(copy))
    what = random.random()
    if what < 0.1:
        del copy[key]
    elif what < 0.2 and isinstance(copy, dict):
        copy[random.choice((*copy, "id", "x", ""))] = copy[key]
    elif what < 0.2:
        copy.insert(key, copy[random.randrange(len(copy))])
    else:
        copy[key] = _changed(random, copy[key])
    return copy
