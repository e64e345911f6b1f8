"""Calls of operators that are prepared: later ones run what the first one did, on other memory."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch._subclasses import FakeTensor, FakeTensorMode

import cudnn_ct as ct
import cudnn_ct.torch as ctt
from cudnn_ct import context
from cudnn_ct.cuda import stream as streams
from cudnn_ct.torch import guards, kernels, operators, prepared
from tests.both.replays import configured
from tests.fake.cudnn import FakeCudnn
from tests.mixed import in_thread


@pytest.fixture
def full(door: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions of the package that were called, and not known."""
    called: list[str] = []
    real = prepared.Call._call

    def counted(self: prepared.Call, *given: Any) -> None:
        called.append(getattr(self._function, "func", self._function).__name__)
        real(self, *given)

    monkeypatch.setattr(prepared.Call, "_call", counted)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    return called


def test_the_second_call_calls_no_function(full: list[str]) -> None:
    for _ in range(4):
        x, w = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3)
        torch.testing.assert_close(ctt.conv(x, w), F.conv2d(x, w), rtol=1e-4, atol=1e-4)
    assert full == ["conv"]


def test_a_known_call_on_new_memory_takes_the_graph_for_any(full: list[str]) -> None:
    for _ in range(3):
        ctt.softmax(torch.randn(2, 3, 6, 6), 1)
    call, launched = context.of_device(0).last_call, list[Any]()
    graph = SimpleNamespace(plan=call.selected.plan, launch=launched.append, recent=None)
    call.replays[None, streams.default_stream(0).handle] = graph
    x = torch.randn(2, 3, 6, 6)
    y = ctt.softmax(x, 1)
    assert launched == [(x.data_ptr(), y.data_ptr())]
    call.replays.clear()


def same_gradients(y: Any, x: Any, w: Any, needing: list[Any]) -> None:
    """Compare the gradients of a convolution with those of torch."""
    found, expected = (torch.autograd.grad(one.square().sum(), needing) for one in (y, F.conv2d(x, w)))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_gradients_are_recorded_without_the_dispatcher(full: list[str]) -> None:
    for _ in range(3):
        x, w = torch.randn(2, 3, 6, 6, requires_grad=True), torch.randn(4, 3, 3, 3, requires_grad=True)
        y = ctt.conv(x, w)
        assert type(y.grad_fn).__name__ == "RecordedBackward"
        same_gradients(y, x, w, [x, w])
    assert sorted(full) == ["conv", "conv_backward_data", "conv_backward_filter"]


def test_a_function_of_several_calls_is_known(full: list[str]) -> None:
    for _ in range(3):
        a, b = torch.randn(5, 8, requires_grad=True), torch.randn(8, 4, requires_grad=True)
        found = torch.autograd.grad(ctt.matmul(a, b).square().sum(), (a, b))
        torch.testing.assert_close(found, torch.autograd.grad((a @ b).square().sum(), (a, b)))
    assert full == ["matmul", "matmul_backward"]


def test_a_function_that_takes_other_memory_is_called_again(full: list[str]) -> None:
    for _ in range(3):
        x = torch.randn(2, 3, 4, 4, requires_grad=True)
        more = [torch.rand(3) + 0.5 for _ in range(4)]
        found = torch.autograd.grad(ctt.batch_norm(x, *more, training=False).sum(), x)
        expected = torch.autograd.grad(F.batch_norm(x, *more, training=False).sum(), x)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert full.count("batch_norm_inference") == 1
    assert full.count("batch_norm_inference_backward") == 3


def test_operands_that_share_memory_are_no_example(full: list[str]) -> None:
    def attend(*operands: torch.Tensor) -> None:
        expected = F.scaled_dot_product_attention(*operands)
        torch.testing.assert_close(ctt.attention(*operands), expected, rtol=1e-2, atol=1e-2)

    x = torch.randn(1, 1, 4, 8, dtype=torch.float16)
    attend(x, x, x)
    assert full == ["attention"]
    for _ in range(2):
        attend(*torch.randn(3, 1, 1, 4, 8, dtype=torch.float16))
    assert full == ["attention", "attention"]
    attend(x, x, x)
    assert full == ["attention", "attention"]


def test_misaligned_operands_are_checked_again(full: list[str]) -> None:
    memory = torch.randn(4 * 33 + 1)
    for start in (0, 0, 1, 0):
        x = memory[start : start + 132].view(4, 33)
        torch.testing.assert_close(ctt.softmax(x), F.softmax(x, 1))
    assert full == ["softmax", "softmax"]


