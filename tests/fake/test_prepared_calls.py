"""A prepared call serves no other: the same operands with other options in turn, against the reference."""

from __future__ import annotations

import contextlib
from itertools import chain, product
from typing import Any, NamedTuple

import numpy as np
import pytest

import cudnn_ct as ct

from .cudnn import FakeCudnn
from .host import ForeignArray, Host

IMAGE = (2, 4, 5, 6)


class Alternatives(NamedTuple):
    """Shapes of the operands of an operation, and options that leave the shape of its result as it is."""

    shapes: tuple[tuple[int, ...], ...]
    options: tuple[dict[str, Any], ...]
    result: tuple[int, ...] = IMAGE


WINDOWS = {"window": 3, "padding": 1}
ACTIVATIONS = ({}, {"mode": "tanh"}, {"mode": "elu", "coefficient": 1}, {"mode": "elu", "coefficient": 2.0})
CASES = {
    "activation": Alternatives((IMAGE,), ACTIVATIONS),
    "activation_backward": Alternatives((IMAGE,) * 3, ACTIVATIONS),
    "softmax": Alternatives((IMAGE,), ({}, {"axis": 2}, {"algo": "log"}, {"mode": "instance"})),
    "softmax_backward": Alternatives((IMAGE,) * 2, ({}, {"axis": 2}, {"algo": "log"})),
    "pool": Alternatives(
        (IMAGE,),
        (
            {**WINDOWS, "stride": 1},
            {**WINDOWS, "stride": 1, "mode": "average_count_exclude_padding"},
            {"window": 5, "padding": 2, "stride": 1},
        ),
    ),
    "lrn": Alternatives((IMAGE,), ({}, {"n": 3}, {"lrn_alpha": 0.5}, {"lrn_beta": 0.5}, {"k": 1.0})),
    "conv": Alternatives(
        (IMAGE, (4, 4, 3, 3)),
        ({"padding": 1}, {"padding": 1, "mode": "convolution"}, {"padding": 2, "dilation": 2}),
    ),
    "conv_backward_data": Alternatives(
        (IMAGE, (4, 4, 3, 3)),
        tuple(
            {"x_shape": IMAGE} | more
            for more in ({"padding": 1}, {"padding": 1, "mode": "convolution"}, {"padding": 2, "dilation": 2})
        ),
    ),
    "conv_backward_filter": Alternatives(
        (IMAGE, IMAGE),
        tuple(
            {"w_shape": (4, 4, 3, 3)} | more
            for more in ({"padding": 1}, {"padding": 1, "mode": "convolution"}, {"padding": 2, "dilation": 2})
        ),
        (4, 4, 3, 3),
    ),
    "reduce": Alternatives(
        (IMAGE,),
        tuple({"axis": (1, 3), "keepdims": True, "op": op} for op in ("add", "max", "norm2", "avg")),
        (2, 1, 5, 1),
    ),
    "op_tensor": Alternatives((IMAGE,) * 2, tuple({"op": op} for op in ("add", "mul", "max", "min"))),
    "batch_norm_inference": Alternatives(
        (IMAGE, *[(1, 4, 1, 1)] * 4), ({}, {"epsilon": 0.5}, {"epsilon": 1e-3})
    ),
    "transform": Alternatives((IMAGE,), ({},)),
    "grid_sample": Alternatives((IMAGE, (2, 5, 6, 2)), ({},)),
}  # fmt: skip


def outputs(host: Host, shape: tuple[int, ...]) -> list[Any]:
    """Memory of the same shape that lies otherwise, filled with 3."""
    packed = np.full(shape, 3, np.float32)
    spread = np.full((*shape[:-1], 2 * shape[-1]), 3, np.float32)[..., ::2]
    swapped = np.ascontiguousarray(np.moveaxis(packed, 1, -1)) if len(shape) > 2 else packed
    lasting = np.moveaxis(swapped, -1, 1) if len(shape) > 2 else packed
    return [ForeignArray(host, array) for array in (packed, lasting, spread)]


@pytest.mark.parametrize("name", CASES)
def test_operation_prepares_another_call_when_one_option_differs(
    fake: FakeCudnn, host: Host, name: str
) -> None:
    case, rng = CASES[name], np.random.default_rng(5)
    values = [rng.uniform(0.5, 2, shape).astype(np.float32) for shape in case.shapes]
    if name == "grid_sample":
        values[1] -= 1
    arrays = [ct.asarray(value) for value in values]
    operation, reference = getattr(ct, name), getattr(ct.reference, name)
    scaling = {"alpha1": 2} if name == "op_tensor" else {"alpha": 2}
    for options in (*case.options, *case.options):
        if name == "activation_backward":
            values[2] = ct.reference.activation(values[1], **options)
            arrays[2] = ct.asarray(values[2])
        wanted = reference(*values, **options)
        np.testing.assert_allclose(operation(*arrays, **options).numpy(), wanted, rtol=2e-5, atol=2e-5)
        for out in outputs(host, case.result):
            operation(*arrays, **options, out=out)
            np.testing.assert_allclose(out.numpy(), wanted, rtol=2e-5, atol=2e-5)
        for out in outputs(host, case.result):
            scaled = reference(*values, **options, **scaling, beta=0.5, out=np.full_like(wanted, 3))
            operation(*arrays, **options, **scaling, beta=0.5, out=out)
            np.testing.assert_allclose(out.numpy(), scaled, rtol=2e-5, atol=2e-5)


# All with alpha and beta. The factors of op_tensor are part of every one of its calls.
SCALED = [*sorted(set(CASES) - {"op_tensor", "transform"}), "conv_backward_bias"]


@pytest.mark.parametrize("name", SCALED)
def test_operation_rejected_with_factors_leaves_other_calls_as_they_were(fake: FakeCudnn, name: str) -> None:
    case = CASES.get(name) or Alternatives((IMAGE,), ({},))
    arrays = [ct.full(shape, 1.0) for shape in case.shapes]
    operation = getattr(ct, name)
    operation(*arrays, **case.options[0])
    operation(*arrays, **case.options[0], alpha=2)
    fake.calls.clear()
    operation(*arrays, **case.options[0])
    before = fake.names()
    fake.calls.clear()
    fake.fail_at = {1: 3000}
    with contextlib.suppress(ct.NotSupportedError):
        operation(*arrays, **case.options[0], alpha=2)
    fake.calls.clear()
    fake.fail_at = {}
    operation(*arrays, **case.options[0])
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


def test_layers_tell_equal_options_of_two_types_apart(fake: FakeCudnn) -> None:
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
