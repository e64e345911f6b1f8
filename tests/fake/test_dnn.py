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
from tests.dnn_cases import ROWS, check_every_name_is_in_a_row, flag, images, integers

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
def test_dnn_case(fake: FakeCudnn, host: Host, name: str, foreign: bool) -> None:
    ROWS[name](partial(ForeignArray, host) if foreign else ct.asarray)


def test_every_name_of_dnn_has_a_case() -> None:
    check_every_name_is_in_a_row()


class Operands:
    """Arrays and operations that the rejected calls use."""

    def __init__(self) -> None:
        self.x, self.w = map(ct.asarray, images())
        self.volume, self.window = map(ct.asarray, images(size=(4, 5, 4)))
        self.ints = ct.zeros(self.x.shape, "int32"), ct.zeros(self.w.shape, "int32")
        self.halves = ct.zeros(self.x.shape, "float16"), ct.zeros(self.w.shape, "float16")
        self.dy = ct.zeros((2, 6, 4, 6))
        self.top = ct.zeros((2, 6, 2, 4, 3))  # of the convolution of volumes
        self.thin = ct.zeros((6, 3, 3, 2))  # filters for other images
        self.desc = dnn.GpuDnnConvDesc("valid", conv_mode="cross")
        self.groups = dnn.GpuDnnConvDesc("valid", num_groups=2)
        self.bn = self.x, ct.zeros((1, 4, 1, 1)), ct.zeros((1, 4, 1, 1))
        self.bad, self.theta = ct.zeros((2, 2, 2)), ct.zeros((2, 2, 3))
        self.block = dnn.RNNBlock("float32", 8, 2, "gru")
        self.weights = ct.zeros(self.block.get_param_size((3, 4)))
        self.lstm = dnn.RNNBlock("float32", 8, 2, "LSTM", direction_mode="Unidirectional")
        self.cells = ct.zeros(self.lstm.get_param_size((3, 4))), ct.zeros((5, 3, 4)), ct.zeros((2, 3, 8))


MANY = np.zeros((2, 3))  # an array without a truth value
NO_AXES = np.float32(0)
FLOAT16 = "TypeError: Float16 precision is disabled for cuDNN backward"
VOLUMES = "ValueError: convolution algo {} can't be used for 3d convolutions"
THETA = r"RuntimeError: incorrect dimensions for theta, expected \(2, 2, 3\), got \(2, 2, 2\)"

