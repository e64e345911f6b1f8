"""Loads cuDNN and binds its functions: the one place of the package that opens libraries.

Importing this module opens nothing. `load` finds, checks and opens cuDNN once for the process; a `Library`
has all of its C functions, typed and checked.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any

from . import _elf
from ._config import config
from ._find import (
    COMPANION_STEPS,
    EXPLICIT,
    SearchContext,
    SearchResult,
    cublaslt,
    find_cudnn,
    mapped_files,
    search,
)
from ._installation import Installation, require, world_writable
from ._libraries import SUBLIBRARIES
from .errors import (
    CudnnError,
    LibraryLoadError,
    LibraryNotFoundError,
    NotInitializedError,
    VersionMismatchError,
    error_from_status,
    format_version,
    warn_caller,
)

__all__ = ["Library", "load", "prototypes", "version", "with_diagnosis"]

Lookup = Callable[[str], Any]

NOTHING = SearchResult(None, "", ())

# cuDNN ends the whole process («Invalid handle. Cannot load symbol cublasLtGetVersion») when it comes to need
# libcublasLt and cannot load it: while it finalises a descriptor, or in what is done with a handle. Every way
# there leads through one of these two, which are therefore bound only once libcublasLt is loaded.
NEED_CUBLASLT = ("cudnnCreate", "cudnnBackendFinalize")

# What a broken installation can be the reason of. Any call may come upon it: some libraries are opened late.
INSTALLATION = (NotInitializedError, LibraryLoadError)


def load() -> Library:
    """Find, check, open and bind cuDNN; the second call answers with what the first one loaded.

    Raises
    ------
    LibraryNotFoundError
        Nothing was found, or not where ``CUDNN_CT_LIBRARY`` points; with all steps and their reasons.
    LibraryLoadError
        What was found is broken: missing, truncated, unreadable parts, another machine's.
    VersionMismatchError
        It is cuDNN 8 or older, or parts of different versions have met.
    """
    if _state.library is None:
        with _state.lock:
            if _state.library is None:
                _state.setting = config.library
                _state.library = _load()
    elif config.library != _state.setting:
        _state.setting = config.library
        _warn(f"ct.config.library comes too late: {_state.library!r} is loaded, and stays for this process")
    return _state.library


def version(raises: bool = True) -> int:
    """Tell the version of cuDNN as ``cudnnGetVersion`` writes it: 92700 is 9.27.0.

    Parameters
    ----------
    raises : bool
        Whether to raise when there is no cuDNN that can be loaded; -1 is the answer otherwise.

    Returns
    -------
    int

    Raises
    ------
    VersionMismatchError
        The header that belongs to the library is of another version, or parts of the library are: always.
    LibraryLoadError
        There is none, or it cannot be loaded. Both are also RuntimeError.

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
    mismatch = library.header_mismatch()
    if mismatch:
        raise library.with_diagnosis(VersionMismatchError(mismatch))
    return library.version


def with_diagnosis(error: CudnnError, path: str | os.PathLike[str] | None) -> CudnnError:
    """Note on an error what the doctor finds wrong with the cuDNN at ``path``, where that is anything.

    Only files are read, in about a tenth of a second; nothing is raised.
    """
    return _with_notes(error, _diagnose(path))


def _diagnose(path: str | os.PathLike[str] | None) -> tuple[str, ...]:
    if not path or not os.path.exists(path):  # of which the error says all that there is to say
        return ()
    try:
        from .doctor import verdict_lines  # all of the doctor: only when something has failed

        return tuple(verdict_lines(path))
    except Exception:  # a module that cannot be read, say: the error itself is what counts
        return ()


def _with_notes(error: CudnnError, lines: tuple[str, ...]) -> CudnnError:
    known = getattr(error, "__notes__", ())
    for line in lines:
        if line not in known:
            error.add_note(line)
    return error


