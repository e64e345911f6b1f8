"""Libraries that other programs open by their names after `ct.preload`, in processes of their own.

Wheels that are not installed are skipped: ``pip install ctranslate2==4.6.0 onnxruntime-gpu==1.23.2``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.processes import PATHS, environment, run_python

from .wheels import WHEEL

if WHEEL is None:
    pytest.skip("no wheel of cuDNN is installed", allow_module_level=True)
NAMES = sorted(path.name for path in Path(WHEEL).parent.glob("libcudnn*.so.9"))

BY_NAME = """
import ctypes, json, sys
import cudnn_ct as ct
from cudnn_ct import _lib
before = []
for name in sys.argv[1:]:
    try:
        ctypes.CDLL(name)
    except OSError:
        before.append(name)
paths = ct.preload()
failed = []
for name in sys.argv[1:]:
    try:
        ctypes.CDLL(name)
    except OSError as error:
        failed.append((name, str(error)))
cuda = _lib.load().cuda_version // 1000
for name in (f"libcublas.so.{cuda}", f"libcublasLt.so.{cuda}"):
    ctypes.CDLL(name)
skipped = list(_lib.load().skipped)
print(json.dumps({"before": before, "failed": failed, "paths": paths, "skipped": skipped}))
"""


# Without the folders of other libraries, and for a virtual environment with the packages of this Python.
CLEAN = {"LD_LIBRARY_PATH": "", "PYTHONPATH": os.pathsep.join([*PATHS, *sys.path])}
run = partial(run_python, **CLEAN)
execute = partial(run, "-m", "cudnn_ct", "exec")


def test_each_library_opens_by_its_name_after_preload() -> None:
    done = run("-c", BY_NAME, *NAMES)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    if found["before"] != NAMES:
        pytest.skip(f"the linker of this machine finds a cuDNN: {sorted({*NAMES} - {*found['before']})}")
    skipped = [f"libcudnn_{name}.so.9" for name in found["skipped"]]  # they need the driver
    assert not [(name, error) for name, error in found["failed"] if name not in skipped]
    assert skipped in ([], ["libcudnn_engines_runtime_compiled.so.9"])
    assert all(os.path.realpath(path) == path for path in found["paths"])
    assert {Path(path).name.partition(".so")[0] for path in found["paths"]} >= {"libcudnn", "libcudnn_ops"}


def test_preload_refuses_another_cudnn_that_is_loaded(tmp_path: Path) -> None:
    """A copy of one library is another cuDNN: its file is not of the installation."""
    copy = tmp_path / "libcudnn_graph.so.9"
    copy.write_bytes((Path(WHEEL).parent / copy.name).read_bytes())
    code = f"import ctypes; ctypes.CDLL({str(copy)!r}); import cudnn_ct as ct; ct.preload()"
    done = run("-c", code)
    assert done.returncode == 1
    assert f"this process has already loaded {copy}, and" in done.stderr
    assert "call ct.preload() before the program that loads it" in done.stderr
    quiet = run("-W", "default", "-c", code.replace("preload()", "preload(raises=False)"))
    assert quiet.returncode == 0, quiet.stderr
    assert "CudnnWarning: preload: this process has already loaded" in quiet.stderr


SEES = "import ctypes, os, sys; ctypes.CDLL('libcudnn_ops.so.9'); print(sys.argv[1:], flush=True)"


def test_exec_runs_a_program_that_finds_the_libraries() -> None:
    done = execute(sys.executable, "-c", SEES, "--flag", "-x")
    assert (done.returncode, done.stdout) == (0, "['--flag', '-x']\n"), done.stderr


@pytest.mark.parametrize("code", [0, 3, 255])
def test_exec_keeps_the_exit_code(code: int) -> None:
    assert execute(sys.executable, "-c", f"raise SystemExit({code})").returncode == code


def test_exec_keeps_signals() -> None:
    own = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert execute(sys.executable, "-c", own).returncode == -signal.SIGTERM
    program = [sys.executable, "-c", SEES + "; import time; time.sleep(60)"]
    command = [sys.executable, "-m", "cudnn_ct", "exec", *program]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell ignores it in the background
    with subprocess.Popen(
        command, env=environment(**CLEAN), stdout=subprocess.PIPE, text=True, preexec_fn=heard
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[]\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == -signal.SIGINT


def test_exec_reports_a_program_that_does_not_exist(tmp_path: Path) -> None:
    done = execute("no-such-program")
    assert (done.returncode, done.stderr) == (127, "cudnn-ct: no-such-program does not exist\n")
    (text := tmp_path / "text").write_text("not a program")
    done = execute(text)
    assert done.returncode == 126
    assert "cannot be run" in done.stderr


def test_exec_runs_scripts_as_shells_do(tmp_path: Path) -> None:
    plain, lost = tmp_path / "plain", tmp_path / "lost"
    plain.write_text("echo $1; exit 7\n")
    lost.write_text("#!/no/such/interpreter\n")
    for file in (plain, lost):
        file.chmod(0o755)
    done = execute(plain, "given")
    assert (done.returncode, done.stdout) == (7, "given\n")
    done = execute(lost)
    assert done.returncode == 126
    assert "the interpreter of its first line does not exist" in done.stderr
    done = execute("")
    assert (done.returncode, done.stderr) == (127, "cudnn-ct: the name of the program is empty\n")


def test_python_that_a_search_starts_does_not_preload() -> None:
    code = "import cudnn_ct as ct; print(ct.preload())"
    assert run("-c", code, _CUDNN_CT_PRELOADING="1").stdout == "()\n"


def test_preload_command_writes_a_file_that_each_start_runs(tmp_path: Path) -> None:
    """In a virtual environment, whose site-packages the file belongs to."""
    site = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(site)], check=True)
    python = str(site / "bin" / "python")

    def call(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, *command], env=environment(**CLEAN), capture_output=True, text=True, check=False
        )

    done = call("-m", "cudnn_ct", "preload", "--install")
    assert done.returncode == 0, done.stderr
    assert "libcudnn_ops.so.9" in done.stdout
    assert call("-c", SEES).returncode == 0
    assert call("-m", "cudnn_ct", "preload", "--uninstall").returncode == 0
    assert not list(site.rglob("cudnn_ct_preload.pth"))


# --- real wheels of other programs -------------------------------------------------------------------------


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
