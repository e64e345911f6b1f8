"""Draw the pictures of README.md and docs/ as SVG: the architecture, and charts of measurements.

python tools/pictures.py           # write docs/images/*.svg
python tools/pictures.py --check   # print the pictures that are out of date, and exit 1 if any is

Charts are drawn from the tables that tools/performance_docs.py wrote into the pages, so that both agree.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"

PAPER, INK, PALE, LINE = "#ffffff", "#1c1c20", "#5a5a62", "#d4d4da"
COLOURS = ("#3f6fb5", "#c9822b")
OURS, THEIRS = "#dfe8f5", "#eeeef0"


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    IMAGES.mkdir(exist_ok=True)
    old = []
    for name, drawn in pictures().items():
        path = IMAGES / f"{name}.svg"
        if not path.exists() or path.read_text(encoding="utf-8") != drawn:
            old.append(name)
            if not options.check:
                path.write_text(drawn, encoding="utf-8")
    for name in old:
        print(f"{name}.svg", "is out of date" if options.check else "written")
    return 1 if options.check and old else 0


def pictures() -> dict[str, str]:
    """Return the text of each picture."""
    charts = {
        name: bars(f"Times of {subject} relative to PyTorch", *rows_of(page, name_of_table, columns))
        for name, subject, page, name_of_table, columns in CHARTS
    }
    return {"architecture": architecture(), "speed": speed(), **charts}


# --- charts ------------------------------------------------------------------------------------------------

PERFORMANCE, ATTENTION, LAYERS = "docs/performance.md", "docs/attention.md", "docs/layer-calls.md"
MATMUL = "docs/matmul-and-norms.md"
AUTOTUNE, HEURISTIC, OVER_TORCH = "autotune / PyTorch", "heuristic / PyTorch", "ours / PyTorch"

# The picture, its subject, the page, the name in the marks of the table, and the columns that are drawn.
CHARTS = (
    ("conv", "convolutions on the GPU", PERFORMANCE, "conv", (AUTOTUNE, HEURISTIC)),
    ("layers", "layers on the GPU", PERFORMANCE, "layers", (OVER_TORCH,)),
    ("rnn", "recurrent networks on the GPU", PERFORMANCE, "rnn", (AUTOTUNE, HEURISTIC)),
    ("host", "calls on the host", PERFORMANCE, "host-operations", (OVER_TORCH,)),
    (
        *("attention", "attention on the GPU", ATTENTION, "attention"),
        ("ours / cuDNN backend", "ours / flash backend"),
    ),
    ("products", "products on the GPU", MATMUL, "products", (AUTOTUNE, HEURISTIC)),
    ("norms", "normalisations on the GPU", MATMUL, "norms", (AUTOTUNE,)),
)

# The bars of the picture in README.md: a label, and where its ratio is.
SHORT = "measured"
SPEED = (
    *(
        (f"captured {label} / {title}", PERFORMANCE, "short", f"captured {label} / torch's {peer}", SHORT)
        for label in ("ResNet-50, batch 64", "GPT inference, batch 8", "GPT training, batch 8")
        for peer, title in (("compile", "torch.compile"), ("graph", "PyTorch's graph"))
    ),
    ("training of recurrent networks", PERFORMANCE, "short", "training of recurrent networks", SHORT),
    ("convolution, autotuned", PERFORMANCE, "conv", "all", AUTOTUNE),
    ("convolution, default", PERFORMANCE, "conv", "all", HEURISTIC),
    *(
        (
            f"attention in training / {peer} backend",
            ATTENTION,
            "attention",
            "training, forward",
            f"ours / {peer} backend",
        )
        for peer in ("cuDNN", "flash")
    ),
    (
        "transposed convolution, one axis",
        PERFORMANCE,
        "short",
        "transposed convolutions of one axis, float32",
        SHORT,
    ),
    *((name, LAYERS, "layers", name, OVER_TORCH) for name in ("pooling", "batch normalisation")),
    *(
        (name, PERFORMANCE, "short", name, SHORT)
        for name in (
            *("softmax", "reduction", "activation", "add and multiply", "dropout"),
            *("product + bias + gelu / eager", "norms of 3,000 elements"),
        )
    ),
)


class Bar(NamedTuple):
    """A row of a chart: its label, and a ratio or None for each colour."""

    label: str
    ratios: tuple[float | None, ...]


def rows_of(page: str, table: str, columns: tuple[str, ...]) -> tuple[tuple[str, ...], list[Bar]]:
    """Return the columns, and the rows of a table of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (block,) = re.findall(rf"<!-- begin: {table} [^\n]*\n(.*?)<!-- end: {table} ", text, re.DOTALL)
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in block.splitlines()
        if line[:1] == "|"
    ]
    places = [lines[0].index(column) for column in columns]
    return columns, [
        Bar(line[0].replace("`", ""), tuple(None if line[at] == "-" else float(line[at]) for at in places))
        for line in lines[2:]
    ]


def speed() -> str:
    """Draw the chart of README.md."""
    found = []
    for label, page, table, row, column in SPEED:
        (ratio,) = (bar.ratios for bar in rows_of(page, table, (column,))[1] if bar.label == row)
        found.append(Bar(label, ratio))
    return bars("GPU time relative to PyTorch", ("GPU time relative to PyTorch (geometric mean)",), found)


