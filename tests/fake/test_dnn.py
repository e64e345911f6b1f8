"""Cases of `cudnn_ct.dnn` on the fakes, and behaviour that only the fakes show."""

from __future__ import annotations

import builtins
import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import cudnn_ct as ct
from cudnn_ct import dnn, reference
from tests.dnn_cases import ROWS, flag, images, integers

from . import cudnn
from .cudnn import FakeCudnn
from .host import ForeignArray, Host

DIRECTIONS = {
    "cudnnConvolutionForward": "FORWARD",
    "cudnnConvolutionBackwardData": "BACKWARD_DATA",
    "cudnnConvolutionBackwardFilter": "BACKWARD_FILTER",
}


AS_A_GRADIENT = pytest.mark.filterwarnings("ignore:.*computed as a gradient:cudnn_ct.errors.CudnnWarning")


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


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_dnn_function_equals_reference(fake: FakeCudnn, host: Host, name: str, foreign: bool) -> None:
    ROWS[name](partial(ForeignArray, host) if foreign else ct.asarray)


class Operands:
    """Arrays and operations that the rejected calls use."""

    def __init__(self) -> None:
        self.x, self.w = map(ct.asarray, images())
        self.ints = ct.zeros(self.x.shape, "int8"), ct.zeros(self.w.shape, "int8")
        self.halves = ct.zeros(self.x.shape, "float16"), ct.zeros(self.w.shape, "float16")
        self.dy = ct.zeros((2, 6, 4, 6))
        self.desc = dnn.GpuDnnConvDesc("valid", conv_mode="cross")
        self.groups = dnn.GpuDnnConvDesc("valid", num_groups=2)
        self.bn = self.x, ct.zeros((1, 4, 1, 1)), ct.zeros((1, 4, 1, 1))
        self.bad, self.theta = ct.zeros((2, 2, 2)), ct.zeros((2, 2, 3))
        self.block = dnn.RNNBlock("float32", 8, 2, "gru")
        self.weights = ct.zeros(self.block.get_param_size((3, 4)))
        self.lstm = dnn.RNNBlock("float32", 8, 2, "LSTM", direction_mode="Unidirectional")
        self.cells = ct.zeros(self.lstm.get_param_size((3, 4))), ct.zeros((5, 3, 4)), ct.zeros((2, 3, 8))


MANY = np.zeros((2, 3))  # an array without a truth value

