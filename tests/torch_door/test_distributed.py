"""The example of several GPUs, in one process on the fakes."""

from __future__ import annotations

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fake.cudnn import FakeCudnn

PATH = Path(__file__).parents[2] / "examples" / "14_distributed_gpt.py"
SIZES = {"steps": 80, "batch": 4, "length": 6, "width": 16, "heads": 2, "layers": 1}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = spec_from_file_location("distributed_gpt", PATH)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "not_here", str)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32)  # main() sets it
    for owner in (torch.Tensor, torch.nn.Module):
        monkeypatch.setattr(owner, "cuda", lambda self: self)
    for name in ("synchronize", "set_device"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    return module


def test_gpt_learns_by_operators(door: FakeCudnn, example: Any, tmp_path: Path) -> None:
    words = [f"--{name}={value}" for name, value in SIZES.items()]
    assert example.main([*words, "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found["losses"]) == SIZES["steps"]
    assert found["tokens"] > 0
    assert {"cudnnSoftmaxForward", "cudnnSoftmaxBackward"} <= set(door.names())
