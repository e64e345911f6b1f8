"""Recurrent networks."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..array import DeviceArray
from ..context import BoundedDict
from ..ops.rnn.reserve import RNNReserve
from ..ops.rnn.rnn import RNN
from ..ops.rnn.weights import as_index
from ..shapes.parse import as_choice, as_int
from ..shapes.rnn import RNN_DIRECTIONS, RNN_MODES
from ..shapes.specs import TensorSpec, check_shape
from .arguments import checked_flag
from .arrays import on_device
from .availability import check_context, ops

__all__ = ["GpuDnnRNNGradInputs", "GpuDnnRNNGradWeights", "GpuDnnRNNOp", "RNNBlock"]

NETWORKS = 64  # networks that a block keeps, one for each size of the input


class RNNGradients(NamedTuple):
    """Gradients of :class:`RNNBlock`; ``dcx`` is None unless the mode is lstm."""

    dw: Any
    dx: Any
    dhx: Any
    dcx: Any


class RNNBlock:
    """Recurrent network; its weights are a separate array. See :class:`cudnn_ct.RNN`."""

    def __init__(
        self,
        dtype: Any,
        hidden_size: int,
        num_layers: int,
        rnn_mode: str,
        input_mode: str = "linear",
        direction_mode: str = "unidirectional",
        context_name: Any = None,
    ) -> None:
        check_context(context_name)
        self.dtype, self.hidden_size, self.num_layers = dtype, hidden_size, num_layers
        self.rnn_mode, self.direction_mode = _rnn_mode(rnn_mode), _direction_mode(direction_mode)
        self.input_mode = input_mode
        self.context_name = context_name
        self._networks = BoundedDict(NETWORKS)

    @property
    def desc(self) -> RNNBlock:
        """The ``desc`` argument of the operations: the block itself."""
        return self

    def get_param_size(self, input_size: Any) -> int:
        """Return the number of elements of all weights."""
        return self.network(_of_input(input_size)).weight_size

    def split_params(self, w: Any, layer: int, input_size: Any) -> list[DeviceArray | None]:
        """Return writable views of the weights of a layer. See :meth:`cudnn_ct.RNN.split_params`."""
        network = self.network(_of_input(input_size))
        place = divmod(as_index(network.spec.pseudo_layers, layer, "layer"), network.spec.directions)
        parts: list[DeviceArray | None] = []
        for view in network.split_params(w, *place).values():
            if view.ndim == 1 and len(parts) % 2 == 0:  # a bias without a matrix before it
                parts.append(None)
            parts.append(_transposed(view) if view.ndim == 2 else view)
        return parts

    def apply(self, w: Any, x: Any, hx: Any, cx: Any = None) -> list[Any]:
        """Return ``[y, hy]``, or ``[y, hy, cy]`` for an lstm. See :meth:`cudnn_ct.RNN.forward`."""
        return _forward(self, w, x, hx, cx, training=False)[1:]

    def gradients(
        self, w: Any, x: Any, hx: Any, cx: Any = None, dy: Any = None, dhy: Any = None, dcy: Any = None
    ) -> RNNGradients:
        """Return the gradients of :meth:`apply`, after a forward pass for training."""
        network = _network(self, x)
        reserve = _forward(self, w, x, hx, cx, training=True)[0]
        dx, dhx, dcx = network.backward_data(dy, reserve, dhy, dcy)
        return RNNGradients(network.backward_weights(reserve), dx, dhx, dcx)

    def network(self, input_size: int) -> RNN:
        """Return the :class:`cudnn_ct.RNN` for an input size."""
        input_size = as_int(input_size, "input_size")
        found: RNN | None = self._networks.get(input_size)
        if found is None:
            found = self._networks[input_size] = ops().RNN(
                self.rnn_mode,
                input_size,
                self.hidden_size,
                self.num_layers,
                direction=self.direction_mode,
                input_mode=self.input_mode,
                dtype=self.dtype,
                algo="standard",
                seed=4242,
            )
        return found


class GpuDnnRNNOp:
    """Forward pass for training. See :meth:`cudnn_ct.RNN.forward`."""

    def __init__(self, rnn_mode: str, direction_mode: str) -> None:
        self.rnn_mode, self.direction_mode = _rnn_mode(rnn_mode), _direction_mode(direction_mode)

    def __call__(self, desc: RNNBlock, w: Any, x: Any, hx: Any, cx: Any = None) -> list[Any]:
        """Return a list of the reserve and the results of :meth:`RNNBlock.apply`."""
        _check_modes(desc, rnn_mode=self.rnn_mode, direction_mode=self.direction_mode)
        return _forward(desc, w, x, hx, cx, training=True)


class GpuDnnRNNGradInputs:
    """Gradients with respect to input, states and cells. See :meth:`cudnn_ct.RNN.backward_data`."""

    def __init__(self, rnn_mode: str, grad_h: bool, grad_c: bool) -> None:
        self.rnn_mode = _rnn_mode(rnn_mode)
        self.grad_h, self.grad_c = checked_flag(grad_h, "grad_h"), checked_flag(grad_c, "grad_c")

    def __call__(
        self,
        desc: RNNBlock,
        x: Any,
        y: Any,  # noqa: ARG002 - the reserve holds it
        dy: Any,
        dhy: Any,
        dcy: Any,
        w: Any,  # noqa: ARG002
        hx: Any,  # noqa: ARG002
        cx: Any,  # noqa: ARG002
        reserve: RNNReserve,
    ) -> list[Any]:
        """Return a list of the reserve and the gradients; each reserve can be used once."""
        _check_modes(desc, rnn_mode=self.rnn_mode)
        network = _network(desc, x)
        dhy, dcy = dhy if self.grad_h else None, dcy if self.grad_c else None
        dx, dhx, dcx = network.backward_data(dy, reserve, dhy, dcy)
        return [reserve, dx, dhx, *([] if dcx is None else [dcx])]


class GpuDnnRNNGradWeights:
    """Gradient with respect to the weights. See :meth:`cudnn_ct.RNN.backward_weights`."""

    def __call__(
        self,
        desc: RNNBlock,
        x: Any,
        hx: Any,  # noqa: ARG002 - the reserve holds it
        y: Any,  # noqa: ARG002
        reserve: RNNReserve,
        w: Any,  # noqa: ARG002
    ) -> Any:
        """Return the gradient with respect to ``w``, after :class:`GpuDnnRNNGradInputs`."""
        _check_modes(desc)
        return _network(desc, x).backward_weights(reserve)


def _forward(block: RNNBlock, w: Any, x: Any, hx: Any, cx: Any, training: bool) -> list[Any]:
    if block.rnn_mode == "lstm" and cx is None:
        raise ValueError(
            "cx is missing: got None, expected the cells before the first time step; an lstm needs it"
        )
    y, hy, cy, reserve = _network(block, x).forward(x, w, hx, cx, training=training)
    return [reserve, y, hy, *([] if cy is None else [cy])]


def _network(block: RNNBlock, x: Any) -> RNN:
    """Return the network for the size of ``x``."""
    shape = on_device(x, "x").shape
    if len(shape) != 3:
        raise ValueError(f"x does not have 3 axes: got shape {shape}, expected (T, B, input)")
    return block.network(shape[2])


def _of_input(input_size: Any) -> int:
    sizes = check_shape(input_size, "input_size")
    if len(sizes) != 2:
        raise ValueError(f"input_size does not have 2 sizes: got {sizes}, expected (batch, input)")
    return sizes[1]


def _rnn_mode(mode: Any) -> str:
    return as_choice(mode, RNN_MODES, "rnn_mode")


def _direction_mode(mode: Any) -> str:
    return as_choice(mode, RNN_DIRECTIONS, "direction_mode")


def _check_modes(desc: Any, **modes: str) -> None:
    if not isinstance(desc, RNNBlock):
        raise TypeError(f"desc is not an RNNBlock: got {type(desc).__name__}, expected RNNBlock.desc")
    for name, mode in modes.items():
        if getattr(desc, name) != mode:
            raise ValueError(f"{name} does not match desc: got {mode!r}, expected {getattr(desc, name)!r}")


def _transposed(view: DeviceArray) -> DeviceArray:
    shape, strides, dtype = view.spec
    return view.view_as(TensorSpec(shape[::-1], strides[::-1], dtype))