# x is float32[2, 4, 6, 7], w float32[6, 4, 3, 2]. The checks that operations make are in test_rejected.
REJECTED = r"""
dnn.GpuDnnConvDesc("valid", conv_mode="convolve") | ValueError: .*conv, cross
dnn.dnn_conv([1], [1], direction_hint="back") | ValueError: direction_hint
dnn.dnn_conv([1], [1]) | TypeError: img must be an array on the device, not list
dnn.dnn_conv(*o.ints) | TypeError: cuDNN convolution only works on real numbers, not int8
dnn.dnn_conv(o.x, o.x, border_mode=MANY) | TypeError: border_mode must be an int
dnn.dnn_conv(o.x, o.w, workmem="none", algo="none") | ValueError: workmem and algo are the same argument
dnn.dnn_conv3d(o.x, o.w, workmem="none", algo="none") | ValueError: workmem and algo are the same argument
dnn.dnn_conv(o.x, o.w, algo="deterministic") | ValueError: algo='deterministic' is not for forward
dnn.dnn_conv(*o.halves, "full", precision="float16") | TypeError: Float16 precision is disabled for cuDNN b
dnn.dnn_gradweight(o.x, o.dy, o.w.shape, precision="float16") | TypeError: Float16 precision is disabled
dnn.dnn_gradweight(o.x, o.dy, o.w.shape, precision=o.halves) | ValueError: precision must be one of
dnn.dnn_gradinput(*o.halves, o.x.shape, precision="as_input") | TypeError: Float16 precision is disabled
dnn.GpuDnnConv()(None, None, None, None) | TypeError: desc is not a GpuDnnConvDesc
dnn.GpuDnnConv()(o.x, o.w, (2, 6, 4, 5), o.desc) | ValueError: impossible .* expected .*4, 6
dnn.GpuDnnConv()(o.x, o.w, None, o.desc, 1, 1) | ValueError: .*beta
dnn.GpuDnnConv(num_groups=4)(o.x, o.w, None, o.groups) | ValueError: .*got 4, expected 1 or 2
dnn.GpuDnnConv.get_out_shape(o.x.shape, (1,), 0, 1) | ValueError: w has 1 dimensions
dnn.GpuDnnConv.get_out_shape(3, (1,), 0, 1) | TypeError: ishape must be a sequence
dnn.GpuDnnConv.get_out_shape(o.x.shape, o.w, 0, 1) | TypeError: kshape must be a sequ
dnn.dnn_pool(o.x, np.ones(2)) | TypeError: is not a valid parameter
dnn.GpuDnnPoolGrad()(o.x, o.x, o.x, 1, inp_grad=o.x) | TypeError: got both, expected one of the two
dnn.GpuDnnPoolGrad()(o.x, o.x, ws=1) | TypeError: got neither, expected one of the two
dnn.GpuDnnPoolGrad()(o.x, o.x, o.x) | TypeError: ws is missing
dnn.GpuDnnBatchNorm("per_activation") | ValueError: .*per-activation, spatial
dnn.dnn_batch_normalization_train(*o.bn, "spatial", running_mean=o.bn[1]) | ValueError: .*both are updated, or
dnn.GpuDnnBatchNorm("spatial", True)(*o.bn) | ValueError: running_mean and running_var are miss
dnn.GpuDnnBatchNorm("spatial")(*o.bn, 1, 1, *o.bn[1:]) | ValueError: .*need running_averages=T
dnn.GpuDnnSoftmax("fast", "channel", tensor_format="b01c") | ValueError: .*bc01
dnn.GpuDnnReduction("sum") | ValueError: red_op must be one of add, mul
dnn.GpuDnnReduction("add", 0, "float64")(o.halves[0]) | ValueError: acc_dtype .*float16: got float64
dnn.dnn_spatialtf(o.x, o.bad) | RuntimeError: incorrect dimensions for theta, expected \(2, 2, 3\), got
dnn.GpuDnnTransformerGrid()(o.bad, (2, 3, 4, 4)) | RuntimeError: incorrect dimensions for theta
dnn.dnn_spatialtf(ct.empty((2, 3, 0, 6)), o.theta) | RuntimeError: img has an axis of length 0
dnn.GpuDnnTransformerGrid()(o.x, 4) | TypeError: out_dims must be a sequence of int
dnn.RNNBlock("float32", 8, 2, "grew") | ValueError: rnn_mode must be one of rnn
dnn.RNNBlock("float32", 4, 2, "gru", context_name="here") | ValueError: context_name
o.block.apply(o.weights, o.x, None) | ValueError: x does not have 3 axes: .*expected \(T, B, input\)
o.block.get_param_size([3]) | ValueError: input_size does not have 2 sizes
o.block.network(MANY) | TypeError: input_size must be an int
o.block.split_params(o.weights, 2, (3, 4)) | ValueError: layer must be from 0 to 1, got 2
o.lstm.apply(*o.cells) | ValueError: cx is missing
dnn.GpuDnnRNNOp("gru", MANY) | ValueError: direction_mode must be one of
dnn.GpuDnnRNNOp("gru", "unidirectional")(o.lstm, *o.cells) | ValueError: .*got 'gru', expected 'ls
dnn.GpuDnnRNNOp("lstm", "bidirectional")(o.lstm, *o.cells) | ValueError: direction_mode does not
dnn.GpuDnnRNNGradInputs("grew", True, True) | ValueError: rnn_mode must be one of
dnn.GpuDnnRNNGradWeights()(0, 0, 0, 0, 0, 0) | TypeError: desc is not an RNNBlock
"""


