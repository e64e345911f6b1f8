"""Draw times as bars with Pillow."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence

__all__ = ["draw", "why_not"]

NAMES, BAR, NUMBER, LINE, EDGE = 420, 420, 110, 22, 16  # pixels
LETTERS = (NAMES + BAR + NUMBER) // 7  # per line of a title, approximately
MAX_BARS = 60  # bars


def why_not(path: str) -> str:
    """Return why no image can be drawn; empty if it can. Raises ValueError for other suffixes."""
    try:
        from PIL import Image
    except ImportError:
        return "--plot needs Pillow: python -m pip install pillow, or cudnn-ct[examples]"
    Image.init()
    suffix = os.path.splitext(path)[1].lower()
    if Image.EXTENSION.get(suffix) not in Image.SAVE:
        raise ValueError(f"--plot {path}: got the suffix {suffix!r}, expected an image format such as .png")
    return ""


def draw(path: str, title: Sequence[str], rows: Sequence[tuple[str, float]], unit: str) -> None:
    """Draw a bar for each row, a name and a number, up to ``MAX_BARS``."""
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
    for label, number in shown:
        name = label
        while font.getlength(name) > NAMES - EDGE:
            name = name[:-2] + "…"
        canvas.text((EDGE, top), name, "black", font)
        left, width = EDGE + NAMES, BAR * number / longest
        canvas.rectangle((left, top + 2, left + max(width, 1), top + LINE - 6), "#4477aa")
        canvas.text((left + width + 6, top), f"{number:.1f} {unit}", "black", font)
        top += LINE
    image.save(path)