REJECTED: list[tuple[Callable[[Operands], Any], str]] = [
    (lambda o: dnn.GpuDnnConvDesc("valid", conv_mode="convolve"), "ValueError: .*conv, cross"),
    (lambda o: dnn.dnn_conv([1], [1], direction_hint="back"), "ValueError: direction_hint"),
    (lambda o: dnn.dnn_conv([1], [1]), "TypeError: img must be an array on the device, not list"),
    (lambda o: dnn.dnn_conv(*o.ints), "TypeError: cuDNN convolution only works on real numbers, not int32"),
    (lambda o: dnn.dnn_conv(o.x, o.thin), "ValueError: x has 4 channels; w expects 3"),
    (lambda o: dnn.dnn_conv(o.x, o.thin, "full"), "ValueError: x has 4 channels; w expects 3"),
    (
        lambda o: dnn.dnn_conv(o.x, o.thin, direction_hint="bprop weights"),
        "ValueError: x has 4 channels; w e",
    ),
    (lambda o: dnn.dnn_conv(o.x, o.w, algo="quick"), "ValueError: algo is unknown: got 'quick'"),
    (
        lambda o: dnn.dnn_conv(o.x, o.w, algo="deterministic"),
        "ValueError: 'deterministic' is not for forward",
    ),
    (lambda o: dnn.dnn_conv(o.x, o.w, "same"), "ValueError: padding must be one of valid"),
    (
        lambda o: dnn.dnn_conv(o.x, o.w, precision="nothing"),
        "ValueError: precision must be one of as_input_f32",
    ),
    (lambda o: dnn.dnn_conv(o.x, o.x, border_mode=MANY), "TypeError: .*is not a valid parameter; exp"),
    (lambda o: dnn.dnn_conv(*o.halves, "full", precision="float16"), FLOAT16),
    (lambda o: dnn.dnn_conv(*o.halves, "full", precision="as_input"), FLOAT16),
    (lambda o: dnn.dnn_gradweight(o.x, o.dy, o.w.shape, precision="float16"), FLOAT16),
    (lambda o: dnn.dnn_gradinput(o.w, o.dy, o.x.shape, precision="float16"), FLOAT16),
    (lambda o: dnn.dnn_gradweight(*o.halves, o.w.shape, precision="as_input"), FLOAT16),
    (lambda o: dnn.dnn_gradinput(*o.halves, o.x.shape, precision="as_input"), FLOAT16),
    (
        lambda o: dnn.dnn_gradinput(o.w, o.dy, o.x.shape, algo="small"),
        "ValueError: 'small' is not for backward_d",
    ),
    *(
        (lambda o, algo=algo: dnn.dnn_conv3d(o.volume, o.window, algo=algo), VOLUMES.format(algo))
        for algo in ("large", "fft", "winograd", "winograd_non_fused", "deterministic")
    ),
    (
        lambda o: dnn.dnn_gradweight3d(o.volume, o.top, o.window.shape, algo="deterministic"),
        VOLUMES.format("deterministic"),
    ),
    (
        lambda o: dnn.dnn_gradinput3d(o.window, o.top, o.volume.shape, algo="winograd"),
        VOLUMES.format("winograd"),
    ),
    (lambda o: dnn.GpuDnnConv()(None, None, None, None), "TypeError: desc is not a GpuDnnConvDesc"),
    (lambda o: dnn.GpuDnnConv()(o.x, o.w, (2, 6, 4, 5), o.desc), "ValueError: impossible .* expected .*4, 6"),
    (lambda o: dnn.GpuDnnConv()(o.x, o.w, None, o.desc, 1, 1), "ValueError: .*beta"),
    (
        lambda o: dnn.GpuDnnConv(num_groups=4)(o.x, o.w, None, o.groups),
        "ValueError: .*got 4, expected 1 or 2",
    ),
    (lambda o: dnn.GpuDnnConv.get_out_shape(o.x.shape, (1,), 0, 1), "ValueError: w has 1 dimensions"),
    (lambda o: dnn.GpuDnnConv.get_out_shape((), (), 0, 1), r"ValueError: x has shape \(\)"),
    (lambda o: dnn.GpuDnnConv.get_out_shape(3, (1,), 0, 1), "TypeError: ishape must be a sequence"),
    (lambda o: dnn.GpuDnnConv.get_out_shape(o.x.shape, o.w, 0, 1), "TypeError: kshape must be a sequ"),
    (lambda o: dnn.dnn_pool([1], 2), "TypeError: .*must be an array on the device"),
    (lambda o: dnn.GpuDnnBatchNorm("per_activation"), "ValueError: .*per-activation, spatial"),
    (
        lambda o: dnn.dnn_batch_normalization_train(*o.bn, "spatial", running_mean=o.bn[1]),
        "ValueError: .*both are updated, or neither",
    ),
    (
        lambda o: dnn.dnn_batch_normalization_train(*o.bn, "spatial", epsilon=-1e-9),
        "ValueError: epsilon must be at least 0",
    ),
    (
        lambda o: dnn.GpuDnnBatchNorm("spatial", True)(*o.bn),
        "ValueError: running_mean and running_var are miss",
    ),
    (
        lambda o: dnn.GpuDnnBatchNorm("spatial")(*o.bn, 1, 1, *o.bn[1:]),
        "ValueError: .*need running_averages=T",
    ),
    (lambda o: dnn.GpuDnnSoftmax("fast", "channel", tensor_format="b01c"), "ValueError: .*bc01"),
    (lambda o: dnn.GpuDnnReduction("sum"), "ValueError: red_op must be one of add, mul"),
    (lambda o: dnn.GpuDnnReduction("add", 0, "float64")(o.x), "ValueError: acc_dtype .*float32: got float64"),
    (
        lambda o: dnn.GpuDnnReduction("add", 0, "float64")(o.halves[0]),
        "ValueError: acc_dtype .*float16: got f",
    ),
    (lambda o: dnn.dnn_spatialtf(o.x, o.bad), THETA),
    (lambda o: dnn.GpuDnnTransformerGrid()(o.bad, (2, 3, 4, 4)), THETA),
    (
        lambda o: dnn.dnn_spatialtf(ct.empty((2, 3, 0, 6)), o.theta),
        "RuntimeError: img has an axis of length 0",
    ),
    (
        lambda o: dnn.GpuDnnTransformerGrid()(o.theta, (2, 0, 4, 4)),
        "RuntimeError: out_dims has an axis of len",
    ),
    (lambda o: dnn.GpuDnnTransformerGrid()(o.x, 4), "TypeError: out_dims must be a sequence of int"),
    (lambda o: dnn.RNNBlock("float32", 8, 2, "grew"), "ValueError: rnn_mode must be one of rnn"),
    (lambda o: dnn.RNNBlock("float32", 4, 2, "gru", context_name="here"), "ValueError: context_name"),
    (
        lambda o: o.block.apply(o.weights, ct.asarray(NO_AXES), None),
        r"ValueError: .*expected \(T, B, input\)",
    ),
    (lambda o: o.block.gradients(o.weights, ct.asarray(NO_AXES), None), "ValueError: x does not have 3 axes"),
    (lambda o: o.block.get_param_size(4), "TypeError: input_size must be a sequence of integers: got 4"),
    (lambda o: o.block.get_param_size([3]), "ValueError: input_size does not have 2 sizes"),
    (lambda o: o.block.get_param_size((3, MANY)), "TypeError: input_size must be a sequence of integers"),
    (lambda o: o.block.network(MANY), "TypeError: input_size must be an int"),
    (
        lambda o: dnn.RNNBlock("float32", 4, 2, "gru", "skip").network(5),
        "ValueError: input_size is 5, hidden_",
    ),
    (lambda o: o.block.split_params(o.weights, 0, 4), "TypeError: input_size must be a sequence"),
    (lambda o: o.block.split_params(o.weights, "a", (3, 4)), "TypeError: layer must be an int: got 'a'"),
    (lambda o: o.block.split_params(o.weights, 2, (3, 4)), "ValueError: layer must be from 0 to 1, got 2"),
    (lambda o: o.block.split_params(o.weights, -1, (3, 4)), "ValueError: layer must be from 0 to 1, got -1"),
    (lambda o: o.lstm.apply(*o.cells), "ValueError: cx is missing"),
    (lambda o: dnn.GpuDnnRNNOp("gru", MANY), "ValueError: direction_mode must be one of"),
    (
        lambda o: dnn.GpuDnnRNNOp("gru", "unidirectional")(o.lstm, *o.cells),
        "ValueError: .*got 'gru', expected 'ls",
    ),
    (
        lambda o: dnn.GpuDnnRNNOp("lstm", "bidirectional")(o.lstm, *o.cells),
        "ValueError: direction_mode does not",
    ),
    (lambda o: dnn.GpuDnnRNNGradInputs("grew", True, True), "ValueError: rnn_mode must be one of"),
    (lambda o: dnn.GpuDnnRNNGradWeights()(0, 0, 0, 0, 0, 0), "TypeError: desc is not an RNNBlock"),
]


