"""Calls that are settled under ``enable()``, on the fakes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.autograd import forward_ad

import cudnn_ct.torch as ctt
from cudnn_ct.torch import blocks, guards, serving, settled
from tests.fake.cudnn import FakeCudnn


@pytest.fixture
def rules(door: FakeCudnn, direct: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tensors in host memory are served without the dispatcher; the functions that were called by rules."""
    monkeypatch.setattr(serving, "SERVED_DEVICES", ("cpu",))
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
    calls, x = settled.SettledCalls({}), torch.ones(2)
    assert calls.find(F.softmax, (x, 0), ())[0] is not None
    monkeypatch.setattr(settled, "_autocasts", lambda: True)
    assert calls.find(F.softmax, (x, 0), ())[0] is None


CHANGES: dict[str, Any] = {
    "shape": lambda x: x[:1],
    "strides": lambda x: x.mT.contiguous().mT,
    "dtype": lambda x: x.double(),
    "device": lambda x: x.to("meta"),
    "gradient": lambda x: x.detach().requires_grad_(),
    "negative": lambda x: torch.zeros(*x.shape, dtype=torch.complex64).conj().imag,
}


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("name", CHANGES)
def test_a_settled_call_fits_tensors_with_the_same_attributes(
    monkeypatch: pytest.MonkeyPatch, name: str, guarded: bool
) -> None:
    if not guarded:
        monkeypatch.setattr(guards, "guard_of", lambda _: None)
    x, w = torch.zeros(2, 3, dtype=torch.complex64).imag, torch.randn(3)
    fits = guards.check_of((x, w))
    assert (type(fits).__name__ == "function") is not guarded
    assert fits(torch.ones(2, 3, dtype=torch.complex64).imag, torch.randn(3))
    assert not fits(CHANGES[name](x), w)
    twice = guards.check_of((w, w))
    assert twice(w, w)
    assert not twice(w, w.double())


def test_weights_of_networks_are_no_parts_of_keys(rules: list[str]) -> None:
    module, x = nn.LSTM(3, 4, batch_first=True), torch.randn(2, 5, 3)
    with torch.no_grad(), ctt.enable():
        for _ in range(2):
            module(x)
    assert rules == ["lstm"] * 2
    assert not serving._settled._calls


def halves(count: int) -> list[Any]:
    return [torch.randn(1, 2, 4, 8).half() for _ in range(count)]


def same_as_torch(call: Any, *arguments: Any) -> None:
    """Call a function in the block of the caller, and without it, and compare their results or errors."""
    made = []
    for skip in ([], list(blocks.GROUPS)):
        with ctt.enable(skip=skip):
            try:
                made.append(call(*arguments))
            except (TypeError, RuntimeError) as error:
                made.append(str(error))
    assert type(made[0]) is type(made[1]), made
    if isinstance(made[0], str):
        assert made[0] == made[1]
    else:
        torch.testing.assert_close(*made, rtol=2e-2, atol=1e-2)


X, ONES = image(2, 4, 8, 8), torch.ones(8)


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (F.scaled_dot_product_attention, [halves(1) * 3, halves(3)]),
        (lambda scale: F.scaled_dot_product_attention(*[X[0, :1, None].half()] * 3, scale=scale), [0.5, 2.0]),
        (lambda eps: F.layer_norm(X, (8,), ONES, ONES, torch.tensor(eps)), [[1e-5], [10.0]]),
        (lambda window: F.max_pool2d(X, torch.tensor(window)), [[2], [3]]),
        (lambda step: F.max_pool2d(X, 2, (torch.tensor(step), 1)), [[1], [2]]),
        (F.softmax, [[X, 1], [X, 1.0]]),
        (F.softmax, [[X, 1], [X, True]]),
        (lambda axes: F.layer_norm(X, axes, ONES, ONES), [[[8]], [[4, 8]], [[8]]]),
    ],
)
def test_arguments_that_differ_are_other_calls(rules: list[str], call: Any, arguments: Any) -> None:
    with torch.no_grad():
        for given in arguments:
            for _ in range(3):
                same_as_torch(call, *(given if isinstance(given, list) else [given]))


def test_a_parameter_that_changes_in_place_is_another_call(rules: list[str]) -> None:
    step, steps = torch.tensor(1), [1, 1]
    with torch.no_grad():
        for _ in range(2):
            same_as_torch(F.max_pool2d, X, 2, (step, step))
            same_as_torch(F.max_pool2d, X, 2, steps)
        step.fill_(2)
        steps[0] = 2
        same_as_torch(F.max_pool2d, X, 2, (step, step))
        same_as_torch(F.max_pool2d, X, 2, steps)
        with pytest.raises(TypeError, match="parameters of cudnn_ct::pool must be numbers: got a tensor"):
            ctt.pool(X, step)


