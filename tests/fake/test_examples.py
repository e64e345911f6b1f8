"""The examples on the fakes, as small as can be: each line for the device runs, and their own checks hold."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct

from .cudnn import FakeCudnn
from .host import ForeignArray, Host

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

if not EXAMPLES.is_dir():
    pytest.skip("examples/ is not beside these tests", allow_module_level=True)

for needed in ("sklearn", "PIL", "matplotlib"):
    pytest.importorskip(needed, reason=f"{needed}, of the extra 'examples', is not installed")

from sklearn.datasets import load_digits  # noqa: E402


@pytest.fixture(autouse=True)
def _examples_can_be_imported(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Import each example again, because it checks for libraries then; restore the settings."""
    monkeypatch.syspath_prepend(EXAMPLES)
    for path in EXAMPLES.glob("*.py"):
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    for name in ("allow_tf32", "deterministic"):
        monkeypatch.setattr(ct.config, name, getattr(ct.config, name))


def example(name: str, monkeypatch: pytest.MonkeyPatch, **constants: Any) -> ModuleType:
    module = import_module(name)
    monkeypatch.setitem(sys.modules, name, module)  # so that it is forgotten after the test
    for constant, value in constants.items():
        monkeypatch.setattr(module, constant, value)
    return module


def few_digits(return_X_y: bool) -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_digits(return_X_y=return_X_y)
    return images[:60], labels[:60]


def test_quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    module = example("01_quickstart", monkeypatch)
    photograph = np.random.default_rng(0).integers(0, 256, (20, 24, 3)).astype(np.uint8)
    monkeypatch.setattr(module, "load_sample_image", lambda name: photograph)
    monkeypatch.setattr(sys, "argv", ["01_quickstart.py", "--output", str(tmp_path / "q.png")])
    assert module.main() == 0
    assert "largest difference between the GPU" in capsys.readouterr().out


def test_train_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    module, picture = example("02_train_digits", monkeypatch, BATCH=10), tmp_path / "t.png"
    monkeypatch.setattr(module, "load_digits", few_digits)
    assert module.main(["--epochs", "2", "--output", str(picture)]) == 0
    assert "on the GPU by cuDNN 91900" in capsys.readouterr().out
    assert picture.stat().st_size > 10_000


def test_language_model(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    module = example("03_language_model", monkeypatch, HIDDEN=8, LENGTH=6, BATCH=4)
    monkeypatch.setattr(module, "zen", lambda: "abcabdabcabd" * 3)
    monkeypatch.setattr(module, "PROMPT", "ab")
    assert module.main(["--steps", "20", "--letters", "5"]) == 0
    assert "on the GPU by cuDNN 91900" in capsys.readouterr().out


def test_straighten_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    module, picture = example("04_straighten_digits", monkeypatch, BATCH=5), tmp_path / "s.png"
    monkeypatch.setattr(module, "load_digits", few_digits)
    assert module.main(["--steps", "3", "--output", str(picture)]) == 0
    assert "on the GPU by cuDNN 91900" in capsys.readouterr().out
    assert picture.stat().st_size > 10_000


def test_theano_rnn(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert example("05_theano_rnn", monkeypatch).main() == 0
    assert "largest difference of y, hy and all gradients" in capsys.readouterr().out


def test_time_algorithms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, fake: FakeCudnn
) -> None:
    module, picture = example("06_time_algorithms", monkeypatch), tmp_path / "a.png"
    fake.costs["GEMM"] = 0.5
    small = ["--x", "2,2,6,6", "--w", "2,2,3,3", "--dtype", "float32", "--layout", "nchw"]
    assert module.main([*small, "--output", str(picture)]) == 0
    assert "2 algorithms were timed; cuDNN refused" in capsys.readouterr().out
    assert picture.stat().st_size > 5_000


def test_other_libraries(host: Host, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """With something like CuPy, whose arrays are those of the fake's other library."""

    def asarray(values: Any) -> ForeignArray:
        return ForeignArray(host, values.numpy() if isinstance(values, ct.DeviceArray) else values)

    stand_in: Any = SimpleNamespace(
        __version__="0",
        cuda=SimpleNamespace(is_available=lambda: True),
        float32=np.float32,
        asarray=asarray,
        empty=lambda *shape: asarray(np.empty(*shape)),
        asnumpy=ForeignArray.numpy,
    )
    monkeypatch.setitem(sys.modules, "cupy", stand_in)
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    assert example("07_other_libraries", monkeypatch).main(["torch", "cupy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("torch: not installed")
    assert lines[-2].startswith("cupy: largest difference")
    assert lines[-1] == "on the GPU by cuDNN 91900"


def test_cuda_graph(fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """With something like a CUDA graph: what was called while it was captured is called again."""
    core = pytest.importorskip("cuda.core")
    monkeypatch.setattr(core, "Device", lambda: FakeDevice(fake))
    module = example("08_cuda_graph", monkeypatch, ROUNDS=1)
    monkeypatch.setattr(module.digits, "BATCH", 10)
    monkeypatch.setattr(module.digits, "load_digits", few_digits)
    monkeypatch.setitem(sys.modules, "02_train_digits", module.digits)
    assert module.main(["--epochs", "1", "--digits", "10", "--batch", "2"]) == 0
    out = capsys.readouterr().out
    assert "the scores are those of example 2, bit by bit" in out
    assert "10 layers, 2 images a pass" in out


class FakeDevice:
    """A device, its stream, the builder of a graph and the graph: what `cuda.core` has four classes for."""

    def __init__(self, fake: FakeCudnn) -> None:
        self.fake = fake

    def set_current(self) -> None:
        pass

    def create_stream(self) -> FakeDevice:
        return self

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 0x5000

    def create_graph_builder(self) -> FakeDevice:
        return self

    def begin_building(self) -> FakeDevice:
        self.fake.host.capturing.add(0x5000)
        self.first = len(self.fake.calls)
        return self

    def end_building(self) -> FakeDevice:
        self.fake.host.capturing.clear()
        self.captured = self.fake.calls[self.first :]
        return self

    def complete(self) -> FakeDevice:
        return self

    def launch(self, stream: Any) -> None:
        for name, arguments in self.captured:
            getattr(self.fake, name)(*arguments)
