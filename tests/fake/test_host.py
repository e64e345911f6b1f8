"""The fakes have the functions and the signatures of the modules that they replace."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

from cudnn_ct.cuda import device, event, interop, memory, stream

from .host import Host


@pytest.mark.parametrize(
    ("module", "name"),
    [(module, name) for module in (device, stream, event, memory, interop) for name in module.__all__],
)
def test_fake_has_the_signature_of_the_real_one(module: ModuleType, name: str) -> None:
    real = inspect.signature(inspect.unwrap(getattr(module, name)))
    fake = inspect.signature(getattr(Host(), name))
    assert [(p.name, p.default) for p in real.parameters.values()] == [
        (p.name, p.default) for p in fake.parameters.values()
    ]
