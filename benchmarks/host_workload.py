"""Workload of the host benchmark: calls on operands so small that the GPU waits for the host.

A row is an operation with its parameters, in a dtype and a layout. `SIDES` has its calls by both libraries.
This module needs no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import layers_workload
import rnn_workload
from harness.operands import Array
from layers_workload import KINDS, Layer, Row

import cudnn_ct as ct

Call = Callable[..., Any]  # takes the operands of `Sides.arrays`, in their order
Torch = Any  # the module, which is imported on a GPU only

BATCHES = (1, 64)  # images per call of the captured network


class Sides(NamedTuple):
    """An operation on both sides. ``theirs`` takes PyTorch and returns its call.

    ``ours`` writes its result to the last operand by ``out=``, and ``new`` allocates it.
    """

    arrays: dict[str, Array]
    theirs: Callable[[Torch], Call]
    ours: Call
    new: Call | None = None


def conv_rows() -> list[Row]:
    """Return the convolutions and their gradients."""
    return _rows(
        ("conv", "conv_backward_data", "conv_backward_filter"),
        _layer(1, 8, 8, 8, w=(8, 8, 3, 3), padding=1, stride=1),
        _layer(2, 16, 8, 8, w=(32, 16, 1, 1), padding=0, stride=1),
        _layer(1, 8, 14, 14, w=(16, 8, 3, 3), padding=1, stride=2),
    )


def plan_rows() -> list[Row]:
    """Return the convolutions that a plan is prepared for."""
    return [row for row in conv_rows() if row.operation == "conv"]


def layer_rows() -> list[Row]:
    """Return the other operations with a target."""
    x = (4, 16, 8, 8)
    return [
        *_rows(("pool",), _layer(*x, window=2, stride=2, padding=0)),
        *_rows(("pool",), _layer(4, 16, 14, 14, window=3, stride=2, padding=1)),
        *_rows(("softmax",), _layer(32, 128), _layer(*x)),
        *_rows(("activation",), *(_layer(*x, mode=mode) for mode in ("relu", "sigmoid", "tanh"))),
        *_rows(
            ("batch_norm_inference", "batch_norm_training", "instance_norm"), _layer(*x), _layer(16, 32, 4, 4)
        ),
        *_rows(("lrn",), _layer(*x), _layer(1, 32, 4, 4)),
        *_rows(("reduce",), _layer(*x, op="add", axis=(2, 3)), _layer(*x, op="average", axis=(0, 2, 3))),
        *_rows(("add",), _layer(*x, b=x), _layer(*x, b=(1, 16, 1, 1))),
    ]


def other_rows() -> list[Row]:
    """Return a small row of each operation of the layer benchmark that `layer_rows` does not have."""
    known = {row.operation for row in layer_rows()}
    found = layers_workload.operations()
    return [layers_workload.small(row) for name, row in found.items() if name not in known]


def rnn_rows() -> list[rnn_workload.Row]:
    """Return recurrent networks on sequences of at most 50 time steps."""
    sizes = ((10, 1, 128), (20, 8, 256), (50, 4, 128))
    return [
        rnn_workload.Row(mode, hidden, 1, 1, batch, steps, rnn_workload.KINDS[kind], "forward")
        for mode, (steps, batch, hidden), kind in product(("lstm", "gru"), sizes, ("fp16", "tf32"))
    ]


def _rows(operations: tuple[str, ...], *layers: Layer) -> list[Row]:
    kinds = [KINDS[name] for name in ("fp16-nhwc", "fp32-nchw")]
    return [Row("host", *facts) for facts in product(operations, layers, kinds)]


def _layer(*x: int, **parameters: Any) -> Layer:
    return Layer("host", x, tuple(parameters.items()))


# --- convolution -------------------------------------------------------------------------------------------


def conv(row: Row) -> Sides:
    padding, stride = _geometry(row)

    def theirs(torch: Torch) -> Call:
        functional = torch.nn.functional
        return lambda x, w, _: functional.conv2d(x, w, padding=padding, stride=stride)

    return Sides(
        _conv_arrays(row, "y"),
        theirs,
        lambda x, w, y: ct.conv(x, w, padding=padding, stride=stride, out=y),
        lambda x, w, _: ct.conv(x, w, padding=padding, stride=stride),
    )


def conv_backward_data(row: Row) -> Sides:
    shape, (padding, stride) = row.layer.x, _geometry(row)
    backward = ct.conv_backward_data
    return Sides(
        _conv_arrays(row, "x"),
        _torch_gradient(row, [True, False, False]),
        lambda x, w, y: backward(y, w, shape, padding=padding, stride=stride, out=x),
        lambda _, w, y: backward(y, w, shape, padding=padding, stride=stride),
    )


def conv_backward_filter(row: Row) -> Sides:
    shape, (padding, stride) = row.parameters["w"], _geometry(row)
    backward = ct.conv_backward_filter
    return Sides(
        _conv_arrays(row, "w"),
        _torch_gradient(row, [False, True, False]),
        lambda x, w, y: backward(y, x, shape, padding=padding, stride=stride, out=w),
        lambda x, _, y: backward(y, x, shape, padding=padding, stride=stride),
    )


def _conv_arrays(row: Row, result: str) -> dict[str, Array]:
    """Return x, w and y in any direction, because PyTorch's gradient takes all of them."""
    padding, stride = _geometry(row)
    x, w = row.layer.x, row.parameters["w"]
    shapes = {"x": x, "w": w, "y": ct.conv_output_shape(x, w, padding=padding, stride=stride)}
    return {role: row.array(shape, empty=role == result) for role, shape in shapes.items()}