def test_a_changed_setting_is_obeyed(full: list[str]) -> None:
    x = torch.randn(4, 33)
    ctt.softmax(x)
    with configured(replay=False):
        ctt.softmax(x)
        ctt.softmax(x)
    assert full == ["softmax", "softmax"]


def test_each_thread_learns(full: list[str]) -> None:
    def work() -> None:
        for _ in range(2):
            x = torch.randn(4, 33)
            torch.testing.assert_close(ctt.softmax(x), F.softmax(x, 1))

    for _ in range(2):
        in_thread(work)
    assert full == ["softmax", "softmax"]


def test_an_error_leaves_no_trace(full: list[str], door: FakeCudnn) -> None:
    x = torch.randn(4, 35)
    door.fail["cudnnSoftmaxForward"] = 5000
    with pytest.raises(ct.CudnnError):
        ctt.softmax(x)
    door.fail.clear()
    ctt.softmax(x)
    ctt.softmax(x)
    assert full == ["softmax", "softmax"]


def test_negated_views_go_through_the_dispatcher(full: list[str]) -> None:
    z = torch.randn(4, 33, dtype=torch.complex64)
    x = z.conj().imag
    assert x.is_neg()
    torch.testing.assert_close(ctt.softmax(x), F.softmax(x, 1))


@pytest.fixture
def found(full: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators whose calls were looked up by all attributes of their operands."""
    names: list[str] = []
    for name, find in kernels.FINDERS.items():

        def counted(given: Any, _name: str = name, _find: Any = find) -> Any:
            names.append(_name)
            return _find(given)

        monkeypatch.setitem(kernels.FINDERS, name, counted)
    return names


def softmax_of(x: Any, dim: int = 1) -> Any:
    y = ctt.softmax(x, dim)
    torch.testing.assert_close(y, F.softmax(x, dim), check_stride=False)
    return y


def test_operands_with_known_attributes_are_compared_by_guards(found: list[str]) -> None:
    for _ in range(4):
        softmax_of(torch.randn(6, 10))
    assert found == ["softmax"]  # after the first call, which is kept
    variants = (
        lambda: softmax_of(torch.randn(6, 10), 0),
        lambda: softmax_of(torch.randn(10, 6).T),
        lambda: softmax_of(torch.randn(3, 10)),
        lambda: softmax_of(torch.randn(6, 10, dtype=torch.float64)),
        lambda: softmax_of(torch.randn(6, 10, requires_grad=True)),
    )
    for count, variant in enumerate(variants, 2):
        for _ in range(3):
            variant()
        assert found == ["softmax"] * count


def test_a_setting_of_torch_makes_another_call(found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(6, 10)
    for deterministic in (False, True, False):
        monkeypatch.setattr(torch.backends.cudnn, "deterministic", deterministic)
        softmax_of(x)
    assert found == ["softmax"] * 2


def test_operands_that_are_not_given_make_another_call(found: list[str]) -> None:
    x, w, b = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3), torch.randn(4)
    for _ in range(2):
        torch.testing.assert_close(ctt.conv(x, w, b), F.conv2d(x, w, b), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ctt.conv(x, w), F.conv2d(x, w), rtol=1e-4, atol=1e-4)
    a, c, r = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4)
    for _ in range(2):
        torch.testing.assert_close(ctt.matmul(a, c, residual=r), a @ c + r)
        torch.testing.assert_close(ctt.matmul(a, c, r[0]), a @ c + r[0])
    assert len(found) == 4  # each of these once


def test_one_of_two_operands_that_may_be_absent_makes_another_call(found: list[str]) -> None:
    """The states of an LSTM have the same attributes."""
    lstm, weights = operators.call("lstm"), torch.randn(ct.RNN("lstm", 3, 4).weight_size)
    x, state = torch.randn(5, 2, 3), torch.randn(1, 2, 4)
    first = [lstm(x, weights, *states, 4, "lstm")[0] for states in ((state, None), (None, state))]
    again = [lstm(x, weights, *states, 4, "lstm")[0] for states in ((state, None), (None, state))]
    torch.testing.assert_close(again, first)
    assert not torch.equal(*first)
    assert found == ["lstm"] * 2


def test_statistics_that_each_call_updates_have_other_versions(found: list[str]) -> None:
    x, mean, var = torch.randn(4, 3, 5, 5), torch.zeros(3), torch.ones(3)
    for count in range(1, 4):
        ctt.batch_norm(x, mean, var, torch.ones(3), torch.zeros(3), True)
        assert (mean._version, var._version) == (count, count)


@pytest.mark.parametrize("how", ["no_grad", "inference", "frozen", "part"])
def test_a_known_call_records_what_its_operands_need(found: list[str], how: str) -> None:
    """Gradients of some operands, before and after calls that record others."""
    image, window = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3)
    for turn in range(4):
        x = image.clone().requires_grad_(how != "frozen" and turn % 2 == 0)
        w = window.clone().requires_grad_(how in ("frozen", "part"))
        context = {"no_grad": torch.no_grad, "inference": torch.inference_mode}.get(how, torch.enable_grad)
        with context() if turn % 2 else torch.enable_grad():
            y = ctt.conv(x, w)
        needing = [one for one in (x, w) if one.requires_grad]
        assert y.requires_grad == bool(needing)
        if needing:
            same_gradients(y, x, w, needing)


@pytest.fixture(params=[True, False], ids=["guarded", "not guarded"])
def guarded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's guards compare operands, or are missing."""
    if not request.param:
        monkeypatch.setattr(guards, "guard_of", lambda _: None)


class _Subclass(torch.Tensor):
    pass


def test_a_subclass_of_tensors_is_not_a_known_operand(found: list[str]) -> None:
    x = torch.randn(6, 10)
    softmax_of(x)
    before = len(found)
    assert type(ctt.softmax(x.as_subclass(_Subclass), 1)) is _Subclass
    softmax_of(x)
    assert found[before:].count("softmax") == len(found) - before
    with pytest.raises(TypeError, match="parameters of cudnn_ct::pool must be numbers: got a tensor"):
        ctt.pool(torch.randn(1, 2, 4, 4), torch.tensor(2))


def test_tensors_of_other_types_are_not_known_operands(full: list[str], guarded: None) -> None:
    """Torch's guards compare the types, but do not take a tensor twice, and may be missing."""
    x = torch.randn(1, 1, 4, 8, dtype=torch.float16)
    for operands in ([x] * 3, [x, x.clone(), x.clone()]):
        ctt.attention(*operands)
        assert type(ctt.attention(*[one.as_subclass(_Subclass) for one in operands])) is _Subclass
        fakes = [*map(FakeTensorMode().from_tensor, operands[:1])] * 3
        assert type(ctt.attention(*fakes)) is FakeTensor
        assert type(ctt.attention(*operands)) is torch.Tensor


def test_operands_that_are_no_tensors_are_rejected(full: list[str]) -> None:
    x, w = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3)
    conv = operators.call("conv")
    rest = ((0, 0), (1, 1), (1, 1), 1)
    for _ in range(2):
        for operands in (([1.0], w), (x, [1.0]), (x, 1.0), (None, w)):
            with pytest.raises(
                TypeError, match=r"cudnn_ct::conv: [xw] is not a Tensor: got (list|float|None)"
            ):
                conv(*operands, *rest)
        ctt.conv(x, w)


