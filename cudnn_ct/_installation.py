"""Find the cuDNN of this process, and raise the errors of one that cannot be opened."""

from __future__ import annotations

import os

from cudnn_doctor.read import find as _find
from cudnn_doctor.read.find import EXPLICIT, SearchResult
from cudnn_doctor.read.installation import Installation, inspect

from ._config import config
from .errors import CudnnError, LibraryLoadError, LibraryNotFoundError, VersionMismatchError

_ERRORS = {
    "missing": LibraryNotFoundError,
    "unloadable": LibraryLoadError,
    "version": VersionMismatchError,
}


def find_cudnn() -> SearchResult:
    """Search this machine for cuDNN with all steps."""
    if unsupported := _find.unsupported():
        return SearchResult(None, "", (("platform", unsupported),))
    return _find.search(_find.CUDNN, _find.CUDNN_STEPS, _find.SearchContext(config.library or None))


def require(found: SearchResult) -> Installation:
    """Read what a search found, and raise unless it is a cuDNN that can be opened."""
    if found.path is None:
        raise _not_found(found)
    installation = inspect(found.path)
    if installation.problems:
        problem, *more = installation.problems
        first = _ERRORS[problem.kind](problem.text)
        if isinstance(first, LibraryNotFoundError):
            named = found.found_via == EXPLICIT and not os.path.lexists(found.path)
            wrong = (
                f"{EXPLICIT} or ct.config names {found.path}, which does not exist; correct it, or unset it"
            )
            first = LibraryNotFoundError(wrong if named else problem.text, found.steps)
        for note in (f"found via {found.found_via}", *map(str, more)):
            first.add_note(note)
        raise first
    return installation


def _not_found(found: SearchResult) -> CudnnError:
    for other in found.others:  # report a cuDNN 8 rather than nothing
        for problem in inspect(other).problems:
            if problem.kind == "version":
                return VersionMismatchError(problem.text)
    advice = (
        "pip install nvidia-cudnn-cu12 (or -cu13), or the smaller nvidia-cudnn-jit-cu12 (or -cu13), or set "
        "CUDNN_CT_LIBRARY to its file or folder; `cudnn-ct doctor` finds damaged ones"
    )
    if found.steps[0][0] == "platform":
        advice = found.steps[0][1]
    return LibraryNotFoundError(f"no cuDNN 9 was found: {advice}", found.steps)