def _torch_gradient(row: Row, mask: list[bool]) -> Callable[[Torch], Call]:
    padding, stride = ([n, n] for n in _geometry(row))

    def theirs(torch: Torch) -> Call:
        backward = torch.ops.aten.convolution_backward.default
        return lambda x, w, y: backward(
            y, x, w, None, stride, padding, [1, 1], False, [0, 0], 1, mask
        )  # fmt: skip

    return theirs


def _geometry(row: Row) -> tuple[int, int]:
    return row.parameters["padding"], row.parameters["stride"]


# --- layers ------------------------------------------------------------------------------------------------


def pool(row: Row) -> Sides:
    window, (padding, stride) = row.parameters["window"], _geometry(row)
    shape = ct.pool_output_shape(row.layer.x, window=window, padding=padding, stride=stride)

    def theirs(torch: Torch) -> Call:
        functional = torch.nn.functional
        return lambda x, _: functional.max_pool2d(x, window, stride, padding)

    return Sides(
        {"x": row.array(), "out": row.array(shape, empty=True)},
        theirs,
        lambda x, out: ct.pool(x, window=window, stride=stride, padding=padding, out=out),
    )


def softmax(row: Row) -> Sides:
    def theirs(torch: Torch) -> Call:
        functional = torch.nn.functional
        return lambda x, _: functional.softmax(x, dim=1)

    return Sides(_same(row), theirs, lambda x, out: ct.softmax(x, axis=1, out=out))


def activation(row: Row) -> Sides:
    mode = row.parameters["mode"]

    def theirs(torch: Torch) -> Call:
        functional = torch.nn.functional
        return {
            "relu": lambda x, _: functional.relu(x),
            "sigmoid": lambda x, _: torch.sigmoid(x),
            "tanh": lambda x, _: torch.tanh(x),
        }[mode]

    return Sides(_same(row), theirs, lambda x, out: ct.activation(x, mode=mode, out=out))


def batch_norm_inference(row: Row) -> Sides:
    def theirs(torch: Torch) -> Call:
        norm = torch.nn.functional
        return lambda x, scale, bias, mean, var, _: norm.batch_norm(x, mean, var, scale, bias)

    return Sides(
        _normalised(row, "scale", "bias", "mean", "var"),
        theirs,
        lambda x, scale, bias, mean, var, out: ct.batch_norm_inference(x, scale, bias, mean, var, out=out),
    )


