"""Convolution with bias, residual and activation on the fakes."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cudnn_ct as ct
from cudnn_ct.errors import NotSupportedError
from cudnn_ct.shapes.fused import ACTIVATIONS

from .cudnn import FakeCudnn
from .host import ForeignArray, Host
from .test_conv import images, misaligned


@given(
    activation=st.sampled_from([name for name in ACTIVATIONS if name != "gelu"]),
    dtype=st.sampled_from(["float32", "float64", "float16"]),
    layout=st.sampled_from(["nchw", "nhwc"]),
    axes=st.integers(1, 3),
    with_bias=st.booleans(),
    with_z=st.booleans(),
    factors=st.sampled_from([(1, 1), (2, 0.5), (-1, 0)]),
    algo=st.sampled_from(["heuristic", "time_once", "none"]),
)
def test_equals_the_reference(
    fake: FakeCudnn,
    activation: str,
    dtype: str,
    layout: str,
    axes: int,
    with_bias: bool,
    with_z: bool,
    factors: tuple[float, float],
    algo: str,
) -> None:
    rng = np.random.default_rng(1)
    x, w = rng.integers(-2, 3, (2, 4, *[4] * axes)), rng.integers(-1, 2, (6, 2, *[2] * axes))
    geometry: dict[str, Any] = {"padding": 1, "stride": 2, "groups": 2}
    y_shape = ct.conv_output_shape(x.shape, w.shape, **geometry)
    z, b = rng.integers(-4, 5, y_shape), rng.integers(-3, 4, 6)
    options = {
        "activation": activation,
        "coefficient": 1.5,
        "alpha1": factors[0],
        "alpha2": factors[1],
        **geometry,
    }
    expected = ct.reference.conv_bias_activation(
        x.astype(dtype),
        w.astype(dtype),
        b.astype(dtype) if with_bias else None,
        z=z.astype(dtype) if with_z else None,
        **options,
    )
    if algo == "none" and activation not in ("relu", "identity"):
        algo = "time_once"
    if algo == "none" and (not with_bias or dtype == "float64"):
        algo = "guess_once"
    got = ct.conv_bias_activation(
        ct.asarray(x, dtype, layout=layout),
        ct.asarray(w, dtype, layout=layout),
        ct.asarray(b, dtype) if with_bias else None,
        z=ct.asarray(z, dtype, layout=layout) if with_z else None,
        out=ct.full(y_shape, np.nan, dtype, layout=layout),
        algo=algo,
        **options,
    )
    scale = max(np.abs(expected).max(), 1)
    tolerance = {"float32": 1e-6, "float64": 1e-12, "float16": 2e-3}[dtype]
    np.testing.assert_allclose(got.numpy().astype(float), expected, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize(
    "change",
    [
        {"activation": "relu"},
        {"coefficient": 1.0},
        {"alpha1": 2.0},
        {"alpha2": -1.0},
        {"mode": "convolution"},
    ],
    ids=str,
)
def test_conv_bias_activation_prepares_another_call_when_one_argument_differs(
    fake: FakeCudnn, change: dict[str, Any]
) -> None:
    x, w, b, z = images(2, 3, 5, 6), images(4, 3, 2, 2), images(4), images(2, 4, 4, 5)
    first = {"activation": "clipped_relu", "coefficient": 6.0}
    for options in (first, first | change, first):
        got = ct.conv_bias_activation(x, w, b, z=z, **options)
        host = [array.numpy() for array in (x, w, b)]
        wanted = ct.reference.conv_bias_activation(*host, z=z.numpy(), **options)
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-6, atol=1e-5)


def test_conv_bias_activation_prepares_another_call_for_each_layout_of_out(
    fake: FakeCudnn, host: Host
) -> None:
    x, w, b = images(2, 3, 5, 6), images(4, 3, 2, 2), images(4)
    wanted = ct.reference.conv_bias_activation(x.numpy(), w.numpy(), b.numpy())
    with_gaps = ForeignArray(host, np.full((2, 8, 4, 5), np.nan, np.float32)[:, ::2])
    like_x, channels_last = (ct.full((2, 4, 4, 5), np.nan, layout=layout) for layout in ("nchw", "nhwc"))
    for out in (None, channels_last, with_gaps, like_x, channels_last):
        got = ct.conv_bias_activation(x, w, b, out=out)
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-6, atol=1e-5)


def test_conv_bias_activation_rejected_for_an_address_leaves_other_calls_their_algorithm(
    fake: FakeCudnn, host: Host
) -> None:
    x, w, b = images(2, 3, 5, 6), images(4, 3, 2, 2), images(4)
    elsewhere, used = misaligned(host, x), []
    convolutions = ("cudnnConvolutionBiasActivationForward", "cudnnConvolutionForward")
    for first in (x, elsewhere, elsewhere, x):
        fake.fail_at = {len(fake.calls) + 1: 3000} if len(used) == 2 else {}
        ct.conv_bias_activation(first, w, b)
        used.append([args[7] for name, args in fake.calls if name in convolutions][-1])
    assert used[0] == used[1] == used[3] != used[2]


def test_conv_bias_activation_follows_a_setting_that_changes(
    fake: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w, b = images(2, 3, 5, 6), images(4, 3, 2, 2), images(4)
    math = []
    for allow in (True, False, True):
        monkeypatch.setattr(ct.config, "allow_tf32", allow)
        ct.conv_bias_activation(x, w, b)
        (args,) = [args for name, args in fake.calls if name == "cudnnConvolutionBiasActivationForward"]
        math.append(fake._get(args[6], "convolution")["math"])
        fake.calls.clear()
    assert math[0] == math[2] != math[1]


def test_relu_is_one_call_and_tanh_is_not(fake: FakeCudnn) -> None:
    x, w, b = images(2, 3, 5, 6), images(4, 3, 3, 3), images(4)
    plan = ct.conv_bias_activation_plan(x, w, b)
    fake.calls.clear()
    plan(x, w, b)
    assert fake.names() == ["cudnnConvolutionBiasActivationForward"]
    plan = ct.conv_bias_activation_plan(x, w, b, activation="tanh")
    fake.calls.clear()
    plan(x, w, b)
    assert fake.names() == ["cudnnConvolutionForward", "cudnnAddTensor", "cudnnActivationForward"]
    assert "by separate calls" in plan.describe()


FILTERS = {
    "channels": lambda w: np.repeat(w, 2, 1)[:, ::2],
    "filters": lambda w: np.repeat(w, 2, 0)[::2],
    "window": lambda w: np.repeat(w, 2, 2)[:, :, ::2],
    "transposed": lambda w: np.ascontiguousarray(w.swapaxes(0, 1)).swapaxes(0, 1),
}


@pytest.mark.parametrize("view", FILTERS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_conv_bias_activation_equals_reference_when_filter_is_not_packed(
    fake: FakeCudnn, host: Host, view: str, dtype: str, layout: str
) -> None:
    rng = np.random.default_rng(1)
    x, w = (rng.integers(-2, 3, shape).astype(dtype) for shape in ((2, 3, 5, 6), (4, 3, 3, 3)))
    b, z = rng.integers(-3, 4, 4).astype(dtype), rng.integers(-4, 5, (2, 4, 3, 4)).astype(dtype)
    expected = ct.reference.conv_bias_activation(x, w, b, z=z)
    images, filters = ct.asarray(x, layout=layout), ForeignArray(host, FILTERS[view](w))
    bias, residual = ct.asarray(b), ct.asarray(z, layout=layout)
    got = ct.conv_bias_activation(images, filters, bias, z=residual)
    np.testing.assert_array_equal(got.numpy(), expected)
    plan = ct.conv_bias_activation_plan(images, filters, bias, z=residual)
    np.testing.assert_array_equal(plan(images, filters, residual, bias).numpy(), expected)
    assert "in one fused call" in plan.describe()
    assert "w copied to" in plan.describe()


def test_conv_bias_activation_rejects_algorithm_without_copies_when_filter_is_not_packed(
    fake: FakeCudnn, host: Host
) -> None:
    x, w, b = images(2, 3, 5, 6), ForeignArray(host, np.zeros((4, 6, 3, 3), np.float32)[:, ::2]), images(4)
    chosen = ct.conv_bias_activation_plan(x, w, b).candidate
    assert chosen.relayout == (("w", "nchw"),)
    stored = chosen._replace(relayout=(), problem=None)
    with pytest.raises(NotSupportedError, match=r"got relayout=\(\), expected one of"):
        ct.conv_bias_activation(x, w, b, algo=stored)
    with pytest.raises(NotSupportedError, match=r"got relayout=\(\), expected one of"):
        ct.conv(x, w, algo=stored)


@pytest.mark.parametrize("layouts", [("nhwc", "nchw"), ("nchw", "nhwc"), ("nhwc", "gaps"), ("nchw", "gaps")])
@pytest.mark.parametrize("activation", ["relu", "identity", "tanh"])
def test_conv_bias_activation_equals_reference_when_residual_has_another_layout(
    fake: FakeCudnn, host: Host, layouts: tuple[str, str], activation: str
) -> None:
    rng = np.random.default_rng(1)
    x, w, b = (rng.integers(-2, 3, shape).astype("float32") for shape in ((2, 3, 5, 6), (4, 3, 3, 3), (4,)))
    z = rng.integers(-4, 5, (2, 4, 3, 4)).astype("float32")
    expected = ct.reference.conv_bias_activation(x, w, b, z=z, activation=activation)
    own, other = layouts
    gaps = ForeignArray(host, np.repeat(z, 2, 1)[:, ::2])
    residual = gaps if other == "gaps" else ct.asarray(z, layout=other)
    images, filters, bias = ct.asarray(x, layout=own), ct.asarray(w, layout=own), ct.asarray(b)
    plan = ct.conv_bias_activation_plan(images, filters, bias, z=residual, activation=activation)
    got = plan(images, filters, residual, bias)
    assert got.layout == own
    np.testing.assert_allclose(got.numpy(), expected, rtol=0, atol=1e-5)
    if activation != "tanh":
        assert f"z copied to {own}" in plan.describe()


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_conv_bias_activation_adds_residual_of_one_channel(fake: FakeCudnn, layout: str) -> None:
    """The fake rejects a residual that is described with other strides than the result."""
    x, w, b = images(2, 3, 5, 6).numpy(), images(1, 3, 3, 3).numpy(), images(1).numpy()
    z = images(2, 1, 3, 4).numpy()
    placed = (ct.asarray(x, layout=layout), ct.asarray(w, layout=layout), ct.asarray(b))
    got = ct.conv_bias_activation(*placed, z=ct.asarray(z), algo="none")
    np.testing.assert_array_equal(got.numpy(), ct.reference.conv_bias_activation(x, w, b, z=z))


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_conv_bias_activation_writes_only_its_elements_when_out_has_gaps(
    fake: FakeCudnn, host: Host, graphs: bool, layout: str, activation: str
) -> None:
    fake.graphs = graphs
    rng = np.random.default_rng(1)
    x, w, b = (rng.integers(-2, 3, shape).astype("float32") for shape in ((2, 3, 5, 6), (4, 3, 3, 3), (4,)))
    z = rng.integers(-4, 5, (2, 4, 3, 4)).astype("float32")
    expected = ct.reference.conv_bias_activation(x, w, b, z=z, activation=activation)
    whole = ct.full((2, 8, 3, 4), 7)
    n, c, *steps = whole.spec.strides
    out = whole.view_as(ct.TensorSpec(z.shape, (n, 2 * c, *steps), "float32"))
    given = ct.asarray(x, layout=layout), ct.asarray(w, layout=layout), ct.asarray(b)
    ct.conv_bias_activation(*given, z=ct.asarray(z, layout=layout), activation=activation, out=out)
    np.testing.assert_allclose(out.numpy(), expected, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(whole.numpy()[:, 1::2], np.full(z.shape, 7))


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("place", ["same", "other", "gaps"])
@pytest.mark.parametrize("activation", ["relu", "sigmoid", "tanh"])
@pytest.mark.parametrize("algo", ["heuristic", "time_once"])
def test_fused_graph_equals_reference_when_residual_has_any_layout(
    fake: FakeCudnn, host: Host, layout: str, place: str, activation: str, algo: str
) -> None:
    fake.engines, fake.engine_number = True, 52
    rng = np.random.default_rng(1)
    x, w, b = (rng.integers(-2, 3, shape).astype("float32") for shape in ((2, 3, 5, 6), (4, 3, 3, 3), (4,)))
    z = rng.integers(-4, 5, (2, 4, 3, 4)).astype("float32")
    options = {"activation": activation, "alpha1": 0.25, "alpha2": 0.5}
    expected = ct.reference.conv_bias_activation(x, w, b, z=z, **options)
    given = ct.asarray(x, layout=layout), ct.asarray(w, layout=layout), ct.asarray(b)
    other = "nchw" if layout == "nhwc" else "nhwc"
    residual = {
        "same": lambda: ct.asarray(z, layout=layout),
        "other": lambda: ct.asarray(z, layout=other),
        "gaps": lambda: ForeignArray(host, np.repeat(z, 2, 1)[:, ::2]),
    }[place]()
    got = ct.conv_bias_activation(*given, z=residual, algo=algo, **options)
    np.testing.assert_allclose(got.numpy(), expected, rtol=0, atol=1e-6)
    plan = ct.conv_bias_activation_plan(*given, z=residual, **options)
    assert "graph engine 52" in plan.describe()
    assert (f"z copied to {layout}" in plan.describe()) == (place != "same")


@pytest.mark.parametrize("layouts", list(product(("nchw", "nhwc"), repeat=3)), ids="-".join)
@pytest.mark.parametrize("algo", ["heuristic", "time_once"])
@pytest.mark.parametrize("image", [(5, 6), (3, 3)], ids=["pixels", "one pixel"])
def test_fused_graph_equals_reference_when_operands_have_several_layouts(
    fake: FakeCudnn, layouts: tuple[str, ...], algo: str, image: tuple[int, int]
) -> None:
    fake.engines, fake.engine_number = True, 52
    rng = np.random.default_rng(1)
    shapes = ((2, 3, *image), (4, 3, 3, 3), (4,))
    x, w, b = (rng.integers(-2, 3, shape).astype("float32") for shape in shapes)
    expected = ct.reference.conv_bias_activation(x, w, b, activation="tanh")
    images, filters = (ct.asarray(a, layout=layout) for a, layout in zip((x, w), layouts, strict=False))
    out = ct.full(expected.shape, np.nan, layout=layouts[2])
    ct.conv_bias_activation(images, filters, ct.asarray(b), activation="tanh", algo=algo, out=out)
    np.testing.assert_allclose(out.numpy(), expected, rtol=0, atol=1e-6)
    assert "cudnnBackendExecute" in {name for name, _ in fake.calls}


def test_fused_graph_rejects_algorithm_without_copies_when_residual_has_another_layout(
    fake: FakeCudnn,
) -> None:
    fake.engines, fake.engine_number = True, 52
    x, w, b, z = images(2, 3, 5, 6), images(4, 3, 3, 3), images(4), ct.zeros((2, 4, 3, 4), layout="nhwc")
    chosen = ct.conv_bias_activation_plan(x, w, b, z=z).candidate
    assert chosen.backend == "graph"
    assert chosen.relayout == (("z", "nchw"),)
    with pytest.raises(NotSupportedError, match=r"got relayout=\(\), expected one of"):
        ct.conv_bias_activation(x, w, b, z=z, algo=chosen._replace(relayout=(), problem=None))


def test_nothing_to_sum(fake: FakeCudnn) -> None:
    x, w, b = ct.empty((2, 0, 4, 4)), ct.empty((3, 0, 2, 2)), images(3)
    y = ct.conv_bias_activation(x, w, b, activation="identity")
    np.testing.assert_array_equal(y.numpy(), np.broadcast_to([[[-2]], [[-1]], [[0]]], (2, 3, 3, 3)))
    assert ct.conv_bias_activation(ct.empty((0, 2, 4, 4)), images(3, 2, 2, 2), b).shape == (0, 3, 3, 3)


@pytest.mark.parametrize("engines", [False, True])
@pytest.mark.parametrize("take", [slice(None, None, 2), slice(None, None, -1)])
@pytest.mark.filterwarnings("ignore::cudnn_ct.errors.CudnnWarning")
def test_conv_bias_activation_takes_a_bias_of_any_stride(
    fake: FakeCudnn, host: Host, engines: bool, take: slice
) -> None:
    fake.engines = engines
    x, w = images(2, 3, 5, 4), images(4, 3, 2, 2)
    x_values, w_values = x.numpy(), w.numpy()
    whole = np.arange(1, 2 * w_values.shape[0] + 1, dtype=np.float32)
    b = whole[take][: w_values.shape[0]]
    got = ct.conv_bias_activation(x, w, ForeignArray(host, b), activation="tanh")
    expected = ct.reference.conv_bias_activation(x_values, w_values, b, activation="tanh")
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore::cudnn_ct.errors.CudnnWarning")
def test_conv_bias_activation_takes_a_broadcast_residual(fake: FakeCudnn, host: Host) -> None:
    x, w = images(2, 3, 5, 4), images(4, 3, 2, 2)
    x_values, w_values = x.numpy(), w.numpy()
    shape = ct.conv_output_shape(x.shape, w.shape)
    z = np.broadcast_to(np.arange(shape[1], dtype=np.float32).reshape(1, -1, 1, 1), shape)
    got = ct.conv_bias_activation(x, w, None, z=ForeignArray(host, z), activation="relu")
    expected = ct.reference.conv_bias_activation(x_values, w_values, None, z=z, activation="relu")
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_conv_pads_unevenly_when_an_operand_has_gaps(fake: FakeCudnn, host: Host) -> None:
    fake.engines = True
    x, w = np.arange(96, dtype=np.float32).reshape(1, 4, 4, 6), np.ones((2, 4, 2, 2), np.float32)
    padding = ((0, 1), (1, 0))
    got = ct.conv(ForeignArray(host, x[:, :, :, ::2]), ct.asarray(w), padding=padding)
    np.testing.assert_allclose(got.numpy(), ct.reference.conv(x[:, :, :, ::2], w, padding=padding))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 0.0), (1.0, 0.5), (-0.5, 2.0)])
def test_conv_writes_only_its_elements_when_a_scaled_out_has_gaps(
    fake: FakeCudnn, layout: str, alpha: float, beta: float
) -> None:
    fake.engines = True
    x, w = images(2, 3, 5, 6), images(4, 3, 3, 3)
    x_values, w_values = x.numpy(), w.numpy()
    whole = ct.full((2, 8, 4, 4), 7, layout=layout)
    n, c, *steps = whole.spec.strides
    out = whole.view_as(ct.TensorSpec((2, 4, 4, 4), (n, 2 * c, *steps), "float32"))
    padding = ((0, 1), (0, 0))  # only engines compute it
    ct.conv(x, w, padding=padding, alpha=alpha, beta=beta, out=out)
    assert "cudnnBackendExecute" in {name for name, _ in fake.calls}
    assert "cudnnConvolutionForward" not in {name for name, _ in fake.calls}
    expected = alpha * ct.reference.conv(x_values, w_values, padding=padding) + beta * 7
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6)
    np.testing.assert_array_equal(whole.numpy()[:, 1::2], np.full(out.shape, 7))
