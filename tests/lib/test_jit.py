"""The wheels without legacy calls: a folder of three small libraries, and a real one.

The environment variable CUDNN_CT_TEST_CUDNNS lists library folders; those of JIT wheels are used here.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from cudnn_ct.cli.selftest_cases import OPERATIONS
from cudnn_ct.errors import format_version
from cudnn_doctor.read.installation import inspect
from tests.processes import ROOT, Done, run_python

from .wheels import FOLDERS

JITS = [folder for folder in FOLDERS if inspect(folder / "libcudnn.so.9").kind == "jit"]
RESULTS = ROOT / "benchmarks" / "results" / "jit.json"
NONE = pytest.param(None, marks=pytest.mark.skip(reason="no JIT wheel at hand (CUDNN_CT_TEST_CUDNNS)"))
PROGRAM = """
import cudnn_ct as ct

half = lambda *shape: ct.empty(shape, "float16")
ct.matmul(half(64, 64), half(64, 64))
ct.conv(half(8, 64, 28, 28), half(64, 64, 3, 3), padding=1)
ct.attention(*[half(2, 8, 128, 64)] * 3)
ct.layer_norm(half(64, 128), ct.empty((128,), "float32"), ct.empty((128,), "float32"))
"""


@pytest.fixture(params=JITS or [NONE], ids=str)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with copies of the three libraries, and nothing else."""
    lib = tmp_path / "unpacked"
    lib.mkdir()
    for file in request.param.glob("libcudnn*.so.9"):
        shutil.copy(file, lib)
    return lib


def ran(folder: Path | None, *command: object, **environ: Any) -> Done:
    """Run Python with the cuDNN of a folder, or the one that is found."""
    library = {} if folder is None else {"CUDNN_CT_LIBRARY": folder / "libcudnn.so.9"}
    return run_python(*command, **library, **environ)


def answer(folder: Path, code: str) -> Any:
    prelude = "import json\nimport cudnn_ct as ct\nfrom cudnn_ct import _lib\n"
    done = ran(folder, "-W", "error", "-c", prelude + code)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_load_opens_a_folder_of_three_libraries(folder: Path) -> None:
    code = """
library = _lib.load()
error = ""
try:
    ct.TensorDescriptor(ct.TensorSpec.packed((1, 2, 3, 4), "float32"))
except ct.NotSupportedError as caught:
    error = str(caught)
library.cudnnBackendFinalize  # without libcublasLt
with open("/proc/self/maps") as maps:
    blas = "libcublasLt" in maps.read()
print(json.dumps([library.kind, library.version_text, library.found.found_via, error, blas]))
"""
    kind, text, via, error, blas = answer(folder, code)
    assert (kind, via, blas) == ("jit", "CUDNN_CT_LIBRARY", False)
    assert text.endswith(" jit")
    assert error == "cudnnCreateTensorDescriptor needs libcudnn_ops, which the JIT wheel lacks (3009)"


def test_info_and_doctor_know_the_set(folder: Path) -> None:
    started = time.perf_counter()
    info = json.loads(ran(folder, "-m", "cudnn_ct", "info", "--json").stdout)
    doctor = json.loads(ran(folder, "-m", "cudnn_ct", "doctor", "--json").stdout)
    assert time.perf_counter() - started < 60  # a second together on an idle machine
    version = inspect(folder / "libcudnn.so.9").number
    selftest = ran(folder, "-m", "cudnn_ct", "selftest", CUDA_VISIBLE_DEVICES="")
    assert selftest.returncode == 3, selftest.stdout
    assert (info["kind"], info["version"]) == ("jit", format_version(version))
    assert [part["name"] for part in info["sublibraries"]] == ["graph", "engines_runtime_compiled"]
    assert "do not need it" in info["cublaslt"]["note"]
    assert doctor["cudnn"][0]["kind"] == "jit"
    wrong = {found["code"] for found in doctor["findings"] if found["severity"] != "note"}
    assert wrong <= ({"missing-nvrtc", "no-gpu-code"} if version < 92100 else set())


def test_compile_makes_plans_whose_keys_have_the_set(folder: Path, tmp_path: Path) -> None:
    version = inspect(folder / "libcudnn.so.9").number
    if version < 92100:
        pytest.skip("engines of cuDNN < 9.21 need libnvrtc")
    (tmp_path / "program.py").write_text(PROGRAM)
    plans = tmp_path / "plans"
    words = ("compile", tmp_path / "program.py", "--gpu", "b200", "-o", plans)
    done = ran(folder, "-m", "cudnn_ct", *words)
    assert done.returncode == 0, done.stderr
    content = plans.read_bytes()
    count = 6 if version >= 92000 else 4  # newer ones run a layer norm twice, with a subtraction in between
    assert content.count(f'"plan | cuDNN {format_version(version)} jit for CUDA '.encode()) == count
    code = f"print(json.dumps(ct.import_plans({str(plans)!r})))"
    assert answer(folder, code) == count


def test_drawn_calls_have_engines(folder: Path) -> None:
    """The same calls each time; `tests.planned_calls` draws others."""
    done = ran(folder, "-m", "tests.planned_calls", "--seed", "103", "--examples", "15", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"rejected: .*[1-9]\d* for float64", done.stdout), "calls without graphs do not count"


def test_page_lists_the_operations_that_this_set_plans(folder: Path) -> None:
    stored = json.loads(RESULTS.read_text())
    # The kernels of transposed convolutions are bound to the GPU that compiles them.
    operations, dtype = ("pool", "softmax", "instance_norm_backward", "conv_transpose", "lrn"), "float16"
    code = "import sys, json; sys.path.insert(0, 'tools'); import jit_operations as m; "
    code += f"print(json.dumps(m.planned({(*operations, 'affine_grid', 'RNN')!r}, ({dtype!r},))))"
    found = json.loads(ran(folder, "-c", code, cwd=ROOT).stdout.splitlines()[-1])
    if found["cudnn"] != stored["cudnn"]:
        pytest.skip(f"the page is of cuDNN {stored['cudnn']}")
    for operation, cells in found["operations"].items():
        assert cells[dtype] == stored["operations"][operation][dtype], operation
    assert found["needs"] == {"affine_grid": "libcudnn_ops", "RNN": "libcudnn_adv"}


def test_stored_results_reach_the_aim() -> None:
    stored = json.loads(RESULTS.read_text())
    able = [name for name, cells in stored["operations"].items() if any(cell[0] for cell in cells.values())]
    assert len(able) >= 27
    assert set(able) | set(stored["needs"]) == set(OPERATIONS)
    assert all(library.startswith("libcudnn_") for library in stored["needs"].values())
