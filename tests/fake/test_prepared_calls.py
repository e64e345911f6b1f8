"""A prepared call serves no other: the same operands with other options in turn, against the reference."""

from __future__ import annotations

import contextlib
import inspect
from itertools import chain, product
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct.cli.selftest_cases import Inputs, cases
from tests.layers import compare, several
from tests.op_cases import ON_IMAGES, simple_arguments

from .cudnn import FakeCudnn
from .host import ForeignArray, Host

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


# Others write into memory of one layout only; those of CTC are in a test of their own.
NAMES = sorted(
    {case.operation for case in cases() if case.operation in ct.reference.__all__}
    - {"conv_backward_bias", "ctc_loss", "transform"}
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
    factors = {name: value for name, value in (("alpha", 2), ("beta", 0.5)) if name in accepted}
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


def test_conv_directions_prepare_calls_of_their_own_when_all_shapes_are_equal(fake: FakeCudnn) -> None:
    shape, rng = (2, 2, 3, 3), np.random.default_rng(0)
    one, two = (rng.integers(-3, 4, shape).astype(np.float32) for _ in range(2))
    for name in ("conv_backward_data", "conv_backward_filter", "conv_backward_data"):
        wanted = getattr(ct.reference, name)(one, two, shape, padding=1)
        got = getattr(ct, name)(ct.asarray(one), ct.asarray(two), shape, padding=1)
        np.testing.assert_array_equal(got.numpy(), wanted)


def test_operation_prepares_another_call_for_each_shape_and_layout(fake: FakeCudnn) -> None:
    rng = np.random.default_rng(0)
    for shape, layout in product((IMAGE, (2, 5, 4, 6), (3, 4, 5, 6)), ("nchw", "nhwc")):
        x = rng.standard_normal(shape).astype(np.float32)
        y = ct.softmax(ct.asarray(x, layout=layout))
        np.testing.assert_allclose(y.numpy(), ct.reference.softmax(x), rtol=1e-5)


def test_fill_and_scale_of_one_array_are_different_calls(fake: FakeCudnn) -> None:
    x = ct.full(IMAGE, 3.0)
    for _ in range(2):
        ct.scale(x, alpha=2)
        np.testing.assert_array_equal(x.numpy(), np.full(IMAGE, 6.0))
        ct.fill(x, 3)
        np.testing.assert_array_equal(x.numpy(), np.full(IMAGE, 3.0))


def test_equal_options_of_two_types_are_different_keys(fake: FakeCudnn) -> None:
    """True is 1 as a key, and not as a factor or an axis."""
    x = ct.full(IMAGE, 1.0)
    ct.softmax(x, axis=1)
    with pytest.raises(TypeError, match="axis"):
        ct.softmax(x, axis=1.0)


def test_ctc_loss_prepares_another_call_when_one_option_differs(fake: FakeCudnn) -> None:
    logits = np.random.default_rng(0).uniform(0.1, 1, (60, 2, 4)).astype(np.float32)
    logits /= logits.sum(axis=2, keepdims=True)
    short, long, impossible = [[1], [2]], [[1, 2, 3] * 15, [2]], [[1], [2] * 40]
    options = [
        ({"normalization": normalization, "out_of_bound": out_of_bound}, steps)
        for normalization in ("softmax", "none")
        for out_of_bound in ("zero", "skip")
        for steps in ([60, 60], [60, 6])
    ]
    for _ in range(2):
        for rows, (chosen, steps) in product((short, long, impossible), options):
            counts = list(map(len, rows))
            given = tuple(np.array(values, np.int32) for values in (list(chain(*rows)), counts, steps))
            out, filled = ct.full(logits.shape, 7.0), np.full(logits.shape, 7, np.float32)
            wanted = ct.reference.ctc_loss(logits, *given, **chosen, out=(None, filled))
            got = ct.ctc_loss(ct.asarray(logits), *given, **chosen, out=(None, out))
            np.testing.assert_allclose(got.loss.numpy(), wanted.loss, rtol=1e-5)
            np.testing.assert_allclose(out.numpy(), wanted.gradient, rtol=1e-4, atol=1e-5)
