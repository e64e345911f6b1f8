"""A prepared call is used for equal arguments only: calls with other options, against the reference."""

from __future__ import annotations

import contextlib
import gc
import inspect
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from benchmarks.call_path import measure
from cudnn_ct import context
from cudnn_ct.cli.selftest_cases import cases
from cudnn_ct.cli.selftest_rows import Inputs
from tests.layers import compare, several
from tests.op_cases import ON_IMAGES, simple_arguments

from .cudnn import FakeCudnn
from .host import ForeignArray, Host
from .installed import cudnn_installed, host_installed

IMAGE = (2, 4, 5, 6)
PLAIN = ("float32", "nchw")

# Options of the operations that no row of the selftest has.
MORE: dict[str, tuple[dict[str, Any], ...]] = {
    "lrn": ({"n": 3}, {"lrn_alpha": 0.5}, {"lrn_beta": 0.5}, {"k": 1.0}),
    "activation": ({"mode": "elu", "coefficient": 1}, {"mode": "elu", "coefficient": 2.0}),
    "batch_norm_inference": ({"epsilon": 0.5}, {"epsilon": 1e-3}),
    "softmax": ({"axis": 2},),
    "pool": ({"window": 5, "padding": 2, "stride": 2},),
    "reduce": ({"axis": (2, 3), "op": "norm2"},),
}


# The others write into memory of one layout only; test_ctc has the CTC loss, test_attention attention and its
# padding.
NAMES = sorted(
    {case.operation for case in cases() if case.operation in ct.reference.__all__}
    - {"conv_backward_bias", "ctc_loss", "transform", "attention", "attention_backward", "clear_padding"}
)


def options(operation: str) -> list[Inputs]:
    """Return calls of an operation with different options, most of them on operands of the same shapes."""
    rows = [case for case in cases() if (case.operation, case.dtype, case.layout) == (operation, *PLAIN)]
    calls = [case.inputs() for case in rows if case.variant != "uneven padding"]
    return calls + [calls[0]._replace(keywords=more) for more in MORE.get(operation, ())]


def on_device(value: Any) -> Any:
    return ct.asarray(value) if isinstance(value, np.ndarray) else value


def outputs(host: Host, shape: tuple[int, ...]) -> list[Any]:
    """Memory of the same shape with other strides, filled with 3."""
    packed = np.full(shape, 3, np.float32)
    spread = np.full((*shape[:-1], 2 * shape[-1]), 3, np.float32)[..., ::2]
    swapped = np.ascontiguousarray(np.moveaxis(packed, 1, -1)) if len(shape) > 2 else packed
    last = np.moveaxis(swapped, -1, 1) if len(shape) > 2 else packed
    return [ForeignArray(host, array) for array in (packed, last, spread)]


@pytest.mark.parametrize("operation", NAMES)
def test_operation_prepares_another_call_when_one_option_differs(
    fake: FakeCudnn, host: Host, operation: str
) -> None:
    function, reference = getattr(ct, operation), getattr(ct.reference, operation)
    accepted = inspect.signature(reference).parameters
    factors = {name: value for name, value in (("alpha", 0.5), ("beta", 2)) if name in accepted}
    calls = options(operation)
    for number, inputs in enumerate((*calls, *calls)):
        arrays = list(map(on_device, inputs.operands))
        keywords = {name: value for name, value in inputs.keywords.items() if not name.startswith("running")}
        wanted = several(reference(*inputs.operands, **keywords))[0]
        device = {name: on_device(value) for name, value in keywords.items()} | inputs.device_keywords
        compare(several(function(*arrays, **device))[0], wanted, tolerance=1e-4)
        if "out" not in accepted or number >= len(calls):
            continue  # the second time shows a key that leaves something out
        filled = np.full_like(wanted, 3)
        scaled = several(reference(*inputs.operands, **keywords, **factors, out=filled))[0]
        for expected, given in ((wanted, {}), (scaled, factors)):
            for out in outputs(host, wanted.shape):
                function(*arrays, **device, **given, out=out)
                compare(out, expected, tolerance=1e-4)


# The factors of add and op_tensor are part of every one of their calls.
SCALED = [
    name
    for name in ON_IMAGES
    if "alpha" in inspect.signature(getattr(ct, name)).parameters and name not in ("add", "transform")
]


@pytest.mark.parametrize("operation", SCALED)
def test_operation_rejected_with_factors_leaves_other_calls_as_they_were(
    fake: FakeCudnn, operation: str
) -> None:
    arrays, keywords = simple_arguments(operation, ct.full(IMAGE, 1.0))
    call = getattr(ct, operation)
    call(*arrays, **keywords)
    call(*arrays, **keywords, alpha=2)
    fake.calls.clear()
    call(*arrays, **keywords)
    before = fake.names()
    fake.calls.clear()
    fake.fail_at = {1: 3000}
    with contextlib.suppress(ct.NotSupportedError):
        call(*arrays, **keywords, alpha=2)
    fake.calls.clear()
    fake.fail_at = {}
    call(*arrays, **keywords)
    assert fake.names() == before


