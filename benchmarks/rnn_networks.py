"""Calls of a row by PyTorch and by cudnn_ct, with the same network and weights.

A call returns its results, in the same order on both sides.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from harness.comparison import tensor_of
from harness.operands import Operands
from rnn_workload import Row

import cudnn_ct as ct

POLICIES = {"time": "autotune", "guess": "heuristic"}


class Ours(NamedTuple):
    """Our RNN, with PyTorch's weights."""

    rnn: Any
    weights: Any


def torch_network(row: Row) -> Any:
    """Return PyTorch's network, with its weights in one allocation, as cuDNN requires."""
    import torch

    torch.backends.cudnn.allow_tf32 = True  # PyTorch's default, and equal to our precision
    modes = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
    options: dict[str, Any] = {"num_layers": row.layers, "bidirectional": row.directions == 2}
    if row.mode not in modes:
        options["nonlinearity"] = row.mode.removeprefix("rnn_")
    with torch.inference_mode(False):
        network = modes.get(row.mode, torch.nn.RNN)(row.hidden, row.hidden, **options)
        network = network.to(device="cuda", dtype=getattr(torch, row.kind.dtype))
        network.flatten_parameters()
    return network.train(row.work == "training")


def our_network(row: Row, network: Any, policy: str) -> Ours:
    """Return our network with the weights of PyTorch's."""
    rnn = ct.RNN(
        row.mode,
        row.hidden,
        row.hidden,
        row.layers,
        direction="bidirectional" if row.directions == 2 else "unidirectional",
        dtype=row.kind.dtype,
        precision=row.kind.precision,
        algo=policy,
    )
    return Ours(rnn, rnn.from_torch(network.state_dict()))


# --- PyTorch's calls ---------------------------------------------------------------------------------------


def torch_call(row: Row, network: Any, operands: Operands) -> Callable[[int], Any]:
    """Return a forward pass in inference mode, or a training step with gradients by autograd."""
    return (_torch_training if row.work == "training" else _torch_forward)(row, network, operands)


def _torch_forward(row: Row, network: Any, operands: Operands) -> Callable[[int], Any]:
    inputs = [_input(row, x) for x in operands.theirs["x"]]

    def call(i: int) -> Any:
        y, states = network(inputs[i])
        return (y, *(states if isinstance(states, tuple) else (states,)))

    return call


def _torch_training(row: Row, network: Any, operands: Operands) -> Callable[[int], Any]:
    import torch

    with torch.inference_mode(False):
        leaves = [x.detach().requires_grad_() for x in operands.theirs["x"]]
        inputs, dys = [_input(row, x) for x in leaves], operands.theirs["dy"]
    parameters, backward = list(network.parameters()), torch.autograd.backward

    def call(i: int) -> Any:
        leaves[i].grad = None
        for parameter in parameters:
            parameter.grad = None
        with torch.inference_mode(False), torch.enable_grad():
            y, _ = network(inputs[i])
            y = y.data if row.packed else y
            backward(y, dys[i])
        return (y, leaves[i].grad, *(parameter.grad for parameter in parameters))

    return call


def exact_results(row: Row, network: Any, operands: Operands) -> list[Any]:
    """Return PyTorch's results of the first operands in float64, without cuDNN.

    PyTorch's own in half precision are no reference: with cuDNN 9.19, gradients of small bidirectional
    networks without gates are wrong by 0.05 to 0.09 in PyTorch 2.11.
    """
    import torch

    given = {name: [several[0].detach().double()] for name, several in operands.theirs.items()}
    with torch.inference_mode(False), torch.backends.cudnn.flags(enabled=False):
        exact = copy.deepcopy(network).double()
        return torch_results(torch_call(row, exact, Operands(1, given, {}))(0))


def _input(row: Row, x: Any) -> Any:
    """Return the operand in the form that PyTorch accepts."""
    if not row.packed:
        return x
    import torch

    return torch.nn.utils.rnn.PackedSequence(x, torch.tensor(batch_sizes(row.lengths)))


def batch_sizes(lengths: tuple[int, ...]) -> list[int]:
    """Return the number of sequences at each time step."""
    return [sum(length > step for length in lengths) for step in range(max(lengths))]


# --- our calls ---------------------------------------------------------------------------------------------


def our_call(row: Row, ours: Ours, operands: Operands) -> Callable[..., Any]:
    """Return our call, which writes the output to ``y``, by default to new memory."""
    given: dict[str, Any] = {"lengths": row.lengths, "layout": "packed"} if row.packed else {}
    xs, (rnn, weights) = operands.ours["x"], ours

    def forward(i: int, y: Any = None) -> Any:
        result = rnn.forward(xs[i], weights, out=y, **given)
        return result.y, result.hy, result.cy

    def training(i: int, y: Any = None) -> Any:
        result = rnn.forward(xs[i], weights, training=True, out=y, **given)
        dx, *_ = rnn.backward_data(operands.ours["dy"][i], result.reserve)
        return result.y, dx, rnn.backward_weights(result.reserve)

    return training if row.work == "training" else forward


# --- comparison --------------------------------------------------------------------------------------------


def torch_results(results: Any) -> list[Any]:
    """Return PyTorch's results as tensors."""
    return [getattr(result, "data", result).detach() for result in results]


def our_results(row: Row, ours: Ours, network: Any, call: Callable[..., Any]) -> list[Any]:
    """Return our results of the first operands as tensors, in PyTorch's order.

    Memory that may become a result is filled with NaN first, to detect algorithms that write nothing.
    """
    poison(row, ours)
    y = ct.full(_output_shape(row), math.nan, row.kind.dtype)
    first, second, third = call(0, y=y)
    if row.work == "forward":
        return [_on_gpu(one) for one in (first, second, third) if one is not None]
    gradients = ours.rnn.to_torch(third)
    found = [first, second, *(gradients[name] for name, _ in network.named_parameters())]
    return [_on_gpu(one) for one in found]


def poison(row: Row, ours: Ours) -> None:
    """Fill memory of the sizes of the next allocations with NaN, and free it."""
    shapes = [row.arrays["x"].shape, _output_shape(row), (ours.rnn.weight_size,)]
    held = [ct.full(shape, math.nan, row.kind.dtype) for shape in shapes]
    del held
    ct.synchronize()


def _output_shape(row: Row) -> tuple[int, ...]:
    return (*row.arrays["x"].shape[:-1], row.hidden * row.directions)


def _on_gpu(result: Any) -> Any:
    import numpy as np
    import torch

    if isinstance(result, np.ndarray):  # PyTorch cannot read bfloat16 from NumPy
        return torch.from_numpy(result.astype(np.float32)).to("cuda")
    return tensor_of(result)
