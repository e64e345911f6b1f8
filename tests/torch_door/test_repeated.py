"""Calls on tensors that repeat an earlier call: the same results and errors as the first one."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import cudnn_ct as ct
from cudnn_ct import _caches, array_shapes, context, testing
from cudnn_ct.cuda import stream as streams
from cudnn_ct.ops import _call, _prepared, _replay, activation
from tests.both.replays import configured
from tests.fake.cudnn import FakeCudnn
from tests.mixed import in_thread, no_collecting
from tests.torch_door.test_read import _tensors_on_a_device  # noqa: F401


@pytest.fixture
def slow(door: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An entry for each call that was not repeated."""
    seen: list[int] = []
    real = _call.read_arrays
    monkeypatch.setattr(_call, "read_arrays", lambda *given: (seen.append(1), real(*given))[1])
    return seen


def tensor(*shape: int) -> torch.Tensor:
    """A tensor whose address is a multiple of 64."""
    count = int(np.prod(shape))
    memory = torch.randn(count + 16)
    return memory[-(memory.data_ptr() // 4) % 16 :][:count].view(shape)


def relu(x: Any, out: Any = None, **options: Any) -> torch.Tensor:
    y = ct.activation(x, out=out, **options)
    if isinstance(out, torch.Tensor):
        assert (y.pointer, y.shape) == (out.data_ptr(), tuple(out.shape))
    return torch.from_numpy(y.numpy())


def learnt(x: Any, out: Any = None) -> None:
    for _ in range(3):
        relu(x, out)


SHAPE = (2, 4, 6, 6)


@pytest.mark.parametrize("given", [False, True])
def test_third_call_is_repeated(slow: list[int], given: bool) -> None:
    for number in range(6):
        x, out = tensor(*SHAPE), tensor(*SHAPE) if given else None
        torch.testing.assert_close(relu(x, out), x.relu())
        assert len(slow) == min(number + 1, 2)


def test_results_of_one_call_are_repeated(slow: list[int]) -> None:
    bias = tensor(6)
    for given in (0, 2, 1, 7):  # none, the second, the first, all
        slow.clear()
        for number in range(4):
            x, scale = tensor(4, 6), tensor(6)
            outs = tuple(
                tensor(*shape) if given >> at & 1 else None
                for at, shape in enumerate(((4, 6), (4, 1), (4, 1)))
            )
            y = ct.layer_norm(x, scale, bias, training=True, out=outs if given else None)
            expected = torch.nn.functional.layer_norm(x, (6,), scale, bias)
            torch.testing.assert_close(torch.from_numpy(y.y.numpy()), expected, rtol=1e-4, atol=1e-4)
            for one, out in zip(y, outs, strict=True):
                assert out is None or one.pointer == out.data_ptr()
            assert number < 2 or given in (1, 2) or len(slow) == 2


@pytest.mark.parametrize("first", [False, True])
def test_call_with_other_results_is_not_repeated(slow: list[int], first: bool) -> None:
    """The parameters of a normalisation do not tell whether it has statistics."""
    x, scale, bias = tensor(4, 6), tensor(6), tensor(6)
    for training in (*[first] * 3, not first, first):
        results = ct.layer_norm(x, scale, bias, training=training)
        assert [one is not None for one in results] == [True, training, training]
    assert len(slow) == 3


class Subclass(torch.Tensor):
    pass


def misaligned() -> torch.Tensor:
    return tensor(290)[1:289].view(SHAPE)


# Tensors with other attributes than ``tensor(*SHAPE)``, all with as many elements.
OTHERS: dict[str, Callable[[], Any]] = {
    "shape": lambda: tensor(2, 4, 36),
    "strides": lambda: tensor(2, 6, 6, 4).permute(0, 3, 1, 2),
    "transposed": lambda: tensor(*SHAPE).mT,
    "dtype": lambda: tensor(*SHAPE).half(),
    "misaligned": misaligned,
    "negative": lambda: torch.randn(SHAPE, dtype=torch.complex64).conj().imag,
    "subclass": lambda: tensor(*SHAPE).as_subclass(Subclass),
    "parameter": lambda: torch.nn.Parameter(tensor(*SHAPE), requires_grad=False),
    "inference": lambda: torch.inference_mode()(tensor)(*SHAPE),
    "ours": lambda: ct.asarray(tensor(*SHAPE).numpy()),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("place", ["x", "out"])
def test_tensor_with_another_attribute_is_not_taken_for_a_known_one(
    slow: list[int], name: str, place: str
) -> None:
    learnt(tensor(*SHAPE), tensor(*SHAPE))
    slow.clear()
    other, known = OTHERS[name](), tensor(*SHAPE)
    x, out = (other, known) if place == "x" else (known, other)
    try:
        result = relu(x, out)
    except (TypeError, ValueError):
        assert name in ("shape", "dtype", "negative", "subclass")
    else:
        values = torch.from_numpy(x.numpy()) if isinstance(x, ct.DeviceArray) else x
        torch.testing.assert_close(result, values.detach().relu().contiguous().as_subclass(torch.Tensor))
    assert slow or name == "ours"


def test_tensor_that_changes_in_place_is_not_taken_for_a_known_one(slow: list[int]) -> None:
    x, out = tensor(*SHAPE), tensor(*SHAPE)
    learnt(x, out)
    slow.clear()
    x.requires_grad_()
    relu(x, out)  # the fakes import it, as no other driver does
    with torch.no_grad():
        assert relu(x, out).equal(x.relu())
    x.requires_grad_(False).resize_(2, 4, 4, 4)
    with pytest.raises(ValueError, match="out has shape"):
        relu(x, out)
    out.resize_(2, 4, 4, 4)
    assert relu(x, out).equal(x.relu())
    x.untyped_storage().resize_(0)
    with pytest.raises((TypeError, ValueError)):
        relu(x, out)
    assert len(slow) == 5


def test_known_tensor_that_requires_a_gradient_is_repeated_while_none_is_recorded(slow: list[int]) -> None:
    x = tensor(*SHAPE).requires_grad_()
    with torch.no_grad():
        learnt(x)
        assert len(slow) == 2
    relu(x)
    assert len(slow) == 3


def test_tensors_that_overlap_are_rejected_where_separate_ones_are_known(slow: list[int]) -> None:
    memory = tensor(1024)
    learnt(memory[:288].view(SHAPE), memory[512:800].view(SHAPE))
    with pytest.raises(ValueError, match="out overlaps"):
        ct.softmax(memory[:288].view(SHAPE), out=memory[16:304].view(SHAPE))
    for _ in range(3):
        ct.softmax(memory[:288].view(SHAPE), out=memory[512:800].view(SHAPE))
    with pytest.raises(ValueError, match="out overlaps"):
        ct.softmax(memory[:288].view(SHAPE), out=memory[16:304].view(SHAPE))
    assert relu(memory[:288].view(SHAPE), memory[:288].view(SHAPE)).min() >= 0


@pytest.mark.parametrize("wrong", [{"coefficient": False}, {"coefficient": "0"}, {"propagate_nan": 2}])
def test_parameter_that_equals_a_known_one_is_checked(slow: list[int], wrong: dict[str, Any]) -> None:
    x, found = tensor(*SHAPE), []
    for known in (False, True):
        if known:
            learnt(x)
        try:
            found.append(relu(x, **wrong))
        except (TypeError, ValueError) as error:
            found.append(str(error))
    assert str(found[0]) == str(found[1])


def test_known_call_has_the_factors_and_parameters_that_are_given(slow: list[int]) -> None:
    x, out = tensor(*SHAPE), tensor(*SHAPE)
    learnt(x)
    learnt(x, out)
    slow.clear()
    for alpha, beta in ((2.0, 0.5), (1.0, 0.25), (3, 0), (-1, 0.125), (1, 1), (1, 0.0)):
        before = out.clone()
        torch.testing.assert_close(relu(x, alpha=alpha), alpha * x.relu())
        expected = alpha * x.relu() + beta * before
        torch.testing.assert_close(relu(x, out, alpha=alpha, beta=beta), expected)
        torch.testing.assert_close(relu(x, mode="tanh"), x.tanh())
    assert len(slow) == 9
    with pytest.raises(ValueError, match="needs out"):
        relu(x, beta=0.5)


def test_settings_and_streams_of_a_call_are_compared(slow: list[int]) -> None:
    x = tensor(*SHAPE)
    learnt(x)
    slow.clear()
    with configured(deterministic=True):
        relu(x)
    assert len(slow) == 1
    relu(x)
    assert len(slow) == 1
    other = streams.new_stream(0)
    with ct.use(stream=other):
        assert ct.activation(x).writer is other
    assert ct.activation(x, stream=other).writer is other
    assert ct.activation(x).writer is streams.default_stream(0)
    with array_shapes.only_shapes():
        assert isinstance(ct.activation(x), array_shapes.ShapeArray)
    with ct.use(device=0):
        slow.clear()
        relu(x)
        assert not slow


def test_current_stream_of_torch_is_compared(slow: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    from cudnn_ct.cuda import foreign

    x, current = tensor(*SHAPE), [streams.default_stream(0)]
    monkeypatch.setattr(foreign.PyTorch, "current", lambda _, device: current[-1])
    learnt(x)
    for stream in (streams.new_stream(0), streams.default_stream(0)):
        current.append(stream)
        assert ct.activation(x).writer is stream
    assert len(slow) == 2


def test_calls_are_prepared_again_after_a_reset(slow: list[int], door: FakeCudnn) -> None:
    x = tensor(*SHAPE)
    learnt(x)
    testing.reset()
    slow.clear()
    assert relu(x).equal(x.relu())
    assert len(slow) == 1
    learnt(x)
    context.of_device(0).calls.clear()
    slow.clear()
    assert relu(x).equal(x.relu())
    assert len(slow) == 1


def test_call_that_interrupts_another_one_has_its_own_context(slow: list[int]) -> None:
    x = tensor(*SHAPE)
    learnt(x)
    ctx = context.of_device(0)
    slow.clear()
    ctx.running = True
    try:
        assert relu(x).equal(x.relu())
        assert ctx.last_call is not context.of_device(0).last_call
    finally:
        ctx.running = False
    assert len(slow) == 1


def test_replays_have_the_pointers_of_the_tensors(slow: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    x, out, keys = tensor(*SHAPE), tensor(*SHAPE), []
    learnt(x, out)
    learnt(x)
    ctx = context.of_device(0)
    call, ctx.last_call = ctx.last_call, None
    monkeypatch.setattr(_replay, "replayed", lambda *given: (keys.append(given), True)[1])
    with monkeypatch.context() as patch:
        patch.setattr(_call, "replayed", lambda *given: (keys.append(given), True)[1])
        y = ct.activation(x)
    assert ctx.last_call is call
    new, ctx.last_call = call, None
    ct.activation(x, out=out)
    call = ctx.last_call
    where = streams.default_stream(0).handle
    assert keys == [
        (ctx, new, (where, x.data_ptr(), y.pointer), (None,)),
        (ctx, call, (where, x.data_ptr(), out.data_ptr())),
    ]
    ctx.watched = []
    ct.activation(x, out=out)
    assert [one[0] for one in ctx.watched] == [call]
    ctx.watched = None
    keys.clear()  # they keep the calls alive


def test_products_with_matrices_of_many_widths_are_repeated(slow: list[int]) -> None:
    a = tensor(4, 4)
    for expected in (64, 128, 128):
        for width in range(1, 65):
            b = tensor(4, width)
            torch.testing.assert_close(torch.from_numpy(ct.matmul(a, b).numpy()), a @ b)
        assert len(slow) == expected


def test_number_of_layouts_is_bounded(slow: list[int]) -> None:
    memory = tensor(4096)
    for step in range(1, 3 * _caches.MAX_LAYOUTS):
        for _ in range(2):
            relu(memory.as_strided((2, 3), (3 * step, step)))
    place = (1, 6, 6, 1, activation._ACTIVATION.problem, ("x",), (False, False), "relu", 0, True)
    assert len(context.of_device(0).calls.parameters(*place)) == _caches.MAX_LAYOUTS


def test_plan_repeats_its_calls_on_tensors(door: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, x, w = list[int](), tensor(2, 4, 6, 6), tensor(4, 4, 3, 3)
    real = _prepared.read_arrays
    monkeypatch.setattr(_prepared, "read_arrays", lambda *given: (seen.append(1), real(*given))[1])
    door.host.devices = 1
    plan = ct.conv_plan(x, w, padding=1)
    for number in range(5):
        for out in (None, tensor(2, 4, 6, 6)):
            x.normal_()
            expected = torch.nn.functional.conv2d(x, w, padding=1)
            result = torch.from_numpy(plan(x, w, out=out).numpy())
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
        assert number == 0 or len(seen) == 4
    with pytest.raises(ValueError, match="x"):
        plan(x[:1], w)
    with pytest.raises(ValueError, match="overlaps"):
        plan(x, w, out=x)
    seen.clear()
    with configured(deterministic=True):
        plan(x, w)
    assert seen


def test_result_that_is_given_to_a_plan_of_one_tensor_twice_is_written(door: FakeCudnn) -> None:
    door.host.devices, door.engines = 1, True
    g, x, w = ct.Graph(), tensor(*SHAPE), tensor(4, 4, 1, 1)
    graph, plan = g.build(g.input(SHAPE) + g.input(SHAPE)), ct.conv_plan(w, w)
    for made, one, expected in ((graph, x, x + x), (plan, w, torch.nn.functional.conv2d(w, w))):
        made(one, one, out=tensor(*one.shape))
        for _ in range(4):
            made(one, one)
        out = tensor(*one.shape)
        assert made(one, one, out=out).pointer == out.data_ptr()
        torch.testing.assert_close(out, expected)


def test_context_of_a_thread_ends_with_it(slow: list[int]) -> None:
    kept: list[Any] = []

    def work() -> None:
        learnt(tensor(*SHAPE))
        assert len(slow) == 2
        kept.append(weakref.ref(context.of_device(0)))

    with no_collecting():
        in_thread(work)
        assert kept[0]() is None


def test_graph_with_several_results_writes_those_that_are_given(door: FakeCudnn) -> None:
    door.host.devices, door.engines = 1, True
    g, (x, y) = ct.Graph(), (tensor(*SHAPE), tensor(*SHAPE))
    a, b = g.input(SHAPE), g.input(SHAPE)
    graph = g.build(a + b, a * b)
    for given in (0, 1, 2, 3) * 4:
        outs = tuple(tensor(*SHAPE) if given >> at & 1 else None for at in range(2))
        results = graph(x, y, out=outs)
        for result, out, expected in zip(results, outs, (x + y, x * y), strict=True):
            torch.testing.assert_close(torch.from_numpy(result.numpy()), expected)
            assert out is None or result.pointer == out.data_ptr()
