"""The Python of README.md and of the guides, run as pasted: ``python -m tests.guides PAGE``.

The guides are the pages in that section of mkdocs.yml; the pages about other libraries have a section of
their own. The snippets of a page run one after another with common names. Without a GPU, the first of a guide
runs as it is, and the others run on shapes.

A comment in the line above a snippet names its needs, which are those of `NEEDS`: ``<!-- needs a GPU -->``.
Elsewhere the snippet is only compiled.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import cudnn_ct as ct

ROOT = Path(__file__).resolve().parents[1]
SNIPPET = re.compile(r"(?:<!-- needs ([\w. ]+) -->\n)?```python\n(.*?)```", re.DOTALL)
PRINTED = re.compile(r"^ *print\(.*\)  # ((?:[(\[\d]|DeviceArray)\S.*|\w+)$", re.MULTILINE)


class Snippet(NamedTuple):
    """A piece of Python of a page, and the line at which it begins."""

    line: int
    needs: str
    code: str


def guides() -> list[str]:
    """Return the paths of README.md and of the guides, in the order of the menu."""
    return ["README.md", *_pages("Guides")]


def internals() -> list[str]:
    """Return the paths of the pages for reference and about the inside that have Python."""
    return [page for title in ("Reference", "Internals") for page in _pages(title) if snippets(page)]


def others() -> list[str]:
    """Return the paths of the pages about other libraries; PyTorch's has tests of its own."""
    return [page for page in _pages("Other libraries") if page != "docs/pytorch.md"]


def _pages(title: str) -> list[str]:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^  - {title}:.*\n((?:      .*\n)+)", menu, re.MULTILINE)
    return [f"docs/{page}" for page in re.findall(r": ([\w-]+\.md)$", section, re.MULTILINE)]


def _has_cudnn() -> bool:
    try:
        return ct.version() > 0
    except ct.CudnnError:
        return False


def _exported(path: Path) -> bool:
    """Export a plan to the file that a page imports, if there is a GPU, and return whether it exists."""
    if ct.available():
        with ct.record_plans() as recorded:
            ct.softmax(ct.zeros((2, 3)))
        ct.export_plans(path, recorded)
    return path.is_file()


def _on_shapes_or_since(version: int) -> bool:
    return not ct.available() or ct.version() >= version


# Needs of snippets, and whether this process has them; torch and cupy are for GPUs.
NEEDS: dict[str, Callable[[], bool]] = {
    "a GPU": lambda: bool(ct.available()),
    "cuDNN": _has_cudnn,
    "a GPU with cuDNN 9.22": lambda: bool(ct.available() and ct.version() >= 92200),
    "plans.file": lambda: _exported(Path("plans.file")),
    "torch": lambda: bool(ct.available() and find_spec("torch")),
    "jax": lambda: bool(find_spec("jax")),
    "cupy": lambda: bool(ct.available() and find_spec("cupy")),
}
# Operations that are newer than others; on shapes they need no cuDNN.
NEEDS |= {
    f"cuDNN {number // 10_000}.{number // 100 % 100}": partial(_on_shapes_or_since, number)
    for number in (92200, 92400, 92600, 92800)
}


def snippets(page: str) -> list[Snippet]:
    """Return the Python of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Snippet(text[: match.start(2)].count("\n") + 1, match[1] or "", match[2])
        for match in SNIPPET.finditer(text)
    ]


def run(page: str, skipped: set[str], *, on_shapes: bool) -> int:
    """Run the snippets of a page, and return how many ran.

    Raises
    ------
    AssertionError
        The output lacks a line that a comment behind a ``print`` promises.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    ran = 0
    as_it_is = page in (*guides(), *others())
    for one in snippets(page):
        before = "\n" * (one.line - 1)  # so that errors have the line of the page
        code = compile(before + one.code, page, "exec")
        if one.needs in skipped:
            continue
        with (
            _shapes(on_shapes and (ran > 0 or not as_it_is)),
            contextlib.redirect_stdout(io.StringIO()) as output,
        ):
            exec(code, names)
        ran += 1
        for promised in PRINTED.findall(one.code):
            lines = output.getvalue().splitlines()
            assert any(line.startswith(promised) for line in lines), f"{page}:{one.line}: {promised}: {lines}"
    return ran


@contextlib.contextmanager
def _shapes(active: bool) -> Iterator[None]:
    with ct.record_plans(shapes_only=True) if active else contextlib.nullcontext():
        yield


if __name__ == "__main__":
    missing = {need for need in {one.needs for one in snippets(sys.argv[1])} - {""} if not NEEDS[need]()}
    print(run(sys.argv[1], missing, on_shapes=not ct.available()))
