"""Every example runs from any folder, without a warning, and prints a checked result.

Examples that take long without a GPU run at a smaller size.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

import cudnn_ct as ct
from tests.nightly import some
from tests.processes import ROOT, run_python

EXAMPLES = ROOT / "examples"

if not EXAMPLES.is_dir():
    pytest.skip("examples/ is not next to these tests", allow_module_level=True)

for needed in ("sklearn", "PIL", "matplotlib", "rich"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed}, of the extra 'examples', is not installed", allow_module_level=True)

from PIL import Image  # noqa: E402

ON_GPU = "cuDNN 9|on the GPU by cuDNN 9|not on a GPU: "

# The arguments of each example, and a pattern for the beginning of the last line that it prints.
TABLE = {
    "01_quickstart": ("--output {}", r"saved \S+ \S+: 7 filters over 512 x 600 pixels in 3 colours$"),
    "02_train_digits": ("--epochs 2 --output {}", "a short training: only the loss is checked"),
    "03_language_model": ("--steps 10 --letters 20", "a short training: only that the bits fell is checked"),
    "04_straighten_digits": ("--steps 10 --output {}", "a short training: only the difference is checked"),
    "05_theano_rnn": ("", "largest difference of y, hy and all gradients|not on a GPU, so "),
    "06_time_algorithms": (
        "--x 2,4,12,12 --w 4,4,3,3 --dtype float32 --layout nchw --output {}",
        r"saved |\d+ engines planned for NVIDIA H200",
    ),
    "07_other_libraries": ("", ON_GPU),
    "08_cuda_graph": ("--epochs 1", "the scores are those of example 2, |a CUDA graph needs a GPU"),
    "09_gpt": ("--steps 8 --letters 3 --output {}", "a short training: only that the bits fell is checked"),
    "10_torch_model": ("--epochs 2", "PyTorch is not installed|not on a GPU: |torch .* has no CUDA|cuDNN 9"),
    "11_mamba_conv": ("", "gradients of x, w and bias: largest difference from finite differences "),
    "12_cuda_python_memory": ("", "largest difference from the reference "),
    "13_hyena_block": ("", "gradients of sequences and windows: largest difference from finite differences "),
    "14_distributed_gpt": (
        "--steps 12",
        "PyTorch is not installed|not on a GPU: |torch .* has no CUDA|cuDNN 9",
    ),
}


# Of libraries that fakes lack.
OF_OTHERS = ("07_other_libraries", "10_torch_model", "12_cuda_python_memory", "14_distributed_gpt")


def run(name: str, *arguments: str, cwd: Path, warnings: str = "error") -> str:
    """Run an example; return its output."""
    done = run_python("-W", warnings, EXAMPLES / f"{name}.py", *arguments, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    assert warnings != "error" or "Warning" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("name", some(sorted(set(TABLE) - {"07_other_libraries"}), 2))
def test_example_runs(name: str, tmp_path: Path) -> None:
    arguments, last = TABLE[name]
    picture = tmp_path / "new folder" / "a.png"
    out = run(name, *(word.replace("{}", str(picture)) for word in arguments.split()), cwd=tmp_path)
    assert re.match(last, out.splitlines()[-1]), out
    if "{}" in arguments and "saved" in out.splitlines()[-1]:
        with Image.open(picture) as image:
            assert len(image.getcolors(maxcolors=2**24) or []) > 100


@pytest.mark.parametrize("library", ["torch", "cupy", "jax"])
def test_example_of_other_libraries_reports_the_missing_ones(library: str, tmp_path: Path) -> None:
    out = run("07_other_libraries", library, cwd=tmp_path, warnings="ignore")  # of other libraries
    lines = out.splitlines()
    installed = importlib.util.find_spec(library) is not None
    begin = f"{library}: " if installed else f"{library}: not installed ("
    assert any(line.startswith(begin) for line in lines)
    assert installed or "nothing was compared" in lines[-2]
    assert re.match(ON_GPU, lines[-1])


def test_gradients_of_train_digits_match_finite_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Along random directions, in float64 by the reference, without dropout."""
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


def test_each_example_has_its_section_and_its_tests() -> None:
    """In docs/examples.md, and in all three tiers; the fakes have no other libraries."""
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    on_fakes, on_gpu = ((ROOT / "tests" / tier / "test_examples.py").read_text() for tier in ("fake", "gpu"))
    assert [path.stem for path in sorted(EXAMPLES.glob("*.py"))] == list(TABLE)
    for stem in TABLE:
        assert f"python examples/{stem}.py\n" in page
        assert all(f"<!-- begin: {stem}.{kind} -->\n" in page for kind in ("gpu", "cpu"))
        assert f'"{stem}"' in on_gpu
        assert f'"{stem}"' in on_fakes or stem in OF_OTHERS
