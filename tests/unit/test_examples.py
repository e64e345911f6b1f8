"""Every example runs, from anywhere, without a warning, and shows a checked result.

Smaller than by default where that takes long without a GPU. What it says of itself holds either way.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cudnn_ct as ct

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

if not EXAMPLES.is_dir():
    pytest.skip("examples/ is not beside these tests", allow_module_level=True)

for module, distribution in (("sklearn", "scikit-learn"), ("PIL", "Pillow"), ("matplotlib", "Matplotlib")):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{distribution}, of the extra 'examples', is not installed", allow_module_level=True)

WHERE = ("training on the GPU by cuDNN 9", "training in NumPy by the reference, since there is ")


def run(name: str, *arguments: str, cwd: Path, warnings: str = "error") -> list[str]:
    """Run an example; return the lines that it printed."""
    environment = {**os.environ, "PYTHONPATH": str(Path(ct.__file__).parents[1])}
    command = [sys.executable, "-W", warnings, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert warnings != "error" or "Warning" not in done.stderr
    return done.stdout.splitlines()


def check_picture(path: Path, size: tuple[int, int], colours: int) -> None:
    """A picture of a size, and no blank sheet."""
    from PIL import Image

    with Image.open(path) as image:
        assert image.size == size
        assert len(image.getcolors(maxcolors=2**24) or []) > colours


def test_quickstart(tmp_path: Path) -> None:
    picture = tmp_path / "new folder" / "filters.png"
    lines = run("01_quickstart.py", "--output", str(picture), cwd=tmp_path)
    assert lines[0].startswith(("cuDNN 9.", "no cuDNN was found"))
    assert lines[1].startswith(("largest difference", "not on a GPU: "))
    assert lines[-1] == f"saved {picture}: 7 filters over 640 x 427 pixels in 3 colours"
    check_picture(picture, (1504, 1210), 10_000)


def test_train_digits(tmp_path: Path) -> None:
    picture = tmp_path / "new folder" / "training.png"
    lines = run("02_train_digits.py", "--epochs", "2", "--output", str(picture), cwd=tmp_path)
    assert lines[0].startswith(WHERE)
    assert lines[1].startswith("42 steps in ")
    assert lines[-1] == "a short training: only the loss is checked, not that 98% are right"
    check_picture(picture, (1200, 480), 100)


def test_the_gradients_that_are_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against finite differences along some directions, in float64 by the reference, with nothing dropped."""
    spec = importlib.util.spec_from_file_location("train_digits", EXAMPLES / "02_train_digits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, value in (("available", False), ("ops", ct.reference), ("put", np.asarray), ("DROPPED", 0.0)):
        monkeypatch.setattr(module, name, value)
    rng = np.random.default_rng(0)
    network = module.Network(rng)
    for arrays in (network.weights, network.seen1, network.seen2):
        arrays.update({name: array.astype(np.float64) for name, array in arrays.items()})
    (images, labels), _ = module.load(8)
    operands = images.astype(np.float64), module.one_hot(labels).astype(np.float64)
    _, gradients = network.loss_and_gradients(*operands)
    for name, w in network.weights.items():
        start, direction = w.copy(), rng.standard_normal(w.shape)
        losses = []
        for step in (1e-6, -1e-6):
            w[...] = start + step * direction
            losses.append(float(network.loss_and_gradients(*operands)[0]))
        w[...] = start
        slope = (losses[0] - losses[1]) / 2e-6
        assert slope == pytest.approx(float((gradients[name] * direction).sum()), rel=1e-4, abs=1e-6), name


def test_language_model(tmp_path: Path) -> None:
    lines = run("03_language_model.py", "--steps", "10", "--letters", "20", cwd=tmp_path)
    assert lines[0].startswith(WHERE)
    assert lines[1] == "856 characters, 45 different ones: 4.49 bits each by their frequency"
    assert lines[2].startswith("10 steps in ")
    assert lines[-1] == "a short training: only that the bits fell is checked, not that they are below 1.0"


def test_straighten_digits(tmp_path: Path) -> None:
    picture = tmp_path / "straightened.png"
    lines = run("04_straighten_digits.py", "--steps", "10", "--output", str(picture), cwd=tmp_path)
    assert lines[0].startswith(WHERE)
    assert [line.split(": ")[-1] for line in lines[3:6]] == [
        "upright",
        "rotated by up to 60°",
        "straightened",
    ]
    assert lines[-1] == "a short training: only the difference is checked, not that 95% are known"
    check_picture(picture, (1440, 504), 100)


def test_theano_rnn(tmp_path: Path) -> None:
    lines = run("05_theano_rnn.py", cwd=tmp_path)
    assert lines[0] == "a GRU of 3 layers with 16 units, of inputs of 32: 5664 parameters"
    assert lines[1].startswith("the reference: y (5, 2, 16), hy (3, 2, 16), cost ")
    assert lines[2].startswith("a step down the gradient lowers the cost by ")
    assert lines[-1].startswith(("largest difference of y, hy and all gradients", "not on a GPU, so "))


def test_time_algorithms(tmp_path: Path) -> None:
    picture = tmp_path / "algorithms.png"
    small = ("--x", "2,4,12,12", "--w", "4,4,3,3", "--dtype", "float32", "--layout", "nchw")
    lines = run("06_time_algorithms.py", *small, "--output", str(picture), cwd=tmp_path)
    assert "algorithms were timed" in lines[0] or lines[0].startswith("not on a GPU: ")
    assert any("x (2, 4, 12, 12), w (4, 4, 3, 3)" in line for line in lines)
    assert lines[-2].startswith("largest difference to the reference")
    assert picture.stat().st_size > 5_000


@pytest.mark.parametrize("name", ["torch", "cupy", "jax"])
def test_other_libraries(name: str, tmp_path: Path) -> None:
    lines = run("07_other_libraries.py", name, cwd=tmp_path, warnings="ignore")  # of other libraries
    assert lines[-2].startswith(f"{name}: ")
    if importlib.util.find_spec(name) is None:
        assert lines[-2].startswith(f"{name}: not installed (")
    assert lines[-1].startswith(("on the GPU by cuDNN 9", "not on a GPU: "))


def test_cuda_graph(tmp_path: Path) -> None:
    lines = run("08_cuda_graph.py", "--epochs", "1", cwd=tmp_path)
    assert lines[0].startswith(("cuDNN 9", "not on a GPU: "))
    assert lines[-1].startswith("the scores are those of example 2, ")


def test_each_example_has_its_section_and_its_tests() -> None:
    """In docs/examples.md, with the command; and here, on the fakes and on a GPU."""
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    tiers = [(ROOT / "tests" / tier / "test_examples.py").read_text() for tier in ("unit", "fake", "gpu")]
    for path in sorted(EXAMPLES.glob("*.py")):
        assert f"python examples/{path.name}\n" in page
        assert all(f"<!-- begin: {path.stem}.{kind} -->\n" in page for kind in ("gpu", "cpu"))
        assert all(f"def test_{path.stem[3:]}(" in tests for tests in tiers), path.stem
