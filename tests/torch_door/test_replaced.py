"""Modules whose names ``enable(rebind=True)`` binds: odd, dropped and reloaded ones."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

import cudnn_ct.torch as ctt
from cudnn_ct.torch.serving import _replaced
from tests.mixed import in_thread


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Add a module of a class to the loaded ones, with the conv2d of torch."""

    def loaded(name: str, kind: type[types.ModuleType] = types.ModuleType) -> Any:
        module = kind(name)
        vars_of(module)["conv2d"] = F.conv2d
        monkeypatch.setitem(sys.modules, name, module)
        return module

    own = F.conv2d
    yield loaded
    assert F.conv2d is own


vars_of: Any = vars(types.ModuleType)["__dict__"].__get__


def test_modules_that_a_program_drops_are_not_kept() -> None:
    dropped, own = [], F.conv2d
    for number in range(20):
        module: Any = types.ModuleType(f"generated_{number}")
        module.conv2d = own
        sys.modules[module.__name__] = module
        with ctt.enable(rebind=True):
            assert module.conv2d is F.conv2d is not own
        assert module.conv2d is own
        dropped.append(weakref.ref(module))
        del sys.modules[module.__name__], module
    with ctt.enable(rebind=True):
        gc.collect()
    assert [one() for one in dropped] == [None] * 20
    assert len(_replaced._owners) <= len(sys.modules) + 2


def test_module_in_the_memory_of_another_one_of_its_name_is_found(load: Callable[..., Any]) -> None:
    for number in range(20):
        sys.modules.pop("generated", None)
        module = load("generated")
        if number % 2:
            del module.conv2d
        with ctt.enable(rebind=True):
            assert number % 2 or module.conv2d is F.conv2d
        assert number % 2 or module.conv2d is F.conv2d
        del module


def test_module_that_is_loaded_lazily_is_loaded_by_its_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, own = tmp_path / "lazily_loaded.py", F.conv2d
    path.write_text("from torch.nn.functional import conv2d, softmax\n")
    spec = importlib.util.spec_from_file_location("lazily_loaded", path)
    loader = spec.loader = importlib.util.LazyLoader(spec.loader)
    module: Any = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "lazily_loaded", module)
    loader.exec_module(module)
    with ctt.enable(rebind=True):
        assert "conv2d" not in vars_of(module)
        assert module.conv2d is F.conv2d
        load_another(monkeypatch, "another_1")
    assert module.conv2d is own
    load_another(monkeypatch, "another_2")
    with ctt.enable(rebind=True):
        assert module.conv2d is F.conv2d is not own


def load_another(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))


def test_reloaded_module_has_new_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, own = tmp_path / "is_reloaded.py", F.softmax
    path.write_text("from torch.nn.functional import conv2d\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module: Any = importlib.import_module("is_reloaded")
    with ctt.enable(rebind=True):
        pass
    path.write_text("from torch.nn.functional import conv2d, softmax\n")
    importlib.reload(module)
    with ctt.enable(rebind=True):
        assert module.softmax is F.softmax is not own
        path.write_text("from torch.nn.functional import conv2d, softmax, layer_norm\n")
        importlib.reload(module)
    assert (module.softmax, module.layer_norm) == (own, F.layer_norm)
    del sys.modules["is_reloaded"]


class Compared(types.ModuleType):
    """Modules that compare by value have no hash."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Compared)


class WithoutDict(types.ModuleType):
    """A module that does not show its names."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no names")


class ReadOnly(types.ModuleType):
    """A module that rejects new values with an error of its own."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise RuntimeError("read-only")


@pytest.mark.parametrize("kind", [Compared, WithoutDict, ReadOnly])
def test_module_of_an_odd_class_ends_no_block(load: Callable[..., Any], kind: type[types.ModuleType]) -> None:
    own, module = F.conv2d, load("odd", kind)
    with ctt.enable(rebind=True):
        assert F.conv2d is not own
        assert module.conv2d is (own if kind is ReadOnly else F.conv2d)
    assert module.conv2d is F.conv2d is own


def test_block_begins_while_another_thread_loads_modules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Changing(dict[str, Any]):
        def values(self) -> Any:
            return _Raises()

    class _Raises:
        def __reversed__(self) -> Any:
            raise RuntimeError("dictionary changed size during iteration")

    own = F.conv2d
    monkeypatch.setattr(sys, "modules", Changing(sys.modules))
    with ctt.enable(rebind=True):
        assert F.conv2d is not own
    assert F.conv2d is own


def test_value_that_is_not_a_module_may_be_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    own = torch.conv2d
    monkeypatch.setitem(sys.modules, "not_a_module", object())  # type: ignore[arg-type]
    for _ in range(2):
        with ctt.enable(rebind=True):
            assert torch.conv2d is not own
        assert torch.conv2d is own


class Named(torch.Tensor):
    """Tensors with functions of their own, which they find by torch's."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in OWN:
            return OWN[func]
        return super().__torch_function__(func, types, args, kwargs or {})


class Naming(TorchFunctionMode):  # type: ignore[misc]
    """A mode with functions of its own."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return OWN[func] if func in OWN else func(*args, **(kwargs or {}))


OWN = {
    F.softmax: "F.softmax",
    F.layer_norm: "F.layer_norm",
    F.max_pool2d: "F.max_pool2d",
    F.batch_norm: "F.batch_norm",
    F.conv2d: "F.conv2d",
    F.scaled_dot_product_attention: "F.scaled_dot_product_attention",
    torch.softmax: "torch.softmax",
    torch.Tensor.softmax: "Tensor.softmax",
}


def called(x: Any) -> list[Any]:
    """Call the functions in the order of their names."""
    ones = torch.ones(4)
    return [
        F.softmax(x, 1),
        F.layer_norm(x, (8,)),
        F.max_pool2d(x, kernel_size=2),
        F.batch_norm(x, None, None, ones, bias=ones, training=True),
        F.conv2d(x, torch.ones(4, 4, 3, 3)),
        F.scaled_dot_product_attention(x, x, x),
        torch.softmax(x, 1),
        x.softmax(1),
    ]


def test_classes_and_modes_find_torchs_functions() -> None:
    x = torch.randn(2, 4, 8, 8)
    with ctt.enable(rebind=True) as block:
        assert called(x.as_subclass(Named)) == list(OWN.values())
        with Naming():
            assert called(x) == list(OWN.values())
        assert called(x)[0].shape == x.shape
        assert in_thread(called, x.as_subclass(Named)) == list(OWN.values())  # without a block
    assert not block.report().served


def test_thread_without_a_block_has_torchs_functions_for_its_modes() -> None:
    def work() -> list[Any]:
        with Naming():
            return called(torch.randn(2, 4, 8, 8))

    with ctt.enable(rebind=True):
        assert in_thread(work) == list(OWN.values())