@AS_A_GRADIENT
@pytest.mark.parametrize(("call", "message"), REJECTED)
def test_dnn_rejects_bad_arguments(fake: FakeCudnn, call: Callable[[Operands], Any], message: str) -> None:
    kind, _, text = message.partition(": ")
    with pytest.raises(getattr(builtins, kind), match=text):
        call(Operands())


def test_flags_are_used_for_algorithm_and_precision(fake: FakeCudnn) -> None:
    o = Operands()
    with flag("dnn__conv__algo_fwd", "fft"), pytest.raises(ValueError, match="can't be used for 3d"):
        dnn.dnn_conv3d(o.volume, o.window)
    rejected = pytest.raises(ValueError, match="precision='float16' is for")
    with flag("dnn__conv__precision", "float16"), rejected:
        dnn.dnn_conv(o.x, o.w)


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
    with flag("dnn__conv__algo_fwd", "none"):
        assert ran(fake, forward) == ["FORWARD IMPLICIT_GEMM"]
    with flag("dnn__conv__algo_bwd_filter", "deterministic"):
        assert ran(fake, filters) == ["BACKWARD_FILTER ALGO_1"]
    with flag("dnn__conv__algo_bwd_data", "deterministic"):
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


@AS_A_GRADIENT
def test_dnn_conv_keeps_its_operands_when_it_flips_the_filters(fake: FakeCudnn) -> None:
    o = Operands()
    dnn.dnn_conv(o.x, o.w, direction_hint="bprop weights")
    for array, before in zip((o.x, o.w), images(), strict=True):
        np.testing.assert_array_equal(array.numpy(), before)


@AS_A_GRADIENT
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
