"""Objects on the pages of docs/api.

A line ``::: other names of PACKAGE`` on a page stands for the public names of a package that no page lists.
A new operation therefore needs no line.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path

import cudnn_ct

PAGES = Path(__file__).resolve().parents[1] / "docs" / "api"

OBJECT = re.compile(r"^::: ([\w.]+)$(?:\n    options:\n      heading: ([\w.]+)$)?", re.MULTILINE)
OTHERS = re.compile(r"^::: other names of ([\w.]+)$", re.MULTILINE)


def expanded(page: str) -> str:
    """Replace each line for other names on a page by a block for each name."""
    return OTHERS.sub(lambda line: "\n\n".join(_block(name) for name in _others(line[1])), page)


@cache
def objects() -> list[tuple[str, str]]:
    """Return the paths of all objects on the pages, each with the name in its heading."""
    found = [match for page in _pages() for match in OBJECT.findall(expanded(page))]
    return [(path, heading or path) for path, heading in found]


def _pages() -> list[str]:
    return [page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md"))]


def _others(package: str) -> list[str]:
    listed = {heading or path for page in _pages() for path, heading in OBJECT.findall(page)}
    return [name for name in _names(package) if name not in listed]


def _names(package: str) -> list[str]:
    if package == "cudnn_ct.ops":  # its names are public in cudnn_ct
        public: dict[str, str] = vars(cudnn_ct)["_PUBLIC"]
        modules = [names for module, names in public.items() if module.startswith("ops.")]
        return [f"cudnn_ct.{name}" for names in modules for name in names.split()]
    module = import_module(package)
    own = (name for name in module.__all__ if getattr(module, name) is not getattr(cudnn_ct, name, None))
    return [f"{package}.{name}" for name in own]


def _block(name: str) -> str:
    """Return the block of an object. A function in a module of the same name needs its heading."""
    last = name.rpartition(".")[2]
    folder = Path(cudnn_ct.__file__).parents[1]
    if not (folder / name.replace(".", "/")).with_suffix(".py").exists():
        return f"::: {name}"
    return f"::: {name}.{last}\n    options:\n      heading: {name}\n      toc_label: {last}"
