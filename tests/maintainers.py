"""The tools of maintainers in ``tools/``, which tests import or run."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import pytest

from .processes import ROOT, Done, run_python

TOOLS = ROOT / "tools"


def tool(name: str) -> Any:
    """Import a module of ``tools/``, or skip the tests of a file if the folder is not next to them."""
    if not (TOOLS / f"{name}.py").is_file():
        pytest.skip("tools/ is not next to these tests", allow_module_level=True)
    sys.path.insert(0, str(TOOLS))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(TOOLS))


def run_tool(name: str, *arguments: object) -> Done:
    """Run a tool with this package, in a process of its own."""
    return run_python("-W", "error", TOOLS / f"{name}.py", *arguments)
