"""Operations in place between served calls and their gradients, on the fakes."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import cudnn_ct.torch as ctt
from cudnn_ct.torch import blocks, serving
from tests.fake.cudnn import FakeCudnn


@pytest.fixture(params=["dispatched", "direct"])
def cpu(door: FakeCudnn, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Tensors in host memory are served."""
    door.engines = True
    if request.param == "direct":
        request.getfixturevalue("direct")
    monkeypatch.setattr(serving, "SERVED_DEVICES", ("cpu",))


def leaf(*shape: int) -> Any:
    return torch.randn(*shape, requires_grad=True)


def images(*shapes: tuple[int, ...]) -> Any:
    return lambda: [leaf(2, 4, 8, 8), *[leaf(*shape) for shape in shapes]]


def statistics() -> list[Any]:
    return [*images((4,), (4,))(), torch.zeros(4), torch.ones(4)]


# The function of each kind of call, and its operands. Torch saves other tensors in the first two groups.
CALLS: dict[str, tuple[Any, Any]] = {
    "max_pool1d": (lambda x: F.max_pool1d(x[0], 2), images()),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), images()),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), images()),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 1), images()),
    "instance_norm": (lambda x, w, b: F.instance_norm(x, weight=w, bias=b), images((4,), (4,))),
    "conv2d": (F.conv2d, images((4, 4, 3, 3), (4,))),
    "conv_transpose2d": (F.conv_transpose2d, images((4, 4, 3, 3), (4,))),
    "softmax": (lambda x: F.softmax(x, 1), images()),
    "log_softmax": (lambda x: F.log_softmax(x, 1), images()),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (8,), w, b), images((8,), (8,))),
    "rms_norm": (lambda x, w: F.rms_norm(x, (8,), w, 1e-5), images((8,))),
    "batch_norm in training": (lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, True), statistics),
    "batch_norm": (lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b), statistics),
    "lstm": (
        lambda x, h, c, *weights: torch.lstm(x, (h, c), weights, True, 1, 0.0, True, False, False)[0],
        lambda: [leaf(5, 2, 3), leaf(1, 2, 4), leaf(1, 2, 4), leaf(16, 3), leaf(16, 4), leaf(16), leaf(16)],
    ),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q.half(), k.half(), v.half()).float(),
        lambda: [leaf(1, 2, 5, 8) for _ in range(3)],
    ),
}
CHANGES = [(name, place) for name, (_, made) in CALLS.items() for place in (None, *range(len(made())))]


@pytest.mark.parametrize(("name", "place"), CHANGES)
def test_a_change_in_place_raises_only_if_it_does_in_torch(cpu: None, name: str, place: int | None) -> None:
    """``place`` is that of an operand that changes after the call, None for the result."""
    call, made = CALLS[name]
    found = []
    for skip in (list(blocks.GROUPS), []):
        torch.manual_seed(0)
        leaves = made()
        operands = [one * 1 if one.requires_grad else one for one in leaves]
        with ctt.enable(skip=skip) as block:
            y = call(*operands)
        with torch.no_grad():
            (y if place is None else operands[place]).mul_(1.5)
        wanted = [one for one in leaves if one.requires_grad]
        try:
            found.append(torch.autograd.grad(y.square().sum(), wanted, allow_unused=True))
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            found.append(())
    expected, gradients = found
    assert gradients or not expected
    if gradients and expected:
        torch.testing.assert_close(gradients, expected, rtol=1e-2, atol=2e-3)
    assert sum(block.report().served.values()) == 1


@pytest.mark.parametrize("order", [(False, True), (True, False), (True, True)])
def test_batch_norms_of_both_kinds_before_a_gradient(cpu: None, order: tuple[bool, ...]) -> None:
    """A training call updates the statistics that a call before it has read."""
    x, found = torch.randn(4, 4, 8, 8), []
    for skip in (["batch_norm"], []):
        module = nn.BatchNorm2d(4)
        with ctt.enable(skip=skip):
            losses = [(module.train(training)(x) * x.sin()).sum() for training in order]
        found.append(torch.autograd.grad(sum(losses), list(module.parameters())))
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", [nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1)])
@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
def test_results_of_pooling_may_be_changed_in_place(cpu: None, kind: Any, backend: Any) -> None:
    torch._dynamo.reset()
    layers, x = nn.Sequential(nn.Conv2d(4, 4, 3), kind, nn.ReLU(inplace=True)), torch.randn(2, 4, 8, 8)
    expected = torch.autograd.grad(layers(x).square().sum(), list(layers.parameters()))
    model = layers if backend is None else torch.compile(layers, backend=backend)
    with ctt.enable() as block:
        found = torch.autograd.grad(model(x).square().sum(), list(layers.parameters()))
    assert block.report().served["pool"] == (backend != "aot_eager")
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_gradients_of_a_changed_result_can_be_computed_twice(cpu: None) -> None:
    x = leaf(2, 4, 8, 8)
    with ctt.enable():
        y = F.relu_(F.max_pool2d(x, 2)).square().sum()
    first, second = (torch.autograd.grad(y, x, retain_graph=True)[0] for _ in range(2))
    expected = torch.autograd.grad(F.relu(F.max_pool2d(x, 2)).square().sum(), x)[0]
    torch.testing.assert_close(first, expected)
    torch.testing.assert_close(second, expected)
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    with pytest.raises(NotImplementedError, match="the second gradient of a maximum pooling"):
        gradient.sum().backward()


def test_hooks_of_saved_tensors_know_all_that_is_kept(cpu: None) -> None:
    x = leaf(2, 4, 8, 8)
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one.clone(), lambda one: one), ctt.enable():
        y = F.max_pool2d(x, 2)
        loss = y.mul_(2).sum()
    result = weakref.ref(y.untyped_storage())
    del y
    gc.collect()
    assert result() is None
    expected = torch.autograd.grad(F.max_pool2d(x, 2).sum() * 2, x)
    torch.testing.assert_close(torch.autograd.grad(loss, x), expected)


def test_memory_is_kept_until_the_gradient_at_most(cpu: None) -> None:
    x = leaf(2, 4, 8, 8)
    with ctt.enable():
        middle = x * 1
        y = F.avg_pool2d(middle, 2)
        z = F.max_pool2d(y, 2)
    operand, result = (weakref.ref(one.untyped_storage()) for one in (middle, z))
    loss = (z * 2).sum()
    del middle, y, z
    gc.collect()
    assert operand() is None  # the gradient of an average needs its shape
    assert result() is not None
    loss.backward()
    gc.collect()
    assert result() is None


def test_the_gradient_of_an_average_reads_no_value_of_its_operand(
    cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = torch.Tensor.new_empty_strided

    def filled(x: Any, *args: Any, **kwargs: Any) -> Any:
        return own(x, *args, **kwargs).fill_(torch.nan)

    monkeypatch.setattr(torch.Tensor, "new_empty_strided", filled)
    x = leaf(2, 4, 8, 8)
    with ctt.enable():
        y = F.avg_pool2d(x, 2).square().sum()
    expected = torch.autograd.grad(F.avg_pool2d(x, 2).square().sum(), x)
    torch.testing.assert_close(torch.autograd.grad(y, x), expected)
