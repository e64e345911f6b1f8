"""Run the probe in child processes, also with a stub of the driver; a crash or a hang is a result."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import IO, Any

from .finding import Finding, Severity, finding
from .read import files as _files
from .read.elf import machine_here
from .search import SETTINGS

NEEDS = "raise the limits of this process (ulimit -a), or use a Python that can start child processes"

MAX_OUTPUT = 32 << 20  # bytes read of the output of a child

_REQUEST = re.compile(
    r"file=libcudnn_[a-z_]+\.so\.(\d+\.\d+\.\d+) \[0\];\s+dynamically loaded by (.+) \[\d+\]$", re.M
)

_LINKER = re.compile(r"\s*\d+:\t")
_LOG = re.compile(r"[A-Za-z]! ")
_REFUSAL = re.compile(
    r"^\s*(?:\d+:\s+)*((?=.*libcudnn).*\.so[.\d]*): error: (.+?)(?: \((?:fatal|continued)\))?$", re.M
)
# The linker logs no error for a library that it does not find, but a library that it finds has a link map.
_LOST = re.compile(r"file=(\S+) \[0\];\s+needed by .*libcudnn.* \[0\]\n(?!.*;\s+generating link map)")


@dataclass(frozen=True)
class Report:
    """The run of one child."""

    steps: tuple[dict[str, Any], ...]  # in order; each has "step" and values
    ended: str  # "done", "hung", "refused" (it could not be started), or the name of a signal
    seconds: float
    words: str = ""  # the last lines of its stderr, without cuDNN's log
    log: str = ""  # the warnings of cuDNN's log
    asked_by: Mapping[str, str] | None = None  # for each library that opened others, the requested version
    refusals: tuple[tuple[str, str], ...] = ()  # libraries of cuDNN that the linker could not open, and why
    lost: tuple[str, ...] = ()  # libraries that it did not find for a library of cuDNN

    def all(self, step: str) -> list[dict[str, Any]]:
        """Return all steps of a name."""
        return [row for row in self.steps if row["step"] == step]

    def last(self, step: str) -> dict[str, Any]:
        """Return the last step of a name; empty if it was not reached."""
        return (self.all(step) or [{}])[-1]

    @property
    def reached(self) -> str:
        """The call during which it ended."""
        return str(self.last("begin").get("what", "starting"))


def not_started(report: Report, severity: Severity) -> Finding:
    """Return the finding for a child that could not be started."""
    text = f"cannot start a child process: {report.words}"
    return finding("not-probed", text, severity=severity, fix={"advice": NEEDS})


def lost_answer(call: str, severity: Severity) -> Finding:
    """Return the finding for a child that ended without the answer of a call."""
    text = f"a child process ended without an answer of {call}"
    return finding("not-probed", text, severity=severity, fix={"advice": "run the doctor again"})


def run(
    plans: list[tuple[dict[str, Any], dict[str, str]]], timeout: float, driver_functions: Iterable[str] = ()
) -> list[Report]:
    """Run a child for each plan at the same time, each with its additions to the environment."""
    # All end within ``timeout`` seconds. ``driver_functions`` are the functions of the stub for libcuda.
    from subprocess import SubprocessError  # takes 10 ms: not for checks of files alone

    end = time.monotonic() + timeout
    children: list[_Child] = []
    try:
        # In memory: an image may have no writable folder, and tempfile imports zlib, which may be broken.
        with ExitStack() as files:
            stub = files.enter_context(os.fdopen(in_memory(driver_functions)))
            for plan, environ in plans:
                out, err = (files.enter_context(os.fdopen(_files.in_memory(n), "rb")) for n in ("out", "err"))
                children.append(_Child(plan, environ, stub.fileno(), out, err))
            return [child.report(end) for child in children]
    # No more processes, files or memory; a forbidden system call; a module that this Python lacks.
    except (OSError, MemoryError, RuntimeError, ImportError, ValueError, SubprocessError) as error:
        return [Report((), "refused", 0.0, str(error) or type(error).__name__)] * len(plans)
    finally:
        for child in children:  # after an interruption
            child.kill()


class _Child:
    """One running probe. It writes to files: a pipe could fill up, or be kept open by its children."""

    def __init__(
        self, plan: dict[str, Any], environ: dict[str, str], stub: int, out: IO[bytes], err: IO[bytes]
    ) -> None:
        whole = {**plan, "stub": f"/proc/self/fd/{stub}", "parent": os.getpid()}
        # As text, because the doctor may be in a zip file.
        command = [sys.executable or "python3", "-I", "-S", "-c", _files.resource("cudnn_doctor/probe.py")]
        debug = {
            "LD_DEBUG": "files",  # to stderr
            "CUDNN_LOGLEVEL_DBG": "2",  # warnings, in which cuDNN reports libraries that it could not open
            "CUDNN_LOGDEST_DBG": "stderr",
        }
        inherited = {name: value for name, value in os.environ.items() if not SETTINGS.fullmatch(name)}
        self.out, self.err = out, err
        self.started = time.monotonic()
        import subprocess

        self.process = subprocess.Popen(
            [*command, json.dumps(whole, ensure_ascii=False)],  # with the bytes of paths
            env={**inherited, **(debug if plan["mode"] == "cudnn" else {}), **environ},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            pass_fds=[stub],
            cwd="/",
            start_new_session=True,
        )

    def report(self, end: float) -> Report:
        from subprocess import TimeoutExpired

        code = None
        try:
            code = self.process.wait(max(end - time.monotonic(), 0.01))
        except TimeoutExpired:
            self.kill()
        steps = tuple(_steps(_read(self.out)))
        lines = [line for line in _read(self.err).split("\n") if line.strip()]
        err = [line.strip() for line in lines if not _LINKER.match(line)]
        linker = "\n".join(filter(_LINKER.match, lines))
        return Report(
            steps,
            _ended(code, steps),
            time.monotonic() - self.started,
            " / ".join([line for line in err if not _LOG.match(line)][-3:]),
            "\n".join(line for line in err if _LOG.match(line)),
            {path: version for version, path in reversed(_REQUEST.findall(linker))},
            tuple(dict.fromkeys(_REFUSAL.findall(linker))),
            tuple(dict.fromkeys(_LOST.findall(linker))),
        )

    def kill(self) -> None:
        """Kill it with all its children."""
        if self.process.returncode is not None:
            return
        from subprocess import TimeoutExpired

        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with suppress(TimeoutExpired):  # a process in an uninterruptible call
            self.process.wait(5)


def _read(file: IO[bytes]) -> str:
    return os.fsdecode(os.pread(file.fileno(), MAX_OUTPUT, 0))  # paths as this process decodes them


def _steps(text: str) -> Iterator[dict[str, Any]]:
    for line in text.split("\n"):  # names of files may have other characters that end a line
        with suppress(ValueError):  # a line that cuDNN printed
            row = json.loads(line)
            if isinstance(row, dict) and "step" in row:
                yield row


def _ended(code: int | None, steps: tuple[dict[str, Any], ...]) -> str:
    if code is None:
        return "hung"
    if code < 0:
        with suppress(ValueError):
            return signal.Signals(-code).name
        return f"signal {-code}"
    if code == 0 and steps and steps[-1]["step"] == "done":
        return "done"
    return f"exit {code}"


# --- the stub of the driver --------------------------------------------------------------------------------

# From 9.21 on, a library of cuDNN is linked with libcuda.so.1 and cannot be opened without it. To plan a
# graph for a described GPU, cuDNN compiles kernels and loads them by functions that it looks up by name.

# return CUDA_ERROR_STUB_LIBRARY (34), by machine: mov eax, 34; ret and mov w0, #34; ret
CODE = {62: bytes.fromhex("b822000000c39090"), 183: struct.pack("<II", 0x52800440, 0xD65F03C0)}
# Write a pointer to the first argument, and return 0. cuDNN rejects a null pointer.
_HANDLE = {
    62: bytes.fromhex("48c7070010000031c0c3909090909090"),
    183: struct.pack("<IIII", 0xD2820001, 0xF9000001, 0x52800000, 0xD65F03C0),
}

# Return 0.
_NOTHING = {62: bytes.fromhex("31c0c39090909090"), 183: struct.pack("<II", 0x52800000, 0xD65F03C0)}

# Without one of these, cuDNN has no engines that are compiled at run time, and returns no error.
_LOADS = (
    "cuCtxGetCurrent", "cuKernelGetFunction", "cuLibraryGetKernel", "cuLibraryLoadData", "cuLinkCreate",
    "cuModuleGetFunction", "cuModuleLoadData", "cuModuleLoadDataEx",
)  # fmt: skip
_UNLOADS = ("cuLibraryUnload", "cuLinkDestroy", "cuModuleUnload")
_OTHERS = (
    "cuCtxGetLimit", "cuCtxPopCurrent", "cuCtxPushCurrent", "cuDeviceGet", "cuDeviceGetCount",
    "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuKernelGetAttribute",
    "cuKernelSetAttribute", "cuLaunchCooperativeKernel", "cuLaunchKernel", "cuLaunchKernelEx",
    "cuLibraryLoadFromFile", "cuLinkAddData", "cuLinkComplete", "cuOccupancyMaxPotentialClusterSize",
    "cuStreamGetCtx",
)  # fmt: skip

_PAGE = 0x10000  # the largest that Linux has on these machines
_SONAME = "libcuda.so.1"


def in_memory(names: Iterable[str], *, planning: bool = False) -> int:
    """Write the library for this machine to memory, and return its descriptor; no folder is needed.

    With ``planning`` it has all functions that cuDNN looks up to plan graphs. Only for a child process that
    does not use a GPU: it pretends that kernels are loaded.
    """
    import fcntl  # not on Windows, where nothing calls this

    first = _files.in_memory(_SONAME)
    # The child has streams of its own in the places of closed ones.
    file = fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(first)
    os.write(file, make(names, machine_here(), planning=planning))
    return file


def make(names: Iterable[str], machine: int, *, planning: bool = False) -> bytes:
    """Return the library, for an ``e_machine`` of ``CODE``."""
    pieces = [CODE[machine], *([_HANDLE[machine], _NOTHING[machine]] if planning else [])]
    code, code_at = b"".join(pieces), 64 + 4 * 56
    fails, *others = zip(accumulate(map(len, pieces[:-1]), initial=code_at), map(len, pieces))
    places = {name: place for names_of, place in zip((_LOADS, _UNLOADS), others) for name in names_of}
    functions = sorted({*names, *places, *(_OTHERS if planning else ())})
    functions = functions or ["cuGetErrorString"]  # a hash table needs a symbol
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in (*functions, _SONAME))
    symbols_at = code_at + len(code)
    place = {name: strings.index(b"\0" + name.encode() + b"\0") + 1 for name in (*functions, _SONAME)}
    symbols = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", place[name], 0x12, 0, 1, *places.get(name, fails)) for name in functions
    )
    hash_at = symbols_at + len(symbols)
    count = len(functions) + 1
    table = struct.pack(f"<{3 + count}I", 1, count, 1, 0, *range(2, count), 0)  # one bucket, one long chain
    strings_at = hash_at + len(table)
    dynamic_at = (strings_at + len(strings) + 7) // 8 * 8
    tags = [(14, place[_SONAME]), (4, hash_at), (5, strings_at), (6, symbols_at)]
    tags += [(10, len(strings)), (11, 24), (0, 0)]
    dynamic = b"".join(struct.pack("<QQ", *tag) for tag in tags)
    # The linker writes to the dynamic section, so its page is mapped a second time as writable.
    writable, end = dynamic_at + _PAGE, dynamic_at + len(dynamic)
    programs = (
        (1, 5, 0, 0, 0, end, end, _PAGE),
        (1, 6, dynamic_at, writable, writable, len(dynamic), len(dynamic), _PAGE),
        (2, 6, dynamic_at, writable, writable, len(dynamic), len(dynamic), 8),
        (0x6474E551, 6, 0, 0, 0, 0, 0, 16),  # no executable stack
    )
    header = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, len(programs), 64, 0, 0)
    file = header + b"".join(struct.pack("<IIQQQQQQ", *program) for program in programs)
    file += code + symbols + table + strings
    return file + bytes(dynamic_at - len(file)) + dynamic
