"""Search hits on one picture or page: each with its image, score and probabilities."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image, ImageDraw, ImageFont, ImageOps

from steelyard._console import plain
from steelyard._files import check_place, replacing
from steelyard.data.images import BadImage, decode
from steelyard.report.headline import probability
from steelyard.report.page import data_url, write_page
from steelyard.search import Hit
from steelyard.search.formula import quoted

ENDINGS = (".png", ".html", ".htm")
MOST = 500
"""Most items on a sheet."""
_SIDE, _GAP, _LINE, _ACROSS, _SIZE = 224, 12, 16, 5, 12
_PAPER, _INK, _SOFT, _BLANK = "#ffffff", "#1d2733", "#56616f", "#e8ecf1"


class SheetItem(NamedTuple):
    """A search hit and its image file."""

    hit: Hit
    path: str | None


def check(path: str) -> None:
    """Raise, before the search, for a file that could not be written afterwards."""
    if Path(path).suffix.lower() not in ENDINGS:
        raise ValueError(f"{path} ends in none of {', '.join(ENDINGS)}: give another name")
    check_place(path)


def write_sheet(path: str, title: str, items: Sequence[SheetItem]) -> str:
    """Write a contact sheet, PNG or HTML by the ending of its name, whole or not at all.

    It shows at most `MOST` items, since it is made in memory; returned is its note about the others, "" for none.
    """
    shown, left = items[:MOST], len(items) - MOST
    note = f"The first {MOST:,} are shown, {left:,} are left out." if left > 0 else ""
    if Path(path).suffix.lower() == ".png":
        with replacing(path) as partial:
            _picture([title, note] if note else [title], shown).save(partial, "PNG")
    else:
        write_page(path, "contact_sheet.html", title, note=note, items=[_figure(one) for one in shown])
    return note


def thumbnail(path: str | None, side: int = _SIDE) -> Image.Image | None:
    """Return an image as large as a square of `side` pixels holds, None where it cannot be read."""
    if path is None:
        return None
    try:
        image = Image.fromarray(decode(path).transpose(1, 2, 0))
    except BadImage:
        return None
    return ImageOps.contain(image, (side, side))


def caption(hit: Hit) -> list[str]:
    """Return the lines under an item: its score and id, then each label with its probability."""
    labels = [f"{probability(eta)} {plain(quoted(label))}" for label, eta in hit.probabilities.items()]
    return [f"{probability(hit.score)}  {plain(hit.id)}", *labels]


def _picture(titles: Sequence[str], items: Sequence[SheetItem]) -> Image.Image:
    font = ImageFont.load_default(_SIZE)
    lines = max((len(caption(one.hit)) for one in items), default=1)
    across, high = min(_ACROSS, max(1, len(items))), _SIDE + _LINE * lines + _GAP
    down = -(-len(items) // across)
    top = 2 * _GAP + _LINE * len(titles)
    sheet = Image.new("RGB", (_GAP + across * (_SIDE + _GAP), top + down * (high + _GAP)), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for j, title in enumerate(titles):
        draw.text((_GAP, _GAP + _LINE * j), _fitted(plain(title), font, sheet.width - 2 * _GAP), _INK, font)
    for i, one in enumerate(items):
        x, y = _GAP + i % across * (_SIDE + _GAP), top + i // across * (high + _GAP)
        draw.rectangle((x, y, x + _SIDE - 1, y + _SIDE - 1), _BLANK)
        image = thumbnail(one.path)
        if image is None:
            draw.text((x + _GAP, y + _SIDE // 2), "no image", _SOFT, font)
        else:
            sheet.paste(image, (x + (_SIDE - image.width) // 2, y + (_SIDE - image.height) // 2))
        for j, line in enumerate(caption(one.hit)):
            draw.text((x, y + _SIDE + 4 + _LINE * j), _fitted(line, font, _SIDE), _SOFT if j else _INK, font)
    return sheet


def _fitted(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    """Return a text, cut to a width."""
    if font.getlength(text) <= width:
        return text
    n = len(text)
    while n and font.getlength(text[:n] + "…") > width:
        n -= max(1, n // 8)
    return text[: max(n, 0)] + "…"


def _figure(one: SheetItem) -> dict[str, Any]:
    """Return the entry of an item on the page."""
    image = thumbnail(one.path)
    if image is None:
        return {"source": "", "caption": caption(one.hit)}
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85)
    source = data_url("image/jpeg", buffer.getvalue())
    return {"source": source, "width": image.width, "height": image.height, "caption": caption(one.hit)}
