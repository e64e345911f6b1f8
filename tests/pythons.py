"""Find other versions of Python on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path


@cache
def find_python(version: str) -> Path | None:
    """Return the Python of a version such as 3.8, on PATH or of pyenv; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"versions/{version}.*/bin/python"))]
    for python in filter(None, found):
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return Path(python)
    return None
