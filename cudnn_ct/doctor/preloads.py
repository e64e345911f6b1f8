"""Find preloaded libraries that replace those of a cuDNN: LD_PRELOAD and /etc/ld.so.preload."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from .. import _elf, _files
from .._find import LibrarySpec, SearchContext, searched
from .finding import Finding, finding
from .libraryset import LibrarySet

FILE = "/etc/ld.so.preload"


def check(found: LibrarySet, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Report each preloaded library that is one of cuDNN, or that defines functions of cuDNN."""
    words = list(filter(None, re.split(r"[ :]+", environ.get("LD_PRELOAD", ""))))
    for word in words:
        rest = f"remove {word} from LD_PRELOAD" if words[1:] else "unset LD_PRELOAD"
        yield from _judge(found, word, "LD_PRELOAD", rest, environ)
    try:
        text = _files.text_of(_files.real(os.path.join(found.root, FILE[1:]), found.root))
    except OSError:
        return
    for line in text.splitlines():
        for word in filter(None, re.split(r"[ \t:,]+", line.partition("#")[0])):
            yield from _judge(found, word, FILE, f"remove {word} from {FILE}", environ)


def _judge(
    found: LibrarySet, word: str, source: str, advice: str, environ: Mapping[str, str]
) -> Iterator[Finding]:
    path = _path_of(found, word, environ)
    if not path or os.path.dirname(path) == found.folder:
        return
    text = f"{source} names {word}"
    try:
        elf = _elf.read(path)
        exports = sorted(name for name in elf.symbols.exports if re.match("cudnn[A-Z]", name))
    except _elf.ElfError:
        return  # the linker ignores it
    if not (_files.library_name(word) or _files.library_name(elf.soname or "")):
        if not exports:
            return
        text += f", which defines functions of cuDNN, such as {exports[0]}"
    yield finding("preloaded", text, path=path, expected=found.folder, fix={"advice": advice})


def _path_of(found: LibrarySet, word: str, environ: Mapping[str, str]) -> str:
    """Return the file that the linker preloads for a path or a name; empty if it finds none."""
    if "/" in word:
        paths = [os.path.join(found.root, word.lstrip("/")) if word.startswith("/") else word]
    else:
        context = SearchContext(None, environ, root=found.root)
        folders = searched(("system",), LibrarySpec(word), context)
        paths = [os.path.join(folder, word) for _, folder in folders]
    real = (_files.real(path, found.root) for path in paths)
    return next(filter(os.path.isfile, real), "")