@AS_A_GRADIENT
@pytest.mark.filterwarnings("ignore:workmem is deprecated:DeprecationWarning")
@pytest.mark.parametrize("line", REJECTED.strip().splitlines())
def test_dnn_rejects_bad_arguments(fake: FakeCudnn, line: str) -> None:
    call, _, message = line.partition(" | ")
    kind, _, text = message.partition(": ")
    with pytest.raises(getattr(builtins, kind), match=text):
        eval(call, globals() | {"o": Operands()})


def test_flags_select_the_algorithm(fake: FakeCudnn) -> None:
    o = Operands()

    def forward() -> Any:
        return dnn.dnn_conv(o.x, o.w)

    def filters() -> Any:
        return dnn.dnn_gradweight(o.x, o.dy, o.w.shape)

    def data() -> Any:
        return dnn.dnn_gradinput(o.w, o.dy, o.x.shape)

    assert ran(fake, forward) == ["FORWARD IMPLICIT_PRECOMP_GEMM"]
    assert ran(fake, filters) == ["BACKWARD_FILTER ALGO_0"]
    assert ran(fake, data) == ["BACKWARD_DATA ALGO_0"]
    assert ran(fake, lambda: dnn.dnn_conv(o.x, o.w, algo="large")) == ["FORWARD GEMM"]
    with flag("dnn.conv.algo_fwd", "none"):
        assert ran(fake, forward) == ["FORWARD IMPLICIT_GEMM"]
    with flag("dnn.conv.algo_bwd_filter", "deterministic"):
        assert ran(fake, filters) == ["BACKWARD_FILTER ALGO_1"]
    with flag("dnn.conv.algo_bwd_data", "deterministic"):
        assert ran(fake, data) == ["BACKWARD_DATA ALGO_1"]
        operation = dnn.GpuDnnConvGradI()  # which keeps the flag
    assert ran(fake, lambda: operation(o.w, o.dy, o.x.shape, o.desc)) == ["BACKWARD_DATA ALGO_1"]


@AS_A_GRADIENT
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
        ({"direction_hint": "bprop weights", "conv_mode": "cross"}, filters),
        ({"direction_hint": "bprop weights"}, forward),
        ({"direction_hint": "bprop weights", "conv_mode": "cross", "dilation": (1, 2)}, forward),
        ({"direction_hint": "bprop weights", "conv_mode": "cross", "border_mode": 0}, forward),
        ({"direction_hint": "bprop weights", "conv_mode": "cross", "algo": "small"}, forward),
        ({"direction_hint": "bprop inputs"}, forward),
        ({"direction_hint": "forward"}, forward),
    )
    for keywords, wanted in rows:
        assert ran(fake, lambda keywords=keywords: dnn.dnn_conv(x, w, **keywords)) == [wanted], keywords
    w = ct.asarray(integers(6, 2, 3, 2))
    assert ran(fake, lambda: dnn.dnn_conv(x, w, "full", num_groups=2)) == [forward]


@AS_A_GRADIENT
def test_dnn_runs_on_the_device_of_the_operands(fake: FakeCudnn) -> None:
    x, w = images()
    with ct.use(device=1):
        placed = ct.asarray(x), ct.asarray(w)
    weights = {"direction_hint": "bprop weights", "conv_mode": "cross"}
    for keywords in (weights, {"border_mode": "full"}, {}):
        y = dnn.dnn_conv(*placed, **keywords)
        assert y.device == 1
    np.testing.assert_array_equal(y.numpy(), reference.conv(x, w, mode="convolution"))
    assert dnn.dropout(placed[0], 0.5).y.device == 1
    desc = dnn.GpuDnnConvDesc("valid")
    assert dnn.GpuDnnConv()(*placed, y, desc, 1, 1).device == 1


@AS_A_GRADIENT
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
