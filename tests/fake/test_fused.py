"""Convolution with bias, residual and activation on the fakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

import cudnn_ct as ct
from cudnn_ct.errors import NotSupportedError
from tests.layers import LayerCase, check_layer, fused_cases
from tests.strategies import own, placing

from .cudnn import FakeCudnn
from .host import ForeignArray, Host
from .test_conv import OFFSETS, images, misaligned

pytestmark = pytest.mark.usefixtures("fake")


@pytest.mark.parametrize(
    ("algo", "engines"),
    [
        ("heuristic", False),
        ("heuristic", True),
        ("time_once", False),
        pytest.param("time_once", True, marks=pytest.mark.nightly),
    ],
)
@given(case=fused_cases(), offsets=OFFSETS)
def test_conv_bias_activation_equals_reference(
    fake: FakeCudnn, host: Host, engines: bool, algo: str, case: LayerCase, offsets: tuple[int, ...]
) -> None:
    """All examples share prepared calls; the fake rejects a residual with other strides than the result."""
    fake.engines, fake.engine_number, fake.engine_workspace = engines, 52, 100
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ct.config, "algo", algo)
        for place in (own, lambda array: ForeignArray(host, array)):
            check_layer(case, placing(place, *offsets))


@pytest.mark.filterwarnings("ignore::cudnn_ct.errors.CudnnWarning")
@pytest.mark.parametrize("engines", [False, True])
def test_conv_bias_activation_equals_reference_when_strides_are_negative_or_zero(
    fake: FakeCudnn, host: Host, engines: bool
) -> None:
    fake.engines = engines
    x, w = images(2, 3, 5, 4), images(4, 3, 2, 2)
    b, z = np.arange(4, dtype=np.float32)[::-1], np.arange(4, dtype=np.float32).reshape(1, 4, 1, 1)
    z = np.broadcast_to(z, (2, 4, 4, 3))
    got = ct.conv_bias_activation(x, w, ForeignArray(host, b), residual=ForeignArray(host, z))
    np.testing.assert_array_equal(
        got.numpy(), ct.reference.conv_bias_activation(x.numpy(), w.numpy(), b, residual=z)
    )


def spread(array: ct.DeviceArray) -> ct.DeviceArray:
    """Copy an array so that there is a gap behind each element of the last axis."""
    whole = ct.full((*array.shape[:-1], 2 * array.shape[-1]), np.nan, array.dtype)
    return ct.transform(array, out=whole[..., ::2])


@pytest.mark.parametrize("engines", [False, True])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_conv_bias_activation_is_one_call_after_copies_when_operands_differ_in_layout(
    fake: FakeCudnn, layout: str, engines: bool
) -> None:
    fake.engines, fake.engine_number = engines, 52
    x, w, b = ct.zeros((2, 3, 5, 6), layout=layout), ct.zeros((4, 3, 3, 3), layout=layout), images(4)
    z = ct.zeros((2, 4, 3, 4), layout="nchw" if layout == "nhwc" else "nhwc")
    way = "graph engine 52" if engines else "in one fused call"
    for filters, residual, copied in ((w, z, f"z copied to {layout}"), (spread(w), None, "w copied to")):
        described = ct.conv_bias_activation_plan(x, filters, b, residual=residual).describe()
        assert copied in described
        assert way in described or (engines and residual is None)
    plan = ct.conv_bias_activation_plan(x, w, b, residual=ct.zeros(z.shape, layout=layout))
    assert "copied" not in plan.describe()


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
def test_conv_bias_activation_prepares_another_call_when_one_argument_differs(change: dict[str, Any]) -> None:
    x, w, b, z = images(2, 3, 5, 6), images(4, 3, 2, 2), images(4), images(2, 4, 4, 5)
    first = {"activation": "clipped_relu", "coefficient": 6.0}
    for options in (first, first | change, first):
        got = ct.conv_bias_activation(x, w, b, residual=z, **options)
        host = [array.numpy() for array in (x, w, b)]
        wanted = ct.reference.conv_bias_activation(*host, residual=z.numpy(), **options)
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


def test_conv_bias_activation_rejects_algorithm_without_copies_when_filter_is_not_packed(host: Host) -> None:
    x, w, b = images(2, 3, 5, 6), ForeignArray(host, np.zeros((4, 6, 3, 3), np.float32)[:, ::2]), images(4)
    chosen = ct.conv_bias_activation_plan(x, w, b).candidate
    assert chosen.relayout == (("w", "nchw"),)
    stored = chosen._replace(relayout=(), problem=None)
    with pytest.raises(NotSupportedError, match=r"got relayout=\(\), expected one of"):
        ct.conv_bias_activation(x, w, b, algo=stored)
    with pytest.raises(NotSupportedError, match=r"got relayout=\(\), expected one of"):
        ct.conv(x, w, algo=stored)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_conv_bias_activation_writes_only_its_elements_when_out_has_gaps(
    fake: FakeCudnn, graphs: bool, layout: str, activation: str
) -> None:
    fake.graphs = graphs
    rng = np.random.default_rng(1)
    x, w, b = (rng.integers(-2, 3, shape).astype("float32") for shape in ((2, 3, 5, 6), (4, 3, 3, 3), (4,)))
    z = rng.integers(-4, 5, (2, 4, 3, 4)).astype("float32")
    expected = ct.reference.conv_bias_activation(x, w, b, residual=z, activation=activation)
    whole = ct.full((2, 8, 3, 4), 7)
    n, c, *steps = whole.spec.strides
    out = whole.view_as(ct.TensorSpec(z.shape, (n, 2 * c, *steps), "float32"))
    given = ct.asarray(x, layout=layout), ct.asarray(w, layout=layout), ct.asarray(b)
    ct.conv_bias_activation(*given, residual=ct.asarray(z, layout=layout), activation=activation, out=out)
    np.testing.assert_allclose(out.numpy(), expected, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(whole.numpy()[:, 1::2], np.full(z.shape, 7))


def test_fused_graph_rejects_algorithm_without_copies_when_residual_has_another_layout(
    fake: FakeCudnn,
) -> None:
    fake.engines, fake.engine_number = True, 52
    x, w, b, z = images(2, 3, 5, 6), images(4, 3, 3, 3), images(4), ct.zeros((2, 4, 3, 4), layout="nhwc")
    chosen = ct.conv_bias_activation_plan(x, w, b, residual=z).candidate
    assert chosen.backend == "graph"
    assert chosen.relayout == (("z", "nchw"),)
    with pytest.raises(NotSupportedError, match=r"got relayout=\(\), expected one of"):
        ct.conv_bias_activation(x, w, b, residual=z, algo=chosen._replace(relayout=(), problem=None))


def test_conv_pads_unevenly_when_an_operand_has_gaps(fake: FakeCudnn, host: Host) -> None:
    fake.engines = True
    x, w = np.arange(96, dtype=np.float32).reshape(1, 4, 4, 6), np.ones((2, 4, 2, 2), np.float32)
    padding = ((0, 1), (1, 0))
    got = ct.conv(ForeignArray(host, x[:, :, :, ::2]), ct.asarray(w), padding=padding)
    np.testing.assert_allclose(got.numpy(), ct.reference.conv(x[:, :, :, ::2], w, padding=padding))


@pytest.mark.usefixtures("only_engines")
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
    padding = ((0, 1), (0, 0))
    ct.conv(x, w, padding=padding, alpha=alpha, beta=beta, out=out)
    assert "cudnnBackendExecute" in {name for name, _ in fake.calls}
    assert "cudnnConvolutionForward" not in {name for name, _ in fake.calls}
    expected = alpha * ct.reference.conv(x_values, w_values, padding=padding) + beta * 7
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6)
    np.testing.assert_array_equal(whole.numpy()[:, 1::2], np.full(out.shape, 7))
