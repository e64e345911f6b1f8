"""A batch of calls in its own process: each is reported before it is made, and judged after."""

from __future__ import annotations

import dis
import faulthandler
import gc
import json
import os
import resource
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np

import cudnn_ct as ct
from cudnn_ct import context
from cudnn_ct._config import SETTINGS, config
from cudnn_ct.cuda import allocator, memory
from cudnn_ct.cuda import stream as streams
from cudnn_ct.errors import AllocationError

from .draw import line
from .values import NAMES

# The exceptions of docs/errors.md, and those that some calls may raise besides.
DOCUMENTED = (TypeError, ValueError, ct.CudnnError)
BESIDES: dict[str, type[Exception]] = {
    "ct.export_algo_cache(": OSError,
    "ct.import_algo_cache(": OSError,
    "set_config(": AttributeError,  # the setting does not exist
    "ct.raw.": OverflowError,
    ".__dlpack__(": BufferError,
    "ct.dnn.dnn_spatialtf(": RuntimeError,  # as Theano
}
# Every documented exception comes from a ``raise``, except these good messages of Python and NumPy.
# Decorators of Python and NumPy, and ``ct.explain``, which make the call themselves.
CALLERS = ("contextlib.py", "_ufunc_config.py", "cudnn_ct/explanations.py")
THEIR_OWN = (
    "expected str, bytes or os.PathLike object",
    "embedded null byte",
    "setting an array element with a sequence",
    "array is too big",
    "Missing __array_interface__ typestr",
    "'utf-8' codec can't encode",
)
ROOM = 2**22  # bytes of device memory
HOST_ROOM = 6 * 2**30  # bytes of addresses
EVERY = 50  # calls, after which memory is counted and a right call is made


def main() -> None:
    """Make the calls that the first line on stdin names; write a JSON object for each report."""
    asked = json.loads(sys.stdin.readline())
    faulthandler.enable()
    reports = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a call may print
    np.seterr(all="ignore")
    place = on_gpu if asked["gpu"] else on_fakes
    with place() as used:
        before = used()
        lines = asked.get("lines") or [line(asked["seed"], n) for n in range(*asked["numbers"])]
        for count, text in enumerate(lines, 1):
            reports.write(json.dumps({"call": text}) + "\n")
            reports.write(json.dumps({"outcome": judged(text, asked["seconds"])}) + "\n")
            if count % EVERY == 0 or count == len(lines):
                reports.write(json.dumps({"trouble": trouble(before, used)}) + "\n")
                before = used()
        reports.flush()
        os._exit(0)  # leftovers were reported above


def judged(text: str, seconds: int) -> str:
    """Make a call; return the name of its exception, after a "!" if it is not documented."""
    settings = {name: getattr(config, name) for name in SETTINGS}
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for kind in (ct.CudnnWarning, DeprecationWarning):  # of parameters of `dnn`
                warnings.simplefilter("ignore", kind)
            eval(text, dict(NAMES))
    except (MemoryError, RecursionError) as error:
        return type(error).__name__
    except Exception as error:
        name = type(error).__name__
        places = [(step.tb_frame.f_code.co_filename, step.tb_lineno) for step in steps(error)]
        place = next((f"{file}:{line}" for file, line in reversed(places) if "cudnn_ct" in file), "")
        report = f"{name}: {str(error)[:300]} at {place}"
        if isinstance(error, ct.ExecutionFailedError):  # no argument may cause a kernel to fault
            return f"! {report}"
        if isinstance(error, DOCUMENTED):
            return name if raised(error) else f"! by accident {report}"
        besides = tuple(kind for start, kind in BESIDES.items() if start in text)
        return name if isinstance(error, besides) else f"! {report}"
    finally:
        faulthandler.cancel_dump_traceback_later()
        for name, value in settings.items():
            setattr(config, name, value)
    return "fine"


def raised(error: BaseException) -> bool:
    """Return whether an exception comes from a ``raise``, or from the call, as for too many arguments."""
    *_, last = steps(error)
    code = last.tb_frame.f_code
    if code.co_filename == "<string>" or code.co_filename.endswith(CALLERS):
        return True
    if str(error).startswith(THEIR_OWN):
        return True
    return dis.opname[code.co_code[last.tb_lasti]] == "RAISE_VARARGS"


def steps(error: BaseException) -> Iterator[TracebackType]:
    """Yield the traceback of an exception, the outermost frame first."""
    step = error.__traceback__
    while step is not None:
        yield step
        step = step.tb_next


def trouble(before: int, used: Callable[[], int]) -> str:
    """Return the memory that calls left, or the wrong result of a right call; empty if all is well."""
    gc.collect()
    x, w = np.ones((1, 2, 5, 5), np.float32), np.ones((3, 2, 3, 3), np.float32)
    got = ct.conv(ct.asarray(x), ct.asarray(w)).numpy()
    if not (got == 18).all():
        return f"a convolution of ones gives {got.reshape(-1)[:4]}"
    for device in range(streams.device_count()):
        with ct.use(device=device) as stream:
            context.current(stream).plans.clear()  # the labels of CTC losses
            context.current(stream).calls.clear()  # the places of rows that clear_padding keeps
            ct.empty_cache(device)
    gc.collect()
    left = used() - before
    return f"{left} bytes of device memory are left" if left else ""


@contextmanager
def on_fakes() -> Iterator[Callable[[], int]]:
    """Use the fake cuDNN, with the real rules for arrays of other libraries."""
    from cudnn_ct.cuda import interop
    from tests.fake.installed import cudnn_installed, host_installed

    real = {name: getattr(interop, name) for name in ("device_of", "in_host_memory", "import_array")}
    resource.setrlimit(resource.RLIMIT_AS, (HOST_ROOM, HOST_ROOM))
    with host_installed() as host, cudnn_installed(host) as fake:
        for name, function in real.items():
            setattr(interop, name, function)
        interop.export_dlpack = lambda *_: None
        host.limit = ROOM

        def used() -> int:
            fake.calls.clear()
            host.log.clear()
            host.calls.clear()
            host.grave.clear()
            return host.used()

        yield used


@contextmanager
def on_gpu() -> Iterator[Callable[[], int]]:
    """Use a GPU, and limit the size of an allocation."""
    allocate = memory.allocate

    def limited(nbytes: int, stream: Any, what: str = "an array") -> Any:
        if nbytes > 16 * ROOM:
            raise AllocationError(f"out of memory: {nbytes:,} bytes wanted for {what}")
        return allocate(nbytes, stream, what)

    memory.allocate = limited
    ct.asarray(np.ones(3, np.float32)).numpy()
    device = streams.current_device()

    def used() -> int:
        allocator.release(device)
        memory.release(device)
        return memory._pool_attribute(memory._pool(device), "USED_MEM_CURRENT")

    yield used
