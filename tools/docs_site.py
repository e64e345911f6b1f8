"""Hooks of MkDocs: pages made from files outside docs/, the names on API pages, and links between files.

README.md is the home page. PAGES lists all pages from files outside docs/. A link to any other file of the
repository leads to its copy below ``repository/``. Documents therefore link to each other by their paths in
the repository, and every link works in both places. A link to a file that does not exist fails the build.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))

from api_pages import expanded

ROOT = Path(__file__).resolve().parents[1]

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "LICENSE": "licence.md",
    "SECURITY.md": "security.md",
}
SOURCES = {page: source for source, page in PAGES.items()}

LINK = re.compile(r"(?<=\]\()(?![a-z]+:)([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages, and the files of the repository that any page links to."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=_text(source)))
    wanted = {target for file in files.documentation_pages() for target in _outside(file)}
    for target in sorted(wanted):
        files.append(File.generated(config, target, abs_src_path=str(ROOT / target.partition("/")[2])))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Expand the lists of names of a page, and change its links to paths on the site."""
    uri = page.file.src_uri
    folder = posixpath.dirname(uri)
    return LINK.sub(lambda link: posixpath.relpath(_on_site(uri, link[1]), folder), expanded(markdown))


def _text(source: str) -> str:
    text = (ROOT / source).read_text(encoding="utf-8")
    return text if source.endswith(".md") else f"# {source.capitalize()}\n\n```text\n{text}```\n"


def _outside(file: File) -> Iterator[str]:
    """Yield the paths on the site of the files, other than pages, that a page links to."""
    for link in LINK.findall(file.content_string):
        target = _on_site(file.src_uri, link)
        if target.startswith("repository/") and (ROOT / target.partition("/")[2]).is_file():
            yield target


def _on_site(uri: str, link: str) -> str:
    """Return the path on the site for a link on a page, which is a path in the repository."""
    source = SOURCES.get(uri, f"docs/{uri}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if path in PAGES:
        return PAGES[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"