def test_warm_call_enters_few_functions_before_its_plan() -> None:
    entered = {name: row["functions"] for name, row in measure(repeat=100).items()}
    assert max(entered.values()) <= 12, entered


def test_fill_and_scale_of_one_array_are_different_calls(fake: FakeCudnn) -> None:
    x = ct.full(IMAGE, 3.0)
    for alpha in (2, 1, 2, 1):  # by 1, the two differ in nothing but the operation
        ct.scale(x, alpha=alpha)
        np.testing.assert_array_equal(x.numpy(), np.full(IMAGE, 3.0 * alpha))
        ct.fill(x, 4)
        np.testing.assert_array_equal(x.numpy(), np.full(IMAGE, 4.0))
        ct.fill(x, 3)


def test_prepared_call_rejects_arrays_of_another_device_and_read_only_results(fake: FakeCudnn) -> None:
    x, y = ct.full(IMAGE, 1.0), ct.full(IMAGE, 1.0)
    ct.add(x, x, out=y)
    with ct.use(device=1):
        elsewhere = ct.full(IMAGE, 1.0)
        result = ct.add(elsewhere, elsewhere)
    for _ in range(2):  # of arrays, then of results
        x = ct.add(x, x)
    with pytest.raises(ValueError, match="b is on another device: got 1, expected 0"):
        ct.add(x, result)
    with pytest.raises(ValueError, match="b is on another device: got 1, expected 0"):
        ct.add(x, elsewhere, out=y)
    locked = ct.DeviceArray.over(y.spec, y.pointer, y, y.writer, y.home, readonly=True)
    with pytest.raises(ValueError, match="out is read-only"):
        ct.add(x, x, out=locked)


def test_equal_options_of_two_types_are_different_keys(fake: FakeCudnn) -> None:
    """True is 1 as a key, and not as a factor or an axis."""
    x = ct.full(IMAGE, 1.0)
    ct.softmax(x, axis=1)
    with pytest.raises(TypeError, match="axis"):
        ct.softmax(x, axis=1.0)


def test_arrays_of_integers_are_tuples_of_the_moment(fake: FakeCudnn) -> None:
    """A call with such an array is found again by its numbers, and not by the array, which may change."""
    x, w, padding = ct.full((1, 1, 5, 5), 1.0), ct.full((1, 1, 3, 3), 1.0), np.array([1, 0])
    for numbers in ([1, 0], [0, 1], [1, 0]):
        padding[:] = numbers
        given: Any = padding
        y = ct.conv(x, w, padding=given)
        np.testing.assert_array_equal(y.numpy(), ct.conv(x, w, padding=tuple(numbers)).numpy())
        np.testing.assert_array_equal(y.numpy(), ct.reference.conv(x.numpy(), w.numpy(), padding=given))
    pairs, axes, window, floats = map(np.array, ([[0, 1], [2, 1]], [2, 3], [2, 3], [1.0, 1.0]))
    calls: list[tuple[Any, Any, Any]] = [
        (lambda sides: ct.conv(x, w, padding=sides), pairs, ((0, 1), (2, 1))),
        (lambda axis: ct.reduce(x, axis=axis), axes, (2, 3)),
        (lambda size: ct.pool(x, window=size), window, (2, 3)),
        (lambda size: ct.reference.pool(x.numpy(), window=size), window, (2, 3)),
        (lambda sides: ct.conv_plan(x, w, padding=sides).problem, pairs, ((0, 1), (2, 1))),
    ]
    for call, array, numbers in calls:
        assert str(call(array)) == str(call(numbers))
    wrong: Any = floats
    with pytest.raises(TypeError, match="expected a number or a tuple of numbers"):
        ct.conv(x, w, padding=wrong)


@pytest.mark.parametrize("inner", ["plan", "graph"])
def test_plan_that_interrupts_a_call_has_a_context_of_its_own(inner: str) -> None:
    """As in a finalizer or a signal handler, on a machine with one device."""
    with host_installed() as host:
        host.devices = 1
        with cudnn_installed(host) as fake:
            fake.engines = inner == "graph"
            interrupt_a_call(inner)
            gc.collect()


def interrupt_a_call(inner: str) -> None:
    x, w = ct.full(IMAGE, 1.0), ct.full((4, 4, 1, 1), 1.0)
    plan: Any = ct.conv_plan(x, w)
    operands: tuple[Any, ...] = (x, w)
    if inner == "graph":
        g = ct.Graph()
        plan, operands = g.build(g.relu(g.input(IMAGE))), (x,)
    for _ in range(3):
        plan(*operands)
    ctx = context.of_device(0)
    assert ctx.alone
    other = ct.full(IMAGE, 2.0)  # the default stream alone uses x
    ct.activation(other, stream=0x77)
    forward, pending = ctx.library.cudnnActivationForward, [lambda: plan(*operands)]

    def interrupted(handle: Any, *arguments: Any) -> Any:
        while pending:
            pending.pop()()
        assert (ctx.stream.handle, ctx.running) == (0x77, True)
        return forward(handle, *arguments)

    ctx.library.cudnnActivationForward = interrupted
    y = ct.activation(other, stream=0x77)
    ctx.library.cudnnActivationForward = forward
    assert not pending
    assert y.writer.handle == 0x77
