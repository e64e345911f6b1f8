"""Loads cuDNN once for the process, and binds its C functions; importing this module opens nothing."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any

from cudnn_doctor.read.find import EXPLICIT, SearchResult, mapped_files
from cudnn_doctor.read.installation import Installation
from cudnn_doctor.read.libraries import EXT, FULL, SETS, SUBLIBRARIES, lacking, part_of_header
from cudnn_doctor.read.versions import dotted, version_number

from . import _dlopen, errors
from ._config import config
from ._dlopen import find_cudnn, require
from ._handle import in_forked_child
from .errors import CudnnError, LibraryLoadError, VersionMismatchError, error_from_status, format_version

NOTHING = SearchResult(None, "", ())

# A full cuDNN ends the process («Invalid handle. Cannot load symbol cublasLtGetVersion») if it cannot load
# libcublasLt: when it finalises a descriptor, or in a call with a handle. Both need a call of one of these
# two functions first, so they are bound only after libcublasLt is loaded, and libnvrtc where engines need it.
NEED_COMPANIONS = ("cudnnCreate", "cudnnBackendFinalize")

UNAVAILABLE = 3009  # the status of a function whose library does not exist

# Arguments that only newer versions may accept, by function: the enum, the place, and the name in an error.
_DATED = {
    "cudnnBackendCreateDescriptor": ("BackendDescriptorType", 0, "a CUDNN_BACKEND_"),
    "cudnnBackendSetAttribute": ("BackendAttributeName", 1, "the attribute CUDNN_ATTR_"),
}

# Errors that a broken installation can cause, in any call: cuDNN opens some libraries late.
INSTALLATION = (errors.NotInitializedError, LibraryLoadError)


def load() -> Library:
    """Find, check, open and bind cuDNN; later calls return the library that the first one loaded."""
    # Raises LibraryNotFoundError with all steps of the search and their reasons, LibraryLoadError for a
    # broken library, and VersionMismatchError for cuDNN 8 or for parts of different versions.
    if _state.library is None:
        with _state.lock:
            if _state.library is None:
                _state.setting = config.library
                _state.library = _load()
    elif config.library != _state.setting:
        _state.setting = config.library
        errors.warn_caller(
            f"ct.config.library was set too late: {_state.library!r} is loaded and stays for this process"
        )
    return _state.library


def version(raises: bool = True) -> int:
    """Return the version of cuDNN as ``cudnnGetVersion`` does: 92700 is 9.27.0.

    Parameters
    ----------
    raises : bool
        Whether to raise if no cuDNN can be loaded; otherwise -1 is returned.

    Returns
    -------
    int

    Raises
    ------
    VersionMismatchError
        The header next to the library, or a part of the library, has another version. Always raised.
    LibraryLoadError
        No library was found, or it cannot be loaded. Both are also RuntimeError.

    Notes
    -----
    ``cudnnGetVersion``.

    Examples
    --------
    >>> ct.version() // 10000  # the floor is 9.0
    9
    """
    try:
        library = load()
    except LibraryLoadError:
        if raises:
            raise
        return -1
    if mismatch := library.header_mismatch():
        raise library.with_diagnosis(VersionMismatchError(mismatch))
    return library.version


def _diagnose(path: str | os.PathLike[str] | None) -> list[str]:
    """Return the doctor's findings for a cuDNN: only files are read, in about a tenth of a second."""
    if not path or not os.path.exists(path):  # the error itself names the path
        return []
    try:
        from cudnn_doctor import verdict_lines  # imports all of the doctor: only after a failure

        return verdict_lines(path)
    except Exception:  # the sources of the doctor cannot be read, for instance: the error itself matters
        return []


def _with_notes(error: CudnnError, lines: list[str]) -> CudnnError:
    for line in lines:
        if line not in getattr(error, "__notes__", ()):
            error.add_note(line)
    return error


