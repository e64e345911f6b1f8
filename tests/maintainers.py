"""The tools of maintainers in ``tools/``, which tests import or run."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import cudnn_ct

TOOLS = Path(__file__).resolve().parents[1] / "tools"


def tool(name: str) -> Any:
    """Import a module of ``tools/``, or skip the tests of a file if the folder is not next to them."""
    if not (TOOLS / f"{name}.py").is_file():
        pytest.skip("tools/ is not next to these tests", allow_module_level=True)
    sys.path.insert(0, str(TOOLS))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(TOOLS))


def run_tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a tool with this package, in a process of its own."""
    roots = [str(Path(cudnn_ct.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-W", "error", str(TOOLS / f"{name}.py"), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(roots)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