WIDTH, STEP, TOP, NUMBERS = 760, 15, 44, 44  # pixels; a number has room behind the longest bar
LETTER = 6.6  # width of a letter of a label, which is at most this in common fonts
MOST = 2.5  # ratios above are drawn as long as this one, and their bars are cut


def bars(title: str, columns: tuple[str, ...], rows: list[Bar]) -> str:
    """Draw a horizontal bar and a number for each ratio, and a line at 1."""
    left = 20 + LETTER * max(len(row.label) for row in rows)
    end = min(MOST, max(1.2, *(ratio or 0 for row in rows for ratio in row.ratios)))
    unit = (WIDTH - left - NUMBERS) / end
    height = STEP * len(columns) + 7
    bottom = TOP + height * len(rows)
    shapes, numbers = [], []
    for number, column in enumerate(columns):
        x = left + 180 * number
        shapes += [box(x, 12, 12, 12, COLOURS[number]), text(x + 18, 22, column, size=12)]
    for place, row in enumerate(rows):
        y = TOP + place * height
        shapes.append(text(left - 10, y + height / 2 + 1, row.label, size=12, anchor="end"))
        for number, ratio in enumerate(row.ratios):
            if ratio is not None:
                at = y + STEP * number
                width = unit * min(ratio, end)
                shapes.append(box(left, at, width, STEP - 3, COLOURS[number]))
                numbers += [
                    box(left + width + 3, at, 30, STEP - 3, PAPER),
                    text(left + width + 6, at + 10, f"{ratio:.2f}", size=11),
                ]
                if ratio > end:
                    cut = f"M{left + width - 14:g} {at - 1}l4 {STEP - 1}"
                    shapes.append(f'<path d="{cut}" stroke="{PAPER}" stroke-width="4"/>')
    one = left + unit
    shapes.append(f'<path d="M{one:g} {TOP - 8}V{bottom}" stroke="{INK}" stroke-dasharray="3 3"/>')
    shapes += numbers  # above the line
    note = "1: as fast as PyTorch; a shorter bar is faster"
    shapes.append(text(WIDTH - 8, bottom + 14, note, size=11, colour=PALE, anchor="end"))
    return svg(title, WIDTH, bottom + 24, shapes)


# --- the architecture --------------------------------------------------------------------------------------

# The levels of docs/architecture.md from the top, with the modules that a reader meets first.
LEVELS = (
    ("Interfaces", ("cudnn_ct", "torch/", "jax/", "cupy/", "cli/")),
    ("Operations", ("ops/", "captures/")),
    ("Plans, graphs, algorithms", ("plans/", "graph/", "autotune/", "certify/", "legal/")),
    ("Arrays and CUDA", ("cuda/", "array", "descriptors", "context", "_raw")),
    ("Loader", ("_dlopen", "_lib", "facts")),
    ("Values", ("shapes/", "_bindings/", "dtypes", "errors")),
)
BESIDE = (
    ("Reference", "reference/", "the same operations", "in NumPy"),
    ("Doctor", "cudnn_doctor", "checks installations,", "standard library only"),
)


def architecture() -> str:
    """Draw the levels of the package above the libraries that it calls, and the two parts next to them."""
    shapes = []
    for number, (title, modules) in enumerate(LEVELS):
        y = 14 + 52 * number
        shapes += [box(14, y, 530, 44, OURS, LINE), text(28, y + 27, title, size=14, bold=True)]
        shapes.append(text(532, y + 27, " · ".join(modules), size=12, anchor="end", colour=PALE))
    bottom = 14 + 52 * len(LEVELS)
    for x, label in ((14, "libcudnn and libcublasLt, by ctypes"), (284, "libcuda, by cuda-python")):
        shapes += [
            box(x, bottom + 14, 260, 40, THEIRS, LINE),
            text(x + 130, bottom + 39, label, anchor="middle"),
        ]
    for number, (title, module, *words) in enumerate(BESIDE):
        y, height = 14 + 156 * number, 148
        shapes += [box(566, y, 180, height, OURS, LINE), text(582, y + 30, title, size=14, bold=True)]
        shapes.append(text(582, y + 54, module, size=12, colour=PALE))
        shapes += [text(582, y + 84 + 20 * line, word, size=13) for line, word in enumerate(words)]
    return svg("The levels of the package and the libraries that it calls", WIDTH, bottom + 68, shapes)


# --- shapes ------------------------------------------------------------------------------------------------


def svg(title: str, width: int, height: float, shapes: Iterable[str]) -> str:
    """Return a picture; screen readers read its title."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" font-family="sans-serif">'
    )
    named = f"<title>{escape(title)}</title>"
    return "\n".join([head, named, box(0, 0, width, height, PAPER), *shapes, "</svg>", ""])


def box(x: float, y: float, width: float, height: float, colour: str, line: str = "none") -> str:
    """Return a rectangle."""
    size = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return f'<rect {size} fill="{colour}" stroke="{line}"/>'


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 13,
    anchor: str = "start",
    colour: str = INK,
    bold: bool = False,
) -> str:
    """Return a line of text."""
    weight = ' font-weight="bold"' if bold else ""
    place = f'x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"{weight}'
    return f"<text {place}>{escape(words)}</text>"


if __name__ == "__main__":
    sys.exit(main())
