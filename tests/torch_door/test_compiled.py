"""Compiled programs in blocks of ``enable()``: their breaks are those of torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch._dynamo.utils import counters
from torch.func import linearize

import cudnn_ct.torch as ctt
from cudnn_ct.torch import serving, tracing
from tests.fake.cudnn import FakeCudnn

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # by jvp


@pytest.fixture(params=[False, True], ids=["mode", "rebind"])
def serves(door: FakeCudnn, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """Enter a block of each kind, in which tensors in host memory are served."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(serving, "SERVED_DEVICES", ("cpu",))
    return lambda: ctt.enable(rebind=request.param)


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
