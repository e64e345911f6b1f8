"""Every example runs, from anywhere, without a warning, and shows a checked result."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cudnn_ct

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

if not EXAMPLES.is_dir():
    pytest.skip("examples/ is not beside these tests", allow_module_level=True)


def run(name: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(cudnn_ct.__file__).parents[1])}
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_quickstart(tmp_path: Path) -> None:
    for module, distribution in (("sklearn", "scikit-learn"), ("PIL", "Pillow")):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{distribution}, of the extra 'examples', is not installed")
    from PIL import Image

    picture = tmp_path / "new folder" / "filters.png"
    done = run("quickstart.py", "--output", str(picture), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(("cuDNN 9.", "no cuDNN was found"))
    assert lines[1].startswith(("largest difference", "not on a GPU: "))
    assert lines[-1] == f"saved {picture}: 7 filters over 640 x 427 pixels in 3 colours"
    with Image.open(picture) as image:
        assert image.size == (1504, 1210)
        assert len(image.getcolors(maxcolors=2**24) or []) > 10_000  # a picture, not a blank sheet
