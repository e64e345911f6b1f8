"""Read the folders that the ``/etc/ld.so.conf`` of an image names."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator

from .. import _files

MAX_FILES = 100


def folders(root: str) -> Iterator[str]:
    """Yield the folders, as paths below the root; files that cannot be read are skipped."""
    todo = ["/etc/ld.so.conf"]
    seen: set[str] = set()
    while todo:
        path = _files.real(os.path.join(root, todo.pop(0).lstrip("/")), root)
        if path in seen or len(seen) >= MAX_FILES:
            continue
        seen.add(path)
        try:
            lines = _files.text_of(path).splitlines()
        except OSError:
            continue
        for line in lines:
            words = line.partition("#")[0].split()
            if words[:1] == ["include"]:
                todo += [each for word in words[1:] for each in _matching(word, path, root)]
            elif words and words[0].startswith("/") and words[0] != "/":
                yield os.path.join(root, words[0].lstrip("/"))


def _matching(pattern: str, path: str, root: str) -> list[str]:
    """List the files of an image that a pattern matches, as programs in it name them."""
    here = os.path.dirname(os.path.join("/", os.path.relpath(path, root)))
    folder, name = os.path.split(os.path.join(here, pattern))
    real = _files.real(os.path.join(root, folder.lstrip("/")), root)
    found = sorted(glob.glob(os.path.join(glob.escape(real), name)))
    return [os.path.join("/", os.path.relpath(each, root)) for each in found]
