"""The examples on the fakes, at a small size: each line for the device runs, and their checks pass."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from tests.unit.test_examples import EXAMPLES

from .cudnn import FakeCudnn

pytestmark = pytest.mark.skipif(not find_spec("sklearn"), reason="scikit-learn is not installed")


def few_digits(return_X_y: bool) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits  # a second: not while collecting

    images, labels = load_digits(return_X_y=return_X_y)
    return images[:60], labels[:60]


def photograph() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (20, 24, 3)).astype(np.uint8)


ON_GPU = "on the GPU by cuDNN 91900"
SMALL = "--x 2,2,6,6 --w 2,2,3,3 --dtype float32 --layout nchw"

# For each example: its arguments, the values of its module that make it small, and a part of its output.
TABLE: dict[str, tuple[str, dict[str, Any], str]] = {
    "01_quickstart": ("--output {}", {"load_photograph": photograph}, "largest difference between the GPU"),
    "02_train_digits": ("--epochs 2 --output {}", {}, ON_GPU),
    "03_language_model": (
        "--steps 20 --letters 5",
        {"HIDDEN": 8, "LENGTH": 6, "BATCH": 4, "zen": lambda: "abcabdabcabd" * 3, "PROMPT": "ab"},
        ON_GPU,
    ),
    "04_straighten_digits": ("--steps 3 --output {}", {"BATCH": 5, "load_digits": few_digits}, ON_GPU),
    "05_theano_rnn": ("", {}, "largest difference of y, hy and all gradients"),
    "06_time_algorithms": (f"{SMALL} --output {{}}", {}, "2 algorithms were timed; cuDNN rejected"),
    "08_cuda_graph": ("--epochs 1 --batch 2", {"ROUNDS": 2}, "the scores are those of example 2, bit by bit"),
    "09_gpt": (
        "--steps 6 --letters 2 --output {}",
        {"BATCH": 2, "LENGTH": 16, "WIDTH": 16, "HEADS": 2, "LETTERS": 3000},
        ON_GPU,
    ),
    "11_mamba_conv": ("", {"CHANNELS": 3, "PROMPT": 9, "STEPS": 2}, ON_GPU),
    "13_hyena_block": ("", {"CHANNELS": 3, "LENGTH": 128}, ON_GPU),
}


@pytest.fixture(autouse=True)
def _examples_can_be_imported(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Import each example again, because it checks for libraries then; restore the settings."""
    monkeypatch.syspath_prepend(EXAMPLES)
    for path in EXAMPLES.glob("*.py"):
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    for name in ("allow_tf32", "deterministic"):
        monkeypatch.setattr(ct.config, name, getattr(ct.config, name))


@pytest.mark.parametrize("name", TABLE)
def test_example_computes_on_the_device(
    name: str, fake: FakeCudnn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    arguments, values, printed = TABLE[name]
    module, picture = import_module(name), tmp_path / "picture.png"
    digits = import_module("02_train_digits")  # also a part of example 8
    monkeypatch.setattr(digits, "BATCH", 10)
    monkeypatch.setattr(digits, "load_digits", few_digits)
    monkeypatch.setitem(sys.modules, name, module)  # so that it is forgotten after the test
    for constant, value in values.items():
        monkeypatch.setattr(module, constant, value)
    fake.costs["GEMM"] = 0.5
    fake.engines = name == "09_gpt"  # attention is a graph
    monkeypatch.setattr(sys, "argv", [name, *arguments.format(picture).split()])
    assert module.main() == 0
    assert printed in capsys.readouterr().out
    assert picture.is_file() == ("{}" in arguments)
