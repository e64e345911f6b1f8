"""Compiled programs in blocks of ``enable()``: their breaks and derivatives are those of torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

import cudnn_ct.torch as ctt
from cudnn_ct.torch import serving, tracing
from tests.fake.cudnn import FakeCudnn

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # by jvp
W = torch.randn(4, 4, 3, 3, generator=torch.Generator().manual_seed(0))
LAYER = nn.Conv2d(4, 4, 3)


@pytest.fixture(params=[False, True], ids=["mode", "rebind"])
def serves(door: FakeCudnn, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """Enter a block of each kind, in which tensors in host memory are served."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(serving, "SERVED_DEVICES", ("cpu",))
    return lambda: ctt.enable(rebind=request.param)


# --- derivatives by torch.func -----------------------------------------------------------------------------


def _conv(x: Tensor) -> Tensor:
    return F.conv2d(x, W)


def _loss(x: Tensor) -> Tensor:
    return _conv(x).square().sum()


DERIVATIVES: dict[str, Callable[[Tensor], Any]] = {
    "jvp": lambda x: jvp(_conv, (x,), (x,)),
    "jvp of vmap": lambda x: jvp(vmap(_conv), (x[:, None],), (x[:, None],)),
    "vmap of jvp": lambda x: vmap(lambda one: jvp(_conv, (one,), (one,)))(x[:, None]),
    "jacfwd": jacfwd(lambda x: _conv(x).sum((1, 2, 3))),
    "jacrev": jacrev(lambda x: _conv(x).sum((1, 2, 3))),
    "grad": grad(_loss),
    "vmap of grad": lambda x: vmap(grad(_loss))(x[:, None]),
    "vjp": lambda x: vjp(_conv, x)[1](torch.ones(2, 4, 3, 3)),
    "hessian": lambda x: hessian(lambda one: _conv(one).square().sum())(x[:1]),
    "parameters": lambda x: grad(lambda w: functional_call(LAYER, {"weight": w}, x).square().sum())(W),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", [*DERIVATIVES])
def test_compiled_derivatives_by_torch_func_are_those_of_torch(serves: Any, name: str, backend: str) -> None:
    function, x = DERIVATIVES[name], torch.randn(2, 4, 5, 5)
    expected = function(x)
    with serves():
        found = torch.compile(function, backend=backend)(x)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_compiled_maps_by_torch_func_have_operators(serves: Any) -> None:
    programs: list[set[str]] = []

    def backend(graph: Any, _: Any) -> Any:
        programs.append({str(node.target) for node in graph.graph.nodes})
        return graph

    x = torch.randn(3, 2, 4, 5, 5)
    with serves():
        found = torch.compile(vmap(_conv), backend=backend, fullgraph=True)(x)
    torch.testing.assert_close(found, vmap(_conv)(x), rtol=1e-4, atol=1e-4)
    assert ["cudnn_ct.conv.default" in names for names in programs] == [True]


# --- graph breaks ------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[..., Any]] = {
    "network": nn.LSTM(4, 8),
    "item": lambda x: x * x.sum().item(),
    "size": lambda x: x[x > 0].softmax(0).sum(),
    "copy": lambda x: copy.copy(x) * x.sum().item(),
    "linearize": lambda x: linearize(lambda one: one.sin(), x)[1](x),
    "softmax": lambda x: F.softmax(x * x.sum().item(), 1) + torch.softmax(x, 1),
    "print": lambda x: (x.softmax(1), repr(x))[0],
}


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")  # by linearize
@pytest.mark.skipif(tracing._set_strategy is None, reason="this torch compiles code that it leaves to Python")
@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("name", [*CALLS])
def test_programs_and_graph_breaks_are_those_without_a_block(serves: Any, name: str, records: bool) -> None:
    x, found = torch.randn(2, 3, 4), list[Any]()
    for within in (False, True):
        torch._dynamo.reset()
        counters.clear()
        function, programs = copy.copy(CALLS[name]), list[Any]()
        compiled = torch.compile(function, backend=lambda graph, _, to=programs: to.append(1) or graph)
        with torch.set_grad_enabled(records):
            if within:
                with serves():
                    compiled(x)
            else:
                compiled(x)
        found.append((len(programs), sum(counters["graph_break"].values())))
    assert found[0] == found[1]


@pytest.mark.skipif(tracing._set_strategy is None, reason="this torch compiles code that it leaves to Python")
def test_blocks_that_begin_in_compiled_functions_are_not_compiled(serves: Any) -> None:
    programs: list[set[str]] = []

    def backend(graph: Any, _: Any) -> Any:
        programs.append({str(node.target) for node in graph.graph.nodes})
        return graph

    def function(x: Tensor) -> Tensor:
        with serves():
            return LAYER(x)

    x = torch.randn(2, 4, 5, 5)
    found = torch.compile(function, backend=backend)(x)
    torch.testing.assert_close(found, LAYER(x), rtol=1e-4, atol=1e-4)
    assert not counters["graph_break"]
    assert len(programs) <= 1


# --- symbolic sizes ----------------------------------------------------------------------------------------

NARROW = nn.Conv2d(2, 2, 1)


PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": LAYER,
    "slice": lambda x: NARROW(x[:, :2]),
    "chunks": lambda x: torch.cat([NARROW(one) for one in x.chunk(2, 1)], 1),
    "split": lambda x: torch.cat([NARROW(one) for one in x.split(2, 1)], 1),
    "rows": lambda x: LAYER(x[:, :, 1:]),
}


@pytest.mark.parametrize("name", [*PARTS])
def test_parts_of_tensors_have_symbolic_sizes(serves: Any, name: str) -> None:
    function, counts = PARTS[name], list[int]()
    operands = [torch.randn(shape) for shape in [(2, 4, 8, 9), (3, 4, 8, 12), (5, 4, 10, 6), (4, 4, 11, 7)]]
    expected = [function(x) for x in operands]
    for within in (False, True):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(function, backend=counter, dynamic=True, fullgraph=True)
        with torch.no_grad(), serves() if within else nullcontext():
            for x, y in zip(operands, expected, strict=True):
                torch.testing.assert_close(compiled(x), y, rtol=2e-2, atol=1e-2)
        counts.append(counter.frame_count)
    assert counts[0] == counts[1]


# --- types of tensors --------------------------------------------------------------------------------------


class Doubled(Tensor):
    """Tensors whose convolutions are doubled."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(func, types, args, kwargs or {})
        return found * 2 if func.__name__ == "conv2d" else found


@pytest.mark.parametrize("place", [0, 1])
def test_compiled_calls_of_types_with_functions_of_their_own_are_left(serves: Any, place: int) -> None:
    operands = [torch.randn(2, 4, 5, 5), W]
    twice = 2 * F.conv2d(*operands)
    operands[place] = operands[place].as_subclass(Doubled)
    left = torch.compile(F.conv2d, backend="eager")(*operands).as_subclass(Tensor)  # 4 times in torch 2.11
    torch._dynamo.reset()
    with serves():
        found = torch.compile(F.conv2d, backend="eager")(*operands)
        within = torch.compile(lambda *given: F.conv2d(*given), backend="eager")(*operands)
    for one in (found.as_subclass(Tensor), within.as_subclass(Tensor)):
        assert any(torch.allclose(one, expected, 1e-4, 1e-4) for expected in (twice, left))