class Library:
    """Every C function of one cuDNN as an attribute, typed, and checked for failure.

    A function that returns ``cudnnStatus_t`` raises the exception of its status; success costs nothing but
    the return. One that this cuDNN is too old for is there too, and raises when it is called.

    Parameters
    ----------
    lookup
        From a C function's name to the function, None when there is none. Tests give fakes of ``CFUNCTYPE``.
    installation
        The files it was loaded from; None for fakes.
    found : Search
        The search that found it.
    skipped : dict
        Sub-libraries that could not be opened, and why.

    Attributes
    ----------
    path : str
        Real path of ``libcudnn.so.9``; empty for fakes.
    found_via : str
        The step that found it.
    version : int
        What ``cudnnGetVersion`` answers.
    """

    def __init__(
        self,
        lookup: Lookup,
        installation: Installation | None = None,
        found: SearchResult = NOTHING,
        skipped: dict[str, str] | None = None,
    ) -> None:
        self.installation = installation
        self.path = installation.shim if installation else ""
        self.found = found
        self.found_via = found.found_via
        self.skipped = skipped or {}
        self._lookup = lookup
        self.version: int = 0
        self.version = int(self._bound("cudnnGetVersion")())
        for name in prototypes():
            # Without files there is nothing to resolve libcublasLt against: fakes are bound at once.
            if installation is None or name not in NEED_CUBLASLT:
                setattr(self, name, self._bound(name))

    def __getattr__(self, name: str) -> Any:
        if name in NEED_CUBLASLT and self.installation is not None:
            with _state.lock:
                # Bound once: ctypes calls `errcheck` by a borrowed reference, and binding again would free it
                # during a call in another thread.
                if name not in self.__dict__:
                    self.open_cublaslt()
                    for needy in NEED_CUBLASLT:
                        setattr(self, needy, self._bound(needy))
            return self.__dict__[name]
        import difflib  # only for a name that is wrong

        close = difflib.get_close_matches(name, prototypes(), n=3)
        hint = f"; did you mean {', '.join(close)}?" if close else ""
        raise AttributeError(f"cuDNN's headers have no function {name!r}{hint}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *prototypes()})

    def __repr__(self) -> str:
        return f"<cuDNN {format_version(self.version)} at {self.path or 'no path'}>"

    @property
    def cuda_version(self) -> int:
        """The CUDA version that this cuDNN was built for: 12090 is 12.9."""
        return int(self.cudnnGetCudartVersion())

    @cached_property
    def _faults(self) -> tuple[str, ...]:
        return _diagnose(self.path)

    def with_diagnosis(self, error: CudnnError) -> CudnnError:
        """Note on an error what the doctor finds wrong with the files of this library.

        It looks once for each library that was loaded: one that lacks its engines fails for every graph.
        """
        return _with_notes(error, self._faults)

    def lacks_code(self, capability: tuple[int, int]) -> str:
        """Return why this cuDNN has no code for a GPU, in one line; empty if it has, or if unknown."""
        if self.installation is None:
            return ""
        try:
            from .doctor import lacks_code  # reads files, once for a GPU

            files = tuple((file.name, file.path) for file in self.installation.files if file.path)
            return lacks_code(files, capability[0] * 10 + capability[1])
        except Exception:  # the files are gone, for instance: the operations themselves report that
            return ""

    def header_mismatch(self) -> str:
        """Say how the header that belongs to this library differs from it; empty when it does not."""
        header = self.installation.header if self.installation else None
        if header is None or header.version in (None, format_version(self.version)):
            return ""
        return (
            f"the header and the library of cuDNN differ: {header.path} is {header.version} while "
            f"{self.path} is {format_version(self.version)}; reinstall one of them"
        )

    def open_cublaslt(self) -> str:
        """Open the libcublasLt that this cuDNN will ask for by name, and tell its path."""
        assert self.installation is not None
        wanted = cublaslt(self.cuda_version // 1000)
        found = search(wanted, COMPANION_STEPS, SearchContext(beside=self.installation.folder))
        if found.path is None:
            raise with_diagnosis(
                LibraryNotFoundError(self._without_cublaslt(wanted.soname), found.steps), self.path
            )
        return _open_checked(found.path)

    def _without_cublaslt(self, soname: str) -> str:
        cuda = int(soname.rpartition(".")[2])
        package = "nvidia-cublas" if cuda >= 13 else f"nvidia-cublas-cu{cuda}"
        return (
            f"cuDNN {format_version(self.version)} at {self.path} needs {soname}, and would end this process "
            f"without it: pip install {package}, or put its folder on LD_LIBRARY_PATH before Python starts"
        )

    def _bound(self, name: str) -> Any:
        prototype = prototypes()[name]
        function = self._lookup(name)
        if function is None:
            return self._stub(name, prototype.since)
        function.__name__ = name  # which functions of CFUNCTYPE lack
        function.restype = prototype.restype
        function.argtypes = prototype.argtypes
        if prototype.returns_status:
            function.errcheck = self._check
        return function

    def _stub(self, name: str, since: int) -> Callable[..., Any]:
        newer = since > self.version
        needs = f"needs cuDNN >= {format_version(since)}" if newer else "is missing from this cuDNN"

        def missing(*_: object) -> Any:
            raise VersionMismatchError(f"{name} {needs}, have {format_version(self.version)}", function=name)

        missing.__name__ = name
        return missing

    def _check(self, status: int, function: Any, args: tuple[Any, ...]) -> int:
        if status:
            name = function.__name__
            raise self._too_new(status, name, args) or self._failure(status, name)
        return status

    def _too_new(self, status: int, name: str, args: tuple[Any, ...]) -> CudnnError | None:
        """Make the error for a kind of descriptor that this cuDNN is too old for: it returns ALLOC_FAILED."""
        if name != "cudnnBackendCreateDescriptor":
            return None
        from ._bindings.enums import SINCE, BackendDescriptorType  # 73 enum classes: only after a failure

        kind = next((member.name for member in BackendDescriptorType if member == args[0]), "")
        since = SINCE.get(f"BackendDescriptorType.{kind}", 0)
        if since <= self.version:
            return None
        text = f"a CUDNN_BACKEND_{kind} needs cuDNN >= {format_version(since)}"
        return VersionMismatchError(
            f"{text}, have {format_version(self.version)}", status=status, function=name
        )

    def _failure(self, status: int, name: str) -> CudnnError:
        """Make the exception. The frame that raises must not hold it: arrays would live on in the circle."""
        error = error_from_status(status, name, self._last_error_text(), self.version)
        return self.with_diagnosis(error) if isinstance(error, INSTALLATION) else error

    def _last_error_text(self) -> str:
        text = ctypes.create_string_buffer(1024)
        self.cudnnGetLastErrorString(text, len(text))
        return text.value.decode("utf-8", "replace").strip()


class _State:
    """What the process has loaded, and the lock under which it is."""

    def __init__(self) -> None:
        self.library: Library | None = None
        self.setting = config.library  # at the time of loading
        self.renew()

    def renew(self) -> None:
        # A fork copies the lock as it is, held perhaps by a thread that the child does not have.
        self.lock = threading.RLock()


_state = _State()
if hasattr(os, "register_at_fork"):  # not on Windows, where `load` says that it is not supported
    os.register_at_fork(after_in_child=_state.renew)


def _install(library: Library | None) -> None:
    """Put a library in place of the loaded one, or None to load anew: for tests."""
    with _state.lock:
        _state.library = library


def driver_version(path: str) -> int:
    """Ask a libcuda for the CUDA version it supports, without starting it; 0 where it does not answer."""
    number = ctypes.c_int()
    try:
        status = ctypes.CDLL(path).cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return 0
    return 0 if status else number.value


def _load() -> Library:
    found = find_cudnn()
    try:
        return _loaded(found)
    except CudnnError as error:
        with_diagnosis(error, found.path)
        raise


def _loaded(found: SearchResult) -> Library:
    try:
        installation = require(found)
    except LibraryLoadError as error:
        if found.found_via != EXPLICIT:
            raise
        raise type(error)(f"{error} ({EXPLICIT} or ct.config.library names this path)") from None
    strangers = installation.other_installations(mapped_files())
    if strangers:  # the two would share some libraries by name, and mix
        raise LibraryLoadError(
            f"this process has already loaded {strangers[0]}; {installation.shim} would mix with it. Use one "
            "of the two in a process (unset CUDNN_CT_LIBRARY or LD_PRELOAD), or start it anew if the files "
            "were replaced while it ran"
        )
    if installation.world_writable:
        _warn(installation.world_writable)
    lookup, skipped = _open(installation)
    library = Library(lookup, installation, found, skipped)
    if installation.number and library.version != installation.number:
        raise VersionMismatchError(
            f"{installation.folder} holds cuDNN {format_version(installation.number)} and this process runs "
            f"{format_version(library.version)}: LD_PRELOAD or another package has put that one in place"
        )
    if mismatch := library.header_mismatch():
        _warn(mismatch)
    for stranger in installation.other_installations(mapped_files()):
        # The one way past `_open`: cuDNN tries libcudnn_graph.so.9.27.0 before libcudnn_graph.so.9, and
        # LD_LIBRARY_PATH had a file of that name. It is of the same version, though perhaps of another CUDA.
        _warn(f"cuDNN of {installation.folder} has also opened {stranger}; take it off LD_LIBRARY_PATH")
    return library


def _open(installation: Installation) -> tuple[Lookup, dict[str, str]]:
    """Open all libraries of the folder by absolute path, so that no search path can bring in another's.

    cuDNN asks for its parts by name, and gets what is loaded by that name, whatever LD_LIBRARY_PATH says.
    """
    skipped: dict[str, str] = {}
    for file in installation.files:
        try:
            if file.path:
                ctypes.CDLL(file.path)
        except OSError as error:
            if SUBLIBRARIES[file.name].core:
                raise _not_loadable(file.path, error) from None
            skipped[file.name] = str(error)
            if "libcuda.so.1" not in str(error):  # that one is missing wherever there is no driver
                _warn(f"{file.path} cannot be loaded ({error}): cuDNN does without it, slower or not at all")
    try:
        shim = ctypes.CDLL(installation.shim)
    except OSError as error:
        raise _not_loadable(installation.shim, error) from None
    return lambda name: getattr(shim, name, None), skipped


def _open_checked(path: os.PathLike[str]) -> str:
    real = os.path.realpath(path)
    try:
        _elf.check(real)
        if danger := world_writable(real):
            _warn(danger)
        ctypes.CDLL(real)
    except (_elf.ElfError, OSError) as error:
        raise _not_loadable(real, error) from None
    return real


def _not_loadable(path: str | None, error: Exception) -> LibraryLoadError:
    return LibraryLoadError(f"{path} cannot be loaded: {error}")


def _warn(text: str) -> None:
    warn_caller(text)


def prototypes() -> dict[str, Any]:
    """The generated prototypes of all C functions, by name."""
    from ._bindings.functions import FUNCTIONS  # builds all prototypes: only when a library is loaded

    return FUNCTIONS