def test_batches_of_gradients_go_through_the_dispatcher(full: list[str], guarded: None) -> None:
    x, dy = torch.randn(3, 5, requires_grad=True), torch.randn(4, 3, 5)
    for _ in range(2):
        (found,) = torch.autograd.grad(ctt.softmax(x), x, dy, is_grads_batched=True)
        (expected,) = torch.autograd.grad(F.softmax(x, 1), x, dy, is_grads_batched=True)
        torch.testing.assert_close(found, expected)
        torch.autograd.grad(ctt.softmax(x), x, dy[0])


def test_zeros_without_memory_go_through_the_dispatcher(full: list[str], guarded: None) -> None:
    """Derivatives of torch have such tensors."""
    x, zero = torch.randn(4, 33), torch._efficientzerotensor((4, 33))
    for _ in range(2):
        torch.testing.assert_close(ctt.softmax(x), F.softmax(x, 1))
        torch.testing.assert_close(ctt.softmax(zero), torch.full((4, 33), 1 / 33))
    x.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="has no memory"):
        ctt.softmax(x)


def test_a_known_call_that_raises_raises_its_own_error(
    found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(6, 10)
    softmax_of(x)

    def fail(*_: object) -> None:
        raise TypeError("of the call")

    monkeypatch.setattr(prepared.Call, "run", fail)
    with pytest.raises(TypeError, match="of the call"):
        ctt.softmax(x, 1)
    assert found == ["softmax"]


@pytest.mark.parametrize("recorded", [False, True])
def test_autocast_casts_without_the_dispatcher(
    full: list[str], monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: True)
    monkeypatch.setattr(operators, "_autocasts", lambda: True)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda _: torch.float16)
    x, w = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3, requires_grad=recorded)
    for _ in range(2):
        y = ctt.conv(x, w)
        assert y.dtype == torch.float16
        torch.testing.assert_close(y.float(), F.conv2d(x, w), rtol=1e-2, atol=1e-2)
        assert (y.grad_fn is not None) == recorded
        if recorded:
            (dw,) = torch.autograd.grad(y.float().sum(), w)
            (expected,) = torch.autograd.grad(F.conv2d(x, w).sum(), w)
            assert dw.dtype == torch.float32
            torch.testing.assert_close(dw, expected, rtol=1e-2, atol=1e-2)
    assert ctt.softmax(x.half()).dtype == torch.float32
    assert full.count("conv") == 1


