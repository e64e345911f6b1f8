"""The real libcudnn_ext without a GPU: alone in a folder with libcudnn, and its checks of arguments."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cudnn_ct
from cudnn_doctor.read.find import CUDNN, CUDNN_STEPS, SearchContext, search

PYTHONPATH = os.pathsep.join([str(Path(cudnn_ct.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
ONLY_WHEELS = [step for step in CUDNN_STEPS if step[0] == "wheel"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with copies of libcudnn.so.9 and libcudnn_ext.so.9, and nothing else."""
    wheel = search(CUDNN, ONLY_WHEELS, SearchContext()).path
    if wheel is None or not (wheel.parent / "libcudnn_ext.so.9").exists():
        pytest.skip("no wheel of a cuDNN with libcudnn_ext is installed")
    for name in ("libcudnn.so.9", "libcudnn_ext.so.9"):
        shutil.copy(wheel.parent / name, tmp_path)
    return tmp_path


def answer(folder: Path, code: str) -> Any:
    environ = {"PYTHONPATH": PYTHONPATH, "CUDNN_CT_LIBRARY": f"{folder}/libcudnn.so.9"}
    done = subprocess.run(
        [sys.executable, "-c", f"import json\nimport cudnn_ct as ct\nfrom cudnn_ct import _lib\n{code}"],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_set_of_one_library_loads_and_names_what_it_lacks(folder: Path) -> None:
    code = """
library = _lib.load()
try:
    ct.TensorDescriptor(ct.TensorSpec.packed((1, 2, 3, 4), "float32"))
except ct.NotSupportedError as error:
    caught = str(error)
with open("/proc/self/maps") as maps:
    others = sorted({row.split("/")[-1].strip() for row in maps if "libcudnn" in row})
info = ct.library_info()
print(json.dumps([library.kind, library.version, caught, others, info.kind, info.version, info.problem]))
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
import ctypes
from cudnn_ct.shapes.causal_conv import WIDTHS
room = (ctypes.c_char * 65536)()
p = ctypes.addressof(room) // 256 * 256 + 256
lib = _lib.load()
def status(function, *arguments):
    try:
        function(*arguments)
    except ct.CudnnError as error:
        return error.status
    return 0
found = {}
for last in ("", "Nwh"):
    forward = getattr(lib, f"cudnnCausalConv1d{last}Forward")
    backward = getattr(lib, f"cudnnCausalConv1d{last}Backward")
    for code, wide in ((0, 0), (1, 1), (2, 0), (9, 0)):
        found[f"{last} dtype {code}"] = status(forward, None, p, p, p, p, 1, 4, 16, 4, code, 1)
        found[f"{last} gradients {code}"] = status(backward, None, *[p] * 7, 1, 4, 16, 4, code, wide, 0)
    for width in WIDTHS:
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
import ctypes
from cudnn_ct.dtypes import DTYPES
from cudnn_ct.shapes.causal_conv import fft_causal_conv_shape
room = (ctypes.c_char * 65536)()
p = ctypes.addressof(room) // 256 * 256 + 256
lib = _lib.load()
if lib.why_missing("cudnnFFTCausalConv1dForward"):
    print(json.dumps([]))
    raise SystemExit
def status(function, *arguments):
    try:
        getattr(lib, function)(*arguments)
    except ct.CudnnError as error:
        return error.status
    return 0
def accepts(length, width, dtype):
    try:
        return bool(fft_causal_conv_shape((1, 4, length), (4, width), dtype))
    except ValueError:
        return False
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
            ours = dtype != "int8" and accepts(length, width, dtype)
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
import ctypes
from cudnn_ct.dtypes import DTYPES
from cudnn_ct.shapes.causal_conv import b2b_causal_conv_shape
room = (ctypes.c_char * 65536)()
p = ctypes.addressof(room) // 256 * 256 + 256
lib = _lib.load()
if lib.why_missing("cudnnB2BCausalConv1dForward"):
    print(json.dumps([]))
    raise SystemExit
def status(function, *arguments):
    try:
        getattr(lib, function)(*arguments)
    except ct.CudnnError as error:
        return error.status
    return 0
def accepts(projection, mixer):
    try:
        return bool(b2b_causal_conv_shape((1, 4, 3, 16), (4, 3, projection), (4, mixer), (4,)))
    except ValueError:
        return False
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
        if (found <= {0, 1001}) != accepts(projection, mixer):
            wrong.append([projection, mixer, sorted(found)])
for dtype in ("float16", "bfloat16", "float32", "float64"):
    found = both(4, 7, DTYPES[dtype].code, int(dtype == "float64"))
    wrong += [[dtype, sorted(found)]] * (not found <= {0, 1001})
print(json.dumps(wrong))
"""
    assert answer(folder, code) == []