def escaped() -> Any:
    """Return a tensor that torch.func wrapped, after its end."""
    kept: list[Any] = []
    torch.func.grad(lambda x: (kept.append(x), x.sum())[1])(X)
    return kept[0]


def freed() -> Any:
    x = image(2, 4, 8, 8)
    x.untyped_storage().resize_(0)
    return x


UNUSUAL: dict[str, Any] = {
    "escaped": escaped,
    "freed": freed,
    "zero": lambda: torch._efficientzerotensor((2, 4, 8, 8)),
    "negative": lambda: torch._neg_view(X),
    "expanded": lambda: X[:1, :1].expand(2, 4, 8, 8),
    "misaligned": lambda: image(2 * 4 * 8 * 8 + 1)[1:].view(2, 4, 8, 8),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "compressed": lambda: torch.eye(3).to_sparse_csr(),
    "opaque": X.to_mkldnn,
    "nested": lambda: torch.nested.nested_tensor([image(2, 8), image(3, 8)]),
    "jagged": lambda: torch.nested.nested_tensor([image(2, 8), image(3, 8)], layout=torch.jagged),
}


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_tensors_have_the_results_of_torch(rules: list[str], name: str) -> None:
    def call(x: Any) -> Any:
        y = F.softmax(x, -1)
        if name in ("opaque", "nested"):
            return y.to_dense() if name == "opaque" else y.to_padded_tensor(0.0)
        return y.values() if name == "jagged" else y

    with torch.no_grad():
        for _ in range(2):
            F.softmax(X, -1)
        for _ in range(2):
            same_as_torch(call, UNUSUAL[name]())


def test_a_settled_call_that_cudnn_rejects_later_is_left_to_torch(
    rules: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def reject(*args: Any) -> None:
        tries.append(1)
        raise ctt.serving.NotSupportedError("no engine within the limit")

    with torch.no_grad(), ctt.enable() as block:
        F.softmax(X, 1)
        monkeypatch.setattr("cudnn_ct.torch.prepared.Call.run", reject)
        for _ in range(3):
            F.softmax(X, 1)
    assert tries == [1]
    assert block.report().served == {"softmax": 1}
    assert block.report().left == {("softmax", "no engine within the limit"): 3}


# --- attention in functions that do more -------------------------------------------------------------------


def encoder(**how: Any) -> Any:
    return nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, **how).half().eval()


MODULES: dict[str, Any] = {
    "attention": lambda: nn.MultiheadAttention(32, 4, batch_first=True).half().eval(),
    "encoder": lambda: encoder(activation="gelu"),
    "encoder, norms first": lambda: encoder(norm_first=True),
}


def result_of(module: Any, x: Any, *others: Any) -> Any:
    if isinstance(module, nn.MultiheadAttention):
        return module(x, *(others or (x, x)), need_weights=False)[0]
    return module(x)


@pytest.mark.parametrize("name", MODULES)
def test_attention_that_is_repeated_does_not_ask_the_rule(rules: list[str], name: str) -> None:
    modules = [MODULES[name]() for _ in range(3)]
    for module in modules:
        nn.init.normal_(next(module.parameters()), std=0.2)
    with torch.no_grad(), ctt.enable(rebind=True) as block:
        for module in modules:  # settled by the first one, for the weights of all
            x = torch.randn(2, 6, 32).half()
            found = result_of(module, x)
            with ctt.enable(rebind=True, skip=["attention"]):
                torch.testing.assert_close(found, result_of(module, x), rtol=2e-2, atol=2e-2)
    assert rules.count("attention") == 1
    assert block.report().served["attention"] == 3


def test_attention_to_other_tensors_is_not_taken_for_one_to_itself(rules: list[str]) -> None:
    module, x = MODULES["attention"](), torch.randn(2, 6, 32).half()
    with torch.no_grad(), ctt.enable(rebind=True) as block:
        for _ in range(2):
            result_of(module, x)
        other = torch.randn(2, 6, 32).half()
        found = result_of(module, x, other, other)
        with ctt.enable(rebind=True, skip=["attention"]):
            torch.testing.assert_close(found, result_of(module, x, other, other))
    assert block.report().left == {("attention", "not self-attention"): 1}


def test_attention_that_needs_gradients_is_not_repeated(rules: list[str]) -> None:
    module, x = MODULES["attention"](), torch.randn(2, 6, 32).half()
    with ctt.enable(rebind=True):
        with torch.no_grad():
            for _ in range(2):
                result_of(module, x)
        y = result_of(module, x)
    assert y.requires_grad
    assert torch.autograd.grad(y.float().sum(), module.in_proj_weight)[0].abs().max() > 0
