"""Files without a path, which child processes open as libraries, when Python cannot create them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.processes import run_python

# What is missing, and the code that removes it.
LACKING = {
    "nothing": "",
    "of Python": "import os; del os.memfd_create\n",
    "of the C library": "import os, ctypes; del os.memfd_create; ctypes.pythonapi = None\n",
}

CALLS = """
import ctypes
from cudnn_doctor import sandbox

library = ctypes.CDLL(f"/proc/self/fd/{sandbox.in_memory(['cuInit'], planning=True)}")
assert library.cuInit(0) == 34
"""

CONTENT = """
import os
from cudnn_doctor.read import files as _files

file = _files.in_memory("name")
os.write(file, b"data")
assert os.pread(file, 9, 0) == b"data"
assert not os.get_inheritable(file)
"""


@pytest.mark.parametrize("code", [CALLS, CONTENT], ids=["library", "content"])
@pytest.mark.parametrize("lacking", LACKING)
def test_file_in_memory_works_when_a_call_is_missing(tmp_path: Path, lacking: str, code: str) -> None:
    done = run_python("-c", LACKING[lacking] + code, TMPDIR=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not [*tmp_path.iterdir()]


COMMAND = LACKING["of Python"] + "from cudnn_ct.__main__ import main; main()"
PROGRAM = "import cudnn_ct as ct\na = ct.empty((64, 64), 'float16')\nct.matmul(a, a)\n"


def test_doctor_runs_its_processes_when_python_has_no_files_in_memory(cudnn: int) -> None:
    answer = json.loads(run_python("-c", COMMAND, "doctor", "--json").stdout)
    assert answer["tiers"]["child"] == "done"
    assert not {"internal-error", "not-probed"} & {found["code"] for found in answer["findings"]}


@pytest.mark.usefixtures("can_plan")
def test_command_plans_when_python_has_no_files_in_memory(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    for words in (["supports"], ["compile", "-o", tmp_path / "plans"]):
        done = run_python("-c", COMMAND, *words, tmp_path / "program.py", "--gpu", "a100")
        assert done.returncode == 0, done.stderr
