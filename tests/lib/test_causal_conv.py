"""The real libcudnn_ext without a GPU: alone in a folder with libcudnn, and its checks of arguments."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.processes import answer_of

from .wheels import WHEEL

PRELUDE = """
import ctypes, json
import cudnn_ct as ct
from cudnn_ct import _lib
from cudnn_ct.dtypes import DTYPES
from cudnn_ct.shapes import causal_conv as shapes

lib = _lib.load()
room = (ctypes.c_char * 65536)()
p = ctypes.addressof(room) // 256 * 256 + 256  # an aligned address

def status(function, *arguments):
    try:
        getattr(lib, function)(*arguments)
    except ct.CudnnError as error:
        return error.status
    return 0

def accepts(shape_of, *arguments):
    try:
        return bool(shape_of(*arguments))
    except ValueError:
        return False
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with copies of libcudnn.so.9 and libcudnn_ext.so.9, and nothing else."""
    if WHEEL is None or not (WHEEL.parent / "libcudnn_ext.so.9").exists():
        pytest.skip("no wheel of a cuDNN with libcudnn_ext is installed")
    for name in ("libcudnn.so.9", "libcudnn_ext.so.9"):
        shutil.copy(WHEEL.parent / name, tmp_path)
    return tmp_path


def answer(folder: Path, code: str) -> Any:
    return answer_of(PRELUDE + code, CUDNN_CT_LIBRARY=folder / "libcudnn.so.9")


def test_set_of_one_library_loads_and_names_what_it_lacks(folder: Path) -> None:
    code = """
try:
    ct.TensorDescriptor(ct.TensorSpec.packed((1, 2, 3, 4), "float32"))
except ct.NotSupportedError as error:
    caught = str(error)
with open("/proc/self/maps") as maps:
    others = sorted({row.split("/")[-1].strip() for row in maps if "libcudnn" in row})
info = ct.library_info()
print(json.dumps([lib.kind, lib.version, caught, others, info.kind, info.version, info.problem]))
"""
    kind, version, caught, others, of_info, text, problem = answer(folder, code)
    assert (kind, of_info, problem) == ("ext", "ext", None)
    assert version >= 92200  # that of its newest function
    assert text.startswith("9.")
    wanted = "cudnnCreateTensorDescriptor needs libcudnn_ops, which a set of libcudnn_ext alone lacks (3009)"
    assert caught == wanted
    assert others == ["libcudnn.so.9", "libcudnn_ext.so.9"]


def test_c_functions_accept_the_widths_and_dtypes_of_the_package(folder: Path) -> None:
    """Without a GPU a valid call is NOT_INITIALIZED (1001), and an invalid one another error."""
    code = """
found = {}
for last in ("", "Nwh"):
    forward, backward = (f"cudnnCausalConv1d{last}{step}" for step in ("Forward", "Backward"))
    for code, wide in ((0, 0), (1, 1), (2, 0), (9, 0)):
        found[f"{last} dtype {code}"] = status(forward, None, p, p, p, p, 1, 4, 16, 4, code, 1)
        found[f"{last} gradients {code}"] = status(backward, None, *[p] * 7, 1, 4, 16, 4, code, wide, 0)
    for width in shapes.WIDTHS:
        found[f"{last} width {width}"] = status(forward, None, p, p, p, p, 1, 4, 16, width, 0, 0)
    found[f"{last} empty"] = status(forward, None, p, p, p, p, 0, 4, 16, 4, 0, 1)
    found[f"{last} int8"] = status(forward, None, p, p, p, p, 1, 4, 16, 4, 3, 1)
    found[f"{last} no bias"] = status(forward, None, p, p, None, p, 1, 4, 16, 4, 0, 1)
print(json.dumps([found, bool(lib._last_error_text())]))
"""
    found, text = answer(folder, code)
    assert not text
    rejected = {name: status for name, status in found.items() if name.endswith(("empty", "int8", "bias"))}
    rejected["Nwh width 256"] = found["Nwh width 256"]  # the package copies such operands
    assert {status for name, status in found.items() if name not in rejected} <= {1001}, found
    assert set(rejected.values()) <= {2000, 3000}, rejected


def test_c_functions_accept_the_lengths_of_the_package(folder: Path) -> None:
    """The sizes of buffers need no GPU; without one, a valid call is NOT_INITIALIZED (1001)."""
    code = """
if lib.why_missing("cudnnFFTCausalConv1dForward"):
    print(json.dumps([]))
    raise SystemExit
wrong = []
for dtype in ("float16", "bfloat16", "float32", "float64", "int8"):
    for width in [2**n for n in range(6, 26)] + [100, 192, 6000]:
        for length in (width, 2 * width, 3 * width, width // 2, width + 128):
            sizes = (1, 4, length, width, DTYPES[dtype].code)
            bytes_ = [ctypes.c_size_t(), ctypes.c_size_t()]
            size = status("cudnnLongFFTCausalConv1dGetBufferSizes", *sizes, *map(ctypes.byref, bytes_))
            tiles = {
                status("cudnnFFTCausalConv1dForward", None, p, p, p, *sizes),
                status("cudnnFFTCausalConv1dBackward", None, *[p] * 5, *sizes),
            }
            found = size == 0 or tiles <= {0, 1001}
            x, w = (1, 4, length), (4, width)
            ours = dtype != "int8" and accepts(shapes.fft_causal_conv_shape, x, w, dtype)
            big = max((one.value for one in bytes_), default=0)
            if found != ours or (size == 0 and big > 33 * length * 4):
                wrong.append([dtype, width, length, size, sorted(tiles), ours, big])
    sizes = (1, 4, 256, 128, DTYPES[dtype].code)
    wrong += [dtype] * (status("cudnnFFTCausalConv1dForward", None, p + 8, p, p, *sizes) not in (2000, 3000))
print(json.dumps(wrong))
"""
    assert answer(folder, code) == []


def test_c_functions_accept_the_pairs_of_widths_of_the_package(folder: Path) -> None:
    code = """
if lib.why_missing("cudnnB2BCausalConv1dForward"):
    print(json.dumps([]))
    raise SystemExit
def both(projection, mixer, code, wide):
    sizes = (1, 4, 16, projection, mixer, code)
    return {
        status("cudnnB2BCausalConv1dForward", None, *[p] * 6, *sizes),
        status("cudnnB2BCausalConv1dBackward", None, *[p] * 10, *sizes, wide),
    }
wrong = []
for projection in (1, 2, 3, 8, 31, 32, 33):
    for mixer in (1, 2, 3, 7, 100, 255, 256, 257):
        found = both(projection, mixer, 0, 0)
        given = (1, 4, 3, 16), (4, 3, projection), (4, mixer), (4,)
        if (found <= {0, 1001}) != accepts(shapes.b2b_causal_conv_shape, *given):
            wrong.append([projection, mixer, sorted(found)])
for dtype in ("float16", "bfloat16", "float32", "float64"):
    found = both(4, 7, DTYPES[dtype].code, int(dtype == "float64"))
    wrong += [[dtype, sorted(found)]] * (not found <= {0, 1001})
print(json.dumps(wrong))
"""
    assert answer(folder, code) == []
