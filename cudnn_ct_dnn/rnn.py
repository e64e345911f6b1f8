"""Recurrent networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudnn_ct._caches import BoundedDict
from cudnn_ct.array import DeviceArray
from cudnn_ct.ops.rnn.gradients import RNNReserve
from cudnn_ct.ops.rnn.network import as_index
from cudnn_ct.ops.rnn.rnn import RNN
from cudnn_ct.shapes.checks import as_int
from cudnn_ct.shapes.specs import check_shape
from cudnn_ct.typing import ArrayLike, DTypeLike, RNNDirection, RNNMode

from .checks import Checked, RNNInputMode, Sizes, check_arguments, on_device, run

NETWORKS = 64  # networks that a block keeps, one for each size of the input


@dataclass(eq=False)
class RNNBlock:
    """Recurrent network; its weights are a separate array. See :class:`cudnn_ct.RNN`."""

    dtype: DTypeLike
    hidden_size: int
    num_layers: int
    rnn_mode: RNNMode
    input_mode: RNNInputMode = "linear"
    direction_mode: RNNDirection = "unidirectional"
    context_name: int | str | None = None

    def __post_init__(self) -> None:
        check_arguments(self)
        self._networks = BoundedDict(NETWORKS)

    @property
    def desc(self) -> RNNBlock:
        """The ``desc`` argument of the operations: the block itself."""
        return self

    def get_param_size(self, input_size: Sizes) -> int:
        """Return the number of elements of all weights."""
        return self.network(_of_input(input_size)).weight_size

    def split_params(self, w: ArrayLike, layer: int, input_size: Sizes) -> list[DeviceArray | None]:
        """Return writable views of the weights of a layer. See :meth:`cudnn_ct.RNN.split_params`."""
        network = self.network(_of_input(input_size))
        place = divmod(as_index(network.spec.pseudo_layers, layer, "layer"), network.spec.directions)
        parts: list[DeviceArray | None] = []
        for view in network.split_params(w, *place).values():
            if view.ndim == 1 and len(parts) % 2 == 0:  # a bias without a matrix before it
                parts.append(None)
            parts.append(view.T)
        return parts

    def apply(
        self, w: ArrayLike, x: ArrayLike, hx: ArrayLike, cx: ArrayLike | None = None
    ) -> list[DeviceArray]:
        """Return ``[y, hy]``, or ``[y, hy, cy]`` for an lstm. See :meth:`cudnn_ct.RNN.forward`."""
        return _forward(self, w, x, hx, cx, training=False)[1]

    def network(self, input_size: int) -> RNN:
        """Return the :class:`cudnn_ct.RNN` for an input size."""
        input_size = as_int(input_size, "input_size")
        found: RNN | None = self._networks.get(input_size)
        if found is None:
            found = self._networks[input_size] = run(
                RNN,
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


@dataclass(eq=False)
class GpuDnnRNNOp(Checked):
    """Forward pass for training. See :meth:`cudnn_ct.RNN.forward`."""

    rnn_mode: RNNMode
    direction_mode: RNNDirection

    def __call__(
        self, desc: RNNBlock, w: ArrayLike, x: ArrayLike, hx: ArrayLike, cx: ArrayLike | None = None
    ) -> list[RNNReserve | DeviceArray | None]:
        """Return a list of the reserve and the results of :meth:`RNNBlock.apply`."""
        _check_modes(desc, rnn_mode=self.rnn_mode, direction_mode=self.direction_mode)
        reserve, results = _forward(desc, w, x, hx, cx, training=True)
        return [reserve, *results]


@dataclass(eq=False)
class GpuDnnRNNGradInputs(Checked):
    """Gradients with respect to input, states and cells. See :meth:`cudnn_ct.RNN.backward_data`."""

    rnn_mode: RNNMode
    grad_h: bool
    grad_c: bool

    def __call__(
        self,
        desc: RNNBlock,
        x: ArrayLike,
        y: ArrayLike,  # noqa: ARG002 - the reserve holds it
        dy: ArrayLike | None,
        dhy: ArrayLike | None,
        dcy: ArrayLike | None,
        w: ArrayLike,  # noqa: ARG002
        hx: ArrayLike,  # noqa: ARG002
        cx: ArrayLike | None,  # noqa: ARG002
        reserve: RNNReserve,
    ) -> list[RNNReserve | DeviceArray]:
        """Return a list of the reserve and the gradients; each reserve can be used once."""
        _check_modes(desc, rnn_mode=self.rnn_mode)
        dhy, dcy = dhy if self.grad_h else None, dcy if self.grad_c else None
        dx, dhx, dcx = _network(desc, x).backward_data(dy, reserve, dhy, dcy)
        return [reserve, dx, dhx, *([] if dcx is None else [dcx])]


class GpuDnnRNNGradWeights:
    """Gradient with respect to the weights. See :meth:`cudnn_ct.RNN.backward_weights`."""

    def __call__(
        self,
        desc: RNNBlock,
        x: ArrayLike,
        hx: ArrayLike,  # noqa: ARG002 - the reserve holds it
        y: ArrayLike,  # noqa: ARG002
        reserve: RNNReserve,
        w: ArrayLike,  # noqa: ARG002
    ) -> DeviceArray:
        """Return the gradient with respect to ``w``, after :class:`GpuDnnRNNGradInputs`."""
        _check_modes(desc)
        return _network(desc, x).backward_weights(reserve)


def _forward(
    block: RNNBlock, w: ArrayLike, x: ArrayLike, hx: ArrayLike, cx: ArrayLike | None, training: bool
) -> tuple[RNNReserve | None, list[DeviceArray]]:
    if block.rnn_mode == "lstm" and cx is None:
        raise ValueError(
            "cx is missing: got None, expected the cells before the first time step; an lstm needs it"
        )
    y, hy, cy, reserve = _network(block, x).forward(x, w, hx, cx, training=training)
    return reserve, [y, hy, *([] if cy is None else [cy])]


def _network(block: RNNBlock, x: ArrayLike) -> RNN:
    shape = on_device(x, "x").shape
    if len(shape) != 3:
        raise ValueError(f"x does not have 3 axes: got shape {shape}, expected (T, B, input)")
    return block.network(shape[2])


def _of_input(input_size: Any) -> int:
    sizes = check_shape(input_size, "input_size")
    if len(sizes) != 2:
        raise ValueError(f"input_size does not have 2 sizes: got {sizes}, expected (batch, input)")
    return sizes[1]


def _check_modes(desc: RNNBlock, **modes: str) -> None:
    if not isinstance(desc, RNNBlock):
        raise TypeError(f"desc is not an RNNBlock: got {type(desc).__name__}, expected RNNBlock.desc")
    for name, mode in modes.items():
        if getattr(desc, name) != mode:
            raise ValueError(f"{name} does not match desc: got {mode!r}, expected {getattr(desc, name)!r}")
