"""Filter a photograph with a small bank of filters: on the GPU through cuDNN, or by the NumPy reference.

    python examples/01_quickstart.py [--output PATH]

Every colour channel of the picture goes through every filter in one grouped convolution. With a GPU, the
result is compared with the reference. Without one, it says why not and the reference makes the same picture.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from matplotlib.cbook import get_sample_data
from PIL import Image, ImageDraw, ImageFont

import cudnn_ct as ct

OUTPUT = Path(__file__).parent / "output" / "filters.png"
TOLERANCE = 1e-5  # float32 sums of at most 49 products, each at most 1


def main() -> int:
    """Run the example and return its exit status: 1 if GPU and reference differ."""
    parser = argparse.ArgumentParser(description="Filter a photograph with cuDNN, or with NumPy.")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the picture (default: %(default)s)")
    output = parser.parse_args().output

    photograph = load_photograph().astype(np.float32) / 255  # (height, width, colours)
    names, bank = filter_bank()

    x = photograph.transpose(2, 0, 1)[None]  # (1, colours, height, width)
    w = np.concatenate([bank] * 3)[:, None]  # (colours * filters, 1, 7, 7): the bank once for each colour

    info = ct.library_info()
    print(f"cuDNN {info.version} at {info.path}" if info.path else "no cuDNN was found: see `cudnn-ct info`")
    available = ct.available()
    if available:
        y = ct.conv(ct.asarray(x), ct.asarray(w), padding="half", groups=3, precision="float32").numpy()
        difference = float(np.abs(y - ct.reference.conv(x, w, padding="half", groups=3)).max())
        print(f"largest difference between the GPU and the reference: {difference:.1e}")
        title = f"computed on the GPU by cuDNN {info.version}"
    else:
        print(f"not on a GPU: {available.reason}")
        print("so the NumPy reference computes instead")
        y, difference = ct.reference.conv(x, w, padding="half", groups=3), 0.0
        title = "computed by the NumPy reference"

    height, width = photograph.shape[:2]
    filtered = y.reshape(3, len(names), height, width).transpose(1, 2, 3, 0)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        contact_sheet(title, photograph, dict(zip(names, filtered, strict=True))).save(output)
    except (OSError, ValueError) as error:
        print(f"the picture cannot be saved as {output}: {error}", file=sys.stderr)
        return 1
    print(f"saved {output}: {len(names)} filters over {width} x {height} pixels in 3 colours")
    if difference > TOLERANCE:
        print(f"that difference is too large: at most {TOLERANCE} is rounding", file=sys.stderr)
        return 1
    return 0


def load_photograph() -> np.ndarray:
    """Return a photograph of the size 512 x 600, which comes with Matplotlib."""
    with get_sample_data("grace_hopper.jpg") as file, Image.open(file) as image:
        return np.asarray(image.convert("RGB"))


def filter_bank() -> tuple[list[str], np.ndarray]:
    """Return names, and filters of shape (number, 7, 7) whose smaller windows are centred in zeros.

    Blurs sum to 1 and keep the brightness. Edge filters sum to 0, their positive weights to at most 1.
    """
    row = np.arange(-3, 4)
    bell = np.exp(-(row**2) / (2 * 1.5**2))
    gaussian = np.outer(bell, bell) / bell.sum() ** 2
    identity = np.outer(row == 0, row == 0).astype(float)
    sobel = np.outer([1, 2, 1], [-1, 0, 1]) / 4
    bank = {
        "Gaussian blur": gaussian,
        "motion blur": np.eye(7) / 7,
        "sharpen": 2 * identity - gaussian,
        "Sobel x": sobel,
        "Sobel y": sobel.T,
        "Laplacian": np.array([[1, 1, 1], [1, -8, 1], [1, 1, 1]]) / 8,
        "emboss": np.array([[-2, -1, 0], [-1, 0, 1], [0, 1, 2]]) / 4,
    }
    centred = [np.pad(window, (7 - len(window)) // 2) for window in bank.values()]
    return list(bank), np.stack(centred).astype(np.float32)


# --- the picture -------------------------------------------------------------------------------------------

TILE, GAP, CAPTION, HEADER, FOOTER = (384, 450), 16, 34, 60, 40
CREDIT = "photograph: Grace Hopper by James S. Davis, US Navy, public domain"
PAPER, INK, PALE = (250, 250, 248), (28, 28, 32), (120, 120, 126)
COLUMNS = 3


def contact_sheet(title: str, photograph: np.ndarray, filtered: dict[str, np.ndarray]) -> Image.Image:
    """Lay out the photograph, what each filter made of it, and the strength of its edges, with captions."""
    tiles = [("photograph", "", photograph), *(as_seen(name, image) for name, image in filtered.items())]
    strength = np.hypot(filtered["Sobel x"], filtered["Sobel y"]).max(axis=2, keepdims=True)
    scale = scale_of(strength)
    tiles.append(("edge strength", f"white {scale:.2f}", strength / scale))

    rows = -(-len(tiles) // COLUMNS)
    step_x, step_y = TILE[0] + GAP, TILE[1] + CAPTION + GAP
    sheet = Image.new("RGB", (COLUMNS * step_x + GAP, HEADER + rows * step_y + FOOTER), PAPER)
    draw = ImageDraw.Draw(sheet)
    large, medium, small = (ImageFont.load_default(size) for size in (26, 20, 17))
    draw.text((GAP, HEADER // 2), "cudnn_ct quickstart", INK, large, anchor="lm")
    draw.text((sheet.width - GAP, HEADER // 2), title, PALE, medium, anchor="rm")
    notes = f"{CREDIT}. The strongest 1 % of each stretched tile is clipped."
    draw.text((GAP, sheet.height - FOOTER // 2), notes, PALE, small, anchor="lm")
    for place, (name, note, image) in enumerate(tiles):
        x, y = GAP + place % COLUMNS * step_x, HEADER + place // COLUMNS * step_y
        draw.text((x, y + CAPTION // 2), name, INK, medium, anchor="lm")
        draw.text((x + TILE[0], y + CAPTION // 2), note, PALE, small, anchor="rm")
        sheet.paste(to_picture(image), (x, y + CAPTION))
    return sheet


def as_seen(name: str, image: np.ndarray) -> tuple[str, str, np.ndarray]:
    """Return a tile: blurs as they are; what has both signs around a middle grey, stretched to the range."""
    if name in ("Gaussian blur", "motion blur", "sharpen"):
        return name, "", image
    scale = scale_of(image)
    return name, f"black -{scale:.2f}, grey 0, white {scale:.2f}", 0.5 + 0.5 * image / scale


def scale_of(image: np.ndarray) -> float:
    """Return what all but the strongest percent of the values stay below, away from the zeros at the rim."""
    return float(np.percentile(np.abs(image[4:-4, 4:-4]), 99))


def to_picture(image: np.ndarray) -> Image.Image:
    """Make a tile of values between 0 and 1, colours last."""
    values = np.broadcast_to(image, (*image.shape[:2], 3)).clip(0, 1)
    return Image.fromarray((values * 255).round().astype(np.uint8)).resize(TILE, Image.Resampling.LANCZOS)


if __name__ == "__main__":
    sys.exit(main())
