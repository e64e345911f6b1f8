"""Cases of `cudnn_ct.dnn` on the fakes, and behaviour that only the fakes show."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import dnn, reference
from tests.dnn_cases import ROWS, check_every_name_is_in_a_row, flag, images, integers

from . import cudnn
from .cudnn import FakeCudnn
from .host import ForeignArray, Host

DIRECTIONS = {
    "cudnnConvolutionForward": "FORWARD",
    "cudnnConvolutionBackwardData": "BACKWARD_DATA",
    "cudnnConvolutionBackwardFilter": "BACKWARD_FILTER",
}


@pytest.fixture(autouse=True)
def offer_the_default_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    offered: Any = ("IMPLICIT_PRECOMP_GEMM", "IMPLICIT_GEMM", "DIRECT", "GEMM")  # DIRECT is rejected
    monkeypatch.setattr(cudnn, "FORWARD", cudnn.FORWARD._replace(offered=offered))


def ran(fake: FakeCudnn, call: Any) -> list[str]:
    """Return the directions and algorithms of the convolutions that a call runs."""
    fake.calls.clear()
    call()
    return [
        f"{DIRECTIONS[name]} {getattr(cudnn, DIRECTIONS[name]).algorithms(args[7]).name}"
        for name, args in fake.calls
        if name in DIRECTIONS
    ]


@pytest.mark.parametrize("name", ROWS)
def test_dnn_case(fake: FakeCudnn, host: Host, name: str) -> None:
    ROWS[name](ct.asarray)


@pytest.mark.parametrize("name", ROWS)
def test_dnn_case_when_arrays_are_foreign(fake: FakeCudnn, host: Host, name: str) -> None:
    ROWS[name](lambda array: ForeignArray(host, array))


def test_every_name_of_dnn_has_a_case() -> None:
    check_every_name_is_in_a_row()


def block() -> tuple[dnn.RNNBlock, ct.DeviceArray]:
    """Return a block and its weights for an input of 4."""
    made = dnn.RNNBlock("float32", 8, 2, "gru")
    return made, ct.zeros(made.get_param_size((3, 4)))


MANY = np.zeros((2, 3))  # an array without a truth value
NO_AXES = np.float32(0)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda b, w, x: b.apply(w, ct.asarray(NO_AXES), None), ValueError, r"expected \(T, B, input\)"),
        (lambda b, w, x: b.gradients(w, ct.asarray(NO_AXES), None), ValueError, r"x does not have 3 axes"),
        (lambda b, w, x: b.get_param_size(4), TypeError, "input_size must be a sequence of integers: got 4"),
        (lambda b, w, x: b.get_param_size([3]), ValueError, r"input_size does not have 2 sizes"),
        (lambda b, w, x: b.get_param_size((3, MANY)), TypeError, "input_size must be a sequence of integers"),
        (lambda b, w, x: b.network(MANY), TypeError, "input_size must be an int"),
        (lambda b, w, x: b.split_params(w, 0, 4), TypeError, "input_size must be a sequence"),
        (lambda b, w, x: b.split_params(w, "a", (3, 4)), TypeError, "layer must be an int: got 'a'"),
        (lambda b, w, x: dnn.RNNBlock("float32", 8, 2, "grew"), ValueError, "rnn_mode must be one of rnn"),
        (lambda b, w, x: dnn.GpuDnnRNNOp("gru", MANY), ValueError, "direction_mode must be one of"),
        (lambda b, w, x: dnn.GpuDnnRNNGradInputs("grew", True, True), ValueError, "rnn_mode must be one of"),
        (lambda b, w, x: dnn.GpuDnnConv.get_out_shape(x.shape, (1,), 0, 1), ValueError, "w has 1 dimensions"),
        (lambda b, w, x: dnn.GpuDnnConv.get_out_shape((), (), 0, 1), ValueError, r"x has shape \(\)"),
        (lambda b, w, x: dnn.GpuDnnConv.get_out_shape(3, (1,), 0, 1), TypeError, "ishape must be a sequence"),
        (lambda b, w, x: dnn.GpuDnnConv.get_out_shape(x.shape, w, 0, 1), TypeError, "kshape must be a sequ"),
        (lambda b, w, x: dnn.GpuDnnTransformerGrid()(x, 4), TypeError, "out_dims must be a sequence of int"),
        (lambda b, w, x: dnn.dnn_conv(x, x, border_mode=MANY), TypeError, "is not a valid parameter; exp"),
    ],
)
def test_dnn_rejects_bad_arguments(fake: FakeCudnn, call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(*block(), ct.asarray(images()[0]))


def test_flags_select_the_algorithm(fake: FakeCudnn) -> None:
    x, w = (ct.asarray(array) for array in images())
    dy = ct.asarray(reference.conv(*images()))

    def forward() -> Any:
        return dnn.dnn_conv(x, w)

    assert ran(fake, forward) == ["FORWARD IMPLICIT_PRECOMP_GEMM"]
    assert ran(fake, lambda: dnn.dnn_gradweight(x, dy, w.shape)) == ["BACKWARD_FILTER ALGO_0"]
    assert ran(fake, lambda: dnn.dnn_gradinput(w, dy, x.shape)) == ["BACKWARD_DATA ALGO_0"]
    assert ran(fake, lambda: dnn.dnn_conv(x, w, algo="large")) == ["FORWARD GEMM"]
    with flag("dnn__conv__algo_fwd", "none"):
        assert ran(fake, forward) == ["FORWARD IMPLICIT_GEMM"]
    with flag("dnn__conv__algo_bwd_filter", "deterministic"):
        assert ran(fake, lambda: dnn.dnn_gradweight(x, dy, w.shape)) == ["BACKWARD_FILTER ALGO_1"]
    with flag("dnn__conv__algo_bwd_data", "deterministic"):
        assert ran(fake, lambda: dnn.dnn_gradinput(w, dy, x.shape)) == ["BACKWARD_DATA ALGO_1"]
        operation = dnn.GpuDnnConvGradI()
    desc = dnn.GpuDnnConvDesc("valid")
    assert ran(fake, lambda: operation(w, dy, x.shape, desc)) == [
        "BACKWARD_DATA ALGO_1"
    ]  # the flag at creation


@pytest.mark.filterwarnings("ignore:.*computed as a gradient:cudnn_ct.errors.CudnnWarning")
def test_dnn_conv_runs_as_a_gradient_only_when_theano_does(fake: FakeCudnn) -> None:
    x, w = (ct.asarray(array) for array in images())
    data, filters = "BACKWARD_DATA ALGO_0", "BACKWARD_FILTER ALGO_0"
    forward = "FORWARD IMPLICIT_PRECOMP_GEMM"
    rows: tuple[tuple[dict[str, Any], str], ...] = (
        ({"border_mode": "full"}, data),
        ({"border_mode": "full", "dilation": (2, 1)}, data),
        ({"border_mode": "full", "direction_hint": "bprop inputs"}, data),
        ({"border_mode": "full", "direction_hint": "forward!"}, forward),
        ({"border_mode": "full", "subsample": (1, 2)}, forward),
        ({"border_mode": (2, 1)}, forward),
        ({"border_mode": "full", "algo": "small"}, forward),
        ({"direction_hint": "bprop weights"}, filters),
        ({"direction_hint": "bprop weights", "dilation": (1, 2)}, forward),
        ({"direction_hint": "bprop weights", "border_mode": 0}, forward),
        ({"direction_hint": "bprop weights", "algo": "small"}, forward),
        ({"direction_hint": "bprop inputs"}, forward),
        ({"direction_hint": "forward"}, forward),
    )
    for keywords, wanted in rows:
        assert ran(fake, lambda keywords=keywords: dnn.dnn_conv(x, w, **keywords)) == [wanted], keywords
    w = ct.asarray(integers(6, 2, 3, 2))
    assert ran(fake, lambda: dnn.dnn_conv(x, w, "full", num_groups=2)) == [forward]


def test_dnn_conv_keeps_its_operands_when_it_flips_the_filters(fake: FakeCudnn) -> None:
    x, w = images()
    placed = ct.asarray(x), ct.asarray(w)
    with pytest.warns(ct.CudnnWarning, match="with respect to filters"):
        dnn.dnn_conv(*placed, direction_hint="bprop weights")
    for array, before in zip(placed, (x, w), strict=True):
        np.testing.assert_array_equal(array.numpy(), before)


@pytest.mark.filterwarnings("ignore:.*computed as a gradient:cudnn_ct.errors.CudnnWarning")
def test_dnn_runs_on_the_device_of_the_operands(fake: FakeCudnn) -> None:
    x, w = images()
    with ct.use(device=1):
        placed = ct.asarray(x), ct.asarray(w)
    for keywords in ({"direction_hint": "bprop weights"}, {"border_mode": "full"}, {}):
        y = dnn.dnn_conv(*placed, **keywords)
        assert y.device == 1
    np.testing.assert_array_equal(y.numpy(), reference.conv(x, w, mode="convolution"))
    assert dnn.dropout(placed[0], 0.5).y.device == 1
    desc = dnn.GpuDnnConvDesc("valid")
    assert dnn.GpuDnnConv()(*placed, y, desc, 1, 1).device == 1


@pytest.mark.filterwarnings("ignore:.*computed as a gradient:cudnn_ct.errors.CudnnWarning")
@pytest.mark.parametrize("keywords", [{"direction_hint": "bprop weights"}, {"border_mode": "full"}], ids=str)
def test_dnn_conv_records_uses_of_an_operand_when_it_reads_a_view(
    fake: FakeCudnn, host: Host, keywords: dict[str, str]
) -> None:
    x, w = (ct.asarray(array) for array in images())
    with ct.use(stream=77):
        dnn.dnn_conv(x, w, conv_mode="cross", **keywords)
    host.log.clear()
    ct.fill(w, 0.0)
    assert any(entry[0] == "wait" for entry in host.log), host.log


@pytest.mark.parametrize("spread", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_rnn_block_can_be_copied_after_use(fake: FakeCudnn, spread: Callable[[Any], Any]) -> None:
    made = dnn.RNNBlock("float32", 8, 2, "gru")
    w = ct.full((made.get_param_size((3, 4)),), 0.5)
    x, hx = ct.full((5, 3, 4), 1.0), ct.zeros((2, 3, 8))
    expected = [array.numpy() for array in made.apply(w, x, hx)]
    for got, wanted in zip(spread(made).apply(w, x, hx), expected, strict=True):
        np.testing.assert_array_equal(got.numpy(), wanted)


def test_convolutions_accept_numpy_integers(fake: FakeCudnn) -> None:
    values, filters = images()
    x, w = ct.asarray(values), ct.asarray(filters)
    ones, twos = np.array([1, 1]), np.array([2, 2], np.int32)
    keywords = {"border_mode": ones, "subsample": twos, "dilation": ones}
    y = dnn.dnn_conv(x, w, **keywords)
    expected = reference.conv(values, filters, padding=1, stride=2, mode="convolution")
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5)
    geometry = (ones, twos, ones)
    assert dnn.GpuDnnConv.get_out_shape(np.array(x.shape), np.array(w.shape), *geometry) == y.shape
    for shape in (np.array(w.shape), np.array(w.shape, np.uint16)):
        dw = dnn.dnn_gradweight(x, y, shape, **keywords)
        assert dw.shape == w.shape
        desc = dnn.GpuDnnConvDesc(*geometry)
        again = dnn.GpuDnnConvGradW(algo="none")(x, y, shape, desc)
        np.testing.assert_array_equal(again.numpy(), dw.numpy())
    assert dnn.dnn_gradinput(w, y, np.array(x.shape), **keywords).shape == x.shape
    made = dnn.GpuDnnConv(algo="none")(x, w, np.array(y.shape), dnn.GpuDnnConvDesc(*geometry))
    np.testing.assert_allclose(made.numpy(), expected, rtol=1e-5)


def test_poolings_and_reductions_accept_numpy_integers(fake: FakeCudnn) -> None:
    x = ct.asarray(images()[0])
    ws, stride, pad = np.array([2, 3]), np.array([1, 2]), np.array([0, 1])
    expected = dnn.dnn_pool(x, (2, 3), (1, 2), pad=(0, 1)).numpy()
    np.testing.assert_array_equal(dnn.dnn_pool(x, ws, stride, pad=pad).numpy(), expected)
    np.testing.assert_array_equal(dnn.GpuDnnPool()(x, ws, stride, pad).numpy(), expected)
    desc = dnn.GpuDnnPoolDesc(ws, stride, pad=pad)
    ws[:] = 1  # the descriptor has a copy
    np.testing.assert_array_equal(dnn.GpuDnnPool()(x, desc).numpy(), expected)
    axes = dnn.GpuDnnReduction("add", np.array([2, 3]))(x)
    np.testing.assert_array_equal(axes.numpy(), dnn.GpuDnnReduction("add", (2, 3))(x).numpy())


@pytest.mark.parametrize("numbers", [np.array([1.0, 1.0]), np.array([True, True])])
def test_sizes_are_rejected_when_an_array_does_not_contain_integers(fake: FakeCudnn, numbers: Any) -> None:
    x, w = (ct.asarray(array) for array in images())
    for call in (lambda: dnn.dnn_conv(x, w, subsample=numbers), lambda: dnn.dnn_pool(x, numbers)):
        with pytest.raises(TypeError, match="is not a valid parameter"):
            call()


def test_pool_gradient_accepts_inp_grad(fake: FakeCudnn) -> None:
    x = ct.asarray(images()[0])
    y = dnn.dnn_pool(x, (2, 2))
    dy, gradient = ct.full(y.shape, 3.0), dnn.GpuDnnPoolGrad()
    expected = gradient(x, y, dy, (2, 2)).numpy()
    np.testing.assert_array_equal(gradient(inp=x, out=y, inp_grad=dy, ws=(2, 2)).numpy(), expected)
    with pytest.raises(TypeError, match="got both, expected one of the two"):
        gradient(x, y, dy, (2, 2), inp_grad=dy)
    with pytest.raises(TypeError, match="got neither, expected one of the two"):
        gradient(x, y, ws=(2, 2))
    with pytest.raises(TypeError, match="ws is missing"):
        gradient(x, y, dy)
