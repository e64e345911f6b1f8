"""Real wheels of other programs after `ct.preload`, in processes of their own; no GPU is needed.

Wheels that are not installed are skipped: ``pip install ctranslate2==4.6.0 onnxruntime-gpu==1.23.2``.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from .test_preload import execute, run

# CTranslate2 brings the first library of cuDNN, which opens the others by their names; newer ones bring none.
CTRANSLATE2 = """
import ctypes, sys
import ctranslate2
shim = ctypes.CDLL(sys.argv[1])
made = ctypes.c_void_p()
assert shim.cudnnCreateTensorDescriptor(ctypes.byref(made)) == 0
assert made.value
print("made", shim.cudnnGetVersion())
"""
ONNXRUNTIME = """
import ctypes, sys
import onnxruntime
folder = sys.argv[1]
ctypes.CDLL(f"{folder}/libonnxruntime_providers_shared.so", ctypes.RTLD_GLOBAL)
ctypes.CDLL(f"{folder}/libonnxruntime_providers_cuda.so")
print("opened")
"""
PRELOAD = "import cudnn_ct as ct; ct.preload()\n"


def folder_of(package: str) -> Path:
    """Return the folder of an installed package, or skip the test."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    return Path(spec.origin).parent


@pytest.mark.nightly
def test_cudnn_of_ctranslate2_opens_its_libraries_after_preload() -> None:
    shims = list(folder_of("ctranslate2").parent.glob("ctranslate2.libs/libcudnn*.so*"))
    if not shims:
        pytest.skip("this version of ctranslate2 brings no cuDNN")
    without = run("-c", CTRANSLATE2, str(shims[0]))
    assert "Unable to load any of {libcudnn_" in without.stderr, "the linker finds a cuDNN"
    done = run("-c", PRELOAD + CTRANSLATE2, str(shims[0]))
    assert done.stdout.startswith("made 9"), done.stderr
    assert execute(sys.executable, "-c", CTRANSLATE2, str(shims[0])).stdout == done.stdout


@pytest.mark.nightly
def test_cuda_provider_of_onnxruntime_opens_after_preload() -> None:
    folder = folder_of("onnxruntime") / "capi"
    if not (folder / "libonnxruntime_providers_cuda.so").is_file():
        pytest.skip("this version of onnxruntime is for CPUs")
    without = run("-c", ONNXRUNTIME, str(folder))
    assert "cannot open shared object file" in without.stderr, "the linker finds the libraries of CUDA"
    if "libcublasLt.so.12" not in without.stderr:
        pytest.skip("this version of onnxruntime is for another version of CUDA")
    done = run("-c", PRELOAD + ONNXRUNTIME, str(folder))
    assert done.stdout == "opened\n", done.stderr
    assert execute(sys.executable, "-c", ONNXRUNTIME, str(folder)).stdout == done.stdout


@pytest.mark.nightly
def test_faster_whisper_is_imported_after_preload() -> None:
    folder_of("faster_whisper")
    code = "import ctypes, faster_whisper; ctypes.CDLL('libcublas.so.12'); print('imported')"
    done = run("-c", PRELOAD + code)
    assert done.stdout == "imported\n", done.stderr
