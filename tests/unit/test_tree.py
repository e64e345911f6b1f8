"""What lies at the top of the repository: nothing that a program left there by accident."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = {".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md"}
FILES |= {"mkdocs.yml", "pyproject.toml"}
FOLDERS = {".ci", "benchmarks", "cudnn_ct", "docs", "examples", "tests", "tools"}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout, which would say what belongs to it")
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_nothing_lies_at_the_top_that_does_not_belong_there() -> None:
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {name.partition("/")[0] for name in listed.split("\0") if name} == FILES | FOLDERS
