"""Handlers of XLA's typed foreign-function interface as functions of Python, by ctypes.

The structures are those of ``xla/ffi/api/c_api.h`` with major version 0, which only adds fields behind these.
"""

from __future__ import annotations

import atexit
import ctypes
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax

__all__ = ["Frame", "check_version", "register"]

MAJOR = 0
METADATA = 1  # XLA_FFI_Extension_Metadata
COMMAND_BUFFERS = 1  # XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE


class Version(Structure):
    _fields_ = (("size", c_size_t), ("next", c_void_p), ("major", c_int), ("minor", c_int))


class Extension(Structure):
    _fields_ = (("size", c_size_t), ("type", c_int), ("next", c_void_p))


class Buffer(Structure):
    _fields_ = (
        *(("size", c_size_t), ("next", c_void_p), ("dtype", c_int), ("data", c_void_p)),
        *(("rank", c_int64), ("dims", POINTER(c_int64))),
    )


class Buffers(Structure):
    _fields_ = (
        *(("size", c_size_t), ("next", c_void_p), ("count", c_int64), ("types", c_void_p)),
        ("buffers", POINTER(POINTER(Buffer))),
    )


class Span(Structure):
    _fields_ = (("pointer", c_void_p), ("length", c_size_t))


class Attributes(Structure):
    _fields_ = (
        *(("size", c_size_t), ("next", c_void_p), ("count", c_int64), ("types", c_void_p)),
        *(("names", c_void_p), ("values", POINTER(POINTER(Span)))),
    )


class Api(Structure):
    _fields_ = (
        *(("size", c_size_t), ("next", c_void_p), ("version", Version), ("internal", c_void_p)),
        *((name, c_void_p) for name in ("create_error", "message", "destroy_error", "register_handler")),
        *((name, c_void_p) for name in ("get_stream", "register_type", "get_context", "set_state")),
        *((name, c_void_p) for name in ("get_state", "allocate", "free", "schedule", "threads")),
        *((name, c_void_p) for name in ("create_future", "set_available", "set_error", "get_run_id")),
        ("get_device", c_void_p),
    )


class CallFrame(Structure):
    _fields_ = (
        *(("size", c_size_t), ("extension", POINTER(Extension)), ("api", POINTER(Api))),
        *(("context", c_void_p), ("stage", c_int), ("operands", Buffers), ("results", Buffers)),
        ("attributes", Attributes),
    )


class Metadata(Structure):
    _fields_ = (("size", c_size_t), ("version", Version), ("traits", c_uint32))


class MetadataExtension(Structure):
    _fields_ = (("base", Extension), ("metadata", POINTER(Metadata)))


class ErrorArguments(Structure):
    _fields_ = (("size", c_size_t), ("next", c_void_p), ("message", c_char_p), ("code", c_int))


class StreamArguments(Structure):
    _fields_ = (("size", c_size_t), ("next", c_void_p), ("context", c_void_p), ("stream", c_void_p))


class DeviceArguments(Structure):
    _fields_ = (("size", c_size_t), ("next", c_void_p), ("context", c_void_p), ("device", c_int32))


Handler = ctypes.CFUNCTYPE(c_void_p, POINTER(CallFrame))


class Frame(NamedTuple):
    """A call: the text of its attribute, the addresses of its operands and results, and its place."""

    call: bytes
    operands: tuple[int, ...]
    results: tuple[int, ...]
    raw: CallFrame

    def place(self) -> tuple[int, int]:
        """Return the address of the stream that XLA runs the call on, and the number of its device."""
        context, api = self.raw.context, self.raw.api[0]
        stream = StreamArguments(ctypes.sizeof(StreamArguments), None, context, None)
        device = DeviceArguments(ctypes.sizeof(DeviceArguments), None, context, 0)
        if _function(api.get_stream)(byref(stream)) or _function(api.get_device)(byref(device)):
            raise RuntimeError("XLA did not name the stream and the device of a call")
        return stream.stream or 0, device.device


_function = lru_cache(64)(ctypes.CFUNCTYPE(c_void_p))  # of an address of the interface


def register(
    target: str, platform: str, run: Callable[[Frame], None], code_of: Callable[[Exception], int], traits: int
) -> None:
    """Register a function as the handler of a target; its exceptions become errors of XLA with their text."""

    def handler(pointer: Any) -> int | None:
        raw = pointer[0]
        if raw.extension and raw.extension[0].type == METADATA:
            metadata = ctypes.cast(raw.extension, POINTER(MetadataExtension))[0].metadata[0]
            metadata.version.major, metadata.version.minor = MAJOR, _number("MINOR")
            metadata.traits = traits
            return None
        if not hasattr(_thread, "kept"):
            _keep_state_of_thread()
        try:
            run(_frame_of(raw))
        except BaseException as error:  # one that escapes is printed and lost
            return _error(raw, error, code_of)
        return None

    compiled = Handler(handler)
    _kept.append(compiled)
    address = ctypes.cast(compiled, c_void_p).value
    jax.ffi.register_ffi_target(target, _new_capsule(address, None, None), platform=platform)


_kept: list[Any] = []  # handlers, which XLA calls as long as the process runs
_thread = threading.local()


def _keep_state_of_thread() -> None:
    """Keep what Python has for this thread of XLA, which it would create and drop again in each call.

    That takes 8 us and more of each call, and loses what this package keeps for a thread, such as the device
    that is known to be current.
    """
    ctypes.pythonapi.PyGILState_Ensure()  # without a release
    _thread.kept = True


@atexit.register
def _wait_for_programs() -> None:
    """Wait for results: a handler that XLA calls while the interpreter ends would never return.

    JAX has no call that waits for a program whose results were dropped.
    """
    for array in jax.live_arrays():
        with suppress(Exception):  # an error of the program, or a deleted array
            array.block_until_ready()


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [c_void_p, c_char_p, c_void_p]


def _frame_of(raw: CallFrame) -> Frame:
    operands, results, attribute = raw.operands, raw.results, raw.attributes.values[0][0]
    return Frame(
        ctypes.string_at(attribute.pointer, attribute.length),
        tuple([one.contents.data or 0 for one in operands.buffers[: operands.count]]),
        tuple([one.contents.data or 0 for one in results.buffers[: results.count]]),
        raw,
    )


def _error(raw: CallFrame, error: BaseException, code_of: Callable[[Exception], int]) -> int | None:
    try:
        lines = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]
    except Exception:  # one that escapes would be a success
        lines = [type(error).__name__]
    code = code_of(error) if isinstance(error, Exception) else 1  # cancelled
    message = "\n".join(lines).encode(errors="backslashreplace")
    arguments = ErrorArguments(ctypes.sizeof(ErrorArguments), None, message, code)
    made: int | None = _function(raw.api[0].create_error)(byref(arguments))
    return made


def check_version() -> None:
    """Raise ImportError unless jax has the interface with the major version that this module knows."""
    if not hasattr(jax, "ffi") or not hasattr(jax.ffi, "ffi_call"):
        raise ImportError(f"cudnn_ct.jax needs jax.ffi.ffi_call: jax {jax.__version__} has none; update jax")
    major = _number("MAJOR")
    if major != MAJOR:
        raise ImportError(
            f"cudnn_ct.jax supports version {MAJOR}.x of XLA's foreign-function interface, and jax "
            f"{jax.__version__} has {major}.{_number('MINOR')}; use an older jax, or a newer cudnn_ct"
        )


@cache
def _number(part: str) -> int:
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text(encoding="utf-8")
    found = re.search(rf"#define XLA_FFI_API_{part} (\d+)", header)
    return int(found[1]) if found else -1