class Library:
    """Every C function of one cuDNN as an attribute, typed, and checked for failure."""

    # A function that returns ``cudnnStatus_t`` raises the exception of its status; success costs only the
    # return. A function that this cuDNN is too old for, or whose library it lacks, raises when it is called.
    kind: str = FULL  # its set of libraries: ``full``, ``jit`` or ``ext``

    def __init__(
        self,
        lookup: _dlopen.Lookup,
        installation: Installation | None = None,
        found: SearchResult = NOTHING,
        skipped: dict[str, str] | None = None,
    ) -> None:
        self.installation = installation  # the files that it was loaded from; None for the fakes of tests
        if installation:
            self.kind = installation.kind
        self.path = installation.shim if installation else ""
        self.found = found  # the search that found it
        self.skipped = skipped or {}  # sub-libraries that could not be opened, and why
        self._lookup = lookup
        self.version: int = 0
        self.version = self._newest() if self.kind == EXT else int(self._bound("cudnnGetVersion")())
        for name in prototypes():
            if name not in NEED_COMPANIONS or not self.companions:
                setattr(self, name, self._bound(name))

    def __getattr__(self, name: str) -> Any:
        if name in NEED_COMPANIONS and self.companions:
            with _state.lock:
                # Bind once: ctypes calls `errcheck` by a borrowed reference, and a second binding would free
                # it during a call in another thread.
                if name not in self.__dict__:
                    self.open_companions()
                    for function in NEED_COMPANIONS:
                        setattr(self, function, self._bound(function))
            return self.__dict__[name]
        import difflib  # only for a wrong name

        close = ", ".join(difflib.get_close_matches(name, prototypes(), n=3))
        hint = f"; did you mean {close}?" if close else ""
        raise AttributeError(f"cuDNN's headers have no function {name!r}{hint}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *prototypes()})

    def __repr__(self) -> str:
        return f"<cuDNN {self.version_text} at {self.path or 'no path'}>"

    @property
    def variant(self) -> str:
        """The end of the version in keys of caches: engines of two sets have different numbers."""
        return "" if self.kind == FULL else f" {self.kind}"

    @property
    def version_text(self) -> str:
        """The version and the set of libraries, such as ``9.27.0`` or ``9.27.0 jit``."""
        return format_version(self.version) + self.variant

    @cached_property
    def build(self) -> str:
        """The cuDNN in keys of stored kernels: those for CUDA 12 and CUDA 13 compile other machine code."""
        return f"cuDNN {self.version_text} for CUDA {self.cuda_version // 1000}"

    @cached_property
    def companions(self) -> frozenset[str]:
        """The libraries of CUDA that its engines need; fakes have no files, so they need none."""
        return _dlopen.needed(self.installation) if self.installation else frozenset()

    def lacks(self, part: str) -> str:
        """Return that a set does not have a sub-library, in words that follow a name; empty if it has."""
        have = self.installation.libraries if self.installation else SETS[self.kind]
        exists = part not in SUBLIBRARIES or part in have
        return "" if exists else f"{lacking(part, self.kind, self.path)} ({UNAVAILABLE})"

    def why_missing(self, name: str) -> str:
        """Return why this cuDNN does not have a C function, in words that follow a name; empty if it has."""
        return str(getattr(getattr(self, name), "reason", ""))

    def _newest(self) -> int:
        """Return the version that introduced the newest function; cuDNN's own answer needs libcudnn_graph."""
        return int(max(one.since for name, one in prototypes().items() if self._lookup(name)))

    @property
    def cuda_version(self) -> int:
        """The CUDA version that this cuDNN was built for: 12090 is 12.9; 0 if it lacks libcudnn_graph."""
        return 0 if self.lacks("graph") else int(self.cudnnGetCudartVersion())

    @cached_property
    def _findings(self) -> list[str]:
        return _diagnose(self.path)

    def with_diagnosis(self, error: CudnnError) -> CudnnError:
        """Add the doctor's findings for the files of this library as notes on an error."""
        # The files are read once for each loaded library: a library without its engines fails for every
        # graph.
        return _with_notes(error, self._findings)

    def lacks_code(self, capability: tuple[int, int]) -> str:
        """Return why this cuDNN has no code for a GPU, in one line; empty if it has, or if unknown."""
        if self.installation is None:
            return ""
        files = tuple((part.name, part.real) for part in self.installation.parts)
        try:
            from cudnn_doctor import lacks_code  # reads files, once for each GPU

            return lacks_code(files, capability[0] * 10 + capability[1])
        except Exception:  # the files are gone, for instance: the operations themselves report that
            return ""

    def header_mismatch(self) -> str:
        """Return how the version of the header next to this library differs from it; empty if it does not."""
        header = self.installation.header if self.installation else None
        if not header or not header.version or version_number(header.version) == self.version:
            return ""
        return (
            f"the header and the library of cuDNN differ: {header.path} is {dotted(header.version)} while "
            f"{self.path} is {format_version(self.version)}; reinstall one of them"
        )

    def open_companions(self) -> None:
        """Open the libraries of CUDA that the engines of this cuDNN need."""
        assert self.installation is not None
        name = f"cuDNN {self.version_text} at {self.path}"
        try:
            _dlopen.open_needed(self.installation, self.cuda_version // 1000, name)
        except errors.LibraryNotFoundError as error:
            raise self.with_diagnosis(error) from None

    def find_nvrtc(self) -> str:
        """Return the path of the libnvrtc that compiles kernels; empty if it was not found."""
        assert self.installation is not None
        return _dlopen.find_nvrtc(self.installation, self.cuda_version // 1000)

    @cached_property
    def nvrtc(self) -> tuple[str, ...]:
        """The libnvrtc that libcudnn_ext compiles with, opened by the first use; empty if none was found."""
        majors = (self.cuda_version // 1000,) if self.cuda_version else (13, 12)
        return _dlopen.open_nvrtc(self.installation, majors) if self.installation else ()

    def _bound(self, name: str) -> Any:
        prototype = prototypes()[name]
        # The shim has all functions. Those of a library that does not exist print a line on stderr.
        lacks = self.lacks(part_of_header(prototype.header))
        function: Any = None if lacks else self._lookup(name)
        if function is None:
            return self._stub(name, prototype.since, lacks)
        function.__name__ = name  # which functions of CFUNCTYPE lack
        function.restype = prototype.restype
        function.argtypes = prototype.argtypes
        if prototype.returns_status:
            function.errcheck = self._check
        return function

    def _stub(self, name: str, since: int, lacks: str) -> Callable[..., Any]:
        newer = since > self.version
        needs = f"needs cuDNN >= {format_version(since)}" if newer else "is missing from this cuDNN"
        reason = lacks if lacks and not newer else f"{needs}, have {format_version(self.version)}"

        def missing(*_: object) -> Any:
            if reason is lacks:
                raise errors.NotSupportedError(f"{name} {reason}", status=UNAVAILABLE, function=name)
            raise VersionMismatchError(f"{name} {reason}", function=name)

        missing.__name__ = name
        missing.reason = reason  # type: ignore[attr-defined]  # for `why_missing`
        return missing

    def _check(self, status: int, function: Any, args: tuple[Any, ...]) -> int:
        if status:
            name = function.__name__
            raise self._too_new(status, name, args) or self._failure(status, name)
        return status

    def _too_new(self, status: int, name: str, args: tuple[Any, ...]) -> CudnnError | None:
        """Make the error for a descriptor or an attribute that this cuDNN is too old for.

        Older versions return ALLOC_FAILED for an unknown kind of descriptor.
        """
        enum, value, prefix = _DATED.get(name, ("", 0, ""))
        if not enum:
            return None
        from ._bindings import enums  # 73 enum classes: only after a failure

        member = next((one.name for one in getattr(enums, enum) if one == args[value]), "")
        since = enums.SINCE.get(f"{enum}.{member}", 0)
        if since <= self.version:
            return None
        text = f"{prefix}{member} needs cuDNN >= {format_version(since)}, have {format_version(self.version)}"
        return VersionMismatchError(text, status=status, function=name)

    def _failure(self, status: int, name: str) -> CudnnError:
        # The caller raises it without a local reference: the cycle through its traceback would keep arrays
        # alive.
        error = error_from_status(status, name, self._last_error_text(), self.version)
        return self.with_diagnosis(error) if isinstance(error, INSTALLATION) else error

    def _last_error_text(self) -> str:
        if self.lacks("graph"):
            return ""
        text = ctypes.create_string_buffer(1024)
        self.cudnnGetLastErrorString(text, len(text))
        return text.value.decode("utf-8", "replace").strip()


class _State:
    """The loaded library of the process, and the lock for loading it."""

    def __init__(self) -> None:
        self.library: Library | None = None
        self.setting = config.library  # at the time of loading
        self.renew_lock()

    def renew_lock(self) -> None:
        # A thread of the parent, which a forked child does not have, may hold the lock.
        self.lock = threading.RLock()


_state = _State()
in_forked_child(_state.renew_lock)


def _install(library: Library | None) -> None:
    """Replace the loaded library; with None, `load` loads again. For tests."""
    with _state.lock:
        _state.library = library


def _load() -> Library:
    found = find_cudnn()
    try:
        return _loaded(found)
    except CudnnError as error:
        _with_notes(error, _diagnose(found.path))
        raise


def _loaded(found: SearchResult) -> Library:
    try:
        installation = require(found)
    except LibraryLoadError as error:
        if found.found_via != EXPLICIT or not os.path.lexists(found.path or ""):  # it names the setting
            raise
        raise type(error)(f"{error} ({EXPLICIT} or ct.config.library names this path)") from None
    strangers = installation.other_installations(mapped_files())
    if strangers:  # cuDNN would take some parts of each, by their names
        raise LibraryLoadError(
            f"this process has already loaded {strangers[0]}; {installation.shim} would mix with it. Use one "
            "of the two in a process (unset CUDNN_CT_LIBRARY or LD_PRELOAD), or restart it if the files were "
            "replaced while it ran"
        )
    if installation.world_writable:
        errors.warn_caller(installation.world_writable)
    lookup, skipped = _dlopen.open_installation(installation)
    library = Library(lookup, installation, found, skipped)
    if installation.number and library.version != installation.number:
        raise VersionMismatchError(
            f"{installation.folder} holds cuDNN {format_version(installation.number)} and this process runs "
            f"{format_version(library.version)}: LD_PRELOAD or another package loaded that one first"
        )
    if mismatch := library.header_mismatch():
        errors.warn_caller(mismatch)
    for stranger in installation.other_installations(mapped_files()):
        # cuDNN tries libcudnn_graph.so.9.27.0 before libcudnn_graph.so.9, and LD_LIBRARY_PATH had a file of
        # that name: the same version, but perhaps for another CUDA.
        errors.warn_caller(
            f"cuDNN of {installation.folder} has also opened {stranger}; take it off LD_LIBRARY_PATH"
        )
    return library


def prototypes() -> dict[str, Any]:
    """Return the generated prototypes of all C functions, by name."""
    from ._bindings.functions import FUNCTIONS  # builds all prototypes: only when a library is loaded

    return FUNCTIONS
