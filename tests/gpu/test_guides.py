"""README.md and the guides on a GPU: each snippet runs as pasted, in a new process for each page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cudnn_ct as ct

ROOT = Path(__file__).resolve().parents[2]

if not (ROOT / "mkdocs.yml").is_file():
    pytest.skip("docs/ is not next to these tests", allow_module_level=True)

from tests import guides  # noqa: E402


@pytest.mark.parametrize("page", guides.guides() + guides.others() + guides.internals())
def test_snippets_run_as_pasted_on_a_gpu(page: str, tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(ct.__file__).parents[1]), str(ROOT), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "CUDNN_CT_ALGO_CACHE": str(tmp_path)}
    environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # else JAX takes the memory of other tests
    command = [sys.executable, "-m", "tests.guides", page]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