def batch_norm_training(row: Row) -> Sides:
    def theirs(torch: Torch) -> Call:
        norm = torch.nn.functional
        return lambda x, scale, bias, mean, var, _: norm.batch_norm(x, mean, var, scale, bias, training=True)

    return Sides(
        _normalised(row, "scale", "bias", "mean", "var"),
        theirs,
        lambda x, scale, bias, mean, var, out: ct.batch_norm_training(
            x, scale, bias, running_mean=mean, running_var=var, out=out
        ),
    )


def instance_norm(row: Row) -> Sides:
    def theirs(torch: Torch) -> Call:
        norm = torch.nn.functional
        return lambda x, scale, bias, _: norm.instance_norm(x, weight=scale, bias=bias)

    return Sides(
        _normalised(row, "scale", "bias"),
        theirs,
        lambda x, scale, bias, out: ct.instance_norm(x, scale, bias, out=out),
    )


def lrn(row: Row) -> Sides:
    def theirs(torch: Torch) -> Call:
        functional = torch.nn.functional
        return lambda x, _: functional.local_response_norm(x, 5, k=2.0)

    return Sides(_same(row), theirs, lambda x, out: ct.lrn(x, out=out))


def reduce(row: Row) -> Sides:
    op, axis = row.parameters["op"], row.parameters["axis"]
    shape = [n for i, n in enumerate(row.layer.x) if i not in axis]

    def theirs(_: Torch) -> Call:
        return (lambda x, _: x.sum(axis)) if op == "add" else (lambda x, _: x.mean(axis))

    arrays = {"x": row.array(), "out": row.array(shape, empty=True)}
    return Sides(arrays, theirs, lambda x, out: ct.reduce(x, op=op, axis=axis, out=out))


def add(row: Row) -> Sides:
    def theirs(torch: Torch) -> Call:
        return lambda a, b, out: torch.add(a, b, out=out)

    arrays = {"a": row.array(), "b": row.array(row.parameters["b"]), "out": row.array(empty=True)}
    return Sides(arrays, theirs, lambda a, b, out: ct.add(a, b, out=out))


def _same(row: Row) -> dict[str, Array]:
    return {"x": row.array(), "out": row.array(empty=True)}


def _normalised(row: Row, *roles: str) -> dict[str, Array]:
    parameters = dict.fromkeys(roles, Array((row.layer.x[1],), "float32"))
    return {"x": row.array(), **parameters, "out": row.array(empty=True)}


SIDES: dict[str, Callable[[Row], Sides]] = {
    function.__name__: function
    for function in (
        *(conv, conv_backward_data, conv_backward_filter, pool, softmax, activation),
        *(batch_norm_inference, batch_norm_training, instance_norm, lrn, reduce, add),
    )
}


# --- the network of examples/02_train_digits.py ------------------------------------------------------------


class Digits:
    """The forward pass of example 2, with the weights of `torch_digits`."""

    def __init__(self, weights: dict[str, Any]) -> None:
        self.weights = weights

    def predict(self, x: Any) -> Any:
        """Return a score for each image and digit, shape (N, 10, 1, 1)."""
        w = self.weights
        for conv, norm in (("0", "1"), ("4", "5")):
            c = ct.conv(x, w[f"{conv}.weight"], padding="half")
            parameters = (w[f"{norm}.{name}"] for name in ("weight", "bias", "running_mean", "running_var"))
            x = ct.pool(ct.activation(ct.batch_norm_inference(c, *parameters), mode="relu"), window=2)
        return ct.add(ct.conv(x, w["8.weight"]), w["8.bias"])


def torch_digits(torch: Torch) -> Any:
    """Return the network of example 2 as modules."""
    nn = torch.nn

    def block(inputs: int, outputs: int) -> Iterator[Any]:
        yield nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        yield from (nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))

    return nn.Sequential(*block(1, 32), *block(32, 64), nn.Conv2d(64, 10, 2)).eval()


def our_digits(network: Any, convert: Callable[[Any], Any]) -> Digits:
    """Return our network with the weights of PyTorch's. ``convert`` makes arrays of tensors."""
    weights = {name: w for name, w in network.state_dict().items() if w.ndim}  # the counters have no axes
    weights["8.bias"] = weights["8.bias"].reshape(1, 10, 1, 1)
    return Digits({name: convert(w) for name, w in weights.items()})
