"""Calls that are settled under ``enable()``, on the fakes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.autograd import forward_ad

import cudnn_ct.torch as ctt
from cudnn_ct.torch import operators, serving, settled
from tests.fake.cudnn import FakeCudnn


@pytest.fixture
def rules(door: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tensors in host memory are served without the dispatcher; the functions that were called by rules."""
    monkeypatch.setattr(serving, "SERVED_DEVICES", ("cpu",))
    monkeypatch.setattr(serving, "_settled", settled.SettledCalls())

    def way(tensors: Any) -> object:
        plain = all(one is None or type(one) in operators._PLAIN for one in tensors)
        if forward_ad._current_level >= 0 or not plain:
            return operators._DISPATCHED
        grad = torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in tensors)
        return operators._RECORDED if grad else operators._COMPUTED

    monkeypatch.setattr(operators, "_way", way)
    called: list[str] = []
    for function, (group, serve) in serving.RULES.items():

        def rule(*args: Any, _group: str = group, _serve: Any = serve, **kwargs: Any) -> Any:
            called.append(_group)
            return _serve(*args, **kwargs)

        monkeypatch.setitem(serving.RULES, function, (group, rule))
    return called


def image(*shape: int, **how: Any) -> Any:
    return torch.randn(*shape, **how)


CALLS: dict[str, Any] = {
    "conv": (lambda x: F.conv2d(x, torch.ones(4, 4, 3, 3), None, 1, 1), "conv"),
    "conv of lists": (lambda x: F.conv2d(x, torch.ones(4, 4, 3, 3), torch.ones(4), [1, 1], [1, 1]), "conv"),
    "pool": (lambda x: F.max_pool2d(x, 2, stride=2, padding=0, ceil_mode=False), "pool"),
    "softmax": (lambda x: F.softmax(x, dim=1), "softmax"),
    "method": (lambda x: x.softmax(1), "softmax"),
    "layer norm": (lambda x: F.layer_norm(x, (8,), torch.ones(8), torch.ones(8)), "layer_norm"),
    "batch norm": (
        lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4), torch.ones(4), torch.ones(4)),
        "batch_norm",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_repeated_does_not_ask_the_rule(rules: list[str], name: str) -> None:
    call, group = CALLS[name]
    with torch.no_grad(), ctt.enable() as block:
        for _ in range(3):
            x = image(2, 4, 8, 8)
            found = call(x)
            with ctt.enable(skip=[group]):
                torch.testing.assert_close(found, call(x), rtol=1e-4, atol=1e-5)
    assert rules == [group]
    assert block.report().served == {group: 3}


def test_other_attributes_and_settings_are_other_calls(
    rules: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = image(2, 4, 8, 8), torch.ones(4, 4, 3, 3)
    variants = [
        lambda: F.conv2d(x, w),
        lambda: F.conv2d(x[:1], w),
        lambda: F.conv2d(x, w, padding=1),
        lambda: F.conv2d(x.to(memory_format=torch.channels_last), w),
        lambda: F.conv2d(x.double(), w.double()),
        lambda: F.conv2d(x, w, torch.ones(4)),
    ]
    with torch.no_grad(), ctt.enable():
        for call in variants:
            call()
        assert len(rules) == len(variants)
        monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
        variants[0]()
    assert len(rules) == len(variants) + 1


def test_gradients_are_recorded_for_a_call_that_is_settled(rules: list[str]) -> None:
    x = image(2, 4, 8, 8, requires_grad=True)
    with ctt.enable():
        with torch.no_grad():
            F.softmax(x, 1)
        (gradient,) = torch.autograd.grad((F.softmax(x, 1) * x).sum(), x)
        with torch.no_grad():
            F.softmax(x, 1)
    (expected,) = torch.autograd.grad((F.softmax(x, 1) * x).sum(), x)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)
    assert rules == ["softmax"] * 2


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # by make_dual
def test_calls_that_do_more_are_not_settled(rules: list[str]) -> None:
    module, x = nn.BatchNorm2d(4), image(2, 4, 8, 8)
    with torch.no_grad(), ctt.enable():
        for _ in range(2):
            module(x)  # updates running statistics
        F.softmax(x, 1)
        with forward_ad.dual_level():
            F.softmax(forward_ad.make_dual(x, x), 1)
        for _ in range(2):
            F.softmax(x, 1, dtype=torch.float32)  # left to torch
    assert rules == ["batch_norm"] * 2 + ["softmax"] * 3
    assert int(module.num_batches_tracked) == 2


def test_calls_under_autocast_have_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, x = settled.SettledCalls(), torch.ones(2)
    assert calls.key(F.softmax, (x, 0), ()) is not None
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda: True)
    assert calls.key(F.softmax, (x, 0), ()) is None


def test_weights_of_networks_are_no_parts_of_keys(rules: list[str]) -> None:
    module, x = nn.LSTM(3, 4, batch_first=True), torch.randn(2, 5, 3)
    with torch.no_grad(), ctt.enable():
        for _ in range(2):
            module(x)
    assert rules == ["lstm"] * 2
    assert not serving._settled._calls