class _Graph:
    """A recorded graph of a call, which notes its launches."""

    def __init__(self, call: Any) -> None:
        self.plan, self.recent, self.launches = call.selected.plan, False, 0
        call.replays.update({key: self for key in call.runs if key[0] is not None})

    def launch(self) -> int:
        self.launches += 1
        return 0

    def drop(self) -> None:
        raise AssertionError


@pytest.fixture
def settled(full: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, _Graph, Any, Any]]:
    """A call on the same memory each time, the graph of its prepared call, its result, and the answer."""
    x, y = torch.randn(4, 31), torch.empty(4, 31)
    monkeypatch.setattr(torch, "empty_strided", lambda *_, **__: y)
    for _ in range(4):
        ctt.softmax(x)
    replays, graph = context.of_device(0).last_call.replays, _Graph(context.of_device(0).last_call)
    yield lambda: ctt.softmax(x), graph, y, F.softmax(x, 1)
    replays.clear()
    graph.plan = None  # it owns native objects


def test_a_settled_call_launches_its_graph(settled: tuple[Any, _Graph, Any, Any]) -> None:
    call, graph, y, _ = settled
    context.of_device(0).last_call = None
    assert call() is y
    assert (graph.launches, bool(graph.recent)) == (1, True)
    assert ct.last_plan() is not None


@pytest.mark.parametrize("change", ["memory", "setting", "plan", "capture", "watched", "running"])
def test_a_call_that_differs_from_its_graph_runs(
    settled: tuple[Any, _Graph, Any, Any], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    call, graph, y, expected = settled
    here = context.of_device(0)
    if change == "memory":
        y = torch.empty(4, 31)
        monkeypatch.setattr(torch, "empty_strided", lambda *_, **__: y)
    if change == "plan":
        graph.plan = object()
        monkeypatch.setattr(graph, "drop", here.last_call.replays.clear)
    if change == "capture":  # a stream that is captured takes no graph
        monkeypatch.setattr(graph, "launch", lambda: 1)
    seen: list[Any] = []
    with monkeypatch.context() as patch, configured(replay=change != "setting"):
        if change in ("watched", "running"):
            patch.setattr(here, change, seen if change == "watched" else True)
        y.fill_(torch.nan)
        call()
    assert graph.launches == len(seen) == (change == "watched")
    if not graph.launches:  # else the graph, which computes nothing here, was launched on another way
        torch.testing.assert_close(y, expected)


def test_running_statistics_that_overlap_are_rejected_when_calls_are_replayed(full: list[str]) -> None:
    """They are results in the memory of the caller, which may overlap as new results cannot."""

    def train(running_mean: torch.Tensor, running_var: torch.Tensor) -> None:
        ctt.batch_norm(torch.randn(2, 8, 4, 4), running_mean, running_var, *parameters, training=True)

    parameters, both, launched = (torch.ones(8), torch.zeros(8)), torch.zeros(12), []
    for _ in range(4):
        train(torch.zeros(8), torch.ones(8))
    call = context.of_device(0).last_call
    graph = SimpleNamespace(recent=None, plan=call.selected.plan)
    graph.launch = lambda pointers: launched.append(pointers) or 0
    call.replays[None, 1] = graph  # of calls on any memory
    train(torch.zeros(8), torch.ones(8))
    assert len(launched) == 1
    with pytest.raises(ValueError, match="overlap"):
        train(both[:8], both[4:])
    assert len(launched) == 1
    call.replays.clear()
