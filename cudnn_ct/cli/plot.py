"""Draws times as bars, with Pillow."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Sequence

__all__ = ["draw", "why_not"]

NAMES, BAR, NUMBER, LINE, EDGE = 420, 420, 110, 22, 16  # pixels
LETTERS = (NAMES + BAR + NUMBER) // 7  # that a line of a title holds, about
MAX_BARS = 60  # bars


def why_not(path: str) -> str:
    """Why no picture can be drawn; empty where one can.

    Raises
    ------
    ValueError
        The path has not the ending of a picture.
    """
    try:
        from PIL import Image
    except ImportError:
        return "--plot needs Pillow: python -m pip install pillow, or cudnn-ct[examples]"
    Image.init()
    suffix = os.path.splitext(path)[1].lower()
    if Image.EXTENSION.get(suffix) not in Image.SAVE:
        raise ValueError(f"--plot {path}: Pillow knows a picture by its ending, as .png, and not {suffix!r}")
    return ""


def draw(path: str, title: Sequence[str], rows: Sequence[tuple[str, float]], unit: str) -> None:
    """Write a picture of a bar for each of ``rows``, a name and a number; of very many, the first."""
    from PIL import Image, ImageDraw, ImageFont

    lines = [part for line in title for part in textwrap.wrap(line, LETTERS)]
    shown = rows[:MAX_BARS]
    if len(shown) < len(rows):
        lines.append(f"the first {MAX_BARS} of {len(rows)}")
    size = NAMES + BAR + NUMBER + 2 * EDGE, LINE * (len(lines) + 1 + len(shown)) + 2 * EDGE
    image = Image.new("RGB", size, "white")
    canvas, font = ImageDraw.Draw(image), ImageFont.load_default(13)
    top = EDGE
    for line in lines:
        canvas.text((EDGE, top), line, "black", font)
        top += LINE
    top += LINE
    longest = max((number for _, number in shown), default=0.0) or 1.0
    for name, number in shown:
        canvas.text((EDGE, top), _cut(name, NAMES - EDGE, font.getlength), "black", font)
        left, width = EDGE + NAMES, BAR * number / longest
        canvas.rectangle((left, top + 2, left + max(width, 1), top + LINE - 6), "#4477aa")
        canvas.text((left + width + 6, top), f"{number:.1f} {unit}", "black", font)
        top += LINE
    image.save(path)


def _cut(name: str, width: int, length: Callable[[str], float]) -> str:
    """As much of a name as a width has room for."""
    while name and length(name) > width:
        name = name[:-2] + "…"
    return name
