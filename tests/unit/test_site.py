"""The documentation as a site: its menu has every page, and the pages of the API have every public name."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

import cudnn_ct as ct
from cudnn_ct import dnn, doctor, graph, reference, testing

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "mkdocs.yml"
DOCS = ROOT / "docs"

if not (SITE.is_file() and DOCS.is_dir()):
    pytest.skip("mkdocs.yml and docs are not beside these tests", allow_module_level=True)

# Pages that tools/docs_site.py makes of files outside docs.
MADE = {"index.md", "contributing.md", "changes.md", "licence.md"}

# The same functions as in the package itself, and what has a page of its own.
ELSEWHERE = {
    "reference": {"conv_output_shape", "conv_transpose_output_shape", "pool_output_shape"},
}


OBJECT = re.compile(r"^::: ([\w.]+)$(?:\n    options:\n      heading: ([\w.]+)$)?", re.MULTILINE)


def documented() -> list[str]:
    """The names that objects go by: a heading, where a module has the name of its function."""
    texts = [page.read_text() for page in (DOCS / "api").glob("*.md")]
    found = [heading or name for text in texts for name, heading in OBJECT.findall(text)]
    return [name.removeprefix("cudnn_ct.") for name in found]


def test_every_object_is_a_class_or_a_function() -> None:
    """A module that has the name of its function would be shown in its place."""
    for text in (page.read_text() for page in (DOCS / "api").glob("*.md")):
        for name, _ in OBJECT.findall(text):
            path = Path(ct.__file__).parents[1] / name.replace(".", "/")
            assert not path.is_dir(), name
            assert not path.with_suffix(".py").exists(), name


def test_every_page_is_in_the_menu_and_the_menu_has_no_others() -> None:
    menu = re.findall(r": ([\w/-]+\.md)$", SITE.read_text(), re.MULTILINE)
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert sorted(menu) == sorted(pages | MADE)


def test_every_public_name_is_documented_once() -> None:
    names = documented()
    assert len(names) == len(set(names))
    objects = {"config": "_config.Config", "raw": "_raw.RawLibrary"}
    public = {objects.get(name, name) for name in ct.__all__} - {"dnn", "reference"}
    assert public <= set(names), sorted(public - set(names))


@pytest.mark.parametrize(
    "module", [dnn, doctor, graph, reference, testing], ids=lambda module: module.__name__
)
def test_every_name_of_a_module_is_documented(module: ModuleType) -> None:
    own = module.__name__.partition(".")[2]
    names = {name.removeprefix(f"{own}.") for name in documented() if name.startswith(f"{own}.")}
    assert set(module.__all__) - ELSEWHERE.get(own, set()) <= names


PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_in_pages_are_there(page: Path) -> None:
    """``ct.name`` and ``ct.reference.name``; what is no name of the package is a misprint."""
    for name in re.findall(r"\bct\.([A-Za-z_]\w*)", page.read_text()):
        assert hasattr(ct, name), f"{page.name} has ct.{name}"
    for name in re.findall(r"\breference\.([a-z_]\w*)", page.read_text()):
        assert name == "rnn" or name == "md" or hasattr(reference, name), f"{page.name} has reference.{name}"
